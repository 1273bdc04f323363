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
use std::time::Duration;

use bytes::BytesMut;
use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers};

use crate::client::{Client, Part};
use crate::commands::{self, Call, Route, Run};
use crate::core::{Core, SHUT_DOWN};
use crate::host::network::Stream;
use crate::keyspace::Key;
use crate::protocol::{Args, Decoder, Proto, Reply};
use crate::remote::{Next, Remote};
use crate::session::Session;

/// The room for requests at first.
const INPUT_BYTES: usize = 16 << 10;
/// Replies are written when there are as many bytes of them, although more requests have come.
const OUTPUT_BYTES: usize = 128 << 10;
/// How long a client may take for the refusal of its connection.
const REFUSAL_MAX: Duration = Duration::from_millis(100);

/// Why a connection ended, for the log.
pub(crate) type End = Cow<'static, str>;

/// What a connection does, unless it is to end.
type Served<T = ()> = Result<T, End>;

const CLIENT_LEFT: End = Cow::Borrowed("the client left");

/// Serves one client until it leaves or a limit ends the connection.
pub(crate) async fn serve(stream: impl Stream, core: Rc<Core>) -> End {
    let options = &core.shared.options;
    let Some(client) = core.enter() else {
        return refuse(stream, &core, "there are as many clients as the limit allows").await;
    };
    let _leave = LeaveOnDrop(&core, &client);
    let limits = ConnLimits::default().write_timeout(options.write_timeout);
    let conn = match core.timers.connection(limits) {
        Ok(conn) => conn,
        Err(refused) => return refuse(stream, &core, &refused.to_string()).await,
    };
    let (client, core) = (Rc::clone(&client), Rc::clone(&core));
    let mut connection = Connection {
        stream,
        conn,
        input: vec![0; INPUT_BYTES],
        begin: 0,
        filled: 0,
        decoder: Decoder::new(options.request_max),
        remote: Remote::new(core.shared.cores()),
        session: Session { core, client, proto: Proto::Resp2, is_closing: false },
        out: BytesMut::new(),
    };
    let Err(end) = connection.run().await;
    connection.stream.close().await;
    end
}

/// Tells a client that it is not served, and counts it.
async fn refuse(mut stream: impl Stream, core: &Core, why: &str) -> End {
    core.gauges().clients_refused.add(1);
    let refusal = stream.write(b"-ERR max number of clients reached\r\n");
    let _ = core.timers.timeout(REFUSAL_MAX, refusal).await;
    stream.close().await;
    why.to_owned().into()
}

struct LeaveOnDrop<'a>(&'a Core, &'a Client);

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

struct Connection<S> {
    stream: S,
    conn: ConnTimers,
    input: Vec<u8>,
    /// `begin..filled` of the input was received and not executed.
    begin: usize,
    filled: usize,
    decoder: Decoder,
    session: Session,
    remote: Remote,
    /// Replies that are not written.
    out: BytesMut,
}

impl<S: Stream> Connection<S> {
    async fn run(&mut self) -> Result<Infallible, End> {
        loop {
            self.session.client.take_messages(&mut self.out, self.session.proto, OUTPUT_BYTES);
            let input = std::mem::take(&mut self.input);
            let (executed, end) = self.execute(&input[self.begin..self.filled]).await?;
            self.input = input;
            self.begin += executed;
            self.write().await?;
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
        let woken = async {
            tokio::select! {
                biased;
                messages = self.session.client.has_messages() => messages.map(|()| None),
                read = self.stream.read(&mut self.input[self.filled..]) => Ok(Some(read)),
            }
        };
        let raced = self.conn.race(pin!(woken)).await;
        match raced {
            Raced::Done(Ok(None)) => {}
            Raced::Done(Ok(Some(read))) => match read.map_err(|error| error.to_string())? {
                0 => return Err(CLIENT_LEFT),
                read => self.filled += read,
            },
            Raced::Done(Err(why)) => return Err(why.into()),
            // No limit holds while no write waits.
            Raced::Event(_) | Raced::Closed => return Err(SHUT_DOWN.into()),
        }
        Ok(())
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
            let max = self.session.core.shared.options.request_max + INPUT_BYTES;
            self.input.resize((self.filled * 2).min(max), 0);
        }
        self.account(Part::Input, self.input.capacity() + self.decoder.memory());
    }

    /// States how many bytes the client takes. It may be ended for that, or another one is.
    fn account(&self, part: Part, bytes: usize) {
        self.session.client.account(part, bytes);
        self.session.core.limit_clients();
    }

    fn reply(&mut self) -> Reply<'_> {
        Reply { out: &mut self.out, proto: self.session.proto }
    }

    /// Writes all replies.
    async fn write(&mut self) -> Served {
        self.account(Part::Output, self.out.capacity());
        let mut written = 0;
        while written < self.out.len() {
            let _writing = self.conn.begin_write();
            let taken = async {
                tokio::select! {
                    biased;
                    taken = self.stream.write(&self.out[written..]) => Ok(taken),
                    why = self.session.client.ended() => Err(why),
                }
            };
            let raced = self.conn.race(pin!(taken)).await;
            match raced {
                Raced::Done(Err(why)) => return Err(why.into()),
                Raced::Done(Ok(Ok(0))) => return Err(CLIENT_LEFT),
                Raced::Done(Ok(taken)) => written += taken.map_err(|error| error.to_string())?,
                Raced::Event(_) => return Err("the client did not take its replies in time".into()),
                Raced::Closed => return Err(SHUT_DOWN.into()),
            }
        }
        self.out.clear();
        if self.out.capacity() > 2 * OUTPUT_BYTES {
            self.out = BytesMut::new();
        }
        self.account(Part::Output, self.out.capacity());
        Ok(())
    }

    /// Executes the requests that have come, until there are enough replies. Returns the length of
    /// those requests, and why the connection is to end when the replies are written.
    async fn execute(&mut self, received: &[u8]) -> Served<(usize, Option<End>)> {
        let (mut at, mut end) = (0, None);
        while end.is_none() && self.out.len() < OUTPUT_BYTES {
            match self.decoder.decode(&received[at..]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let args = self.decoder.args(&received[at..]);
                    if !args.is_empty() {
                        self.dispatch(&args).await?;
                        end = self.session.is_closing.then(|| "the client asked for it".into());
                    }
                    at += length;
                }
                Err(malformed) => {
                    self.resolve().await?;
                    self.reply().error(&malformed);
                    end = Some(malformed.into());
                }
            }
        }
        self.resolve().await?;
        self.session.core.publish_events();
        Ok((at, end))
    }

    /// Waits for the replies of other cores, and writes them as they come where there are many.
    async fn resolve(&mut self) -> Served {
        while !self.remote.is_resolved() {
            self.session.core.publish_events();
            self.account(Part::Remote, self.remote.memory());
            let Session { core, proto, .. } = &self.session;
            self.remote.resolve(core, *proto, &mut self.out).await?;
            self.account(Part::Remote, self.remote.memory());
            if !self.remote.is_resolved() {
                self.write().await?;
            }
        }
        Ok(())
    }

    async fn dispatch(&mut self, args: Args<'_>) -> Served {
        let command = match commands::check(args) {
            Ok(command) => command,
            Err(refusal) => {
                self.reply().error(&refusal);
                return Ok(());
            }
        };
        match command.route {
            Route::Key(run) => self.on_key(run, args[1], args).await,
            Route::Each => {
                self.reply().array(args.len() - 1);
                for key in &args[1..] {
                    self.on_key(commands::get, key, &[b"get", key]).await?;
                }
                Ok(())
            }
            Route::Count(is_it) => {
                let mut count = 0;
                for name in &args[1..] {
                    let (key, core) = (Key::new(name), &self.session.core);
                    let owner = core.shared.owner(key);
                    if owner == core.index {
                        count += i64::from(is_it(&mut core.keys(), key));
                    } else {
                        self.send(owner, &[args[0], name], Next::Add(owner)).await?;
                    }
                }
                let mut reply = Reply { out: &mut self.out, proto: self.session.proto };
                self.remote.push_total(count, &mut reply);
                Ok(())
            }
            Route::All => {
                for core in 0..self.session.core.shared.cores() {
                    if core == self.session.core.index {
                        self.session.core.keys().clear();
                    } else {
                        // Its reply, which is 0, is waited for.
                        self.send(core, args, Next::Add(core)).await?;
                    }
                }
                self.reply().simple("OK");
                Ok(())
            }
            Route::Session => {
                // The numbers of other cores are those after the requests before this one.
                if command.name != "ping" {
                    self.resolve().await?;
                }
                if let Err(refusal) = self.session.run(command.name, args, &mut self.out) {
                    self.reply().error(&refusal);
                }
                Ok(())
            }
        }
    }

    /// Executes a command on the core that owns a key: here, or there by a request of these words.
    async fn on_key(&mut self, run: Run, name: &[u8], args: Args<'_>) -> Served {
        let (key, core) = (Key::new(name), &self.session.core);
        let owner = core.shared.owner(key);
        if owner == core.index {
            let reply = Reply { out: &mut self.out, proto: self.session.proto };
            Call { keys: &mut core.keys(), key, args, reply }.execute(run);
        } else {
            self.send(owner, args, Next::Reply(owner)).await?;
        }
        if self.remote.held + self.out.len() >= OUTPUT_BYTES {
            self.resolve().await?;
            self.write().await?;
        }
        Ok(())
    }

    /// Adds a request to those for another core, and sends them where they are many.
    async fn send(&mut self, core: usize, args: Args<'_>, next: Next) -> Served {
        if self.remote.push(core, args, next, &mut self.out) {
            self.resolve().await?;
        }
        Ok(())
    }
}
