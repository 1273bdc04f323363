//! The session of one client: what it has chosen, and the commands that run on no key.

use std::fmt::Write;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use crate::client::{Client, Kind};
use crate::commands::Done;
use crate::core::{Core, Gauge, Gauges};
use crate::glob;
use crate::protocol::{Args, Proto, Reply, integer, is};

/// The version of redis whose replies these commands give.
const LEVEL: &str = "7.2.0";

pub(crate) struct Session {
    pub(crate) core: Rc<Core>,
    pub(crate) client: Rc<Client>,
    pub(crate) proto: Proto,
    /// Whether the connection ends when its replies are written.
    pub(crate) is_closing: bool,
}

impl Session {
    pub(crate) fn new(core: &Rc<Core>, client: Rc<Client>) -> Self {
        Self { core: Rc::clone(core), client, proto: Proto::Resp2, is_closing: false }
    }

    /// Executes a command that runs on no key.
    pub(crate) fn run(&mut self, name: &str, args: Args<'_>, out: &mut BytesMut) -> Done {
        let mut reply = Reply { out, proto: self.proto };
        match name {
            "ping" => self.ping(args, &mut reply),
            "hello" => self.hello(args, out)?,
            "select" => match integer(args[1]) {
                Some(0) => reply.simple("OK"),
                Some(_) => return Err("ERR DB index is out of range".into()),
                None => return Err("ERR invalid DB index".into()),
            },
            // The names of a client and of its library are not kept: nothing lists them.
            "client" if is(args, 1, "setname") || is(args, 1, "setinfo") => reply.simple("OK"),
            // What redis-cli asks for at its start, to complete what is typed.
            "command" if is(args, 1, "docs") => reply.map(0),
            "command" if args.len() == 1 => reply.array(0),
            "config" if is(args, 1, "get") => self.config(&args[2..], &mut reply),
            "dbsize" => {
                let keys = self.core.shared.total(|core| &core.keys);
                reply.integer(keys.cast_signed());
            }
            "info" => reply.bulk(self.info().as_bytes()),
            "quit" => {
                self.is_closing = true;
                reply.simple("OK");
            }
            "subscribe" | "psubscribe" => {
                for of in &args[1..] {
                    self.client.subscribe(Kind::of(name), of);
                    self.confirm(name, Some(of), &mut reply);
                }
                self.core.subscriptions_changed(&self.client);
            }
            "unsubscribe" | "punsubscribe" => self.unsubscribe(name, args, &mut reply),
            _ => return Err(format!("ERR unknown subcommand of '{name}'").into()),
        }
        Ok(())
    }

    fn ping(&self, args: Args<'_>, reply: &mut Reply<'_>) {
        let text = args.get(1).copied();
        if self.proto == Proto::Resp2 && self.client.subscriptions() > 0 {
            reply.array(2);
            reply.bulk(b"pong");
            reply.bulk(text.unwrap_or_default());
        } else if let Some(text) = text {
            reply.bulk(text);
        } else {
            reply.simple("PONG");
        }
    }

    fn hello(&mut self, args: Args<'_>, out: &mut BytesMut) -> Done {
        let proto = match args.get(1).map(|version| integer(version)) {
            None => self.proto,
            Some(Some(2)) => Proto::Resp2,
            Some(Some(3)) => Proto::Resp3,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
        };
        if args.len() > 2 && !(args.len() == 4 && is(args, 2, "setname")) {
            return Err("ERR Syntax error in HELLO: this server has no users".into());
        }
        self.proto = proto;
        let mut reply = Reply { out, proto };
        reply.map(7);
        reply.pair("server", "resp_cache");
        reply.pair("version", LEVEL);
        reply.pair("mode", "standalone");
        reply.pair("role", "master");
        for (name, number) in [("proto", proto as i64), ("id", self.client.id.cast_signed())] {
            reply.bulk(name.as_bytes());
            reply.integer(number);
        }
        reply.bulk(b"modules");
        reply.array(0);
        Ok(())
    }

    /// The settings whose names match one of the patterns.
    fn config(&self, patterns: Args<'_>, reply: &mut Reply<'_>) {
        let options = &self.core.shared.options;
        let settings = [
            ("appendonly", "no".to_owned()),
            ("maxmemory", options.memory_max.to_string()),
            ("maxmemory-policy", "volatile-ttl".to_owned()),
            ("notify-keyspace-events", options.notify_keyspace_events.letters()),
            ("save", String::new()),
        ];
        let is_asked_for = |name: &str| {
            let mut patterns = patterns.iter().map(|pattern| pattern.to_ascii_lowercase());
            patterns.any(|pattern| glob::matches(&pattern, name.as_bytes()))
        };
        let found: Vec<_> = settings.iter().filter(|(name, _)| is_asked_for(name)).collect();
        reply.map(found.len());
        for (name, value) in found {
            reply.pair(name, value);
        }
    }

    fn info(&self) -> String {
        let (shared, options) = (&self.core.shared, &self.core.shared.options);
        let total = |gauge: fn(&Gauges) -> &Gauge| shared.total(gauge);
        let numbers = [
            ("\r\n# Clients\r\nconnected_clients", total(|core| &core.clients)),
            ("mem_clients", total(|core| &core.client_memory)),
            ("\r\n# Memory\r\nused_memory", total(|core| &core.memory)),
            ("maxmemory_policy:volatile-ttl\r\nmaxmemory", options.memory_max),
            ("\r\n# Stats\r\nexpired_keys", total(|core| &core.expired)),
            ("evicted_keys", total(|core| &core.evicted)),
            ("evicted_clients", total(|core| &core.clients_evicted)),
            ("rejected_connections", total(|core| &core.clients_refused)),
            ("events_dropped", total(|core| &core.dropped)),
        ];
        let mut text = format!("# Server\r\nredis_version:{LEVEL}\r\nrole:master\r\n");
        // Writing to a string cannot fail.
        for (name, number) in numbers {
            let _ = write!(text, "{name}:{number}\r\n");
        }
        text
    }

    fn unsubscribe(&self, verb: &str, args: Args<'_>, reply: &mut Reply<'_>) {
        let kind = Kind::of(verb);
        let mut names: Vec<_> = args[1..].iter().map(|name| Bytes::copy_from_slice(name)).collect();
        if names.is_empty() {
            names = self.client.names(kind);
        }
        if names.is_empty() {
            self.confirm(verb, None, reply);
        }
        for name in names {
            self.client.unsubscribe(kind, &name);
            self.confirm(verb, Some(&name), reply);
        }
        self.core.subscriptions_changed(&self.client);
    }

    /// Confirms a change of a subscription, with the number that the client has now.
    fn confirm(&self, verb: &str, name: Option<&[u8]>, reply: &mut Reply<'_>) {
        reply.push(3);
        reply.bulk(verb.as_bytes());
        match name {
            Some(name) => reply.bulk(name),
            None => reply.null(),
        }
        reply.integer(self.client.subscriptions().cast_signed() as i64);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.core.leave(&self.client);
    }
}
