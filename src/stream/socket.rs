//! What a stream asks the socket below it: how much its peer has acknowledged.
//!
//! The system accepts up to 4 MB for a peer that reads nothing, and goes on to accept for a slow
//! reader when a third of that is free. So bytes that are not acknowledged are a write that waits,
//! also where the stream has accepted all. The socket is asked when a deadline of a write has
//! passed, or an idle time.
//!
//! Why a function of the stream and not the socket itself: a stream owns its socket, and so does a
//! TLS library.
//!
//! Why the idle times are moved, and not held back until all is acknowledged: no system call waits
//! for an acknowledgement, so the stream would look for it again and again.
//!
//! Invariants: a stream without a socket is judged by what it accepts. No deadline of a stream with
//! a socket is judged before a look that it has asked for.
//!
//! Cost: a system call at each look. There are four in the limit of a write while bytes are on
//! their way, and one for each idle time that has passed.

use std::marker::PhantomData;
#[cfg(unix)]
use std::os::fd::BorrowedFd;

#[cfg(unix)]
use crate::conn::{self, PeerSocket};
use crate::conn::{AtomicMoment, Moment, QUICK, Sent, UnsentBound};
use crate::link::sync::{AtomicBool, Ordering};

/// What a socket is asked for, or told.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    /// What its peer has acknowledged.
    Sent,
    /// Its close resets the connection.
    Reset,
    /// The system accepts so much that it has not sent; zero for its own bound.
    UnsentMax(u32),
}

/// Where the socket of a stream is.
pub(crate) enum Socket<S> {
    /// Also where the system says nothing of it.
    None(PhantomData<fn(&S)>),
    #[cfg(unix)]
    System(fn(&S) -> Option<BorrowedFd<'_>>),
    /// What its peer has acknowledged, and how its close comes to reset the connection.
    #[cfg(all(feature = "sim", feature = "tokio", unix))]
    Simulated(fn(&S) -> Option<Sent>, fn(&S)),
}

impl<S> Socket<S> {
    /// What the system says of what was sent, if it was asked for that, and says it.
    pub(super) fn ask(&self, stream: &S, ask: Ask) -> Option<Sent> {
        match self {
            Self::None(_) => _ = (stream, ask),
            #[cfg(unix)]
            Self::System(find) => {
                let socket = find(stream)?;
                match ask {
                    Ask::Sent => return conn::sent(&socket),
                    Ask::Reset => conn::reset_at_close(&socket),
                    Ask::UnsentMax(bytes) => _ = PeerSocket::set_unsent_max(&socket, bytes),
                }
            }
            #[cfg(all(feature = "sim", feature = "tokio", unix))]
            Self::Simulated(sent, reset) => match ask {
                Ask::Sent => return sent(stream),
                Ask::Reset => reset(stream),
                // What its system accepts is an option of its network.
                Ask::UnsentMax(_) => {}
            },
        }
        None
    }
}

/// What a stream and its owner say to each other about looks at the socket.
///
/// Relaxed suffices: the owner wakes the stream after it has asked, and the stream the owner.
#[derive(Default)]
pub(super) struct Looks {
    /// Whether the stream has accepted bytes since a look found all acknowledged.
    needed: AtomicBool,
    /// Whether a deadline has passed that waits for a look.
    asked: AtomicBool,
    /// When the stream has last looked.
    looked_at: AtomicMoment,
}

impl Looks {
    pub(super) fn set_needed(&self, is_needed: bool) {
        self.needed.store(is_needed, Ordering::Relaxed);
    }

    /// Whether the owner may judge an event that came at a time. If not, it is to ask.
    pub(super) fn may_judge(&self, came_at: Option<Moment>) -> bool {
        !self.needed.load(Ordering::Relaxed) || self.has_looked_since(came_at)
    }

    /// Whether a look has come since an event did.
    pub(super) fn has_looked_since(&self, came_at: Option<Moment>) -> bool {
        let looked_at = self.looked_at.get();
        looked_at.is_some() && looked_at >= came_at
    }

    /// Before the stream is woken.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether a look was asked for.
    pub(super) fn take_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    /// The stream has looked. Before the owner is woken.
    pub(super) fn answer(&self, at: Moment) {
        self.looked_at.set(at);
    }
}

/// What is known of the peer of a stream with a socket. Whether its time is up is decided by the
/// [timers](crate::conn).
#[derive(Default)]
pub(super) struct Acknowledged {
    /// How many bytes the last look has found acknowledged.
    bytes: u64,
    /// How many bytes the last look has found that were accepted and not acknowledged.
    left: u64,
    /// For how long there had been bytes to acknowledge, at the last look.
    busy: u64,
    /// Whether bytes were accepted since a look found all acknowledged.
    pub(super) has_left: bool,
    /// Since when the least rate counts what was not looked at.
    pub(super) counted_at: u64,
    /// How many bytes there were, acknowledged or not, when the peer was first below the least rate
    /// and was given [`ACK_DELAY`]; `None` if it is not.
    doubted: Option<u64>,
    /// When a write last began to wait.
    pub(super) waits_since: u64,
    bound: UnsentBound,
    /// The bound that was set last.
    set_bound: u32,
}

/// For how long the kernel of a peer keeps an acknowledgement back at most, in nanoseconds:
/// `TCP_DELACK_MAX` of Linux. Small responses, each acknowledged so late, are below a rate whose
/// peer takes all at once.
pub(super) const ACK_DELAY: u64 = 200_000_000;

/// Whether a peer is below the least rate because its kernel acknowledges late.
pub(super) enum Doubt {
    /// It may be: the peer has [`ACK_DELAY`] more.
    Begins,
    /// It was: all that was left when the doubt began is acknowledged.
    Refuted,
    Stays,
}

/// What a look has found.
pub(super) struct Look {
    /// How many bytes were acknowledged since the last look.
    pub(super) bytes: u64,
    /// For how long there were bytes to acknowledge, of the time since the last look.
    pub(super) busy: u64,
    /// When the peer has acknowledged the last of them; now, if some are left.
    pub(super) busy_until: u64,
}

impl Acknowledged {
    /// `unsent_max` is the least bound of what the system accepts and has not sent; zero for none.
    pub(super) fn new(sent: Sent, unsent_max: u32) -> Self {
        let (bytes, bound) = (sent.acknowledged, UnsentBound::new(unsent_max));
        Self { bytes, left: sent.left, busy: sent.busy, bound, ..Self::default() }
    }

    /// How many bytes the last look has found acknowledged, and how many left.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes, self.left)
    }

    /// The socket has accepted bytes of a write that has waited.
    #[inline]
    pub(super) fn end_write(&mut self, now: impl FnOnce() -> u64) {
        if self.bound.present() > 0 {
            self.bound.end_wait(now().saturating_sub(self.waits_since) <= QUICK);
        }
    }

    /// A look has come while a write waits.
    pub(super) fn look_at_write(&mut self, now: u64) {
        if now.saturating_sub(self.waits_since) > QUICK {
            self.bound.begin_anew();
        }
    }

    /// The bound that is to be set, if it has changed since the last call.
    #[inline]
    pub(super) fn take_bound(&mut self) -> Option<u32> {
        let present = self.bound.present();
        (std::mem::replace(&mut self.set_bound, present) != present).then_some(present)
    }

    /// What the last look says of a peer that is below the least rate, or was before.
    pub(super) fn doubt(&mut self, is_below: bool) -> Doubt {
        let (acknowledged, left) = self.bytes();
        if self.doubted.is_some_and(|all| all <= acknowledged) {
            self.doubted = None;
            return if is_below { Doubt::Refuted } else { Doubt::Stays };
        }
        if is_below && self.doubted.is_none() {
            self.doubted = Some(acknowledged + left);
            return Doubt::Begins;
        }
        Doubt::Stays
    }

    /// Looks at the socket at `now`.
    pub(super) fn look(&mut self, sent: Sent, now: u64) -> Look {
        let look = Look {
            bytes: sent.acknowledged.saturating_sub(self.bytes),
            busy: sent.busy.saturating_sub(self.busy),
            busy_until: now.saturating_sub(if sent.left == 0 { sent.quiet } else { 0 }),
        };
        (self.bytes, self.left, self.busy) = (sent.acknowledged, sent.left, sent.busy);
        self.has_left = sent.left > 0;
        look
    }
}

#[cfg(test)]
mod tests {
    use super::{Acknowledged, Doubt, Looks, QUICK};
    use crate::conn::{Moment, Sent};

    #[test]
    fn event_is_judged_by_a_look_that_came_with_it_or_after_it() {
        let at = |nanos| Some(Moment::at(nanos));
        let looks = Looks::default();
        assert!(looks.may_judge(at(5)), "nothing is left to ask for");
        looks.set_needed(true);
        assert!(!looks.may_judge(None) && !looks.may_judge(at(0)), "no look has come");
        looks.answer(Moment::at(5));
        assert!(looks.may_judge(at(4)) && looks.may_judge(at(5)));
        assert!(!looks.may_judge(at(6)), "the look came before the event");
    }

    #[test]
    fn bound_that_a_look_has_changed_is_set_where_the_write_ends_in_the_same_poll() {
        const LEAST: u32 = 1 << 10;
        let sent = Sent { acknowledged: 0, left: 0, busy: 0, quiet: 0 };
        let mut known = Acknowledged::new(sent, LEAST);
        assert_eq!(known.take_bound(), Some(LEAST));
        known.waits_since = 0;
        known.end_write(|| QUICK);
        assert_eq!(known.take_bound(), Some(2 * LEAST));
        known.waits_since = 0;
        known.look_at_write(QUICK + 1);
        known.end_write(|| QUICK + 1);
        assert_eq!(known.take_bound(), Some(LEAST));
    }

    #[test]
    fn peer_below_the_rate_is_in_time_once_what_was_left_is_acknowledged() {
        let sent = |acknowledged, left| Sent { acknowledged, left, busy: 0, quiet: 0 };
        let mut known = Acknowledged::new(sent(0, 0), 0);
        assert!(matches!(known.doubt(false), Doubt::Stays));
        let _look = known.look(sent(10, 5), 0);
        assert!(matches!(known.doubt(true), Doubt::Begins));
        let _look = known.look(sent(14, 9), 0);
        assert!(matches!(known.doubt(true), Doubt::Stays), "a byte is left of those before");
        let _look = known.look(sent(15, 8), 0);
        assert!(matches!(known.doubt(true), Doubt::Refuted));
        assert!(matches!(known.doubt(true), Doubt::Begins));
        let _look = known.look(sent(23, 0), 0);
        assert!(matches!(known.doubt(false), Doubt::Stays), "it keeps what it has done");
        assert!(matches!(known.doubt(true), Doubt::Begins));
    }
}
