//! Runs a command that is not allowed to use `io_uring`, as in a container with the usual seccomp
//! profile: to see what a server does there.
//!
//! ```text
//! without_io_uring EPERM idle_server --runtime auto
//! ```
//!
//! `EPERM` is what such containers answer, `ENOSYS` what kernels without `io_uring` do.

#[cfg(target_os = "linux")]
mod filter {
    use std::env;
    use std::error::Error;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, ExitCode};

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

    const CALLS: [i64; 3] =
        [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

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
        let errno = match arguments.next().as_ref().and_then(|errno| errno.to_str()) {
            Some("EPERM") => libc::EPERM,
            Some("ENOSYS") => libc::ENOSYS,
            _ => {
                return Err("the first argument is EPERM or ENOSYS, the rest a command".into());
            }
        };
        let program = arguments.next().ok_or("there is no command")?;
        let filter = SeccompFilter::new(
            CALLS.into_iter().map(|call| (call, Vec::new())).collect(),
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
