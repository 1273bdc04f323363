//! The text format that `/metrics` chooses from the `Accept` headers, and a check of the text by
//! Prometheus's own tool.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use corewheel::class::TimerClass;
use corewheel::{Runtime, TimerService};

use crate::client::{Reply, ask};
use crate::openmetrics::Scrape;
use crate::{endpoint, fire, service};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Requests `/metrics` with these `Accept` headers.
fn scrape(address: SocketAddr, accept: &[&str]) -> Reply {
    let mut sent = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n".to_owned();
    for value in accept {
        sent.extend(["Accept: ", value, "\r\n"]);
    }
    sent.push_str("\r\n");
    let reply = ask(address, sent.as_bytes());
    assert_eq!(reply.status, 200, "{accept:?}");
    assert!(reply.is_complete(), "{accept:?}");
    reply
}

fn check_accept(address: SocketAddr, accept: &[&str], expected: &str) {
    let reply = scrape(address, accept);
    assert_eq!(reply.header("content-type"), Some(expected), "{accept:?}");
    assert_eq!(reply.header("vary"), Some("accept"), "{accept:?}");
    assert_eq!(reply.body.ends_with("# EOF\n"), expected == OPEN_METRICS, "{accept:?}");
    if expected == OPEN_METRICS {
        Scrape::read(&reply.body);
    }
}

#[test]
fn metrics_are_sent_in_the_format_that_accept_prefers() {
    let service = service(1);
    let endpoint = endpoint(&service);
    let address = endpoint.local_addr();
    for accept in [
        // Prometheus 2 and 3.
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;\
         version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
         application/openmetrics-text;version=0.0.1;q=0.5,\
         text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,\
         */*;q=0.2",
        "application/openmetrics-text",
        "Application/OpenMetrics-Text ; Version=\"1.0.0\" ; Q=0.9, text/plain;q=0.8",
        "application/openmetrics-text, text/plain",
        "text/plain;q=0.5, application/*",
        "text/plain;q=0, */*",
        "text/*;q=0.1, */*;q=0.2",
        "application/openmetrics-text;note=\"a,b;q=0\";q=0.9, text/plain;q=0.5",
    ] {
        check_accept(address, &[accept], OPEN_METRICS);
    }
    for accept in [
        "*/*",
        "text/plain",
        "text/plain;version=0.0.4",
        "text/*",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "application/openmetrics-text;q=0.5, text/plain",
        "application/openmetrics-text;q=0.300, text/plain;q=0.301",
        "application/openmetrics-text;q=0, */*;q=0.1",
        "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;charset=latin1",
        // A media range with a malformed weight is ignored.
        "application/openmetrics-text;q=2, text/plain;q=0.1",
        "application/openmetrics-text;q=0.1234, text/plain;q=0.1",
        "application/openmetrics-text;q=-1",
        "application/openmetrics-textual",
        "image/png",
        "",
        ",;,=;q",
    ] {
        check_accept(address, &[accept], CLASSIC);
    }
    check_accept(address, &[], CLASSIC);
    let two_headers = ["text/plain;q=0.5", "application/openmetrics-text;q=0.6"];
    check_accept(address, &two_headers, OPEN_METRICS);
}

/// The samples that do not change while no thread drives the shards.
fn samples(text: &str) -> BTreeSet<&str> {
    let changes = |line: &str| line.starts_with('#') || line.contains("_uptime_");
    text.lines().filter(|line| !changes(line)).collect()
}

#[test]
fn classic_metrics_have_the_samples_of_open_metrics_and_the_names_of_the_old_format() {
    let classes = [TimerClass::new("read idle"), TimerClass::new("request")];
    let service: TimerService =
        TimerService::builder().shards(3).classes(classes).start_attached_with().unwrap();
    let endpoint = endpoint(&service);
    let classic = scrape(endpoint.local_addr(), &["text/plain"]).body;
    let open = scrape(endpoint.local_addr(), &["application/openmetrics-text"]).body;
    assert_eq!(samples(&classic), samples(&open));
    for line in [
        "# TYPE corewheel_fired_total counter",
        "# TYPE corewheel_class_fired_total counter",
        "# TYPE corewheel_service_info gauge",
        "# TYPE corewheel_pending gauge",
        "# TYPE corewheel_lateness_seconds histogram",
        "# HELP corewheel_service_info What the service is",
    ] {
        assert!(classic.lines().any(|found| found == line), "{line} is missing");
    }
    let comments = classic.lines().filter(|line| line.starts_with('#'));
    for comment in comments {
        let known = comment.starts_with("# HELP ") || comment.starts_with("# TYPE ");
        assert!(known, "{comment}");
    }
    // The name of a sample is the name of its family, with a suffix in a histogram.
    for sample in samples(&classic) {
        let name = &sample[..sample.find(['{', ' ']).unwrap()];
        let stems = ["", "_bucket", "_sum", "_count"].map(|suffix| name.strip_suffix(suffix));
        let family = |stem: &str| classic.contains(&format!("# TYPE {stem} "));
        assert!(stems.into_iter().flatten().any(family), "{sample}");
    }
}

#[test]
fn promtool_check_of_metrics_finds_nothing() {
    let classes = [TimerClass::new("read idle"), TimerClass::new("größe {x=1}, # TYPE 'a'")];
    let builder = TimerService::builder().shards(2).classes(classes).name("größe {x=1}, # EOF 'a'");
    let service = builder.runtime(Runtime::Thread).unpinned().start().unwrap();
    fire(&service, 0, 20);
    let endpoint = endpoint(&service);
    let metrics = scrape(endpoint.local_addr(), &[]).body;
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: promtool is not installed; Debian's package prometheus has it");
            return;
        }
        Err(error) => panic!("promtool cannot be run: {error}"),
    };
    // Promtool reads its whole input before it prints.
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&printed);
    assert!(output.status.success() && printed.is_empty(), "{text}");
}
