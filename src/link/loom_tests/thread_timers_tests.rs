//! Tests of the timers of threads under the model checker.
//!
//! Most of what they do is behind their lock. The models are about the rest: the keeper that falls
//! asleep, timers that fire while they end or are reset, and a shard that ends. The number that is
//! read without the lock has models of its own.

use std::num::NonZeroU64;
use std::sync::Arc;

use corewheel_shard::{Tick, TickLength};
use loom::thread;

use super::super::thread_timers::{
    ArmRefusal, Arming, Due, Name, Periods, Progress, Table, ThreadTimers,
};
use super::super::wake_up::Doorbell;
use super::{BEGIN, Owner, check, check_within, tick};

const MS: u64 = 1_000_000;

/// A time after the beginning.
const fn ms(after: u64) -> u64 {
    BEGIN + after * MS
}

/// When all timers of the models are armed.
const NOW: u64 = BEGIN + 1;
/// A time at which all timers of these models are due.
const LATE: u64 = ms(10_000);

type Shared<X> = loom::sync::Arc<X>;

fn tick_of(nanos: u64) -> Tick {
    Tick::new(nanos.div_ceil(MS))
}

fn periods() -> Periods {
    Periods::new(TickLength::from_nanos(NonZeroU64::new(MS).unwrap()))
}

fn thread_timers(table: &Table<u32>) -> ThreadTimers<u32> {
    ThreadTimers::new(periods(), 0, Arc::clone(table.room()), false)
}

/// A shard, and the timers of one thread.
fn pair() -> (Shared<Doorbell>, Arc<Table<u32>>, Arc<ThreadTimers<u32>>) {
    let (doorbell, table) = (Shared::new(Doorbell::new()), Arc::new(Table::new(8)));
    let (_, thread_timers) = table.enter(thread_timers(&table)).unwrap();
    (doorbell, table, thread_timers)
}

/// Rings the keeper for an act, by the tick of the act.
fn ring((table, doorbell): (&Table<u32>, &Doorbell), ring: Option<u64>) {
    if let Some(act_by) = ring {
        table.ring(tick_of(act_by), doorbell);
    }
}

/// Arms a timer that carries `carried`, and rings.
fn arm(
    thread_timers: &ThreadTimers<u32>,
    at: (&Table<u32>, &Doorbell),
    timer: (u64, u32),
) -> Result<Name, ArmRefusal> {
    arm_at(NOW, thread_timers, at, timer)
}

fn arm_at(
    now: u64,
    thread_timers: &ThreadTimers<u32>,
    at: (&Table<u32>, &Doorbell),
    (deadline, carried): (u64, u32),
) -> Result<Name, ArmRefusal> {
    let arming = Arming { deadline, class: 0, is_guarded: false, carried };
    let armed = thread_timers.arm(arming, || now, || now).map_err(|refused| refused.0)?;
    ring(at, armed.ring);
    Ok(armed.name)
}

/// Sleeps until a thread needs an act before the time `until`.
fn sleep(keeper: &mut Owner, table: &Table<u32>, until: u64) {
    let (known, version) = table.all();
    keeper.sleep(tick_of(until), || {
        let mut known = known.iter().flatten();
        let is_early =
            |thread_timers: &ThreadTimers<u32>| tick_of(thread_timers.act_by()) < tick_of(until);
        table.version() != version || known.any(|thread_timers| is_early(thread_timers))
    });
}

/// Sleeps until the next act of a thread, or until the time `latest`, unless that act is due by
/// `now`: the alarm of a keeper that sleeps until then would go off at once.
fn sleep_past(
    keeper: &mut Owner,
    table: &Table<u32>,
    thread_timers: &ThreadTimers<u32>,
    now: u64,
    latest: u64,
) {
    let until = thread_timers.act_by().min(latest);
    if until > now {
        sleep(keeper, table, until);
    }
}

/// Acts until there is nothing to do at `now`. Returns what fires.
fn act(thread_timers: &ThreadTimers<u32>, now: u64, carried: &mut Vec<u32>) -> Vec<u32> {
    let mut due = Vec::new();
    while thread_timers.act_by() <= now && thread_timers.act(now, 64, &mut due, carried).1 {}
    due.into_iter().map(|Due { carried, .. }| carried).collect()
}

/// A thread makes its timers and arms a timer, while the keeper falls asleep for longer than the
/// timer has. Also at the end of the range of times.
#[test]
fn keeper_that_sleeps_past_the_first_timer_of_a_new_thread_is_woken() {
    for begin in [BEGIN, (u64::MAX / MS - 100) * MS] {
        check(move || check_first_timer(begin));
    }
}

fn check_first_timer(begin: u64) {
    let (doorbell, table) = (Shared::new(Doorbell::new()), Arc::new(Table::new(8)));
    let mut keeper = Owner::new(&doorbell);
    let thread = {
        let (doorbell, table) = (Shared::clone(&doorbell), Arc::clone(&table));
        thread::spawn(move || {
            let (_, thread_timers) = table.enter(thread_timers(&table)).unwrap();
            arm_at(begin + 1, &thread_timers, (&table, &doorbell), (begin + 5 * MS, 7)).unwrap();
        })
    };
    let mut fired = Vec::new();
    loop {
        for thread_timers in table.all().0.iter().flatten() {
            fired.extend(act(thread_timers, begin + 5 * MS, &mut Vec::new()));
        }
        if !fired.is_empty() {
            break;
        }
        sleep(&mut keeper, &table, begin + 9 * MS);
    }
    thread.join().unwrap();
    assert_eq!(fired, [7]);
}

/// A thread arms a timer, and then one that is due earlier, while the keeper acts and falls asleep
/// until the first one.
#[test]
fn keeper_that_sleeps_past_an_earlier_timer_is_woken() {
    check_within(2, || {
        let (doorbell, table, thread_timers) = pair();
        let mut keeper = Owner::new(&doorbell);
        let thread = {
            let (doorbell, table) = (Shared::clone(&doorbell), Arc::clone(&table));
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || {
                for deadline in [ms(8), ms(5)] {
                    arm(&thread_timers, (&table, &doorbell), (deadline, 7)).unwrap();
                }
            })
        };
        loop {
            // It is 5 all the time: the alarm of the keeper does not go off.
            if act(&thread_timers, ms(5), &mut Vec::new()) == [7] {
                break;
            }
            sleep_past(&mut keeper, &table, &thread_timers, ms(5), ms(9));
        }
        thread.join().unwrap();
    });
}

/// A thread resets its timer to an earlier deadline while the keeper falls asleep until the later
/// one.
#[test]
fn keeper_that_sleeps_past_a_reset_to_earlier_is_woken() {
    for young in [false, true] {
        check_within(2, move || {
            let (doorbell, table, thread_timers) = pair();
            let mut keeper = Owner::new(&doorbell);
            let first = if young { ms(30_000) } else { ms(50) };
            let name = arm(&thread_timers, (&table, &doorbell), (first, 7)).unwrap();
            let thread = {
                let (doorbell, table) = (Shared::clone(&doorbell), Arc::clone(&table));
                let thread_timers = Arc::clone(&thread_timers);
                thread::spawn(move || {
                    let reset = thread_timers.reset(name, ms(5), || NOW, || NOW);
                    ring((&table, &doorbell), reset.expect("it is pending"));
                })
            };
            while act(&thread_timers, ms(5), &mut Vec::new()).is_empty() {
                sleep_past(&mut keeper, &table, &thread_timers, ms(5), ms(9_000));
            }
            thread.join().unwrap();
        });
    }
}

/// A thread resets its timer to later while the keeper acts by the deadline before: the timer fires
/// once, by the deadline that it has then, for which the keeper is not told to act.
#[test]
fn timer_that_is_reset_to_later_while_the_keeper_acts_fires_once() {
    for [first, later] in [[ms(5), ms(8)], [ms(200), ms(900)]] {
        check(move || {
            let (doorbell, table, thread_timers) = pair();
            let name = arm(&thread_timers, (&table, &doorbell), (first, 7)).unwrap();
            let thread = {
                let thread_timers = Arc::clone(&thread_timers);
                thread::spawn(move || {
                    let reset = thread_timers.reset(name, later, || NOW, || NOW);
                    assert!(reset.is_none_or(|ring| ring.is_none()), "the keeper is told");
                    reset.is_some()
                })
            };
            let fired = act(&thread_timers, first, &mut Vec::new());
            let is_reset = thread.join().unwrap();
            assert_eq!(fired.is_empty(), is_reset, "it fires, or is reset");
            assert_eq!(thread_timers.is_over(name), !is_reset, "it shows as over if it has fired");
            let fired_later = act(&thread_timers, later, &mut Vec::new());
            assert_eq!((fired.len() + fired_later.len(), thread_timers.pending()), (1, 0));
        });
    }
}

/// A timer ends on a third thread while the keeper acts: what it carries comes out once, and its
/// slot is freed.
#[test]
fn timer_that_ends_elsewhere_while_the_keeper_acts_is_over_once() {
    check(|| {
        let (doorbell, table, thread_timers) = pair();
        let mut keeper = Owner::new(&doorbell);
        let name = arm(&thread_timers, (&table, &doorbell), (ms(50), 7)).unwrap();
        let other = {
            let (doorbell, table) = (Shared::clone(&doorbell), Arc::clone(&table));
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || {
                if !thread_timers.is_over(name) {
                    ring((&table, &doorbell), thread_timers.end_elsewhere(name, || NOW).unwrap());
                }
            })
        };
        let (mut fired, mut ended) = (Vec::new(), Vec::new());
        while thread_timers.pending() > 0 {
            fired.extend(act(&thread_timers, LATE, &mut ended));
            if thread_timers.pending() > 0 {
                sleep(&mut keeper, &table, ms(100_000));
            }
        }
        other.join().unwrap();
        fired.extend(act(&thread_timers, LATE, &mut ended));
        assert_eq!(fired.len() + ended.len(), 1, "{fired:?} and {ended:?}");
        assert!(thread_timers.is_over(name));
    });
}

/// The keeper fires a timer, and its thread arms another one in its slot, while a third thread ends
/// the first by its name: the second is not ended, and does not show as fired.
#[test]
fn timer_of_a_slot_used_again_is_not_ended_by_the_name_of_the_one_before() {
    check_within(2, || {
        let (doorbell, table, thread_timers) = pair();
        let first = arm(&thread_timers, (&table, &doorbell), (ms(5), 7)).unwrap();
        let keeper = {
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || act(&thread_timers, ms(5), &mut Vec::new()))
        };
        let other = {
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || {
                if !thread_timers.is_over(first) {
                    thread_timers.end_elsewhere(first, || NOW).unwrap();
                }
            })
        };
        let second = arm(&thread_timers, (&table, &doorbell), (ms(50), 8)).unwrap();
        let mut ended = Vec::new();
        while thread_timers.end_some(&mut ended) {}
        let fired = keeper.join().unwrap();
        other.join().unwrap();
        while thread_timers.end_some(&mut ended) {}
        assert!(!thread_timers.is_over(second), "it is pending");
        assert_eq!(thread_timers.look_at(second, |carried| *carried == 8), Progress::Same);
        assert_eq!(fired.len() + ended.len(), 1, "{fired:?} and {ended:?}");
        assert_ne!(thread_timers.look_at(first, |_| true), Progress::Same);
    });
}

/// A future that has seen, without the lock, that its timer has fired finds it over behind it.
#[test]
fn timer_that_shows_as_fired_without_the_lock_is_over() {
    check(|| {
        let (doorbell, table, thread_timers) = pair();
        let name = arm(&thread_timers, (&table, &doorbell), (ms(5), 7)).unwrap();
        let future = {
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || {
                if thread_timers.is_over(name) {
                    assert_eq!(thread_timers.look_at(name, |_| true), Progress::Fired);
                    assert_eq!(thread_timers.end(name), None, "it has fired");
                }
            })
        };
        assert_eq!(act(&thread_timers, ms(5), &mut Vec::new()), [7]);
        assert!(thread_timers.is_over(name));
        future.join().unwrap();
    });
}

/// Two timers end on two other threads, while their thread ends those that have: none of them is
/// lost.
#[test]
fn timers_that_end_on_two_threads_are_all_freed() {
    check_within(2, || {
        let (doorbell, table, thread_timers) = pair();
        let mut keeper = Owner::new(&doorbell);
        let others = [1, 2].map(|carried| {
            let name = arm(&thread_timers, (&table, &doorbell), (ms(9_000), carried)).unwrap();
            let (doorbell, table) = (Shared::clone(&doorbell), Arc::clone(&table));
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || {
                ring((&table, &doorbell), thread_timers.end_elsewhere(name, || NOW).unwrap());
            })
        });
        let mut ended = Vec::new();
        thread_timers.end_some(&mut ended);
        while thread_timers.pending() > 0 {
            assert!(act(&thread_timers, ms(2_000), &mut ended).is_empty(), "none is due");
            if thread_timers.pending() > 0 {
                // Not past the look at the timers, which is no reason to stay awake.
                sleep(&mut keeper, &table, ms(2_001));
            }
        }
        for other in others {
            other.join().unwrap();
        }
        ended.sort_unstable();
        assert_eq!(ended, [1, 2]);
    });
}

/// A thread resets and ends a timer in place while the keeper fires it.
#[test]
fn timer_that_fires_while_its_thread_ends_it_has_one_outcome() {
    check(|| {
        let (doorbell, table, thread_timers) = pair();
        let name = arm(&thread_timers, (&table, &doorbell), (ms(5), 7)).unwrap();
        let thread = {
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || {
                let is_reset = thread_timers.reset(name, ms(4), || NOW, || NOW).is_some();
                (is_reset, thread_timers.end(name))
            })
        };
        let fired = act(&thread_timers, ms(5), &mut Vec::new());
        let (is_reset, ended) = thread.join().unwrap();
        assert_eq!(fired.len() + usize::from(ended.is_some()), 1, "{fired:?} and {ended:?}");
        assert!(is_reset || !fired.is_empty());
        assert_eq!(thread_timers.pending(), 0);
    });
}

/// A thread arms timers while the shard ends: each is refused, or taken out.
#[test]
fn timer_armed_while_the_shard_ends_is_taken_out_or_refused() {
    check_within(2, || {
        let (doorbell, table) = (Shared::new(Doorbell::new()), Arc::new(Table::new(8)));
        let thread = {
            let (doorbell, table) = (Shared::clone(&doorbell), Arc::clone(&table));
            thread::spawn(move || {
                let Ok((_, thread_timers)) = table.enter(thread_timers(&table)) else { return 0 };
                let arm = |carried| arm(&thread_timers, (&table, &doorbell), (ms(50), carried));
                let armed = [arm(1), arm(2)].map(|armed| {
                    assert!(matches!(armed, Ok(_) | Err(ArmRefusal::Closed)), "{armed:?}");
                    usize::from(armed.is_ok())
                });
                armed.iter().sum()
            })
        };
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        for thread_timers in table.close().iter().flatten() {
            while thread_timers.close(&mut ended) {}
            while thread_timers.take_out(&mut out) {}
        }
        let armed: usize = thread.join().unwrap();
        assert_eq!((out.len(), ended.len()), (armed, 0));
    });
}

/// A timer ends on a third thread while the shard ends: what it carries comes out once.
#[test]
fn timer_that_ends_elsewhere_while_the_shard_ends_is_freed_once() {
    check(|| {
        let (doorbell, table, thread_timers) = pair();
        let name = arm(&thread_timers, (&table, &doorbell), (ms(50), 7)).unwrap();
        let other = {
            let thread_timers = Arc::clone(&thread_timers);
            thread::spawn(move || {
                let mut ended = Vec::new();
                if thread_timers.end_elsewhere(name, || NOW).is_err() {
                    while thread_timers.end_some(&mut ended) {}
                }
                ended
            })
        };
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        while thread_timers.close(&mut ended) {}
        while thread_timers.take_out(&mut out) {}
        ended.extend(other.join().unwrap());
        assert_eq!((ended.len() + out.len(), thread_timers.pending()), (1, 0));
    });
}

/// A thread ends while the keeper acts: the keeper finds all over in its next turn.
#[test]
fn timers_of_a_thread_that_has_ended_are_over() {
    check(|| {
        let (_, table, thread_timers) = pair();
        let thread = {
            let (thread_timers, table) = (Arc::clone(&thread_timers), Arc::clone(&table));
            thread::spawn(move || {
                let name = arm(&thread_timers, (&table, &Doorbell::new()), (ms(50), 7)).unwrap();
                let _carried = thread_timers.end(name);
                thread_timers.leave();
            })
        };
        let mut fired = act(&thread_timers, LATE, &mut Vec::new());
        let is_over = thread_timers.settle(|_, _| {}).1;
        thread.join().unwrap();
        if !is_over {
            assert!(thread_timers.act_by() <= LATE, "no turn acts for it");
            fired.extend(act(&thread_timers, LATE, &mut Vec::new()));
            assert!(thread_timers.settle(|_, _| {}).1, "it is over");
        }
        assert_eq!(table.room().free(), 8, "its credit is back");
        assert!(fired.len() <= 1);
    });
}

#[test]
fn room_that_two_threads_take_from_and_give_to_loses_no_slot() {
    check(|| {
        let table = Arc::new(Table::<u32>::new(3));
        let use_room = |table: &Table<u32>| {
            let taken = table.room().take_all(2);
            table.room().give(taken);
            table.note_refused();
            taken
        };
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || use_room(&table))
        };
        let taken = use_room(&table);
        let of_other = other.join().unwrap();
        assert!((1..=2).contains(&taken) && (1..=2).contains(&of_other), "{taken} and {of_other}");
        assert_eq!(table.room().free(), 3, "a slot is lost, or lent twice");
        assert_eq!(table.counts()[2], 2, "a refusal is not counted");
    });
}

/// Two threads ask for room while the owner falls asleep: it is woken until it has served both.
#[test]
fn timers_that_wait_for_room_are_served_by_an_owner_that_falls_asleep() {
    check_within(2, || {
        let (doorbell, table) =
            (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::<u32>::new(0)));
        let mut owner = Owner::new(&doorbell);
        let threads = [7, 8].map(|carried| {
            let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
            thread::spawn(move || {
                let asked = table.ask_for_room(None, carried, &doorbell);
                assert!(matches!(asked, (Ok(_), None)));
            })
        });
        let mut served = Vec::new();
        while served.len() < 2 {
            if table.is_short() {
                let waiting = table.begin_serving();
                served.extend(table.end_serving(waiting, false));
            } else {
                owner.sleep(tick(9), || table.is_short());
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Two threads ask for room, one of them again with another waker, and the owner serves one timer
/// in each turn before it falls asleep.
#[test]
fn timers_that_wait_for_room_are_served_by_an_owner_that_serves_one_in_each_turn() {
    check_within(2, || {
        let (doorbell, table) =
            (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::<u32>::new(0)));
        let mut owner = Owner::new(&doorbell);
        let threads = [10, 20].map(|carried| {
            let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
            thread::spawn(move || {
                let (asked, _) = table.ask_for_room(None, carried, &doorbell);
                if carried == 10 {
                    // It may wait still, or was served and waits anew.
                    let again = table.ask_for_room(asked.ok(), carried + 1, &doorbell);
                    return usize::from(again.1.is_none());
                }
                0
            })
        });
        let (mut served, mut asked) = (Vec::new(), None::<usize>);
        let (mut threads, mut goes_on) = (Some(threads), false);
        while asked.is_none_or(|asked| served.len() < 2 + asked) {
            // An owner sees its own store. The model checker may let it load an older one.
            if goes_on || table.is_short() {
                let waiting = table.begin_serving();
                served.extend(table.end_serving(waiting.min(1), false));
                goes_on = waiting > 1;
                if goes_on {
                    table.go_on_serving();
                }
            } else if served.len() >= 2 && threads.is_some() {
                let threads = threads.take().expect("they are there");
                asked = Some(threads.map(|thread| thread.join().unwrap()).iter().sum());
            } else {
                owner.sleep(tick(9), || table.is_short());
            }
        }
        assert!(served.contains(&11) && served.contains(&20), "{served:?}");
    });
}

#[test]
fn rings_of_two_threads_are_all_counted() {
    check(|| {
        let (doorbell, table) =
            (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::<u32>::new(8)));
        let mut owner = Owner::new(&doorbell);
        let threads = [(); 2].map(|()| {
            let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
            thread::spawn(move || table.ring(tick(5), &doorbell))
        });
        for _ in 0..2 {
            owner.sleep_until_alarm(tick(9));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let [made, saved, _] = table.counts();
        assert_eq!(made + saved, 2, "{made} made and {saved} saved");
    });
}
