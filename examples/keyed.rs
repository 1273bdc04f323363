//! Sessions that expire when nothing is heard of them, and end together when their user logs out.
//!
//! Each session is known by its token alone: whoever handles a request has that, moves the
//! session's timer with it and keeps no handle. The sessions of a user are a group. The exit status
//! says whether all of them came to the end that they should.
//!
//! ```text
//! cargo run --example keyed
//! ```

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::{
    Expired, Fired, Inserted, KeyedTimers, Runtime, ShutdownPolicy, SpawnError, TimerService,
    Timers,
};

const IDLE_MAX: Duration = Duration::from_millis(80);

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
struct Session {
    device: &'static str,
}

/// Sessions by their tokens, in groups by the names of their users.
type Sessions = KeyedTimers<String, Session, &'static str, ()>;

/// What has happened, and how long after the beginning.
type Happened = (Duration, String);

/// What happens on the shard, in its order.
#[derive(Clone)]
struct Diary {
    start: Instant,
    lines: Rc<RefCell<Vec<Happened>>>,
}

impl Diary {
    fn note(&self, timers: &Timers<()>, line: String) {
        let after = timers.now() - self.start;
        println!("{:>6} ms: {line}", after.as_millis());
        self.lines.borrow_mut().push((after, line));
    }
}

/// Begins the sessions, and plays the requests that come for them half of their time later.
fn serve(sessions: &Sessions, diary: &Diary) -> Result<(), Box<dyn Error>> {
    let logins = [
        ("ada", "token-1", "phone"),
        ("ada", "token-2", "laptop"),
        ("bob", "token-3", "tablet"),
        ("eve", "token-4", "phone"),
    ];
    for (user, token, device) in logins {
        let (token, idle) = (token.to_owned(), diary.start + IDLE_MAX);
        let scheduled = sessions.schedule_in_at(user, token, idle, Session { device })?;
        if !matches!(scheduled, Inserted::New) {
            return Err(format!("{user} had that session already").into());
        }
    }
    let (shared, diary) = (sessions.clone(), diary.clone());
    let half = diary.start + IDLE_MAX / 2;
    let requests = move |timers: &Timers<()>| {
        // Bob's request comes with his token.
        if shared.reset("token-3", IDLE_MAX) {
            diary.note(timers, "bob is there".to_owned());
        }
        // And ada logs out, on all of her devices.
        for session in shared.cancel_group("ada") {
            diary.note(timers, format!("{} is logged out", session.key));
        }
    };
    sessions.timers().schedule_fn_at(half, requests).map_err(|_| "there is no timer")?;
    Ok(())
}

/// Keeps the sessions until none is left; they end with the last that keeps them.
async fn run(timers: Timers<()>) -> Result<Vec<Happened>, String> {
    let diary = Diary { start: timers.now(), lines: Rc::default() };
    let noted = diary.clone();
    let expired = move |session: Expired<Session, String>, sessions: &Sessions| {
        let line = format!("{} on a {} expires", session.key, session.value.device);
        noted.note(sessions.timers(), line);
    };
    let sessions =
        Sessions::with_capacity(&timers, 1_000, expired).map_err(|error| error.to_string())?;
    serve(&sessions, &diary).map_err(|error| error.to_string())?;
    while !sessions.is_empty() {
        timers.sleep(IDLE_MAX / 4).await.map_err(|error| error.to_string())?;
    }
    Ok(diary.lines.take())
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = TimerService::builder()
        .shards(1)
        .runtime(Runtime::Auto)
        .start_with(|_| |_: Fired<()>, _: &Timers<()>| {})?;
    let shard = service.shards().next().ok_or("there is no shard")?;
    let happened = match service.spawn_on(shard, run) {
        Ok(running) => running.wait()??,
        Err(SpawnError::NoExecutor) => {
            return Err("tasks need glommio or tokio, and neither works here".into());
        }
        Err(error) => return Err(error.into()),
    };
    let report = service.shutdown(ShutdownPolicy::Drop)?;

    let half = IDLE_MAX / 2;
    let expected = [
        ("bob is there", half),
        ("token-1 is logged out", half),
        ("token-2 is logged out", half),
        ("token-4 on a phone expires", IDLE_MAX),
        ("token-3 on a tablet expires", half + IDLE_MAX),
    ];
    if happened.len() != expected.len() {
        return Err(format!("so much has happened: {happened:?}").into());
    }
    for ((after, line), (should, not_before)) in happened.iter().zip(expected) {
        if line != should || *after < not_before {
            return Err(format!("{line} after {after:?}, where it should be that {should}").into());
        }
    }
    let counts = report.shards[0].counts;
    if counts.panicked > 0 || counts.pending > 0 {
        return Err(format!("something is left or has gone wrong: {counts:?}").into());
    }
    println!("all of them came to their end");
    Ok(())
}
