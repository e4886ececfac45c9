//! Options of a pool.

use mempool_arena::{Buddy, BuddyOptions, Pages, PagesOptions, Placement};

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
}

/// Sizes are rounded up to a cache line, and blocks aligned to one.
const GRANULE_BYTES: usize = 64;
/// Most pools never need a second range of this length, and 16 TiB hold thousands of them.
const FIRST_RANGE_BYTES: usize = 1 << 30;

/// Options of a pool, all with defaults.
#[derive(Debug, Clone)]
#[must_use = "a builder makes a pool when `build` is called"]
pub struct MemPoolBuilder {
    name: Option<String>,
    policy: Policy,
    limit_bytes: Option<usize>,
    hard_limit: bool,
    min_bytes: usize,
    crate_path: &'static str,
}

impl MemPoolBuilder {
    pub(crate) fn new() -> Self {
        Self {
            name: None,
            policy: Policy::default(),
            limit_bytes: None,
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
        self.policy = policy;
        self
    }

    /// Keeps the pool's mapped memory at or below `bytes`. What does not fit goes to the inner
    /// allocator and is counted (`overflow_bytes`).
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
        allocator::require_linked(self.crate_path)?;
        let (limit, page) = (self.limit_bytes, 1 << region::PAGE_LOG2);
        if let Some(value) = limit.filter(|&limit| limit < page) {
            let option = if self.hard_limit { "hard_limit" } else { "limit" };
            let rule = "a pool maps pages of 2 MiB, so at least 2097152 bytes are needed";
            return Err(PoolError::Option { option, value, rule });
        }
        let made = inside(|| {
            registry::require_open()?;
            let placement = make_placement(self.policy, self.limit_bytes)?;
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

fn make_placement(policy: Policy, limit_bytes: Option<usize>) -> Result<Box<dyn Placement>, PoolError> {
    // In a small region many short ranges serve better than one that takes it all.
    let first_range_bytes = FIRST_RANGE_BYTES.min(region::len() / 64).max(region::part_bytes());
    let placement: Box<dyn Placement> = match policy {
        Policy::Pages => Box::new(
            Pages::new(PagesOptions {
                granule_bytes: GRANULE_BYTES,
                limit_bytes,
                first_range_bytes,
                ..PagesOptions::default()
            })
            .map_err(option_error)?,
        ),
        Policy::Buddy => Box::new(
            Buddy::new(BuddyOptions {
                granule_bytes: GRANULE_BYTES,
                limit_bytes,
                range_bytes: first_range_bytes,
            })
            .map_err(option_error)?,
        ),
    };
    Ok(placement)
}

/// The setup of the default pool.
pub(crate) fn default_setup() -> Setup {
    Setup {
        name: "default".to_owned(),
        placement: make_placement(Policy::default(), None).expect("the built-in options are valid"),
        min_bytes: 0,
        hard_limit: false,
    }
}
