//! Options of a pool.

use mempool_arena::{
    ArenaError, Buddy, BuddyOptions, Pages, PagesOptions, Placement, Reuse, Whole, WholeOptions,
};

use crate::device::{DeviceState, PoolDevice, PoolSetup, Taking};
use crate::error::PoolError;
use crate::pool::MemPool;
use crate::slot::{Setup, option_error};
use crate::thread_state::inside;
use crate::{allocator, region, registry};

/// How a pool places its blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Best fit in virtual ranges whose pages are mapped where they are needed.
    #[default]
    Pages,
    /// Blocks of powers of two, split in halves.
    Buddy,
    /// Best fit in segments that are taken and given back whole: for devices, and the default where
    /// a device's driver cannot manage virtual memory.
    Segments,
    /// A freed block serves requests of its own size only, once rounded: what a cache in front of
    /// the driver's calls does. For comparison.
    Simple,
    /// Nothing serves twice: each block's memory goes back when it is freed (on a device, once the
    /// device is idle). For comparison.
    None,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Pages, Self::Buddy, Self::Segments, Self::Simple, Self::None];
}

/// Sizes are rounded up to a cache line, and blocks aligned to one.
const GRANULE_BYTES: usize = 64;
/// Most pools never need a second range of this length, and 16 TiB hold thousands of them.
const FIRST_RANGE_BYTES: usize = 1 << 30;

/// Options of a pool, all with defaults.
#[derive(Debug, Clone)]
#[must_use = "a builder makes a pool when `build` is called"]
pub struct MemPoolBuilder {
    device: Option<PoolDevice>,
    name: Option<String>,
    policy: Option<Policy>,
    limit_bytes: Option<usize>,
    use_on_oom: bool,
    no_split: bool,
    guard: bool,
    garbage_collection_threshold: Option<f64>,
    release_threshold_bytes: Option<usize>,
    hard_limit: bool,
    min_bytes: usize,
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
        Self {
            device,
            name: None,
            policy: None,
            limit_bytes: None,
            use_on_oom: false,
            no_split: false,
            guard: false,
            garbage_collection_threshold: None,
            release_threshold_bytes: None,
            hard_limit: false,
            min_bytes: 0,
            crate_path: "mempool_pools",
        }
    }

    /// The name in statistics and messages; "pool N" unless set.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How blocks are placed.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Keeps the pool's mapped memory at or below `bytes`. What does not fit goes to the inner
    /// allocator on the host, and fails with an out-of-memory error on a device; either is counted
    /// (`overflow_bytes`).
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit_bytes = Some(bytes);
        self.hard_limit = false;
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
        self.limit_bytes = Some(bytes);
        self.hard_limit = true;
        self
    }

    /// Requests of fewer than `bytes` inside the scope go to the default pool, so that small
    /// survivors do not settle between the pool's large blocks.
    pub fn min_bytes(mut self, bytes: usize) -> Self {
        self.min_bytes = bytes;
        self
    }

    /// For a device: whether other pools may borrow this one's free memory when nothing else is
    /// left, on the stream that freed it. Not unless this says so.
    pub fn use_on_oom(mut self, enabled: bool) -> Self {
        self.use_on_oom = enabled;
        self
    }

    /// Whether each block has pages of its own, is never cut, and goes back to the device whole. A
    /// freed block serves requests that leave at most 20 MiB or half of it unused. For memory that
    /// others register or share by its pages. With policy [`Pages`](Policy::Pages) or
    /// [`Segments`](Policy::Segments) only.
    pub fn no_split(mut self, enabled: bool) -> Self {
        self.no_split = enabled;
        self
    }

    /// For a device, when debugging: whether each block lies between margins that are looked at when
    /// it is freed, and memory that its own stream freed is filled. What is freed in a capture is not
    /// looked at. Whoever wrote outside a block is reported on standard
    /// error and by [`PoolDevice::guard_reports`]. Each free then waits for its stream.
    pub fn guard(mut self, enabled: bool) -> Self {
        self.guard = enabled;
        self
    }

    /// For a device: before the pool would hold more than this share (between 0 and 1) of what it
    /// may hold, its free pages are given back. A policy that rounds a request up (buddy, segments) may
    /// pass it by its rounding.
    pub fn garbage_collection_threshold(mut self, share: f64) -> Self {
        self.garbage_collection_threshold = Some(share);
        self
    }

    /// For a device: free pages beyond `bytes` are given back at each
    /// [`mark_step`](crate::mark_step). Without it everything is kept.
    pub fn release_threshold(mut self, bytes: usize) -> Self {
        self.release_threshold_bytes = Some(bytes);
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
    /// See [`MemPool::new`], and [`PoolError::Option`] for a limit that cannot hold a page.
    pub fn build(self) -> Result<MemPool, PoolError> {
        if let Some(device) = self.device {
            return self.build_on(device);
        }
        for (given, option) in [
            (self.use_on_oom, "use_on_oom"),
            (self.guard, "guard"),
            (self.garbage_collection_threshold.is_some(), "garbage_collection_threshold"),
            (self.release_threshold_bytes.is_some(), "release_threshold"),
        ] {
            if given {
                return Err(PoolError::Option { option, value: 1, rule: "pools of the host do not have it" });
            }
        }
        let policy = self.policy.unwrap_or_default();
        if policy == Policy::Segments {
            let rule = "the host maps pages: use another policy";
            return Err(PoolError::Option { option: "policy segments", value: 1, rule });
        }
        let blocks = Blocks::of(policy, self.no_split)?;
        allocator::require_linked(self.crate_path)?;
        let (limit, page) = (self.limit_bytes, 1 << region::PAGE_LOG2);
        if let Some(value) = limit.filter(|&limit| limit < page) {
            let option = if self.hard_limit { "hard_limit" } else { "limit" };
            let rule = "a pool maps pages of 2 MiB, so at least 2097152 bytes are needed";
            return Err(PoolError::Option { option, value, rule });
        }
        let made = inside(|| {
            registry::require_open()?;
            let placement = make_placement(blocks, self.limit_bytes)?;
            registry::open_pool(|id| Setup {
                // A copy: the caller's string may lie in a pool, and a pool's name is freed while
                // locks are held.
                name: self.name.as_deref().map_or_else(|| format!("pool {id}"), str::to_owned),
                placement,
                min_bytes: self.min_bytes,
                hard_limit: self.hard_limit,
            })
        });
        made.map(|(slot, id)| MemPool::from_slot(slot, id))
    }
}

/// How a placement treats blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// Cut as requests need them, and joined.
    Cut,
    /// As `Cut`, in segments that are taken and given back whole.
    CutSegments,
    /// Powers of two.
    Buddy,
    /// Never cut. Whether each has pages of its own, in segments or not, and what it serves.
    Whole { own_pages: bool, segments: bool, reuse: Reuse },
}

impl Blocks {
    pub(crate) fn of(policy: Policy, no_split: bool) -> Result<Self, PoolError> {
        let whole = |own_pages, segments, reuse| Self::Whole { own_pages, segments, reuse };
        let wasteful = Reuse::Larger { waste_bytes: NO_SPLIT_WASTE_BYTES };
        Ok(match (policy, no_split) {
            (Policy::Pages, false) => Self::Cut,
            (Policy::Segments, false) => Self::CutSegments,
            (Policy::Buddy, false) => Self::Buddy,
            (Policy::Simple, false) => whole(false, false, Reuse::SameSize),
            (Policy::None, false) => whole(false, false, Reuse::Never),
            (Policy::Pages, true) => whole(true, false, wasteful),
            (Policy::Segments, true) => whole(true, true, wasteful),
            (Policy::Buddy | Policy::Simple | Policy::None, true) => {
                let rule = "only policies pages and segments have it";
                return Err(PoolError::Option { option: "no_split", value: 1, rule });
            }
        })
    }

    /// The same where pages can be mapped, or not.
    ///
    /// # Errors
    /// [`PoolError::NeedsMapping`].
    pub(crate) fn on(self, device: &DeviceState) -> Result<Self, PoolError> {
        let needs_mapping = |policy| PoolError::NeedsMapping { policy, ordinal: device.ordinal };
        match self {
            _ if device.page_bytes.is_some() => Ok(self),
            Self::Cut => Err(needs_mapping("pages")),
            Self::Buddy => Err(needs_mapping("buddy")),
            Self::Whole { own_pages: true, segments: false, .. } => Err(needs_mapping("pages")),
            Self::Whole { own_pages, reuse, .. } => Ok(Self::Whole { own_pages, segments: true, reuse }),
            Self::CutSegments => Ok(self),
        }
    }

    /// Whether each block has pages of its own.
    pub(crate) fn own_pages(self) -> bool {
        matches!(self, Self::Whole { own_pages: true, .. })
    }

    /// How memory is taken on a device.
    pub(crate) fn taking(self) -> Taking {
        match self {
            Self::CutSegments | Self::Whole { segments: true, .. } => Taking::Segments,
            // What it gives up is not always what it mapped at once.
            Self::Buddy => Taking::Pages,
            Self::Cut | Self::Whole { .. } => Taking::Handles,
        }
    }

    fn placement(
        self,
        granule_bytes: usize,
        limit_bytes: Option<usize>,
        range_bytes: usize,
    ) -> Result<Box<dyn Placement>, ArenaError> {
        let pages = PagesOptions { granule_bytes, limit_bytes, ..PagesOptions::default() };
        Ok(match self {
            Self::Cut => Box::new(Pages::new(PagesOptions { first_range_bytes: range_bytes, ..pages })?),
            Self::CutSegments => {
                let options = PagesOptions { first_range_bytes: SEGMENT_BYTES, whole_ranges: true, ..pages };
                Box::new(Pages::new(options)?)
            }
            Self::Buddy => Box::new(Buddy::new(BuddyOptions { granule_bytes, limit_bytes, range_bytes })?),
            Self::Whole { own_pages, segments, reuse } => {
                let usual = WholeOptions::default();
                Box::new(Whole::new(WholeOptions {
                    granule_bytes,
                    limit_bytes,
                    range_bytes,
                    shared_limit_bytes: if own_pages { 0 } else { usual.shared_limit_bytes },
                    whole_ranges: segments,
                    reuse,
                })?)
            }
        })
    }
}

fn make_placement(blocks: Blocks, limit_bytes: Option<usize>) -> Result<Box<dyn Placement>, PoolError> {
    // In a small region many short ranges serve better than one that takes it all.
    let range_bytes = FIRST_RANGE_BYTES.min(region::HOST.len() / 64).max(region::HOST.part_bytes());
    blocks.placement(GRANULE_BYTES, limit_bytes, range_bytes).map_err(option_error)
}

impl MemPoolBuilder {
    fn build_on(self, device: PoolDevice) -> Result<MemPool, PoolError> {
        let state = device.state;
        let page = state.page_bytes.unwrap_or(1 << region::PAGE_LOG2);
        if let Some(value) = self.limit_bytes.filter(|&limit| limit < page) {
            let rule = "a pool of a device needs at least one page";
            return Err(PoolError::Option { option: "limit", value, rule });
        }
        if let Some(share) = self.garbage_collection_threshold {
            check_threshold(share)?;
        }
        let policy = self.policy.unwrap_or_else(|| state.default_policy());
        let blocks = Blocks::of(policy, self.no_split)?.on(state)?;
        inside(|| {
            // What cannot work is refused now, not at the first request.
            make_device_placement(blocks, state.platform.region.part_bytes())?;
            state.sweep();
            let id = registry::take_pool_id();
            let setup = PoolSetup {
                name: self.name.as_deref().map_or_else(|| format!("pool {id}"), str::to_owned),
                blocks,
                min_bytes: self.min_bytes,
                limit_bytes: self.limit_bytes,
                use_on_oom: self.use_on_oom,
                guard: self.guard,
                garbage_collection_threshold: self.garbage_collection_threshold,
                release_threshold_bytes: self.release_threshold_bytes,
            };
            Ok(MemPool::from_device_slot(state.open_pool(id, setup), id))
        })
    }
}

/// `Ok` for a share that pools can be kept below.
pub(crate) fn check_threshold(share: f64) -> Result<(), PoolError> {
    if share > 0.0 && share < 1.0 {
        return Ok(());
    }
    let option = "garbage_collection_threshold";
    Err(PoolError::Share { option, value: share.to_string(), rule: "between 0 and 1" })
}

/// Sizes on a device are rounded up to this, and blocks aligned to it: what CUDA's own allocation
/// calls guarantee, twice.
const DEVICE_GRANULE_BYTES: usize = 512;
/// The usual length of a segment that is taken whole, as PyTorch has it.
const SEGMENT_BYTES: usize = 20 << 20;

/// What a block of a pool with `no_split` may leave unused.
const NO_SPLIT_WASTE_BYTES: usize = 20 << 20;

/// A placement for a device's memory. Limits are kept by the pool, over all its arenas.
pub(crate) fn make_device_placement(
    blocks: Blocks,
    first_range_bytes: usize,
) -> Result<Box<dyn Placement>, PoolError> {
    blocks.placement(DEVICE_GRANULE_BYTES, None, first_range_bytes).map_err(option_error)
}

/// The setup of the default pool.
pub(crate) fn default_setup() -> Setup {
    Setup {
        name: "default".to_owned(),
        placement: make_placement(Blocks::Cut, None).expect("the built-in options are valid"),
        min_bytes: 0,
        hard_limit: false,
    }
}
