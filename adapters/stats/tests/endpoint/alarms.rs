//! Which figures of the page are alarms, as `/stats.json` names them.

use std::net::SocketAddr;
use std::time::Duration;

use corewheel::attach::{ShardLoop, Turn};
use corewheel::class::TimerClass;
use corewheel::clock::ManualClock;
use corewheel::settings::TurnBudget;
use corewheel::stats::WarningKind;
use corewheel::{Fired, TimerId, TimerService, TimerServiceBuilder, Timers};
use corewheel_stats::StatsEndpoint;
use serde_json::{Value, json};

use crate::client::get;
use crate::endpoint;

const REQUEST: TimerClass = TimerClass::new("request");
const HOUR: Duration = Duration::from_hours(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn stats(address: SocketAddr) -> Value {
    serde_json::from_str(&get(address, "/stats.json").body).expect("the body is JSON")
}

/// A service of two shards on a clock that the test moves.
struct Lab {
    clock: ManualClock,
    service: TimerService<u64>,
    shards: Vec<ShardLoop<u64>>,
    endpoint: StatsEndpoint,
}

impl Lab {
    fn with(set: impl FnOnce(TimerServiceBuilder) -> TimerServiceBuilder) -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(12_345));
        let builder = TimerService::builder().shards(2).clock(&clock).class(REQUEST).unpinned();
        let service = set(builder).start_attached_with::<u64>().unwrap();
        let handler: fn(Fired<u64>, &Timers<u64>) = |_, _| {};
        let attach = |shard| service.attach(shard).unwrap().into_loop(handler).unwrap();
        let shards = service.shards().map(attach).collect();
        let endpoint = endpoint(&service);
        let mut lab = Self { clock, service, shards, endpoint };
        lab.turn();
        lab
    }

    fn turn(&mut self) {
        for shard in &mut self.shards {
            while shard.turn() == Turn::More {}
        }
    }

    fn schedule(&self, delay: Duration) -> TimerId {
        let timers = self.shards[1].timers().of_class(REQUEST).unwrap();
        timers.schedule(delay, 0).unwrap()
    }

    fn stats(&self) -> Value {
        stats(self.endpoint.local_addr())
    }

    /// Checks the alarms of shard 1, where shard 0 has none.
    #[track_caller]
    fn check(&self, expected: &[&str]) {
        let expected = json!([{ "shard": 0, "figures": [] }, { "shard": 1, "figures": expected }]);
        assert_eq!(self.stats()["alarms"], expected);
    }
}

#[test]
fn turn_is_an_alarm_when_it_is_overdue_and_when_it_is_stuck() {
    let mut lab = Lab::with(|builder| builder);
    lab.schedule(ms(5));
    lab.turn();
    lab.clock.advance(ms(5 + 99));
    lab.check(&[]);
    lab.clock.advance(ms(1));
    lab.check(&["overdue"]);
    lab.clock.advance(ms(900));
    lab.check(&["overdue"]);
    lab.clock.advance(ms(1));
    lab.check(&["stuck", "overdue"]);
    assert_eq!(lab.stats()["attention"][0]["figures"], json!(["late"]));
    lab.turn();
    lab.check(&["late"]);
    drop(lab.shards.pop());
    lab.check(&["state", "late"]);
    assert_eq!(lab.stats()["attention"][0]["figures"], json!([]));
}

#[test]
fn pending_timers_are_an_alarm_at_the_limit_of_their_warning() {
    let mut lab = Lab::with(|builder| builder.capacity(100));
    for _ in 0..90 {
        lab.schedule(HOUR);
    }
    lab.turn();
    lab.check(&[]);
    lab.schedule(HOUR);
    lab.turn();
    lab.check(&["pending"]);
    assert_eq!(lab.stats()["attention"][0]["figures"], json!(["pending"]));
    for _ in 91..100 {
        lab.schedule(HOUR);
    }
    lab.check(&["pending"]);
    let timers = lab.shards[1].timers().of_class(REQUEST).unwrap();
    assert!(timers.schedule(HOUR, 0).is_err());
    lab.turn();
    lab.check(&["pending", "refused"]);
    assert_eq!(lab.stats()["classes"][0]["alarms"], json!(["refused"]));
}

#[test]
fn deep_lane_is_an_alarm_at_the_limit_of_its_warning() {
    for (left, expected) in [(32, &[][..]), (33, &["lane"][..])] {
        let budget = TurnBudget { requests_max: 1, ..TurnBudget::default() };
        let mut lab = Lab::with(|builder| builder.budget(budget).lane_capacity(64));
        let timer = lab.schedule(HOUR);
        let client = lab.service.handle();
        for _ in 0..=left {
            client.reset_detached(timer, HOUR);
        }
        let _ = lab.shards[1].turn();
        assert_eq!(lab.service.stats().shards[1].counts.lane_depth_max, left);
        lab.check(expected);
    }
}

#[test]
fn late_deliveries_are_listed_with_their_main_part_and_one_in_a_hundred_is_no_alarm() {
    let mut lab = Lab::with(|builder| builder);
    lab.schedule(ms(5));
    lab.turn();
    lab.clock.advance(ms(25));
    lab.turn();
    for _ in 0..98 {
        lab.schedule(ms(5));
    }
    lab.turn();
    lab.clock.advance(ms(5));
    lab.turn();
    lab.check(&["late"]);
    lab.schedule(ms(5));
    lab.turn();
    lab.clock.advance(ms(5));
    lab.turn();
    lab.check(&[]);
    let stats = lab.stats();
    let class = &stats["classes"][0];
    assert_eq!((&class["class"], &class["fired"]), (&"request".into(), &100.into()));
    assert_eq!((&class["late"], &class["alarms"]), (&1.into(), &json!(["late"])));
    let [late] = &stats["late_deliveries"].as_array().unwrap()[..] else { panic!("{stats}") };
    assert_eq!((&late["shard"], &late["main"]), (&1.into(), &"poll_delay".into()));
    let mut of_shard = stats["shards"][1]["late_deliveries"][0].clone();
    (of_shard["shard"], of_shard["main"]) = (late["shard"].clone(), late["main"].clone());
    assert_eq!(late, &of_shard);
}

#[test]
fn late_delivery_is_no_alarm_once_it_is_in_no_step_of_the_last_minute() {
    let mut lab = Lab::with(|builder| builder);
    lab.schedule(ms(5));
    lab.turn();
    lab.clock.advance(ms(25));
    lab.turn();
    lab.check(&["late"]);
    // Each reading ends a step. The first step has the late delivery.
    for _ in 0..12 {
        lab.clock.advance(ms(5_000));
        lab.turn();
        lab.check(&["late"]);
    }
    lab.clock.advance(ms(5_000));
    lab.turn();
    lab.check(&[]);
}

#[test]
fn script_of_the_page_decides_no_alarm() {
    let page = include_str!("../../src/page.html");
    let (_, script) = page.split_once("<script>").expect("the page has a script");
    for kind in WarningKind::ALL {
        assert!(!script.contains(kind.id()), "the script names {kind}");
    }
    for threshold in ["warning_limits", "overrun_ns"] {
        assert!(!script.contains(threshold), "the script reads {threshold}");
    }
    // A list of the server decides which figures are alarms, at one place.
    let asks = "(alarms.includes(name) ? \"alarm\" : otherwise)";
    assert_eq!(script.matches("\"alarm\"").count(), 1);
    assert!(script.contains(asks) && !script.contains("'alarm'"));
}
