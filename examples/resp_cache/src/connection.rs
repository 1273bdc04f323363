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
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use corewheel::conn::{Raced, UNSENT_MAX};
use corewheel::{ConnLimits, ConnTimers};

use crate::client::Part;
use crate::commands::{self, Call, Route, Run};
use crate::core::{Core, SHUT_DOWN};
use crate::host::network::Stream;
use crate::keyspace::Key;
use crate::protocol::{Args, Decoder, Reply};
use crate::remote::{Next, Remote};
use crate::session::Session;

/// The room for requests at first.
const INPUT_BYTES: usize = 16 << 10;
/// Replies are written when there are as many bytes of them, although more requests have come.
const OUTPUT_BYTES: usize = 128 << 10;
/// How long a client may take for the refusal of its connection.
const REFUSAL_MAX: Duration = Duration::from_millis(100);

/// Why a connection ended, for the log.
type End = Cow<'static, str>;

/// What a connection does, unless it is to end.
type Served<T = ()> = Result<T, End>;

/// Serves one client until it leaves or a limit ends the connection.
pub(crate) async fn serve(stream: impl Stream, core: Rc<Core>) {
    let options = &core.shared.options;
    let limits = ConnLimits::default().write_timeout(options.write_timeout).unsent_max(UNSENT_MAX);
    let session = core.enter().map(|client| Session::new(&core, client));
    let (Some(session), Ok(conn)) = (session, core.timers.connection(limits)) else {
        return refuse(stream, &core).await;
    };
    let mut connection = Connection {
        stream,
        conn,
        input: vec![0; INPUT_BYTES],
        begin: 0,
        filled: 0,
        decoder: Decoder::new(options.request_max),
        remote: Remote::new(core.shared.cores()),
        session,
        out: BytesMut::new(),
    };
    let Err(end) = connection.run().await;
    connection.stream.close().await;
    tracing::debug!(core = core.index, %end, "a connection ended");
}

/// Tells a client that it is not served, and counts it.
async fn refuse(mut stream: impl Stream, core: &Core) {
    core.gauges().clients_refused.add(1);
    let refusal = stream.write(b"-ERR max number of clients reached\r\n");
    let _ = core.timers.timeout(REFUSAL_MAX, refusal).await;
    stream.close().await;
}

/// How many bytes a client has sent or taken, unless a limit or the end of the server came first.
fn moved(raced: Raced<io::Result<usize>>) -> Served<usize> {
    match raced {
        Raced::Done(Ok(0)) => Err("the client left".into()),
        Raced::Done(bytes) => bytes.map_err(|error| error.to_string().into()),
        Raced::Event(_) => Err("the client did not take its replies in time".into()),
        Raced::Closed => Err(SHUT_DOWN.into()),
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
        let read = pin!(self.stream.read(&mut self.input[self.filled..]));
        let read = tokio::select! {
            biased;
            woken = self.session.client.woken(true) => woken.map(|()| 0)?,
            raced = self.conn.race(read) => moved(raced)?,
        };
        self.filled += read;
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
            let rest = &self.out[written..];
            written += tokio::select! {
                biased;
                raced = self.stream.race_write(&self.conn, rest) => moved(raced)?,
                ended = self.session.client.woken(false) => ended.map(|()| 0)?,
            };
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
                    let key = Key::new(name);
                    let owner = self.session.core.shared.owner(key);
                    if self.is_here(owner, &[args[0], name], Next::Add(owner)) {
                        count += i64::from(is_it(&mut self.session.core.keys(), key));
                    } else if self.remote.is_full() {
                        self.resolve().await?;
                    }
                }
                self.remote.push_total(count, self.session.proto, &mut self.out);
                Ok(())
            }
            Route::All => {
                for core in 0..self.session.core.shared.cores() {
                    // The reply of another core, which is 0, is waited for.
                    if self.is_here(core, args, Next::Add(core)) {
                        self.session.core.keys().clear();
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
        let key = Key::new(name);
        let owner = self.session.core.shared.owner(key);
        if self.is_here(owner, args, Next::Reply(owner)) {
            let reply = Reply { out: &mut self.out, proto: self.session.proto };
            Call { keys: &mut self.session.core.keys(), key, args, reply }.execute(run);
        }
        let is_much = self.remote.held + self.out.len() >= OUTPUT_BYTES;
        if is_much || self.remote.is_full() {
            self.resolve().await?;
            self.write().await?;
        }
        Ok(())
    }

    /// Whether a core is this one. If not, a request of these words is added to those for it.
    fn is_here(&mut self, core: usize, args: Args<'_>, next: Next) -> bool {
        let is_here = core == self.session.core.index;
        if !is_here {
            self.remote.push(core, args, next, &mut self.out);
        }
        is_here
    }
}
