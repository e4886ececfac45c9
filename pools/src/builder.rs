//! Options of a pool.

use std::path::Path;

use mempool_arena::{Conf, Margin, Policy, Sizing};

use crate::blocks::{Blocks, DEVICE_GRANULE_BYTES, GRANULE_BYTES};
use crate::device::{DeviceState, PoolDevice, PoolSetup};
use crate::error::PoolError;
use crate::options::{PoolOptions, Resolved, THRESHOLD, has_threshold};
use crate::pool::MemPool;
use crate::recording::read_trace;
use crate::sizing::{PoolSize, Start, check_growth_factor, check_headroom, start_of};
use crate::slot::Setup;
use crate::thread_state::inside;
use crate::{allocator, environment, host_upstream, process, registry};

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

    /// Takes `bytes`, rounded up to pages, when the pool is built, and never more: see
    /// [`limit`](Self::limit) for what does not fit. [`build`](Self::build) fails when they cannot be had,
    /// or when less than the [headroom](Self::headroom_share) would stay free.
    ///
    /// The pool keeps them until it ends: neither [`trim`](MemPool::trim) nor thresholds nor other pools'
    /// needs take them away. What a run allocates that fits is served without a call of the system or the
    /// driver, as far as the policy permits: those that keep small requests apart have a 64th of the memory,
    /// at most 64 MiB, for them (a request is small up to 1 MiB), and give other free memory to whoever needs it;
    /// policy `buckets` maps anew what is large, policy `buddy` what does not fit into its powers of two. On a
    /// device the memory is that of the stream that first allocates from the pool, and goes to others when they find
    /// no more. Host memory is touched, so that using it causes no page faults.
    ///
    /// Policies `simple` and `none`, and [`no_split`](Self::no_split), refuse it: their memory serves only the sizes
    /// that it was taken for.
    ///
    /// ```
    /// # use mempool_pools::{MemPool, PoolAllocator};
    /// # #[global_allocator]
    /// # static ALLOC: PoolAllocator = PoolAllocator::new();
    /// let pool = MemPool::builder().fixed_size(64 << 20).build()?;
    /// let mapped = pool.stats().map_calls;
    /// drop(pool.with(|| vec![1_u8; 40 << 20]));
    /// assert_eq!(pool.stats().map_calls, mapped);
    /// assert_eq!(pool.trim()?, 0);
    /// # Ok::<(), mempool_pools::PoolError>(())
    /// ```
    pub fn fixed_size(mut self, bytes: usize) -> Self {
        self.options.size = Some(PoolSize::Fixed(bytes));
        self
    }

    /// As [`fixed_size`](Self::fixed_size), of all that is free when the pool is built and not left to others
    /// ([`headroom_share`](Self::headroom_share)), up to the [limit](Self::limit).
    pub fn fixed_size_all(mut self) -> Self {
        self.options.size = Some(PoolSize::AllButHeadroom);
        self
    }

    /// Takes `bytes`, rounded up to pages, when the pool is built, and more as it is needed. They are kept, and
    /// can be refused, as those of [`fixed_size`](Self::fixed_size). Policy `bfc` takes its regions in powers of two.
    pub fn initial_size(mut self, bytes: usize) -> Self {
        self.options.size = Some(PoolSize::Initial(bytes));
        self
    }

    /// When a request does not fit into what the pool holds, the pool becomes `factor` times as large, a
    /// number from 1 to 16, or takes what the request needs if that is more, or if the former is refused: by
    /// the limit, the system or the driver, or on a device because less than the headroom would stay free.
    /// Nothing is copied, and no address changes. Small requests (up to 1 MiB) and those
    /// made in a capture take what they need. With mode `moving` the pool grows only for what does not fit into all
    /// that is free. How often it grew is in its figures (`growths`).
    pub fn growth_factor(mut self, factor: f64) -> Self {
        self.options.growth_factor = Some(factor);
        self
    }

    /// The share of the device, or of the system's memory, that has to stay free where memory is taken in
    /// advance, from 0 to 0.5; 0.1 unless this says otherwise. A larger headroom of the device
    /// ([`PoolDevice::set_headroom`]) holds too.
    pub fn headroom_share(mut self, share: f64) -> Self {
        self.options.headroom_share = Some(share);
        self
    }

    /// The [fixed size](Self::fixed_size) that the run recorded in `trace` needs
    /// ([`MemPool::record_trace`], also compressed) with the policy chosen so far, and a margin,
    /// so that a run whose sizes are 5% larger fits too. `mempool size` prints it.
    ///
    /// # Errors
    /// [`PoolError::ReadTrace`] when the file cannot be read or is no trace, [`PoolError::Sizing`] when the
    /// policy cannot have a fixed size or the trace makes no sense.
    pub fn size_from(mut self, trace: impl AsRef<Path>, margin: Margin) -> Result<Self, PoolError> {
        let granule_bytes = if self.device.is_some() { DEVICE_GRANULE_BYTES } else { GRANULE_BYTES };
        let usual = self.device.map_or(Policy::Pages, |device| device.state.default_policy());
        let conf = Conf::default().with_policy(usual);
        let mut sizing = Sizing::new(self.options.placement.clone().or(conf), margin);
        sizing.setting.granule_bytes = granule_bytes;
        let size = sizing.size_from(&read_trace(trace.as_ref())?)?;
        self.options.size = Some(PoolSize::Fixed(size.size_bytes));
        Ok(self)
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
    /// for an option that the policy does not have, [`PoolError::Size`] when the memory that the pool is to
    /// have from the start cannot be had, [`PoolError::Environment`] when `MEMPOOL_CONF` is malformed.
    pub fn build(self) -> Result<MemPool, PoolError> {
        if let Some(share) = self.options.placement.garbage_collection_threshold {
            check_threshold(share)?;
        }
        self.options.growth_factor.map_or(Ok(()), check_growth_factor)?;
        self.options.headroom_share.map_or(Ok(()), check_headroom)?;
        let around = inside(registry::environment)?;
        match self.device {
            Some(device) => self.build_on(device, around),
            None => self.build_on_host(around),
        }
    }

    fn build_on_host(self, around: &PoolOptions) -> Result<MemPool, PoolError> {
        let (options, start) = host_options(&self.options, around)?;
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
                return Err(PoolError::NotHere { option, rule: "pools of the host do not have it" });
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
                limit_bytes: options.limit_bytes,
                hard_limit: options.hard_limit,
                growth_factor: options.growth_factor,
            })
        });
        let (slot, id) = made?;
        let pool = MemPool::from_slot(slot, id);
        // Without the registry's lock: the system may take its time.
        if let Some(Start { bytes, available }) = start
            && let Err(error) = slot.begin_with(id, bytes)
        {
            return Err(available.refused(bytes, Some(error)));
        }
        Ok(pool)
    }

    fn build_on(self, device: PoolDevice, around: &PoolOptions) -> Result<MemPool, PoolError> {
        let state = device.state;
        inside(|| {
            state.sweep();
            let (setup, start) = device_setup(&self.options, around, state)?;
            // What cannot work is refused now, not at the first request.
            setup.blocks.for_device(state)?;
            let id = registry::take_pool_id();
            let name = self.name.as_deref().map_or_else(|| format!("pool {id}"), str::to_owned);
            let slot = state.open_pool(id, PoolSetup { name, ..setup });
            let pool = MemPool::from_device_slot(slot, id);
            if let Some(start) = start {
                slot.begin_with(start)?;
            }
            Ok(pool)
        })
    }
}

/// What a pool of the host gets, and what it takes when it is made. `around` may name policy segments, which is
/// then meant for devices.
fn host_options(chosen: &PoolOptions, around: &PoolOptions) -> Result<(Resolved, Option<Start>), PoolError> {
    let mut options = chosen.resolve(around, Policy::Pages, |policy| policy != Policy::Segments)?;
    let (page, headroom_share) = (host_upstream::PAGE_BYTES, options.headroom_share);
    let start = start_of(&mut options, page, || Ok(process::available_for(headroom_share)))?;
    if options.placement.policy() == Policy::Segments {
        let rule = "the host maps pages: use another policy";
        return Err(PoolError::NotHere { option: "policy segments", rule });
    }
    if options.placement.allow_growth == Some(false) && options.limit_bytes.is_none() {
        let rule = "on the host a limit has to say how much is taken at once";
        return Err(PoolError::NotHere { option: "allow_growth:False", rule });
    }
    if let Some(value) = options.limit_bytes.filter(|&limit| limit < page) {
        let option = if options.hard_limit { "hard_limit" } else { "limit" };
        let rule = "a pool maps pages of 1 MiB, so at least 1048576 bytes are needed";
        return Err(PoolError::Option { option, value, rule });
    }
    Ok((options, start))
}

/// What a pool of a device gets, and what it takes when it is made.
fn device_setup(
    chosen: &PoolOptions,
    around: &PoolOptions,
    device: &DeviceState,
) -> Result<(PoolSetup, Option<Start>), PoolError> {
    let mut options = chosen.resolve(around, device.default_policy(), |_| true)?;
    if let Some(value) = options.limit_bytes.filter(|&limit| limit < device.unit_bytes()) {
        let rule = "a pool of a device needs at least one page";
        return Err(PoolError::Option { option: "limit", value, rule });
    }
    let blocks = Blocks::of(&options).on(device)?;
    let headroom_share = options.headroom_share;
    let start = start_of(&mut options, device.unit_bytes(), || device.available_for(headroom_share))?;
    Ok((PoolSetup { name: String::new(), blocks, options }, start))
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
/// have no other pool to go to. Sizes are not this pool's: it comes into being in the middle of the process's first
/// allocation, which is no place to take gigabytes, and what is meant for a device's memory need not fit here.
pub(crate) fn default_setup() -> (Setup, Option<PoolError>) {
    let setup = |around: &PoolOptions| -> Result<Setup, PoolError> {
        let (options, _) = host_options(&PoolOptions::default(), around)?;
        let placement = Blocks::of(&options).for_host(options.limit_bytes)?;
        let name = "default".to_owned();
        let limit_bytes = options.limit_bytes;
        Ok(Setup { name, placement, min_bytes: 0, limit_bytes, hard_limit: false, growth_factor: None })
    };
    let asked = environment::read().and_then(setup);
    let built_in = || setup(&PoolOptions::default()).expect("the built-in options are valid");
    match asked {
        Ok(setup) => (setup, None),
        Err(error) => (built_in(), Some(error)),
    }
}

/// The setup of a device's default pool with what it takes at once, and why it is not as the environment has
/// it, if it is not.
pub(crate) fn default_setup_on(device: &DeviceState) -> (PoolSetup, Option<Start>, Option<PoolError>) {
    let setup = |around: &PoolOptions| -> Result<(PoolSetup, Option<Start>), PoolError> {
        let (setup, start) = device_setup(&around.only_sizes(), around, device)?;
        let options = Resolved { min_bytes: 0, ..setup.options };
        Ok((PoolSetup { name: "default".to_owned(), options, ..setup }, start))
    };
    match environment::read().and_then(setup) {
        Ok((setup, start)) => (setup, start, None),
        Err(error) => {
            let (setup, _) = setup(&PoolOptions::default()).expect("the built-in options are valid");
            (setup, None, Some(error))
        }
    }
}
