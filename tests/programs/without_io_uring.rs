//! Runs a command that is not allowed to use `io_uring`, as in a container with the usual seccomp
//! profile: to see what a server does there.
//!
//! ```text
//! without_io_uring EPERM idle_server --runtime auto
//! ```
//!
//! `EPERM` is what such containers answer, `ENOSYS` what kernels without `io_uring` do.
//! `EPERM:enter` forbids only `io_uring_enter`, and `setup` and `register` alone can be named in
//! the same way.

#[cfg(target_os = "linux")]
mod filter {
    use std::env;
    use std::error::Error;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, ExitCode};

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    const CALLS: [(&str, i64); 3] = [
        ("setup", libc::SYS_io_uring_setup),
        ("enter", libc::SYS_io_uring_enter),
        ("register", libc::SYS_io_uring_register),
    ];

    pub(crate) fn main() -> ExitCode {
        let error = match run() {
            Ok(never) => match never {},
            Err(error) => error,
        };
        #[allow(clippy::print_stderr, reason = "it is a command")]
        {
            eprintln!("without_io_uring: {error}");
        }
        ExitCode::FAILURE
    }

    /// Becomes the command, under the filter.
    fn run() -> Result<std::convert::Infallible, Box<dyn Error>> {
        let mut arguments = env::args_os().skip(1);
        let what = arguments.next().and_then(|what| what.into_string().ok()).unwrap_or_default();
        let (errno, only) = match what.split_once(':') {
            Some((errno, only)) => (errno, Some(only)),
            None => (&*what, None),
        };
        let errno = match errno {
            "EPERM" => libc::EPERM,
            "ENOSYS" => libc::ENOSYS,
            _ => {
                return Err("the first argument is EPERM or ENOSYS, the rest a command".into());
            }
        };
        let calls = CALLS.into_iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        let program = arguments.next().ok_or("there is no command")?;
        let filter = SeccompFilter::new(
            calls.map(|(_, call)| (call, Vec::new())).collect(),
            SeccompAction::Allow,
            SeccompAction::Errno(errno.unsigned_abs()),
            env::consts::ARCH.try_into()?,
        )?;
        let filter: BpfProgram = filter.try_into()?;
        apply_filter(&filter)?;
        Err(Command::new(program).args(arguments).exec().into())
    }
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    filter::main()
}

/// There is no `io_uring` to be forbidden elsewhere.
#[cfg(not(target_os = "linux"))]
fn main() {}
