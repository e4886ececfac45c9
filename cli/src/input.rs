//! What commands that read traces share.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use mempool_cli::trace::{self, Trace};

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

/// The bar that follows what is read and replayed.
pub(crate) fn bar() -> Result<ProgressBar> {
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{bar:40} {msg}")?);
    Ok(bar)
}

/// Reads a trace, and says what was left out of it. Its name is the file's, without what tells the format.
pub(crate) fn read(path: &Path, bar: &ProgressBar) -> Result<(String, Trace)> {
    bar.set_position(0);
    bar.set_length(fs::metadata(path).map_or(0, |file| file.len()));
    bar.set_message(format!("reading {}", path.display()));
    let trace = trace::read(path, bar).with_context(|| format!("reading {}", path.display()))?;
    if trace.unknown_frees > 0 {
        let count = trace.unknown_frees;
        bar.suspend(|| eprintln!("{}: {count} frees of earlier allocations left out", path.display()));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.trim_end_matches(".gz").trim_end_matches(".csv").trim_end_matches(".pickle");
    Ok((name.to_owned(), trace))
}
