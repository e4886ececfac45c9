//! A pool as its users hold it.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use mempool_arena::Violation;

use crate::builder::MemPoolBuilder;
use crate::device::PoolSlot;
use crate::error::PoolError;
use crate::instrument::Instrumented;
use crate::recording::{self, Scope, TraceRecording};
use crate::scope::{self, ScopeGuard, Target};
use crate::slot::Slot;
use crate::snapshot::{Collector, Snapshot};
use crate::stats::{MemoryStats, PoolStats, SummaryRows};
use crate::step::StepPlan;
use crate::thread_state::inside;
use crate::{leaks, registry};

/// A memory pool: what is allocated inside its scope lies in memory of its own.
///
/// [`new`](Self::new) and [`builder`](Self::builder) make pools of host memory; a device's are made by
/// [`PoolDevice::pool_builder`](crate::device::PoolDevice::pool_builder).
///
/// A cheap handle, `Send + Sync + Clone`. Memory from the pool stays valid for as long as its
/// owner keeps it, also after the scope, the thread and every handle are gone; the pool's
/// memory goes back to the system when the last handle *and* the last block are gone.
///
/// ```
/// use mempool_pools::{MemPool, PoolAllocator};
///
/// #[global_allocator]
/// static ALLOC: PoolAllocator = PoolAllocator::new();
///
/// fn main() -> Result<(), mempool_pools::PoolError> {
///     let pool = MemPool::new()?;
///     let numbers = pool.with(|| vec![1.0_f32; 1 << 20]);
///     assert!(pool.stats().requested.current >= 4 << 20);
///     drop(numbers);
///     assert_eq!(pool.stats().requested.current, 0);
///     assert!(pool.trim()? > 0);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct MemPool {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    place: Place,
    id: u64,
}

/// Where a pool is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Host(&'static Slot),
    Device(&'static PoolSlot),
}

impl Place {
    /// Whether scopes of both decide about the same requests.
    pub(crate) fn shares_requests_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Host(_), Self::Host(_)) => true,
            (Self::Device(one), Self::Device(other)) => one.device.id == other.device.id,
            (Self::Host(_), Self::Device(_)) | (Self::Device(_), Self::Host(_)) => false,
        }
    }
}

/// What lies where in a pool. Walks all its blocks, under its lock.
fn look(place: Place) -> Snapshot {
    inside(|| {
        let mut collector = Collector::new();
        match place {
            Place::Host(slot) => collector.add_host_pool(slot),
            Place::Device(slot) => collector.add_device_pool(slot),
        }
        collector.finish()
    })
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Default pools live as long as the process.
        if self.id == registry::DEFAULT_ID {
            return;
        }
        leaks::report(|| look(self.place));
        inside(|| match self.place {
            Place::Host(slot) => slot.retire(self.id),
            Place::Device(slot) => slot.retire(self.id),
        });
    }
}

impl MemPool {
    /// A pool with default options.
    ///
    /// # Errors
    /// [`PoolError::AllocatorNotLinked`] when the program does not use
    /// [`PoolAllocator`](crate::PoolAllocator), [`PoolError::PassThrough`] when host pools do
    /// not work in this process, [`PoolError::TooManyPools`].
    pub fn new() -> Result<Self, PoolError> {
        Self::builder().build()
    }

    /// Options for a pool, all with defaults.
    pub fn builder() -> MemPoolBuilder {
        MemPoolBuilder::new()
    }

    pub(crate) fn from_slot(slot: &'static Slot, id: u64) -> Self {
        inside(|| Self { handle: Arc::new(Handle { place: Place::Host(slot), id }) })
    }

    pub(crate) fn from_device_slot(slot: &'static PoolSlot, id: u64) -> Self {
        inside(|| Self { handle: Arc::new(Handle { place: Place::Device(slot), id }) })
    }

    pub(crate) fn place(&self) -> Place {
        self.handle.place
    }

    /// The pool's id, unique in the process; 0 is the default pool of the host or a device.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.handle.id
    }

    /// Runs `f` with this thread's allocations going to the pool, and returns what it returns.
    /// The scope ends however `f` ends.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _scope = self.enter();
        f()
    }

    /// Sends this thread's allocations to the pool until the guard is dropped.
    pub fn enter(&self) -> ScopeGuard {
        scope::enter(Target::Pool(self.clone()))
    }

    /// The future `future` inside the pool's scope whenever it is polled.
    pub fn instrument<F: Future>(&self, future: F) -> Instrumented<F> {
        Instrumented::new(future, self.clone())
    }

    /// A step of the program that repeats itself: it is planned, and then makes no search for memory any more.
    /// See [`StepPlan`].
    #[must_use]
    pub fn step(&self) -> StepPlan {
        StepPlan::new(self.clone())
    }

    /// Gives the pool's free pages back to the system or the device, and returns their bytes.
    ///
    /// On a device the calling thread waits until the work that was queued before is done, since
    /// it may still use those pages; other threads go on. While a stream is in capture, nothing
    /// can be waited for: pages that are not known to be idle stay.
    ///
    /// # Errors
    /// None at present.
    pub fn trim(&self) -> Result<usize, PoolError> {
        Ok(match self.handle.place {
            Place::Host(slot) => slot.trim(self.handle.id, usize::MAX),
            Place::Device(slot) => inside(|| slot.trim(usize::MAX)),
        })
    }

    /// Changes the limit of a device's pool, also of its default pool, from now on: see
    /// [`MemPoolBuilder::limit`]. What the pool holds already stays until it is trimmed.
    ///
    /// # Errors
    /// [`PoolError::NotHere`] for a pool of the host, whose limit is set when it is made.
    pub fn set_limit(&self, bytes: Option<usize>) -> Result<(), PoolError> {
        self.device_slot("limit")?.set_limit(bytes);
        Ok(())
    }

    /// Changes the garbage collection threshold of a device's pool, also of its default pool: see
    /// [`MemPoolBuilder::garbage_collection_threshold`].
    ///
    /// # Errors
    /// [`PoolError::Share`] for a number that is not between 0 and 1, [`PoolError::NotHere`] for a pool
    /// of the host.
    pub fn set_garbage_collection_threshold(&self, share: Option<f64>) -> Result<(), PoolError> {
        let option = "garbage_collection_threshold";
        let slot = self.device_slot(option)?;
        if let Some(share) = share {
            crate::builder::check_threshold(share)?;
        }
        slot.set_garbage_collection_threshold(share);
        Ok(())
    }

    /// Changes the release threshold of a device's pool, also of its default pool: see
    /// [`MemPoolBuilder::release_threshold`].
    ///
    /// # Errors
    /// [`PoolError::NotHere`] for a pool of the host.
    pub fn set_release_threshold(&self, bytes: Option<usize>) -> Result<(), PoolError> {
        self.device_slot("release_threshold")?.set_release_threshold(bytes);
        Ok(())
    }

    fn device_slot(&self, option: &'static str) -> Result<&'static PoolSlot, PoolError> {
        match self.handle.place {
            Place::Device(slot) => Ok(slot),
            Place::Host(_) => {
                let rule = "it cannot be changed for a pool of the host";
                Err(PoolError::NotHere { option, rule })
            }
        }
    }

    /// The pool's figures, at no cost that grows with the pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        match self.handle.place {
            Place::Host(slot) => slot.stats(self.handle.id),
            Place::Device(slot) => inside(|| slot.stats()),
        }
    }

    /// What lies where in the pool. Walks all its blocks, under its lock.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        look(self.handle.place)
    }

    /// Forgets the peaks of all figures.
    pub fn reset_peak_stats(&self) {
        match self.handle.place {
            Place::Host(slot) => slot.reset_peaks(self.handle.id),
            Place::Device(slot) => inside(|| slot.reset_peaks()),
        }
    }

    /// Forgets what came and went: totals and counters begin at 0, current values and peaks stay. The counters of
    /// the last whole step stay too.
    pub fn reset_accumulated_stats(&self) {
        match self.handle.place {
            Place::Host(slot) => inside(|| slot.reset_accumulated(Some(self.handle.id))),
            Place::Device(slot) => inside(|| slot.reset_accumulated()),
        }
    }

    /// The pool's figures under PyTorch's names: see [`MemoryStats`].
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        self.stats().memory_stats()
    }

    /// The pool's figures as PyTorch's table: see [`PoolStats::memory_summary`].
    #[must_use]
    pub fn memory_summary(&self, rows: SummaryRows) -> String {
        self.stats().memory_summary(rows)
    }

    /// Records what the pool does into a trace that `mempool replay` reads: its allocations with the
    /// bytes that were asked for, its frees, and the steps that
    /// [`mark_step`](crate::mark_step) ends. The format is that of [`trace`](crate::arena::trace);
    /// a `path` that ends in `.gz` gets it compressed. What is there is overwritten.
    ///
    /// The trace begins with the blocks that are live already; those that are live when it ends are
    /// never freed in it. It holds what the pool serves and nothing else: requests below the
    /// allocator's threshold or the pool's `min_bytes`, those beyond its limit and those that are
    /// passed through are not in it. The rows of a block are `a`, `f` when its owner frees it, and
    /// `c` when no queued work uses it any more, which on the host is at once. A block that is
    /// resized where it lies is freed and allocated anew. Streams are numbered as they appear. The
    /// margins of a pool with [`guard`](crate::MemPoolBuilder::guard) are a part of its requests.
    ///
    /// Until the recording ends, each allocation and each free in the process takes one more lock,
    /// under which now and then a part of the file is written. An error while writing ends the
    /// trace and changes nothing else; [`TraceRecording::finish`] returns it. A forked child does
    /// not record.
    ///
    /// ```
    /// # use mempool_pools::{MemPool, PoolAllocator, mark_step};
    /// # #[global_allocator]
    /// # static ALLOC: PoolAllocator = PoolAllocator::new();
    /// # fn main() -> Result<(), mempool_pools::PoolError> {
    /// # let path = std::env::temp_dir().join(format!("doc-{}.csv.gz", std::process::id()));
    /// let pool = MemPool::new()?;
    /// let recording = pool.record_trace(&path)?;
    /// for _ in 0..3 {
    ///     drop(pool.with(|| vec![1.0_f32; 1 << 20]));
    ///     mark_step();
    /// }
    /// let summary = recording.finish()?;
    /// assert_eq!((summary.allocations, summary.steps), (3, 3));
    /// # std::fs::remove_file(path).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`PoolError::Trace`] when the file cannot be made.
    pub fn record_trace(&self, path: impl AsRef<Path>) -> Result<TraceRecording, PoolError> {
        let path = path.as_ref();
        let place = self.place();
        let device = match place {
            Place::Host(_) => None,
            Place::Device(slot) => Some(slot.device.id),
        };
        let scope = Scope { device, pool_id: Some(self.id()) };
        inside(|| {
            recording::start(scope, path, |listener| match place {
                Place::Host(slot) => slot.list_live(listener),
                Place::Device(slot) => slot.list_live(listener),
            })
        })
    }

    /// Walks the pool's bookkeeping and checks every invariant. For tests: it holds the pool's
    /// lock for as long as it walks.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Violation> {
        match self.handle.place {
            Place::Host(slot) => slot.validate(self.handle.id),
            Place::Device(slot) => inside(|| slot.validate()),
        }
    }
}

/// Runs `f` with this thread's allocations going to `pool`: [`MemPool::with`] as a function.
pub fn with_pool<R>(pool: &MemPool, f: impl FnOnce() -> R) -> R {
    pool.with(f)
}
