//! Calls that concern all pools of the process.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{DeviceState, Inner as Platform};
use crate::error::PoolError;
use crate::pool::MemPool;
use crate::recording::{self, Scope, TraceRecording};
use crate::sizing::Available;
use crate::slot::{self, Slot};
use crate::snapshot::{Collector, Snapshot};
use crate::stats::{GroupStats, MemoryStats, SummaryRows};
use crate::thread_state::inside;
use crate::{allocator, monitor, registry};

static STEP: AtomicU64 = AtomicU64::new(0);

/// The pool of everything that is allocated outside any scope. It lives as long as the process.
///
/// # Errors
/// As [`MemPool::new`], and what kept it from having the options of `MEMPOOL_CONF`.
pub fn default_pool() -> Result<MemPool, PoolError> {
    default_pool_for("mempool_pools")
}

/// [`default_pool`] for a crate that re-exports pools under its own name, which the error about
/// a missing allocator then shows.
///
/// # Errors
/// As [`MemPool::new`].
#[doc(hidden)]
pub fn default_pool_for(crate_path: &'static str) -> Result<MemPool, PoolError> {
    allocator::require_linked(crate_path)?;
    let slot = inside(registry::named_default)?;
    Ok(MemPool::from_slot(slot, registry::DEFAULT_ID))
}

/// Gives the default pool's free pages back to the system, and returns their bytes. Pools that
/// somebody made are not touched: see [`MemPool::trim`].
///
/// # Errors
/// As [`MemPool::new`].
pub fn empty_cache() -> Result<usize, PoolError> {
    default_pool()?.trim()
}

/// Ends a step: the counters in [`PoolStats::last_step`](crate::PoolStats::last_step) of every
/// pool are those between the last two calls. Returns the number of the step that ended,
/// counted from 1.
pub fn mark_step() -> u64 {
    inside(|| {
        recording::mark_step(None);
        registry::slots().for_each(Slot::mark_step);
        registry::platforms().flat_map(Platform::devices).for_each(DeviceState::mark_step);
        monitor::step_ends(None);
    });
    STEP.fetch_add(1, Ordering::Relaxed) + 1
}

/// Records what all pools of host memory do into a trace, those included that are made meanwhile: see
/// [`MemPool::record_trace`], which records one pool. A device's are recorded by
/// [`PoolDevice::record_trace`](crate::device::PoolDevice::record_trace).
///
/// # Errors
/// As [`MemPool::new`], and [`PoolError::Trace`] when the file cannot be made.
pub fn record_trace(path: impl AsRef<Path>) -> Result<TraceRecording, PoolError> {
    record_trace_for("mempool_pools", path)
}

/// [`record_trace`] for a crate that re-exports pools under its own name: see [`default_pool_for`].
///
/// # Errors
/// As [`record_trace`].
#[doc(hidden)]
pub fn record_trace_for(
    crate_path: &'static str,
    path: impl AsRef<Path>,
) -> Result<TraceRecording, PoolError> {
    allocator::require_linked(crate_path)?;
    let path = path.as_ref();
    inside(|| {
        registry::require_open()?;
        let scope = Scope { device: None, pool_id: None };
        recording::start(scope, path, |listener| {
            registry::for_each_slot(|slot| slot.list_live(listener));
        })
    })
}

/// What lies where in all pools of the process: those of host memory and those of every device that has pools.
#[must_use]
pub fn snapshot() -> Snapshot {
    inside(|| {
        let mut collector = Collector::new();
        registry::platforms().flat_map(Platform::devices).for_each(|device| collector.add_device(device));
        collector.add_host();
        registry::slots().for_each(|slot| collector.add_host_pool(slot));
        collector.finish()
    })
}

/// The figures of all pools of the process, one by one and in all: those of host memory, then those of every
/// device that has pools.
#[must_use]
pub fn stats() -> GroupStats {
    inside(|| {
        let mut all = GroupStats::new("all pools".to_owned(), None, None);
        all.join(slot::stats_of_host(registry::slots()));
        registry::platforms().flat_map(Platform::devices).for_each(|device| all.join(device.stats()));
        all
    })
}

/// The sums over all pools of the process under PyTorch's names: see [`MemoryStats`].
#[must_use]
pub fn memory_stats() -> MemoryStats {
    stats().memory_stats()
}

/// The sums over all pools of the process as PyTorch's table: see
/// [`PoolStats::memory_summary`](crate::PoolStats::memory_summary).
#[must_use]
pub fn memory_summary(rows: SummaryRows) -> String {
    stats().memory_summary(rows)
}

/// Forgets the peaks of all pools of the process.
pub fn reset_peak_stats() {
    inside(|| {
        registry::slots().for_each(Slot::reset_peaks_if_open);
        registry::platforms().flat_map(Platform::devices).for_each(DeviceState::reset_peaks);
    });
}

/// Forgets what came and went in all pools of the process: see
/// [`MemPool::reset_accumulated_stats`].
pub fn reset_accumulated_stats() {
    inside(|| {
        registry::slots().for_each(|slot| slot.reset_accumulated(None));
        slot::reset_accumulated_past();
        registry::platforms().flat_map(Platform::devices).for_each(DeviceState::reset_accumulated);
    });
}

/// Bytes that can be had without others giving anything up: what the system says is available,
/// no more than the process's control group leaves, and what the pools could give back.
#[must_use]
pub fn available_bytes() -> usize {
    let (available, most) = system_memory();
    let cached: usize = inside(|| registry::slots().map(Slot::releasable_bytes).sum());
    // Cached pages that nobody has touched yet take no memory and free none.
    available.saturating_add(cached).min(most)
}

/// Bytes of memory that the system has available, no more than the process's control group leaves, and bytes
/// that it has, no more than the group may have.
fn system_memory() -> (usize, usize) {
    let mut system = sysinfo::System::new();
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    let (mut available, mut total) = (system.available_memory(), system.total_memory());
    if let Some(group) = system.cgroup_limits() {
        available = available.min(group.free_memory.saturating_add(cached_files()).min(group.total_memory));
        total = total.min(group.total_memory);
    }
    let bytes = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    (bytes(available), bytes(total))
}

/// Bytes of files that the control group counts as its memory, and gives up for whoever needs it.
fn cached_files() -> u64 {
    let text = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let count = |line: &str| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok();
    text.lines().find_map(count).unwrap_or(0)
}

/// What there is for a host pool that takes memory in advance and leaves this share to others.
pub(crate) fn available_for(headroom_share: f64) -> Available {
    let (free_bytes, total_bytes) = system_memory();
    let headroom_bytes = (total_bytes as f64 * headroom_share) as usize;
    Available { free_bytes, total_bytes, headroom_bytes }
}
