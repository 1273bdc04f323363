//! How much of what was written to a socket its peer has acknowledged, and the reset of a socket.
//!
//! Why not the bytes that the system has accepted: it accepts up to 4 MB for a peer that reads
//! nothing, and accepts more of a slow reader only when a third of that is free. Why not the length
//! of the send queue: bytes may have been accepted meanwhile.
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
/// On Linux it is `tcpi_bytes_acked` of `TCP_INFO`, which is there from Linux 4.1 on. Costs a
/// system call.
#[cfg(unix)]
pub fn acknowledged_bytes(socket: &impl AsFd) -> Option<u64> {
    system::acknowledged_bytes(socket)
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

    use nix::libc;
    use nix::sys::socket::sockopt::GetStruct;

    /// The first fields of the kernel's `struct tcp_info`, which never change. The kernel copies as
    /// many bytes as are asked for.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct TcpInfo {
        states: [u8; 8],
        counts: [u32; 24],
        rates: [u64; 2],
        bytes_acked: u64,
    }

    #[derive(Clone, Copy)]
    struct Info;
    nix::getsockopt_impl!(Info, libc::IPPROTO_TCP, libc::TCP_INFO, TcpInfo, GetStruct<TcpInfo>);

    pub(super) fn acknowledged_bytes(socket: &impl AsFd) -> Option<u64> {
        use nix::sys::socket::getsockopt;

        // Any other socket is refused.
        getsockopt(socket, Info).ok().map(|info| info.bytes_acked)
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

    pub(super) fn acknowledged_bytes(_socket: &impl AsFd) -> Option<u64> {
        None
    }

    #[cfg(any(feature = "hyper", feature = "tokio"))]
    pub(super) fn reset_at_close(_socket: &impl AsFd) {}
}
