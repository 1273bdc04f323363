//! The response of each route.

use std::net::SocketAddr;
use std::task::{Context, Waker};
use std::time::Duration;

use corewheel::class::TimerClass;
use corewheel::clock::ManualClock;
use corewheel::stats::{ClassStats, WarningKind};
use corewheel::{CancelOutcome, ConnLimits, DeadlineKind, ShardId};
use corewheel::{ShutdownPolicy, StartError, TimerService};
use corewheel_stats::StatsEndpoint;
use corewheel_test_support::{FAR, ms};
use serde_json::Value;

use crate::client::{Connection, Reply, ask, get, request};
use crate::openmetrics::Scrape;
use crate::{
    builder, check_status, endpoint, fire, huge_service, served, served_by, service, wait_until,
};

fn stats(address: SocketAddr) -> Value {
    let reply = get(address, "/stats.json");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    serde_json::from_str(&reply.body).expect("the body is JSON")
}

fn scrape(address: SocketAddr) -> Scrape {
    let reply = get(address, "/metrics");
    assert_eq!(reply.status, 200);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), Some(kind));
    Scrape::read(&reply.body)
}

#[test]
fn page_loads_nothing_from_other_hosts() {
    let (_service, _endpoint, address) = served();
    let page = get(address, "/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.body.contains("\"/stats.json\""), "it reads the routes without a prefix");
    assert!(page.body.len() < 60_000, "{} bytes", page.body.len());
    for foreign in ["http://", "https://", "//cdn", "@import", "innerHTML"] {
        assert!(!page.body.contains(foreign), "{foreign}");
    }
    let policy = page.header("content-security-policy").expect("the page has a policy");
    for rule in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
}

#[test]
fn page_reads_only_counts_that_the_json_contains() {
    let (_service, _endpoint, address) = served();
    let page = get(address, "/").body;
    let stats = stats(address);
    let shard = stats["shards"][0].as_object().unwrap();
    // The script reads a count of a shard as `s.name`.
    let mut read = 0;
    for (at, _) in page.match_indices("s.") {
        let before = page[..at].chars().next_back().unwrap();
        let name: String = page[at + 2..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_')
            .collect();
        if matches!(before, ' ' | '(') && !name.is_empty() {
            assert!(shard.contains_key(&name), "the page reads s.{name}");
            read += 1;
        }
    }
    assert!(read > 15, "{read}");
}

#[test]
fn json_counts_obey_the_law_before_and_after_shutdown() {
    let (service, _endpoint, address) = served_by(service(2));
    let client = service.handle();
    fire(&service, 1, 20);
    for _ in 0..10 {
        let schedule = || client.on(ShardId::new(0)).schedule_fn(FAR, |_| {}).unwrap();
        schedule();
        // The reply says that the shard has received all earlier requests too.
        let outcome = client.cancel(schedule()).wait().unwrap();
        assert!(matches!(outcome, CancelOutcome::Cancelled { .. }), "{outcome:?}");
    }
    let obeys_law = |stats: &Value| {
        stats["shards"].as_array().unwrap().iter().all(|shard| {
            let count = |name: &str| shard[name].as_u64().expect(name);
            let scheduled = count("scheduled_local") + count("scheduled_remote");
            let ended = ["fired", "cancelled", "returned", "dropped"].map(count);
            scheduled - ended.iter().sum::<u64>() == count("pending")
        })
    };
    // A turn sends replies before it publishes counts.
    wait_until("all requests are counted", || {
        let stats = stats(address);
        let done = stats["shards"][0]["cancelled"] == 10 && stats["shards"][1]["fired"] == 20;
        done && stats["shards"][0]["pending"] == 10 && obeys_law(&stats)
    });
    service.shutdown(ShutdownPolicy::Return).unwrap();
    let after = stats(address);
    assert!(obeys_law(&after), "{after}");
    let shard = &after["shards"][0];
    assert_eq!((&shard["returned"], &shard["dropped"]), (&10.into(), &0.into()));
}

#[test]
fn timers_dropped_by_shutdown_are_shown_in_every_format() {
    const LEASE: TimerClass = TimerClass::new("lease");
    let builder = TimerService::builder().shards(1).class(LEASE).unpinned();
    let (service, _endpoint, address) = served_by(builder.start_attached_with::<u8>().unwrap());
    let shard = service.attach(ShardId::new(0)).unwrap().into_loop(|_, _| {}).unwrap();
    shard.timers().schedule(FAR, 1).unwrap();
    shard.timers().of_class(LEASE).unwrap().schedule(FAR, 2).unwrap();
    let report = shard.shutdown(ShutdownPolicy::Drop);
    assert_eq!((report.shards[0].counts.dropped, report.shards[0].counts.returned), (2, 0));
    let stats = stats(address);
    let shard = &stats["shards"][0];
    assert_eq!((&shard["dropped"], &shard["returned"]), (&2.into(), &0.into()));
    assert_eq!((&shard["pending"], &shard["classes"][0]["dropped"]), (&0.into(), &1.into()));
    let scrape = scrape(address);
    scrape.check("corewheel_dropped", "_total", &[], 2.0);
    let labels = [("shard", "0"), ("class", "lease")];
    scrape.check("corewheel_class_dropped", "_total", &labels, 1.0);
}

#[test]
fn stats_json_has_the_table_of_warnings_from_which_the_page_is_drawn() {
    let (_service, _endpoint, address) = served();
    let stats = stats(address);
    let rows = stats["warning_kinds"].as_array().unwrap();
    assert_eq!(rows.len(), WarningKind::ALL.len());
    let parts = stats["shards"][0]["late_parts"].as_object().unwrap();
    for (row, kind) in rows.iter().zip(WarningKind::ALL) {
        assert_eq!((&row["id"], &row["remedy"]), (&kind.id().into(), &kind.remedy().into()));
        let part = row["part"].as_str();
        assert_eq!(part, kind.part());
        assert!(part.is_none_or(|part| parts.contains_key(part)), "{row}");
    }
    // The page has no second table.
    let page = include_str!("../../src/page.html");
    for kind in WarningKind::ALL {
        assert!(!page.contains(kind.remedy()) && !page.contains(kind.id()), "{kind}");
    }
}

/// Whether the row of a count says that it is a gauge or a maximum.
fn is_gauge(name: &str) -> bool {
    let rows = include_str!("../../../../src/stats/counts.rs");
    let is_row = |line: &&str| line.trim().starts_with(&format!("{name}: "));
    let row = rows.lines().filter(is_row).find(|line| line.ends_with(',')).expect("it has a row");
    let kind = row.trim().trim_end_matches(',').split(' ').nth(1);
    assert!(matches!(kind, Some("sum" | "gauge" | "maximum")), "{row}");
    kind != Some("sum")
}

/// The family of a count, and its value in the family's unit.
fn family_of(name: &str, value: u64) -> (String, f64) {
    match name.strip_suffix("_ns") {
        Some(stem) => (format!("corewheel_{stem}_seconds"), value as f64 / 1e9),
        None => (format!("corewheel_{name}"), value as f64),
    }
}

#[test]
fn metrics_contain_every_count_of_every_shard() {
    let (service, _endpoint, address) = served_by(service(3));
    fire(&service, 0, 10);
    fire(&service, 2, 30);
    service.set_scale(corewheel::settings::Scale::new(0.75).unwrap());
    wait_until("no count changes during a scrape", || {
        let before = service.stats();
        let scrape = scrape(address);
        let after = service.stats();
        if before.shards != after.shards {
            return false;
        }
        for shard in &after.shards {
            let number = shard.shard.number().to_string();
            let label = [("shard", number.as_str())];
            for (name, value) in shard.counts.iter() {
                let (family, value) = family_of(name, value);
                let (kind, suffix) =
                    if is_gauge(name) { ("gauge", "") } else { ("counter", "_total") };
                assert_eq!(scrape.kind(&family), Some(kind), "{family}");
                scrape.check(&family, suffix, &label, value);
            }
            scrape.check("corewheel_running", "", &label, 1.0);
            scrape.check("corewheel_scale", "", &label, 0.75);
            for (family, times) in [
                ("corewheel_lateness_seconds", &shard.lateness),
                ("corewheel_ring_delay_seconds", &shard.ring_delay),
                ("corewheel_turn_seconds", &shard.turn_time),
            ] {
                assert_eq!(scrape.kind(family), Some("histogram"));
                scrape.check(family, "_count", &label, times.count as f64);
                scrape.check(family, "_sum", &label, times.sum_ns as f64 / 1e9);
            }
        }
        let count = scrape.value("corewheel_lateness_seconds", "_count", &[("shard", "2")]);
        (count - 30.0).abs() < 0.5
    });
}

#[test]
fn metrics_have_the_documented_number_of_series_and_each_names_the_service() {
    let count = |shards, classes: &[TimerClass]| {
        let builder = TimerService::builder().shards(shards).classes(classes.iter().copied());
        let service = builder.capacity(64).name("one").start_attached().unwrap();
        let (_service, _endpoint, address) = served_by(service);
        let body = get(address, "/metrics").body;
        let scrape = Scrape::read(&body);
        assert!(scrape.names().all(|name| name.starts_with("corewheel_")));
        scrape.check("corewheel_tick_seconds", "", &[], 1e-3);
        let samples = body.lines().filter(|line| !line.starts_with('#'));
        assert!(samples.clone().all(|sample| sample.contains("service=\"one\"")), "{body}");
        samples.count()
    };
    let classes = ["a", "b", "c"].map(TimerClass::new);
    let of_connections = service(1).stats().deadlines;
    assert!(of_connections.iter().any(|deadline| deadline.kind == "handshake"));
    // All kinds are there before their first deadline, so that a rate has the first.
    let kinds = 2 * of_connections.len();
    // No thread drives the shards, so the two series of a thread are not there.
    let documented = |shards: usize, classes: usize| 11 + shards * (270 + 13 * classes) + kinds;
    for (shards, of) in [(1, 0), (3, 0), (1, 1), (3, 2), (2, 3)] {
        assert_eq!(count(shards, &classes[..of]), documented(shards, of), "{shards} {of}");
    }
}

#[test]
fn warnings_are_shown_in_every_format_and_end_readiness_while_a_shard_is_stuck() {
    let clock = ManualClock::new();
    // Far from the epoch, where a time that is wrongly 0 would be right.
    clock.advance(Duration::from_secs(12_345));
    let builder = TimerService::builder().shards(2).clock(&clock).unpinned();
    let service = builder.start_attached_with::<u8>().unwrap();
    let attach = |shard| service.attach(ShardId::new(shard)).unwrap().into_loop(|_, _| {});
    let (mut first, mut second) = (attach(0).unwrap(), attach(1).unwrap());
    let (_service, _endpoint, address) = served_by(service);
    let ready = || {
        let Reply { status, body, .. } = get(address, "/ready");
        (status, body)
    };
    second.timers().schedule(Duration::from_millis(5), 1).unwrap();
    let (_, _) = (first.turn(), second.turn());
    assert_eq!(ready(), (200, "every shard runs\n".to_owned()));
    clock.advance(Duration::from_millis(2_505));
    assert_eq!(ready(), (503, "shard 1 is stuck for 2.5s\n".to_owned()));
    assert_eq!(get(address, "/live").status, 200);
    let json = stats(address);
    let warning = &json["warnings"][0];
    assert_eq!((&warning["id"], &warning["shard"]), (&"shard-stuck".into(), &1.into()));
    assert_eq!((&warning["count"], &warning["is_active"]), (&1.into(), &true.into()));
    assert_eq!(json["warnings"].as_array().unwrap().len(), 1);
    let of = |id| [("shard", "1"), ("id", id)];
    let metrics = scrape(address);
    metrics.check("corewheel_warnings", "_total", &of("shard-stuck"), 1.0);
    metrics.check("corewheel_warning_active", "", &of("shard-stuck"), 1.0);
    metrics.check("corewheel_warnings", "_total", &of("shard-dead"), 0.0);
    let _ = second.turn();
    assert_eq!(ready().0, 200);
    drop((first, second));
    let expected = "shard 0 is dead, and another shard is not ready either\n";
    assert_eq!(ready(), (503, expected.to_owned()));
}

#[test]
fn json_fields_are_in_the_documented_order_and_have_its_version() {
    let (_service, _endpoint, address) = served();
    let body = get(address, "/stats.json").body;
    let schema = format!("{{\"schema\":{}", corewheel::stats::ServiceStats::SCHEMA);
    assert!(body.starts_with(&schema), "{body}");
    let fields = "schema version name runtime cores tick_ns lateness_bound_ns overrun_ns \
                  lane_capacity budget warning_limits uptime warnings shards shard state scale \
                  pending connections classes lateness ring_delay turn_time late_parts arrival \
                  backlog handlers poll_delay late_deliveries overdue_ns turn_ns delivering \
                  thread_id thread_ran_ns thread_waited_ns memory_bytes gauges";
    let mut rest = &*body;
    for field in fields.split(' ') {
        let quoted = format!("\"{field}\":");
        (_, rest) = rest.split_once(&quoted).unwrap_or_else(|| panic!("{field} in {body}"));
    }
}

#[test]
fn counts_of_classes_are_shown_separately_in_every_format() {
    let (idle, request) = (TimerClass::new("read idle"), TimerClass::new("request"));
    let service = builder(2).classes([idle, request]).start().unwrap();
    let (service, _endpoint, address) = served_by(service);
    let client = service.handle();
    let shard = client.on(ShardId::new(1));
    for delay in [Duration::ZERO, Duration::ZERO, Duration::ZERO, FAR] {
        shard.of_class(idle).unwrap().schedule_fn(delay, |_| {}).unwrap();
    }
    let timer = shard.of_class(request).unwrap().schedule_fn(FAR, |_| {});
    let _ = client.cancel(timer.unwrap()).wait().unwrap();
    let class = |stats: &Value, shard: usize, class: usize| {
        stats["shards"][shard]["classes"][class].clone()
    };
    wait_until("three have fired", || {
        let stats = stats(address);
        class(&stats, 1, 0)["fired"] == 3 && class(&stats, 1, 1)["cancelled"] == 1
    });
    let json = stats(address);
    assert_eq!(class(&json, 1, 0)["class"], "read idle");
    assert_eq!(class(&json, 1, 0)["pending"], 1);
    assert!(class(&json, 1, 0)["oldest"]["secs"].is_u64());
    assert!(class(&json, 0, 0)["oldest"].is_null());
    let scrape = scrape(address);
    for shard in &service.stats().shards {
        let number = shard.shard.number().to_string();
        for class in &shard.classes {
            let labels = [("shard", number.as_str()), ("class", class.class)];
            for (name, value) in class.iter() {
                let (family, value) = family_of(&format!("class_{name}"), value);
                let is_gauge = ["pending", "lateness_max_ns"].contains(&name);
                let suffix = if is_gauge { "" } else { "_total" };
                scrape.check(&family, suffix, &labels, value);
            }
            let oldest = scrape.value("corewheel_class_oldest_seconds", "", &labels);
            let now = class.oldest.unwrap_or_default().as_secs_f64();
            assert!((0.0..=now).contains(&oldest), "{oldest} {now}");
            assert_eq!(oldest > 0.0, class.pending > 0);
            assert!(class.measured == class.fired && class.lateness_max_ns <= class.lateness_ns);
        }
    }
    // The page reads all counts of a class.
    let page = get(address, "/").body;
    for (name, _) in ClassStats::default().iter() {
        assert!(page.contains(&format!("c.{name}")), "{name}");
    }
    assert_eq!(class(&json, 1, 0)["measured"], 3);
}

#[test]
fn deadlines_of_connections_are_counted_by_kind_in_every_format() {
    let clock = ManualClock::new();
    // Far from the epoch, where a time that is wrongly 0 would be right.
    clock.advance(Duration::from_secs(12_345));
    let service = TimerService::builder().shards(1).clock(&clock).start_attached().unwrap();
    let (service, _endpoint, address) = served_by(service);
    let first = stats(address);
    let mut first = first["deadlines"].as_array().unwrap().iter();
    assert!(first.len() > 10 && first.all(|of| of["count"] == 0 && of["ended"] == 0));
    let attachment = service.attach(service.shard_for(0)).unwrap();
    let mut shard = attachment.into_loop(|_, _| {}).unwrap();
    let limits = ConnLimits::default().read_idle(ms(100)).heartbeat(ms(10));
    let on_shard = shard.timers().connection(limits).unwrap();
    let any_thread = service.handle().connection(limits.heartbeat(Duration::ZERO));
    let called = shard.timers().connection(ConnLimits::default()).unwrap();
    called.arm(DeadlineKind::Custom(3), ms(5)).unwrap();
    called.on_event(|_, _| {});
    let cx = &mut Context::from_waker(Waker::noop());
    for _ in 0..100 {
        while on_shard.poll_next(cx).is_ready() || any_thread.poll_next(cx).is_ready() {}
        clock.advance(ms(1));
        let _ = shard.turn();
    }
    assert!(any_thread.poll_next(cx).is_ready());
    // The event of the other idle connection is withdrawn.
    on_shard.touch_read();
    while on_shard.poll_next(cx).is_ready() {}
    let (json, scrape) = (stats(address), scrape(address));
    let expected = [("max age", 0), ("read idle", 1), ("heartbeat", 10), ("custom deadline", 1)];
    for (kind, count) in expected {
        let found = json["deadlines"].as_array().unwrap().iter().find(|one| one["kind"] == kind);
        assert_eq!(found.unwrap()["count"], count, "{kind}");
        assert_eq!(found.unwrap()["ended"], 0, "{kind}");
        let kind = [("kind", kind)];
        scrape.check("corewheel_connection_deadlines", "_total", &kind, f64::from(count));
    }
    assert!(get(address, "/").body.contains("stats.deadlines"));
    drop((on_shard, any_thread, called));
    let (json, ended) = (stats(address), self::scrape(address));
    for (by, count) in [("read idle", 1.0), ("heartbeat", 0.0), ("close", 2.0)] {
        ended.check("corewheel_connections_ended", "_total", &[("by", by)], count);
    }
    assert_eq!(json["connections_closed"], 2);
    let of_idle = json["deadlines"].as_array().unwrap().iter().find(|of| of["kind"] == "read idle");
    assert_eq!(of_idle.unwrap()["ended"], 1);
    // What a stamp adds: 10 ms and a tick.
    assert_eq!(json["activity_stamp_ns"], 11_000_000);
    ended.check("corewheel_activity_stamp_seconds", "", &[], 0.011);
}

#[test]
fn service_name_with_quote_backslash_or_control_character_is_refused() {
    let longest = "n".repeat(TimerClass::NAME_LEN_MAX);
    let too_long = "n".repeat(TimerClass::NAME_LEN_MAX + 1);
    let start = |name: &str| builder(1).name(name).start();
    for name in ["", "quo\"te", "back\\slash", "new\nline", "\0", "\u{7f}", &too_long] {
        match start(name) {
            Err(StartError::Config(error)) => assert_eq!(error.field(), "name", "{name:?}"),
            started => panic!("{name:?}: {started:?}"),
        }
    }
    assert!(start(&longest).is_ok());
}

#[test]
fn service_name_with_spaces_and_braces_is_shown_unchanged() {
    let name = "größe {x=1}, # TYPE 'a'";
    let (_service, _endpoint, address) = served_by(builder(1).name(name).start().unwrap());
    let labels = [("service", name), ("runtime", "thread")];
    scrape(address).value("corewheel_service", "_info", &labels);
    assert_eq!(stats(address)["name"], name);
}

#[test]
fn ready_names_a_shard_that_is_not_attached_closed_or_dead() {
    let service = service(2);
    let ready = |endpoint: &StatsEndpoint| get(endpoint.local_addr(), "/ready");
    let closed = endpoint(&service);
    assert_eq!(ready(&closed).status, 200);
    service.shutdown(ShutdownPolicy::Drop).unwrap();
    drop(service);
    let Reply { status, body, .. } = ready(&closed);
    let expected = "shard 0 is closed, and another shard is not ready either\n";
    assert_eq!((status, &*body), (503, expected));
    let metrics = scrape(closed.local_addr());
    metrics.check("corewheel_running", "", &[("shard", "1")], 0.0);

    let service: TimerService = TimerService::builder().shards(4).start_attached().unwrap();
    let attached = endpoint(&service);
    let others = ", and 3 other shards are not ready either\n";
    drop(service.attach(ShardId::new(1)).unwrap());
    let reply = ready(&attached);
    assert_eq!((reply.status, reply.body), (503, format!("shard 0 is not attached yet{others}")));
    let own_loop = service.attach(ShardId::new(0)).unwrap().into_loop(|_, _| {});
    drop(own_loop.unwrap());
    assert_eq!(ready(&attached).body, format!("shard 0 is dead{others}"));
}

#[test]
fn head_request_gets_the_headers_of_get_without_a_body() {
    let (_service, _endpoint, address) = served();
    for path in ["/", "/live", "/nowhere"] {
        let head = ask(address, request("HEAD", path).as_bytes());
        let get = get(address, path);
        assert_eq!(head.body, "");
        assert_eq!(head.status, get.status);
        for name in ["content-length", "content-type", "cache-control", "content-security-policy"] {
            assert_eq!(head.header(name), get.header(name), "{path} {name}");
        }
    }
    for path in ["/stats.json", "/metrics"] {
        let head = ask(address, request("HEAD", path).as_bytes());
        assert_eq!((head.status, head.body.as_str()), (200, ""));
    }
}

#[test]
fn request_with_another_method_gets_405_and_the_allowed_methods() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        let reply = check_status(request(method, "/metrics"), 405);
        assert_eq!(reply.header("allow"), Some("GET, HEAD"));
    }
    check_status("CONNECT localhost:80 HTTP/1.1\r\n\r\n", 405);
    check_status("OPTIONS * HTTP/1.1\r\n\r\n", 405);
}

#[test]
fn request_for_an_unknown_path_or_a_file_gets_404_and_a_query_changes_nothing() {
    let paths = "/nowhere /page.html /metrics/ // /../../etc/passwd /%2e%2e/etc/passwd *";
    for path in paths.split(' ') {
        check_status(request("GET", path), 404);
    }
    check_status(request("GET", "/live?from=probe"), 200);
}

#[test]
fn connection_with_three_requests_gets_one_response_and_is_closed() {
    let (_service, _endpoint, address) = served();
    let sent = request("GET", "/live").repeat(3);
    let reply = ask(address, sent.as_bytes());
    assert_eq!(reply.header("connection"), Some("close"));
    assert_eq!(reply.body, "the process answers\n");
}

#[test]
fn client_that_shuts_down_its_writes_gets_the_complete_response() {
    let (_service, _endpoint, address) = served_by(huge_service());
    let connection = Connection::opened(address, request("GET", "/metrics").as_bytes());
    connection.shut_down_writes();
    let reply = Reply::parse(&connection.rest());
    assert!(reply.is_complete() && reply.body.ends_with("# EOF\n"));
}

#[test]
fn endpoints_of_one_service_show_the_same_counts() {
    let service = service(1);
    let first: StatsEndpoint = endpoint(&service);
    let second = endpoint(&service);
    fire(&service, 0, 7);
    for endpoint in [first, second] {
        wait_until("seven have fired", || stats(endpoint.local_addr())["shards"][0]["fired"] == 7);
    }
}
