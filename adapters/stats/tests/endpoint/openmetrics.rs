//! A small, strict reader of `OpenMetrics` text. It panics if the text breaks the format.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

#[derive(Default)]
struct Family {
    kind: String,
    unit: Option<String>,
    help: Option<String>,
    samples: Vec<Sample>,
    seen: BTreeSet<(&'static str, Labels)>,
}

#[derive(Debug)]
struct Sample {
    suffix: &'static str,
    labels: Labels,
    value: f64,
}

/// The families of a scraped text, by their names.
pub(crate) struct Scrape(BTreeMap<String, Family>);

impl Scrape {
    /// # Panics
    ///
    /// If the text is not `OpenMetrics`.
    pub(crate) fn read(text: &str) -> Self {
        let text = text.strip_suffix("# EOF\n").expect("the text ends with # EOF");
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current = String::new();
        for line in text.split_terminator('\n') {
            assert!(!line.is_empty() && line.trim() == line, "{line:?}");
            if let Some(metadata) = line.strip_prefix("# ") {
                read_metadata(metadata, &mut families, &mut current);
            } else {
                let family = families.get_mut(&current).expect("metadata come before samples");
                let sample = read_sample(line, &current, &family.kind);
                let name = (sample.suffix, sample.labels.clone());
                assert!(family.seen.insert(name), "{line} is repeated");
                family.samples.push(sample);
            }
        }
        for (name, family) in &families {
            family.check(name);
        }
        Self(families)
    }

    pub(crate) fn kind(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|family| family.kind.as_str())
    }

    /// Asserts the value of the sample that [`value`](Self::value) finds.
    #[track_caller]
    pub(crate) fn check(&self, name: &str, suffix: &str, wanted: &[(&str, &str)], expected: f64) {
        let value = self.value(name, suffix, wanted);
        let is_so = (value - expected).abs() < 1e-9;
        assert!(is_so, "{name}{suffix} {wanted:?} is {value} and not {expected}");
    }

    /// The sample of a family with this suffix to its name and with all of these labels.
    pub(crate) fn value(&self, name: &str, suffix: &str, wanted: &[(&str, &str)]) -> f64 {
        let family = self.0.get(name).unwrap_or_else(|| panic!("the family {name} is missing"));
        let mut found = family.samples.iter().filter(|sample| {
            let has =
                |(key, value): (&str, &str)| sample.labels.get(key).is_some_and(|v| v == value);
            sample.suffix == suffix && wanted.iter().copied().all(has)
        });
        let sample = found.next().unwrap_or_else(|| panic!("{name}{suffix} {wanted:?} is missing"));
        assert!(found.next().is_none(), "{name}{suffix} {wanted:?} matches several samples");
        sample.value
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl Sample {
    /// The labels without `le`, the bound of a bucket.
    fn group(&self) -> Labels {
        let mut labels = self.labels.clone();
        labels.remove("le");
        labels
    }
}

impl Family {
    fn check(&self, name: &str) {
        assert!(!self.kind.is_empty(), "{name} has no TYPE");
        assert!(self.help.as_ref().is_some_and(|help| help.len() > 3), "{name} has no HELP");
        if let Some(unit) = &self.unit {
            assert!(name.ends_with(&format!("_{unit}")), "{name} ends without its unit {unit}");
        }
        assert!(!self.samples.is_empty(), "{name} has no samples");
        if self.kind == "histogram" {
            let mut groups: BTreeMap<Labels, Vec<&Sample>> = BTreeMap::new();
            for sample in &self.samples {
                groups.entry(sample.group()).or_default().push(sample);
            }
            for group in groups.values() {
                check_histogram(name, group);
            }
        }
    }
}

fn check_histogram(name: &str, samples: &[&Sample]) {
    let of = |suffix| samples.iter().filter(move |sample| sample.suffix == suffix);
    let buckets: Vec<(f64, f64)> =
        of("_bucket").map(|sample| (number(&sample.labels["le"]), sample.value)).collect();
    for pair in buckets.windows(2) {
        assert!(pair[0].0 < pair[1].0, "{name}: the bounds do not rise, {pair:?}");
        assert!(pair[0].1 <= pair[1].1, "{name}: the buckets are not cumulative, {pair:?}");
    }
    let &(bound, all) = buckets.last().expect("a histogram has buckets");
    assert!(bound.is_infinite(), "{name}: the last bucket has a finite bound");
    let count: Vec<f64> = of("_count").map(|sample| sample.value).collect();
    assert_eq!(count, [all], "{name}: the count differs from the last bucket");
    assert_eq!(of("_sum").count(), 1, "{name} does not have one sum");
}

fn read_metadata(line: &str, families: &mut BTreeMap<String, Family>, current: &mut String) {
    let mut words = line.splitn(3, ' ');
    let keyword = words.next().unwrap();
    let name = words.next().expect("metadata contain the name of a family");
    let text = words.next().expect("metadata contain a text").to_owned();
    check_name(name);
    if name != current {
        let known = families.insert(name.to_owned(), Family::default());
        assert!(known.is_none(), "other samples interrupt the family {name}");
        name.clone_into(current);
    }
    let family = families.get_mut(name).unwrap();
    assert!(family.samples.is_empty(), "metadata of {name} come after its samples");
    match keyword {
        "HELP" => assert!(family.help.replace(text).is_none(), "{name} has two HELP lines"),
        "UNIT" => assert!(family.unit.replace(text).is_none(), "{name} has two UNIT lines"),
        "TYPE" => {
            let known = ["counter", "gauge", "histogram", "info"];
            assert!(known.contains(&text.as_str()), "{name} has the unknown type {text}");
            assert!(family.kind.is_empty(), "{name} has two TYPE lines");
            family.kind = text;
        }
        _ => panic!("{keyword} is an unknown keyword"),
    }
}

fn read_sample(line: &str, family: &str, kind: &str) -> Sample {
    let end = line.find(['{', ' ']).expect("a sample has a value");
    let (name, rest) = line.split_at(end);
    check_name(name);
    let suffixes: &[&'static str] = match kind {
        "counter" => &["_total"],
        "histogram" => &["_bucket", "_sum", "_count"],
        "info" => &["_info"],
        _ => &[""],
    };
    let suffix = name.strip_prefix(family).expect("samples follow their family's metadata");
    let known = suffixes.iter().find(|known| **known == suffix);
    let suffix = *known.unwrap_or_else(|| panic!("{name} is no sample of a {kind}"));
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => read_labels(rest),
        None => (Labels::new(), rest),
    };
    let value = number(value.strip_prefix(' ').expect("one space, then the value"));
    assert!(!value.is_nan() && (value >= 0.0 || kind == "gauge"), "{line}");
    assert_eq!(suffix == "_bucket", labels.contains_key("le"), "{line}");
    Sample { suffix, labels, value }
}

/// Reads `name="value",…}` and returns the labels and the rest of the text.
fn read_labels(mut rest: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label has a value in quotes");
        check_name(name);
        // Names have no quotes and no backslashes, so there are no escapes.
        let (value, after) = after.split_once('"').expect("the quote is closed");
        assert!(!value.contains('\\'), "{value}");
        let before = labels.insert(name.to_owned(), value.to_owned());
        assert!(before.is_none(), "the label {name} is repeated");
        match after.split_at(1) {
            (",", more) => rest = more,
            ("}", more) => return (labels, more),
            (other, _) => panic!("{other:?} after a label"),
        }
    }
}

fn check_name(name: &str) {
    let is_fine = |(at, byte): (usize, u8)| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'_' => true,
        b'0'..=b'9' => at > 0,
        _ => false,
    };
    assert!(!name.is_empty() && name.bytes().enumerate().all(is_fine), "{name:?} is not a name");
}

fn number(text: &str) -> f64 {
    if text == "+Inf" {
        return f64::INFINITY;
    }
    let value = text.parse().unwrap_or_else(|_| panic!("{text:?} is not a number"));
    assert!(f64::is_finite(value), "{text}");
    value
}

fn check_refused(text: &str) {
    let refused = std::panic::catch_unwind(|| Scrape::read(text)).is_err();
    assert!(refused, "the reader accepts: {text}");
}

#[test]
fn reader_of_openmetrics_refuses_malformed_text() {
    let good = "# HELP a_s Some help\n# TYPE a_s histogram\n# UNIT a_s s\na_s_sum 1\na_s_count 2\n\
                a_s_bucket{le=\"1\"} 1\na_s_bucket{le=\"+Inf\"} 2\n# EOF\n";
    Scrape::read(good);
    check_refused(good.strip_suffix("# EOF\n").unwrap());
    for (from, to) in [
        ("a_s_count 2", "a_s_count 3"),
        ("a_s_bucket{le=\"1\"} 1", "a_s_bucket{le=\"1\"} 3"),
        ("+Inf", "5"),
        ("# TYPE a_s histogram\n", ""),
        ("# TYPE a_s histogram", "# TYPE a_s counter"),
        ("# UNIT a_s s", "# UNIT a_s m"),
        ("a_s_sum 1\n", ""),
        ("a_s_sum 1\n", "a_s_sum 1\n\n"),
        ("a_s_sum 1\n", "a_s_sum 1\na_s_sum 1\n"),
        ("a_s_sum 1\n", "a_s_sum NaN\n"),
        ("a_s_sum 1\n", "b_sum 1\n"),
        ("{le=\"1\"}", "{le=\"1}"),
    ] {
        check_refused(&good.replacen(from, to, 1));
    }
}
