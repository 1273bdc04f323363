//! The exchange of a request and its response, whose bodies have limits and end together.
//!
//! A limit on a socket does not see an HTTP/2 stream, and ends no body whose task waits for another
//! socket. [`TimedExchanges`] gives each body limits of its own, by one timer for all bodies of the
//! connection.
//!
//! Why not a future that waits for the limits: the body of a request that is forwarded lies with
//! the client of another server, which polls it only when that server takes more. No task polls it
//! when that server does not.
//!
//! Invariants: an exchange ends once. After that it holds neither body, and what its handler has
//! asked for by [`Exchange::on_end`] was done.
//!
//! Cost: an exchange is an allocation of some 100 bytes; see [`TimedBody`] for its bodies.

mod alarm;
mod body;
mod limits;
mod service;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;

use hyper::body::Body;

use self::alarm::Alarm;
pub use self::body::TimedBody;
pub use self::limits::{BodyError, BodyLimits, BodyTimeout};
pub use self::service::{ExchangeFuture, TimedExchanges};
use crate::face::handle::Handle;
use crate::link::sync::MaybeWaker;

/// The timer of all bodies of a connection.
///
/// A clone is the same timer. Where the service has no room for the timer, the thread of
/// [`fallback_count`](crate::adapters::fallback_count) keeps the deadline.
#[derive(Clone)]
pub struct BodyTimers {
    owner: Arc<Owner>,
}

/// Its drop forgets the timer, which holds the alarm.
struct Owner(Arc<Alarm>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl BodyTimers {
    /// The timer of a connection's bodies, on a shard of the handle's service. Nothing is sent to
    /// the service before a body has a limit.
    pub fn new<T: 'static>(handle: Handle<T>) -> Self {
        Self { owner: Arc::new(Owner(Alarm::new(handle.untyped()))) }
    }

    /// A new exchange, without bodies.
    pub fn exchange(&self) -> Exchange {
        let members = Mutex::new(Members::default());
        let core = Core {
            timers: self.clone(),
            members,
            reached: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            waiting: MaybeWaker::new(),
        };
        Exchange { core: Arc::new(core) }
    }
}

debug_fields!([] BodyTimers, |_it|);

/// One of the two bodies of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BodySide {
    /// The body of the request, whose producer is the client.
    Request,
    /// The body of the response, whose consumer is the client.
    Response,
}

/// A body, as its exchange sees it.
trait Member: Send + Sync {
    /// Drops the body within, and wakes the consumer.
    fn cut(&self);
}

/// A request and its response, which end together.
///
/// It ends when
///
/// - one of its bodies reaches a limit,
/// - the body of the response has ended, has failed or was dropped,
/// - the future of the response was dropped, or has returned an error, in a [`TimedExchanges`],
/// - the handler calls [`end`](Self::end).
///
/// Then the bodies that have not ended are dropped at once, on the thread that ends the exchange:
/// for a limit, that of the shard. Their next polls return an error, and what waits in such a poll
/// is woken.
///
/// A handler whose exchange has ended may still answer, such as `408`: in a [`TimedExchanges`], its
/// response belongs to a new exchange, with the same limits.
///
/// A clone is the same exchange.
///
/// ```
/// use corewheel::adapters::hyper::{BodySide, Exchange};
///
/// /// Notes which body was too slow, when the exchange ends.
/// fn watch(exchange: &Exchange) {
///     let ended = exchange.clone();
///     exchange.on_end(move || {
///         if let Some((BodySide::Request, limit)) = ended.limit_reached() {
///             println!("the client: {limit}");
///         }
///     });
/// }
/// ```
#[derive(Clone)]
pub struct Exchange {
    core: Arc<Core>,
}

struct Core {
    timers: BodyTimers,
    members: Mutex<Members>,
    /// The limit that has ended the exchange.
    reached: OnceLock<(BodySide, BodyTimeout)>,
    /// Whether it has ended. Written under the lock of the members. Relaxed: a task that waits
    /// counts itself under that lock first, so it is woken by the end, or sees it.
    has_ended: AtomicBool,
    /// The task that waits for the end.
    waiting: MaybeWaker,
}

/// How far a body is.
#[derive(Default)]
enum Progress {
    /// There is none yet, or none with limits.
    #[default]
    None,
    Goes(Weak<dyn Member>),
    /// Its consumer has all of it.
    Complete,
    /// It has failed, or was dropped.
    Broken,
}

impl Progress {
    /// The body, if it has not ended. It is broken from now on.
    fn cut(&mut self) -> Option<Arc<dyn Member>> {
        let Self::Goes(body) = self else { return None };
        let body = body.upgrade();
        *self = Self::Broken;
        body
    }
}

/// A call of [`Exchange::ended`] that has not returned, nor was dropped. The end of an exchange
/// wakes a task only if there is one: most handlers have their answer before, and wait no longer.
struct Waits<'a>(&'a Exchange);

impl<'a> Waits<'a> {
    fn new(exchange: &'a Exchange) -> Self {
        exchange.lock().waits += 1;
        Self(exchange)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.lock().waits -= 1;
    }
}

#[derive(Default)]
struct Members {
    /// How many calls of [`Exchange::ended`] wait.
    waits: u32,
    request: Progress,
    response: Progress,
    on_end: Vec<Box<dyn FnOnce() + Send>>,
}

impl Members {
    fn of(&mut self, side: BodySide) -> &mut Progress {
        match side {
            BodySide::Request => &mut self.request,
            BodySide::Response => &mut self.response,
        }
    }
}

impl Exchange {
    /// Wraps the body of the request.
    pub fn request<B>(&self, body: B, limits: BodyLimits) -> TimedBody<B>
    where
        B: Body + Send + Unpin + 'static,
    {
        TimedBody::new(self.clone(), BodySide::Request, body, limits)
    }

    /// Wraps the body of the response. With its end, the exchange ends.
    pub fn response<B>(&self, body: B, limits: BodyLimits) -> TimedBody<B>
    where
        B: Body + Send + Unpin + 'static,
    {
        TimedBody::new(self.clone(), BodySide::Response, body, limits)
    }

    /// Ends the exchange, unless it has ended.
    pub fn end(&self) {
        let mut members = self.lock();
        if self.has_ended() {
            return;
        }
        self.core.has_ended.store(true, Ordering::Relaxed);
        let bodies = [members.request.cut(), members.response.cut()];
        let (on_end, waits) = (std::mem::take(&mut members.on_end), members.waits > 0);
        drop(members);
        // Before the bodies, so that what consumes them does not mistake their end for its own.
        for function in on_end {
            function();
        }
        for body in bodies.into_iter().flatten() {
            body.cut();
        }
        if waits {
            self.core.waiting.wake();
        }
    }

    /// Calls a function when the exchange ends before both bodies are complete, and at once if it
    /// has ended so. Functions of several calls are called in their order.
    ///
    /// A proxy closes its connection to the other server here, as a half of a request or of a
    /// response has gone over it. The function runs on the thread that ends the exchange, which may
    /// drive a shard: it must not wait.
    pub fn on_end(&self, function: impl FnOnce() + Send + 'static) {
        let mut members = self.lock();
        if !self.has_ended() {
            members.on_end.push(Box::new(function));
            return;
        }
        let is_complete = matches!(members.request, Progress::Complete | Progress::None)
            && matches!(members.response, Progress::Complete);
        drop(members);
        if !is_complete {
            function();
        }
    }

    /// Whether the exchange has ended.
    pub fn has_ended(&self) -> bool {
        self.core.has_ended.load(Ordering::Relaxed)
    }

    /// Waits until the exchange has ended. A handler that waits for another server waits for this
    /// besides, as no body is polled where that server does not take the request.
    ///
    /// May be dropped and called again. One task waits at a time: the last that has called this on
    /// any of the clones.
    pub async fn ended(&self) {
        let _waits = Waits::new(self);
        poll_fn(|cx| {
            self.core.waiting.register(cx.waker());
            if self.has_ended() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The exchange of a response, if the handler answers: another one if this has ended.
    fn of_response(self) -> Self {
        if self.has_ended() { self.core.timers.exchange() } else { self }
    }

    /// Whether the consumer of the request's body has all of it. True if there is no body.
    pub fn is_request_complete(&self) -> bool {
        matches!(self.lock().request, Progress::Complete | Progress::None)
    }

    /// The body that has ended the exchange by a limit, and that limit; `None` if none has.
    pub fn limit_reached(&self) -> Option<(BodySide, BodyTimeout)> {
        self.core.reached.get().copied()
    }

    fn alarm(&self) -> &Arc<Alarm> {
        &self.core.timers.owner.0
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.core.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if the exchange has ended.
    fn add(&self, side: BodySide, body: Weak<dyn Member>) -> bool {
        let mut members = self.lock();
        if self.has_ended() {
            *members.of(side) = Progress::Broken;
            return false;
        }
        *members.of(side) = Progress::Goes(body);
        true
    }

    /// A body has reached a limit.
    fn reach(&self, side: BodySide, timeout: BodyTimeout) {
        // The first limit is the reason.
        let _ = self.core.reached.set((side, timeout));
        self.end();
    }

    /// A body has ended by itself.
    fn body_over(&self, side: BodySide, is_complete: bool) {
        let mut members = self.lock();
        *members.of(side) = if is_complete { Progress::Complete } else { Progress::Broken };
        let is_request_over = matches!(members.request, Progress::Complete | Progress::None);
        match (side, is_complete) {
            (BodySide::Request, _) => {}
            (BodySide::Response, true) if is_request_over => {
                self.core.has_ended.store(true, Ordering::Relaxed);
                let (on_end, waits) = (std::mem::take(&mut members.on_end), members.waits > 0);
                drop(members);
                drop(on_end);
                if waits {
                    self.core.waiting.wake();
                }
            }
            (BodySide::Response, _) => {
                drop(members);
                self.end();
            }
        }
    }

    /// The error of a body that the end of the exchange has cut.
    fn error_of(&self, side: BodySide) -> BodyError {
        match self.limit_reached() {
            Some((reached, timeout)) if reached == side => BodyError::Timeout(timeout),
            _ => BodyError::Ended,
        }
    }
}

debug_fields!([] Exchange, |it| limit_reached: it.limit_reached());

/// On any thread.
const _: () = {
    const fn is_shared<T: Clone + Send + Sync + Unpin + 'static>() {}
    is_shared::<(BodyTimers, Exchange)>();
};
