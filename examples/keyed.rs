//! Sessions that expire when they are idle, and end together when their user logs out.
//!
//! Each session is known by its token alone: a request has the token, resets the session's timer
//! with it, and reads and changes the session where it lies. The sessions of a user are a group.
//! The exit status says whether each session ended as it should.
//!
//! ```text
//! cargo run --example keyed
//! ```
//!
//! To try: another `IDLE_MAX`, and which sessions expire then.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{Fired, RefusedKind, ShutdownPolicy, TimerService, Timers};
use corewheel_glommio::Runtime;
use corewheel_kit::keyed::KeyedTimers;

const IDLE_MAX: Duration = Duration::from_millis(80);

struct Session {
    device: &'static str,
    requests: u32,
}

/// Sessions by their tokens, in groups by the names of their users.
type Sessions = KeyedTimers<String, Session, &'static str>;

/// Serves sessions until none is left. Returns what has happened, in order.
async fn serve(timers: Timers<()>) -> Result<Vec<String>, RefusedKind> {
    let lines = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&lines);
    let sessions: Sessions = KeyedTimers::in_groups(&timers, move |expired, _| {
        let Session { device, requests } = expired.value;
        let line = format!("{} expires on a {device}, requests: {requests}", expired.key);
        noted.borrow_mut().push(line);
    });
    let start = timers.now();
    for (user, token, device) in [
        ("ada", "token-1", "phone"),
        ("ada", "token-2", "laptop"),
        ("bob", "token-3", "tablet"),
        ("eve", "token-4", "phone"),
    ] {
        let session = Session { device, requests: 0 };
        sessions.insert_in(user, token.to_owned(), session, start + IDLE_MAX)?;
    }
    // A request of bob comes with his token, and ada logs out on all of her devices.
    let (shared, noted) = (sessions.clone(), Rc::clone(&lines));
    timers.schedule_fn(start + IDLE_MAX / 2, move |_| {
        if shared.reset("token-3", IDLE_MAX) {
            shared.with("token-3", |session| session.requests += 1);
        }
        for ended in shared.remove_group("ada") {
            noted.borrow_mut().push(format!("{} is logged out", ended.key));
        }
    })?;
    while !sessions.is_empty() {
        timers.sleep(IDLE_MAX / 4).await?;
    }
    Ok(lines.take())
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = TimerService::builder()
        .shards(1)
        .runtime(Runtime::GlommioOrTokio)
        .start_with(|_| |_: Fired<()>, _: &Timers<()>| {})?;
    let shard = service.shards().next().ok_or("there is no shard")?;
    let happened = service.spawn_on(shard, serve)?.wait()??;
    let report = service.shutdown(ShutdownPolicy::Drop)?;
    let expected = [
        "token-1 is logged out",
        "token-2 is logged out",
        "token-4 expires on a phone, requests: 0",
        "token-3 expires on a tablet, requests: 1",
    ];
    let counts = report.shards[0].counts;
    if happened != expected || counts.panicked > 0 || counts.pending > 0 {
        return Err(format!("{happened:?} happened instead of {expected:?}; {counts:?}").into());
    }
    for line in happened {
        println!("{line}");
    }
    println!("all of them came to their end");
    Ok(())
}
