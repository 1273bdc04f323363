//! Tests of nurseries under the model checker.
//!
//! Most of what a nursery does is behind its lock. The models are about the rest: the look that a
//! thread asks for and the owner that falls asleep, timers that end on a third thread, and an owner
//! that ends.

use std::sync::Arc;

use corewheel_shard::Tick;
use loom::thread;

use super::super::nursery::{ArmRefusal, Arming, Due, Nursery, Owner as TakesOver, Periods, Table};
use super::super::wake_up::Doorbell;
use super::{BEGIN, Owner, check, check_within, tick};

const MS: u64 = 1_000_000;
/// A time at which all timers and looks of these models are due.
const LATE: u64 = BEGIN + 10_000 * MS;

/// The slots of the timers that the owner has taken over.
#[derive(Default)]
struct Wheel(Vec<u32>);

impl TakesOver for Wheel {
    fn take_over(&mut self, slot: u32, _: u64, _: u8) -> u64 {
        self.0.push(slot);
        u64::from(slot)
    }

    fn cancel(&mut self, key: u64) {
        let at = self.0.iter().position(|slot| u64::from(*slot) == key);
        self.0.swap_remove(at.expect("a timer is cancelled once"));
    }

    fn reset(&mut self, _: u64, _: u64) {}
}

fn nursery(table: &Table<u32>) -> Nursery<u32> {
    Nursery::new(Periods::new(MS), 0, Arc::clone(table.room()), false)
}

/// Arms a timer that carries `carried`, soon after the beginning, and rings.
fn arm(
    nursery: &Nursery<u32>,
    owner: (&Table<u32>, &Doorbell),
    timer: (u64, u32),
) -> Result<u32, ArmRefusal> {
    arm_at(BEGIN + 1, nursery, owner, timer)
}

fn arm_at(
    now: u64,
    nursery: &Nursery<u32>,
    (table, doorbell): (&Table<u32>, &Doorbell),
    (deadline, carried): (u64, u32),
) -> Result<u32, ArmRefusal> {
    let arming = Arming { deadline, class: 0, carried };
    let armed = nursery.arm(arming, || now).map_err(|refused| refused.0)?;
    if let Some(look_by) = armed.ring {
        table.ring(Tick::new(look_by), doorbell);
    }
    Ok(armed.slot)
}

/// Sleeps until any nursery wants a look before `until`.
fn sleep(owner: &mut Owner, table: &Table<u32>, until: u64) {
    let (known, version) = table.all();
    owner.sleep(Tick::new(until), || {
        let mut known = known.iter().flatten();
        table.version() != version || known.any(|nursery| nursery.look_by() < until)
    });
}

/// Looks at a nursery until there is nothing to do at `now`.
fn look(nursery: &Nursery<u32>, now: u64, wheel: &mut Wheel, carried: &mut Vec<u32>) {
    while nursery.look_by() <= now && nursery.look(now, 64, wheel, carried).1 {}
}

fn look_at_all(table: &Table<u32>, now: u64, wheel: &mut Wheel, carried: &mut Vec<u32>) {
    for nursery in table.all().0.iter().flatten() {
        look(nursery, now, wheel, carried);
    }
}

/// A thread makes its nursery and arms a timer, while the owner falls asleep for longer than the
/// timer has. Also at the end of the range of times.
#[test]
fn owner_that_sleeps_past_the_first_look_at_a_new_nursery_is_woken() {
    for begin in [BEGIN, u64::MAX - 100] {
        check(move || check_first_look(begin));
    }
}

fn check_first_look(begin: u64) {
    let (doorbell, table) = (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::new(8)));
    let mut owner = Owner::new(&doorbell);
    let thread = {
        let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
        thread::spawn(move || {
            let (_, nursery) = table.enter(nursery(&table)).unwrap();
            arm_at(begin + 1, &nursery, (&table, &doorbell), (begin + 5, 7)).unwrap();
        })
    };
    let (mut wheel, mut carried) = (Wheel::default(), Vec::new());
    loop {
        look_at_all(&table, begin + 5, &mut wheel, &mut carried);
        if !wheel.0.is_empty() {
            break;
        }
        sleep(&mut owner, &table, begin + 9);
    }
    thread.join().unwrap();
    assert_eq!((wheel.0.len(), carried.len()), (1, 0));
}

/// A thread arms a timer, and then one that is due earlier, while the owner looks and falls asleep
/// until the first one.
#[test]
fn owner_that_sleeps_past_an_earlier_look_is_woken() {
    check_within(2, || {
        let (doorbell, table) = (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::new(8)));
        let mut owner = Owner::new(&doorbell);
        let (_, nursery) = table.enter(nursery(&table)).unwrap();
        let thread = {
            let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
            let nursery = Arc::clone(&nursery);
            thread::spawn(move || {
                for deadline in [BEGIN + 8, BEGIN + 5] {
                    arm(&nursery, (&table, &doorbell), (deadline, 7)).unwrap();
                }
            })
        };
        let (mut wheel, mut carried) = (Wheel::default(), Vec::new());
        loop {
            // The time stays the same: the alarm of the owner does not go off.
            look(&nursery, BEGIN + 5, &mut wheel, &mut carried);
            if wheel.0.len() == 2 {
                break;
            }
            let until = nursery.look_by().min(BEGIN + 9);
            if until > BEGIN + 5 {
                sleep(&mut owner, &table, until);
            }
        }
        thread.join().unwrap();
    });
}

/// A timer ends on a third thread while the owner takes it over: what it carries comes out once,
/// its slot is freed, and the owner has no timer left.
#[test]
fn timer_that_ends_elsewhere_while_it_is_taken_over_is_freed_once() {
    check(|| {
        let (doorbell, table) = (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::new(8)));
        let mut owner = Owner::new(&doorbell);
        let (_, nursery) = table.enter(nursery(&table)).unwrap();
        let slot = arm(&nursery, (&table, &doorbell), (BEGIN + 50 * MS, 7)).unwrap();
        let other = {
            let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
            let nursery = Arc::clone(&nursery);
            thread::spawn(move || {
                if let Some(look_by) = nursery.end_elsewhere(slot, || BEGIN + 1).unwrap() {
                    table.ring(Tick::new(look_by), &doorbell);
                }
            })
        };
        let (mut wheel, mut carried) = (Wheel::default(), Vec::new());
        while nursery.used().1 > 0 {
            look(&nursery, LATE, &mut wheel, &mut carried);
            if nursery.used().1 > 0 {
                sleep(&mut owner, &table, u64::MAX);
            }
        }
        other.join().unwrap();
        assert_eq!((carried, wheel.0), (vec![7], vec![]));
    });
}

/// Two timers end on two other threads, while the nursery's thread ends those that have: none of
/// them is lost.
#[test]
fn timers_that_end_on_two_threads_are_all_freed() {
    check_within(2, || {
        let (doorbell, table) = (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::new(8)));
        let mut owner = Owner::new(&doorbell);
        let (_, nursery) = table.enter(nursery(&table)).unwrap();
        let others = [1, 2].map(|carried| {
            let slot = arm(&nursery, (&table, &doorbell), (BEGIN + 9_000 * MS, carried)).unwrap();
            let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
            let nursery = Arc::clone(&nursery);
            thread::spawn(move || {
                if let Some(look_by) = nursery.end_elsewhere(slot, || BEGIN + 1).unwrap() {
                    table.ring(Tick::new(look_by), &doorbell);
                }
            })
        });
        let mut carried = Vec::new();
        let (_, ring) = nursery.end_some(|| BEGIN + 1, &mut carried);
        assert_eq!(ring, None, "a young timer is not the owner's");
        let mut wheel = Wheel::default();
        while nursery.used().1 > 0 {
            look(&nursery, LATE, &mut wheel, &mut carried);
            if nursery.used().1 > 0 {
                sleep(&mut owner, &table, u64::MAX);
            }
        }
        for other in others {
            other.join().unwrap();
        }
        carried.sort_unstable();
        assert_eq!((carried, wheel.0), (vec![1, 2], vec![]));
    });
}

/// A thread arms, resets and ends a timer in place while the owner looks and fires.
#[test]
fn timer_that_fires_while_its_thread_ends_it_has_one_outcome() {
    check(|| {
        let (doorbell, table) = (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::new(8)));
        let (_, nursery) = table.enter(nursery(&table)).unwrap();
        let slot = arm(&nursery, (&table, &doorbell), (BEGIN + 5, 7)).unwrap();
        let thread = {
            let nursery = Arc::clone(&nursery);
            thread::spawn(move || {
                let is_reset = nursery.reset(slot, BEGIN + 4, || BEGIN + 1).is_some();
                (is_reset, nursery.end(slot, || BEGIN + 1).0)
            })
        };
        let (mut wheel, mut carried) = (Wheel::default(), Vec::new());
        look(&nursery, BEGIN + 5, &mut wheel, &mut carried);
        let mut fired = Vec::new();
        for slot in wheel.0.clone() {
            if let Due::Fires(carried) = nursery.fire(slot, BEGIN + 5) {
                fired.push(carried);
                wheel.0.clear();
            }
        }
        let (is_reset, ended) = thread.join().unwrap();
        assert_eq!(fired.len() + usize::from(ended.is_some()), 1, "{fired:?} and {ended:?}");
        assert!(is_reset || !fired.is_empty());
        // The owner sees the end of a timer that it has taken over.
        look(&nursery, LATE, &mut wheel, &mut carried);
        assert_eq!((nursery.used(), wheel.0.len()), ((0, 0), 0));
    });
}

/// A thread arms timers while the owner ends: each is refused, or the owner has it.
#[test]
fn timer_armed_while_the_owner_ends_is_the_owners_or_refused() {
    check_within(2, || {
        let (doorbell, table) = (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::new(8)));
        let thread = {
            let (doorbell, table) = (loom::sync::Arc::clone(&doorbell), Arc::clone(&table));
            thread::spawn(move || {
                let Ok((_, nursery)) = table.enter(nursery(&table)) else { return (0, None) };
                let arm = |carried| arm(&nursery, (&table, &doorbell), (BEGIN + 50 * MS, carried));
                let armed = [arm(1), arm(2)].map(|armed| {
                    assert!(matches!(armed, Ok(_) | Err(ArmRefusal::Closed)), "{armed:?}");
                    armed.ok()
                });
                (armed.iter().flatten().count(), armed[0].map(|slot| (slot, nursery)))
            })
        };
        let (mut wheel, mut carried) = (Wheel::default(), Vec::new());
        for nursery in table.close().iter().flatten() {
            while nursery.close(&mut wheel, &mut carried) {}
        }
        let (armed, first) = thread.join().unwrap();
        assert_eq!((wheel.0.len(), carried.len()), (armed, 0));
        if let Some((slot, nursery)) = first {
            // It ends after its owner.
            assert_eq!(nursery.end(slot, || BEGIN).0, Some(1));
        }
    });
}

/// A timer ends on a third thread while the owner ends: what it carries comes out once.
#[test]
fn timer_that_ends_elsewhere_while_the_owner_ends_is_freed_once() {
    check(|| {
        let (doorbell, table) = (loom::sync::Arc::new(Doorbell::new()), Arc::new(Table::new(8)));
        let (_, nursery) = table.enter(nursery(&table)).unwrap();
        let slot = arm(&nursery, (&table, &doorbell), (BEGIN + 50 * MS, 7)).unwrap();
        let other = {
            let nursery = Arc::clone(&nursery);
            thread::spawn(move || {
                let mut carried = Vec::new();
                if nursery.end_elsewhere(slot, || BEGIN + 1).is_err() {
                    while nursery.end_some(|| BEGIN, &mut carried).0 {}
                }
                carried
            })
        };
        let (mut wheel, mut carried) = (Wheel::default(), Vec::new());
        while nursery.close(&mut wheel, &mut carried) {}
        carried.extend(other.join().unwrap());
        assert_eq!((carried, nursery.used()), (vec![7], (0, 0)));
    });
}

/// A thread ends while the owner falls asleep: the owner finds the nursery over in its next turn.
#[test]
fn nursery_of_a_thread_that_has_ended_is_over() {
    check(|| {
        let table = Arc::new(Table::new(8));
        let (_, nursery) = table.enter(nursery(&table)).unwrap();
        let thread = {
            let nursery = Arc::clone(&nursery);
            let doorbell = Doorbell::new();
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let slot = arm(&nursery, (&table, &doorbell), (BEGIN + 50 * MS, 7)).unwrap();
                let _carried = nursery.end(slot, || BEGIN + 1);
                nursery.leave();
            })
        };
        let (mut wheel, mut carried) = (Wheel::default(), Vec::new());
        look(&nursery, LATE, &mut wheel, &mut carried);
        let is_over = nursery.settle(|_, _, _| {}).1;
        thread.join().unwrap();
        let taken_over = u64::from(!wheel.0.is_empty());
        if !is_over {
            assert!(nursery.look_by() <= LATE, "no turn looks at it");
            look(&nursery, LATE, &mut wheel, &mut carried);
            assert!(nursery.settle(|_, _, _| {}).1, "it is over");
        }
        assert_eq!(table.room().free() + taken_over, 8, "its credit is back");
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
