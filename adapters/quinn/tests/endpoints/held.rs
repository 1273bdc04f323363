//! A task of quinn whose deadline has passed is held back until the sockets were read.

use std::future::poll_fn;
use std::io::IoSliceMut;
use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, mpsc};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime as _};
use tokio::runtime::Builder;

use super::*;

/// Longer than a task may be held up before the stamp of its poll is old.
const HELD_UP: Duration = ms(150);

/// Polls a task of quinn in a tokio runtime until it is ready.
fn run<O: Send + 'static>(
    runtime: &QuinnRuntime,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<O> + Send + 'static,
) -> O {
    let (sender, receiver) = mpsc::channel();
    let future = poll_fn(move |cx| poll(cx).map(|output| sender.send(output).unwrap()));
    let mut builder = Builder::new_current_thread();
    // A task that wakes itself does not keep the runtime from its sockets and from other threads.
    builder.enable_io().event_interval(1).global_queue_interval(1);
    builder.build().unwrap().block_on(async {
        runtime.spawn(Box::pin(future));
        let give_up = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < give_up, "the task does not end");
            match receiver.try_recv() {
                Ok(output) => return output,
                Err(mpsc::TryRecvError::Empty) => tokio::task::yield_now().await,
                Err(mpsc::TryRecvError::Disconnected) => panic!("the task has panicked"),
            }
        }
    })
}

/// The socket of an endpoint, made in the runtime of the task.
#[derive(Clone, Default)]
struct Socket(Arc<Mutex<Option<Arc<dyn AsyncUdpSocket>>>>);

impl Socket {
    fn get(&self, runtime: &QuinnRuntime) -> Arc<dyn AsyncUdpSocket> {
        let make = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.set_nonblocking(true).unwrap();
            runtime.wrap_udp_socket(socket).unwrap()
        };
        Arc::clone(self.0.lock().unwrap().get_or_insert_with(make))
    }
}

/// Reads a datagram.
fn poll_recv(socket: &dyn AsyncUdpSocket, cx: &mut Context<'_>) -> Poll<()> {
    let (mut buffer, mut meta) = (vec![0; 1 << 16], [RecvMeta::default()]);
    let read = socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut meta);
    read.map(|read| assert_eq!(read.unwrap(), 1))
}

/// Sends a datagram to the socket itself.
fn send(socket: &dyn AsyncUdpSocket, contents: &[u8]) {
    let destination = socket.local_addr().unwrap();
    let transmit = Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None };
    // A full socket has enough.
    let _ = socket.try_send(&transmit);
}

/// A deadline, and a timer for it.
fn with_timer(runtime: &QuinnRuntime, now: Instant) -> (Instant, Pin<Box<dyn AsyncTimer>>) {
    let deadline = now + ms(10);
    (deadline, runtime.new_timer(deadline))
}

/// A task that spawns that of an endpoint, sets a timer, and is ready when `now` has come to its
/// deadline.
fn connection<E: Future<Output = ()> + Send + 'static>(
    runtime: &QuinnRuntime,
    endpoint: E,
) -> impl FnMut(&mut Context<'_>) -> Poll<()> + Send + use<E> {
    let (runtime, mut endpoint, mut timer) = (runtime.clone(), Some(endpoint), None);
    move |cx| {
        if let Some(endpoint) = endpoint.take() {
            runtime.spawn(Box::pin(endpoint));
        }
        let now = runtime.now();
        let (deadline, timer) = timer.get_or_insert_with(|| with_timer(&runtime, now));
        if now >= *deadline {
            return Poll::Ready(());
        }
        assert_eq!(timer.as_mut().poll(cx), Poll::Pending, "it is ready before `now` says so");
        Poll::Pending
    }
}

fn beside_runtime() -> (TimerService, QuinnRuntime) {
    let service = TimerService::beside_runtime().start().unwrap();
    let runtime = QuinnRuntime::new(service.handle());
    (service, runtime)
}

#[test]
fn deadline_that_passes_within_a_poll_is_for_the_next_poll() {
    let (_service, runtime) = beside_runtime();
    let (of_task, mut timer, mut polls) = (runtime.clone(), None, Vec::new());
    let polls = run(&runtime, move |cx| {
        let now = of_task.now();
        let (deadline, timer) = timer.get_or_insert_with(|| with_timer(&of_task, now));
        polls.push((now, *deadline));
        if now >= *deadline {
            return Poll::Ready(mem::take(&mut polls));
        }
        thread::sleep(ms(20));
        assert!(of_task.now() < *deadline, "it has passed within a poll");
        assert_eq!(timer.as_mut().poll(cx), Poll::Pending);
        Poll::Pending
    });
    assert!(polls.len() >= 2 && polls.is_sorted_by_key(|(now, _)| *now), "{polls:?}");
    assert!(runtime.now() > polls.last().unwrap().0);
}

#[test]
fn deadline_that_passes_after_the_poll_of_another_waits_for_a_pass() {
    let (_service, runtime) = beside_runtime();
    let (of_task, mut timer, mut polls) = (runtime.clone(), None, Vec::new());
    // As quinn does: a poll that has come to a deadline sets no timer for the next one.
    let polls = run(&runtime, move |cx| {
        let now = of_task.now();
        let (deadline, timer) = timer.get_or_insert_with(|| with_timer(&of_task, now));
        polls.push((now, *deadline));
        if now < *deadline {
            timer.as_mut().reset(*deadline);
            assert_eq!(timer.as_mut().poll(cx), Poll::Pending);
            return Poll::Pending;
        }
        // The next deadline is after all that have passed.
        *deadline = now + ms(10);
        thread::sleep(ms(20));
        cx.waker().wake_by_ref();
        if polls.len() < 10 { Poll::Pending } else { Poll::Ready(mem::take(&mut polls)) }
    });
    assert!(polls.is_sorted_by_key(|(now, _)| *now), "{polls:?}");
    let comes = |(now, deadline): &(Instant, Instant)| now >= deadline;
    let at_once = polls.windows(2).find(|pair| pair.iter().all(comes));
    assert_eq!(at_once, None, "it was decided without a pass: {polls:?}");
}

#[test]
fn time_goes_on_for_a_task_without_a_timer() {
    let (_service, runtime) = beside_runtime();
    let (of_task, mut begin, mut last) = (runtime.clone(), None, None);
    run(&runtime, move |cx| {
        let now = of_task.now();
        let begin = *begin.get_or_insert(now);
        assert!(last.replace(now).is_none_or(|last| last <= now), "time goes back");
        cx.waker().wake_by_ref();
        if now < begin + HELD_UP { Poll::Pending } else { Poll::Ready(()) }
    });
}

#[test]
fn socket_is_not_read_in_a_poll_whose_stamp_is_old() {
    let (_service, runtime) = beside_runtime();
    let (of_task, socket, mut is_first_read) = (runtime.clone(), Socket::default(), false);
    run(&runtime, move |cx| {
        let socket = socket.get(&of_task);
        let _stamp = of_task.now();
        if is_first_read {
            // In the first poll of this test that comes here, and in each later one, there is
            // a datagram to read.
            thread::sleep(HELD_UP);
            assert!(poll_recv(&*socket, cx).is_pending(), "it is read with an old stamp");
            return Poll::Ready(());
        }
        send(&*socket, b"one");
        send(&*socket, b"another");
        is_first_read = poll_recv(&*socket, cx).is_ready();
        cx.waker().wake_by_ref();
        Poll::Pending
    });
}

#[test]
fn connection_beside_a_socket_that_never_is_empty_reaches_its_deadline() {
    let (_service, runtime) = beside_runtime();
    let (reading, socket) = (runtime.clone(), Socket::default());
    let of_reader = socket.clone();
    let reader = poll_fn(move |cx| {
        let socket = of_reader.get(&reading);
        send(&*socket, b"one");
        send(&*socket, b"another");
        let _read = poll_recv(&*socket, cx);
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    run(&runtime, connection(&runtime, reader));
}

#[test]
fn connection_beside_an_endpoint_that_has_ended_reaches_its_deadline() {
    let (_service, runtime) = beside_runtime();
    let (reading, socket) = (runtime.clone(), Socket::default());
    let of_reader = socket.clone();
    let reader = poll_fn(move |cx| {
        let _read = poll_recv(&*of_reader.get(&reading), cx);
        Poll::Ready(())
    });
    run(&runtime, connection(&runtime, reader));
}

#[test]
fn connection_waits_for_an_endpoint_that_does_not_read_in_a_late_poll() {
    let (_service, runtime) = beside_runtime();
    let (reading, socket) = (runtime.clone(), Socket::default());
    let has_read = Arc::new(AtomicBool::new(false));
    let (reads, mut polls) = (Arc::clone(&has_read), 0);
    let reader = poll_fn(move |cx| {
        let socket = socket.get(&reading);
        polls += 1;
        // It becomes an endpoint by its first read. Then some polls are late.
        if (2..8).contains(&polls) {
            let _stamp = reading.now();
            thread::sleep(HELD_UP);
        }
        assert!(poll_recv(&*socket, cx).is_pending(), "nothing was sent");
        if polls == 1 {
            cx.waker().wake_by_ref();
        }
        reads.store(polls >= 8, Ordering::Relaxed);
        Poll::Pending
    });
    let mut poll = connection(&runtime, reader);
    let is_after = move |cx: &mut Context<'_>| poll(cx).map(|()| has_read.load(Ordering::Relaxed));
    assert!(run(&runtime, is_after), "the deadline decides before the socket was read");
}
