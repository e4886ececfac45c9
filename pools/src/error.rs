//! What can go wrong with pools.

use std::path::PathBuf;

use mempool_arena::{ArenaError, ConfError, SizingError};
use thiserror::Error;

use crate::device::DriverError;

/// Failure of a pool operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The program does not use the pools' allocator, so no allocation could reach a pool.
    #[error(
        "the global allocator of this program is not the pools' one: add\n\n    #[global_allocator]\n    \
         static ALLOC: {path}::PoolAllocator = {path}::PoolAllocator::new();\n\nto the program's main file \
         (a library must not declare it)"
    )]
    AllocatorNotLinked {
        /// The crate to name in that line.
        path: &'static str,
    },
    /// Host pools do not work in this process; every request goes to the inner allocator.
    #[error("host pools are not available in this process: {reason}")]
    PassThrough {
        /// Why.
        reason: String,
    },
    /// A monitor has no thread.
    #[error("the system gives no thread to a monitor: {kind}")]
    Monitor {
        /// What it said.
        kind: std::io::ErrorKind,
    },
    /// As many pools exist as can.
    #[error("{limit} pools exist already, which is the most there can be")]
    TooManyPools {
        /// The most that can exist at once.
        limit: usize,
    },
    /// cudarc's allocations do not arrive at pools.
    #[error(
        "the CUDA hooks of candle-mempool are not linked: cudarc must use its feature `dynamic-linking` (and \
         none of its `dynamic-loading` features); a shared library that others load may need the linker \
         argument -Bsymbolic-functions (rustc: -C link-arg=-Wl,-Bsymbolic-functions)"
    )]
    HooksNotLinked,
    /// The driver lacks functions that pools need.
    #[error("pools need a CUDA driver of version 12.0 or later")]
    DriverTooOld,
    /// Pools exist for primary contexts only.
    #[error("the context is not the primary one of device {ordinal}: make it with CudaContext::new")]
    NotPrimary {
        /// The device's number.
        ordinal: u32,
    },
    /// The driver refused.
    #[error("device {ordinal}: {source}")]
    Driver {
        /// The device's number.
        ordinal: u32,
        /// The call and its error.
        source: DriverError,
    },
    /// The device cannot do what the policy needs.
    #[error(
        "policy {policy} needs virtual memory management, which device {ordinal} does not have: use policy segments"
    )]
    NeedsMapping {
        /// The policy asked for.
        policy: &'static str,
        /// The device's number.
        ordinal: u32,
    },
    /// A share that is not one.
    #[error("{option} of {value} cannot work: a number {rule} is needed")]
    Share {
        /// The option.
        option: &'static str,
        /// The value given.
        value: String,
        /// What it has to satisfy.
        rule: &'static str,
    },
    /// The memory that a pool was to have from the start cannot be had.
    #[error(
        "{asked_bytes} bytes were to be taken for the pool at once, and cannot be: {free_bytes} of \
         {total_bytes} bytes are free, of which {headroom_bytes} are left to others{}",
        cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default()
    )]
    Size {
        /// Bytes asked for, in whole pages.
        asked_bytes: usize,
        /// Bytes that are free on the device, and that the memory fraction allows; on the host, those that the
        /// system says are available.
        free_bytes: usize,
        /// Bytes of the device, or of the system's memory.
        total_bytes: usize,
        /// The part of the free bytes that is left to others.
        headroom_bytes: usize,
        /// What the system or the driver answered, if it was asked.
        cause: Option<Box<ArenaError>>,
    },
    /// The pool is no more.
    #[error("the pool has been closed")]
    Closed,
    /// A trace cannot be written.
    #[error("the trace {path:?} cannot be written: {reason}; {lost_events} events are missing")]
    Trace {
        /// The file.
        path: PathBuf,
        /// The kind of the system's error.
        kind: std::io::ErrorKind,
        /// The system's error.
        reason: String,
        /// Events that came and that the file does not have; at least so many when it is compressed.
        lost_events: u64,
    },
    /// A trace cannot be read.
    #[error("the trace {path:?} cannot be read: {reason}")]
    ReadTrace {
        /// The file.
        path: PathBuf,
        /// The system's error, or the line that is no event.
        reason: String,
    },
    /// A snapshot cannot be written.
    #[error("the snapshot {path:?} cannot be written: {reason}")]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// The kind of the system's error.
        kind: std::io::ErrorKind,
        /// The system's error.
        reason: String,
    },
    /// A snapshot cannot be read.
    #[error("the snapshot {path:?} cannot be read: {reason}")]
    ReadSnapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The size that a recorded run needs cannot be told.
    #[error("no size follows from the trace: {reason}")]
    Sizing {
        /// Why.
        reason: String,
    },
    /// A recording that was begun before this process was forked: only the parent writes its trace.
    #[error("the recording is that of the process from which this one was forked")]
    RecordedByParent,
    /// An option has a value that cannot work.
    #[error("{option} of {value} cannot work: {rule}")]
    Option {
        /// The option.
        option: &'static str,
        /// The value given.
        value: usize,
        /// What it has to satisfy.
        rule: &'static str,
    },
    /// A device's pool has no memory for what is to be kept.
    #[error("device {ordinal} has no {bytes} bytes left for the pool")]
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The device's number.
        ordinal: u32,
    },
    /// A buffer of which the last result is alive.
    #[error("a result is alive in the buffer of {bytes} bytes: drop it before the buffer is written again")]
    BufferInUse {
        /// Bytes of the buffer.
        bytes: usize,
    },
    /// A buffer that was handed to something else in the computation, which is alive: the result is lost.
    #[error(
        "another part of the computation got the buffer of {bytes} bytes and is still alive: drop it before the buffer is \
         written again"
    )]
    BufferTaken {
        /// Bytes of the buffer.
        bytes: usize,
    },
    /// An option that cannot be used here.
    #[error("{option} cannot be used: {rule}")]
    NotHere {
        /// The option.
        option: &'static str,
        /// Why not.
        rule: &'static str,
    },
    /// Options that make no sense.
    #[error(transparent)]
    Conf(ConfError),
    /// The environment variable `MEMPOOL_CONF` makes no sense.
    #[error("MEMPOOL_CONF: {source}")]
    Environment {
        /// What is wrong with it.
        source: ConfError,
    },
    /// The placement refused.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

impl From<SizingError> for PoolError {
    fn from(error: SizingError) -> Self {
        match error {
            SizingError::Conf(error) => error.into(),
            other => Self::Sizing { reason: other.to_string() },
        }
    }
}

impl From<ConfError> for PoolError {
    fn from(error: ConfError) -> Self {
        match error {
            ConfError::Refused(ArenaError::Option { option, value, rule }) => {
                Self::Option { option, value, rule }
            }
            ConfError::Refused(other) => Self::Arena(other),
            other => Self::Conf(other),
        }
    }
}
