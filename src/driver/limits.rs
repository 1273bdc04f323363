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
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_utils::sync::WaitGroup;

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
    ///
    /// Starts threads with stacks of the usual size, which take their memory themselves: an
    /// allocator may have some for one thread and not for another.
    pub(crate) fn try_out(self) -> Result<(), String> {
        try_files(self.files)?;
        // The threads keep what they have taken until this is unlocked.
        let (gate, is_refused) = (Mutex::new(()), AtomicBool::new(false));
        thread::scope(|scope| {
            let closed = gate.lock();
            let (tried, mut started, mut outcome) = (WaitGroup::new(), Vec::new(), Ok(()));
            for count in 0..self.threads {
                let bytes = if count < self.memories { self.memory_each } else { 0 };
                let (tried, gate, is_refused) = (tried.clone(), &gate, &is_refused);
                let run = move || {
                    let mut memory = Vec::<u8>::new();
                    if memory.try_reserve_exact(bytes).is_err() {
                        // Relaxed: the end of the thread orders it.
                        is_refused.store(true, Ordering::Relaxed);
                    }
                    drop(tried);
                    drop(gate.lock());
                    drop(memory);
                    host::this_thread()
                };
                match thread::Builder::new().spawn_scoped(scope, run) {
                    Ok(thread) => started.push(thread),
                    Err(error) => {
                        let (needed, of) = (self.threads, of_threads());
                        outcome = Err(format!(
                            "{needed} more threads are needed and {count} can be had ({error}); \
                             {of}"
                        ));
                        break;
                    }
                }
            }
            tried.wait();
            drop(closed);
            for thread in started {
                // It does nothing that could panic.
                if let Ok(Some(number)) = thread.join() {
                    await_end(number);
                }
            }
            outcome
        })?;
        if !is_refused.into_inner() {
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
