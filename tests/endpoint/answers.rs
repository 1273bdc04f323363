//! What each route answers.

use std::net::SocketAddr;

use corewheel::{
    CancelOutcome, ClassCounts, Placement, Runtime, ShardCounts, ShardId, ShutdownPolicy,
    StartError, StatsEndpoint, TimerClass, TimerService,
};
use serde_json::Value;

use crate::client::{Connection, Reply, ask, get, request};
use crate::openmetrics::Scrape;
use crate::{endpoint, fire, huge_service, service, wait_until};

fn stats(address: SocketAddr) -> Value {
    let reply = get(address, "/stats.json");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    serde_json::from_str(&reply.body).expect("it is JSON")
}

fn scrape(address: SocketAddr) -> Scrape {
    let reply = get(address, "/metrics");
    assert_eq!(reply.status, 200);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), Some(kind));
    Scrape::read(&reply.body)
}

fn check_status(said: &str, expected: u16) -> Reply {
    let service = service(1);
    let endpoint = endpoint(&service);
    let reply = ask(endpoint.local_addr(), said.as_bytes());
    assert_eq!(reply.status, expected, "{said:?}");
    reply
}

#[test]
fn the_page_shows_itself_without_anybodys_help() {
    let service = service(1);
    let endpoint = endpoint(&service);
    let page = get(endpoint.local_addr(), "/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    for foreign in ["http://", "https://", "//cdn", "@import", "innerHTML"] {
        assert!(!page.body.contains(foreign), "{foreign}");
    }
    let policy = page.header("content-security-policy").expect("the page has a policy");
    for rule in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
}

#[test]
fn the_page_asks_for_counts_that_there_are() {
    let service = service(1);
    let endpoint = endpoint(&service);
    let page = get(endpoint.local_addr(), "/").body;
    let stats = stats(endpoint.local_addr());
    let shard = stats["shards"][0].as_object().unwrap();
    // What is read of a shard, `s.name` in the script.
    let mut asked = 0;
    for (at, _) in page.match_indices("s.") {
        let before = page[..at].chars().next_back().unwrap();
        let name: String = page[at + 2..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '_')
            .collect();
        if matches!(before, ' ' | '(') && !name.is_empty() {
            assert!(shard.contains_key(&name), "the page asks for s.{name}");
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked}");
}

#[test]
fn the_json_obeys_the_law_of_the_counts() {
    let service = service(2);
    let endpoint = endpoint(&service);
    let client = service.client();
    fire(&service, 1, 20);
    for _ in 0..10 {
        let schedule = || {
            let delay = std::time::Duration::from_hours(1);
            client.schedule_fn_on(ShardId::new(0), delay, |_| {}).unwrap()
        };
        schedule();
        // Once this is answered, what was sent before has arrived too.
        let outcome = client.cancel(schedule()).wait().unwrap();
        assert!(matches!(outcome, CancelOutcome::Cancelled { .. }), "{outcome:?}");
    }
    let lawful = |stats: &Value| {
        stats["shards"].as_array().unwrap().iter().all(|shard| {
            let count = |name: &str| shard[name].as_u64().expect(name);
            let scheduled = count("scheduled_local") + count("scheduled_remote");
            let gone = count("fired") + count("cancelled") + count("returned");
            scheduled - gone == count("pending")
        })
    };
    // A turn answers before it publishes.
    wait_until("all has arrived", || {
        let stats = stats(endpoint.local_addr());
        let done = stats["shards"][0]["cancelled"] == 10 && stats["shards"][1]["fired"] == 20;
        done && stats["shards"][0]["pending"] == 10 && lawful(&stats)
    });
    service.shutdown(ShutdownPolicy::Return).unwrap();
    let after = stats(endpoint.local_addr());
    assert!(lawful(&after), "{after}");
    assert_eq!(after["shards"][0]["returned"], 10);
}

#[test]
fn the_counts_move_while_timers_fire() {
    let service = service(1);
    let endpoint = endpoint(&service);
    let fired = || stats(endpoint.local_addr())["shards"][0]["fired"].as_u64().unwrap();
    let mut before = fired();
    assert_eq!(before, 0);
    for _ in 0..5 {
        fire(&service, 0, 10);
        // A turn publishes after it has delivered.
        wait_until("ten more have fired", || fired() == before + 10);
        before += 10;
    }
}

#[test]
fn the_metrics_have_every_count_of_every_shard() {
    let service = service(3);
    let endpoint = endpoint(&service);
    fire(&service, 0, 10);
    fire(&service, 2, 30);
    service.set_scale(corewheel::Scale::new(0.75).unwrap());
    let gauges = [
        "pending",
        "pending_max",
        "granted",
        "capacity",
        "lanes",
        "lane_depth",
        "scaled_pending",
        "connections",
    ];
    wait_until("nothing moves during a scrape", || {
        let before = service.stats();
        let scrape = scrape(endpoint.local_addr());
        let after = service.stats();
        if before.shards != after.shards {
            return false;
        }
        for shard in &after.shards {
            let number = shard.shard.number().to_string();
            let label = Some(("shard", number.as_str()));
            for (name, value) in shard.counts.iter() {
                let family = format!("corewheel_{name}");
                let is_gauge = gauges.contains(&name);
                let (kind, suffix) = if is_gauge { ("gauge", "") } else { ("counter", "_total") };
                assert_eq!(scrape.kind(&family), Some(kind), "{family}");
                let scraped = scrape.value(&family, suffix, label);
                assert!((scraped - value as f64).abs() < 0.5, "{family} {scraped} {value}");
            }
            assert!(scrape.value("corewheel_running", "", label) > 0.5);
            assert!((scrape.value("corewheel_scale", "", label) - 0.75).abs() < 1e-9);
            for (family, times) in [
                ("corewheel_lateness_seconds", &shard.lateness),
                ("corewheel_ring_delay_seconds", &shard.ring_delay),
            ] {
                assert_eq!(scrape.kind(family), Some("histogram"));
                let count = scrape.value(family, "_count", label);
                assert!((count - times.count as f64).abs() < 0.5, "{family}");
                let sum = scrape.value(family, "_sum", label);
                assert!((sum - times.sum_ns as f64 / 1e9).abs() < 1e-6, "{family}");
            }
        }
        let count = scrape.value("corewheel_lateness_seconds", "_count", Some(("shard", "2")));
        (count - 30.0).abs() < 0.5
    });
}

#[test]
fn the_metrics_have_one_family_for_each_count_and_ten_more_at_most() {
    let service = service(1);
    let endpoint = endpoint(&service);
    let scrape = scrape(endpoint.local_addr());
    let counts = ShardCounts::default().iter().count();
    assert!((counts + 1..=counts + 10).contains(&scrape.names().count()));
    assert!(scrape.names().all(|name| name.starts_with("corewheel_")));
    assert!((scrape.value("corewheel_tick_seconds", "", None) - 1e-3).abs() < 1e-9);
}

#[test]
fn every_class_is_told_apart() {
    let (idle, request) = (TimerClass::new("read idle"), TimerClass::new("request"));
    let builder = TimerService::builder().shards(2).placement(Placement::Unpinned);
    let service = builder.runtime(Runtime::Thread).classes([idle, request]).start().unwrap();
    let endpoint = endpoint(&service);
    let far = std::time::Duration::from_hours(1);
    let client = service.client();
    for _ in 0..3 {
        let timers = client.class(idle).unwrap();
        timers.schedule_fn_on(ShardId::new(1), std::time::Duration::ZERO, |_| {}).unwrap();
    }
    client.class(idle).unwrap().schedule_fn_on(ShardId::new(1), far, |_| {}).unwrap();
    let timer = client.class(request).unwrap().schedule_fn_on(ShardId::new(1), far, |_| {});
    let _ = client.cancel(timer.unwrap()).wait().unwrap();
    let class = |stats: &Value, shard: usize, class: usize| {
        stats["shards"][shard]["classes"][class].clone()
    };
    wait_until("three have fired", || {
        let stats = stats(endpoint.local_addr());
        class(&stats, 1, 0)["fired"] == 3 && class(&stats, 1, 1)["cancelled"] == 1
    });
    let json = stats(endpoint.local_addr());
    assert_eq!(class(&json, 1, 0)["class"], "read idle");
    assert_eq!(class(&json, 1, 0)["live"], 1);
    assert!(class(&json, 1, 0)["oldest"]["secs"].is_u64());
    assert!(class(&json, 0, 0)["oldest"].is_null());
    let scrape = scrape(endpoint.local_addr());
    for shard in &service.stats().shards {
        let number = shard.shard.number().to_string();
        for class in &shard.classes {
            let labels = [("shard", number.as_str()), ("class", class.class)];
            for (name, value) in class.counts.iter() {
                let family = format!("corewheel_class_{name}");
                let suffix = if name == "live" { "" } else { "_total" };
                let scraped = scrape.value_with(&family, suffix, &labels);
                assert!((scraped - value as f64).abs() < 0.5, "{family} {scraped} {value}");
            }
            let oldest = scrape.value_with("corewheel_class_oldest_seconds", "", &labels);
            let now = class.oldest.unwrap_or_default().as_secs_f64();
            assert!((0.0..=now).contains(&oldest), "{oldest} {now}");
            assert_eq!(oldest > 0.0, class.counts.live > 0);
        }
    }
    // The page asks for counts of a class that there are.
    let page = get(endpoint.local_addr(), "/").body;
    for (name, _) in ClassCounts::default().iter() {
        assert!(page.contains(&format!("c.{name}")), "{name}");
    }
}

#[test]
fn service_name_with_quote_backslash_or_control_character_is_refused() {
    let longest = "n".repeat(TimerClass::NAME_LEN_MAX);
    let too_long = "n".repeat(TimerClass::NAME_LEN_MAX + 1);
    let start = |name: &str| {
        let builder = TimerService::builder().shards(1).name(name).placement(Placement::Unpinned);
        builder.runtime(Runtime::Thread).start()
    };
    for name in ["", "quo\"te", "back\\slash", "new\nline", "\0", "\u{7f}", &too_long] {
        match start(name) {
            Err(StartError::Config(error)) => assert_eq!(error.field(), "name", "{name:?}"),
            started => panic!("{name:?}: {started:?}"),
        }
    }
    assert!(start(&longest).is_ok());
}

#[test]
fn service_name_with_spaces_and_braces_is_shown_as_it_is() {
    let name = "größe {x=1}, # TYPE 'a'";
    let builder = TimerService::builder().shards(1).name(name).placement(Placement::Unpinned);
    let service = builder.runtime(Runtime::Thread).start().unwrap();
    let endpoint = endpoint(&service);
    let scrape = scrape(endpoint.local_addr());
    scrape.value("corewheel_service", "_info", Some(("name", name)));
    scrape.value("corewheel_service", "_info", Some(("runtime", "thread")));
    assert_eq!(stats(endpoint.local_addr())["name"], name);
}

#[test]
fn it_is_healthy_while_every_shard_runs() {
    let service = service(2);
    let endpoint = endpoint(&service);
    let health = get(endpoint.local_addr(), "/healthz");
    assert_eq!((health.status, health.body.as_str()), (200, "ok"));
    service.shutdown(ShutdownPolicy::Drop).unwrap();
    drop(service);
    let health = get(endpoint.local_addr(), "/healthz");
    assert_eq!(health.status, 503);
    assert_eq!(health.body, "shard 0 is closed\nshard 1 is closed\n");
    let metrics = scrape(endpoint.local_addr());
    assert!(metrics.value("corewheel_running", "", Some(("shard", "1"))) < 0.5);
}

#[test]
fn a_shard_that_nobody_drives_is_named() {
    let service: TimerService = TimerService::builder().shards(2).start_attached().unwrap();
    let endpoint = endpoint(&service);
    drop(service.attach(ShardId::new(1)).unwrap());
    let health = get(endpoint.local_addr(), "/healthz");
    assert_eq!(health.status, 503);
    assert_eq!(health.body, "shard 0 is not attached yet\nshard 1 is closed\n");
}

#[test]
fn a_shard_that_died_is_named() {
    let service: TimerService = TimerService::builder().shards(2).start_attached().unwrap();
    let endpoint = endpoint(&service);
    let own_loop = service.attach(ShardId::new(1)).unwrap().into_loop(corewheel::no_tasks);
    drop(own_loop.unwrap());
    let health = get(endpoint.local_addr(), "/healthz");
    assert!(health.body.contains("shard 1 is dead\n"), "{}", health.body);
}

#[test]
fn head_is_like_get_without_the_body() {
    let service = service(1);
    let endpoint = endpoint(&service);
    for path in ["/", "/healthz", "/nowhere"] {
        let head = ask(endpoint.local_addr(), request("HEAD", path).as_bytes());
        let get = get(endpoint.local_addr(), path);
        assert_eq!(head.body, "");
        assert_eq!(head.status, get.status);
        for name in ["content-length", "content-type", "cache-control", "content-security-policy"] {
            assert_eq!(head.header(name), get.header(name), "{path} {name}");
        }
    }
    for path in ["/stats.json", "/metrics"] {
        let head = ask(endpoint.local_addr(), request("HEAD", path).as_bytes());
        assert_eq!((head.status, head.body.as_str()), (200, ""));
    }
}

#[test]
fn other_methods_are_told_which_there_are() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        let reply = check_status(&request(method, "/metrics"), 405);
        assert_eq!(reply.header("allow"), Some("GET, HEAD"));
    }
    check_status("CONNECT localhost:80 HTTP/1.1\r\n\r\n", 405);
    check_status("OPTIONS * HTTP/1.1\r\n\r\n", 405);
}

#[test]
fn there_are_no_other_routes_and_no_files() {
    for path in [
        "/nowhere",
        "/page.html",
        "/metrics/",
        "//",
        "/../../etc/passwd",
        "/%2e%2e/etc/passwd",
        "*",
    ] {
        check_status(&request("GET", path), 404);
    }
}

#[test]
fn a_query_an_absolute_target_and_the_old_version_are_understood() {
    check_status(&request("GET", "/healthz?from=probe"), 200);
    check_status(&request("GET", "http://localhost/healthz"), 200);
    let service = service(1);
    let endpoint = endpoint(&service);
    let old = Connection::opened(endpoint.local_addr(), b"GET /healthz HTTP/1.0\r\n\r\n").rest();
    assert!(old.ends_with(b"\r\n\r\nok"), "{}", old.escape_ascii());
}

#[test]
fn a_connection_gets_one_answer_and_is_closed() {
    let service = service(1);
    let endpoint = endpoint(&service);
    let said = request("GET", "/healthz").repeat(3);
    let reply = ask(endpoint.local_addr(), said.as_bytes());
    assert_eq!(reply.header("connection"), Some("close"));
    assert_eq!(reply.body, "ok");
}

#[test]
fn a_client_that_has_said_all_still_gets_the_whole_answer() {
    let service = huge_service();
    let endpoint = endpoint(&service);
    let connection =
        Connection::opened(endpoint.local_addr(), request("GET", "/metrics").as_bytes());
    connection.shut();
    let reply = Reply::parse(&connection.rest());
    assert!(reply.is_whole());
    Scrape::read(&reply.body);
}

#[test]
fn two_endpoints_show_the_same_service() {
    let service = service(1);
    let one: StatsEndpoint = endpoint(&service);
    let other = endpoint(&service);
    fire(&service, 0, 7);
    for endpoint in [one, other] {
        wait_until("seven have fired", || stats(endpoint.local_addr())["shards"][0]["fired"] == 7);
    }
}
