//! A recording, with errors that convert into candle's.

use std::path::Path;

use candle_core::Device;
use mempool_pools::TraceSummary;

use crate::device::Backing;
use crate::error::Result;

/// A recording that goes on until this is [finished](Self::finish) or dropped. See
/// [`mempool_pools::MemPool::record_trace`] for what is in its trace.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct TraceRecording {
    pub(crate) recording: mempool_pools::TraceRecording,
}

impl TraceRecording {
    /// Ends the recording and writes what is left of the trace.
    ///
    /// # Errors
    /// See [`mempool_pools::TraceRecording::finish`].
    pub fn finish(self) -> Result<TraceSummary> {
        Ok(self.recording.finish()?)
    }
}

/// Records what all pools of the device do, those included that are made meanwhile: as
/// [`MemPool::record_trace`](crate::MemPool::record_trace), which records one.
///
/// # Errors
/// As [`MemPool::new`](crate::MemPool::new), and
/// [`PoolError::Trace`](mempool_pools::PoolError::Trace) when the file cannot be made.
pub fn record_trace(device: &Device, path: impl AsRef<Path>) -> Result<TraceRecording> {
    Ok(TraceRecording { recording: Backing::of(device)?.record_trace(path.as_ref())? })
}
