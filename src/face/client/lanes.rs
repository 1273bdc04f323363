//! The lanes of a client to all shards, opened when they are first needed. A shard's outbox is such
//! a client.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;

use corewheel_shard::TimerKey;

use super::Client;
use super::batch::Gathered;
use crate::clock::NearClock;
use crate::face::stored::Stored;
use crate::face::{Directory, Post, Request};
use crate::link::lane::{LaneSender, LeftOver, Refusal};
use crate::shard::hooks::Message;
use crate::shard::payload::Outbox;
use crate::shard::request::{Bulk, BulkCancel, BulkReply, Replies};
use crate::values::class::ClassId;
use crate::values::contain::each;
use crate::values::handle::{ShardId, TimerId};
use crate::values::migration::MigrateError;
use crate::values::refused::{Refused, RefusedKind};

type Lane<T> = LaneSender<Request<T>>;

impl<T: 'static> Client<T> {
    pub(crate) fn new(directory: Arc<Directory<T>>) -> Self {
        Self::beginning_with(directory, usize::MAX)
    }

    /// A client whose lanes begin with no more keys than `keys_first`, which is at least 1.
    pub(crate) fn beginning_with(directory: Arc<Directory<T>>, keys_first: usize) -> Self {
        let clock = NearClock::new(directory.time.clock().clone());
        let service = directory.service;
        let (lanes, opened, gathered) = (RefCell::default(), Cell::new(0), Gathered::new());
        Self { directory, clock, service, keys_first, lanes, opened, gathered }
    }

    /// Runs `attempt` with the lane to a shard. An attempt that breaks is the last. After an
    /// attempt that continues, as the shard has closed the lane, another lane is opened and tried:
    /// the shard may have closed it for being idle only. `Err` if the shard is closed.
    #[inline]
    pub(super) fn on_lane<A>(
        &self,
        shard: ShardId,
        mut attempt: impl FnMut(&mut LaneSender<Request<T>>, &Post<T>) -> ControlFlow<A>,
    ) -> Result<A, RefusedKind> {
        let mut lanes = self.lanes.borrow_mut();
        loop {
            let (lane, post) = self.lane(&mut lanes, shard)?;
            if let ControlFlow::Break(done) = attempt(lane, post) {
                return Ok(done);
            }
            lanes[shard.index()] = None;
        }
    }

    #[inline]
    pub(crate) fn schedule_request(
        &self,
        shard: ShardId,
        request: Request<T>,
    ) -> Result<TimerId, Refused<Request<T>>> {
        self.send_gathered();
        let unsent = {
            let mut lanes = self.lanes.borrow_mut();
            let (lane, post) = match self.lane(&mut lanes, shard) {
                Ok(reached) => reached,
                Err(kind) => return Err(kind.of(request)),
            };
            // Written out here and not left to `on_lane`, through which the request would be
            // copied.
            match lane.take_key(&post.doorbell, 0) {
                Ok(key) => match lane.send(Some(key), request, &post.doorbell) {
                    Ok(()) => return Ok(self.service.home(shard).handle(key)),
                    Err(mut back) => back.pop(),
                },
                Err(Refusal::Closed) => Some(request),
                Err(refusal) => {
                    post.note_refused(request.class());
                    return Err(post.refusal(refusal.kind()).of(request));
                }
            }
        };
        let push = |lane: &mut Lane<T>, key, request, post: &Post<T>| {
            lane.send(Some(key), request, &post.doorbell)
        };
        self.schedule_again(shard, unsent, push).map(|(timer, ())| timer)
    }

    /// Sends a timer that a closed lane has not accepted, by `push`.
    #[cold]
    fn schedule_again<A>(
        &self,
        shard: ShardId,
        mut unsent: Option<Request<T>>,
        push: impl Fn(&mut Lane<T>, TimerKey, Request<T>, &Post<T>) -> Result<A, Vec<Request<T>>>,
    ) -> Result<(TimerId, A), Refused<Request<T>>> {
        let class = unsent.as_ref().map_or(ClassId::NONE, Request::class);
        let sent = self.on_lane(shard, |lane, post| match lane.take_key(&post.doorbell, 0) {
            Ok(key) => {
                let request = unsent.take().expect("what was not sent comes back");
                match push(lane, key, request, post) {
                    Ok(sent) => ControlFlow::Break(Ok((key, sent))),
                    Err(mut back) => {
                        unsent = back.pop();
                        ControlFlow::Continue(())
                    }
                }
            }
            Err(Refusal::Closed) => ControlFlow::Continue(()),
            Err(refusal) => {
                post.note_refused(class);
                ControlFlow::Break(Err(refusal.kind()))
            }
        });
        let unsent = || unsent.expect("what was not sent comes back");
        match sent {
            Ok(Ok((key, sent))) => Ok((self.service.home(shard).handle(key), sent)),
            Ok(Err(kind)) | Err(kind) => Err(kind.of(unsent())),
        }
    }

    /// Cancels a timer that this client has sent, if it can be cancelled where it lies in its lane.
    #[inline]
    pub(super) fn cancel_in_lane(&self, timer: TimerId) -> bool {
        let mut lanes = self.lanes.borrow_mut();
        let lane = lanes.get_mut(timer.shard().index()).and_then(Option::as_mut);
        lane.is_some_and(|lane| lane.cancel(timer.key()))
    }

    /// Sends a cancel or a reset. If the shard is closed, the request goes to where its timer has
    /// gone, or is dropped, and with it the way for the reply.
    #[inline]
    pub(crate) fn send(&self, shard: ShardId, request: Request<T>) {
        self.send_gathered();
        self.send_now(shard, request);
    }

    /// Sends a cancel or a reset, and nothing that a batch has gathered.
    #[inline]
    pub(super) fn send_now(&self, shard: ShardId, request: Request<T>) {
        let unsent = {
            let mut lanes = self.lanes.borrow_mut();
            match self.lane(&mut lanes, shard) {
                Err(_) => vec![request],
                Ok((lane, post)) => match lane.send_always(request, &post.doorbell) {
                    Ok(()) => return,
                    Err(back) => back,
                },
            }
        };
        self.send_commands(shard, unsent);
    }

    /// Sends cancels and resets.
    #[cold]
    pub(super) fn send_commands(&self, shard: ShardId, mut unsent: Vec<Request<T>>) {
        if self.send_all(shard, &mut unsent).is_err() {
            self.send_after(shard, unsent);
        }
    }

    /// Sends requests that need no key. `Err` if the shard is closed or there is no such shard; the
    /// requests that it has not accepted are left, oldest first.
    fn send_all(&self, shard: ShardId, unsent: &mut Vec<Request<T>>) -> Result<(), RefusedKind> {
        self.on_lane(shard, |lane, post| {
            let send = |request| lane.send_always(request, &post.doorbell).err();
            *unsent = unsent.drain(..).filter_map(send).flatten().collect();
            if unsent.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    /// Sends a message to a part of a shard. `Err` with the message if the shard is closed.
    pub(crate) fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>> {
        self.send_gathered();
        let mut unsent = vec![Request::Bulk(Box::new(Bulk::Message(message)))];
        if self.send_all(shard, &mut unsent).is_ok() {
            return Ok(());
        }
        let message = match unsent.pop() {
            Some(Request::Bulk(bulk)) => match *bulk {
                Bulk::Message(message) => message,
                _ => unreachable!("the request that was sent last comes back last"),
            },
            _ => unreachable!("the request that was sent last comes back last"),
        };
        self.send_after(shard, unsent);
        Err(message)
    }

    /// Has the waker of a future woken when this client may send to a shard again, after a refusal
    /// as busy, or in the next tick, after a refusal as reserved. `Err` if the shard is closed or
    /// there is no such shard.
    pub(crate) fn wait_for_room(&self, shard: ShardId, waker: Waker) -> Result<(), RefusedKind> {
        let LeftOver { missed, unused } = {
            let mut lanes = self.lanes.borrow_mut();
            let (lane, post) = self.lane(&mut lanes, shard)?;
            post.note_waiting(shard);
            lane.wait_for_room(waker, &post.doorbell)
        };
        drop(unused);
        // The lane is closed, so their futures find that out at once.
        each(missed, Waker::wake);
        Ok(())
    }

    /// The lane to a shard, opened if there is none.
    #[inline]
    pub(super) fn lane<'a>(
        &'a self,
        lanes: &'a mut Vec<Option<LaneSender<Request<T>>>>,
        shard: ShardId,
    ) -> Result<(&'a mut LaneSender<Request<T>>, &'a Post<T>), RefusedKind> {
        let post = self.directory.post(shard).ok_or(RefusedKind::NoSuchShard)?;
        let index = shard.index();
        if lanes.len() <= index {
            lanes.resize_with(index + 1, || None);
        }
        let lane = &mut lanes[index];
        match lane {
            Some(lane) => Ok((lane, post)),
            None => Ok((self.open_lane(lane, shard)?, post)),
        }
    }

    #[cold]
    fn open_lane<'a>(
        &self,
        lane: &'a mut Option<LaneSender<Request<T>>>,
        shard: ShardId,
    ) -> Result<&'a mut LaneSender<Request<T>>, RefusedKind> {
        let lane = lane.insert(self.directory.connect(shard, self.keys_first)?);
        self.opened.set(self.opened.get() + 1);
        lane.number = self.opened.get();
        Ok(lane)
    }

    /// Sends the requests that a closed shard has not received to where their timers have migrated.
    /// The rest is dropped, which wakes the callers that wait for a reply, so nothing may be
    /// borrowed.
    #[cold]
    pub(super) fn send_after(&self, shard: ShardId, unsent: Vec<Request<T>>) {
        let home = self.service.home(shard);
        let current = |key| self.directory.current_handle(home.handle(key));
        for request in unsent {
            match request {
                Request::Cancel { key, reply } => {
                    if let Some(timer) = current(key) {
                        self.send_now(timer.shard(), Request::Cancel { key: timer.key(), reply });
                    }
                }
                Request::Reset { key, deadline, reply } => {
                    if let Some(timer) = current(key) {
                        let key = timer.key();
                        self.send_now(timer.shard(), Request::Reset { key, deadline, reply });
                    }
                }
                Request::Bulk(bulk) => match *bulk {
                    Bulk::Remaining { key, reply } => {
                        if let Some(timer) = current(key) {
                            let bulk = Bulk::Remaining { key: timer.key(), reply };
                            self.send_now(timer.shard(), Request::Bulk(Box::new(bulk)));
                        }
                    }
                    Bulk::Migrate { key, to, reply } => {
                        if let Some(timer) = current(key) {
                            let bulk = Bulk::Migrate { key: timer.key(), to, reply };
                            self.send_now(timer.shard(), Request::Bulk(Box::new(bulk)));
                        }
                    }
                    Bulk::Cancel(many) => self.cancel_many_after(many, current),
                    // A shard that ends wakes the futures that wait for room, and a message that is
                    // dropped replies to its caller.
                    Bulk::Schedule(_) | Bulk::MigrateAll { .. } | Bulk::Message(_) => {}
                },
                Request::Schedule { .. } | Request::Call { .. } => {}
            }
        }
    }

    fn cancel_many_after(
        &self,
        mut many: BulkCancel<Stored<T>>,
        current: impl Fn(TimerKey) -> Option<TimerId>,
    ) {
        for key in many.keys {
            let timer = current(key);
            let (reply, later) = many.replies.is_some().then(oneshot::channel).unzip();
            if let (Some(replies), Some(later)) = (&mut many.replies, later) {
                replies.push(BulkReply::Later(later));
            }
            if let Some(timer) = timer {
                self.send_now(timer.shard(), Request::Cancel { key: timer.key(), reply });
            }
        }
        drop(many.replies.map(Replies::send));
    }
}

impl<T: 'static> Outbox<Stored<T>> for Client<T> {
    fn new(directory: Arc<Directory<T>>) -> Self {
        Self::new(directory)
    }

    fn send(&self, shard: ShardId, request: Request<T>) {
        self.send(shard, request);
    }

    fn send_timer(
        &self,
        shard: ShardId,
        check: impl Fn() -> Result<(), MigrateError>,
        mut pack: impl FnMut(TimerKey, Option<Request<T>>) -> Request<T>,
    ) -> Result<TimerKey, (MigrateError, Option<Request<T>>)> {
        self.send_gathered();
        let mut packed = None;
        let sent = self.on_lane(shard, |lane, post| {
            if packed.is_none()
                && let Err(error) = check()
            {
                return ControlFlow::Break(Err(error));
            }
            match lane.take_key(&post.doorbell, 0) {
                Err(Refusal::Full | Refusal::Reserved { .. } | Refusal::Busy) => {
                    ControlFlow::Break(Err(MigrateError::Full(shard)))
                }
                Err(Refusal::Closed) => ControlFlow::Continue(()),
                Ok(key) => match lane.send(Some(key), pack(key, packed.take()), &post.doorbell) {
                    Ok(()) => ControlFlow::Break(Ok(key)),
                    Err(mut back) => {
                        packed = back.pop();
                        ControlFlow::Continue(())
                    }
                },
            }
        });
        let sent = sent.unwrap_or_else(|kind| {
            Err(match kind {
                RefusedKind::NoSuchShard => MigrateError::NoSuchShard(shard),
                _ => MigrateError::Closed(shard),
            })
        });
        sent.map_err(|error| (error, packed))
    }
}
