//! The text that a test logs.

use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs a closure and returns the text that it logs on this thread.
pub fn logged(run: impl FnOnce()) -> String {
    let log = Log::default();
    let written = log.clone();
    let writer = move || written.clone();
    // While a process has one subscriber, tracing asks the subscriber of the thread that first logs
    // a line whether the line is enabled. That thread may run another test, without a subscriber.
    let second = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    let _second = tracing::Dispatch::new(second);
    let logger = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish();
    tracing::subscriber::with_default(logger, run);
    String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
}
