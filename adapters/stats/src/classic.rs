//! The statistics in the classic text format of Prometheus, version 0.0.4.
//!
//! `prometheus-client` writes `OpenMetrics` only. The samples of both formats are the same lines,
//! since a label's value is escaped alike, so this module rewrites the lines about families, and
//! there is one collector for both formats. The differences:
//!
//! | `OpenMetrics` | classic |
//! |---|---|
//! | `# TYPE fired counter` | `# TYPE fired_total counter`: a family has the name of its samples |
//! | `# TYPE service info` | `# TYPE service_info gauge` |
//! | `# UNIT …`, `# EOF` | absent |
//!
//! Cost: one pass over the text and a second text as long.

/// Rewrites text of the families that this crate has: counters without `_created`, gauges,
/// histograms and infos, without timestamps and exemplars.
pub(super) fn from_open_metrics(text: &str) -> String {
    let mut classic = String::with_capacity(text.len() + text.len() / 16);
    // The name and the text of a family's `HELP`, which stands before its `TYPE`.
    let mut help = None;
    // Not `lines`, which would also cut a carriage return off.
    for line in text.split_terminator('\n') {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                push(&mut classic, &["# HELP ", name, suffix, " ", help]);
            }
            push(&mut classic, &["# TYPE ", name, suffix, " ", kind]);
        } else if !line.starts_with('#') {
            push(&mut classic, &[line]);
        }
    }
    classic
}

fn push(text: &mut String, parts: &[&str]) {
    text.extend(parts.iter().copied());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_renamed_and_samples_stay() {
        let open = "# HELP a_seconds Some \\\\ help\n# TYPE a_seconds histogram\n\
                    # UNIT a_seconds seconds\na_seconds_sum 1.5\na_seconds_count 2\n\
                    a_seconds_bucket{le=\"+Inf\"} 2\n\
                    # HELP fired How many\n# TYPE fired counter\nfired_total{name=\"# EOF\"} 7\n\
                    # HELP service What\n# TYPE service info\nservice_info{name=\"a\"} 1\n\
                    # HELP pending Now\n# TYPE pending gauge\npending 3\n# EOF\n";
        let classic = "# HELP a_seconds Some \\\\ help\n# TYPE a_seconds histogram\n\
                       a_seconds_sum 1.5\na_seconds_count 2\na_seconds_bucket{le=\"+Inf\"} 2\n\
                       # HELP fired_total How many\n# TYPE fired_total counter\n\
                       fired_total{name=\"# EOF\"} 7\n\
                       # HELP service_info What\n# TYPE service_info gauge\n\
                       service_info{name=\"a\"} 1\n\
                       # HELP pending Now\n# TYPE pending gauge\npending 3\n";
        assert_eq!(from_open_metrics(open), classic);
    }
}
