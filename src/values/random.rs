//! Random parts of a time, which follow from a seed.

/// The golden ratio, in 2⁻⁶⁴.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A random part of a time in nanoseconds, from none up to and including all of it, evenly
/// distributed. Equal seeds make equal parts.
pub(crate) fn part_of(longest: u64, seed: u64) -> u64 {
    // The first numbers of seeds with regular distances are spread less evenly than random ones.
    let part = fastrand::Rng::with_seed(seed.wrapping_mul(GOLDEN)).u64(..);
    ((u128::from(part) * (u128::from(longest) + 1)) >> u64::BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn parts_of_seeds_that_follow_one_another_are_evenly_distributed() {
        // As connections make them, by their beginnings and a number of eight bits.
        for apart in [1, 1 << 8, 1_000 << 8, 1_000_000 << 8, 1 << 28] {
            let mut counts = [0_u32; 10];
            for number in 0..10_000 {
                let seed = (number * apart) | (number % 256);
                let part = part_of(999, seed);
                assert_eq!(part, part_of(999, seed));
                counts[part as usize / 100] += 1;
            }
            let is_even = counts.iter().all(|count| (850..1_150).contains(count));
            assert!(is_even, "{apart}: {counts:?}");
        }
        assert_eq!(part_of(0, 7), 0);
        assert!((0..200).any(|seed| part_of(1, seed) == 1), "all of it is a part");
    }
}
