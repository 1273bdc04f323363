//! One client: its requests are executed in order, and the replies to all requests that have come
//! together are written together.
//!
//! A request for a key of this core is executed at once, without an allocation. Requests for keys
//! of other cores are gathered, one message for each core, and their replies are put in their
//! places. So the order of a pipeline's effects is kept on each core, and not between cores.
//!
//! Replies are written when there are [`OUTPUT_BYTES`] of them, before more requests are executed:
//! a client that does not take its replies holds its own requests back.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind};

use crate::clients::{Client, Part};
use crate::core::{Core, CoreEnded};
use crate::dispatch::Dispatcher;
use crate::host::network::Stream;
use crate::protocol::Decoder;

/// The room for requests at first.
const INPUT_BYTES: usize = 16 << 10;
/// Replies are written when there are as many bytes of them, although more requests have come.
pub(crate) const OUTPUT_BYTES: usize = 128 << 10;

/// Why a connection ended, for the log.
pub(crate) type End = Cow<'static, str>;

/// What a connection does, unless it is to end.
pub(crate) type Served<T = ()> = Result<T, End>;

const CLIENT_LEFT: End = Cow::Borrowed("the client left");

impl From<CoreEnded> for End {
    fn from(_: CoreEnded) -> Self {
        "the server is shut down".into()
    }
}

/// How long a client may take for the refusal of its connection.
const REFUSAL_MAX: Duration = Duration::from_millis(100);

/// Serves one client until it leaves or a limit ends the connection.
pub(crate) async fn serve(stream: impl Stream, core: Rc<Core>) -> End {
    let shared = &core.shared;
    let Some(client) = core.enter(stream.peer()) else {
        return refuse(stream, &core, "there are as many clients as the limit allows").await;
    };
    let _leave = LeaveOnDrop(&core, &client);
    let limits = ConnLimits::default()
        .read_idle(Duration::from_millis(shared.config.idle.get()))
        .write_timeout(shared.options.write_timeout);
    let conn = match core.timers.connection(limits) {
        Ok(conn) => conn,
        Err(refused) => return refuse(stream, &core, &refused.to_string()).await,
    };
    let mut connection = Connection {
        io: Io { stream, conn, client: Arc::clone(&client), core: Rc::clone(&core) },
        input: vec![0; INPUT_BYTES],
        begin: 0,
        filled: 0,
        input_max: shared.options.request_max + INPUT_BYTES,
        decoder: Decoder::new(shared.options.request_max),
        dispatcher: Dispatcher::new(Rc::clone(&core), Arc::clone(&client)),
    };
    client.account(Part::Input, INPUT_BYTES);
    let Err(end) = connection.run().await;
    connection.io.stream.close().await;
    end
}

/// Tells a client that it is not served, and counts it.
async fn refuse(mut stream: impl Stream, core: &Core, why: &str) -> End {
    let refused = &core.gauges().clients_refused;
    refused.add(1);
    // Few lines for many clients.
    if refused.get().is_power_of_two() {
        tracing::warn!(core = core.index, refused = refused.get(), why, "a client is refused");
    }
    let refusal = stream.write(b"-ERR max number of clients reached\r\n");
    let _ = core.timers.timeout(REFUSAL_MAX, refusal).await;
    stream.close().await;
    why.to_owned().into()
}

struct LeaveOnDrop<'a>(&'a Core, &'a Client);

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.0.shared.clients.leave(self.1);
    }
}

/// The socket of a client, with its limits.
pub(crate) struct Io<S> {
    stream: S,
    conn: ConnTimers,
    client: Arc<Client>,
    core: Rc<Core>,
}

impl<S: Stream> Io<S> {
    /// Writes all bytes of a buffer, and empties it.
    pub(crate) async fn write(&mut self, out: &mut BytesMut) -> Served {
        self.account(Part::Output, out.capacity());
        let mut written = 0;
        while written < out.len() {
            let _writing = self.conn.begin_write();
            let taken = async {
                tokio::select! {
                    biased;
                    taken = self.stream.write(&out[written..]) => Ok(taken),
                    why = self.client.ended() => Err(why),
                }
            };
            let raced = self.conn.race(pin!(taken)).await;
            match raced {
                Raced::Done(Err(why)) => return Err(why.into()),
                Raced::Done(Ok(Ok(0))) => return Err(CLIENT_LEFT),
                Raced::Done(Ok(taken)) => written += taken.map_err(|error| error.to_string())?,
                Raced::Event(event) if event.kind == DeadlineKind::ReadIdle => {}
                Raced::Event(_) => return Err("the client did not take its replies in time".into()),
                Raced::Closed => return Err(CoreEnded.into()),
            }
        }
        out.clear();
        if out.capacity() > 2 * OUTPUT_BYTES {
            *out = BytesMut::new();
        }
        self.account(Part::Output, out.capacity());
        Ok(())
    }

    /// States how many bytes the client takes. It may be ended for that, or another one is.
    pub(crate) fn account(&self, part: Part, bytes: usize) {
        self.client.account(part, bytes);
        self.core.limit_clients();
    }
}

struct Connection<S> {
    io: Io<S>,
    /// `begin..filled` was received and not executed.
    input: Vec<u8>,
    begin: usize,
    filled: usize,
    input_max: usize,
    decoder: Decoder,
    dispatcher: Dispatcher,
}

impl<S: Stream> Connection<S> {
    async fn run(&mut self) -> Result<Infallible, End> {
        loop {
            self.dispatcher.take_messages();
            let received = &self.input[self.begin..self.filled];
            let executed = self.dispatcher.execute(&mut self.io, &mut self.decoder, received);
            let (executed, end) = executed.await?;
            self.begin += executed;
            self.io.write(&mut self.dispatcher.out).await?;
            if let Some(end) = end {
                return Err(end);
            }
            if executed == 0 || self.begin == self.filled {
                self.wait().await?;
            }
        }
    }

    /// Waits for bytes or messages.
    async fn wait(&mut self) -> Served {
        self.make_room();
        loop {
            let (stream, room) = (&mut self.io.stream, &mut self.input[self.filled..]);
            let subscriber = &self.dispatcher.session.subscriber;
            let messages = async {
                subscriber.as_ref()?.ready.notified().await;
                Some(())
            };
            let woken = async {
                tokio::select! {
                    biased;
                    why = self.io.client.ended() => Err(why),
                    read = stream.read(room) => Ok(Some(read)),
                    Some(()) = messages => Ok(None),
                }
            };
            let raced = self.io.conn.race(pin!(woken)).await;
            match raced {
                Raced::Done(Err(why)) => return Err(why.into()),
                Raced::Done(Ok(None)) => return Ok(()),
                Raced::Done(Ok(Some(read))) => match read.map_err(|error| error.to_string())? {
                    0 => return Err(CLIENT_LEFT),
                    read => {
                        self.filled += read;
                        self.io.conn.touch_read();
                        return Ok(());
                    }
                },
                Raced::Event(event)
                    if event.kind == DeadlineKind::ReadIdle
                        && self.dispatcher.session.is_subscribed() => {}
                Raced::Event(_) => return Err("nothing was received for too long".into()),
                Raced::Closed => return Err(CoreEnded.into()),
            }
        }
    }

    /// Makes room behind the bytes that were received.
    fn make_room(&mut self) {
        if self.begin == self.filled {
            (self.begin, self.filled) = (0, 0);
            self.input.truncate(INPUT_BYTES);
            self.input.shrink_to(INPUT_BYTES);
        } else if self.begin > 0 && self.filled == self.input.len() {
            self.input.copy_within(self.begin..self.filled, 0);
            (self.begin, self.filled) = (0, self.filled - self.begin);
        }
        if self.filled == self.input.len() {
            // The decoder refuses a request that would need more.
            self.input.resize((self.filled * 2).min(self.input_max), 0);
        }
        self.io.account(Part::Input, self.input.capacity() + self.decoder.memory());
    }
}
