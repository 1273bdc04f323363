//! Parts of a shard that are made by the public interface.

use std::rc::Weak;

use corewheel::part::{Gauges, Part, PartHandle, PartTimer, Wants};

use super::*;

/// What a shard has called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    TurnBegins,
    Wants,
    Postpones,
    Delivers,
    Expires(u32),
    Receives(u32),
    Closing,
    Closed { is_dead: bool },
}

impl Call {
    /// Whether the shard asks the part something, which it may do in each turn.
    fn asks(self) -> bool {
        matches!(self, Self::Wants | Self::Postpones)
    }
}

type Run = Box<dyn Fn(Call)>;

/// Notes each call, and runs code of the test in it.
struct Notes {
    shard: PartHandle,
    takes_turns: bool,
    calls: RefCell<Vec<Call>>,
    wants: Cell<Wants>,
    /// How many items there are to deliver.
    items: Cell<u32>,
    postponed: Cell<Option<Deadline>>,
    gauge: Cell<u64>,
    run: RefCell<Option<Run>>,
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
            run: RefCell::default(),
        })
    }

    fn note(&self, call: Call) {
        self.calls.borrow_mut().push(call);
        if let Some(run) = &*self.run.borrow() {
            run(call);
        }
    }

    /// From now on runs code in each call.
    fn run_in_calls(&self, run: impl Fn(Call) + 'static) {
        *self.run.borrow_mut() = Some(Box::new(run));
    }

    /// The calls but those that come in each turn.
    fn take(&self) -> Vec<Call> {
        let mut calls = self.calls.take();
        calls.retain(|call| *call != Call::TurnBegins && !call.asks());
        calls
    }

    /// Receives a message.
    fn receive(self: Rc<Self>, number: u32) {
        self.note(Call::Receives(number));
    }

    fn schedule(&self, delay: Duration, index: u32) -> PartTimer {
        self.shard.schedule(delay, index).unwrap()
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
        self.note(Call::Wants);
        if self.items.get() > 0 { Wants::Delivery } else { self.wants.get() }
    }

    fn deliver(self: Rc<Self>, _now: Duration) {
        self.items.set(self.items.get() - 1);
        self.note(Call::Delivers);
    }

    fn postpone(&self, _index: u32) -> Option<Deadline> {
        self.note(Call::Postpones);
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

/// A shard, and a part of it.
fn lab(takes_turns: bool) -> (Lab<()>, Rc<Notes>) {
    let lab = Lab::new(builder(1));
    let part = Notes::make(lab.timers(), takes_turns);
    (lab, part)
}

fn gauge(lab: &Lab<()>) -> Option<u64> {
    lab.service.stats().shards[0].gauges.get("noted").copied()
}

#[test]
fn timers_of_a_part_expire_in_order_unless_they_are_cancelled_or_reset() {
    let (mut lab, part) = lab(false);
    let now = lab.clock.now();
    let [first, second, third] = [3, 5, 7].map(|delay| part.schedule(ms(delay), delay as u32));
    assert!(part.shard.cancel(second) && !part.shard.cancel(second));
    assert!(part.shard.reset(first, ms(9)));
    let due = part.shard.deadline_of(third).map(|at| part.shard.instant_of(at));
    assert!(due.is_some_and(|due| due >= now + ms(7)));
    lab.advance(ms(8));
    assert_eq!(part.take(), [Call::Expires(7)]);
    assert!(!part.shard.reset(third, ms(1)) && part.shard.deadline_of(third).is_none());
    lab.advance(ms(2));
    assert_eq!(part.take(), [Call::Expires(3)]);
}

#[test]
fn timer_of_a_part_is_postponed_while_the_shard_is_open() {
    let (mut lab, part) = lab(true);
    part.schedule(ms(3), 1);
    part.postponed.set(Some(part.shard.deadline(ms(10))));
    lab.advance(ms(4));
    assert_eq!(part.take(), []);
    lab.advance(ms(7));
    assert_eq!(part.take(), [Call::Expires(1)]);
    part.schedule(ms(3), 2);
    part.postponed.set(Some(part.shard.deadline(FAR)));
    let _report = lab.end(ShutdownPolicy::Fire);
    assert_eq!(part.take()[..2], [Call::Closing, Call::Expires(2)]);
}

#[test]
fn timers_of_a_part_that_has_left_call_no_part_that_comes_later() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let left = Notes::make(lab.timers(), false);
    for index in 0..3 {
        left.schedule(ms(5), index);
    }
    drop(left);
    assert_eq!(lab.timers().len(), 3, "a part that leaves has to cancel its timers");
    let later: Vec<_> = (0..4).map(|_| Notes::make(lab.timers(), false)).collect();
    later[3].schedule(ms(5), 9);
    lab.advance(ms(6));
    let called: Vec<_> = later.iter().flat_map(|part| part.take()).collect();
    assert_eq!((called, lab.timers().len()), (vec![Call::Expires(9)], 0));
}

#[test]
fn messages_reach_a_part_in_order_and_come_back_after_the_end() {
    let (mut lab, part) = lab(false);
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
    let (mut lab, part) = lab(false);
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
    let (_lab, part) = lab(false);
    let _sender = part.shard.sender::<Other>();
}

#[test]
fn turn_is_taken_when_a_part_wants_one_and_no_timer_is_pending() {
    let (mut lab, part) = lab(true);
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
        part.schedule(ms(1), index);
    }
    part.items.set(4);
    lab.clock.advance(ms(2));
    assert_eq!(lab.turn(), Turn::More);
    let (timer, item) = (Call::Expires, Call::Delivers);
    assert_eq!(part.take(), [item, timer(0), item, timer(1), item]);
    assert_eq!(lab.turn(), Turn::Idle);
    assert_eq!(part.take(), [timer(2), item, timer(3)]);
}

#[test]
fn driver_does_not_fall_asleep_beside_the_work_of_a_part() {
    let (mut lab, part) = lab(true);
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
    part.run_in_calls(|call| assert!(call.asks(), "the test asks for this panic"));
    part.schedule(ms(2), 1);
    calm.schedule(ms(2), 2);
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
    let (mut lab, part) = lab(false);
    part.schedule(ms(5), 1);
    drop(lab.shards.remove(0));
    assert_eq!(part.take(), [Call::Closed { is_dead: true }]);
    assert!(part.shard.is_closed());
}

#[test]
fn shared_part_is_made_once_and_lives_until_its_shard_ends() {
    struct Counts {
        _guard: Guard,
    }
    impl Part for Counts {}
    let (guard, dropped) = Guard::new();
    let mut lab: Lab<()> = Lab::new(builder(1));
    let make = |_| Counts { _guard: guard.clone() };
    let first = lab.timers().shared_part(make);
    assert!(Rc::ptr_eq(&first, &lab.timers().shared_part(make)));
    drop(first);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    let _report = lab.end(ShutdownPolicy::Drop);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn part_may_use_its_shard_and_make_parts_in_each_call() {
    let (mut lab, part) = lab(true);
    let (timers, made) = (lab.timers().clone(), Rc::new(RefCell::new(Vec::new())));
    let (shard, known) = (Rc::downgrade(&part), Rc::clone(&made));
    part.run_in_calls(move |call| {
        let Some(part) = shard.upgrade().filter(|_| !call.asks()) else { return };
        let timer = part.schedule(FAR, 1);
        assert!(part.shard.reset(timer, FAR) && part.shard.cancel(timer));
        known.borrow_mut().push(Notes::make(&timers, true));
        part.shard.wake();
    });
    part.items.set(1);
    part.schedule(ms(1), 0);
    lab.clock.advance(ms(2));
    let _next = lab.turn();
    assert_eq!((made.take().len(), lab.counts().panicked), (3, 0));
    // The part holds the timers, and the timers hold the shard.
    part.run.take();
}

#[test]
fn parts_are_asked_a_few_times_a_turn_however_many_timers_are_delivered() {
    for panics in [false, true] {
        let (mut lab, part) = lab(true);
        part.run_in_calls(move |call| assert!(!panics || call != Call::Wants, "on purpose"));
        lab.settle();
        for _ in 0..100 {
            lab.timers().schedule(ms(3), ()).unwrap();
        }
        lab.settle();
        lab.clock.advance(ms(4));
        part.calls.take();
        let _next = lab.turn();
        assert_eq!(lab.timers().len(), 0);
        let asked = part.calls.take().into_iter().filter(|call| *call == Call::Wants).count();
        assert!((1..=6).contains(&asked), "{asked}, {panics}");
    }
}

/// A part whose timer calls it in 3 ms: the call drops its last owner. Its drop schedules a timer.
fn dropped_in_a_call(timers: &Timers<()>) -> Weak<Notes> {
    let part = Notes::make(timers, true);
    part.schedule(ms(3), 1);
    let (dropped, owner) = (Rc::downgrade(&part), Cell::new(Some(Rc::clone(&part))));
    let timers = timers.clone();
    let at_drop = OnDrop(move || {
        let _full = timers.schedule(FAR, ());
    });
    part.run_in_calls(move |call| {
        let _kept = &at_drop;
        if call == Call::Postpones {
            assert!(owner.take().is_some());
        }
    });
    dropped
}

#[test]
fn drop_of_a_part_in_a_turn_takes_no_room_of_a_timer_whose_part_is_called_next() {
    let mut lab: Lab<()> = Lab::new(builder(1).capacity(2));
    let refills = Notes::make(lab.timers(), false);
    let part = dropped_in_a_call(lab.timers());
    // Its timer comes first and is postponed, and its drop takes any slot that is free then.
    let postpones = part.upgrade().expect("it owns itself");
    postpones.postponed.set(Some(postpones.shard.deadline(FAR)));
    drop(postpones);
    // The other part takes the room of its own timer again, which no code took before its call.
    refills.schedule(ms(3), 2);
    let (shard, has_room) = (Rc::downgrade(&refills), Rc::new(Cell::new(None)));
    let found = Rc::clone(&has_room);
    refills.run_in_calls(move |call| {
        if let (Call::Expires(index), Some(part)) = (call, shard.upgrade()) {
            found.set(Some(part.shard.schedule(FAR, index).is_ok()));
        }
    });
    lab.advance(ms(4));
    assert_eq!(has_room.get(), Some(true));
    assert!(part.upgrade().is_none());
}

#[test]
fn part_that_drops_its_last_owner_in_a_call_is_dropped_when_nothing_is_borrowed() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let part = dropped_in_a_call(lab.timers());
    lab.advance(ms(4));
    assert!(part.upgrade().is_none());
    assert_eq!(lab.timers().len(), 1, "its drop has scheduled a timer");
}
