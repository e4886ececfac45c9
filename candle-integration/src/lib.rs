//! Scoped memory pools for candle.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_mempool::{MemPool, PoolAllocator};
//!
//! #[global_allocator]
//! static ALLOC: PoolAllocator = PoolAllocator::new();
//!
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let x = Tensor::rand(0_f32, 1., (64, 512), &device)?;
//! let weight = Tensor::rand(0_f32, 1., (512, 512), &device)?;
//!
//! let pool = MemPool::new(&device)?;
//! for _ in 0..10 {
//!     let y = pool.with(|| x.matmul(&weight)?.relu())?; // every tensor made here lies in the pool
//! }
//! assert!(pool.stats().hit_rate() > 0.8);
//! # Ok(())
//! # }
//! ```
//!
//! The model's code is not changed: whatever allocates on the thread inside
//! [`MemPool::with`], candle-nn and candle-transformers and backpropagation included, gets its
//! tensors from the pool. Tensors stay valid for as long as somebody holds them, also after
//! the scope and the pool's handle are gone.

mod address;
mod buffer;
mod buffer_set;
mod captured;
mod contents;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
mod device;
mod error;
mod out;
mod pool;
mod recording;
mod step;

pub use buffer::Buffer;
pub use buffer_set::BufferSet;
pub use captured::{CapturedStep, OutputCheck, Outputs, Verification};
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub use cuda::{cuda_device, record_stream};
pub use error::{CandleError, Error, Result};
/// Which strategy suits a run.
pub use mempool_pools::advice;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub use mempool_pools::cuda::set_event_reuse;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub use mempool_pools::device::{OomReport, PoolDevice};
/// What is wrong with memory, if anything, told from a snapshot.
pub use mempool_pools::diagnosis;
/// What lies where in all pools of the process, and the types that say it.
pub use mempool_pools::snapshot;
pub use mempool_pools::{
    ArenaError, BucketStats, BufferStats, CallStacks, ClassStats, Compaction, CompactionOptions,
    CompactionStats, Conf, ConfError, DEFAULT_THRESHOLD_BYTES, GroupStats, HeapStats, HistoryMode,
    HistoryOptions, InUse, Instrumented, LabelGuard, Leak, LeakReport, Margin, MemoryStats, Mode, Monitor,
    MonitorBuilder, Policy, PoolAllocator, PoolError, PoolLine, PoolOptions, PoolSize, PoolStats,
    Propagation, ScopeGuard, SizeClass, Snapshot, Stat, Stats, StepArena, StepArenaError, StepPlanStats,
    StepStats, SummaryRows, TraceSummary, Violation, bucket_of, label, mark_step, memory_stats,
    memory_summary, metrics, propagate, record_history, reset_accumulated_stats, reset_peak_stats,
    set_huge_pages, stats, stop_history, without_pools, write_prometheus,
};
pub use out::{AdamW, AdamWParams, ConvParams, Sgd, TensorOut, cat_out};
pub use pool::{MemPool, MemPoolBuilder, available_bytes, default_pool, empty_cache, with_pool};
pub use recording::{TraceRecording, record_trace};
pub use step::StepPlan;
