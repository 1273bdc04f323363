//! Handles and their futures in the last destructors of a thread, after its table of services is
//! gone. A panic in such a destructor ends the process, so these tests assert elsewhere.

use corewheel::Runtime;
use corewheel::conn::DeadlineKind;

use super::*;

type Last = OnDrop<Box<dyn FnMut()>>;

thread_local! {
    /// Runs code when the thread ends.
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Runs code on a thread whose table of services is gone, with a sleep that it has polled before.
fn at_the_end<O: Send + 'static>(
    handle: AnyHandle,
    code: impl FnOnce(Sleep) -> O + Send + 'static,
) -> O {
    let (sender, output) = mpsc::channel();
    let thread = thread::spawn(move || {
        // It is made before the table, so it is dropped after that.
        assert!(LAST.with_borrow(Option::is_none));
        let (alarm, waker) = Alarm::new();
        let mut sleep = handle.sleep(FAR);
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        drop(alarm);
        let mut code = Some(move || sender.send(code(sleep)).unwrap());
        LAST.set(Some(OnDrop(Box::new(move || code.take().unwrap()()))));
    });
    let output = output.recv().unwrap();
    thread.join().unwrap();
    output
}

fn service() -> (TimerService, AnyHandle) {
    let service = builder(2).runtime(Runtime::Thread).start().unwrap();
    let handle = service.handle().untyped();
    (service, handle)
}

/// Ends a service of which no timer is left.
fn end(service: TimerService) {
    let pending = || service.stats().shards.iter().map(|shard| shard.counts.pending).sum::<u64>();
    wait_until("all timers have ended", || pending() == 0);
}

#[test]
fn sleep_that_is_reset_fires_at_its_new_deadline() {
    let (service, handle) = service();
    for is_kept in [true, false] {
        let (begin, deadline, done, end) = at_the_end(handle, move |mut sleep| {
            let begin = Instant::now();
            sleep.reset(ms(5));
            let deadline = sleep.deadline();
            let done = if is_kept {
                block_on(&mut sleep)
            } else {
                // Another thread waits for it.
                thread::scope(|scope| scope.spawn(|| block_on(&mut sleep)).join().unwrap())
            };
            (begin, deadline, done, Instant::now())
        });
        let deadline = deadline.expect("the service is there");
        assert!(deadline >= begin + ms(5) && end >= deadline);
        assert_eq!(done, Ok(()));
    }
    end(service);
}

#[test]
fn futures_that_are_made_and_polled_there_have_timers() {
    let (service, handle) = service();
    let (begin, slept, timed, ticks, event) = at_the_end(handle, move |polled_before| {
        let begin = Instant::now();
        let slept = block_on(handle.sleep(ms(2)));
        let timed = block_on(handle.timeout(ms(2), pending::<()>()));
        let mut interval = handle.interval(ms(2)).unwrap();
        let ticks = [(); 3].map(|()| block_on(interval.tick()));
        let conn = handle.connection(ConnLimits::default().read_idle(ms(2)));
        let event = block_on(conn.next());
        drop(polled_before);
        (begin, slept, timed, ticks, event.map(|event| event.map(|event| event.kind)))
    });
    assert_eq!((slept, timed), (Ok(()), Err(TimeoutError::Elapsed)));
    let [first, second, third] = ticks.map(Result::unwrap);
    assert!(first >= begin);
    assert_eq!([second - first, third - second], [ms(2); 2]);
    assert_eq!(event, Ok(Some(DeadlineKind::ReadIdle)));
    end(service);
}

#[test]
fn sleep_that_is_armed_there_goes_on_after_the_thread() {
    let (service, handle) = service();
    let (alarm, waker) = Alarm::new();
    let mut sleeps = at_the_end(handle, move |mut polled_before| {
        polled_before.reset(ms(20));
        let mut armed = handle.sleep(ms(20));
        let polled = poll(&mut armed, &waker);
        (polled_before, armed, polled)
    });
    assert_eq!(sleeps.2, Poll::Pending);
    wait_until("the sleep's task is woken", || alarm.count() > 0);
    assert_eq!([block_on(&mut sleeps.0), block_on(&mut sleeps.1)], [Ok(()); 2]);
    drop(sleeps);
    end(service);
}

#[test]
fn service_that_has_ended_says_so_there() {
    let (service, handle) = service();
    let (told, ends) = mpsc::channel::<()>();
    let ender = thread::spawn(move || {
        ends.recv().unwrap();
        service.shutdown(ShutdownPolicy::Drop).unwrap();
    });
    let polled = at_the_end(handle, move |mut sleep| {
        told.send(()).unwrap();
        ender.join().unwrap();
        sleep.reset(Duration::from_secs(1));
        (block_on(&mut sleep), block_on(handle.sleep(ms(1))))
    });
    assert_eq!(polled, (Err(RefusedKind::Closed), Err(RefusedKind::Closed)));
}
