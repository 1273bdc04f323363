//! Patterns of names, as `PSUBSCRIBE` and `CONFIG GET` take them: `?` stands for a byte, and `*`
//! for any bytes. Sets in brackets, which redis has too, are bytes like others.
//!
//! Cost: O(pattern × name) at most, as only the last star is tried again.

/// Whether a pattern matches all of a name.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on after the last star: in the pattern, and in the name.
    let mut retry = None;
    while n < name.len() || p < pattern.len() {
        match (pattern.get(p), name.get(n), retry) {
            (Some(b'*'), _, _) => {
                p += 1;
                retry = Some((p, n));
            }
            (Some(known), Some(byte), _) if *known == b'?' || known == byte => {
                (p, n) = (p + 1, n + 1);
            }
            (_, Some(_), Some((after_star, begin))) => {
                (p, n) = (after_star, begin + 1);
                retry = Some((p, n));
            }
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn pattern_matches_the_names_it_describes() {
        for (pattern, name, is_match) in [
            ("*", "", true),
            ("", "", true),
            ("a*c*e", "abcde", true),
            ("__key*__:*", "__keyevent@0__:expired", true),
            ("h?llo", "hello", true),
            ("*a*b", "aab", true),
            ("*ab", "aab", true),
            ("[", "[", true),
            ("", "a", false),
            ("a", "", false),
            ("a*", "ba", false),
            ("a?", "a", false),
            ("a*b", "abc", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "a*".repeat(64) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 4_096]));
    }
}
