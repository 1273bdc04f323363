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
use mediatype::{MediaType, MediaTypeList, ReadParams};

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

    /// The type, the subtype and the version.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Classic => ("text", "plain", "0.0.4"),
            Self::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
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
    // A header that is not ASCII names no format, and neither does a range that is malformed.
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(MediaTypeList::new).flatten();
    ranges.filter_map(|range| matching(&range, format)).max()
}

/// How a range matches a format; `None` if it does not, or if its weight is none.
fn matching(range: &MediaType<'_>, format: Format) -> Wish {
    let (ty, subty, version) = format.names();
    let mut found = match (range.ty.as_str(), range.subty.as_str()) {
        _ if range.suffix.is_some() => return None,
        ("*", "*") => Match::Anything,
        (_, "*") if range.ty == ty => Match::Type,
        _ if range.ty == ty && range.subty == subty => Match::Name,
        _ => return None,
    };
    for (key, value) in range.params() {
        let value = value.unquoted_str();
        if key == "q" {
            // What follows the weight belongs to no format.
            return Some((found, weight(&value)?));
        }
        if key == "version" {
            if value != version {
                return None;
            }
            found = found.max(Match::Version);
        }
        if key == "charset" && !value.eq_ignore_ascii_case("utf-8") {
            return None;
        }
    }
    Some((found, 1_000))
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
}
