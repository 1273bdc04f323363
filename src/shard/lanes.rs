//! The lanes of a thread to all shards. Each is opened when it is first needed.

use std::cell::RefCell;
use std::sync::Arc;

use corewheel_shard::Tick;

use super::parts::Message;
use super::request::{Directory, Post};
use super::request::{Request, freed_by};
use crate::clock::NearClock;
use crate::clock::when::When;
use crate::link::lane::LaneSender;
use crate::link::wake_up::Doorbell;
use crate::values::class::ClassId;
use crate::values::ids::{ServiceId, ShardId, TimerId};
use crate::values::refused::{Refused, RefusedKind};

type Lane<T> = LaneSender<Request<T>>;

/// Whether a lane that is opened begins with keys. A shard takes back one by one those that a
/// thread has not used when it ends, so a thread that only sends messages is given none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    Some,
    None,
}

/// Ways to the shards of a service. `Send` and not `Sync`.
///
/// # Memory
///
/// A lane takes about 12 KiB by default: 8 bytes for each key that it may ever hold, which are a
/// 32nd of the shard's capacity and at most `lane_capacity`, and 56 bytes or more for each of 64
/// requests.
pub(crate) struct Lanes<T: 'static> {
    directory: Arc<Directory<T>>,
    clock: NearClock,
    service: ServiceId,
    of_shards: RefCell<Vec<Option<Lane<T>>>>,
}

impl<T: 'static> Lanes<T> {
    pub(crate) fn new(directory: Arc<Directory<T>>) -> Self {
        let clock = NearClock::new(directory.time.clock().clone());
        let service = directory.service;
        Self { directory, clock, service, of_shards: RefCell::default() }
    }

    pub(crate) fn directory(&self) -> &Arc<Directory<T>> {
        &self.directory
    }

    /// What the clock shows or a little later.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.nanos()
    }

    /// The tick at which something is due, if `now` is the present in nanoseconds.
    #[inline]
    pub(crate) fn tick_of(&self, when: impl When, now: u64) -> Tick {
        self.directory.time.tick_of(when, || now)
    }

    /// Runs `attempt` with the lane to a shard and with a payload, and returns what it returns. An
    /// attempt that is refused gives the payload back. After one that finds the lane closed another
    /// lane is opened and tried: the shard may have closed it for being idle only.
    #[inline]
    pub(crate) fn on_lane<X, A>(
        &self,
        (shard, keys): (ShardId, Keys),
        class: ClassId,
        mut payload: X,
        mut attempt: impl FnMut(&mut Lane<T>, &Doorbell, X) -> Result<A, (RefusedKind, X)>,
    ) -> Result<A, Refused<X>> {
        let mut lanes = self.of_shards.borrow_mut();
        loop {
            let (lane, post) = match self.lane(&mut lanes, (shard, keys)) {
                Ok(reached) => reached,
                Err(kind) => return Err(kind.of(payload)),
            };
            match attempt(lane, &post.doorbell, payload) {
                Ok(done) => return Ok(done),
                Err((RefusedKind::Closed, back)) => payload = back,
                Err((refusal, back)) => {
                    post.note_refused(class);
                    return Err(post.refusal(refusal).of(back));
                }
            }
            lanes[shard.index()] = None;
        }
    }

    /// Sends a timer by a request that `build` makes of a payload, and from which `payload_of`
    /// takes the payload if the shard has not accepted it.
    #[inline]
    pub(crate) fn schedule<X>(
        &self,
        shard: ShardId,
        class: ClassId,
        payload: X,
        build: impl Fn(X) -> Request<T>,
        payload_of: impl Fn(Request<T>) -> Option<X>,
    ) -> Result<TimerId, Refused<X>> {
        let key = self.on_lane(
            (shard, Keys::Some),
            class,
            payload,
            |lane, doorbell, payload| match lane.reserve(doorbell) {
                Ok(slot) => slot.send(|_| build(payload)).map_err(|back| {
                    (
                        RefusedKind::Closed,
                        payload_of(back).expect("it is the request that was sent"),
                    )
                }),
                Err(refusal) => Err((refusal, payload)),
            },
        )?;
        Ok(self.service.home(shard).timer(key))
    }

    /// The tick by which a shard must have received a cancel of now that no caller waits for.
    fn freed_by(&self) -> Tick {
        freed_by(&self.directory.time, self.nanos())
    }

    /// Cancels a timer that this thread has sent, if it can be cancelled where it lies in its lane.
    #[inline]
    pub(crate) fn cancel_in_lane(&self, timer: TimerId) -> bool {
        let mut lanes = self.of_shards.borrow_mut();
        let lane = lanes.get_mut(timer.shard().index()).and_then(Option::as_mut);
        let post = self.directory.post(timer.shard());
        let (Some(lane), Some(post)) = (lane, post) else { return false };
        lane.cancel(timer.key(), &post.doorbell, || self.freed_by())
    }

    /// Sends a cancel or a reset. If the shard is closed, the request is dropped, which wakes the
    /// caller that waits for a reply, so nothing may be borrowed.
    #[inline]
    pub(crate) fn send(&self, shard: ShardId, request: Request<T>) {
        drop(self.send_always((shard, Keys::Some), request));
    }

    /// Sends a request that needs no key. `Err` with it if the shard is closed or there is no such
    /// shard.
    #[inline]
    fn send_always(
        &self,
        to: (ShardId, Keys),
        request: Request<T>,
    ) -> Result<(), Refused<Request<T>>> {
        self.on_lane(to, ClassId::NONE, request, |lane, doorbell, request| {
            let sent = lane.send_always(request, doorbell, || self.freed_by());
            sent.map_err(|back| (RefusedKind::Closed, back))
        })
    }

    /// Sends a message to a part of a shard. `Err` with the message if the shard is closed.
    pub(crate) fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>> {
        let request = Request::Message(message);
        self.send_always((shard, Keys::None), request).map_err(|refused| {
            refused.into_value().into_message().expect("it is the request that was sent")
        })
    }

    /// The lane to a shard, opened if there is none.
    #[inline]
    fn lane<'a>(
        &'a self,
        lanes: &'a mut Vec<Option<Lane<T>>>,
        (shard, keys): (ShardId, Keys),
    ) -> Result<(&'a mut Lane<T>, &'a Post<T>), RefusedKind> {
        let post = self.directory.post(shard).ok_or(RefusedKind::NoSuchShard)?;
        let index = shard.index();
        if lanes.len() <= index {
            lanes.resize_with(index + 1, || None);
        }
        let lane = &mut lanes[index];
        match lane {
            Some(lane) => Ok((lane, post)),
            None => Ok((self.open_lane(lane, (shard, keys))?, post)),
        }
    }

    #[cold]
    fn open_lane<'a>(
        &self,
        lane: &'a mut Option<Lane<T>>,
        (shard, keys): (ShardId, Keys),
    ) -> Result<&'a mut Lane<T>, RefusedKind> {
        let keys_first = if keys == Keys::Some { usize::MAX } else { 0 };
        Ok(lane.insert(self.directory.connect(shard, keys_first)?))
    }
}
