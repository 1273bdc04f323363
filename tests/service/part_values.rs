//! Parts whose values have no timers of their own: what they count, publish and wake.

use corewheel::part::{Gauges, Part, PartHandle, Wants};

use super::*;

/// Leases that all last equally long. One timer, of the first of them, stands for all.
struct Leases {
    shard: PartHandle,
    /// When each was taken, first come first.
    taken: RefCell<Vec<Instant>>,
    due: Cell<u64>,
}

impl Leases {
    fn make(timers: &Timers<()>) -> Rc<Self> {
        timers.add_part(|shard| Self { shard, taken: RefCell::default(), due: Cell::new(0) })
    }

    fn take(&self) {
        let _compound = self.shard.compound();
        if self.taken.borrow().is_empty() {
            self.shard.schedule_uncounted(ms(10), 0).unwrap();
        }
        self.taken.borrow_mut().push(self.shard.now());
        self.shard.count(|counts| {
            counts.scheduled += 1;
            counts.pending += 1;
        });
        self.note();
    }

    fn note(&self) {
        self.shard.set_oldest(self.taken.borrow().first().copied());
        self.shard.publish();
    }
}

impl Part for Leases {
    fn takes_turns(&self) -> bool {
        true
    }

    fn wants(&self) -> Wants {
        if self.due.get() > 0 { Wants::Delivery } else { Wants::Nothing }
    }

    fn expired(self: Rc<Self>, _index: u32) {
        self.due.set(self.taken.borrow().len() as u64);
    }

    fn deliver(self: Rc<Self>, now: Duration) {
        let taken = self.taken.borrow_mut().remove(0);
        self.due.set(self.due.get() - 1);
        self.shard.begin_delivery(self.shard.instant_after(now) - (taken + ms(10)));
        self.note();
    }

    fn publish(&self, gauges: &mut Gauges<'_>) {
        gauges.set("leases", self.taken.borrow().len() as u64);
    }
}

/// A shard, and a part without a class.
fn lab() -> (Lab<()>, Rc<Leases>) {
    let lab = Lab::new(builder(1).class(LEASE));
    let leases = Leases::make(lab.timers());
    (lab, leases)
}

/// A shard, and a part of the class.
fn lab_of_class() -> (Lab<()>, Rc<Leases>) {
    let lab: Lab<()> = Lab::new(builder(1).class(LEASE));
    let leases = Leases::make(&lab.timers().of_class(LEASE).unwrap());
    (lab, leases)
}

fn class(lab: &Lab<()>) -> ClassStats {
    lab.service.stats().classes().swap_remove(0)
}

fn gauge(lab: &Lab<()>) -> Option<u64> {
    lab.service.stats().shards[0].gauges.get("leases").copied()
}

#[test]
fn values_of_a_part_count_for_its_class_and_their_timer_does_not() {
    let (mut lab, leases) = lab_of_class();
    assert!(leases.shard.has_class());
    (0..3).for_each(|_| leases.take());
    lab.settle();
    let counts = class(&lab);
    assert_eq!((counts.scheduled, counts.pending, counts.fired), (3, 3, 0));
    assert_eq!(lab.counts().scheduled_local, 1, "the timer is one of the shard");
    lab.advance(ms(25));
    let counts = class(&lab);
    assert_eq!((counts.scheduled, counts.pending, counts.fired), (3, 0, 3));
    assert_eq!((counts.measured, counts.late), (3, 3));
    let late = counts.lateness_max_ns;
    assert!((ms(14).as_nanos()..=ms(15).as_nanos()).contains(&u128::from(late)), "{late}");
}

#[test]
fn oldest_value_of_a_part_is_as_old_as_the_part_says() {
    let (mut lab, leases) = lab_of_class();
    assert_eq!(class(&lab).oldest, None);
    leases.take();
    lab.advance(ms(4));
    leases.take();
    lab.advance(ms(3));
    assert_eq!(class(&lab).oldest, Some(ms(7)));
    lab.advance(ms(20));
    assert_eq!(class(&lab).oldest, None);
    leases.take();
    assert_eq!(class(&lab).oldest, Some(ms(0)));
    drop(leases);
    assert_eq!(class(&lab).oldest, None, "the part has left with its value");
}

#[test]
fn part_without_a_class_counts_for_none() {
    let (mut lab, leases) = lab();
    assert!(!leases.shard.has_class());
    leases.take();
    lab.advance(ms(30));
    let counts = class(&lab);
    assert_eq!((counts.scheduled, counts.fired, counts.measured), (0, 0, 0));
    assert_eq!((leases.taken.borrow().len(), gauge(&lab)), (0, Some(0)));
}

#[test]
fn gauge_that_changes_while_the_shard_sleeps_is_published_on_demand() {
    let (mut lab, leases) = lab();
    let (alarm, waker) = Alarm::new();
    leases.take();
    let _until = lab.fall_asleep(&waker);
    leases.taken.borrow_mut().push(lab.timers().now());
    assert_eq!(gauge(&lab), Some(1));
    leases.shard.publish();
    assert_eq!((gauge(&lab), alarm.count()), (Some(2), 0), "no turn was needed");
}

#[test]
fn driver_is_woken_if_it_sleeps_past_the_time_that_a_part_names() {
    let (mut lab, leases) = lab();
    let (alarm, waker) = Alarm::new();
    lab.timers().schedule(ms(20), ()).unwrap();
    // By the beginning of a window of the wheel, the driver sleeps for less than 20 ms.
    let Turn::Next(until) = lab.fall_asleep(&waker) else { panic!("a timer is pending") };
    leases.shard.wake_past(until + ms(10));
    assert_eq!(alarm.count(), 0);
    leases.shard.wake_past(until.checked_sub(ms(1)).unwrap());
    assert_eq!(alarm.count(), 1);
    let _until = lab.fall_asleep(&waker);
    leases.shard.wake();
    assert_eq!(alarm.count(), 2);
}

#[test]
fn compound_command_wakes_the_driver_once_when_it_is_complete() {
    let (mut lab, leases) = lab();
    let (alarm, waker) = Alarm::new();
    let _until = lab.fall_asleep(&waker);
    let compound = leases.shard.compound();
    for delay in [ms(5), ms(3)] {
        leases.shard.schedule(delay, 0).unwrap();
    }
    assert_eq!(alarm.count(), 0);
    drop(compound);
    assert_eq!(alarm.count(), 1);
}

#[test]
fn deadline_of_a_timer_of_a_part_is_known_while_it_is_pending() {
    let (mut lab, leases) = lab();
    let due = leases.shard.deadline(ms(5));
    let timer = leases.shard.schedule(due, 0).unwrap();
    assert_eq!(leases.shard.deadline_of(timer), Some(due));
    let later = leases.shard.deadline(FAR);
    assert!(leases.shard.reset(timer, later));
    assert_eq!(leases.shard.deadline_of(timer), Some(later));
    assert!(leases.shard.cancel(timer));
    assert_eq!(leases.shard.deadline_of(timer), None);
    lab.settle();
}

#[test]
fn part_knows_the_scale_and_that_its_shard_is_closed() {
    let (mut lab, leases) = lab();
    assert_eq!(leases.shard.scale(), Scale::ONE);
    let half = Scale::new(0.5).unwrap();
    lab.timers().set_scale(half);
    lab.settle();
    assert_eq!(leases.shard.scale(), half);
    let _report = lab.end(ShutdownPolicy::Drop);
    assert!(leases.shard.is_closed());
}

#[test]
fn values_that_a_part_drops_may_panic_one_by_one() {
    let (mut lab, leases) = lab();
    let dropped = Rc::new(Cell::new(0));
    let panics = || {
        let dropped = Rc::clone(&dropped);
        OnDrop(move || {
            dropped.set(dropped.get() + 1);
            panic!("the test asks for this panic");
        })
    };
    leases.shard.drop_each([(); 3].map(|()| panics()));
    assert!(!leases.shard.contain(|| drop(panics())));
    lab.settle();
    assert_eq!((dropped.get(), lab.counts().panicked), (4, 4));
}

#[test]
fn wheel_of_a_part_counts_in_the_ticks_of_its_service() {
    let (lab, leases) = lab();
    let (shard, now) = (&leases.shard, lab.clock.now());
    let soon = shard.deadline(ms(5));
    let mut wheel = corewheel_shard::Shard::new(corewheel_shard::ShardConfig::default()).unwrap();
    let key = wheel.schedule(soon.into(), "lease").unwrap();
    assert_eq!(wheel.deadline(key).map(Deadline::from), Some(soon));
    assert_eq!(shard.instant_of(soon), now + ms(5));
    let budget = corewheel_shard::Budget { expired_max: 1, work_max: u32::MAX };
    lab.clock.advance(Duration::from_nanos(4_999_999));
    wheel.advance(shard.tick(), budget);
    assert!(wheel.pop_expired().is_none(), "the tick has not begun");
    lab.clock.advance(Duration::from_nanos(1));
    wheel.advance(shard.tick(), budget);
    assert_eq!(wheel.pop_expired().map(|due| due.payload), Some("lease"));
    assert!(shard.instant_of(shard.deadline(Duration::MAX)) > now + FAR);
}

#[test]
fn refusal_of_a_kind_has_the_kind_and_the_value() {
    let refused = RefusedKind::Closed.of((7, "lease")).map(|(_, lease)| lease);
    assert_eq!(refused, Refused::Closed("lease"));
    assert_eq!(RefusedKind::Full.of(1), Refused::Full(1));
}
