//! Timers that one call cancels.

use corewheel::group::TimerGroup;
use corewheel::{CancelOutcome, Fired, Payload, ReplyError, SendCall, ShutdownPolicy, Timers};

use crate::support::{FAR, Host, Lab, OTHER, Running, SHARD, builder, look, ms};

type Outcome = CancelOutcome<Payload<u64, SendCall<u64>>>;

/// The value of a cancelled timer.
fn value(outcome: Result<Outcome, ReplyError>) -> Option<u64> {
    outcome.unwrap().payload().and_then(Payload::into_value)
}

#[test]
fn cancel_sends_one_message_to_each_shard() {
    let mut lab = Lab::new(builder(2));
    let client = lab.service.handle();
    let mut group = TimerGroup::new();
    for n in 0..50_u64 {
        let shard = if n % 2 == 0 { SHARD } else { OTHER };
        assert!(group.insert(client.on(shard).schedule(FAR, n).unwrap()));
    }
    let third = group.iter().nth(3).unwrap();
    assert!(!group.insert(third) && group.contains(third));
    assert!(group.remove(third) && !group.remove(third) && !group.contains(third));
    lab.settle();
    let before = lab.counts().wakeups_made + lab.counts().wakeups_saved;
    let order: Vec<_> = group.iter().collect();
    let mut reply = group.cancel(client);
    assert!(group.is_empty());
    assert!(look(&mut reply).is_none() && reply.try_take().is_none());
    lab.settle();
    assert_eq!(lab.counts().wakeups_made + lab.counts().wakeups_saved, before + 1);
    let values: Vec<_> = look(&mut reply).unwrap().unwrap().into_iter().map(value).collect();
    assert_eq!(values.len(), 49);
    assert_eq!((order[3].shard(), values[3]), (OTHER, Some(49)), "the last took its place");
    assert_eq!(lab.counts().pending + lab.counts_of(OTHER).pending, 1, "the removed one");
}

#[test]
fn try_take_of_a_gathered_reply_leaves_the_waker_of_its_task() {
    let mut lab = Lab::<u64>::new(builder(2));
    let client = lab.service.handle();
    let handles = [SHARD, OTHER].map(|shard| client.on(shard).schedule(FAR, 1).unwrap());
    let mut group: TimerGroup = handles.into_iter().collect();
    let mut reply = group.cancel(client);
    let (alarm, waker) = crate::support::Alarm::new();
    let mut context = std::task::Context::from_waker(&waker);
    assert!(Future::poll(std::pin::Pin::new(&mut reply), &mut context).is_pending());
    assert!(reply.try_take().is_none());
    lab.settle();
    assert!(alarm.count() >= 1, "the task is woken");
    assert_eq!(reply.try_take().unwrap().unwrap().len(), 2);
    assert!(reply.try_take().is_none(), "it was taken");
}

#[test]
fn cancel_here_cancels_own_timers_at_once_and_others_by_message() {
    let mut lab = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let mut group: TimerGroup = (0..5).map(|n| timers.schedule(ms(n), n).unwrap()).collect();
    group.insert(timers.handle().on(OTHER).schedule(ms(7), 7).unwrap());
    let cancelled = group.cancel_here(&timers);
    assert!(cancelled.len() == 5 && cancelled.iter().all(|(_, outcome)| outcome.won()));
    assert!(group.is_empty());
    assert_eq!(timers.len(), 0, "at once");
    lab.advance(FAR);
    assert_eq!(lab.fired(), []);
    assert_eq!(lab.counts_of(OTHER).cancelled, 1);
}

#[test]
fn cancel_of_a_group_works_on_every_host() {
    for host in Host::all() {
        let handler = |_| |_: Fired<u64>, _: &Timers<u64>| {};
        let running = Running::start(host, builder(2), handler);
        let client = running.service.handle();
        let mut group: TimerGroup = [SHARD, OTHER]
            .into_iter()
            .map(|shard| client.on(shard).schedule(FAR, u64::from(shard.number())).unwrap())
            .collect();
        let cancelled = group.cancel(client).wait().unwrap();
        assert!(cancelled.into_iter().map(value).eq([Some(0), Some(1)]), "{host:?}");
        let report = running.end(ShutdownPolicy::Return);
        assert!(report.shards.iter().all(|shard| shard.counts.pending == 0), "{host:?}");
    }
}

#[test]
fn group_names_each_timer_once_and_its_drop_leaves_them_running() {
    let mut lab = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let client = lab.service.handle();
    let mut group: TimerGroup = (0..3).map(|n| timers.schedule(ms(5), n).unwrap()).collect();
    let [a, ..] = group.iter().collect::<Vec<_>>()[..] else { panic!("it holds three") };
    let there = client.on(OTHER).schedule(ms(5), 3).unwrap();
    assert!(group.remove(a) && group.insert(there));
    assert!(!group.contains(a) && group.contains(there));
    assert!(!group.insert(there), "it is in the group already");
    assert_eq!(group.len(), 3);
    assert_eq!(format!("{:?}", TimerGroup::from_iter([there])), format!("{{{there:?}}}"));
    group.cancel_detached(client);
    assert!(group.is_empty());
    lab.settle();
    assert_eq!((lab.counts().pending, lab.counts_of(OTHER).pending), (1, 0));
    group.insert(a);
    drop(group);
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(0, 5)], "a timer of a dropped group goes on");
}
