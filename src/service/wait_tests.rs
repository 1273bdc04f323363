//! Tests of futures that wait for room in a thread's lane, and of what a thread needs no table for.

use std::sync::{Arc, Mutex, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use corewheel_shard::Tick;

use crate::attach::ShardLoop;
use crate::face::handle::registry;
use crate::shard::lanes::Lanes;
use crate::shard::request::Request;
use crate::values::class::{ClassId, TimerClass};
use crate::{
    ConnLimits, Fired, Refused, RefusedKind, ShardId, ShutdownPolicy, TimerId, TimerService, Timers,
};

/// A waker that counts how often it is woken.
#[derive(Default)]
struct Alarm(Mutex<usize>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
    }
}

type Handler = fn(Fired<u32>, &Timers<u32>);
const SHARD: ShardId = ShardId::new(0);

fn service(capacity: u32) -> (TimerService<u32>, ShardLoop<u32, Handler>) {
    let builder = TimerService::builder().shards(1).capacity(capacity);
    let service = builder.start_attached_with().unwrap();
    let shard = service.attach(SHARD).unwrap().into_loop((|_, _| {}) as Handler).unwrap();
    (service, shard)
}

/// The number of alarms that were woken, each once.
fn woken(alarms: &[Arc<Alarm>]) -> usize {
    let counts = alarms.iter().map(|alarm| *alarm.0.lock().unwrap());
    counts.inspect(|count| assert!(*count <= 1, "a future is woken once")).sum()
}

fn lanes_of(service: &TimerService<u32>) -> Lanes<u32> {
    Lanes::new(Arc::clone(&service.directory))
}

fn schedule(lanes: &Lanes<u32>) -> Result<TimerId, Refused<u32>> {
    let build = |value| Request::Schedule {
        deadline: Tick::NEVER,
        sent_us: 0,
        class: ClassId::NONE,
        value,
    };
    lanes.schedule(SHARD, ClassId::NONE, 0, build, Request::into_value)
}

fn wait(lanes: &Lanes<u32>, count: usize) -> Vec<Arc<Alarm>> {
    let alarms: Vec<_> = std::iter::repeat_with(Arc::<Alarm>::default).take(count).collect();
    for alarm in &alarms {
        lanes.wait_for_room(SHARD, Waker::from(Arc::clone(alarm))).unwrap();
    }
    alarms
}

#[test]
fn futures_are_woken_as_the_client_gets_keys_oldest_first() {
    let (service, mut shard) = service(64);
    let lanes = lanes_of(&service);
    while schedule(&lanes).is_ok() {}
    let alarms = wait(&lanes, 5);
    let _next = shard.turn();
    assert_eq!(woken(&alarms), 2, "the client has two keys");
    assert_eq!(woken(&alarms[..2]), 2);
    let _next = shard.turn();
    assert_eq!(woken(&alarms[..4]), 4);
    let _next = shard.turn();
    assert_eq!(woken(&alarms), 5);
}

#[test]
fn waker_registered_twice_in_a_row_is_woken_once() {
    let (service, mut shard) = service(64);
    let lanes = lanes_of(&service);
    let alarm = Arc::<Alarm>::default();
    let waker = Waker::from(Arc::clone(&alarm));
    for _ in 0..2 {
        lanes.wait_for_room(SHARD, waker.clone()).unwrap();
    }
    let _next = shard.turn();
    assert_eq!(woken(&[alarm]), 1);
}

#[test]
fn futures_beside_a_full_shard_are_all_woken_to_be_refused() {
    let (service, mut shard) = service(8);
    while shard.timers().schedule(Duration::MAX, 0).is_ok() {}
    let lanes = lanes_of(&service);
    let alarms = wait(&lanes, 5);
    let _next = shard.turn();
    assert_eq!(woken(&alarms), 5);
    let refused = schedule(&lanes);
    assert_eq!(refused, Err(Refused::Full(0)));
}

#[test]
fn futures_of_a_lane_that_is_closed_are_woken() {
    for is_driven in [false, true] {
        let builder = TimerService::builder().shards(1).capacity(64);
        let service = builder.start_attached_with::<u32>().unwrap();
        let lanes = lanes_of(&service);
        let alarms = wait(&lanes, 5);
        let shard = service.attach(SHARD).unwrap();
        if is_driven {
            let shard = shard.into_loop((|_, _| {}) as Handler).unwrap();
            let _report = shard.shutdown(ShutdownPolicy::Drop);
        } else {
            drop(shard);
        }
        assert_eq!(woken(&alarms), 5);
        let waker = Waker::from(Arc::<Alarm>::default());
        let waits = lanes.wait_for_room(SHARD, waker.clone());
        assert!(matches!(waits, Ok(()) | Err(RefusedKind::Closed)));
        let late = wait(&lanes, 0);
        assert_eq!(woken(&late), 0);
    }
}

#[test]
fn thread_that_knows_a_service_needs_no_table_of_all_services() {
    let class = TimerClass::new("request");
    let service = TimerService::builder().shards(2).class(class).start_attached().unwrap();
    let handle = service.handle();
    let (known, told) = mpsc::channel();
    let (go, goes) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    let user = thread::spawn(move || {
        let connection = handle.connection(ConnLimits::default());
        known.send(()).unwrap();
        goes.recv().unwrap();
        connection.close();
        assert_eq!((handle.shards().count(), handle.shard_for(3)), (2, ShardId::new(1)));
        assert!(handle.of_class(class).is_ok());
        done.send(()).unwrap();
    });
    told.recv().unwrap();
    let shut = registry::shut();
    go.send(()).unwrap();
    let found = is_done.recv_timeout(Duration::from_secs(30));
    drop(shut);
    user.join().unwrap();
    assert_eq!((found, service.stats().connections_closed), (Ok(()), 1));
    service.begin_shutdown(ShutdownPolicy::Drop).map(drop).unwrap();
    assert_eq!((handle.shards().count(), handle.shard_for(3)), (0, ShardId::new(0)));
    assert!(handle.of_class(class).is_err());
}
