//! The one JSON line a worker prints.

use crate::allocator::Allocator;
use serde::{Deserialize, Serialize};

/// What one worker measured on one workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The workload's name.
    pub workload: String,
    /// The allocator of the process.
    pub allocator: Allocator,
    /// Measured steps.
    pub steps: usize,
    /// Steps run before measuring began.
    pub warmup: usize,
    /// Median time of a measured step, in nanoseconds.
    pub median_step_ns: f64,
    /// 10th percentile of the same.
    pub p10_step_ns: f64,
    /// 90th percentile of the same.
    pub p90_step_ns: f64,
    /// Mean of the same.
    pub mean_step_ns: f64,
    /// Time of each turn of measured steps, in nanoseconds.
    pub turn_ns: Vec<f64>,
    /// Median of minor page faults over the measured steps.
    pub median_step_faults: f64,
    /// Minor page faults of all measured steps together.
    pub total_faults: u64,
    /// Peak resident memory of the process (`VmHWM`), in KiB.
    pub peak_resident_kib: u64,
    /// Hash over the results of all steps, warm-up included, in hexadecimal.
    pub checksum: String,
    /// The pool's own numbers; none for the other allocators.
    pub pool: Option<PoolReport>,
}

/// What the pool says of itself after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// Most bytes held from the system at once.
    pub reserved_peak: usize,
    /// Most bytes in blocks handed out at once.
    pub allocated_peak: usize,
    /// Most bytes asked for at once.
    pub requested_peak: usize,
    /// Allocations in the measured steps served from held memory.
    pub hits: u64,
    /// Allocations in the measured steps that went to the system.
    pub misses: u64,
    /// Times in the measured steps that a pool, the default one included, took memory from the
    /// system or returned it.
    pub system_calls: u64,
}
