//! The values that are kept on one shard, and the commands that have come for them.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use slab::Slab;

use super::Shared;
use super::room::Permit;
use crate::face::part::{Part, PartHandle, PartSender, Wants};
use crate::face::task::ResultSender;
use crate::face::timers::Timers;
use crate::link::woken::WokenFlag;
use crate::values::error::ReplyError;

/// A sender for the result of a command. The command is dropped before it has run only if its shard
/// has ended or its value is gone.
pub(super) type Sender<R> = ResultSender<R, fn() -> bool>;

/// The values of a shard. The part holds the shard until the shard ends and drops its parts.
pub(super) struct KeptPart {
    shard: PartHandle,
    places: RefCell<Slab<Rc<Place>>>,
    /// What has come and has not run, oldest first.
    received: RefCell<VecDeque<Received>>,
}

/// A value and the closures that wait for it.
pub(super) struct Place {
    value: Box<dyn Any>,
    /// `None` while the closure is polled.
    polls: RefCell<Slab<Option<Box<dyn Polled>>>>,
}

enum Received {
    Command(Box<dyn Command>),
    /// The waker of a closure was woken. The place or the closure may be gone.
    Woken(Arc<PollWaker>),
    /// No handle is left for the value in this place.
    Released(usize),
}

/// A command to a value.
pub(super) trait Command {
    /// The place of its value.
    fn place(&self) -> usize;
    fn run(self: Box<Self>, part: &KeptPart, place: &Rc<Place>);
}

/// A closure that is polled until it is ready.
trait Polled {
    /// True if the closure is done.
    fn poll(&mut self, shard: &PartHandle, value: &dyn Any, cx: &mut Context<'_>) -> bool;
}

impl KeptPart {
    /// The values of a shard.
    pub(super) fn of<T: Send + 'static>(timers: &Timers<T>) -> Rc<Self> {
        timers.shared_part(|shard| Self {
            shard,
            places: RefCell::default(),
            received: RefCell::default(),
        })
    }

    /// Keeps a value, and returns its place.
    pub(super) fn keep(&self, value: Box<dyn Any>) -> usize {
        let place = Rc::new(Place { value, polls: RefCell::default() });
        self.places.borrow_mut().insert(place)
    }

    /// Sends messages to this part.
    pub(super) fn sender(&self) -> PartSender<Self> {
        self.shard.sender()
    }

    /// A command has come.
    pub(super) fn accept(&self, command: impl Command + 'static) {
        self.push(Received::Command(Box::new(command)));
    }

    /// No handle is left for the value in a place.
    pub(super) fn release(&self, place: usize) {
        self.push(Received::Released(place));
    }

    fn push(&self, received: Received) {
        self.received.borrow_mut().push_back(received);
    }

    fn place(&self, index: usize) -> Option<Rc<Place>> {
        self.places.borrow().get(index).map(Rc::clone)
    }

    /// Runs the oldest command. False if there is none.
    fn run_next(&self) -> bool {
        let Some(next) = self.received.borrow_mut().pop_front() else { return false };
        match next {
            Received::Command(command) => {
                if let Some(place) = self.place(command.place()) {
                    command.run(self, &place);
                }
            }
            Received::Woken(waker) => {
                // Taken first: a wake-up while the closure is polled sends another message.
                waker.is_sent.take();
                if let Some(place) = self.place(waker.place) {
                    self.poll(&place, &waker);
                }
            }
            Received::Released(index) => {
                let place = self.places.borrow_mut().try_remove(index);
                if let Some(place) = place {
                    self.drop_place(place);
                }
            }
        }
        true
    }

    fn poll(&self, place: &Place, waker: &Arc<PollWaker>) {
        let number = waker.number;
        let polled = place.polls.borrow_mut().get_mut(number).and_then(Option::take);
        let Some(mut polled) = polled else { return };
        let task = Waker::from(Arc::clone(waker));
        let mut cx = Context::from_waker(&task);
        let mut is_done = true;
        self.shard.contain(|| is_done = polled.poll(&self.shard, &*place.value, &mut cx));
        if is_done {
            place.polls.borrow_mut().try_remove(number);
            self.shard.drop_each([polled]);
        } else if let Some(known) = place.polls.borrow_mut().get_mut(number) {
            *known = Some(polled);
        }
    }

    fn drop_place(&self, place: Rc<Place>) {
        // The callers of closures that wait are told that the value is gone.
        self.shard.drop_each(place.polls.take().into_iter().map(|(_, polled)| polled));
        self.shard.drop_each([place]);
    }
}

impl Part for KeptPart {
    fn takes_turns(&self) -> bool {
        true
    }

    fn wants(&self) -> Wants {
        if self.received.borrow().is_empty() { Wants::Nothing } else { Wants::Delivery }
    }

    fn deliver(self: Rc<Self>, _now: Duration) {
        self.run_next();
    }

    /// Commands that were accepted run before the timers are taken out. No more come, since the
    /// shard is closed.
    fn closing(&self) {
        while self.run_next() {}
    }

    fn closed(&self, _is_dead: bool) {
        // Dropping a command replies to its caller, and dropping a value runs code of the user.
        self.shard.drop_each(self.received.take());
        for (_, place) in self.places.take() {
            self.drop_place(place);
        }
    }
}

/// A command that calls a closure once.
pub(super) struct Run<C, F, R> {
    /// Keeps the value until the command has run.
    pub(super) to: Arc<Shared>,
    pub(super) permit: Permit,
    pub(super) call: F,
    pub(super) sender: Sender<R>,
    pub(super) value: PhantomData<fn(&C)>,
}

impl<C: 'static, R: 'static, F: FnOnce(&C) -> R> Command for Run<C, F, R> {
    fn place(&self) -> usize {
        self.to.place
    }

    fn run(self: Box<Self>, part: &KeptPart, place: &Rc<Place>) {
        let Self { to: _to, permit, call, sender, .. } = *self;
        sender.run(
            |run| part.shard.contain(run),
            || {
                let result = call(value_of(&*place.value));
                // A caller that has the result finds the room free.
                drop(permit);
                Ok(result)
            },
        );
    }
}

/// A command that polls a closure until it is ready.
pub(super) struct PollUntilReady<C, F, R> {
    /// Keeps the value until the command has come.
    pub(super) to: Arc<Shared>,
    pub(super) permit: Permit,
    pub(super) poll: F,
    pub(super) sender: Sender<R>,
    /// Is given the waker of the closure, if the caller ends the closure when it goes.
    pub(super) waker: Option<Arc<ClosureWaker>>,
    pub(super) value: PhantomData<fn(&C)>,
}

/// The waker of a closure that is polled on a shard; `None` until the closure has come there.
#[derive(Default)]
pub(super) struct ClosureWaker(Mutex<Option<Waker>>);

impl ClosureWaker {
    fn set(&self, waker: Waker) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    pub(super) fn wake(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<C, R, F> Command for PollUntilReady<C, F, R>
where
    C: 'static,
    R: 'static,
    F: FnMut(&C, &mut Context<'_>) -> Poll<R> + 'static,
{
    fn place(&self) -> usize {
        self.to.place
    }

    fn run(self: Box<Self>, part: &KeptPart, place: &Rc<Place>) {
        let Self { to, permit, poll, sender, waker: of_caller, value } = *self;
        let polled: Box<dyn Polled> =
            Box::new(Polls { poll, sender: Some((sender, permit)), value });
        let number = place.polls.borrow_mut().insert(Some(polled));
        let is_sent = WokenFlag::new(false);
        let Shared { part: sender, place: index, .. } = *to;
        let waker = Arc::new(PollWaker { sender, place: index, number, is_sent });
        if let Some(of_caller) = of_caller {
            // Before the poll, which sees a reply that was dropped until now.
            of_caller.set(Waker::from(Arc::clone(&waker)));
        }
        part.poll(place, &waker);
    }
}

/// A closure that is not ready yet.
struct Polls<C, F, R> {
    poll: F,
    /// `None` when it is done.
    sender: Option<(Sender<R>, Permit)>,
    value: PhantomData<fn(&C)>,
}

impl<C, R, F> Polled for Polls<C, F, R>
where
    C: 'static,
    R: 'static,
    F: FnMut(&C, &mut Context<'_>) -> Poll<R> + 'static,
{
    fn poll(&mut self, shard: &PartHandle, value: &dyn Any, cx: &mut Context<'_>) -> bool {
        // A closure whose caller has gone must take nothing from the value.
        if self.sender.as_ref().is_none_or(|(sender, _)| sender.is_dropped()) {
            return true;
        }
        let mut polled = Poll::Ready(Err(ReplyError::Panicked));
        shard.contain(|| polled = (self.poll)(value_of(value), cx).map(Ok));
        let Poll::Ready(result) = polled else { return false };
        if let Some((sender, permit)) = self.sender.take() {
            drop(permit);
            sender.send(|run| shard.contain(run), result);
        }
        true
    }
}

fn value_of<C: 'static>(value: &dyn Any) -> &C {
    value.downcast_ref().expect("the handles of a value name its type")
}

/// The waker of a closure that is polled on a shard. It may be woken on any thread.
struct PollWaker {
    sender: PartSender<KeptPart>,
    place: usize,
    number: usize,
    /// Whether a message with this waker is on its way.
    is_sent: WokenFlag,
}

impl Wake for PollWaker {
    fn wake(self: Arc<Self>) {
        if self.is_sent.set() {
            let sender = self.sender;
            // A shard that is closed has dropped the closure.
            drop(sender.send(self, |part, waker| part.push(Received::Woken(waker))));
        }
    }
}
