//! The keys that a shard grants to threads, and takes back for others.
//!
//! A key is a reserved slot. When no slot is free, the slots of unused keys are: a turn closes idle
//! lanes for threads that were refused for want of keys, and a command of the shard's own thread
//! does so for its timer. The thread of a closed lane opens another one when it next sends.
//!
//! A lane that the present turn has received from is in use, and no such lane is closed.

use corewheel_shard::{Tick, TimerKey};

use super::core::State;
use super::request::Request;
use crate::link::lane::{Exhausted, LaneReceiver};

/// The most idle lanes that are closed at once for their keys.
const CLOSED_MAX: usize = 64;

impl<T: 'static> State<T> {
    /// Grants a thread up to `wanted` keys, and returns how many.
    pub(super) fn grant_some(
        &mut self,
        lane: &mut LaneReceiver<Request<T>>,
        wanted: usize,
    ) -> usize {
        let has_all = self.threads.take_back(&self.wheel, wanted);
        for granted in 0..wanted {
            let key =
                if has_all { self.wheel.grant() } else { self.threads.grant_key(&mut self.wheel) };
            // If the wheel has no free slot, a thread with a lane gets a key of the pool.
            let Some(key) = key.or_else(|| self.take_pool_key()) else {
                return granted;
            };
            lane.grant(key);
        }
        wanted
    }

    /// Closes idle lanes for the threads of short lanes that were refused, grants their keys, and
    /// sets how the threads of short lanes are refused from now on.
    #[cold]
    pub(super) fn grant_reclaimed(
        &mut self,
        lanes: &mut Vec<LaneReceiver<Request<T>>>,
        tick: Tick,
        now: u64,
    ) {
        let lacks_key = |lane: &LaneReceiver<_>| lane.is_short() && lane.lacks_key();
        if lanes.iter().any(lacks_key) && self.take_credit_back() {
            self.grant_one_each(lanes.iter_mut().filter(|lane| lacks_key(lane)));
        }
        let lacking = lanes.iter().filter(|lane| lacks_key(lane)).count();
        if lacking > 0 {
            let idle = idle_lanes(lanes, tick);
            self.close_idle(lanes, idle, lacking, now);
            self.grant_one_each(lanes.iter_mut().filter(|lane| lacks_key(lane)));
        }
        let count = |is: &dyn Fn(&LaneReceiver<_>) -> bool| lanes.iter().filter(|l| is(l)).count();
        let (idle, holders) = (count(&|lane| lane.is_idle(tick)), count(&|l| l.keys_held() > 0));
        let held: usize = lanes.iter().map(LaneReceiver::keys_held).sum();
        let has_free = self.free_slots() > 0;
        for lane in lanes.iter().filter(|lane| lane.is_short()) {
            // The keys of another idle lane come back when this thread is refused, and a free slot
            // is a key of the next turn.
            let is_exhausted = !has_free && idle == usize::from(lane.is_idle(tick));
            let own = lane.keys_held();
            lane.set_exhausted(is_exhausted.then(|| Exhausted {
                keys: (held - own) as u32,
                threads: (holders - usize::from(own > 0)) as u32,
            }));
        }
    }

    fn grant_one_each<'a>(
        &mut self,
        lanes: impl Iterator<Item = &'a mut LaneReceiver<Request<T>>>,
    ) {
        for lane in lanes {
            self.grant_some(lane, 1);
        }
    }

    /// Makes a slot free in a full wheel: that of a key in the key pool, else those of keys that an
    /// idle lane holds. False if there is none.
    #[cold]
    pub(super) fn free_slot(&mut self) -> bool {
        match self.take_pool_key() {
            Some(key) => self.wheel.revoke(key),
            None => self.reclaim(),
        }
    }

    /// Closes an idle lane that holds keys. False if there is none.
    #[cold]
    fn reclaim(&mut self) -> bool {
        if self.wheel.granted() == 0 {
            return false;
        }
        let now = self.directory.time.nanos();
        let tick = self.directory.time.floor(now);
        // The reply to a cancel that waits for a key would be left for the next turn.
        let is_quiet = |lane: &LaneReceiver<Request<T>>| {
            self.inbox.overtaken.is_empty()
                || !lane.holds_any(|key| self.inbox.overtaken.contains_key(key))
        };
        let mut idle = idle_lanes(&self.inbox.lanes, tick);
        idle.retain(|at| is_quiet(&self.inbox.lanes[*at]));
        if idle.iter().all(|at| self.inbox.lanes[*at].keys_held() == 0) {
            return false;
        }
        let mut lanes = std::mem::take(&mut self.inbox.lanes);
        self.close_idle(&mut lanes, idle, 1, now);
        self.inbox.lanes = lanes;
        true
    }

    /// Closes these lanes, the first of them first, until `count` keys have come back.
    fn close_idle(
        &mut self,
        lanes: &mut Vec<LaneReceiver<Request<T>>>,
        idle: Vec<usize>,
        count: usize,
        now: u64,
    ) {
        let mut left = count;
        let mut closed = Vec::new();
        for at in idle {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(lanes[at].keys_held());
            closed.push(at);
        }
        // From the last on, so that a removal changes no other place.
        closed.sort_unstable();
        for at in closed.into_iter().rev() {
            let lane = lanes.remove(at);
            self.close_lane(lane, now);
        }
    }

    /// Takes a key out of the key pool; `None` if the pool is empty.
    fn take_pool_key(&self) -> Option<TimerKey> {
        self.post().mailbox.take_key()
    }
}

/// The places of idle lanes, those first that were not used for longest; at most [`CLOSED_MAX`].
fn idle_lanes<T: 'static>(lanes: &[LaneReceiver<Request<T>>], tick: Tick) -> Vec<usize> {
    let idle = lanes.iter().enumerate().filter(|(_, lane)| lane.is_idle(tick));
    let mut idle: Vec<_> = idle.map(|(at, lane)| (lane.used_at, at)).collect();
    idle.sort_unstable();
    idle.into_iter().take(CLOSED_MAX).map(|(_, at)| at).collect()
}
