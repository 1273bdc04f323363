//! The protocol of the example `resp_cache`, which runs as a program.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use arbtest::arbitrary::{Result, Unstructured};
use corewheel_test_support::child::Child;

use crate::session::{check_agree, cut, input, talk};

/// No command here answers by the time, by what other clients do, or by what was kept before.
const WORDS: &[&[u8]] = &[
    b"*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
    b"*3\r\n$4\r\nMGET\r\n$1\r\nk\r\n$1\r\nl\r\n",
    b"*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n",
    b"GET k\r\n",
    b"*99999999999999999999\r\n",
    b"*1048577\r\n",
    b"$9223372036854775807\r\n",
    b"$4294967296\r\n",
];
const SIGNS: &[&[u8]] = &[
    b"*1\r\n", b"*2\r\n", b"*0\r\n", b"*-1\r\n", b"*04\r\n", b"$0\r\n", b"$1\r\n", b"$3\r\n",
    b"$-1\r\n", b"GET", b"SET", b"k", b" ", b"\r\n", b"\n", b"\"",
];

/// The program, until it is dropped.
pub(crate) struct Server {
    _program: Child,
    address: SocketAddr,
}

impl Server {
    pub(crate) fn start(path: &Path) -> Self {
        let mut command = Command::new(path);
        command.args(["--listen", "127.0.0.1:0", "--stats", "127.0.0.1:0", "--cores", "2"]);
        command.args(["--timers-max", "100000", "--runtime", "tokio"]);
        let program = Child::start(&mut command);
        let line = program.told("");
        let address = line.split_whitespace().nth(2).and_then(|word| word.parse().ok());
        let address = address.unwrap_or_else(|| panic!("the line names no address: {line}"));
        Self { _program: program, address }
    }

    pub(crate) fn check(&self, bytes: &mut Unstructured) -> Result<()> {
        let sent = [b"FLUSHALL\r\n", &input(bytes, [WORDS, SIGNS], 24)?[..]].concat();
        let whole = talk(self.address, &[&sent]);
        let cut = talk(self.address, &cut(bytes, &sent)?);
        check_agree(&sent, &whole, &cut);
        Ok(())
    }
}
