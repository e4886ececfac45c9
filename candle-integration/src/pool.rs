//! A pool for a candle device.

use std::future::Future;
use std::path::Path;

use candle_core::Device;
use mempool_pools::advice::{Advice, AdviceError, AdviceOptions};
use mempool_pools::{
    Conf, Instrumented, LeakReport, Margin, MemoryStats, Policy, PoolStats, ScopeGuard, Snapshot,
    SummaryRows, Violation,
};

use crate::device::Backing;
use crate::error::Result;
use crate::recording::TraceRecording;

/// A memory pool of a device: tensors made inside its scope lie in memory of its own.
///
/// A cheap handle, `Send + Sync + Clone`. See [`mempool_pools::MemPool`] for how long memory
/// lives.
#[derive(Debug, Clone)]
pub struct MemPool {
    pub(crate) pool: mempool_pools::MemPool,
    pub(crate) device: Device,
}

impl MemPool {
    /// A pool with default options.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a device without pools;
    /// [`Error::Pool`](crate::Error::Pool) when the program does not use
    /// [`PoolAllocator`](crate::PoolAllocator), or host pools do not work in this process.
    pub fn new(device: &Device) -> Result<Self> {
        Self::builder(device).build()
    }

    /// Options for a pool, all with defaults.
    pub fn builder(device: &Device) -> MemPoolBuilder {
        MemPoolBuilder {
            builder: Backing::of(device).map(|backing| backing.builder()),
            device: device.clone(),
        }
    }

    /// The pool's id, unique in the process; 0 is the default pool.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.pool.id()
    }

    /// Runs `f` with this thread's tensors allocated in the pool, and returns what it returns.
    /// The scope ends however `f` ends.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        self.pool.with(f)
    }

    /// Sends this thread's allocations to the pool until the guard is dropped.
    pub fn enter(&self) -> ScopeGuard {
        self.pool.enter()
    }

    /// The future `future` inside the pool's scope whenever it is polled.
    pub fn instrument<F: Future>(&self, future: F) -> Instrumented<F> {
        self.pool.instrument(future)
    }

    /// Gives the pool's free pages back to the system, and returns their bytes.
    ///
    /// # Errors
    /// None on CPU; the type leaves room for devices whose drivers can refuse.
    pub fn trim(&self) -> Result<usize> {
        Ok(self.pool.trim()?)
    }

    /// On CUDA: changes the pool's limit, also the default pool's, from now on.
    ///
    /// # Errors
    /// For a pool of the host, whose limit is set when it is made.
    pub fn set_limit(&self, bytes: Option<usize>) -> Result<()> {
        Ok(self.pool.set_limit(bytes)?)
    }

    /// On CUDA: changes the share of what the pool may hold at which free pages are given back.
    ///
    /// # Errors
    /// For a number that is not between 0 and 1, and for a pool of the host.
    pub fn set_garbage_collection_threshold(&self, share: Option<f64>) -> Result<()> {
        Ok(self.pool.set_garbage_collection_threshold(share)?)
    }

    /// On CUDA: changes how many free bytes stay at each [`mark_step`](crate::mark_step).
    ///
    /// # Errors
    /// For a pool of the host.
    pub fn set_release_threshold(&self, bytes: Option<usize>) -> Result<()> {
        Ok(self.pool.set_release_threshold(bytes)?)
    }

    /// Records what the pool does into a trace that `mempool replay` reads, until the guard is finished or
    /// dropped. See [`mempool_pools::MemPool::record_trace`] for what is in it.
    ///
    /// # Errors
    /// [`PoolError::Trace`](mempool_pools::PoolError::Trace) when the file cannot be made.
    pub fn record_trace(&self, path: impl AsRef<Path>) -> Result<TraceRecording> {
        Ok(TraceRecording { recording: self.pool.record_trace(path)? })
    }

    /// The pool's figures.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// What lies where in the pool: the block of each tensor, what is free, mapped, kept. [`Snapshot::dump`] writes it for
    /// PyTorch's viewers. [`snapshot`](fn@crate::snapshot) looks at all pools.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_mempool::{MemPool, PoolAllocator};
    /// # #[global_allocator]
    /// # static ALLOC: PoolAllocator = PoolAllocator::new();
    /// # fn main() -> candle_core::Result<()> {
    /// let pool = MemPool::new(&Device::Cpu)?;
    /// let x = pool.with(|| Tensor::ones((1024, 1024), DType::F32, &Device::Cpu))?;
    /// let snapshot = pool.snapshot();
    /// assert_eq!(snapshot.segments.iter().map(|segment| segment.requested_size).sum::<usize>(), 4 << 20);
    /// let path = std::env::temp_dir().join("candle.pickle");
    /// snapshot.dump(&path).map_err(candle_mempool::Error::from)?; // python -m torch.cuda._memory_viz stats candle.pickle
    /// # std::fs::remove_file(path)?;
    /// # drop(x);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.pool.snapshot()
    }

    /// What is live in the pool, by where it comes from: see [`mempool_pools::MemPool::leaks`].
    #[must_use]
    pub fn leaks(&self) -> LeakReport {
        self.pool.leaks()
    }

    /// What suits what the pool was used for, from its history or its counters: see
    /// [`mempool_pools::MemPool::advise`].
    ///
    /// # Errors
    /// [`AdviceError::Empty`] when the pool was not used.
    pub fn advise(&self, options: &AdviceOptions) -> std::result::Result<Advice, AdviceError> {
        self.pool.advise(options)
    }

    /// Forgets the peaks of all figures.
    pub fn reset_peak_stats(&self) {
        self.pool.reset_peak_stats();
    }

    /// Forgets what came and went: totals and counters begin at 0, current values and peaks stay.
    pub fn reset_accumulated_stats(&self) {
        self.pool.reset_accumulated_stats();
    }

    /// The pool's figures under PyTorch's names: see [`MemoryStats`].
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        self.pool.memory_stats()
    }

    /// The pool's figures as PyTorch's table: see [`PoolStats::memory_summary`].
    #[must_use]
    pub fn memory_summary(&self, rows: SummaryRows) -> String {
        self.pool.memory_summary(rows)
    }

    /// Walks the pool's bookkeeping and checks every invariant. For tests: it holds the pool's
    /// lock for as long as it walks.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> std::result::Result<(), Violation> {
        self.pool.validate()
    }
}

/// Options of a pool, all with defaults. The rules of
/// [`mempool_pools::MemPoolBuilder`] apply.
#[derive(Debug, Clone)]
#[must_use = "a builder makes a pool when `build` is called"]
pub struct MemPoolBuilder {
    builder: Result<mempool_pools::MemPoolBuilder>,
    device: Device,
}

impl MemPoolBuilder {
    fn map(self, f: impl FnOnce(mempool_pools::MemPoolBuilder) -> mempool_pools::MemPoolBuilder) -> Self {
        Self { builder: self.builder.map(f), ..self }
    }

    /// The name in statistics and messages; "pool N" unless set.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.map(|builder| builder.name(name))
    }

    /// How blocks are placed.
    pub fn policy(self, policy: Policy) -> Self {
        self.map(|builder| builder.policy(policy))
    }

    /// How blocks are placed, with options of the policy: `Conf::of(Policy::Pages).mode(Mode::Moving)`.
    pub fn placement(self, conf: Conf) -> Self {
        self.map(|builder| builder.placement(conf))
    }

    /// Options by name, as the environment variable `MEMPOOL_CONF` has them:
    /// `policy:pages,mode:moving,limit_mb:512`. See [`mempool_pools::PoolOptions`].
    ///
    /// # Errors
    /// [`PoolError::Conf`](mempool_pools::PoolError::Conf), for an unknown key with the known ones; and
    /// as [`MemPool::new`] for a device without pools.
    pub fn conf(self, text: &str) -> Result<Self> {
        Ok(Self { builder: Ok(self.builder?.conf(text)?), device: self.device })
    }

    /// Keeps the pool's mapped memory at or below `bytes`; what does not fit goes to the inner
    /// allocator on CPU, fails with an out-of-memory error on CUDA, and is counted.
    pub fn limit(self, bytes: usize) -> Self {
        self.map(|builder| builder.limit(bytes))
    }

    /// As [`limit`](Self::limit), but what does not fit fails, which on CPU ends the process.
    pub fn hard_limit(self, bytes: usize) -> Self {
        self.map(|builder| builder.hard_limit(bytes))
    }

    /// Requests of fewer than `bytes` inside the scope go to the default pool.
    pub fn min_bytes(self, bytes: usize) -> Self {
        self.map(|builder| builder.min_bytes(bytes))
    }

    /// On CUDA: whether other pools may borrow this one's free memory when nothing else is left.
    pub fn use_on_oom(self, enabled: bool) -> Self {
        self.map(|builder| builder.use_on_oom(enabled))
    }

    /// Whether each tensor has pages of its own and goes back to the device whole. See
    /// [`mempool_pools::MemPoolBuilder::no_split`].
    pub fn no_split(self, enabled: bool) -> Self {
        self.map(|builder| builder.no_split(enabled))
    }

    /// On CUDA, when debugging: whether each tensor's memory lies between margins that are looked at
    /// when it is freed. See [`mempool_pools::MemPoolBuilder::guard`].
    pub fn guard(self, enabled: bool) -> Self {
        self.map(|builder| builder.guard(enabled))
    }

    /// On CUDA: before the pool would hold more than this share (between 0 and 1) of what it may
    /// hold, its free pages are given back.
    pub fn garbage_collection_threshold(self, share: f64) -> Self {
        self.map(|builder| builder.garbage_collection_threshold(share))
    }

    /// On CUDA: free pages beyond `bytes` are given back at each [`mark_step`](crate::mark_step).
    pub fn release_threshold(self, bytes: usize) -> Self {
        self.map(|builder| builder.release_threshold(bytes))
    }

    /// Takes `bytes` when the pool is built, keeps them until it ends, and never takes more. See
    /// [`mempool_pools::MemPoolBuilder::fixed_size`].
    pub fn fixed_size(self, bytes: usize) -> Self {
        self.map(|builder| builder.fixed_size(bytes))
    }

    /// As [`fixed_size`](Self::fixed_size), of all that is free and not left to others.
    pub fn fixed_size_all(self) -> Self {
        self.map(mempool_pools::MemPoolBuilder::fixed_size_all)
    }

    /// Takes `bytes` when the pool is built, keeps them until it ends, and takes more as it is needed.
    pub fn initial_size(self, bytes: usize) -> Self {
        self.map(|builder| builder.initial_size(bytes))
    }

    /// When a request does not fit, the pool becomes `factor` times as large, a number from 1 to 16. See
    /// [`mempool_pools::MemPoolBuilder::growth_factor`].
    pub fn growth_factor(self, factor: f64) -> Self {
        self.map(|builder| builder.growth_factor(factor))
    }

    /// The share of the device that has to stay free where memory is taken in advance, from 0 to 0.5; 0.1
    /// unless this says otherwise.
    pub fn headroom_share(self, share: f64) -> Self {
        self.map(|builder| builder.headroom_share(share))
    }

    /// The [fixed size](Self::fixed_size) that the run recorded in `trace` needs with the policy chosen so
    /// far, and a margin. See [`mempool_pools::MemPoolBuilder::size_from`].
    ///
    /// # Errors
    /// [`PoolError::ReadTrace`](mempool_pools::PoolError::ReadTrace),
    /// [`PoolError::Sizing`](mempool_pools::PoolError::Sizing); and as [`MemPool::new`] for a device
    /// without pools.
    pub fn size_from(self, trace: impl AsRef<Path>, margin: Margin) -> Result<Self> {
        Ok(Self { builder: Ok(self.builder?.size_from(trace, margin)?), device: self.device })
    }

    /// The pool.
    ///
    /// # Errors
    /// See [`MemPool::new`]; [`PoolError::Option`](mempool_pools::PoolError::Option) for a
    /// limit that cannot hold a page, [`PoolError::Size`](mempool_pools::PoolError::Size) when the memory
    /// that the pool is to have from the start cannot be had.
    pub fn build(self) -> Result<MemPool> {
        Ok(MemPool { pool: self.builder?.build()?, device: self.device })
    }
}

/// Runs `f` with this thread's tensors allocated in `pool`: [`MemPool::with`] as a function.
pub fn with_pool<R>(pool: &MemPool, f: impl FnOnce() -> R) -> R {
    pool.with(f)
}

/// The pool of everything that is allocated outside any scope. It lives as long as the process.
///
/// # Errors
/// As [`MemPool::new`].
pub fn default_pool(device: &Device) -> Result<MemPool> {
    Ok(MemPool { pool: Backing::of(device)?.default_pool()?, device: device.clone() })
}

/// Gives the default pool's free pages back to the system, and returns their bytes. Pools that
/// somebody made are not touched: see [`MemPool::trim`].
///
/// # Errors
/// As [`MemPool::new`].
pub fn empty_cache(device: &Device) -> Result<usize> {
    default_pool(device)?.trim()
}

/// Bytes that can be had on the device without others giving anything up: what it has
/// available and what the pools could give back.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a device without pools.
pub fn available_bytes(device: &Device) -> Result<usize> {
    Backing::of(device)?.available_bytes()
}
