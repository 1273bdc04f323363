//! Which of the two text formats of `/metrics` a client prefers, by its `Accept` headers.
//!
//! The classic text format is the default, since every scraper reads it. `OpenMetrics` is for
//! clients that name it. A range with parameters that contradict the format, such as another
//! version, does not match it; of the ranges that match, the most specific one decides, as RFC 9110
//! says in section 12.5.1.
//!
//! Cost: one pass over the header for each format.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// A text format of the statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Classic,
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The type, the ranges of types that it is in, and the version.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Classic => ("text/plain", "text/*", "0.0.4"),
            Self::OpenMetrics => ("application/openmetrics-text", "application/*", "1.0.0"),
        }
    }
}

/// How well a range matches a format, the least specific first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Match {
    Anything,
    Type,
    Name,
    Version,
}

/// How much a client wants a format: the most specific match, and its weight in thousandths.
type Wish = Option<(Match, u16)>;

/// The format that the `Accept` headers prefer: `OpenMetrics` if its weight is greater, or as great
/// and the client names it; else the classic one, also where the client accepts neither.
pub(super) fn preferred(headers: &HeaderMap) -> Format {
    let weight = |wish: Wish| wish.map_or(0, |(_, weight)| weight);
    let open = wish(headers, Format::OpenMetrics);
    let classic = weight(wish(headers, Format::Classic));
    let is_named = open.is_some_and(|(specific, _)| specific >= Match::Name);
    let open = weight(open);
    if open > classic || (open == classic && open > 0 && is_named) {
        Format::OpenMetrics
    } else {
        Format::Classic
    }
}

/// The most specific range for a format in all `Accept` headers; of equally specific ones, that
/// with the greatest weight. `None` if no range matches.
fn wish(headers: &HeaderMap, format: Format) -> Wish {
    // A header that is not ASCII names no format.
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| split(value, ',')).filter_map(|range| matching(range, format)).max()
}

/// How a range matches a format; `None` if it does not, or if its weight is none.
fn matching(range: &str, format: Format) -> Wish {
    let (name, any_of_type, version) = format.names();
    let mut parts = split(range, ';');
    let range = parts.next().unwrap_or_default().trim();
    let mut found = match range {
        "*/*" => Match::Anything,
        range if range.eq_ignore_ascii_case(any_of_type) => Match::Type,
        range if range.eq_ignore_ascii_case(name) => Match::Name,
        _ => return None,
    };
    for parameter in parts {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        if key.eq_ignore_ascii_case("q") {
            // What follows the weight belongs to no format.
            return Some((found, weight(value)?));
        }
        if key.eq_ignore_ascii_case("version") {
            if value != version {
                return None;
            }
            found = found.max(Match::Version);
        }
        if key.eq_ignore_ascii_case("charset") && !value.eq_ignore_ascii_case("utf-8") {
            return None;
        }
    }
    Some((found, 1_000))
}

/// The parts between separators that are not inside of a quoted string.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            _ if was_escaped => {}
            '\\' => is_escaped = is_quoted,
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
        c == separator && !is_quoted
    })
}

/// A weight of 0 to 1 with up to three decimal places, in thousandths.
fn weight(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths = format!("{decimals:0<3}").parse().ok()?;
    match (whole, thousandths) {
        ("0", thousandths) => Some(thousandths),
        ("1", 0) => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_of_up_to_three_decimal_places_is_read() {
        let check = |text, expected| assert_eq!(weight(text), expected, "{text}");
        check("0", Some(0));
        check("0.", Some(0));
        check("0.5", Some(500));
        check("0.05", Some(50));
        check("0.999", Some(999));
        check("1", Some(1_000));
        check("1.000", Some(1_000));
        for none in ["", "1.001", "2", "00.5", ".5", "-0", "+1", "0.1234", "0.+1", "0,5", "0.5 1"] {
            check(none, None);
        }
    }

    #[test]
    fn separator_in_quoted_string_does_not_split() {
        let parts: Vec<_> = split(r#"a;b="x;\";y";c"#, ';').collect();
        assert_eq!(parts, ["a", r#"b="x;\";y""#, "c"]);
    }
}
