//! Scoped memory pools behind the global allocator.
//!
//! ```
//! use mempool_pools::{MemPool, PoolAllocator};
//!
//! #[global_allocator]
//! static ALLOC: PoolAllocator = PoolAllocator::new();
//!
//! # fn main() -> Result<(), mempool_pools::PoolError> {
//! let pool = MemPool::builder().name("activations").build()?;
//! let sum: f32 = pool.with(|| {
//!     let activations = vec![0.5_f32; 1 << 20]; // lies in the pool
//!     activations.iter().sum()
//! });
//! assert_eq!(sum, 524_288.0);
//! assert_eq!(pool.stats().misses, 1); // the same again would be a hit
//! # Ok(())
//! # }
//! ```
//!
//! A program declares [`PoolAllocator`] once; from then on large requests inside a scope
//! ([`MemPool::with`], [`MemPool::enter`]) are served by that scope's pool and all others by
//! the default pool, which caches: what is freed serves the next request instead of going back
//! to the system. Scopes are per thread; [`propagate`] hands them over and
//! [`MemPool::instrument`] brings them into asynchronous code.
//!
//! Unix only. Elsewhere everything compiles and passes through to the inner allocator.

pub mod advice;
mod allocator;
mod blocks;
mod buffer;
mod buffer_set;
mod builder;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub mod cuda;
pub mod device;
pub mod diagnosis;
mod environment;
mod error;
mod history;
mod host_copy;
mod host_upstream;
mod instrument;
mod leaks;
mod lock;
mod monitor;
mod options;
mod os;
mod pool;
mod process;
mod propagate;
mod recording;
mod region;
mod registry;
mod scope;
mod sizing;
mod slot;
pub mod snapshot;
mod stats;
mod steering;
mod step;
mod thread_state;

pub use allocator::{DEFAULT_THRESHOLD_BYTES, PoolAllocator};
pub use buffer::{Buffer, BufferStats, Written};
pub use buffer_set::{BufferSet, CompactionOptions, CompactionStats};
pub use builder::MemPoolBuilder;
pub use error::PoolError;
pub use history::{CallStacks, HistoryMode, HistoryOptions, LabelGuard, label, record_history, stop_history};
pub use host_upstream::set_huge_pages;
pub use instrument::Instrumented;
pub use leaks::{Leak, LeakReport};
/// The bookkeeping core, for tools that work on traces.
pub use mempool_arena as arena;
pub use mempool_arena::{
    ArenaError, BucketStats, ClassStats, Compaction, Conf, ConfError, HeapStats, Margin, Mode, Policy,
    SizeClass, Stat, Stats, StepArena, StepArenaError, StepPlanStats, Violation, bucket_of,
};
pub use monitor::{Monitor, MonitorBuilder, metrics, write_prometheus};
pub use options::PoolOptions;
pub use pool::{MemPool, with_pool};
pub use process::{
    available_bytes, default_pool, empty_cache, mark_step, memory_stats, memory_summary, record_trace,
    reset_accumulated_stats, reset_peak_stats, snapshot, stats,
};
#[doc(hidden)]
pub use process::{default_pool_for, record_trace_for};
pub use propagate::{Propagation, propagate};
pub use recording::{TraceRecording, TraceSummary};
pub use scope::{ScopeGuard, without_pools};
pub use sizing::PoolSize;
pub use snapshot::Snapshot;
pub use stats::{GroupStats, InUse, MemoryStats, PoolLine, PoolStats, StepStats, SummaryRows};
pub use step::StepPlan;
