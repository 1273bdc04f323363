//! How much of what was written to a socket its peer has acknowledged, and the reset of a socket.
//!
//! Why not the bytes that the system has accepted: it accepts up to 4 MB for a peer that reads
//! nothing, and accepts more of a slow reader only when a third of that is free. Why not the length
//! of the send queue alone: bytes may have been accepted meanwhile.
//!
//! Cost: one system call each. On other systems than Linux, nothing is known.

#[cfg(unix)]
use std::os::fd::AsFd;

/// How many bytes the peer of a TCP socket has acknowledged since the connection began. `None` of
/// another socket, and on systems that do not say.
///
/// A peer's kernel acknowledges what its buffers take, so a peer that reads slowly shows its
/// progress in lumps: of a segment, of half its receive buffer, or of a buffer that has grown.
/// The count is of what lies on the wire, also above TLS.
///
/// On Linux it is `tcpi_bytes_acked` of `TCP_INFO`. The answer is `None` before Linux 4.19. Costs a
/// system call.
#[cfg(unix)]
pub fn acknowledged_bytes(socket: &impl AsFd) -> Option<u64> {
    system::sent(socket).map(|sent| sent.acknowledged)
}

/// What the system says of what was written to a TCP socket.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(any(feature = "hyper", feature = "tokio")),
    expect(dead_code, reason = "streams use the others")
)]
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

/// `None` of another socket, and where the system does not say.
#[cfg(all(unix, any(feature = "hyper", feature = "tokio")))]
pub(crate) fn sent(socket: &impl AsFd) -> Option<Sent> {
    system::sent(socket)
}

/// The close of the socket resets the connection: what its peer has not acknowledged is dropped,
/// and the system keeps no memory for it.
#[cfg(all(unix, any(feature = "hyper", feature = "tokio")))]
pub(crate) fn reset_at_close(socket: &impl AsFd) {
    system::reset_at_close(socket);
}

#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::AsFd;
    use std::sync::OnceLock;

    use nix::libc;
    use nix::sys::socket::sockopt::GetStruct;

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

    /// Whether the kernel has all of the fields; nix panics where it has less.
    fn is_known() -> bool {
        static IS_KNOWN: OnceLock<bool> = OnceLock::new();
        *IS_KNOWN.get_or_init(|| {
            let name = nix::sys::utsname::uname().ok();
            let release = name.as_ref().and_then(|name| name.release().to_str());
            let mut numbers = release.unwrap_or("").split(|at: char| !at.is_ascii_digit());
            let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
            (number(), number()) >= (Some(4), Some(19))
        })
    }

    pub(super) fn sent(socket: &impl AsFd) -> Option<Sent> {
        use nix::sys::socket::getsockopt;

        if !is_known() {
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

    #[cfg(any(feature = "hyper", feature = "tokio"))]
    pub(super) fn reset_at_close(socket: &impl AsFd) {
        use nix::sys::socket::{setsockopt, sockopt};

        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        // An error says that the connection has ended.
        let _ = setsockopt(socket, sockopt::Linger, &at_once);
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    use std::os::fd::AsFd;

    pub(super) fn sent(_socket: &impl AsFd) -> Option<super::Sent> {
        None
    }

    #[cfg(any(feature = "hyper", feature = "tokio"))]
    pub(super) fn reset_at_close(_socket: &impl AsFd) {}
}
