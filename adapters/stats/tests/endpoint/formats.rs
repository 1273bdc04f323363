//! The text of `/metrics`: its type, a scrape by Prometheus, and a check by Prometheus's own tool.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use corewheel::class::TimerClass;

use crate::client::{ask, get};
use crate::monitoring::promtool;
use crate::openmetrics::Scrape;
use crate::{builder, fire, served, served_by, wait_until};

#[test]
fn metrics_are_openmetrics_whatever_a_client_accepts() {
    let (_service, _endpoint, address) = served();
    for accept in
        ["", "Accept: text/plain;version=0.0.4\r\n", "Accept: */*\r\n", "Accept: ,;=q\r\n"]
    {
        let sent = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n");
        let reply = ask(address, sent.as_bytes());
        assert!(reply.status == 200 && reply.is_complete(), "{accept}");
        let expected = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(reply.header("content-type"), Some(expected), "{accept}");
        Scrape::read(&reply.body);
    }
}

/// Ends the process when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_scrapes_what_has_fired() {
    let (service, _endpoint, target) = served();
    fire(&service, 0, 20);
    let folder = std::env::temp_dir().join(format!("corewheel-prometheus-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let config = format!(
        "scrape_configs:\n  - job_name: corewheel\n    scrape_interval: 1s\n    \
         static_configs:\n      - targets: [\"{target}\"]\n",
    );
    fs::write(folder.join("prometheus.yml"), config).unwrap();
    // The port is free again when the probe is dropped.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut prometheus = Command::new("prometheus");
    prometheus.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
    prometheus.arg(format!("--web.listen-address=127.0.0.1:{port}")).current_dir(&folder);
    match prometheus.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => {
            let _running = Running(child);
            let server = format!("http://127.0.0.1:{port}");
            wait_until("Prometheus has the count of fired timers", || {
                let mut query = Command::new("promtool");
                let query = query.args(["query", "instant", &server, "corewheel_fired_total"]);
                let printed = query.output().unwrap().stdout;
                let printed = String::from_utf8_lossy(&printed);
                printed.contains("service=\"corewheel\"") && printed.contains("=> 20 @")
            });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: Prometheus is not installed; Debian's package prometheus has it");
        }
        Err(error) => panic!("Prometheus cannot be run: {error}"),
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// The metrics as promtool reads them, which knows the classic text only: there a family has the
/// name of its samples.
fn in_classic_text(metrics: &str) -> String {
    let mut help = "";
    let mut text = String::new();
    for line in metrics.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", _, about] => help = about,
            ["#", "TYPE", name, kind] => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                let name = format!("{name}{suffix}");
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            }
            ["#", ..] => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

#[test]
fn promtool_check_of_metrics_finds_nothing() {
    let classes = [TimerClass::new("read idle"), TimerClass::new("größe {x=1}, # TYPE 'a'")];
    let builder = builder(2).classes(classes).name("größe {x=1}, # EOF 'a'");
    let (service, _endpoint, address) = served_by(builder.start().unwrap());
    fire(&service, 0, 20);
    let metrics = in_classic_text(&get(address, "/metrics").body);
    let printed = promtool(&["check", "metrics"], &metrics);
    assert_eq!(printed.unwrap_or_default(), "");
}
