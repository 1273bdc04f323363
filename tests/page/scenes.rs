//! Each warning of the closed list in a scenario of its own, on a clock that the test moves.
//!
//! A real endpoint serves all of them but `host-overcommitted`. What the system says about threads
//! cannot be provoked on such a clock: that one is JSON of an endpoint with a warning put in. The
//! example `stats_trouble` provokes it on real clocks.

use std::net::SocketAddr;
use std::task::{Context, Waker};
use std::time::Duration;

use corewheel::attach::ShardLoop;
use corewheel::class::TimerClass;
use corewheel::clock::ManualClock;
use corewheel::settings::{TurnBudget, WarningLimits};
use corewheel::stats::WarningKind;
use corewheel::{ConnLimits, Fired, TimerService, TimerServiceBuilder, Timers};
use corewheel_stats::StatsEndpoint;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::ms;
use crate::server::FakeServer;

const REQUEST: TimerClass = TimerClass::new("request");
const HOUR: Duration = Duration::from_hours(1);

type Loop = ShardLoop<u64, Box<dyn FnMut(Fired<u64>, &Timers<u64>)>>;

/// A service of two shards whose handlers take as many milliseconds as the payload says.
pub(crate) struct Stage {
    pub(crate) clock: ManualClock,
    pub(crate) service: TimerService<u64>,
    pub(crate) shards: Vec<Loop>,
    pub(crate) endpoint: StatsEndpoint,
}

impl Stage {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(set: impl FnOnce(TimerServiceBuilder) -> TimerServiceBuilder) -> Self {
        let clock = ManualClock::new();
        // Far from the epoch, where a time that is wrongly 0 would be right.
        clock.advance(Duration::from_secs(12_345));
        let builder = TimerService::builder().shards(2).clock(&clock).class(REQUEST);
        let service: TimerService<u64> = set(builder.unpinned()).start_attached_with().unwrap();
        let attach = |shard| {
            let clock = clock.clone();
            let handler =
                move |fired: Fired<u64>, _: &Timers<u64>| clock.advance(ms(fired.payload));
            service.attach(shard).unwrap().into_loop(Box::new(handler) as Box<_>).unwrap()
        };
        let shards = service.shards().map(attach).collect();
        let endpoint = StatsEndpoint::start(service.stats_source(), "127.0.0.1:0").unwrap();
        let mut stage = Self { clock, service, shards, endpoint };
        stage.turn();
        stage
    }

    /// So much time passes, and then the shards take a turn.
    fn pass(&mut self, time_ms: u64) {
        self.clock.advance(ms(time_ms));
        self.turn();
    }

    fn turn(&mut self) {
        for shard in &mut self.shards {
            let _ = shard.turn();
        }
    }

    fn schedule(&self, delay: Duration, payload: u64) -> corewheel::TimerId {
        let timers = self.shards[1].timers().of_class(REQUEST).unwrap();
        timers.schedule(delay, payload).unwrap()
    }

    fn address(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Opens the page of this service.
    fn show(&self, browser: &mut Browser) {
        browser.show(self.address());
    }
}

/// A warning is provoked on shard 1.
fn provoke(kind: WarningKind) -> Stage {
    use WarningKind as Kind;
    let mut stage = Stage::with(|builder| match kind {
        Kind::BudgetExhausted => {
            builder.budget(TurnBudget { expired_max: 1, ..TurnBudget::default() })
        }
        Kind::LaneFlooded => {
            let budget = TurnBudget { requests_max: 1, ..TurnBudget::default() };
            builder.budget(budget).lane_capacity(64)
        }
        Kind::ShardNearCapacity => builder.capacity(64),
        Kind::ClassLeaks => {
            let limits = WarningLimits { class_age: ms(1_000), ..WarningLimits::default() };
            builder.warning_limits(limits)
        }
        _ => builder,
    });
    // How many timers there are, when they are due, and how long their handler takes.
    let (count, delay, work_ms) = match kind {
        Kind::ExecutorStalled | Kind::ShardStuck => (1, ms(5), 0),
        Kind::HandlerSlow => (1, ms(5), 30),
        Kind::BudgetExhausted => (20, ms(5), 0),
        Kind::LaneFlooded | Kind::ClassLeaks => (1, HOUR, 0),
        Kind::ShardNearCapacity => (60, HOUR, 0),
        Kind::ShardDead => (0, HOUR, 0),
        Kind::HostOvercommitted => panic!("no scenario provokes it"),
    };
    let timers: Vec<_> = (0..count).map(|_| stage.schedule(delay, work_ms)).collect();
    match kind {
        Kind::ShardDead => stage.shards.truncate(1),
        Kind::LaneFlooded => {
            let client = stage.service.handle();
            (0..60).for_each(|_| client.reset_detached(timers[0], HOUR));
            stage.turn();
        }
        _ => stage.turn(),
    }
    match kind {
        Kind::ShardStuck => stage.clock.advance(ms(2_505)),
        Kind::ExecutorStalled => stage.pass(219),
        Kind::HandlerSlow => stage.pass(5),
        Kind::BudgetExhausted => {
            stage.pass(5);
            (0..30).for_each(|_| stage.turn());
        }
        Kind::ClassLeaks => {
            for _ in 0..3 {
                stage.pass(1_000);
                stage.turn();
            }
        }
        _ => {}
    }
    stage
}

/// What the page says about a warning, beside its id.
fn sentence(kind: WarningKind) -> &'static str {
    match kind {
        WarningKind::ExecutorStalled => "the executor was stalled for 214ms; so far stalls: 1",
        WarningKind::HandlerSlow => {
            "1 deliveries took longer than 1ms, the latest 30ms; class request"
        }
        WarningKind::BudgetExhausted => "turns in a row used up their budget",
        WarningKind::LaneFlooded => "left a lane filled by more than 50 % of its 64 requests",
        WarningKind::HostOvercommitted => "its thread waited for a processor",
        WarningKind::ShardStuck => "a turn has been due for 2.5s",
        WarningKind::ShardNearCapacity => "60 timers are pending, 93 % of 64",
        WarningKind::ClassLeaks => "the oldest of 1 timers is 3s old, beyond its limit of 1s",
        WarningKind::ShardDead => "its driver ended without a shutdown",
    }
}

/// An active warning, as the statistics tell of it.
fn warning(id: &str, shard: u16, text: &str) -> Value {
    json!({
        "id": id, "shard": shard, "class": null, "count": 1, "is_active": true,
        "since_ns": 0, "last_ns": 0, "text": text,
    })
}

#[test]
fn each_warning_is_the_first_sentence_of_the_page_in_its_scenario() {
    let Some(mut browser) = Browser::start() else { return };
    for kind in WarningKind::ALL {
        let id = kind.id();
        let is_fake = kind == WarningKind::HostOvercommitted;
        let stage = if is_fake { Stage::new() } else { provoke(kind) };
        let server = is_fake.then(|| {
            let text = "shard 1: its thread waited for a processor for 614ms of 1s, 61 %";
            FakeServer::start(stage.address(), |stats| {
                stats["warnings"] = json!([warning(id, 1, text)]);
            })
        });
        browser.show(server.as_ref().map_or(stage.address(), |server| server.address));
        // It is said in full and in the list.
        browser.wait_for_mark(id);
        let said = browser.text("#attention");
        let class = if kind == WarningKind::ClassLeaks { "class request: " } else { "" };
        assert!(said.contains(&format!("hard 1: {class}")), "{said}");
        assert!(said.contains(sentence(kind)) && said.contains("; since "), "{id}: {said}");
        let listed = browser.text("#warnings");
        assert!(listed.contains("▲ active ") && listed.contains(sentence(kind)), "{id}: {listed}");
        browser.check_calm();
        browser.leave();
    }
}

#[test]
fn urgent_warning_comes_first_and_the_others_in_the_order_of_their_table() {
    let Some(mut browser) = Browser::start() else { return };
    let stage = Stage::new();
    let warnings = [
        (WarningKind::ClassLeaks, 0),
        (WarningKind::HandlerSlow, 0),
        (WarningKind::HandlerSlow, 1),
        (WarningKind::ExecutorStalled, 1),
        (WarningKind::ShardStuck, 1),
        (WarningKind::LaneFlooded, 0),
    ];
    let warnings = warnings.map(|(kind, shard)| {
        warning(kind.id(), shard, &format!("shard {shard}: the text of {kind}"))
    });
    let server = FakeServer::start(stage.address(), |stats| stats["warnings"] = json!(warnings));
    browser.show(server.address);
    browser.wait_for_mark("shard-stuck");
    let said = browser.text("#attention");
    // Three others have a sentence, and the rest are named.
    let order = [
        "Shard 1: the text of shard-stuck; since ",
        "executor-stalled: shard 1",
        "handler-slow: shard 0",
        "the text of handler-slow, and 1 other shard; since ",
        "lane-flooded: shard 0",
        "More: class-leaks",
    ];
    let at = order.map(|text| said.find(text).unwrap_or_else(|| panic!("no {text} in {said}")));
    assert!(at.is_sorted(), "{said}");
}

#[test]
fn page_shows_what_has_happened_since_it_was_opened() {
    let Some(mut browser) = Browser::start() else { return };
    let mut stage = Stage::new();
    for _ in 0..7 {
        stage.schedule(ms(5), 0);
    }
    stage.turn();
    stage.show(&mut browser);
    stage.pass(219);
    browser.wait("readings.length > 0");
    stage.pass(30_000);
    browser.wait_for_text("#attention", "Nothing needs");
    let said = browser.text("#attention");
    assert!(said.contains("Nothing needs attention now, but timers have been late."), "{said}");
    assert!(said.contains("7 of 7 deliveries were later than"), "{said}");
    let card = browser.text(CARD);
    assert!(card.contains("late, last minute\n7\n"), "{card}");
    assert!(card.contains("poll delay\n100 % · 214 ms"), "{card}");
    let drawn = "cells.flat().reduce((sum, n) => sum + n, 0)";
    assert_eq!(browser.eval(drawn), 7, "the heat map has them");
    // A page that is opened later has the sum.
    browser.leave();
    stage.show(&mut browser);
    let said = browser.text("#attention");
    assert!(said.contains("Since its start the service has had 7 late deliveries, the last at"));
    browser.check_calm();
}

/// The card of shard 1.
const CARD: &str = "#shards article:nth-child(2)";

#[test]
fn time_that_a_slow_handler_takes_is_shown_as_that_of_handlers() {
    let Some(mut browser) = Browser::start() else { return };
    let mut stage = Stage::new();
    stage.schedule(ms(5), 80);
    stage.schedule(ms(15), 0);
    stage.turn();
    stage.show(&mut browser);
    stage.pass(5);
    stage.turn();
    browser.wait("readings.length > 0");
    let card = browser.text(CARD);
    assert!(card.contains("handlers\n100 % · 70 ms"), "{card}");
    let said = browser.text("#attention");
    let parts = "100 % of their lateness is handlers: handlers of other timers";
    assert!(said.contains(parts), "{said}");
}

#[test]
fn card_of_a_stuck_shard_says_so_and_a_lane_that_was_deep_just_now_is_shown() {
    let Some(mut browser) = Browser::start() else { return };
    let stage = provoke(WarningKind::ShardStuck);
    stage.show(&mut browser);
    let heading = browser.text(&format!("{CARD} h3"));
    assert_eq!(heading.split_once('\n').unwrap().1, "▲ warning");
    browser.leave();
    let mut stage = provoke(WarningKind::LaneFlooded);
    (0..70).for_each(|_| stage.turn());
    assert_eq!(stage.service.stats().shards[1].counts.lane_depth, 0, "the lane is empty again");
    stage.show(&mut browser);
    let card = browser.text(CARD);
    assert!(card.contains("deepest lane\n59 of 64"), "{card}");
    let why = "[...document.querySelectorAll('.card dt')].every((term) => term.title)";
    assert_eq!(browser.eval(why), true, "each figure says what it means");
}

#[test]
fn trouble_is_drawn_as_alarms_and_a_calm_page_says_that_nothing_needs_attention() {
    let Some(mut browser) = Browser::start() else { return };
    let stage = Stage::new();
    // What is drawn as an alarm, in the order of the page.
    let drawn = "[...document.querySelectorAll('.alarm')].map((one) => one.dataset.name
        ?? one.textContent)";
    stage.show(&mut browser);
    assert_eq!(browser.eval(drawn), json!([]));
    let said = browser.text("#attention");
    assert!(said.contains("Nothing needs attention: timers are on time."), "{said}");
    let listed = browser.text("#warnings");
    for kind in WarningKind::ALL {
        assert!(listed.contains(kind.id()), "{kind}: {listed}");
    }
    browser.check_calm();
    browser.leave();
    let server = FakeServer::start(stage.address(), |stats| {
        stats["shards"][0]["state"] = json!("dead");
        stats["warnings"] = json!([warning("lane-flooded", 1, "shard 1: many requests")]);
        stats["classes"][0]["overrun"] = json!(3);
        stats["shards"][1]["late_deliveries"] = json!([{
            "at_ns": 0, "class": null, "lateness_ns": 60, "after_budget": false,
            "parts_ns": { "arrival": 0, "poll_delay": 20, "handlers": 31, "backlog": 9 },
        }]);
    });
    browser.show(server.address);
    let expected = ["✕ dead", "▲ warning", "overrun", "handlers"];
    assert_eq!(browser.eval(drawn), json!(expected));
}

#[test]
fn name_of_a_warning_leads_to_its_section_of_the_guide_and_says_what_to_do() {
    let Some(mut browser) = Browser::start() else { return };
    let stage = provoke(WarningKind::HandlerSlow);
    stage.show(&mut browser);
    browser.wait("document.querySelector('#attention .mark a')");
    for place in ["#attention .mark a", "#warnings a"] {
        let link = browser.eval(&format!("document.querySelector('{place}').getAttribute('href')"));
        assert_eq!(link, "#guide-handler-slow", "{place}");
        let title = browser.eval(&format!("document.querySelector('{place}').title"));
        assert!(title.as_str().unwrap().contains("move its work elsewhere"), "{place}: {title}");
    }
    let section = browser.text("article:has(#guide-handler-slow)");
    assert!(section.contains("The warning: deliveries took longer than"), "{section}");
    assert!(section.contains("send the work into a bounded channel."), "{section}");
    for kind in WarningKind::ALL {
        let section = browser.text(&format!("article:has(#guide-{kind})"));
        assert!(section.contains(kind.about()), "{kind}: {section}");
    }
    let facts = browser.text("#facts");
    assert!(facts.contains("times in UTC"), "{facts}");
}

#[test]
fn page_shows_what_has_ended_connections_and_what_a_stamp_adds() {
    let Some(mut browser) = Browser::start() else { return };
    let mut stage = Stage::new();
    let open = || {
        let limits = ConnLimits::default().read_idle(ms(100));
        stage.shards[0].timers().connection(limits).unwrap()
    };
    let (idle, closed) = ([open(), open()], open());
    stage.pass(120);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(idle.iter().all(|conn| conn.poll_next(cx).is_ready()));
    drop((idle, closed));
    stage.turn();
    stage.show(&mut browser);
    let lines = "[...document.querySelectorAll('#ends tr')].map((tr) => [...tr.cells]\
                 .map((td) => td.textContent.trim()).join('|')).join(' ')";
    assert_eq!(browser.eval(lines), "read idle||2|2 its owner or peer||1|–");
    let said = browser.text("#h-ends");
    assert!(said.contains("0 open on shards; 3 have ended"), "{said}");
    let said = browser.text("#stamp");
    assert!(said.contains("up to 11 ms after its limit"), "{said}");
    browser.check_calm();
}
