//! The words of comments and texts, and the names of tests.

use super::{Source, check, has_word, plain};

const NAME_MAX: usize = 80;
/// The most words of a sentence.
const SENTENCE_MAX: usize = 32;

/// Words and phrases that no comment contains: stand-ins for the thing that acts, and metaphors for
/// which there is a term.
const BANNED: &str = "whoever|whomever|whosoever|somebody|someone|anybody|anyone|nobody|everybody|\
    everyone|those who|for who|who asks|who knows|who waits|who wants|the same, but|the same, for|\
    at the door|bank of|bell|bells|brake|come home|comes home|doze|errand|knock|knocks|ripe|\
    undertaker";
/// Words with which no test name begins.
const BANNED_FIRST: [&str; 8] = ["a", "an", "the", "it", "one", "what", "who", "whoever"];

/// The places where a comment contains a banned word or phrase, with the word. A phrase may
/// continue on the next line.
fn banned_words(sources: &[Source]) -> Vec<(String, usize, &'static str)> {
    let mut places = Vec::new();
    for source in sources {
        let comments: Vec<_> = source.comments().collect();
        for (at, (number, comment)) in comments.iter().enumerate() {
            let next = comments.get(at + 1).filter(|(next, _)| *next == number + 1);
            let next = next.map_or("", |(_, comment)| *comment);
            let text = format!("{comment} {next}").to_lowercase();
            let (comment, next) = (comment.to_lowercase(), next.to_lowercase());
            let begins_here = |word: &&str| {
                has_word(&comment, word) || (has_word(&text, word) && !has_word(&next, word))
            };
            let found = BANNED.split('|').filter(begins_here);
            places.extend(found.map(|word| (source.path.clone(), *number, word)));
        }
    }
    places
}

#[test]
fn comments_contain_no_banned_words() {
    let places = banned_words(&plain());
    let places = places.into_iter().map(|(path, line, word)| (format!("{word:?} in {path}"), line));
    check("a comment names things, and uses terms instead of metaphors", places);
}

#[test]
fn banned_words_are_found_in_comments_and_across_lines() {
    let cases = [
        ("x.rs", "#/ Whoever waits.", vec![1]),
        ("x.rs", "let bell = doorbell; # The doorbell.\n# Somebody comes.", vec![2]),
        ("x.rs", "call(); # The same,\n# but later.\n", vec![1]),
        ("x.rs", "# The bell.\n# The bell.\n", vec![1, 2]),
        ("x.rs", "let text = \"nobody\";", vec![]),
        ("README.md", "Anybody may read.\n\nThe rest.", vec![1]),
    ];
    for (path, text, expected) in cases {
        // Written out, the slashes would begin comments of this file.
        let text = text.replace('#', "//");
        let found: Vec<_> =
            banned_words(&[Source::new(path, &text)]).iter().map(|at| at.1).collect();
        assert_eq!(found, expected, "{text}");
    }
}

/// The first lines of the sentences of comments that have more than [`SENTENCE_MAX`] words. A list
/// item, a row of a table, a heading and an empty line end a sentence, and code has none. The first
/// semicolon or colon of a sentence ends it, too; those after it do not.
fn long_sentences(source: &Source) -> Vec<usize> {
    let mut long = Vec::new();
    let (mut words, mut begin, mut is_split, mut is_code, mut before) = (0, 0, false, false, 0);
    for (number, comment) in source.comments() {
        let is_fence = comment.starts_with("```");
        is_code ^= is_fence;
        let is_block = comment.is_empty() || comment.starts_with(['#', '|', '-', '*', '>', '<']);
        let is_numbered = comment.split_once(". ").is_some_and(|(at, _)| at.parse::<u8>().is_ok());
        if is_fence || is_code || is_block || is_numbered || number != before + 1 {
            (words, is_split) = (0, false);
        }
        before = number;
        if is_fence || is_code || comment.starts_with(['#', '|', '<']) {
            continue;
        }
        let text = comment.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
        for word in text {
            begin = if words == 0 { number } else { begin };
            words += 1;
            if words == SENTENCE_MAX + 1 {
                long.push(begin);
            }
            let word = word.trim_end_matches([')', '`', '"', '*', '_', ']']);
            let is_first_break = word.ends_with([';', ':']) && !is_split;
            if word.ends_with(['.', '!', '?']) || is_first_break {
                (words, is_split) = (0, is_first_break);
            }
        }
    }
    long
}

#[test]
fn sentences_of_comments_have_at_most_32_words() {
    let places = plain().into_iter().flat_map(|source| {
        let lines = long_sentences(&source).into_iter();
        lines.map(|line| (source.path.clone(), line)).collect::<Vec<_>>()
    });
    check("a sentence has at most 32 words", places);
}

#[test]
fn long_sentence_is_found_across_lines_and_after_one_semicolon() {
    let words = |count: usize| "word ".repeat(count).trim_end().to_owned();
    let cases = [
        (format!("{}.\n", words(32)), 0),
        (format!("{}.\n", words(33)), 1),
        (format!("{}\n{}.\n", words(16), words(17)), 1),
        (format!("{};\n{}.\n", words(20), words(20)), 0),
        (format!("{};\n{}; {}.\n", words(20), words(20), words(20)), 1),
        (format!("{}\n\n{}.\n", words(20), words(20)), 0),
        (format!("- {}\n- {}.\n", words(20), words(20)), 0),
        (format!("```\n{}\n```\n", words(40)), 0),
    ];
    for (text, expected) in cases {
        assert_eq!(long_sentences(&Source::new("x.md", &text)).len(), expected, "{text}");
    }
}

#[test]
fn test_names_state_a_subject_an_operation_and_an_outcome() {
    let rule = "a test name has at least 3 words, at most 80 characters, and begins with a subject";
    let places = plain().into_iter().flat_map(|source| {
        let tests = source.tests().filter(|(_, name)| {
            let mut words = name.split('_');
            let is_first_banned = words.next().is_some_and(|word| BANNED_FIRST.contains(&word));
            is_first_banned || words.count() < 2 || name.len() > NAME_MAX
        });
        tests.map(|(line, _)| (source.path.clone(), line)).collect::<Vec<_>>()
    });
    check(rule, places);
}
