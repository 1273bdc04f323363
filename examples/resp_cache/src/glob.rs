//! Patterns of names, as `KEYS` and `PSUBSCRIBE` take them.
//!
//! `?` stands for a byte, `*` for any bytes, `[a-c]` and `[^a-c]` for a byte of a set, and `\`
//! makes the next byte stand for itself. No library is used: those for paths give `/`, `**` and
//! braces meanings that these patterns do not have.
//!
//! Cost: O(pattern × name) at most, as only the last star is tried again.

/// A pattern with more stars matches nothing, as in redis.
const STARS_MAX: usize = 1_000;

/// Whether a pattern matches all of a name.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on after the last star: in the pattern, and in the name.
    let (mut retry, mut stars) = (None, 0);
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            stars += 1;
            if stars > STARS_MAX {
                return false;
            }
            retry = Some((p, n));
            continue;
        }
        if n == name.len() && p == pattern.len() {
            return true;
        }
        let matched = name.get(n).and_then(|byte| match_one(&pattern[p..], *byte));
        if let Some(length) = matched {
            p += length;
            n += 1;
            continue;
        }
        let Some((after_star, begin)) = retry.filter(|(_, begin)| *begin < name.len()) else {
            return false;
        };
        p = after_star;
        n = begin + 1;
        retry = Some((after_star, n));
    }
}

/// The length of the pattern's first element if it matches a byte.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', set @ ..] => match_set(set, byte),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// The length of a set, with both brackets, if it contains a byte. A set without an end reaches to
/// the end of the pattern.
fn match_set(set: &[u8], byte: u8) -> Option<usize> {
    let is_negated = set.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_found = false;
    loop {
        match set[at.min(set.len())..] {
            [] | [b']', ..] => break,
            [b'\\', literal, ..] => {
                is_found |= literal == byte;
                at += 2;
            }
            [low, b'-', high, ..] if high != b']' => {
                is_found |= (low.min(high)..=low.max(high)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                is_found |= literal == byte;
                at += 1;
            }
        }
    }
    (is_found != is_negated).then_some((at + 2).min(set.len() + 1))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn pattern_matches_the_names_it_describes() {
        for (pattern, name) in [
            ("*", ""),
            ("a*c*e", "abcde"),
            ("news.*", "news.art"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("\\*", "*"),
            ("{a}*", "{a}x"),
            ("*a*b", "aab"),
            ("[", "a"),
        ] {
            let expected = pattern != "[";
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "a"), ("a", ""), ("h[^e]llo", "hello"), ("\\*", "x"), ("a*", "ba"), ("a?", "a")]
        {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "a*".repeat(64) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 4_096]));
        for (stars, is_match) in [(1_000, true), (1_001, false)] {
            assert_eq!(matches("*?".repeat(stars).as_bytes(), &[b'a'; 4_096]), is_match);
        }
    }
}
