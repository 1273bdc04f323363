//! How much of what was written to a socket its peer has acknowledged, how much the system accepts
//! for it, and the reset of a socket.
//!
//! Why not the bytes that the system has accepted: it accepts up to 4 MB for a peer that reads
//! nothing, and accepts more of a slow reader only when a third of that is free. Why not the length
//! of the send queue alone: bytes may have been accepted meanwhile.
//!
//! Cost: one system call each. On other systems than Linux, nothing is known.

#[cfg(unix)]
use std::os::fd::AsFd;

#[cfg(unix)]
pub(crate) use self::system::{reset_at_close, sent};
use super::limits::DataRate;

/// The time of a write that waits has so many looks at its socket.
pub(crate) const LOOKS: u32 = 4;

/// The longest time for which what a peer has acknowledged in one lump lets it go without
/// progress, in nanoseconds: see [`DataRate`].
pub(crate) const LUMP_MAX: u64 = DataRate::LUMP_MAX.as_nanos() as u64;

/// What the system says of what was written to a TCP socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// How many bytes the peer has acknowledged since the connection began.
    pub(crate) acknowledged: u64,
    /// How many bytes were accepted and not acknowledged.
    pub(crate) left: u64,
    /// For how long there were such bytes since the connection began, in nanoseconds.
    pub(crate) busy: u64,
    /// How long ago the peer last acknowledged anything, in nanoseconds.
    pub(crate) quiet: u64,
}

/// A socket that [`ConnTimers::race_write`](super::ConnTimers::race_write) asks how much its peer
/// has taken. Each descriptor of a socket is one, so an owner mostly passes `&stream`.
///
/// Another type is for a socket that cannot be borrowed while the write goes on. It is also for a
/// program that counts itself what its peer has acknowledged, as in a protocol of its own:
///
/// ```
/// use corewheel::conn::PeerSocket;
/// use std::cell::Cell;
///
/// /// What the peer has acknowledged by messages of the protocol.
/// struct Counted<'a>(&'a Cell<u64>);
///
/// impl PeerSocket for Counted<'_> {
///     fn acknowledged(&self) -> Option<u64> {
///         Some(self.0.get())
///     }
///
///     fn reset_at_close(&self) {}
/// }
/// ```
pub trait PeerSocket {
    /// How many bytes the peer has acknowledged so far, a count that never falls. `None` if nothing
    /// is known: writes are judged then by what the socket accepts.
    fn acknowledged(&self) -> Option<u64>;

    /// A limit of writing is reached: the close of the socket is to reset the connection, so that
    /// the system keeps nothing of what the peer has not taken.
    fn reset_at_close(&self);

    /// How many bytes were accepted and not acknowledged, for the statistics of those that reach a
    /// limit of writing. `None` if it is not known, as without this method.
    fn left(&self) -> Option<u64> {
        None
    }

    /// From now on the system accepts this many bytes at most beyond those that it has sent; zero
    /// is the system's own bound. False if it has no such bound, as without this method.
    ///
    /// Of a TCP socket on Linux, this is `TCP_NOTSENT_LOWAT`, and costs a system call. What was
    /// accepted before is kept. A socket that a listener accepts has the bound of the listener.
    ///
    /// ```
    /// use corewheel::ConnLimits;
    /// use corewheel::conn::{PeerSocket, UNSENT_MAX};
    /// use std::net::TcpListener;
    ///
    /// /// Listens, for connections that have these limits.
    /// fn listen() -> std::io::Result<(TcpListener, ConnLimits)> {
    ///     let listener = TcpListener::bind("127.0.0.1:0")?;
    ///     let _has_it = listener.set_unsent_max(UNSENT_MAX);
    ///     Ok((listener, ConnLimits::default().unsent_max(UNSENT_MAX)))
    /// }
    /// # listen().unwrap();
    /// ```
    fn set_unsent_max(&self, _bytes: u32) -> bool {
        false
    }
}

/// A peer's kernel acknowledges what its buffers take, so a peer that reads slowly shows its
/// progress in lumps: of a segment, of half its receive buffer, or of a buffer that has grown.
/// The count is of what lies on the wire, also above TLS.
///
/// On Linux it is `tcpi_bytes_acked` of `TCP_INFO`. The answer is `None` before Linux 4.19, in a
/// process whose system calls qemu emulates, and of a socket that is not of TCP.
#[cfg(unix)]
impl<F: AsFd> PeerSocket for F {
    fn acknowledged(&self) -> Option<u64> {
        sent(self).map(|sent| sent.acknowledged)
    }

    fn reset_at_close(&self) {
        reset_at_close(self);
    }

    fn left(&self) -> Option<u64> {
        sent(self).map(|sent| sent.left)
    }

    fn set_unsent_max(&self, bytes: u32) -> bool {
        system::set_unsent_max(self, bytes)
    }
}

/// How many bytes the system accepts for a connection and has not sent, by default, while its peer
/// is not known to be quick: a value for [`ConnLimits::unsent_max`](super::ConnLimits::unsent_max).
pub const UNSENT_MAX: u32 = 256 << 10;

/// A wait of a write is quick if the peer takes half of the bound within this time, in nanoseconds.
pub(crate) const QUICK: u64 = 250_000_000;

/// A larger bound is none: a send buffer seldom grows further.
const BOUND_MAX: u32 = 4 << 20;

/// The bound of what the system accepts and has not sent. A quick peer doubles it until there is
/// none, as the sender may be held up while the socket empties. It begins anew for a slow one.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct UnsentBound {
    /// Zero if there is never a bound.
    least: u32,
    /// Zero if there is none now.
    present: u32,
}

impl UnsentBound {
    pub(crate) fn new(least: u32) -> Self {
        Self { least, present: least }
    }

    /// Zero if there is none.
    pub(crate) fn present(self) -> u32 {
        self.present
    }

    /// The least bound is this. Returns the bound to set.
    pub(crate) fn begin(&mut self, least: u32) -> Option<u32> {
        if std::mem::replace(&mut self.least, least) == least { None } else { self.begin_anew() }
    }

    /// A wait has ended under a bound. Returns the bound to set.
    pub(crate) fn end_wait(&mut self, is_quick: bool) -> Option<u32> {
        if !is_quick {
            return self.begin_anew();
        }
        let double = self.present.checked_mul(2).filter(|double| *double <= BOUND_MAX);
        self.set(double.unwrap_or(0))
    }

    /// The peer is slow. Returns the bound to set.
    pub(crate) fn begin_anew(&mut self) -> Option<u32> {
        self.set(self.least)
    }

    fn set(&mut self, bound: u32) -> Option<u32> {
        (std::mem::replace(&mut self.present, bound) != bound).then_some(bound)
    }
}

/// What the looks at a socket have found.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Acknowledged {
    /// The bytes that the peer had acknowledged at the last look.
    pub(super) bytes: u64,
    /// When a look last found progress, in nanoseconds, or a stream the peer with all.
    pub(super) progress_at: u64,
    /// When the last look was.
    pub(super) looked_at: u64,
    /// How much the system accepts and has not sent.
    pub(super) bound: UnsentBound,
}

impl Acknowledged {
    /// A look at `now`. Returns how many bytes were acknowledged since the last one.
    pub(super) fn look(&mut self, bytes: u64, now: u64) -> u64 {
        let newly = bytes.saturating_sub(self.bytes);
        (self.bytes, self.looked_at) = (bytes, now);
        if newly > 0 {
            self.progress_at = now;
        }
        newly
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::OsStr;
    use std::os::fd::AsFd;
    use std::sync::OnceLock;

    use nix::errno::Errno;
    use nix::libc;
    use nix::sys::socket::sockopt::{self, GetStruct, SetStruct};
    use nix::sys::socket::{getsockopt, setsockopt};
    use nix::sys::utsname::uname;

    use super::Sent;

    const NANOS_PER_MILLI: u64 = 1_000_000;
    const NANOS_PER_MICRO: u64 = 1_000;

    /// The first fields of the kernel's `struct tcp_info`, which never change. The kernel copies as
    /// many bytes as are asked for, or as it has.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct TcpInfo {
        states: [u8; 8],
        timing: [u32; 4],
        unacked: u32,
        losses: [u32; 7],
        last_ack_recv: u32,
        estimates: [u32; 11],
        pacing: [u64; 2],
        bytes_acked: u64,
        bytes_received: u64,
        segments: [u32; 2],
        notsent_bytes: u32,
        others: [u32; 3],
        delivery_rate: u64,
        busy_time: u64,
        limited: [u64; 2],
        delivered: [u32; 2],
        bytes_sent: u64,
        bytes_retrans: u64,
    }

    const _: () = assert!(std::mem::offset_of!(TcpInfo, bytes_acked) == 120);
    const _: () = assert!(size_of::<TcpInfo>() == 216);

    #[derive(Clone, Copy)]
    struct Info;
    nix::getsockopt_impl!(Info, libc::IPPROTO_TCP, libc::TCP_INFO, TcpInfo, GetStruct<TcpInfo>);

    #[derive(Clone, Copy)]
    struct UnsentMax;
    nix::setsockopt_impl!(
        UnsentMax,
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        u32,
        SetStruct<'_, u32>
    );

    /// Each socket has one, of eight bytes.
    #[derive(Clone, Copy)]
    struct Cookie;
    nix::getsockopt_impl!(Cookie, libc::SOL_SOCKET, libc::SO_COOKIE, u64, GetStruct<u64>);

    /// Whether all of the fields come; nix panics where fewer do. They come of a kernel that has
    /// them, but not through an emulator that asks for four bytes of each option, as qemu does. The
    /// kernel refuses to tell four bytes of a cookie.
    fn is_known(socket: &impl AsFd) -> bool {
        static IS_KNOWN: OnceLock<bool> = OnceLock::new();
        if let Some(is_known) = IS_KNOWN.get() {
            return *is_known;
        }
        let is_whole = match getsockopt(socket, Cookie) {
            Ok(_) => true,
            Err(Errno::EINVAL) => false,
            // It is no socket, which says nothing of others.
            Err(_) => return false,
        };
        *IS_KNOWN.get_or_init(|| {
            let system = uname();
            let has_all = |release: &OsStr| release.to_str().is_some_and(has_all_fields);
            is_whole && system.is_ok_and(|system| has_all(system.release()))
        })
    }

    /// Whether a kernel's release is 4.19 or later.
    pub(super) fn has_all_fields(release: &str) -> bool {
        let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
        let mut next = || numbers.next()?.parse::<u32>().ok();
        next().zip(next()).is_some_and(|version| version >= (4, 19))
    }

    /// `None` of another socket, and where the system does not say.
    pub(crate) fn sent(socket: &impl AsFd) -> Option<Sent> {
        if !is_known(socket) {
            return None;
        }
        // Any other socket is refused.
        let info = getsockopt(socket, Info).ok()?;
        // The number of bytes on their way is not said. It is above zero where packets are.
        let on_their_way = info.bytes_sent.saturating_sub(info.bytes_retrans);
        let on_their_way = on_their_way.saturating_sub(info.bytes_acked).max(1);
        let on_their_way = if info.unacked == 0 { 0 } else { on_their_way };
        Some(Sent {
            acknowledged: info.bytes_acked,
            left: on_their_way + u64::from(info.notsent_bytes),
            busy: info.busy_time * NANOS_PER_MICRO,
            quiet: u64::from(info.last_ack_recv) * NANOS_PER_MILLI,
        })
    }

    pub(super) fn set_unsent_max(socket: &impl AsFd, bytes: u32) -> bool {
        setsockopt(socket, UnsentMax, &bytes).is_ok()
    }

    /// The close of the socket resets the connection: what its peer has not acknowledged is
    /// dropped, and the system keeps no memory for it.
    pub(crate) fn reset_at_close(socket: &impl AsFd) {
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        // An error says that the connection has ended.
        let _ = setsockopt(socket, sockopt::Linger, &at_once);
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    use std::os::fd::AsFd;

    pub(crate) fn sent(_socket: &impl AsFd) -> Option<super::Sent> {
        None
    }

    pub(crate) fn reset_at_close(_socket: &impl AsFd) {}

    pub(super) fn set_unsent_max(_socket: &impl AsFd, _bytes: u32) -> bool {
        false
    }
}

#[cfg(test)]
mod bound_tests {
    use super::UnsentBound;

    #[test]
    fn quick_waits_double_the_bound_until_it_is_none_and_a_slow_one_begins_anew() {
        let mut bound = UnsentBound::new(1 << 20);
        assert_eq!(bound.end_wait(true), Some(2 << 20));
        assert_eq!(bound.end_wait(false), Some(1 << 20));
        assert_eq!(bound.end_wait(false), None, "it is set");
        let bounds: Vec<_> = (0..4).map(|_| bound.end_wait(true)).collect();
        assert_eq!(bounds, [Some(2 << 20), Some(4 << 20), Some(0), None]);
        assert_eq!(bound.begin_anew(), Some(1 << 20));
    }

    #[test]
    fn bound_of_zero_is_never_set() {
        let mut bound = UnsentBound::new(0);
        assert_eq!((bound.end_wait(true), bound.begin_anew(), bound.present()), (None, None, 0));
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};

    use super::PeerSocket;
    use super::system::has_all_fields;

    #[test]
    fn file_has_no_peer_and_leaves_sockets_as_they_are() {
        assert_eq!(PeerSocket::acknowledged(&File::open("/dev/null").unwrap()), None);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // An emulator of ARM, in `.ci/run arm`, may know no socket, but does not panic.
        let is_known = PeerSocket::acknowledged(&client).is_some();
        assert!(is_known || cfg!(not(target_arch = "x86_64")));
    }

    #[test]
    fn kernels_before_4_19_are_not_asked() {
        let known = ["4.19.0-26-amd64", "5.4", "6.18.44-fc-v657", "10.0"];
        let unknown = ["2.6.32", "3.10.0-1160.el7.x86_64", "4.18.0-553.el8", "4", "", "next"];
        assert!(known.into_iter().all(has_all_fields));
        assert!(!unknown.into_iter().any(has_all_fields));
    }
}
