//! The requests of one client: each is decoded, sent to the core that executes it, and answered in
//! its place.

use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;

use crate::clients::{Client, Part};
use crate::commands::{self, COMMANDS, Call, Command, Refusal, Route, Run};
use crate::connection::{End, Io, OUTPUT_BYTES, Served};
use crate::core::{Core, Replies};
use crate::host::network::Stream;
use crate::keyspace::Key;
use crate::protocol::{Args, Decoder, Reply};
use crate::remote::{self, Combine, Remote};
use crate::session::{Replying, Session};
use crate::transaction::{CROSSSLOT, Queued, Transaction, core_of};

/// The part of a connection that has no socket.
pub(crate) struct Dispatcher {
    pub(crate) session: Session,
    remote: Remote,
    /// `None` outside of a transaction.
    transaction: Option<Transaction>,
    /// Replies that are not written.
    pub(crate) out: BytesMut,
}

impl Dispatcher {
    pub(crate) fn new(core: Rc<Core>, client: Arc<Client>) -> Self {
        Self {
            remote: Remote::new(core.shared.cores()),
            session: Session::new(core, client),
            transaction: None,
            out: BytesMut::new(),
        }
    }

    pub(crate) fn take_messages(&mut self) {
        if let Some(subscriber) = &self.session.subscriber {
            subscriber.take(&mut self.out, OUTPUT_BYTES);
        }
    }

    /// Executes the requests that have come, until there are enough replies. Returns the length of
    /// those requests, and why the connection is to end when the replies are written.
    pub(crate) async fn execute<S: Stream>(
        &mut self,
        io: &mut Io<S>,
        decoder: &mut Decoder,
        received: &[u8],
    ) -> Served<(usize, Option<End>)> {
        let (mut at, mut count, mut end) = (0, 0, None);
        while end.is_none() && self.out.len() < OUTPUT_BYTES {
            match decoder.decode(&received[at..]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let args = decoder.args(&received[at..]);
                    if is_http(&args) {
                        self.resolve(io).await?;
                        let refusal = "ERR this is no HTTP server: a browser may have been misled";
                        self.reply().error(refusal);
                        tracing::warn!("a client has sent a request of HTTP");
                        end = Some("the client speaks HTTP".into());
                    } else if !args.is_empty() {
                        self.request(io, &args).await?;
                        count += 1;
                        end = self.session.is_closing.then(|| "the client asked for it".into());
                    }
                    at += length;
                }
                Err(malformed) => {
                    self.resolve(io).await?;
                    self.reply().error(&malformed);
                    end = Some(malformed);
                }
            }
        }
        self.resolve(io).await?;
        if count > 0 {
            self.session.core.count_commands(count);
            self.session.core.publish_events();
        }
        Ok((at, end))
    }

    fn reply(&mut self) -> Reply<'_> {
        Reply { out: &mut self.out, proto: self.session.proto }
    }

    /// Waits for the replies of other cores, and writes them as they come where there are many.
    async fn resolve<S: Stream>(&mut self, io: &mut Io<S>) -> Served {
        while !self.remote.is_resolved() {
            io.account(Part::Remote, self.remote.memory());
            self.remote.resolve(&self.session, &mut self.out).await?;
            io.account(Part::Remote, self.remote.memory());
            if !self.remote.is_resolved() {
                self.write(io).await?;
            }
        }
        Ok(())
    }

    /// Writes replies, or drops them if the client wants none.
    async fn write<S: Stream>(&mut self, io: &mut Io<S>) -> Served {
        if self.session.replying == Replying::On {
            io.write(&mut self.out).await
        } else {
            self.out.clear();
            Ok(())
        }
    }

    /// Executes one request, with the replies that the client wants.
    async fn request<S: Stream>(&mut self, io: &mut Io<S>, args: Args<'_>) -> Served {
        if self.session.replying == Replying::On {
            return self.dispatch(io, args).await;
        }
        // The replies to the requests before it are wanted.
        self.resolve(io).await?;
        io.write(&mut self.out).await?;
        if self.session.replying == Replying::SkipNext {
            self.session.replying = Replying::Skip;
        }
        self.dispatch(io, args).await?;
        self.resolve(io).await?;
        // The confirmation of a subscription is a message, not a reply.
        let is_message = args[0].to_ascii_lowercase().ends_with(b"subscribe");
        if self.session.replying != Replying::On && !is_message {
            self.out.clear();
        }
        if self.session.replying == Replying::Skip {
            self.session.replying = Replying::On;
        }
        Ok(())
    }

    async fn dispatch<S: Stream>(&mut self, io: &mut Io<S>, args: Args<'_>) -> Served {
        let command = match self.check(args) {
            Ok(command) => command,
            Err(refusal) => {
                if let Some(transaction) = &mut self.transaction {
                    transaction.is_refused = true;
                }
                self.reply().error(&refusal);
                return Ok(());
            }
        };
        if matches!(command.route, Route::Transaction) {
            return self.control(io, command.name).await;
        }
        let is_run_now = ["quit", "reset"].contains(&command.name);
        if self.transaction.is_some() && !is_run_now {
            self.queue(command, args);
            return Ok(());
        }
        match command.route {
            Route::Key(run) => {
                let key = Key::new(args[1]);
                self.on_core(io, self.owner(key), run, args, key, args).await
            }
            Route::Each(name, run) => {
                self.reply().array(args.len() - 1);
                for key in &args[1..] {
                    let (key, words) = (Key::new(key), [name.as_bytes(), key]);
                    self.on_core(io, self.owner(key), run, args, key, &words).await?;
                }
                Ok(())
            }
            Route::Keys(run, step, combine) => {
                self.on_keys(io, run, args, step.into(), combine).await
            }
            Route::Together(run, ..) => {
                let Some(owner) = core_of(&self.session.core.shared, command, args) else {
                    self.reply().error(&CROSSSLOT);
                    return Ok(());
                };
                self.on_core(io, owner, run, args, Key::new(args[1]), args).await
            }
            Route::Chosen(choose, run) => match choose(&self.session.core.shared, args) {
                Ok(owner) => {
                    let key = Key::new(args.get(1).copied().unwrap_or_default());
                    self.on_core(io, owner, run, args, key, args).await
                }
                Err(refusal) => {
                    self.reply().error(&refusal);
                    Ok(())
                }
            },
            Route::All(_, combine) => {
                let parts = vec![args.to_vec(); self.session.core.shared.cores()];
                self.gather(io, parts, combine).await
            }
            Route::Publish | Route::Session => {
                self.resolve(io).await?;
                self.on_no_key(command, args).await
            }
            Route::Transaction => unreachable!("it is run above"),
        }
    }

    /// Executes a command that runs on no key.
    async fn on_no_key(&mut self, command: &Command, args: Args<'_>) -> Served {
        if let Route::Publish = command.route {
            let count = remote::publish(&self.session.core, args[1], args[2]).await?;
            self.reply().integer(count);
            return Ok(());
        }
        if command.name == "reset" {
            self.end_transaction();
        }
        if let Err(refusal) = self.session.run(command.name, args, &mut self.out) {
            self.reply().error(&refusal);
        }
        Ok(())
    }

    fn check(&self, args: Args<'_>) -> Result<&'static Command, Refusal> {
        let place = commands::place_of(args[0]).ok_or_else(|| commands::unknown(args))?;
        self.session.client.command.set(place as u64);
        let command = &COMMANDS[place];
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

    /// Queues a command of a transaction.
    fn queue(&mut self, command: &Command, args: Args<'_>) {
        let Some(transaction) = &mut self.transaction else { return };
        let shared = &self.session.core.shared;
        let queued = transaction.queue(shared, command, args);
        transaction.is_refused |= queued.is_err();
        self.session.client.account(Part::Transaction, transaction.memory());
        self.session.core.limit_clients();
        match queued {
            Ok(()) => self.reply().simple("QUEUED"),
            Err(refusal) => self.reply().error(&refusal),
        }
    }

    fn end_transaction(&mut self) -> Option<Transaction> {
        self.session.client.account(Part::Transaction, 0);
        self.transaction.take()
    }

    /// Executes `MULTI`, `EXEC` or `DISCARD`.
    async fn control<S: Stream>(&mut self, io: &mut Io<S>, name: &str) -> Served {
        self.resolve(io).await?;
        if name == "multi" {
            if self.transaction.is_some() {
                self.reply().error("ERR MULTI calls can not be nested");
            } else {
                self.transaction = Some(Transaction::default());
                self.reply().ok();
            }
            return Ok(());
        }
        let Some(transaction) = self.end_transaction() else {
            self.reply().error(&format!("ERR {} without MULTI", name.to_uppercase()));
            return Ok(());
        };
        if name == "discard" {
            self.reply().ok();
            return Ok(());
        }
        if transaction.is_refused {
            let refusal = "EXECABORT Transaction discarded because of previous errors.";
            self.reply().error(refusal);
            return Ok(());
        }
        self.execute_transaction(io, transaction).await
    }

    /// Executes the commands of a transaction, and writes their replies in their order.
    async fn execute_transaction<S: Stream>(
        &mut self,
        io: &mut Io<S>,
        transaction: Transaction,
    ) -> Served {
        io.account(Part::Remote, transaction.memory());
        let Transaction { queued, requests, core, .. } = transaction;
        let of = &self.session.core;
        let replies = match core {
            Some(core) => remote::exchange_with(of, core, self.session.proto, requests).await?,
            None => Replies::default(),
        };
        io.account(Part::Remote, replies.bytes.capacity());
        let (mut begin, mut ends) = (0, replies.ends.into_iter());
        self.reply().array(queued.len());
        for command in queued {
            match command {
                Queued::OnKeys => {
                    let end = ends.next().expect("the core has replied to each request");
                    self.out.extend_from_slice(&replies.bytes[begin..end]);
                    begin = end;
                }
                Queued::Own(words) => {
                    let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    let command = commands::find(args[0]).expect("it was found when it was queued");
                    self.on_no_key(command, &args).await?;
                }
            }
            if self.out.len() >= OUTPUT_BYTES {
                self.write(io).await?;
            }
        }
        io.account(Part::Remote, 0);
        Ok(())
    }

    fn owner(&self, key: Key<'_>) -> usize {
        self.session.core.shared.owner(key)
    }

    /// Executes a command on the core that owns a key: here, or there by a request of these words.
    async fn on_core<S: Stream>(
        &mut self,
        io: &mut Io<S>,
        owner: usize,
        run: Run,
        args: Args<'_>,
        key: Key<'_>,
        words: Args<'_>,
    ) -> Served {
        let core = &self.session.core;
        if owner == core.index {
            let reply = Reply { out: &mut self.out, proto: self.session.proto };
            let limits = core.shared.limits();
            Call { keys: &mut core.keys(), key, args, reply, limits }.execute(run);
        } else if self.remote.push(owner, words, self.out.len()) {
            self.resolve(io).await?;
        }
        if self.out.len() >= OUTPUT_BYTES {
            self.resolve(io).await?;
            self.write(io).await?;
        }
        Ok(())
    }

    /// Executes a command on each core that has one of its keys, which are `step` words apart.
    async fn on_keys<S: Stream>(
        &mut self,
        io: &mut Io<S>,
        run: Run,
        args: Args<'_>,
        step: usize,
        combine: Combine,
    ) -> Served {
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
            let key = Key::new(args[1]);
            return self.on_core(io, self.owner(key), run, args, key, args).await;
        }
        self.gather(io, parts, combine).await
    }

    async fn gather<S: Stream>(
        &mut self,
        io: &mut Io<S>,
        parts: Vec<Vec<&[u8]>>,
        combine: Combine,
    ) -> Served {
        self.resolve(io).await?;
        let words = parts.iter().flatten();
        io.account(Part::Remote, words.map(|word| word.len() + 2 * size_of::<&[u8]>()).sum());
        let replies = remote::gather(&self.session.core, &parts).await?;
        io.account(Part::Remote, replies.iter().map(BytesMut::capacity).sum());
        combine.write(&replies, &mut self.reply());
        drop(replies);
        io.account(Part::Remote, 0);
        Ok(())
    }
}

/// Whether a request is a line of HTTP. A web page can have a browser send such lines to this
/// server, and lines of its own behind them, which must not be executed.
fn is_http(args: Args<'_>) -> bool {
    args.first().is_some_and(|first| {
        first.eq_ignore_ascii_case(b"post") || first.eq_ignore_ascii_case(b"host:")
    })
}
