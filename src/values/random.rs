//! Random parts of a time, which follow from a seed.

/// A random part of a time in nanoseconds, from none up to and including all of it, evenly
/// distributed. Equal seeds make equal parts.
pub(crate) fn part_of(longest: u64, seed: u64) -> u64 {
    // First numbers of seeds with regular distances are not spread evenly.
    let mixed = fastrand::Rng::with_seed(seed).u64(..);
    let part = fastrand::Rng::with_seed(mixed).u64(..);
    ((u128::from(part) * (u128::from(longest) + 1)) >> u64::BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn parts_of_seeds_that_follow_one_another_are_evenly_distributed() {
        // As connections seed it: by their beginnings, and by a salt of eight bits.
        let starts = [(0, 0), (297_023_384_107_109, 33), (146_641_186_894_519, 164_u64)];
        for (apart, (start, salt)) in
            [0, 1, 1_000, 1_000_000, 1 << 20].into_iter().flat_map(|it| starts.map(|by| (it, by)))
        {
            let mut counts = [0_u32; 10];
            for number in 0..10_000 {
                let salt = ((salt + number) % 256).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let seed = (start + number * apart.max(1)) ^ if apart > 0 { salt } else { 0 };
                let part = part_of(999, seed);
                assert_eq!(part, part_of(999, seed));
                counts[part as usize / 100] += 1;
            }
            let is_even = counts.iter().all(|count| (850..1_150).contains(count));
            assert!(is_even, "{apart} apart from {start}: {counts:?}");
        }
        assert_eq!(part_of(0, 7), 0);
        assert!((0..200).any(|seed| part_of(1, seed) == 1), "all of it is a part");
    }
}
