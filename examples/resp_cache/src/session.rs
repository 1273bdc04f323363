//! The session of one client: what it has chosen, and the commands that run on no key.

use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::clients::Client;
use crate::commands::{
    COMMANDS, Command, Done, Refusal, find, unknown, unknown_subcommand, wrong_arity,
};
use crate::core::Core;
use crate::gauges::Gauges;
use crate::protocol::{Args, Proto, Reply, integer, is};
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

pub(crate) struct Session {
    pub(crate) core: Rc<Core>,
    pub(crate) proto: Proto,
    pub(crate) replying: Replying,
    /// `None` until the client first subscribes.
    pub(crate) subscriber: Option<Rc<Subscriber>>,
    /// Whether the connection ends when its replies are written.
    pub(crate) is_closing: bool,
    pub(crate) client: Arc<Client>,
}

impl Session {
    pub(crate) fn new(core: Rc<Core>, client: Arc<Client>) -> Self {
        Self {
            core,
            proto: Proto::Resp2,
            replying: Replying::On,
            subscriber: None,
            is_closing: false,
            client,
        }
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.subscriber.as_ref().is_some_and(|subscriber| subscriber.count() > 0)
    }

    fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        self.client.proto.set(if proto == Proto::Resp3 { 3 } else { 2 });
        if let Some(subscriber) = &self.subscriber {
            subscriber.proto.set(proto);
        }
    }

    /// Whether the client may run a command. In RESP2, messages to a subscriber could be taken for
    /// replies.
    pub(crate) fn admits(&self, name: &str) -> bool {
        let is_admitted =
            || ["ping", "quit", "reset"].contains(&name) || name.ends_with("subscribe");
        self.proto == Proto::Resp3 || !self.is_subscribed() || is_admitted()
    }

    /// Executes a command that runs on no key.
    pub(crate) fn run(&mut self, name: &str, args: Args<'_>, out: &mut BytesMut) -> Done {
        let mut reply = Reply { out, proto: self.proto };
        match name {
            "ping" => self.ping(args, &mut reply)?,
            "echo" => reply.bulk(args[1]),
            "hello" => self.hello(args, out)?,
            "select" => match integer(args[1]) {
                Some(0) => reply.ok(),
                Some(_) => return Err(Refusal::from("ERR DB index is out of range")),
                None => return Err(Refusal::from("ERR invalid DB index")),
            },
            "client" => self.client(args, &mut reply)?,
            "command" => command(args, &mut reply)?,
            "config" => self.config(args, &mut reply)?,
            "dbsize" => {
                let keys = self.core.shared.total(|core| core.keys.get());
                reply.integer(keys.cast_signed());
            }
            "function" if is(args, 1, "flush") => reply.ok(),
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
                self.set_proto(Proto::Resp2);
                self.replying = Replying::On;
                self.client.set_name(b"")?;
                reply.simple("RESET");
            }
            "subscribe" | "psubscribe" => self.subscribe(name, args, &mut reply),
            "unsubscribe" | "punsubscribe" => self.unsubscribe(name, args, &mut reply),
            _ => return Err(unknown(args)),
        }
        Ok(())
    }

    fn ping(&self, args: Args<'_>, reply: &mut Reply<'_>) -> Done {
        if args.len() > 2 {
            return Err(wrong_arity("ping"));
        }
        let text = args.get(1).copied();
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

    fn hello(&mut self, args: Args<'_>, out: &mut BytesMut) -> Done {
        let proto = match args.get(1).map(|version| integer(version)) {
            None => self.proto,
            Some(Some(2)) => Proto::Resp2,
            Some(Some(3)) => Proto::Resp3,
            Some(Some(_)) => return Err(Refusal::from("NOPROTO unsupported protocol version")),
            Some(None) => {
                return Err(Refusal::from(
                    "ERR Protocol version is not an integer or out of range",
                ));
            }
        };
        match args.len() {
            0..=2 => {}
            4 if is(args, 2, "setname") => self.client.set_name(args[3])?,
            _ => return Err(Refusal::from("ERR Syntax error in HELLO: this server has no users")),
        }
        self.set_proto(proto);
        let mut reply = Reply { out, proto };
        reply.map(7);
        reply.pair("server", "resp_cache");
        reply.pair("version", LEVEL);
        reply.pair("mode", "standalone");
        reply.pair("role", "master");
        let version = if proto == Proto::Resp3 { 3 } else { 2 };
        for (name, number) in [("proto", version), ("id", self.client.id.cast_signed())] {
            reply.bulk(name.as_bytes());
            reply.integer(number);
        }
        reply.bulk(b"modules");
        reply.array(0);
        Ok(())
    }

    fn client(&mut self, args: Args<'_>, reply: &mut Reply<'_>) -> Done {
        match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
            (b"id", 2) => reply.integer(self.client.id.cast_signed()),
            (b"getname", 2) => match self.client.name() {
                name if name.is_empty() => reply.null(),
                name => reply.bulk(&name),
            },
            (b"setname", 3) => {
                self.client.set_name(args[2])?;
                reply.ok();
            }
            (b"info", 2) => reply.bulk(self.client.line().as_bytes()),
            (b"list", 2) => reply.bulk(self.core.shared.clients.list().as_bytes()),
            // The name and the version of the client's library, which nothing here asks for.
            (b"setinfo", 4) => reply.ok(),
            (b"reply", 3) if is(args, 2, "on") => {
                self.replying = Replying::On;
                reply.ok();
            }
            (b"reply", 3) if is(args, 2, "off") => self.replying = Replying::Off,
            (b"reply", 3) if is(args, 2, "skip") => {
                if self.replying != Replying::Off {
                    self.replying = Replying::SkipNext;
                }
            }
            _ => {
                let name = String::from_utf8_lossy(args[1]);
                return Err(unknown_subcommand(
                    &name,
                    "ID, GETNAME, SETNAME, SETINFO, INFO, LIST, REPLY ON/OFF/SKIP",
                ));
            }
        }
        Ok(())
    }

    fn config(&self, args: Args<'_>, reply: &mut Reply<'_>) -> Done {
        let config = &self.core.shared.config;
        if is(args, 1, "get") && args.len() > 2 {
            let found = config.matching(&args[2..]);
            reply.map(found.len());
            for (name, value) in found {
                reply.pair(name, &value);
            }
        } else if is(args, 1, "set") && args.len() > 3 && args.len().is_multiple_of(2) {
            config.set(&args[2..])?;
            reply.ok();
        } else if is(args, 1, "resetstat") && args.len() == 2 {
            self.core.shared.gauges.iter().for_each(|core| core.reset_stats());
            reply.ok();
        } else {
            return Err(unknown_subcommand("config", "GET, SET, RESETSTAT"));
        }
        Ok(())
    }

    fn info(&self) -> String {
        let shared = &self.core.shared;
        let total = |gauge: fn(&Gauges) -> u64| shared.total(gauge);
        let keys = total(|core| core.keys.get());
        let expires = total(|core| core.with_deadline.get());
        let numbers = [
            ("process_id", std::process::id().into()),
            ("uptime_in_seconds", shared.started.elapsed().as_secs()),
            ("cores", shared.cores() as u64),
            ("\r\n# Clients\r\nconnected_clients", shared.clients.len() as u64),
            ("maxclients", shared.config.clients_max.get()),
            ("pubsub_clients", total(|core| core.subscribers.get())),
            ("maxmemory_clients", shared.config.clients_memory_max.get()),
            ("mem_clients", total(|core| core.client_memory.get())),
            ("\r\n# Memory\r\nused_memory", total(|core| core.memory.get())),
            ("maxmemory_policy:volatile-ttl\r\nmaxmemory", shared.config.memory_max.get()),
            ("\r\n# Stats\r\ntotal_commands_processed", total(|core| core.commands.since_reset())),
            ("expired_keys", total(|core| core.expired.since_reset())),
            ("evicted_keys", total(|core| core.evicted.since_reset())),
            ("evicted_clients", total(|core| core.clients_evicted.since_reset())),
            ("rejected_connections", total(|core| core.clients_refused.since_reset())),
            (
                "client_output_buffer_limit_disconnections",
                total(|core| core.clients_slow.since_reset()),
            ),
            ("events_dropped", total(|core| core.dropped.since_reset())),
        ];
        let mut text = format!(
            "# Server\r\nserver_name:resp_cache\r\nredis_version:{LEVEL}\r\n\
             redis_mode:standalone\r\narch_bits:{}\r\n",
            usize::BITS
        );
        // Writing to a string cannot fail.
        for (name, number) in numbers {
            let _ = write!(text, "{name}:{number}\r\n");
        }
        text.push_str("\r\n# Replication\r\nrole:master\r\n");
        text.push_str("\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n");
        if keys > 0 {
            let _ = write!(text, "db0:keys={keys},expires={expires},avg_ttl=0\r\n");
        }
        text
    }

    fn subscriber(&mut self) -> Rc<Subscriber> {
        let client = || Arc::clone(&self.client);
        let subscriber = self.subscriber.get_or_insert_with(|| Subscriber::new(client()));
        subscriber.proto.set(self.proto);
        Rc::clone(subscriber)
    }

    fn subscribe(&mut self, verb: &str, args: Args<'_>, reply: &mut Reply<'_>) {
        let subscriber = self.subscriber();
        for name in &args[1..] {
            self.core.registry.borrow_mut().subscribe(&subscriber, Kind::of(verb), name);
            confirm(reply, verb, Some(name), subscriber.count());
        }
        self.core.limit_clients();
        self.publish_subscribers();
    }

    fn unsubscribe(&mut self, verb: &str, args: Args<'_>, reply: &mut Reply<'_>) {
        let (subscriber, kind) = (self.subscriber(), Kind::of(verb));
        let mut names: Vec<_> = args[1..].iter().map(|name| Bytes::copy_from_slice(name)).collect();
        if names.is_empty() {
            names = subscriber.names(kind);
        }
        if names.is_empty() {
            confirm(reply, verb, None, subscriber.count());
        }
        for name in names {
            self.core.registry.borrow_mut().unsubscribe(&subscriber, kind, &name);
            confirm(reply, verb, Some(&name), subscriber.count());
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
        self.core.gauges().subscribers.set(self.core.registry.borrow().subscribers);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.unsubscribe_all();
    }
}

/// Confirms a change of a subscription, with the number that the client has now.
fn confirm(reply: &mut Reply<'_>, verb: &str, name: Option<&[u8]>, count: usize) {
    reply.push(3);
    reply.bulk(verb.as_bytes());
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.count(count);
}

/// `COMMAND`: the names, arities and keys of all commands, or of those that are named.
fn command(args: Args<'_>, reply: &mut Reply<'_>) -> Done {
    if is(args, 1, "count") && args.len() == 2 {
        reply.count(COMMANDS.len());
    } else if is(args, 1, "docs") {
        reply.map(0);
    } else if is(args, 1, "list") && args.len() == 2 {
        reply.array(COMMANDS.len());
        for command in &COMMANDS {
            reply.bulk(command.name.as_bytes());
        }
    } else if is(args, 1, "info") && args.len() > 2 {
        reply.array(args.len() - 2);
        for name in &args[2..] {
            match find(name) {
                Some(command) => describe(command, reply),
                None => reply.null_array(),
            }
        }
    } else if args.len() == 1 || (is(args, 1, "info") && args.len() == 2) {
        reply.array(COMMANDS.len());
        for command in &COMMANDS {
            describe(command, reply);
        }
    } else {
        return Err(unknown_subcommand("command", "COUNT, DOCS, INFO, LIST"));
    }
    Ok(())
}

fn describe(command: &Command, reply: &mut Reply<'_>) {
    let (first, last, step) = command.key_range();
    reply.array(6);
    reply.bulk(command.name.as_bytes());
    reply.integer(i64::from(command.arity));
    reply.array(0);
    for number in [first.into(), last.into(), step.into()] {
        reply.integer(number);
    }
}
