//! One client: its requests are executed in order, and the replies to all requests that have come
//! together are written together.
//!
//! A request for a key of this core is executed at once, without an allocation. Requests for keys
//! of other cores are gathered, one message for each core, and their replies are put in their
//! places when all have come. So the order of a pipeline's effects is kept on each core, and not
//! between cores.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, pending};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind, RefusedKind, Timers};

use crate::commands::{self, Refusal, Route};
use crate::core::Core;
use crate::protocol::{Args, Decoder, Proto, Reply};
use crate::remote::{self, CoreEnded, Remote};
use crate::session::{Replying, Session};

/// The room for requests at first.
const INPUT_BYTES: usize = 16 << 10;
/// Replies are written when there are as many bytes of them, although more requests have come.
const OUTPUT_BYTES: usize = 128 << 10;

/// A connection's socket on either runtime.
///
/// A future that is dropped before it is done has neither read nor written anything.
pub(crate) trait Stream {
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Ends the connection in both directions.
    async fn close(self);
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    ClientLeft,
    Quit,
    Idle,
    NotReading,
    MessagesLost,
    Malformed,
    Failed(io::Error),
    NoTimer(RefusedKind),
    ShutDown,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClientLeft => "the client left",
            Self::Quit => "the client asked for it",
            Self::Idle => "nothing was received for too long",
            Self::NotReading => "the client did not take its replies in time",
            Self::MessagesLost => "too many messages waited for the client",
            Self::Malformed => "a request was malformed or too large",
            Self::Failed(error) => return error.fmt(f),
            Self::NoTimer(error) => return error.fmt(f),
            Self::ShutDown => "the server is shut down",
        })
    }
}

impl From<CoreEnded> for End {
    fn from(_: CoreEnded) -> Self {
        Self::ShutDown
    }
}

/// Serves one client until it leaves or a limit ends the connection.
pub(crate) async fn serve(stream: impl Stream, core: Rc<Core>, timers: Timers<u32>) -> End {
    let shared = &core.shared;
    let limits = ConnLimits::default()
        .read_idle(Duration::from_secs(shared.config.idle()))
        .write_timeout(shared.options.write_timeout);
    let conn = match timers.connection(limits) {
        Ok(conn) => conn,
        Err(refused) => {
            stream.close().await;
            return End::NoTimer(refused);
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
            timers,
            out: BytesMut::new(),
        },
    };
    let Err(end) = connection.run().await;
    connection.stream.close().await;
    end
}

#[derive(Debug)]
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

/// What has woken a connection.
enum Woken {
    Read(io::Result<usize>),
    Messages,
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
            let subscriber = self.client.session.subscriber.clone();
            let woken = async {
                tokio::select! {
                    biased;
                    read = stream.read(room) => Woken::Read(read),
                    () = async {
                        match &subscriber {
                            Some(subscriber) => subscriber.ready().await,
                            None => pending().await,
                        }
                    } => Woken::Messages,
                }
            };
            match race(&self.conn, woken).await? {
                Ok(Woken::Messages) => return Ok(()),
                Ok(Woken::Read(Ok(0))) => return Err(End::ClientLeft),
                Ok(Woken::Read(read)) => {
                    self.filled += read.map_err(End::Failed)?;
                    self.conn.touch_read();
                    return Ok(());
                }
                Err(DeadlineKind::ReadIdle) if self.client.session.is_subscribed() => {}
                Err(_) => return Err(End::Idle),
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
            match race(&self.conn, self.stream.write(&out[written..])).await? {
                Ok(Ok(0)) => return Err(End::ClientLeft),
                Ok(wrote) => written += wrote.map_err(End::Failed)?,
                Err(DeadlineKind::ReadIdle) => {}
                Err(_) => return Err(End::NotReading),
            }
        }
        out.clear();
        if out.capacity() > 2 * OUTPUT_BYTES {
            *out = BytesMut::new();
        }
        Ok(())
    }
}

/// Waits for a read or a write, or for a deadline.
async fn race<T>(
    conn: &ConnTimers,
    io: impl Future<Output = T>,
) -> Result<Result<T, DeadlineKind>, End> {
    match conn.race(io).await {
        Raced::Done(done) => Ok(Ok(done)),
        Raced::Event(event) => Ok(Err(event.kind)),
        Raced::Closed => Err(End::ShutDown),
    }
}

/// The part of a connection that has no socket.
#[derive(Debug)]
struct Client {
    decoder: Decoder,
    session: Session,
    timers: Timers<u32>,
    remote: Remote,
    /// Replies that are not written.
    out: BytesMut,
}

impl Client {
    fn take_messages(&mut self) -> Result<(), End> {
        match &self.session.subscriber {
            Some(subscriber) => subscriber.take(&mut self.out).map_err(|_| End::MessagesLost),
            None => Ok(()),
        }
    }

    /// Executes the requests that have come, until there are enough replies. Returns the length of
    /// those requests, and why the connection is to end when the replies are written.
    async fn execute(&mut self, received: &[u8]) -> Result<(usize, Option<End>), End> {
        let (mut at, mut count, mut end) = (0, 0, None);
        // It has the strings of a request while the request is executed. An error ends all of it.
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(0));
        while end.is_none() && self.out.len() < OUTPUT_BYTES {
            match decoder.decode(&received[at..]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let args = decoder.args(&received[at..]);
                    if args.len() > 0 {
                        self.request(args).await?;
                        count += 1;
                    }
                    at += length;
                    end = self.session.is_closing.then_some(End::Quit);
                }
                Err(malformed) => {
                    self.remote.resolve(&self.session, &mut self.out).await?;
                    self.reply().error(&malformed.to_string());
                    end = Some(End::Malformed);
                }
            }
        }
        self.decoder = decoder;
        self.remote.resolve(&self.session, &mut self.out).await?;
        if count > 0 {
            self.session.core.count_commands(count);
            self.session.core.publish_events();
        }
        Ok((at, end))
    }

    fn reply(&mut self) -> Reply<'_> {
        Reply { out: &mut self.out, proto: self.session.proto }
    }

    /// Executes one request, with the replies that the client wants.
    async fn request(&mut self, args: Args<'_>) -> Result<(), End> {
        if self.session.replying == Replying::On {
            return self.dispatch(args).await;
        }
        if self.session.replying == Replying::SkipNext {
            self.session.replying = Replying::Skip;
        }
        self.remote.resolve(&self.session, &mut self.out).await?;
        let begin = self.out.len();
        self.dispatch(args).await?;
        self.remote.resolve(&self.session, &mut self.out).await?;
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

    async fn dispatch(&mut self, args: Args<'_>) -> Result<(), End> {
        let command = match self.check(args) {
            Ok(command) => command,
            Err(refusal) => {
                self.reply().error(&refusal.0);
                return Ok(());
            }
        };
        match command.route {
            Route::Key(run) => self.on_key(run, args, &args[1]).await,
            Route::Each => {
                self.reply().array(args.len() - 1);
                for key in args.iter().skip(1) {
                    self.get_each(key).await?;
                }
                Ok(())
            }
            Route::Sum(run) => self.on_keys(run, args, 1, remote::Combine::Sum).await,
            Route::Pairs(run) => {
                if args.len().is_multiple_of(2) {
                    self.reply().error(&commands::wrong_arity(command.name).0);
                    return Ok(());
                }
                self.on_keys(run, args, 2, remote::Combine::Ok).await
            }
            Route::All(_) => self.on_all(args, remote::Combine::Ok).await,
            Route::Join(_) => self.on_all(args, remote::Combine::Join).await,
            Route::Publish => {
                self.remote.resolve(&self.session, &mut self.out).await?;
                let count = remote::publish(&self.session.core, &args[1], &args[2]).await?;
                self.reply().integer(count);
                Ok(())
            }
            Route::Session => {
                self.remote.resolve(&self.session, &mut self.out).await?;
                if let Err(refusal) = self.session.run(command.name, args, &mut self.out) {
                    self.reply().error(&refusal.0);
                }
                Ok(())
            }
        }
    }

    fn check(&self, args: Args<'_>) -> Result<&'static commands::Command, Refusal> {
        let command = commands::find(&args[0]).ok_or_else(|| commands::unknown(&args))?;
        if !command.accepts(args.len()) {
            return Err(commands::wrong_arity(command.name));
        }
        if !self.session.admits(command.name) {
            return Err(Refusal::new(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
                 RESET are allowed in this context",
                command.name
            )));
        }
        Ok(command)
    }

    /// Executes a command on the core of a key, here or there.
    async fn on_key(&mut self, run: commands::Run, args: Args<'_>, key: &[u8]) -> Result<(), End> {
        let core = &self.session.core;
        let hash = core.hash(key);
        let owner = core.shared.owner(hash);
        if owner == core.index {
            let reply = Reply { out: &mut self.out, proto: self.session.proto };
            core.run(&mut core.keys(), &self.timers, run, hash, args, reply);
            return Ok(());
        }
        self.send_to(owner, args.iter()).await
    }

    async fn send_to<'a>(
        &mut self,
        owner: usize,
        args: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<(), End> {
        if self.remote.push(owner, args, self.out.len()) {
            self.remote.resolve(&self.session, &mut self.out).await?;
        }
        Ok(())
    }

    async fn get_each(&mut self, key: &[u8]) -> Result<(), End> {
        let core = &self.session.core;
        let hash = core.hash(key);
        let owner = core.shared.owner(hash);
        if owner != core.index {
            return self.send_to(owner, [b"GET", key].into_iter()).await;
        }
        let mut keys = core.keys();
        let mut reply = Reply { out: &mut self.out, proto: self.session.proto };
        match keys.get(&self.timers, hash, key) {
            Some(value) => reply.bulk(value),
            None => reply.null(),
        }
        Ok(())
    }

    /// Executes a command on each core that has one of its keys, which are `step` words apart.
    async fn on_keys(
        &mut self,
        run: commands::Run,
        args: Args<'_>,
        step: usize,
        combine: remote::Combine,
    ) -> Result<(), End> {
        let core = &self.session.core;
        let owner = |key: &[u8]| core.shared.owner(core.hash(key));
        let mut parts: Vec<Vec<&[u8]>> = vec![Vec::new(); core.shared.cores()];
        for at in (1..args.len()).step_by(step) {
            let words = (at..at + step).filter_map(|at| args.get(at));
            parts[owner(&args[at])].extend(words);
        }
        if parts.iter().filter(|part| !part.is_empty()).count() == 1 {
            return self.on_key(run, args, &args[1]).await;
        }
        for part in parts.iter_mut().filter(|part| !part.is_empty()) {
            part.insert(0, &args[0]);
        }
        self.gather(parts, combine).await
    }

    async fn on_all(&mut self, args: Args<'_>, combine: remote::Combine) -> Result<(), End> {
        let parts = vec![args.iter().collect(); self.session.core.shared.cores()];
        self.gather(parts, combine).await
    }

    async fn gather(
        &mut self,
        parts: Vec<Vec<&[u8]>>,
        combine: remote::Combine,
    ) -> Result<(), End> {
        self.remote.resolve(&self.session, &mut self.out).await?;
        // The cores reply in the same way to all, so that the replies can be read here.
        let replies =
            remote::gather(&self.session.core, &self.timers, Proto::Resp2, &parts).await?;
        combine.write(&replies, &mut self.reply());
        Ok(())
    }
}
