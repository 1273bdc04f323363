//! Parts of a shard that are made by the public interface.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use corewheel::attach::Turn;
use corewheel::part::{Gauges, Part, PartHandle, PartTimer, Wants};
use corewheel::settings::TurnBudget;
use corewheel::{Deadline, Refused, RefusedKind, ShutdownPolicy, Timers};

use corewheel_test_support::{FAR, Lab, SHARD, builder, check_law, ms};

/// What a shard has called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    TurnBegins,
    Delivers,
    Expires(u32),
    Receives(u32),
    Closing,
    Closed { is_dead: bool },
}

/// Notes each call. Panics in the calls of one kind if it is told so.
struct Notes {
    shard: PartHandle,
    takes_turns: bool,
    calls: RefCell<Vec<Call>>,
    wants: Cell<Wants>,
    /// How many items there are to deliver.
    items: Cell<u32>,
    postponed: Cell<Option<Deadline>>,
    gauge: Cell<u64>,
    panics: Cell<bool>,
}

impl Notes {
    fn make(timers: &Timers<()>, takes_turns: bool) -> Rc<Self> {
        timers.add_part(|shard| Self {
            shard,
            takes_turns,
            calls: RefCell::default(),
            wants: Cell::default(),
            items: Cell::new(0),
            postponed: Cell::new(None),
            gauge: Cell::new(0),
            panics: Cell::new(false),
        })
    }

    fn note(&self, call: Call) {
        self.calls.borrow_mut().push(call);
        assert!(!self.panics.get(), "the test asks for this panic");
    }

    /// The calls but those at the beginning of a turn.
    fn take(&self) -> Vec<Call> {
        self.calls.take().into_iter().filter(|call| *call != Call::TurnBegins).collect()
    }

    /// Receives a message.
    fn receive(self: Rc<Self>, number: u32) {
        self.note(Call::Receives(number));
    }

    fn schedule(&self, delay: u64, index: u32) -> PartTimer {
        self.shard.schedule(ms(delay), index).unwrap()
    }
}

impl Part for Notes {
    fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    fn turn_begins(&self, _now: Duration) {
        self.note(Call::TurnBegins);
    }

    fn wants(&self) -> Wants {
        if self.items.get() > 0 { Wants::Delivery } else { self.wants.get() }
    }

    fn deliver(self: Rc<Self>, _now: Duration) {
        self.items.set(self.items.get() - 1);
        self.note(Call::Delivers);
    }

    fn postpone(&self, _index: u32) -> Option<Deadline> {
        self.postponed.take()
    }

    fn expired(self: Rc<Self>, index: u32) {
        self.note(Call::Expires(index));
    }

    fn publish(&self, gauges: &mut Gauges<'_>) {
        gauges.set("noted", self.gauge.get());
    }

    fn closing(&self) {
        self.note(Call::Closing);
    }

    fn closed(&self, is_dead: bool) {
        self.note(Call::Closed { is_dead });
    }
}

fn gauge(lab: &Lab<()>) -> Option<u64> {
    lab.service.stats().shards[0].gauges.get("noted").copied()
}

#[test]
fn timers_of_a_part_expire_in_order_unless_they_are_cancelled_or_reset() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), false);
    let now = lab.clock.now();
    let [first, second, third] = [3, 5, 7].map(|delay| part.schedule(delay, delay as u32));
    assert!(part.shard.cancel(second) && !part.shard.cancel(second));
    assert!(part.shard.reset(first, ms(9)));
    assert!(
        part.shard.deadline_of(third).is_some_and(|at| part.shard.instant_of(at) >= now + ms(7))
    );
    lab.advance(ms(8));
    assert_eq!(part.take(), [Call::Expires(7)]);
    assert!(!part.shard.reset(third, ms(1)) && part.shard.deadline_of(third).is_none());
    lab.advance(ms(2));
    assert_eq!(part.take(), [Call::Expires(3)]);
    check_law(&lab.counts());
}

#[test]
fn timer_of_a_part_is_postponed_while_the_shard_is_open() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), true);
    part.schedule(3, 1);
    part.postponed.set(Some(part.shard.deadline(ms(10))));
    lab.advance(ms(4));
    assert_eq!(part.take(), []);
    lab.advance(ms(7));
    assert_eq!(part.take(), [Call::Expires(1)]);
    part.schedule(3, 2);
    part.postponed.set(Some(part.shard.deadline(FAR)));
    let _report = lab.end(ShutdownPolicy::Fire);
    assert_eq!(part.take()[..2], [Call::Closing, Call::Expires(2)]);
}

#[test]
fn timers_of_a_part_that_has_left_call_no_part_that_comes_later() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let left = Notes::make(lab.timers(), false);
    for index in 0..3 {
        left.schedule(5, index);
    }
    drop(left);
    assert_eq!(lab.timers().len(), 3, "a part that leaves has to cancel its timers");
    let later: Vec<_> = (0..4).map(|_| Notes::make(lab.timers(), false)).collect();
    later[3].schedule(5, 9);
    lab.advance(ms(6));
    let called: Vec<_> = later.iter().flat_map(|part| part.take()).collect();
    assert_eq!((called, lab.timers().len()), (vec![Call::Expires(9)], 0));
    check_law(&lab.counts());
}

#[test]
fn messages_reach_a_part_in_order_and_come_back_after_the_end() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), false);
    let sender = part.shard.sender::<Notes>();
    assert_eq!(sender.shard_id(), SHARD);
    let send = move |numbers: &[u32]| {
        numbers.iter().all(|number| sender.send(*number, Notes::receive).is_ok())
    };
    assert!(thread::spawn(move || send(&[1, 2, 3])).join().unwrap());
    assert_eq!(part.take(), [], "no turn has come");
    lab.settle();
    assert_eq!(part.take(), [1, 2, 3].map(Call::Receives));
    assert!(sender.send(4, Notes::receive).is_ok());
    lab.settle();
    assert_eq!(part.take(), [Call::Receives(4)]);
    let _report = lab.end(ShutdownPolicy::Drop);
    assert_eq!(part.take(), [Call::Closing, Call::Closed { is_dead: false }]);
    assert_eq!(sender.send(5, Notes::receive), Err(Refused::Closed(5)));
    assert_eq!(part.shard.schedule(ms(1), 0), Err(RefusedKind::Closed));
}

#[test]
fn message_to_a_part_that_has_left_reaches_no_other_part() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), false);
    let sender = part.shard.sender::<Notes>();
    drop(part);
    let other = Notes::make(lab.timers(), false);
    assert!(thread::spawn(move || sender.send(1, Notes::receive).is_ok()).join().unwrap());
    lab.settle();
    assert_eq!(other.take(), []);
}

#[test]
#[should_panic(expected = "a sender names the type of its part")]
fn sender_of_another_type_than_the_part_is_refused() {
    struct Other;
    impl Part for Other {}
    let lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), false);
    let _sender = part.shard.sender::<Other>();
}

#[test]
fn turn_is_taken_when_a_part_wants_one_and_no_timer_is_pending() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), true);
    assert_eq!(lab.turn(), Turn::Idle);
    let by = lab.timers().now() + ms(5);
    part.wants.set(Wants::TurnBy(part.shard.deadline(by)));
    assert!(matches!(lab.turn(), Turn::Next(at) if at >= by && at < by + ms(1)));
    part.wants.set(Wants::NextTurn);
    assert_eq!(lab.turn(), Turn::More);
    part.wants.set(Wants::Nothing);
    assert_eq!(lab.turn(), Turn::Idle);
}

#[test]
fn deliveries_of_a_part_and_of_timers_alternate_within_the_budget() {
    let budget = TurnBudget { expired_max: 5, ..TurnBudget::default() };
    let mut lab: Lab<()> = Lab::new(builder(1).budget(budget));
    let part = Notes::make(lab.timers(), true);
    for index in 0..4 {
        part.schedule(1, index);
    }
    part.items.set(4);
    lab.clock.advance(ms(2));
    assert_eq!(lab.turn(), Turn::More);
    let (timer, item) = (Call::Expires, Call::Delivers);
    assert_eq!(part.take(), [item, timer(0), item, timer(1), item]);
    assert_eq!(lab.turn(), Turn::Idle);
    assert_eq!(part.take(), [timer(2), item, timer(3)]);
    check_law(&lab.counts());
}

#[test]
fn driver_does_not_fall_asleep_beside_the_work_of_a_part() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), true);
    let idle = lab.turn();
    assert_eq!(idle, Turn::Idle);
    part.items.set(1);
    assert_eq!(lab.shards[0].prepare_to_sleep(idle, Waker::noop()), Turn::More);
    lab.settle();
    assert_eq!(part.take(), [Call::Delivers]);
}

#[test]
fn gauges_of_parts_add_up_until_a_part_leaves() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    assert_eq!(gauge(&lab), None);
    let [one, two] = [3, 4].map(|value| {
        let part = Notes::make(lab.timers(), true);
        part.gauge.set(value);
        part
    });
    lab.settle();
    assert_eq!(gauge(&lab), Some(7));
    drop(one);
    lab.settle();
    assert_eq!(gauge(&lab), Some(4));
    two.gauge.set(0);
    lab.settle();
    assert_eq!(gauge(&lab), Some(0));
    drop(two);
    lab.settle();
    assert_eq!(gauge(&lab), None);
}

#[test]
fn panic_of_a_part_ends_only_that_call() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let (part, calm) = (Notes::make(lab.timers(), true), Notes::make(lab.timers(), true));
    part.panics.set(true);
    part.schedule(2, 1);
    calm.schedule(2, 2);
    let _ = part.shard.sender::<Notes>().send(3, Notes::receive);
    part.items.set(1);
    lab.advance(ms(3));
    assert_eq!(part.take(), [Call::Receives(3), Call::Delivers, Call::Expires(1)]);
    assert_eq!(calm.take(), [Call::Expires(2)]);
    let _report = lab.end(ShutdownPolicy::Drop);
    assert_eq!(part.take(), [Call::Closing, Call::Closed { is_dead: false }]);
    assert_eq!(calm.take(), [Call::Closing, Call::Closed { is_dead: false }]);
}

#[test]
fn part_is_told_when_its_shard_dies() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), false);
    part.schedule(5, 1);
    drop(lab.shards.remove(0));
    assert_eq!(part.take(), [Call::Closed { is_dead: true }]);
    assert!(part.shard.is_closed());
}

#[test]
fn shared_part_is_made_once_and_lives_until_its_shard_ends() {
    struct Counts(Rc<Cell<u32>>);
    impl Part for Counts {}
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Rc::new(Cell::new(0));
    let mut lab: Lab<()> = Lab::new(builder(1));
    let make = |_| Counts(Rc::clone(&dropped));
    let first = lab.timers().shared_part(make);
    assert!(Rc::ptr_eq(&first, &lab.timers().shared_part(make)));
    drop(first);
    assert_eq!(dropped.get(), 0);
    let _report = lab.end(ShutdownPolicy::Drop);
    assert_eq!(dropped.get(), 1);
}

#[test]
fn part_may_use_its_shard_and_make_parts_in_each_call() {
    /// Schedules a timer, and makes a part, in each call.
    struct Uses {
        shard: PartHandle,
        timers: Timers<()>,
        made: RefCell<Vec<Rc<Notes>>>,
        items: Cell<u32>,
    }
    impl Uses {
        fn act(&self) {
            let timer = self.shard.schedule(FAR, 1).unwrap();
            assert!(self.shard.reset(timer, FAR) && self.shard.cancel(timer));
            self.made.borrow_mut().push(Notes::make(&self.timers, true));
            self.shard.wake();
        }
    }
    impl Part for Uses {
        fn takes_turns(&self) -> bool {
            true
        }
        fn turn_begins(&self, _now: Duration) {
            self.act();
        }
        fn wants(&self) -> Wants {
            if self.items.get() > 0 { Wants::Delivery } else { Wants::Nothing }
        }
        fn deliver(self: Rc<Self>, _now: Duration) {
            self.items.set(self.items.get() - 1);
            self.act();
        }
        fn expired(self: Rc<Self>, _index: u32) {
            self.act();
        }
    }
    let mut lab: Lab<()> = Lab::new(builder(1));
    let timers = lab.timers().clone();
    let part = lab.timers().add_part(|shard| {
        let (made, items) = (RefCell::default(), Cell::new(1));
        Uses { shard, timers, made, items }
    });
    part.shard.schedule(ms(1), 0).unwrap();
    lab.clock.advance(ms(2));
    let _next = lab.turn();
    assert_eq!(part.made.borrow().len(), 3);
    assert_eq!(lab.counts().panicked, 0);
    part.made.take();
    // The part holds the timers, and the timers hold the shard.
    drop(part);
    check_law(&lab.counts());
}

/// Takes the room of its own timer again, which no code took before its call.
struct Refills {
    shard: PartHandle,
    has_room: Cell<Option<bool>>,
}

impl Part for Refills {
    fn expired(self: Rc<Self>, index: u32) {
        self.has_room.set(Some(self.shard.schedule(FAR, index).is_ok()));
    }
}

/// Counts how often it is asked, and does to its shard what it is told.
struct Asked {
    shard: PartHandle,
    timers: Timers<()>,
    count: Cell<u32>,
    panics: bool,
    postponed: Cell<Option<Deadline>>,
    /// The last owner, which `postpone` drops.
    owner: Rc<RefCell<Option<Rc<Self>>>>,
}

impl Asked {
    fn make(timers: &Timers<()>, panics: bool) -> Rc<Self> {
        let (count, postponed, owner) = (Cell::new(0), Cell::new(None), Rc::default());
        let timers = timers.clone();
        let make = |shard| Self { shard, timers: timers.clone(), count, panics, postponed, owner };
        timers.add_part(make)
    }
}

impl Part for Asked {
    fn takes_turns(&self) -> bool {
        true
    }

    fn wants(&self) -> Wants {
        self.count.set(self.count.get() + 1);
        assert!(!self.panics, "the test asks for this panic");
        Wants::Nothing
    }

    fn postpone(&self, _index: u32) -> Option<Deadline> {
        let owner = self.owner.take();
        assert!(owner.is_some());
        self.postponed.take()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !thread::panicking() && !self.panics && self.count.get() < 1_000 {
            let _full = self.timers.schedule(FAR, ());
        }
    }
}

#[test]
fn parts_are_asked_a_few_times_a_turn_however_many_timers_are_delivered() {
    for panics in [false, true] {
        let mut lab: Lab<()> = Lab::new(builder(1));
        let part = Asked::make(lab.timers(), panics);
        lab.settle();
        for _ in 0..100 {
            lab.timers().schedule(ms(3), ()).unwrap();
        }
        lab.settle();
        lab.clock.advance(ms(4));
        part.count.set(0);
        let _next = lab.turn();
        assert_eq!(lab.timers().len(), 0);
        assert!((1..=6).contains(&part.count.get()), "{}, {panics}", part.count.get());
        part.count.set(1_000);
    }
}

#[test]
fn drop_of_a_part_in_a_turn_takes_no_room_of_a_timer_whose_part_is_called_next() {
    let mut lab: Lab<()> = Lab::new(builder(1).capacity(2));
    let refills = lab.timers().add_part(|shard| Refills { shard, has_room: Cell::new(None) });
    let part = Asked::make(lab.timers(), false);
    // Its timer comes first and is postponed, and its drop takes any slot that is free then.
    part.shard.schedule(ms(3), 1).unwrap();
    part.postponed.set(Some(part.shard.deadline(FAR)));
    refills.shard.schedule(ms(3), 2).unwrap();
    let owner = Rc::clone(&part.owner);
    *owner.borrow_mut() = Some(part);
    lab.advance(ms(4));
    assert_eq!(refills.has_room.get(), Some(true));
    assert!(owner.borrow().is_none());
}

#[test]
fn part_that_drops_its_last_owner_in_a_call_is_dropped_when_nothing_is_borrowed() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = Asked::make(lab.timers(), false);
    part.shard.schedule(ms(3), 1).unwrap();
    let owner = Rc::clone(&part.owner);
    *owner.borrow_mut() = Some(part);
    lab.advance(ms(4));
    assert!(owner.borrow().is_none());
    assert_eq!(lab.timers().len(), 1, "its drop has scheduled a timer");
}
