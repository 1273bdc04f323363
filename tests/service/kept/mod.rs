//! Values that are kept on a shard, on a clock that the test moves: order, room, wake-ups, and the
//! life of a value.

mod ends;
mod hosts;

use super::*;

type Jobs = KeyedTimers<u32, u32>;

/// A value that is kept on the first shard.
fn kept<C: 'static>(
    lab: &mut Lab<u32>,
    make: impl FnOnce(&Timers<u32>) -> C + Send + 'static,
) -> Kept<C> {
    let sent = lab.service.handle().on(SHARD).keep(make).unwrap();
    lab.reply(sent).unwrap()
}

/// What a command returns when the shard has had its turns.
fn call<C: 'static, V: Send + 'static>(
    lab: &mut Lab<u32>,
    kept: &Kept<C>,
    command: impl FnOnce(&C) -> V + Send + 'static,
) -> V {
    let sent = kept.try_run(command).unwrap();
    lab.reply(sent).unwrap()
}

fn jobs(timers: &Timers<u32>) -> Jobs {
    KeyedTimers::new(timers, |_, _| {})
}

#[test]
fn commands_of_a_thread_run_in_their_order_and_once() {
    let mut lab = Lab::new(builder(1));
    let kept = kept(&mut lab, |_| RefCell::new(Vec::new()));
    let sender = kept.clone();
    let send = move || {
        for number in 0..500_u32 {
            let pushed = sender.try_run(move |list| list.borrow_mut().push(number)).unwrap();
            drop(pushed);
        }
    };
    thread::spawn(send).join().unwrap();
    lab.settle();
    let ran = call(&mut lab, &kept, RefCell::take);
    assert!(ran.into_iter().eq(0..500), "the commands of one thread keep their order");
}

#[test]
fn command_on_a_full_shard_removes_a_timer() {
    let mut lab = Lab::new(builder(1).capacity(4));
    let kept = kept(&mut lab, jobs);
    let fill = |jobs: &Jobs| (0..9).filter(|n| jobs.insert(*n, 0, FAR).is_ok()).count();
    assert_eq!(call(&mut lab, &kept, fill), 4, "the shard is full");
    assert!(call(&mut lab, &kept, |jobs| jobs.remove(&0).is_some()));
}

#[test]
fn command_wakes_a_shard_that_sleeps() {
    let mut lab = Lab::new(builder(1));
    let kept = kept(&mut lab, |_| Cell::new(0));
    let (alarm, waker) = Alarm::new();
    assert_eq!(lab.fall_asleep(&waker), Turn::Idle);
    let mut reply = kept.try_run(|value| value.replace(7)).unwrap();
    assert_eq!(alarm.count(), 1, "the shard sleeps on");
    let _next = lab.turn();
    assert_eq!(look(&mut reply), Some(Ok(0)));
    // The same from the shard's own thread, with no client between.
    let timers = lab.timers().clone();
    let own = timers.keep(Cell::new(5)).unwrap();
    assert_eq!(lab.fall_asleep(&waker), Turn::Idle);
    let mut reply = own.try_run(Cell::get).unwrap();
    assert!(look(&mut reply).is_none(), "it runs within the call");
    assert_eq!(alarm.count(), 2);
    let _next = lab.turn();
    assert_eq!(look(&mut reply), Some(Ok(5)));
}

#[test]
fn command_of_a_command_runs_after_it_and_not_within() {
    let mut lab = Lab::new(builder(1));
    let kept = kept(&mut lab, |_| RefCell::new(Vec::new()));
    let again = kept.clone();
    let inner = call(&mut lab, &kept, move |list| {
        let mut list = list.borrow_mut();
        let inner = again.try_run(|list| list.borrow_mut().push("inner")).unwrap();
        list.push("outer");
        inner
    });
    assert_eq!(lab.reply(inner), Ok(()));
    assert_eq!(call(&mut lab, &kept, RefCell::take), ["outer", "inner"]);
}

#[test]
fn command_without_room_is_refused_with_its_closure() {
    let mut lab = Lab::new(builder(1).lane_capacity(4));
    let kept = kept(&mut lab, |_| Cell::new(0));
    let add = |value: &Cell<u32>| value.set(value.get() + 1);
    let mut replies: Vec<_> = (0..4).map(|_| kept.try_run(add).unwrap()).collect();
    let (guard, dropped) = Guard::new();
    let refused = kept.try_run(move |_| drop(guard));
    let Err(Refused::Busy(call)) = refused else { panic!("the room is taken") };
    assert_eq!(count(&dropped), 0, "the closure comes back");
    lab.settle();
    assert!(replies.iter_mut().all(|reply| look(reply) == Some(Ok(()))));
    assert!(kept.try_run(call).is_ok(), "there is room again");
    lab.settle();
    assert_eq!(count(&dropped), 1);
    // Another value has room of its own.
    let other = self::kept(&mut lab, |_| ());
    assert!((0..4).all(|_| kept.try_run(add).is_ok()) && kept.try_run(add).is_err());
    assert!(other.try_run(|()| ()).is_ok());
}

#[test]
fn futures_that_wait_for_room_are_woken_and_each_runs_once() {
    const FUTURES: usize = 1_000;
    let mut lab = Lab::new(builder(1).lane_capacity(8));
    let kept = kept(&mut lab, |_| Cell::new(0));
    let futures = (0..FUTURES).map(|_| {
        let run = kept.run(|value| value.set(value.get() + 1));
        (Box::pin(run), Alarm::new(), 0)
    });
    let mut waiting: Vec<_> = futures.collect();
    let (mut polls, mut rounds) = (0, 0);
    while !waiting.is_empty() {
        waiting.retain_mut(|(run, (alarm, waker), seen)| {
            if rounds > 0 && alarm.count() == *seen {
                return true;
            }
            *seen = alarm.count();
            polls += 1;
            // A tenth of them is dropped while it waits, which must not lose a wake-up.
            let is_pending = run.as_mut().poll(&mut Context::from_waker(waker)).is_pending();
            is_pending && (rounds != 1 || polls % 10 > 0)
        });
        lab.advance(ms(1));
        rounds += 1;
        assert!(rounds < FUTURES, "{} wait for ever", waiting.len());
    }
    let ran = call(&mut lab, &kept, Cell::get);
    assert!((FUTURES * 9 / 10..=FUTURES).contains(&ran), "{ran}");
}

/// Each command sends another one, so that the shard has always work.
fn flood(kept: Kept<Cell<u32>>) {
    let again = kept.clone();
    let sent = kept.try_run(move |value| {
        value.set(value.get() + 1);
        flood(again);
    });
    drop(sent);
}

#[test]
fn commands_of_a_flooded_value_do_not_hold_back_timers() {
    let mut lab = Lab::<u32>::new(builder(1));
    let kept = kept(&mut lab, |_| Cell::new(0_u32));
    flood(kept.clone());
    lab.timers().schedule(ms(5), 1).unwrap();
    lab.clock.advance(ms(5));
    for _ in 0..3 {
        assert_eq!(lab.turn(), Turn::More, "the flood goes on");
    }
    assert_eq!(lab.fired(), [(1, 5)]);
    assert_eq!(lab.counts().fired, 1, "commands are no timers");
}

#[test]
fn value_is_dropped_on_its_shard_after_the_last_handle_and_the_last_command() {
    let mut lab = Lab::new(builder(1));
    let (sender, dropped) = mpsc::channel();
    let other = kept(&mut lab, |_| 7);
    let kept = kept(&mut lab, move |_| {
        let (ran, count) = corewheel_test_support::shared::<Cell<u32>>();
        let gone = OnDrop(move || sender.send((thread::current().id(), ran.get())).unwrap());
        (count, gone)
    });
    let clone = kept.clone();
    drop(kept);
    lab.settle();
    assert!(dropped.try_recv().is_err(), "a handle is left");
    let last = move || {
        for _ in 0..100 {
            drop(clone.try_run(|(count, _)| count.set(count.get() + 1)).unwrap());
        }
    };
    thread::spawn(last).join().unwrap();
    assert!(dropped.try_recv().is_err(), "no turn was taken");
    lab.settle();
    assert_eq!(dropped.try_recv(), Ok((thread::current().id(), 100)));
    assert_eq!(call(&mut lab, &other, |value| *value), 7, "another value stays");
}

#[test]
fn last_handle_dropped_by_a_thread_that_ends_releases_the_value() {
    thread_local! {
        static HELD: RefCell<Option<Kept<Guard>>> = const { RefCell::new(None) };
    }
    let mut lab = Lab::new(builder(1));
    let (guard, dropped) = Guard::new();
    let kept = kept(&mut lab, move |_| guard);
    // The destructor of the thread-local runs after the thread's table of services is gone, or
    // before; the value must be released either way.
    thread::spawn(move || HELD.set(Some(kept))).join().unwrap();
    lab.settle();
    assert_eq!(count(&dropped), 1);
}

#[test]
fn reply_of_keep_dropped_unread_drops_the_value() {
    let mut lab = Lab::<u32>::new(builder(1));
    for is_made in [false, true] {
        let (guard, dropped) = Guard::new();
        let reply = lab.service.handle().on(SHARD).keep(move |_| guard).unwrap();
        if is_made {
            lab.settle();
        }
        assert_eq!(count(&dropped), 0);
        drop(reply);
        lab.settle();
        assert_eq!(count(&dropped), 1, "{is_made}");
    }
}

#[test]
fn panics_of_make_command_and_drop_are_contained_and_counted() {
    let mut lab = Lab::<u32>::new(builder(1));
    let made = lab.service.handle().on(SHARD).keep::<u8>(|_| panic!("on purpose")).unwrap();
    assert_eq!(lab.reply(made).unwrap_err(), ReplyError::Panicked);
    assert_eq!(lab.counts().panicked, 1);
    let kept = kept(&mut lab, |_| (Cell::new(1), bomb()));
    let panics = |(value, _): &(Cell<u32>, Bomb)| {
        value.set(2);
        panic!("on purpose")
    };
    let panicked: Reply<()> = kept.try_run(panics).unwrap();
    let after = kept.try_run(|(value, _)| value.get()).unwrap();
    assert_eq!(lab.reply(panicked), Err(ReplyError::Panicked));
    assert_eq!(lab.reply(after), Ok(2), "the value stays as the closure has left it");
    drop(kept);
    assert_eq!(lab.settled().panicked, 3);
}

#[test]
fn panicking_commands_give_their_room_back() {
    let mut lab = Lab::<u32>::new(builder(1).lane_capacity(2));
    let kept = kept(&mut lab, |_| ());
    for _ in 0..10 {
        let panicked: Reply<()> = kept.try_run(|()| panic!("on purpose")).unwrap();
        assert_eq!(lab.reply(panicked), Err(ReplyError::Panicked));
    }
}

#[test]
fn keep_names_what_is_wrong() {
    let mut lab = Lab::<u32>::new(builder(1));
    let unknown = ShardId::new(7);
    let refused = lab.service.handle().on(unknown).keep(|_| ());
    assert_eq!(refused.unwrap_err(), ShardError::NoSuchShard(unknown));
    let timers = lab.timers().clone();
    lab.end(ShutdownPolicy::Drop);
    assert_eq!(lab.service.handle().on(SHARD).keep(|_| ()).unwrap_err(), ShardError::Closed);
    assert!(matches!(timers.keep(7), Err(Refused::Closed(7))));
}

#[test]
fn keep_on_a_shard_that_is_not_attached_waits_for_it() {
    let service = builder(2).start_attached_with::<u32>().unwrap();
    let mut made = service.handle().on(SHARD).keep(|_| 7).unwrap();
    let mut never = service.handle().on(OTHER).keep(|_| 8).unwrap();
    assert!(look(&mut made).is_none());
    let mut shard = service.attach(SHARD).unwrap().into_loop(|_, _| {}).unwrap();
    let _next = shard.turn();
    assert!(look(&mut made).unwrap().is_ok());
    drop(service.attach(OTHER).unwrap());
    assert_eq!(look(&mut never).unwrap().unwrap_err(), ReplyError::Closed);
}

fn is_shared<X: Send + Sync + Clone + 'static>(_: &X) {}

#[test]
fn handle_of_a_value_that_is_not_send_is_send_and_sync() {
    let mut lab = Lab::new(builder(1));
    let kept = kept(&mut lab, |_| Rc::new(Cell::new(1)));
    is_shared(&kept);
    let mut run: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(kept.run(|it| it.get()));
    assert!(look(&mut run).is_none());
    lab.settle();
    assert_eq!(look(&mut run), Some(Ok(1)));
    let held = Arc::new(Mutex::new(kept));
    drop(held.lock().unwrap().try_run(|value| value.set(2)).unwrap());
    assert!(format!("{:?}", held.lock().unwrap()).starts_with("Kept { shard:"));
}
