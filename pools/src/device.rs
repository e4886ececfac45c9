//! Pools of device memory, over any driver that orders work in streams.
//!
//! [`Platform`] stands between a program and its driver: with feature `cuda`, the hooks hand it
//! every allocation and every free that cudarc makes (module `cuda`); a
//! [simulated] driver takes their place in tests.
//!
//! Memory is handed out in the order of a stream, as `cuMemAllocAsync` does it: a block that its
//! stream frees serves that stream at once, and another stream only behind an event.

mod arena_slot;
mod buffers;
mod driver;
mod entry;
#[cfg_attr(feature = "planted-faults", doc(hidden))]
#[cfg(feature = "planted-faults")]
pub mod fault;
#[cfg(not(feature = "planted-faults"))]
mod fault;
mod fork;
mod guard;
mod oom;
mod platform;
mod pool_slot;
pub mod simulated;
mod state;
mod thread_cache;
mod upstream;
mod waiting;

use std::any::Any;
use std::path::Path;

pub(crate) use arena_slot::{ArenaCore, ArenaSlot, Owner};
pub use driver::{
    CaptureId, CaptureState, Context, Driver, DriverError, DriverResult, Event, Physical, Stream, StreamId,
};
pub(crate) use entry::Call;
pub(crate) use fork::{hold_for_fork, release_after_fork};
pub use guard::GuardReport;
pub use oom::OomReport;
pub(crate) use platform::Inner;
pub use platform::{Allocation, Free, Platform};
pub(crate) use pool_slot::{Busy, PoolSetup, PoolSlot};
pub(crate) use state::DeviceState;
pub(crate) use upstream::Taking;

use crate::builder::MemPoolBuilder;
use crate::error::PoolError;
use crate::monitor;
use crate::pool::MemPool;
use crate::recording::{self, Scope, TraceRecording};
use crate::registry;
use crate::snapshot::{Collector, Snapshot};
use crate::stats::{GroupStats, MemoryStats, SummaryRows};
use crate::thread_state::inside;

/// Tells devices apart, over all platforms of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub(crate) u32);

/// A device with pools. A cheap handle, `Send + Sync + Copy`.
///
/// Two of the same number are the same device: pools use its primary context, and keep it.
#[derive(Debug, Clone, Copy)]
pub struct PoolDevice {
    pub(crate) state: &'static DeviceState,
}

impl PartialEq for PoolDevice {
    fn eq(&self, other: &Self) -> bool {
        self.state.id == other.state.id
    }
}

impl Eq for PoolDevice {}

impl PoolDevice {
    /// The device's number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.state.ordinal
    }

    /// A pool with default options.
    ///
    /// # Errors
    /// See [`MemPoolBuilder::build`].
    pub fn pool(&self) -> Result<MemPool, PoolError> {
        self.pool_builder().build()
    }

    /// Options for a pool, all with defaults.
    pub fn pool_builder(&self) -> MemPoolBuilder {
        MemPoolBuilder::on(*self)
    }

    /// The pool of everything that is allocated outside any scope. It lives as long as the process.
    #[must_use]
    pub fn default_pool(&self) -> MemPool {
        inside(|| MemPool::from_device_slot(self.state.default_pool(), registry::DEFAULT_ID))
    }

    /// Gives the default pool's free memory back to the device, and returns its bytes. Pools that
    /// somebody made are not touched. See [`MemPool::trim`].
    #[must_use = "it says how much memory was given back"]
    pub fn empty_cache(&self) -> usize {
        inside(|| {
            self.state.sweep();
            self.state.default_pool().trim(usize::MAX)
        })
    }

    /// Ends a step for the pools of this device alone; [`mark_step`](crate::mark_step) does so for all.
    pub fn mark_step(&self) {
        inside(|| {
            recording::mark_step(Some(self.state.id));
            self.state.mark_step();
            monitor::step_ends(Some(self.state.id));
        });
    }

    /// Records what all pools of the device do into a trace: see
    /// [`MemPool::record_trace`], which records one pool.
    ///
    /// # Errors
    /// As there.
    pub fn record_trace(&self, path: impl AsRef<Path>) -> Result<TraceRecording, PoolError> {
        let path = path.as_ref();
        inside(|| {
            let scope = Scope { device: Some(self.state.id), pool_id: None };
            recording::start(scope, path, |recording| self.state.list_live(recording))
        })
    }

    /// What lies where in all pools of the device.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        inside(|| {
            let mut collector = Collector::new();
            collector.add_device(self.state);
            collector.finish()
        })
    }

    /// Bytes that can be had on the device without others giving anything up: what it has free,
    /// no more than the memory fraction and the headroom leave, and what all pools, those that somebody
    /// made included, could give back if they were trimmed.
    ///
    /// # Errors
    /// [`PoolError::Driver`].
    pub fn available_bytes(&self) -> Result<usize, PoolError> {
        inside(|| {
            let state = self.state;
            let (free, _) = state.memory_info()?;
            let held = state.physical.load(std::sync::atomic::Ordering::Relaxed);
            let new =
                free.saturating_sub(state.headroom_bytes()).min(state.allowed_bytes().saturating_sub(held));
            let cached: usize = state.pools().into_iter().map(|pool| pool.releasable_bytes()).sum();
            Ok(new + cached)
        })
    }

    /// Why the last request failed that pools had no memory for.
    #[must_use]
    pub fn last_oom(&self) -> Option<OomReport> {
        inside(|| self.state.last_oom())
    }

    /// Writes outside blocks that were found in pools with guards
    /// ([`MemPoolBuilder::guard`](crate::MemPoolBuilder::guard)), up to the first hundred.
    #[must_use]
    pub fn guard_reports(&self) -> Vec<GuardReport> {
        inside(|| self.state.guard_reports.lock().clone())
    }

    /// Bytes that all pools of the device hold.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.state.physical.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The figures of all pools of the device, one by one and in all.
    #[must_use]
    pub fn stats(&self) -> GroupStats {
        inside(|| self.state.stats())
    }

    /// The sums over all pools of the device under PyTorch's names: see [`MemoryStats`].
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        self.stats().memory_stats()
    }

    /// The sums over all pools of the device as PyTorch's table: see
    /// [`PoolStats::memory_summary`](crate::PoolStats::memory_summary).
    #[must_use]
    pub fn memory_summary(&self, rows: SummaryRows) -> String {
        self.stats().memory_summary(rows)
    }

    /// Forgets the peaks of all pools of the device.
    pub fn reset_peak_stats(&self) {
        inside(|| self.state.reset_peaks());
    }

    /// Forgets what came and went in all pools of the device: see
    /// [`MemPool::reset_accumulated_stats`].
    pub fn reset_accumulated_stats(&self) {
        inside(|| self.state.reset_accumulated());
    }

    /// Keeps what all pools of the device hold at or below this share of it, between 0 and 1.
    ///
    /// # Errors
    /// [`PoolError::Share`] for any other number.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), PoolError> {
        let fraction = checked_share("memory fraction", fraction)?;
        self.state.set_fraction(fraction);
        Ok(())
    }

    /// The share that [`set_memory_fraction`](Self::set_memory_fraction) set; 1 unless it did.
    #[must_use]
    pub fn memory_fraction(&self) -> f64 {
        self.state.fraction()
    }

    /// Leaves at least this share of the device to others, between 0 and 1: pools take no new
    /// memory that would leave less free, whoever uses the rest.
    ///
    /// # Errors
    /// [`PoolError::Share`] for any other number.
    pub fn set_headroom(&self, share: f64) -> Result<(), PoolError> {
        let share = checked_share("headroom", share)?;
        self.state.set_headroom((self.state.total_bytes as f64 * share) as usize);
        Ok(())
    }

    /// Declares that work queued in `stream` uses the block that starts at `addr`: once it is
    /// freed, that work is waited for too before its memory serves anything else. `keep` is held
    /// until the free, and has to keep the stream alive. `false` when no live block of the device's
    /// pools starts there.
    #[must_use = "false says that the block is not a pool's"]
    pub fn record_stream(&self, addr: usize, stream: Stream, keep: impl Any + Send) -> bool {
        inside(|| entry::record_use(self.state, addr, stream, Box::new(keep)))
    }
}

fn checked_share(option: &'static str, share: f64) -> Result<f64, PoolError> {
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        Err(PoolError::Share { option, value: share.to_string(), rule: "from 0 to 1" })
    }
}
