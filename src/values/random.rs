//! Random parts of a time, which follow from a seed.

/// A random part of a time in nanoseconds, from none up to and including all of it, evenly
/// distributed. Equal seeds make equal parts.
pub(crate) fn part_of(longest: u64, seed: u64) -> u64 {
    let part = fastrand::Rng::with_seed(seed).u64(..);
    ((u128::from(part) * (u128::from(longest) + 1)) >> u64::BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn parts_of_seeds_that_follow_one_another_are_evenly_distributed() {
        let mut counts = [0_u32; 10];
        for seed in 0..10_000 {
            let part = part_of(999, seed);
            assert_eq!(part, part_of(999, seed));
            counts[part as usize / 100] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        assert_eq!(part_of(0, 7), 0);
        assert!((0..200).any(|seed| part_of(1, seed) == 1), "all of it is a part");
    }
}
