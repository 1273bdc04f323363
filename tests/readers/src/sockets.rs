//! The system's table of sockets.

use std::collections::HashMap;
use std::fs;
use std::io;

/// One end of a connection of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) is_established: bool,
    /// What the system holds of what was written, in bytes.
    pub(crate) unsent: u64,
}

/// All ends of connections, by the ports of this end and of the other.
pub(crate) struct Sockets(HashMap<(u16, u16), Socket>);

impl Sockets {
    /// Reads the table.
    ///
    /// # Errors
    ///
    /// The system has no such table.
    pub(crate) fn read() -> io::Result<Self> {
        let table = fs::read_to_string("/proc/net/tcp")?;
        let sockets = table.lines().skip(1).filter_map(Self::line).collect();
        Ok(Self(sockets))
    }

    fn line(line: &str) -> Option<((u16, u16), Socket)> {
        let mut fields = line.split_whitespace().skip(1);
        let port = |field: &str| u16::from_str_radix(field.rsplit(':').next()?, 16).ok();
        let (local, peer) = (port(fields.next()?)?, port(fields.next()?)?);
        let is_established = fields.next()? == "01";
        let unsent = u64::from_str_radix(fields.next()?.split(':').next()?, 16).ok()?;
        Some(((local, peer), Socket { is_established, unsent }))
    }

    pub(crate) fn get(&self, ports: (u16, u16)) -> Option<Socket> {
        self.0.get(&ports).copied()
    }
}
