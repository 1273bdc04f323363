//! One client: its requests are executed in order, and the replies to all requests that have come
//! together are written together.
//!
//! A request for a key of this core is executed at once, without an allocation. Requests for keys
//! of other cores are gathered, one message for each core, and their replies are put in their
//! places when all have come. So the order of a pipeline's effects is kept on each core, and not
//! between cores.

use std::borrow::Cow;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind};

use crate::commands::{self, Call, Command, Refusal, Route, Run};
use crate::core::{Asked, Core, CoreEnded};
use crate::host::network::Stream;
use crate::keyspace::Key;
use crate::protocol::{Args, Decoder, Reply};
use crate::remote::{self, Combine, Remote};
use crate::session::{Replying, Session};

/// The room for requests at first.
const INPUT_BYTES: usize = 16 << 10;
/// Replies are written when there are as many bytes of them, although more requests have come.
const OUTPUT_BYTES: usize = 128 << 10;

/// Why a connection ended, for the log.
pub(crate) type End = Cow<'static, str>;

const CLIENT_LEFT: End = Cow::Borrowed("the client left");

impl From<CoreEnded> for End {
    fn from(_: CoreEnded) -> Self {
        "the server is shut down".into()
    }
}

/// Serves one client until it leaves or a limit ends the connection.
pub(crate) async fn serve(stream: impl Stream, core: Rc<Core>) -> End {
    let shared = &core.shared;
    let limits = ConnLimits::default()
        .read_idle(Duration::from_secs(shared.config.idle.get()))
        .write_timeout(shared.options.write_timeout);
    let conn = match core.timers.connection(limits) {
        Ok(conn) => conn,
        Err(refused) => {
            stream.close().await;
            return refused.to_string().into();
        }
    };
    let mut connection = Connection {
        stream,
        conn,
        input: vec![0; INPUT_BYTES],
        begin: 0,
        filled: 0,
        input_max: shared.options.request_max + INPUT_BYTES,
        client: Client {
            decoder: Decoder::new(shared.options.request_max),
            remote: Remote::new(shared.cores()),
            session: Session::new(core),
            out: BytesMut::new(),
        },
    };
    let Err(end) = connection.run().await;
    connection.stream.close().await;
    end
}

struct Connection<S> {
    stream: S,
    conn: ConnTimers,
    /// `begin..filled` was received and not executed.
    input: Vec<u8>,
    begin: usize,
    filled: usize,
    input_max: usize,
    client: Client,
}

impl<S: Stream> Connection<S> {
    async fn run(&mut self) -> Result<Infallible, End> {
        loop {
            self.client.take_messages()?;
            let received = &self.input[self.begin..self.filled];
            let (executed, end) = self.client.execute(received).await?;
            self.begin += executed;
            self.write_replies().await?;
            if let Some(end) = end {
                return Err(end);
            }
            if executed == 0 || self.begin == self.filled {
                self.wait().await?;
            }
        }
    }

    /// Waits for bytes or messages.
    async fn wait(&mut self) -> Result<(), End> {
        self.make_room();
        loop {
            let (stream, room) = (&mut self.stream, &mut self.input[self.filled..]);
            let subscriber = &self.client.session.subscriber;
            let messages = async {
                subscriber.as_ref()?.ready.notified().await;
                Some(())
            };
            let woken = async {
                tokio::select! {
                    biased;
                    read = stream.read(room) => Some(read),
                    Some(()) = messages => None,
                }
            };
            match self.conn.race(woken).await {
                Raced::Done(None) => return Ok(()),
                Raced::Done(Some(read)) => match read.map_err(|error| error.to_string())? {
                    0 => return Err(CLIENT_LEFT),
                    read => {
                        self.filled += read;
                        self.conn.touch_read();
                        return Ok(());
                    }
                },
                Raced::Event(event)
                    if event.kind == DeadlineKind::ReadIdle
                        && self.client.session.is_subscribed() => {}
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
    }

    async fn write_replies(&mut self) -> Result<(), End> {
        let out = &mut self.client.out;
        let mut written = 0;
        while written < out.len() {
            let _writing = self.conn.begin_write();
            match self.conn.race(self.stream.write(&out[written..])).await {
                Raced::Done(Ok(0)) => return Err(CLIENT_LEFT),
                Raced::Done(wrote) => written += wrote.map_err(|error| error.to_string())?,
                Raced::Event(event) if event.kind == DeadlineKind::ReadIdle => {}
                Raced::Event(_) => return Err("the client did not take its replies in time".into()),
                Raced::Closed => return Err(CoreEnded.into()),
            }
        }
        out.clear();
        if out.capacity() > 2 * OUTPUT_BYTES {
            *out = BytesMut::new();
        }
        Ok(())
    }
}

/// The part of a connection that has no socket.
struct Client {
    decoder: Decoder,
    session: Session,
    remote: Remote,
    /// Replies that are not written.
    out: BytesMut,
}

impl Client {
    fn take_messages(&mut self) -> Result<(), End> {
        let Some(subscriber) = &self.session.subscriber else { return Ok(()) };
        if subscriber.take(&mut self.out) {
            return Ok(());
        }
        Err("too many messages waited for the client".into())
    }

    /// Executes the requests that have come, until there are enough replies. Returns the length of
    /// those requests, and why the connection is to end when the replies are written.
    async fn execute(&mut self, received: &[u8]) -> Result<(usize, Option<End>), End> {
        let (mut at, mut count, mut end) = (0, 0, None);
        while end.is_none() && self.out.len() < OUTPUT_BYTES {
            match self.decoder.decode(&received[at..]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let args = self.decoder.args(&received[at..]);
                    if !args.is_empty() {
                        self.request(&args).await?;
                        count += 1;
                    }
                    at += length;
                    end = self.session.is_closing.then(|| "the client asked for it".into());
                }
                Err(malformed) => {
                    self.resolve().await?;
                    self.reply().error(&malformed);
                    end = Some(malformed);
                }
            }
        }
        self.resolve().await?;
        if count > 0 {
            self.session.core.count_commands(count);
            self.session.core.publish_events();
        }
        Ok((at, end))
    }

    fn reply(&mut self) -> Reply<'_> {
        Reply { out: &mut self.out, proto: self.session.proto }
    }

    /// Waits for the replies of other cores.
    async fn resolve(&mut self) -> Asked {
        self.remote.resolve(&self.session, &mut self.out).await
    }

    /// Executes one request, with the replies that the client wants.
    async fn request(&mut self, args: Args<'_>) -> Asked {
        if self.session.replying == Replying::On {
            return self.dispatch(args).await;
        }
        if self.session.replying == Replying::SkipNext {
            self.session.replying = Replying::Skip;
        }
        self.resolve().await?;
        let begin = self.out.len();
        self.dispatch(args).await?;
        self.resolve().await?;
        // The confirmation of a subscription is a message, not a reply.
        let is_message = args[0].to_ascii_lowercase().ends_with(b"subscribe");
        if self.session.replying != Replying::On && !is_message {
            self.out.truncate(begin);
        }
        if self.session.replying == Replying::Skip {
            self.session.replying = Replying::On;
        }
        Ok(())
    }

    async fn dispatch(&mut self, args: Args<'_>) -> Asked {
        let command = match self.check(args) {
            Ok(command) => command,
            Err(refusal) => {
                self.reply().error(&refusal);
                return Ok(());
            }
        };
        match command.route {
            Route::Key(run) => self.on_key(run, args, Key::new(args[1]), args).await,
            Route::Each(name, run) => {
                self.reply().array(args.len() - 1);
                for key in &args[1..] {
                    self.on_key(run, args, Key::new(key), &[name.as_bytes(), key]).await?;
                }
                Ok(())
            }
            Route::Keys(run, step, combine) => self.on_keys(run, args, step.into(), combine).await,
            Route::All(_, combine) => {
                let parts = vec![args.to_vec(); self.session.core.shared.cores()];
                self.gather(parts, combine).await
            }
            Route::Publish => {
                self.resolve().await?;
                let count = remote::publish(&self.session.core, args[1], args[2]).await?;
                self.reply().integer(count);
                Ok(())
            }
            Route::Session => {
                self.resolve().await?;
                if let Err(refusal) = self.session.run(command.name, args, &mut self.out) {
                    self.reply().error(&refusal);
                }
                Ok(())
            }
        }
    }

    fn check(&self, args: Args<'_>) -> Result<&'static Command, Refusal> {
        let command = commands::find(args[0]).ok_or_else(|| commands::unknown(args))?;
        let name = command.name;
        if !command.accepts(args.len()) {
            return Err(commands::wrong_arity(name));
        }
        if !self.session.admits(name) {
            return Err(Refusal::from(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT \
                 / RESET are allowed in this context"
            )));
        }
        Ok(command)
    }

    /// Executes a command on the core of a key: here, or there by a request of these words.
    async fn on_key(&mut self, run: Run, args: Args<'_>, key: Key<'_>, words: Args<'_>) -> Asked {
        let core = &self.session.core;
        let owner = core.shared.owner(key);
        if owner == core.index {
            let reply = Reply { out: &mut self.out, proto: self.session.proto };
            let value_max = core.shared.options.request_max;
            Call { keys: &mut core.keys(), key, args, reply, value_max }.execute(run);
        } else if self.remote.push(owner, words, self.out.len()) {
            self.resolve().await?;
        }
        Ok(())
    }

    /// Executes a command on each core that has one of its keys, which are `step` words apart.
    async fn on_keys(&mut self, run: Run, args: Args<'_>, step: usize, combine: Combine) -> Asked {
        let shared = &self.session.core.shared;
        let mut parts: Vec<Vec<&[u8]>> = vec![Vec::new(); shared.cores()];
        for at in (1..args.len()).step_by(step) {
            let part = &mut parts[shared.owner(Key::new(args[at]))];
            if part.is_empty() {
                part.push(args[0]);
            }
            part.extend_from_slice(&args[at..at + step]);
        }
        if parts.iter().filter(|part| !part.is_empty()).count() == 1 {
            return self.on_key(run, args, Key::new(args[1]), args).await;
        }
        self.gather(parts, combine).await
    }

    async fn gather(&mut self, parts: Vec<Vec<&[u8]>>, combine: Combine) -> Asked {
        self.resolve().await?;
        let replies = remote::gather(&self.session.core, &parts).await?;
        combine.write(&replies, &mut self.reply());
        Ok(())
    }
}
