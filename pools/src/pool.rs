//! A pool as its users hold it.

use std::future::Future;
use std::sync::Arc;

use mempool_arena::Violation;

use crate::builder::MemPoolBuilder;
use crate::error::PoolError;
use crate::instrument::Instrumented;
use crate::registry;
use crate::scope::{self, ScopeGuard, Target};
use crate::slot::Slot;
use crate::stats::PoolStats;
use crate::thread_state::inside;

/// A host memory pool: what is allocated inside its scope lies in memory of its own.
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
    slot: &'static Slot,
    id: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The default pool lives as long as the process.
        if self.id != registry::DEFAULT_ID {
            inside(|| self.slot.retire(self.id));
        }
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
        inside(|| Self { handle: Arc::new(Handle { slot, id }) })
    }

    pub(crate) fn slot(&self) -> &'static Slot {
        self.handle.slot
    }

    /// The pool's id, unique in the process; 0 is the default pool.
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

    /// Gives the pool's free pages back to the system, and returns their bytes.
    ///
    /// # Errors
    /// None at present; the type leaves room for devices whose drivers can refuse.
    pub fn trim(&self) -> Result<usize, PoolError> {
        Ok(self.handle.slot.trim(self.handle.id, usize::MAX))
    }

    /// The pool's figures, at no cost that grows with the pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.handle.slot.stats(self.handle.id)
    }

    /// Forgets the peaks of all figures.
    pub fn reset_peak_stats(&self) {
        self.handle.slot.reset_peaks(self.handle.id);
    }

    /// Walks the pool's bookkeeping and checks every invariant. For tests: it holds the pool's
    /// lock for as long as it walks.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Violation> {
        self.handle.slot.validate(self.handle.id)
    }
}

/// Runs `f` with this thread's allocations going to `pool`: [`MemPool::with`] as a function.
pub fn with_pool<R>(pool: &MemPool, f: impl FnOnce() -> R) -> R {
    pool.with(f)
}
