//! The dashboard and the alert rules in `examples/monitoring`, against the metrics of an endpoint
//! and the guide's sections about warnings.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io::{ErrorKind, Write};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::{Context, Waker};
use std::time::Duration;

use corewheel::ConnLimits;
use corewheel::class::TimerClass;
use corewheel::stats::WarningKind;

use crate::client::get;
use crate::openmetrics::Scrape;
use crate::{builder, endpoint, fire, wait_until};

const ALERTS: &str = include_str!("../../../../examples/monitoring/alerts.yml");
const ALERTS_TEST: &str = include_str!("../../../../examples/monitoring/alerts_test.yml");
const DASHBOARD: &str = include_str!("../../../../examples/monitoring/dashboard.json");
const GUIDE: &str = include_str!("../../../../src/guide/statistics.md");

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_of_name(c));
    words
        .filter(|word| word.strip_prefix("corewheel_").is_some_and(|rest| !rest.is_empty()))
        // The crates of the collector and the routes, and of a server.
        .filter(|word| !["corewheel_http", "corewheel_stats"].contains(word))
        .collect()
}

/// The metrics of a service that has everything that has metrics of its own.
fn metrics_of_everything() -> (String, usize) {
    let service = builder(2).classes([TimerClass::new("request")]).start().unwrap();
    fire(&service, 1, 2);
    let limits = ConnLimits::default().read_idle(Duration::from_millis(1));
    let connection = service.handle().connection(limits);
    let mut event = pin!(poll_fn(|context| connection.poll_next(context)));
    wait_until("the connection is idle", || {
        event.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    });
    let endpoint = endpoint(&service);
    let body = get(endpoint.local_addr(), "/metrics").body;
    Scrape::read(&body);
    let kinds = service.stats().deadlines.len();
    (body, kinds)
}

#[test]
fn dashboard_rules_and_guide_name_metrics_that_are_exposed() {
    let (body, _) = metrics_of_everything();
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let mut exposed: BTreeSet<&str> =
        samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    if cfg!(not(target_os = "linux")) {
        exposed.extend([
            "corewheel_thread_ran_seconds_total",
            "corewheel_thread_waited_seconds_total",
        ]);
    }
    for (file, text) in [
        ("alerts.yml", ALERTS),
        ("alerts_test.yml", ALERTS_TEST),
        ("dashboard.json", DASHBOARD),
        ("statistics.md", GUIDE),
    ] {
        let used = names(text);
        assert!(used.len() >= 2, "{file} names no metric");
        let unknown: Vec<_> = used.difference(&exposed).collect();
        assert!(unknown.is_empty(), "{file} names metrics that are not exposed: {unknown:?}");
    }
}

#[test]
fn deadlines_add_the_documented_number_of_series() {
    let (body, kinds) = metrics_of_everything();
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let (threads, others): (Vec<_>, Vec<_>) =
        samples.partition(|line| line.starts_with("corewheel_thread_"));
    assert!([0, 4].contains(&threads.len()), "{threads:?}");
    assert_eq!(others.len(), 11 + 2 * (270 + 13) + 2 * kinds);
}

#[test]
fn each_warning_has_an_alert_a_test_of_it_and_a_section_of_the_guide() {
    for kind in WarningKind::ALL {
        let name = format!("Corewheel{kind:?}");
        let (id, about) = (kind.id(), kind.about());
        let rules: Vec<_> =
            ALERTS.split("- alert: ").filter(|rule| rule.lines().next() == Some(&name)).collect();
        let [rule] = rules[..] else { panic!("{id} has {} alerts", rules.len()) };
        assert!(rule.contains(&format!("id=\"{id}\"")), "the alert of {id} has another's count");
        assert!(rule.contains(about), "the alert of {id} has another text than: {about}");
        let fires = format!("alertname: {name}\n        exp_alerts:\n          - exp_labels:");
        assert!(ALERTS_TEST.contains(&fires), "{id} has no test in which its alert fires");
        let silent = format!("alertname: {name}, exp_alerts: []");
        assert!(ALERTS_TEST.contains(&silent), "{id} has no test in which its alert is silent");
        assert!(rule.contains(&format!("#{id}\n")), "the alert of {id} leads elsewhere");
        let heading = format!("\n## {id}\n");
        let (_, section) = GUIDE.split_once(&heading).unwrap_or_else(|| panic!("no section {id}"));
        let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
        let begin = format!("**The warning:** {about}. **The threshold:** ");
        assert!(section.starts_with(&begin), "the section {id} does not begin with: {begin}");
    }
    assert_eq!(ALERTS.matches("- alert: ").count(), WarningKind::ALL.len());
}

#[test]
fn dashboard_is_json_whose_panels_have_expressions() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one id");
        for target in panel["targets"].as_array().unwrap() {
            assert!(target["expr"].as_str().unwrap().contains("$service"), "{}", panel["title"]);
        }
    }
    assert!(panels.len() > 10);
}

/// Runs promtool in the folder of the rules with this input, and returns what it prints. `None`,
/// and says so, if it is not installed.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/monitoring"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = match command.spawn() {
        Ok(promtool) => promtool,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: promtool is not installed; Debian's package prometheus has it");
            return None;
        }
        Err(error) => panic!("promtool cannot be run: {error}"),
    };
    // Promtool reads its whole input before it prints.
    promtool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{printed}");
    Some(printed)
}

#[test]
fn promtool_accepts_the_rules_and_their_unit_tests_pass() {
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["test", "rules", "alerts_test.yml"], "");
}
