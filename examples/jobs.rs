//! A delayed job queue beside a multi-thread tokio runtime: jobs that are put in, hurried, taken
//! back and run when they are due, by any task on any thread.
//!
//! The jobs lie in keyed timers on one shard, which the connections of a server reach by clones of
//! one handle. The exit status says whether each job ended as it should.
//!
//! ```text
//! cargo run --example jobs
//! ```
//!
//! To try: fewer `WORKERS` or a smaller `DUE_MAX`, and how long all of the jobs take then.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewheel::kept::Kept;
use corewheel::{ReplyError, ShutdownPolicy, TimerService, Timers};
use corewheel_kit::keyed::KeyedTimers;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

type Failed = Box<dyn Error + Send + Sync>;

/// How many connections put jobs in, and how many jobs each of them has.
const CONNECTIONS: u64 = 8;
const JOBS_EACH: u64 = 500;
const WORKERS: u64 = 4;
/// How many due jobs may wait for a worker.
const DUE_MAX: usize = 64;
/// A job that finds no worker is due again after this time.
const AGAIN: Duration = Duration::from_millis(5);
const SOON: Duration = Duration::from_millis(50);
const LATER: Duration = Duration::from_hours(1);

/// A job, by its number. It counts how often it found no worker.
struct Job {
    number: u64,
    turned_away: u32,
}

type Queue = KeyedTimers<u64, Job>;

/// Makes the queue, on the thread of its shard. Jobs that are due go to the workers.
fn queue(timers: &Timers, workers: mpsc::Sender<Job>) -> Queue {
    KeyedTimers::new(timers, move |expired, queue: &Queue| {
        assert!(expired.deadline <= Instant::now(), "job {} is early", expired.key);
        if let Err(TrySendError::Full(mut job)) = workers.try_send(expired.value) {
            job.turned_away += 1;
            // There is room, since the job has just left; an error means that the shard ends.
            let _ended = queue.insert(expired.key, job, AGAIN);
        }
    })
}

/// One connection: puts its jobs in, takes a quarter of them back and hurries another quarter.
/// Returns how many it has taken back.
async fn connection(jobs: Kept<Queue>, first: u64) -> Result<u64, ReplyError> {
    let mut taken_back = 0;
    for number in first..first + JOBS_EACH {
        let due = Instant::now() + if number % 2 == 0 { SOON } else { LATER };
        let job = Job { number, turned_away: 0 };
        let put = jobs.run(move |jobs| jobs.insert(number, job, due).is_ok());
        assert!(put.await?, "there is room for each job");
        if number % 4 == 1 {
            let removed = jobs.run(move |jobs| jobs.remove(&number)).await?;
            taken_back += u64::from(removed.is_some());
        } else if number % 4 == 3 {
            assert!(jobs.run(move |jobs| jobs.reset(&number, SOON)).await?, "it is not due yet");
        }
    }
    Ok(taken_back)
}

/// A worker: runs jobs until there are none any more.
async fn worker(due: Arc<Mutex<mpsc::Receiver<Job>>>) -> Vec<Job> {
    let mut done = Vec::new();
    loop {
        let job = due.lock().await.recv().await;
        let Some(job) = job else { return done };
        done.push(job);
        // The work.
        tokio::task::yield_now().await;
    }
}

async fn run(service: &TimerService) -> Result<(), Failed> {
    let (sender, due) = mpsc::channel(DUE_MAX);
    let make = move |timers: &Timers| queue(timers, sender);
    let jobs = service.handle().on(service.shard_for(0)).keep(make)?.await?;

    let due = Arc::new(Mutex::new(due));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(worker(Arc::clone(&due)));
    }
    let mut connections = JoinSet::new();
    for number in 0..CONNECTIONS {
        connections.spawn(connection(jobs.clone(), number * JOBS_EACH));
    }
    let mut taken_back = 0;
    while let Some(ended) = connections.join_next().await {
        taken_back += ended??;
    }

    // The queue is empty when each job has been taken back or has gone to a worker.
    while !jobs.run(KeyedTimers::is_empty).await? {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The last handle: the queue is dropped on its shard, and the channel of the workers closes.
    drop(jobs);
    let done: Vec<Job> = workers.join_all().await.into_iter().flatten().collect();

    let mut runs: HashMap<u64, u32> = HashMap::new();
    for job in &done {
        *runs.entry(job.number).or_default() += 1;
    }
    let expected = CONNECTIONS * JOBS_EACH - taken_back;
    if runs.len() as u64 != expected || runs.values().any(|count| *count != 1) {
        return Err(format!("{} jobs have run instead of {expected}", done.len()).into());
    }
    let turned_away: u32 = done.iter().map(|job| job.turned_away).sum();
    println!(
        "{} jobs have run once each, {taken_back} were taken back; {turned_away} times the workers \
         were busy",
        done.len()
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let service = TimerService::beside_runtime().start()?;
    run(&service).await?;
    let report = service.begin_shutdown(ShutdownPolicy::Drop)?.await;
    let panicked: u64 = report.shards.iter().map(|shard| shard.counts.panicked).sum();
    if panicked > 0 || !report.dead.is_empty() {
        return Err(format!("{panicked} callbacks panicked, {:?} are dead", report.dead).into());
    }
    println!("all of them came to their end");
    Ok(())
}
