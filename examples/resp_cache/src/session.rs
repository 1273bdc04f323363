//! The session of one client: what it has chosen, and the commands that run on no key.

use std::fmt::Write;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;

use crate::commands::{COMMANDS, Refusal, Route, SYNTAX, unknown, wrong_arity};
use crate::core::Core;
use crate::protocol::{Args, Proto, Reply, integer};
use crate::pubsub::{Kind, Subscriber};

/// The version of redis whose replies these commands give.
const LEVEL: &str = "7.2.0";

/// Which replies the client is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replying {
    On,
    Off,
    /// All but the next, after this one.
    SkipNext,
    /// All but this one.
    Skip,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) core: Rc<Core>,
    pub(crate) proto: Proto,
    pub(crate) replying: Replying,
    /// `None` until the client first subscribes.
    pub(crate) subscriber: Option<Rc<Subscriber>>,
    /// Whether the connection ends when its replies are written.
    pub(crate) is_closing: bool,
    id: u64,
    name: Vec<u8>,
}

impl Session {
    pub(crate) fn new(core: Rc<Core>) -> Self {
        let id = core.shared.next_client.fetch_add(1, Ordering::Relaxed);
        Self {
            core,
            proto: Proto::Resp2,
            replying: Replying::On,
            subscriber: None,
            is_closing: false,
            id,
            name: Vec::new(),
        }
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscriber.as_ref().is_some_and(|subscriber| subscriber.count() > 0)
    }

    /// Whether the client may run a command. In RESP2, messages to a subscriber could be taken for
    /// replies.
    pub(crate) fn admits(&self, name: &str) -> bool {
        let is_admitted =
            || ["ping", "quit", "reset"].contains(&name) || name.ends_with("subscribe");
        self.proto == Proto::Resp3 || !self.is_subscribed() || is_admitted()
    }

    /// Executes a command that runs on no key.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        args: Args<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let mut reply = Reply { out, proto: self.proto };
        match name {
            "ping" => self.ping(args, &mut reply)?,
            "echo" => reply.bulk(&args[1]),
            "hello" => self.hello(args, out)?,
            "select" => match integer(&args[1]) {
                Some(0) => reply.ok(),
                Some(_) => return Err(Refusal::new("ERR DB index is out of range")),
                None => return Err(Refusal::new("ERR invalid DB index")),
            },
            "client" => self.client(args, &mut reply)?,
            "command" => command(args, &mut reply)?,
            "config" => self.config(args, &mut reply)?,
            "dbsize" => {
                let keys = self.core.shared.total(|core| core.keys.get());
                reply.integer(keys.cast_signed());
            }
            "function" if args.is(1, "flush") => reply.ok(),
            "info" => reply.bulk(self.info().as_bytes()),
            "time" => {
                let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
                reply.array(2);
                reply.bulk(now.as_secs().to_string().as_bytes());
                reply.bulk(now.subsec_micros().to_string().as_bytes());
            }
            "quit" => {
                self.is_closing = true;
                reply.ok();
            }
            "reset" => {
                self.unsubscribe_all();
                (self.proto, self.replying) = (Proto::Resp2, Replying::On);
                self.name.clear();
                reply.simple("RESET");
            }
            "subscribe" => self.subscribe(Kind::Channel, args, out),
            "psubscribe" => self.subscribe(Kind::Pattern, args, out),
            "unsubscribe" => self.unsubscribe(Kind::Channel, args, out),
            "punsubscribe" => self.unsubscribe(Kind::Pattern, args, out),
            _ => return Err(unknown(&args)),
        }
        Ok(())
    }

    fn ping(&self, args: Args<'_>, reply: &mut Reply<'_>) -> Result<(), Refusal> {
        if args.len() > 2 {
            return Err(wrong_arity("ping"));
        }
        let text = args.get(1);
        if self.proto == Proto::Resp2 && self.is_subscribed() {
            reply.array(2);
            reply.bulk(b"pong");
            reply.bulk(text.unwrap_or_default());
        } else if let Some(text) = text {
            reply.bulk(text);
        } else {
            reply.simple("PONG");
        }
        Ok(())
    }

    fn hello(&mut self, args: Args<'_>, out: &mut BytesMut) -> Result<(), Refusal> {
        let proto = match args.get(1).map(integer) {
            None => self.proto,
            Some(Some(2)) => Proto::Resp2,
            Some(Some(3)) => Proto::Resp3,
            Some(Some(_)) => return Err(Refusal::new("NOPROTO unsupported protocol version")),
            Some(None) => {
                return Err(Refusal::new("ERR Protocol version is not an integer or out of range"));
            }
        };
        match args.len() {
            0..=2 => {}
            4 if args.is(2, "setname") => self.name = args[3].to_vec(),
            _ => return Err(Refusal::new("ERR Syntax error in HELLO: this server has no users")),
        }
        self.proto = proto;
        if let Some(subscriber) = &self.subscriber {
            subscriber.proto.set(proto);
        }
        let mut reply = Reply { out, proto };
        reply.map(7);
        for (name, value) in [("server", "resp_cache"), ("version", LEVEL)] {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"proto");
        reply.integer(if proto == Proto::Resp3 { 3 } else { 2 });
        reply.bulk(b"id");
        reply.integer(self.id.cast_signed());
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"modules");
        reply.array(0);
        Ok(())
    }

    fn client(&mut self, args: Args<'_>, reply: &mut Reply<'_>) -> Result<(), Refusal> {
        match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
            (b"id", 2) => reply.integer(self.id.cast_signed()),
            (b"getname", 2) if self.name.is_empty() => reply.null(),
            (b"getname", 2) => reply.bulk(&self.name),
            (b"setname", 3) => {
                self.name = args[2].to_vec();
                reply.ok();
            }
            // The name and the version of the client's library, which nothing here asks for.
            (b"setinfo", 4) => reply.ok(),
            (b"reply", 3) => {
                self.replying = match args[2].to_ascii_lowercase().as_slice() {
                    b"on" => Replying::On,
                    b"off" => Replying::Off,
                    b"skip" if self.replying == Replying::Off => Replying::Off,
                    b"skip" => Replying::SkipNext,
                    _ => return Err(SYNTAX),
                };
                if self.replying == Replying::On {
                    reply.ok();
                }
            }
            _ => {
                let name = String::from_utf8_lossy(&args[1]).into_owned();
                return Err(Refusal::new(format!(
                    "ERR unknown subcommand or wrong number of arguments for '{name}'. Known: ID, \
                     GETNAME, SETNAME, SETINFO, REPLY."
                )));
            }
        }
        Ok(())
    }

    fn config(&self, args: Args<'_>, reply: &mut Reply<'_>) -> Result<(), Refusal> {
        let config = &self.core.shared.config;
        if args.is(1, "get") && args.len() > 2 {
            let found = config.matching((2..args.len()).map(|at| &args[at]));
            reply.map(found.len());
            for (name, value) in found {
                reply.bulk(name.as_bytes());
                reply.bulk(value.as_bytes());
            }
        } else if args.is(1, "set") && args.len() > 3 && args.len().is_multiple_of(2) {
            for at in (2..args.len()).step_by(2) {
                config.set(&args[at], &args[at + 1]).map_err(Refusal::new)?;
            }
            reply.ok();
        } else if args.is(1, "resetstat") && args.len() == 2 {
            reply.ok();
        } else {
            return Err(Refusal::new(
                "ERR unknown subcommand or wrong number of arguments for 'config'. Known: GET, \
                 SET, RESETSTAT.",
            ));
        }
        Ok(())
    }

    fn info(&self) -> String {
        let shared = &self.core.shared;
        let mut text = format!(
            "# Server\r\nserver_name:resp_cache\r\nredis_version:{LEVEL}\r\n\
             process_id:{}\r\nuptime_in_seconds:{}\r\ncores:{}\r\n\r\n",
            std::process::id(),
            shared.started.elapsed().as_secs(),
            shared.cores()
        );
        let clients = shared.clients.load(Ordering::Relaxed);
        let total = |gauge: fn(&crate::gauges::Gauges) -> u64| shared.total(gauge);
        let keys = total(|core| core.keys.get());
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# Clients\r\nconnected_clients:{clients}\r\nmaxclients:{}\r\n\
             pubsub_clients:{}\r\n\r\n\
             # Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\nmaxmemory_policy:volatile-ttl\r\n\r\n\
             # Stats\r\ntotal_commands_processed:{}\r\nexpired_keys:{}\r\nevicted_keys:{}\r\n\
             events_dropped:{}\r\n\r\n# Keyspace\r\n",
            shared.config.clients_max(),
            total(|core| core.subscribers.get()),
            total(|core| core.memory.get()),
            shared.config.memory_max(),
            total(|core| core.commands.get()),
            total(|core| core.expired.get()),
            total(|core| core.evicted.get()),
            total(|core| core.dropped.get()),
        );
        if keys > 0 {
            let expires = total(|core| core.with_deadline.get());
            let _ = write!(text, "db0:keys={keys},expires={expires},avg_ttl=0\r\n");
        }
        text
    }

    fn subscribe(&mut self, kind: Kind, args: Args<'_>, out: &mut BytesMut) {
        let subscriber = self
            .subscriber
            .get_or_insert_with(|| Subscriber::new(self.core.shared.options.output_max));
        subscriber.proto.set(self.proto);
        for name in args.iter().skip(1) {
            self.core.registry.borrow_mut().subscribe(subscriber, kind, name);
            let verb = if kind == Kind::Pattern { "psubscribe" } else { "subscribe" };
            confirm(Reply { out, proto: self.proto }, verb, Some(name), subscriber.count());
        }
        self.publish_subscribers();
    }

    fn unsubscribe(&mut self, kind: Kind, args: Args<'_>, out: &mut BytesMut) {
        let verb = if kind == Kind::Pattern { "punsubscribe" } else { "unsubscribe" };
        let all = self.subscriber.as_ref().map(|subscriber| subscriber.names(kind));
        let all = all.unwrap_or_default();
        let named: Vec<&[u8]> = match args.len() {
            1 => all.iter().map(|name| &name[..]).collect(),
            _ => args.iter().skip(1).collect(),
        };
        let count = || self.subscriber.as_ref().map_or(0, |subscriber| subscriber.count());
        if named.is_empty() {
            confirm(Reply { out, proto: self.proto }, verb, None, count());
        }
        for name in named {
            if let Some(subscriber) = &self.subscriber {
                self.core.registry.borrow_mut().unsubscribe(subscriber, kind, name);
            }
            confirm(Reply { out, proto: self.proto }, verb, Some(name), count());
        }
        self.publish_subscribers();
    }

    fn unsubscribe_all(&mut self) {
        if let Some(subscriber) = self.subscriber.take() {
            self.core.registry.borrow_mut().leave(&subscriber);
            self.publish_subscribers();
        }
    }

    fn publish_subscribers(&self) {
        self.core.gauges().subscribers.set(self.core.registry.borrow().subscribers());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.unsubscribe_all();
    }
}

/// Confirms a change of a subscription, with the number that the client has now.
fn confirm(mut reply: Reply<'_>, verb: &str, name: Option<&[u8]>, count: usize) {
    reply.push(3);
    reply.bulk(verb.as_bytes());
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.count(count);
}

/// `COMMAND`: the names, arities and keys of all commands.
fn command(args: Args<'_>, reply: &mut Reply<'_>) -> Result<(), Refusal> {
    if args.is(1, "count") && args.len() == 2 {
        reply.count(COMMANDS.len());
        return Ok(());
    }
    if args.is(1, "docs") {
        reply.map(0);
        return Ok(());
    }
    if args.len() > 1 {
        return Err(Refusal::new("ERR unknown subcommand of 'command'. Known: COUNT, DOCS."));
    }
    reply.array(COMMANDS.len());
    for command in &COMMANDS {
        let (first, last, step) = match command.route {
            Route::Key(_) => (1, 1, 1),
            Route::Each | Route::Sum(_) => (1, -1, 1),
            Route::Pairs(_) => (1, -1, 2),
            _ => (0, 0, 0),
        };
        reply.array(6);
        reply.bulk(command.name.as_bytes());
        reply.integer(i64::from(command.arity));
        reply.array(0);
        for number in [first, last, step] {
            reply.integer(number);
        }
    }
    Ok(())
}
