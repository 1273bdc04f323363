//! The open files, threads and address space that the limits of the process leave.
//!
//! A start tries this out beforehand, as an executor that does not get what it needs may panic on
//! its thread, or abort the process. Why not compare each limit with the use of it: limits of a
//! container count other processes too, and no system call says how much of a limit is left.
//!
//! Another thread may take what was tried a moment later. So a trial makes a refusal likely where
//! one is due, and an executor that fails after it must be turned into an error too.
//!
//! Cost: a system call for each file, and the start and the end of each thread.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::host::Needs;
use crate::stats::host;

/// What a start takes, for all of its shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    files: usize,
    threads: usize,
    /// How many of the threads need `memory_each`.
    memories: usize,
    /// In bytes of address space, beside the stack of the thread.
    memory_each: usize,
}

impl Taken {
    /// What so many shards take, with this much more address space for each.
    pub(crate) fn by(shards: usize, needs: Needs, memory_each: usize) -> Self {
        Self {
            files: needs.files * shards + needs.files_once,
            threads: needs.threads * shards,
            memories: shards,
            memory_each: needs.memory + memory_each,
        }
    }

    /// Takes all of it for a moment. The error names the limit and a remedy.
    pub(crate) fn try_out(self) -> Result<(), String> {
        try_files(self.files)?;
        self.try_threads()
    }

    /// Starts threads with stacks of the usual size, which take their memory themselves: an
    /// allocator may have some for one thread and not for another.
    fn try_threads(self) -> Result<(), String> {
        let mut threads = Threads::default();
        for started in 0..self.threads {
            let bytes = if started < self.memories { self.memory_each } else { 0 };
            threads.start(bytes).map_err(|error| {
                let needed = self.threads;
                let of = of_threads();
                format!("{needed} more threads are needed and {started} can be had ({error}); {of}")
            })?;
        }
        if threads.have_memory() {
            return Ok(());
        }
        let Self { memories, memory_each, .. } = self;
        let of = of_memory();
        Err(format!("{memories} times {memory_each} bytes of memory cannot be had; {of}"))
    }
}

/// Checks that this thread can have so many bytes more, now. The error is that of
/// [`no_memory`].
pub(crate) fn try_memory(bytes: usize) -> Result<(), io::Error> {
    if has_memory(bytes) {
        return Ok(());
    }
    Err(no_memory(format_args!("{bytes} bytes of memory cannot be had")))
}

fn has_memory(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

/// An error of the kind `OutOfMemory`, with the limit of address space and the remedy.
pub(crate) fn no_memory(problem: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, format!("{problem}; {}", of_memory()))
}

/// Threads that keep the memory that they have taken until this is dropped.
#[derive(Default)]
struct Threads {
    trial: Arc<Trial>,
    /// Each thread returns its number in the system.
    started: Vec<thread::JoinHandle<Option<u32>>>,
}

/// What the threads of a trial report, and when they end. Why not channels: they take longer to
/// compile than all other code of a start.
#[derive(Default)]
struct Trial {
    reports: Mutex<Reports>,
    changed: Condvar,
}

#[derive(Default)]
struct Reports {
    /// How many threads have their memory.
    had: usize,
    /// Whether a thread cannot have its memory.
    is_refused: bool,
    is_over: bool,
}

impl Trial {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while this is so.
    fn wait(&self, is_so: impl Fn(&Reports) -> bool) -> MutexGuard<'_, Reports> {
        let mut reports = self.reports();
        while is_so(&reports) {
            reports = self.changed.wait(reports).unwrap_or_else(PoisonError::into_inner);
        }
        reports
    }
}

impl Threads {
    /// Starts a thread that takes so many bytes.
    fn start(&mut self, bytes: usize) -> io::Result<()> {
        let trial = Arc::clone(&self.trial);
        let run = move || {
            let mut memory = Vec::<u8>::new();
            let is_had = memory.try_reserve_exact(bytes).is_ok();
            let mut reports = trial.reports();
            reports.had += usize::from(is_had);
            reports.is_refused |= !is_had;
            drop(reports);
            trial.changed.notify_all();
            drop(trial.wait(|reports| !reports.is_over));
            drop(memory);
            host::this_thread()
        };
        self.started.push(thread::Builder::new().spawn(run)?);
        Ok(())
    }

    /// Waits until each thread has tried to take its memory. False if one cannot have it.
    fn have_memory(&self) -> bool {
        let all = self.started.len();
        !self.trial.wait(|reports| !reports.is_refused && reports.had < all).is_refused
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.trial.reports().is_over = true;
        self.trial.changed.notify_all();
        for thread in self.started.drain(..) {
            // It does nothing that could panic.
            if let Ok(Some(number)) = thread.join() {
                await_end(number);
            }
        }
    }
}

/// Waits until the system no longer counts a thread that was joined. Until then the system may
/// refuse another thread. The number may soon be that of another thread, so the wait is bounded.
fn await_end(number: u32) {
    for _ in 0..AWAITED {
        if !host::has_thread(number) {
            return;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// How often the system is asked whether it still has a joined thread.
const AWAITED: u32 = 500;

/// An error of the system, with the limit of threads, which is the usual cause, and the remedy.
pub(crate) fn no_thread(error: &io::Error) -> io::Error {
    let text = format!("no thread can be started ({error}); {}", of_threads());
    io::Error::new(error.kind(), text)
}

/// The limit of open files, and a remedy.
pub(crate) fn of_files() -> String {
    let limit = shown(limit(|resource| resource.files));
    format!(
        "the limit of open files is {limit}: raise it with `ulimit -n` or LimitNOFILE=, or start \
         fewer shards"
    )
}

/// The address space of a thread's stack, unless `RUST_MIN_STACK` names another size.
const STACK: usize = 2 << 20;

/// The limits for which a thread could not be started just now. The system does not say whether a
/// thread was one too many or had no memory for its stack.
fn of_threads() -> String {
    let has_limit = limit(|resource| resource.memory).is_some();
    if has_limit && !has_memory(STACK) {
        return of_memory();
    }
    let threads = shown(limit(|resource| resource.threads));
    // The allocator may have had that memory already.
    let memory = has_limit.then(|| format!("; {}", of_memory()));
    format!(
        "the limit of processes and threads is {threads}: raise it with `ulimit -u`, TasksMax= or \
         the container's limit of pids, or start fewer shards{}",
        memory.unwrap_or_default()
    )
}

fn of_memory() -> String {
    let raise = limit(|resource| resource.memory).map(|limit| {
        format!(
            "the limit of address space is {limit} bytes: raise it with `ulimit -v` or LimitAS=, \
             or "
        )
    });
    let raise = raise.unwrap_or_default();
    format!("{raise}start fewer shards or ones with a smaller capacity")
}

fn try_files(count: usize) -> Result<(), String> {
    let mut files = Vec::with_capacity(count);
    while files.len() < count {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            // Where there is no such file, nothing is found out.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                let got = files.len();
                // The message may need one.
                drop(files);
                return Err(format!(
                    "{count} more open files are needed and {got} can be had ({error}); {}",
                    of_files()
                ));
            }
        }
    }
    Ok(())
}

/// The limits of the process; `None` where there is none.
struct Limits {
    files: Option<u64>,
    threads: Option<u64>,
    memory: Option<u64>,
}

#[cfg(target_os = "linux")]
fn limit(pick: impl Fn(&Limits) -> Option<u64>) -> Option<u64> {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    #[allow(clippy::unnecessary_cast, reason = "a limit has fewer bits on some processors")]
    let limit = |resource| {
        let (current, _) = getrlimit(resource).ok()?;
        (current < RLIM_INFINITY).then_some(current as u64)
    };
    pick(&Limits {
        files: limit(Resource::RLIMIT_NOFILE),
        threads: limit(Resource::RLIMIT_NPROC),
        memory: limit(Resource::RLIMIT_AS),
    })
}

#[cfg(not(target_os = "linux"))]
fn limit(pick: impl Fn(&Limits) -> Option<u64>) -> Option<u64> {
    pick(&Limits { files: None, threads: None, memory: None })
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "not set for the process".to_owned(), |limit| limit.to_string())
}
