//! Options of a pool.

use mempool_arena::{Conf, Policy};

use crate::blocks::Blocks;
use crate::device::{DeviceState, PoolDevice, PoolSetup};
use crate::error::PoolError;
use crate::options::{PoolOptions, Resolved, THRESHOLD, has_threshold};
use crate::pool::MemPool;
use crate::slot::Setup;
use crate::thread_state::inside;
use crate::{allocator, environment, region, registry};

/// Options of a pool, all with defaults.
#[derive(Debug, Clone)]
#[must_use = "a builder makes a pool when `build` is called"]
pub struct MemPoolBuilder {
    device: Option<PoolDevice>,
    name: Option<String>,
    options: PoolOptions,
    crate_path: &'static str,
}

impl MemPoolBuilder {
    pub(crate) fn new() -> Self {
        Self::with_device(None)
    }

    pub(crate) fn on(device: PoolDevice) -> Self {
        Self::with_device(Some(device))
    }

    fn with_device(device: Option<PoolDevice>) -> Self {
        Self { device, name: None, options: PoolOptions::default(), crate_path: "mempool_pools" }
    }

    /// The name in statistics and messages; "pool N" unless set.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How blocks are placed.
    pub fn policy(self, policy: Policy) -> Self {
        self.placement(Conf::of(policy))
    }

    /// How blocks are placed, with options of the policy.
    ///
    /// ```
    /// # use mempool_pools::{Conf, MemPool, Mode, Policy, PoolAllocator};
    /// # #[global_allocator]
    /// # static ALLOC: PoolAllocator = PoolAllocator::new();
    /// let pool = MemPool::builder().placement(Conf::of(Policy::Pages).mode(Mode::Moving)).build()?;
    /// # Ok::<(), mempool_pools::PoolError>(())
    /// ```
    pub fn placement(mut self, conf: Conf) -> Self {
        self.options.placement = conf.or(self.options.placement);
        self
    }

    /// Options by name: `policy:pages,mode:moving,limit_mb:512`. See [`PoolOptions`].
    ///
    /// # Errors
    /// [`PoolError::Conf`], for an unknown key with the known ones.
    pub fn conf(mut self, text: &str) -> Result<Self, PoolError> {
        let options: PoolOptions = text.parse()?;
        self.options = options.or(self.options);
        Ok(self)
    }

    /// Keeps the pool's mapped memory at or below `bytes`. What does not fit goes to the inner
    /// allocator on the host, and fails with an out-of-memory error on a device; either is counted
    /// (`overflow_bytes`).
    pub fn limit(mut self, bytes: usize) -> Self {
        self.options.limit_bytes = Some(bytes);
        self.options.hard_limit = false;
        self
    }

    /// As [`limit`](Self::limit), but what does not fit fails. Rust's collections, and so
    /// candle's tensors, answer a failed allocation by ending the process: choose this only
    /// where that is better than using more memory.
    ///
    /// The limit is on the pool: requests below the allocator's threshold or this pool's
    /// [`min_bytes`](Self::min_bytes), and vectors that began elsewhere and grow inside the scope,
    /// are not the pool's.
    pub fn hard_limit(mut self, bytes: usize) -> Self {
        self.options.limit_bytes = Some(bytes);
        self.options.hard_limit = true;
        self
    }

    /// Requests of fewer than `bytes` inside the scope go to the default pool, so that small
    /// survivors do not settle between the pool's large blocks.
    pub fn min_bytes(mut self, bytes: usize) -> Self {
        self.options.min_bytes = Some(bytes);
        self
    }

    /// For a device: whether other pools may borrow this one's free memory when nothing else is
    /// left, on the stream that freed it. Not unless this says so.
    pub fn use_on_oom(mut self, enabled: bool) -> Self {
        self.options.use_on_oom = Some(enabled);
        self
    }

    /// Whether each block has pages of its own, is never cut, and goes back to the device whole. A
    /// freed block serves requests that leave at most 20 MiB or half of it unused. For memory that
    /// others register or share by its pages. With policy [`Pages`](Policy::Pages) or
    /// [`Segments`](Policy::Segments) only, and without options of theirs.
    pub fn no_split(mut self, enabled: bool) -> Self {
        self.options.no_split = Some(enabled);
        self
    }

    /// For a device, when debugging: whether each block lies between margins that are looked at when
    /// it is freed, and memory that its own stream freed is filled. What is freed in a capture is not
    /// looked at. Whoever wrote outside a block is reported on standard
    /// error and by [`PoolDevice::guard_reports`]. Each free then waits for its stream.
    pub fn guard(mut self, enabled: bool) -> Self {
        self.options.guard = Some(enabled);
        self
    }

    /// For a device: before the pool would hold more than this share (between 0 and 1) of what it
    /// may hold, its free pages are given back. A policy that rounds a request up (buddy, segments) may
    /// pass it by its rounding. Policy `torch` has a threshold of its own, as PyTorch has it, on the host
    /// too: before more is mapped beyond it, large segments go back that were free for long.
    pub fn garbage_collection_threshold(mut self, share: f64) -> Self {
        self.options.placement.garbage_collection_threshold = Some(share);
        self
    }

    /// For a device: free pages beyond `bytes` are given back at each
    /// [`mark_step`](crate::mark_step). Without it everything is kept.
    pub fn release_threshold(mut self, bytes: usize) -> Self {
        self.options.release_threshold_bytes = Some(bytes);
        self
    }

    /// The crate that [`PoolError::AllocatorNotLinked`] names. For crates that re-export pools.
    #[doc(hidden)]
    pub fn crate_path(mut self, path: &'static str) -> Self {
        self.crate_path = path;
        self
    }

    /// The pool.
    ///
    /// # Errors
    /// See [`MemPool::new`]; [`PoolError::Option`] for a limit that cannot hold a page, [`PoolError::Conf`]
    /// for an option that the policy does not have, [`PoolError::Environment`] when `MEMPOOL_CONF` is
    /// malformed.
    pub fn build(self) -> Result<MemPool, PoolError> {
        if let Some(share) = self.options.placement.garbage_collection_threshold {
            check_threshold(share)?;
        }
        let around = inside(registry::environment)?;
        match self.device {
            Some(device) => self.build_on(device, around),
            None => self.build_on_host(around),
        }
    }

    fn build_on_host(self, around: &PoolOptions) -> Result<MemPool, PoolError> {
        let options = host_options(&self.options, around)?;
        for (given, option) in [
            (self.options.use_on_oom == Some(true), "use_on_oom"),
            (self.options.guard == Some(true), "guard"),
            (
                self.options.placement.garbage_collection_threshold.is_some()
                    && !has_threshold(options.placement.policy()),
                THRESHOLD,
            ),
            (self.options.release_threshold_bytes.is_some(), "release_threshold"),
        ] {
            if given {
                return Err(PoolError::Option { option, value: 1, rule: "pools of the host do not have it" });
            }
        }
        allocator::require_linked(self.crate_path)?;
        let made = inside(|| {
            registry::require_open()?;
            let placement = Blocks::of(&options).for_host(options.limit_bytes)?;
            registry::open_pool(|id| Setup {
                // A copy: the caller's string may lie in a pool, and a pool's name is freed while
                // locks are held.
                name: self.name.as_deref().map_or_else(|| format!("pool {id}"), str::to_owned),
                placement,
                min_bytes: options.min_bytes,
                hard_limit: options.hard_limit,
            })
        });
        made.map(|(slot, id)| MemPool::from_slot(slot, id))
    }

    fn build_on(self, device: PoolDevice, around: &PoolOptions) -> Result<MemPool, PoolError> {
        let state = device.state;
        let (options, blocks) = device_options(&self.options, around, state)?;
        inside(|| {
            // What cannot work is refused now, not at the first request.
            blocks.for_device(state)?;
            state.sweep();
            let id = registry::take_pool_id();
            let name = self.name.as_deref().map_or_else(|| format!("pool {id}"), str::to_owned);
            let slot = state.open_pool(id, PoolSetup { name, blocks, options });
            Ok(MemPool::from_device_slot(slot, id))
        })
    }
}

/// What a pool of the host gets. `around` may name policy segments, which is then meant for devices.
fn host_options(chosen: &PoolOptions, around: &PoolOptions) -> Result<Resolved, PoolError> {
    let options = chosen.resolve(around, Policy::Pages, |policy| policy != Policy::Segments)?;
    if options.placement.policy() == Policy::Segments {
        let rule = "the host maps pages: use another policy";
        return Err(PoolError::Option { option: "policy segments", value: 1, rule });
    }
    if options.placement.allow_growth == Some(false) && options.limit_bytes.is_none() {
        let rule = "on the host a limit has to say how much is taken at once";
        return Err(PoolError::Option { option: "allow_growth", value: 0, rule });
    }
    let page = 1 << region::PAGE_LOG2;
    if let Some(value) = options.limit_bytes.filter(|&limit| limit < page) {
        let option = if options.hard_limit { "hard_limit" } else { "limit" };
        let rule = "a pool maps pages of 2 MiB, so at least 2097152 bytes are needed";
        return Err(PoolError::Option { option, value, rule });
    }
    Ok(options)
}

/// What a pool of a device gets.
fn device_options(
    chosen: &PoolOptions,
    around: &PoolOptions,
    device: &DeviceState,
) -> Result<(Resolved, Blocks), PoolError> {
    let options = chosen.resolve(around, device.default_policy(), |_| true)?;
    if let Some(value) = options.limit_bytes.filter(|&limit| limit < device.unit_bytes()) {
        let rule = "a pool of a device needs at least one page";
        return Err(PoolError::Option { option: "limit", value, rule });
    }
    let blocks = Blocks::of(&options).on(device)?;
    Ok((options, blocks))
}

/// `Ok` for a share that pools can be kept below.
pub(crate) fn check_threshold(share: f64) -> Result<(), PoolError> {
    if share > 0.0 && share < 1.0 {
        return Ok(());
    }
    Err(PoolError::Share { option: THRESHOLD, value: share.to_string(), rule: "between 0 and 1" })
}

/// The setup of the host's default pool, and why it is not as the environment has it, if it is not.
///
/// A limit of the environment is a soft one here, for what the whole process allocates; smaller requests
/// have no other pool to go to.
pub(crate) fn default_setup() -> (Setup, Option<PoolError>) {
    let setup = |around: &PoolOptions| -> Result<Setup, PoolError> {
        let options = host_options(&PoolOptions::default(), around)?;
        let placement = Blocks::of(&options).for_host(options.limit_bytes)?;
        Ok(Setup { name: "default".to_owned(), placement, min_bytes: 0, hard_limit: false })
    };
    let asked = environment::read().and_then(setup);
    let built_in = || setup(&PoolOptions::default()).expect("the built-in options are valid");
    match asked {
        Ok(setup) => (setup, None),
        Err(error) => (built_in(), Some(error)),
    }
}

/// The setup of a device's default pool, and why it is not as the environment has it, if it is not.
pub(crate) fn default_setup_on(device: &DeviceState) -> (PoolSetup, Option<PoolError>) {
    let setup = |around: &PoolOptions| -> Result<PoolSetup, PoolError> {
        let (options, blocks) = device_options(&PoolOptions::default(), around, device)?;
        let options = Resolved { min_bytes: 0, ..options };
        Ok(PoolSetup { name: "default".to_owned(), blocks, options })
    };
    match environment::read().and_then(setup) {
        Ok(setup) => (setup, None),
        Err(error) => (setup(&PoolOptions::default()).expect("the built-in options are valid"), Some(error)),
    }
}
