//! What commands print, and the bar that tells how far they are.
//!
//! Results go to standard output, a table's line or a JSON object at a time; all else goes to standard error, and is
//! lost where nobody reads that.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// The error and its causes, each once: some tell theirs themselves.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |told, cause| {
        let cause = cause.to_string();
        match told.as_str() {
            "" => cause,
            _ if told.contains(&cause) => told,
            _ => format!("{told}: {cause}"),
        }
    })
}

/// Whether results could not be written because nobody reads them any more.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Tells what is no result.
pub(crate) fn tell(message: impl Display) {
    // Standard error may be closed; there is nobody to be told about that.
    let _ = writeln!(io::stderr().lock(), "mempool: {message}");
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Standard output and standard error, with a bar on the latter while something goes on.
#[derive(Debug)]
pub(crate) struct Console {
    bar: ProgressBar,
}

impl Console {
    pub(crate) fn new() -> Result<Self> {
        let bar = ProgressBar::new(0);
        bar.set_style(ProgressStyle::with_template("{bar:40} {msg}")?);
        Ok(Self { bar })
    }

    /// Begins something that has so many parts.
    pub(crate) fn begin(&self, message: impl Into<String>, parts: u64) {
        self.bar.set_position(0);
        self.bar.set_length(parts);
        self.bar.set_message(message.into());
    }

    /// So many parts more are done.
    pub(crate) fn advance(&self, parts: u64) {
        self.bar.inc(parts);
    }

    /// A part is a byte that is read.
    pub(crate) fn follow(&self, source: impl Read) -> impl Read {
        self.bar.wrap_read(source)
    }

    /// The bar goes on moving while something takes its time.
    pub(crate) fn wait_for<T>(&self, work: impl FnOnce() -> T) -> T {
        self.bar.enable_steady_tick(Duration::from_millis(200));
        let done = work();
        self.bar.disable_steady_tick();
        done
    }

    /// Prints results.
    pub(crate) fn print(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        Ok(self.bar.suspend(|| write(&mut io::stdout().lock()))?)
    }

    /// Prints a result as one line of JSON.
    pub(crate) fn print_json(&self, result: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(result)?;
        self.print(|out| writeln!(out, "{line}"))
    }

    /// Tells what is no result.
    pub(crate) fn tell(&self, message: impl Display) {
        self.bar.suspend(|| tell(message));
    }

    /// Nothing goes on any more.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
