//! What advice is given on: recorded runs, and snapshots.

mod snapshot;

use std::io::{BufRead as _, Read};

use crate::trace::{self, ReadError, Trace};

pub use snapshot::DeviceMemory;

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A recorded run.
    Run(Trace),
    /// What lay where, and the last that happened, on each device that has any of it.
    Snapshot(Vec<DeviceMemory>),
}

/// Reads a trace of any known format, or a snapshot: PyTorch's or this project's, a pickle or JSON.
///
/// # Errors
/// [`ReadError`].
pub fn read(source: impl Read) -> Result<Input, ReadError> {
    let mut source = trace::decompressed(source)?;
    match source.fill_buf()?.first() {
        Some(&(trace::PICKLE_MAGIC | b'{')) => Ok(Input::Snapshot(snapshot::read(source)?)),
        _ => Ok(Input::Run(trace::parse(source)?)),
    }
}
