//! A connection over which numbers go both ways, eight bytes each.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};

use tokio::sync::Notify;

use crate::network::Stream;

const FRAME_BYTES: usize = 8;
const BUFFER_BYTES: usize = 512 * FRAME_BYTES;

/// The bytes to be sent over a connection. The tasks and callbacks of its core share it.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: RefCell<Vec<u8>>,
    finished: Cell<bool>,
    changed: Notify,
}

impl Outbox {
    pub(crate) fn send(&self, number: u64) {
        self.bytes.borrow_mut().extend_from_slice(&number.to_be_bytes());
        self.changed.notify_one();
    }

    /// Closes the connection when all bytes are sent.
    pub(crate) fn finish(&self) {
        self.finished.set(true);
        self.changed.notify_one();
    }
}

/// Sends the bytes of the outbox and calls `received` for each number that comes, until either side
/// has finished.
pub(crate) async fn run(
    mut stream: impl Stream,
    outbox: &Outbox,
    received: impl FnMut(u64),
) -> io::Result<()> {
    let end = exchange(&mut stream, outbox, received).await;
    stream.close().await;
    end
}

async fn exchange(
    stream: &mut impl Stream,
    outbox: &Outbox,
    mut received: impl FnMut(u64),
) -> io::Result<()> {
    let mut buffer = [0; BUFFER_BYTES];
    let mut filled = 0;
    loop {
        let bytes = outbox.bytes.take();
        if !bytes.is_empty() {
            write_all(stream, &bytes).await?;
            continue;
        }
        if outbox.finished.get() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = outbox.changed.notified() => {}
            read = stream.read(&mut buffer[filled..]) => match read? {
                0 if filled == 0 => return Ok(()),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => {
                    filled += count;
                    let (frames, _) = buffer[..filled].as_chunks();
                    for frame in frames {
                        received(u64::from_be_bytes(*frame));
                    }
                    // The rest is the beginning of the next frame.
                    let whole = filled - filled % FRAME_BYTES;
                    buffer.copy_within(whole..filled, 0);
                    filled -= whole;
                }
            },
        }
    }
}

async fn write_all(stream: &mut impl Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes).await? {
            0 => return Err(ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}
