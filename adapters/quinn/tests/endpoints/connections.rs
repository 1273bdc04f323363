//! Connections by the system's clock, on each kind of tokio runtime.

use std::ops::AsyncFn;

use corewheel::ShutdownPolicy;
use corewheel::fallback::InfallibleSleep;
use corewheel_test_support::{FAR, Host, SHARD, block_on_tokio, look};
use quinn::Runtime as _;
use tokio::runtime::Builder;

use super::*;

/// The idle time that a test begins with. A machine that is too busy gets twice as much.
const IDLE: Duration = ms(150);
pub(super) const CAPACITY: u32 = 1 << 10;

/// The shard is beside the runtime of the endpoints, on a thread of its own.
const BESIDE: Option<Host> = None;
/// Others have it on the thread of that runtime.
const HOSTS: [Option<Host>; 3] =
    [BESIDE, Some(Host::TokioAttached), Some(Host::LocalRuntimeAttached)];

/// Runs a test on a service whose only shard has room for this many timers.
fn run<O>(
    host: Option<Host>,
    capacity: u32,
    test: impl AsyncFn(Option<Host>, &TimerService, &QuinnRuntime) -> O,
) -> O {
    let Some(attached) = host else {
        let builder = TimerService::beside_runtime().shards(1).capacity(capacity);
        let service = builder.start().unwrap();
        // Without tokio's time.
        let tokio = Builder::new_multi_thread().worker_threads(2).enable_io().build().unwrap();
        return tokio.block_on(test(host, &service, &QuinnRuntime::new(service.handle())));
    };
    block_on_tokio(attached, async {
        let service: TimerService =
            TimerService::builder().shards(1).capacity(capacity).start_attached_with().unwrap();
        let timers = service.attach(SHARD).unwrap().attach_tokio(|_, _| {}).unwrap();
        let output = test(host, &service, &QuinnRuntime::new(service.handle())).await;
        drop(timers);
        if let Ok(ends) = service.begin_shutdown(ShutdownPolicy::Drop) {
            ends.await;
        }
        output
    })
}

pub(super) fn on_each_host(
    capacity: u32,
    test: impl AsyncFn(Option<Host>, &TimerService, &QuinnRuntime) + Copy + Send + 'static,
) {
    for host in HOSTS {
        within_patience(move || run(host, capacity, test));
    }
}

/// The machine was busy for longer than the idle time of a connection, which has rightly ended
/// before it was silent.
struct TooBusy;

/// Runs a test on each host, with an idle time that the machine is quick enough for.
fn on_each_host_when_idle(
    capacity: u32,
    test: impl AsyncFn(Option<Host>, Duration, &TimerService, &QuinnRuntime) -> Result<(), TooBusy>
    + Copy
    + Send
    + 'static,
) {
    for host in HOSTS {
        let mut idle = IDLE;
        while within_patience(move || {
            let test =
                async |host, service: &_, runtime: &_| test(host, idle, service, runtime).await;
            run(host, capacity, test).is_err()
        }) {
            idle *= 2;
        }
    }
}

/// Whether a connection has ended by its idle time, and not before it. `Err` if it was not silent:
/// one whose handshake or echo was under way, or one that has sent again what the other side, which
/// had ended already, has not acknowledged.
fn check_end(reason: &ConnectionError, begin: Instant, idle: Duration) -> Result<(), TooBusy> {
    assert!(begin.elapsed() >= idle, "it is closed after {:?}: {reason}", begin.elapsed());
    match reason {
        ConnectionError::TimedOut => Ok(()),
        ConnectionError::Reset => Err(TooBusy),
        reason => panic!("{reason}"),
    }
}

/// Why a connection has ended before it was silent.
fn too_busy(reason: &ConnectionError, begin: Instant, idle: Duration) -> TooBusy {
    let (Ok(()) | Err(TooBusy)) = check_end(reason, begin, idle);
    TooBusy
}

/// Waits until both sides of a silent connection have closed it, neither before its time.
async fn check_idle_end(runtime: &QuinnRuntime, idle: Duration) -> Result<(), TooBusy> {
    let endpoints = Endpoints::new(runtime, transport(idle));
    let begin = Instant::now();
    let connected = endpoints.connect().await;
    let (client, server) = connected.map_err(|reason| too_busy(&reason, begin, idle))?;
    tokio::spawn(echo_all(server.clone()));
    let before = Instant::now();
    try_echo(&client, 100).await.map_err(|reason| too_busy(&reason, begin, idle))?;
    for side in [client, server] {
        let reason = side.closed().await;
        let silent = runtime.now() - before;
        assert!(silent >= idle, "it is closed after {silent:?} by the clock of the runtime");
        check_end(&reason, before, idle)?;
    }
    Ok(())
}

#[test]
fn streams_are_echoed_with_timers_of_the_shard() {
    on_each_host(CAPACITY, async |host, service, runtime| {
        let endpoints = Endpoints::new(runtime, transport(PATIENCE));
        let (client, server) = endpoints.connect().await.unwrap();
        tokio::spawn(echo_all(server));
        for length in [1, 1_000, 300_000] {
            check_echo(&client, length).await;
        }
        // The shard publishes its counts when it takes a turn.
        let sleep = service.handle().sleep(ms(2));
        sleep.await.unwrap();
        let counts = service.stats().shards[0].counts;
        let (local, remote) = (counts.scheduled_local, counts.scheduled_remote);
        assert!(if host == BESIDE { remote > 2 } else { local > 2 }, "{host:?}");
        assert!(host == BESIDE || remote == 0, "{host:?}: {remote} timers by messages");
        assert_eq!(counts.refused, 0, "{host:?}");
    });
}

#[test]
fn silent_connection_is_closed_after_its_idle_time_and_not_before() {
    on_each_host_when_idle(CAPACITY, async |_, idle, _, runtime| {
        check_idle_end(runtime, idle).await
    });
}

#[test]
fn connections_on_a_full_shard_transfer_and_are_closed_when_idle() {
    on_each_host_when_idle(1, async |host, idle, service, runtime| {
        // Some slots may be reserved for clients.
        let mut slots = Vec::new();
        loop {
            let mut slot = Box::pin(service.handle().sleep(FAR));
            // It has a slot, or is refused once the shard has looked for room.
            let is_armed = || service.stats().shards[0].counts.pending > slots.len() as u64;
            let refused = loop {
                let waited = look(&mut slot);
                if waited.is_some() || is_armed() {
                    break waited.is_some();
                }
                tokio::task::yield_now().await;
            };
            if refused {
                break;
            }
            slots.push(slot);
        }
        let full = || service.stats().shards[0].counts.pending == slots.len() as u64;
        assert!(full(), "{host:?}");
        let kept = InfallibleSleep::fallback_count();
        check_idle_end(runtime, idle).await?;
        assert!(InfallibleSleep::fallback_count() > kept, "{host:?}: no timer was kept");
        // A timer of an endpoint that is gone may be about to fire, where the shard had reserved
        // the slot for another client at first.
        let end = Instant::now() + PATIENCE;
        while !full() {
            assert!(Instant::now() < end, "{host:?}");
            tokio::task::yield_now().await;
        }
        Ok(())
    });
}

#[test]
fn connections_outlive_their_service_and_are_closed_when_idle() {
    on_each_host_when_idle(CAPACITY, async |host, idle, service, runtime| {
        let endpoints = Endpoints::new(runtime, transport(idle));
        // A connection that is open when the service ends.
        let begin = Instant::now();
        let connected = endpoints.connect().await;
        let (client, server) = connected.map_err(|reason| too_busy(&reason, begin, idle))?;
        tokio::spawn(echo_all(server.clone()));
        service.begin_shutdown(ShutdownPolicy::Drop).unwrap().await;
        let kept = InfallibleSleep::fallback_count();
        for side in [client, server] {
            check_end(&side.closed().await, begin, idle)?;
        }
        // A connection that begins afterwards.
        check_idle_end(runtime, idle).await?;
        assert!(InfallibleSleep::fallback_count() > kept, "{host:?}: no timer was kept");
        Ok(())
    });
}
