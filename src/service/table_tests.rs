//! Tests of what a thread needs the table of all services for.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::face::handle::registry;
use crate::values::class::TimerClass;
use crate::{ConnLimits, ShardId, ShutdownPolicy, TimerService};

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
