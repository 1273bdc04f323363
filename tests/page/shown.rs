//! What the page shows while a service runs, ends and starts again, and to whom.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::thread;

use corewheel::class::TimerClass;
use corewheel::{ConnLimits, Runtime, ShardId, TimerService};
use corewheel_stats::StatsEndpoint;
use serde_json::json;

use crate::browser::Browser;
use crate::{PATIENCE, ms};

const MARKUP: &str = "<img src=x onerror=window.broken=1>";

/// A service with one class, and its endpoint, which ends first.
struct Served {
    endpoint: StatsEndpoint,
    service: TimerService,
    class: TimerClass,
}

impl Served {
    fn start(name: &str) -> Self {
        Self::start_at(name, TimerClass::new("request"), "127.0.0.1:0")
    }

    fn start_at(name: &str, class: TimerClass, address: &str) -> Self {
        let builder = TimerService::builder().shards(2).capacity(4_096).runtime(Runtime::Thread);
        let service = builder.unpinned().class(class).name(name).start().unwrap();
        let endpoint = StatsEndpoint::start(service.stats_source(), address).unwrap();
        Self { endpoint, service, class }
    }

    /// Opens its page.
    fn show(&self, browser: &mut Browser) {
        browser.show(self.endpoint.local_addr());
    }

    /// Fires timers, one after the other, until it is told to stop. Some take long, so that others
    /// are late.
    fn fire(&self, stop: &AtomicBool) {
        let client = self.service.handle();
        let timers = client.on(ShardId::new(1)).of_class(self.class).unwrap();
        for number in 0_u64.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let work = if number.is_multiple_of(64) { ms(30) } else { ms(0) };
            // A timer that is refused is not missed.
            drop(timers.schedule_fn(ms(2), move |_| thread::sleep(work)));
            thread::sleep(ms(2));
        }
    }

    /// Runs a check while timers fire.
    fn while_firing(&self, check: impl FnOnce()) {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| self.fire(&stop));
            check();
        });
    }
}

/// Stops the thread also when a check panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// True when some timers were late.
const ARE_LATE: &str = "document.querySelectorAll('#late tr').length > 5";
/// True when the page asks for attention.
const IS_BAD: &str = "document.querySelector('#attention.bad')";

#[test]
fn numbers_move_while_the_layout_stays() {
    let Some(mut browser) = Browser::start() else { return };
    let served = Served::start("moving");
    served.show(&mut browser);
    assert_eq!(browser.text("h1"), "moving");
    assert!(browser.text("#late").contains("none yet"));
    served.while_firing(|| {
        let limits = ConnLimits::default().read_idle(ms(20));
        let connection = served.service.handle().connection(limits);
        for _ in 0..2 {
            for place in [
                "document.querySelector('#classes tr td:nth-child(5)').innerText",
                "document.querySelector('.line path').getAttribute('d')",
            ] {
                let before = browser.eval(place);
                browser.wait(&format!("{place} !== {before}"));
            }
        }
        let cx = &mut Context::from_waker(Waker::noop());
        let is_over = (0..PATIENCE.as_millis()).any(|_| {
            thread::sleep(ms(1));
            connection.poll_next(cx).is_ready()
        });
        assert!(is_over, "the connection becomes idle");
        browser.wait_for_text("#ends", "read idle");
        browser.wait(ARE_LATE);
        browser.wait("cells.flat().some((n) => n > 0)");
    });
    browser.check_calm();
}

#[test]
fn markup_in_names_is_shown_as_text() {
    let Some(mut browser) = Browser::start() else { return };
    let name = "<script>window.broken=1</script><b>name";
    let served = Served::start_at(name, TimerClass::new(MARKUP), "127.0.0.1:0");
    served.show(&mut browser);
    served.while_firing(|| {
        browser.wait(ARE_LATE);
        browser.wait_for_text("#attention", "class <img");
    });
    assert_eq!(browser.text("h1"), name);
    for place in ["#classes", "#late", "#warnings"] {
        assert!(browser.text(place).contains(MARKUP), "{place}");
    }
    let harm = "window.broken || document.querySelectorAll('img, h1 b, body script').length !== 1";
    assert_eq!(browser.eval(harm), false);
    browser.check_calm();
}

#[test]
fn page_says_when_its_data_is_stale_and_goes_on_after_a_restart() {
    let Some(mut browser) = Browser::start() else { return };
    let first = Served::start("first");
    let address = first.endpoint.local_addr().to_string();
    first.show(&mut browser);
    first.while_firing(|| {
        browser.wait("readings.some((one) => one.shards.some((step) => step.fired > 20))");
    });
    browser.check_calm();
    drop(first);
    browser.wait_for_mark("■ Stale");
    let said = browser.text("#attention");
    assert!(said.contains("No answer from the server since "), "{said}");
    let kept = browser.eval("readings.length").as_u64().unwrap();
    let second = Served::start_at("second", TimerClass::new("request"), &address);
    browser.wait_for_text("h1", "second");
    second.while_firing(|| {
        browser.wait("restarts.length === 1 && readings.at(-1).shards[1].fired > 20");
    });
    browser.wait("document.querySelector('#attention .mark').textContent !== '■ Stale'");
    assert!(browser.eval("readings.length").as_u64().unwrap() > kept, "the readings are kept");
    let counts = "readings.flatMap((one) => one.shards).flatMap((step) => Object.values(step))
        .flat(2).every((n) => n >= 0)";
    assert_eq!(browser.eval(counts), true, "no count goes back");
    let errors = browser.take_errors();
    assert!(errors.iter().all(|error| error.contains("net::ERR_")), "{errors:?}");
    browser.check_calm();
}

/// The texts of the page whose contrast to their ground is less than AA demands, 4.5.
const FAINT: &str = "(() => {
    const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => {
        const part = (n) => (n / 255 <= 0.04045 ? n / 255 / 12.92
            : ((n / 255 + 0.055) / 1.055) ** 2.4);
        const [red, green, blue] = numbers(color).map(part);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if ((numbers(color)[3] ?? 1) > 0) return color;
        }
        return 'rgb(255, 255, 255)';
    };
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let seen = 0;
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
        seen += 1;
        const [a, b] = [light(getComputedStyle(element).color), light(ground(element))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) found.push(`${contrast} ${texts.currentNode.data}`);
    }
    return seen > 100 ? found : ['too few texts'];
})()";

#[test]
fn contrast_is_that_of_aa_in_both_themes() {
    let Some(mut browser) = Browser::start() else { return };
    let served = Served::start("themes");
    served.show(&mut browser);
    let mut grounds = Vec::new();
    for state in ["All well", "Attention"] {
        if state == "Attention" {
            served.while_firing(|| {
                browser.wait(ARE_LATE);
                browser.wait(IS_BAD);
            });
        }
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            let faint = browser.eval(FAINT);
            assert_eq!(faint, json!([]), "{state}, {scheme}");
            grounds.push(browser.eval("getComputedStyle(document.body).backgroundColor"));
        }
    }
    assert_ne!(grounds[0], grounds[1], "the themes differ");
}

#[test]
fn page_fits_a_phone_and_its_heat_map_is_read_by_keys() {
    let Some(mut browser) = Browser::start() else { return };
    let served = Served::start("phone");
    browser.resize(375, 812);
    served.show(&mut browser);
    served.while_firing(|| {
        browser.wait("readings.length > 1");
    });
    let width = browser.eval("document.scrollingElement.scrollWidth");
    assert_eq!(width, 375, "nothing but tables scrolls sideways");
    browser.eval("document.querySelector('#heat').focus()");
    assert_eq!(browser.eval("document.activeElement.id"), "heat");
    for (key, expected) in [("ArrowLeft", 119), ("ArrowLeft", 118), ("Home", 0), ("End", 119)] {
        browser.press(key);
        assert_eq!(browser.eval("cursor.column"), expected, "{key}");
    }
    let read = browser.text("#heat-read");
    assert!(read.contains(" late: ") && read.contains(" deliveries."), "{read}");
    browser.check_calm();
}

#[test]
fn each_sentence_and_each_figure_is_whole_on_a_narrow_phone() {
    let Some(mut browser) = Browser::start() else { return };
    let served = Served::start("narrow phone");
    browser.resize(390, 844);
    served.show(&mut browser);
    served.while_firing(|| {
        browser.wait(ARE_LATE);
        browser.wait(IS_BAD);
    });
    assert_eq!(browser.eval("document.scrollingElement.scrollWidth"), 390);
    let cut = "(() => {
        const box = document.querySelector('#attention');
        const whole = box.scrollHeight <= box.clientHeight + 1;
        const cells = [...document.querySelectorAll('#late td, #classes td')].filter((cell) => {
            const { left, right, width } = cell.getBoundingClientRect();
            return left < 0 || right > 390 || width < 60 || cell.scrollWidth > cell.clientWidth + 1;
        });
        const nameless = [...document.querySelectorAll('#late tr:first-child td, #classes td')]
            .filter((cell) => !cell.dataset.name);
        return [whole, cells.map((cell) => cell.outerHTML), nameless.length];
    })()";
    assert_eq!(browser.eval(cut), json!([true, [], 0]));
}

#[test]
fn each_part_of_the_page_has_a_name_for_readers() {
    let Some(mut browser) = Browser::start() else { return };
    let served = Served::start("names");
    served.show(&mut browser);
    browser.wait("document.querySelectorAll('.line').length > 5");
    let nameless = "[...document.querySelectorAll('section, canvas, [role=img], [role=region]')]
        .filter((one) => !(one.getAttribute('aria-label')
            || document.getElementById(one.getAttribute('aria-labelledby'))?.textContent))
        .map((one) => one.outerHTML.slice(0, 80))";
    assert_eq!(browser.eval(nameless), json!([]));
    let headless =
        "[...document.querySelectorAll('th')].filter((one) => one.scope !== 'col').length";
    assert_eq!(browser.eval(headless), 0);
    let ids = "[...document.querySelectorAll('[id]')].map((one) => one.id)";
    assert_eq!(browser.eval(&format!("new Set({ids}).size === {ids}.length")), true);
    // A region that scrolls can be reached by keys.
    let stuck = "[...document.querySelectorAll('.scroll')].filter((one) =>
        one.scrollHeight > one.clientHeight + 1 && one.tabIndex < 0).length";
    assert_eq!(browser.eval(stuck), 0);
    assert_eq!(browser.eval("document.querySelector('#news').ariaLive"), "polite");
    browser.wait("document.querySelector('#news').textContent");
}
