//! How much memory a pool begins with, and by how much it grows.

use mempool_arena::ArenaError;

use crate::error::PoolError;
use crate::options::Resolved;

/// The memory that a pool has from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolSize {
    /// So many bytes, and never more.
    Fixed(usize),
    /// All that is free and not left to others, and never more.
    AllButHeadroom,
    /// So many bytes to begin with.
    Initial(usize),
}

impl PoolSize {
    /// The option's name.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Fixed(_) | Self::AllButHeadroom => "fixed_size_mb",
            Self::Initial(_) => "initial_size_mb",
        }
    }

    fn is_fixed(self) -> bool {
        matches!(self, Self::Fixed(_) | Self::AllButHeadroom)
    }
}

/// What is left to others unless another share is chosen.
pub(crate) const USUAL_HEADROOM: f64 = 0.1;
const MOST_HEADROOM: f64 = 0.5;
const MOST_GROWTH: f64 = 16.0;

/// `Ok` for a factor by which pools grow.
pub(crate) fn check_growth_factor(factor: f64) -> Result<(), PoolError> {
    let rule = "from 1 to 16";
    let possible = (1.0..=MOST_GROWTH).contains(&factor);
    let option = "growth_factor";
    if possible { Ok(()) } else { Err(PoolError::Share { option, value: factor.to_string(), rule }) }
}

/// `Ok` for a share that can be left to others.
pub(crate) fn check_headroom(share: f64) -> Result<(), PoolError> {
    let rule = "from 0 to 0.5";
    let possible = (0.0..=MOST_HEADROOM).contains(&share);
    let option = "headroom";
    if possible { Ok(()) } else { Err(PoolError::Share { option, value: share.to_string(), rule }) }
}

/// What there is of memory when a pool is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Available {
    pub(crate) free_bytes: usize,
    pub(crate) total_bytes: usize,
    pub(crate) headroom_bytes: usize,
}

impl Available {
    /// The error of a pool that was to have `asked_bytes`.
    pub(crate) fn refused(self, asked_bytes: usize, cause: Option<ArenaError>) -> PoolError {
        let Self { free_bytes, total_bytes, headroom_bytes } = self;
        PoolError::Size { asked_bytes, free_bytes, total_bytes, headroom_bytes, cause: cause.map(Box::new) }
    }
}

/// What a pool takes when it is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    /// Whole units.
    pub(crate) bytes: usize,
    pub(crate) available: Available,
}

/// What a pool with these options takes when it is made, and the limit that this puts on it. Memory is had
/// in units of `unit_bytes`; `available` is asked only if it matters.
pub(crate) fn start_of(
    options: &mut Resolved,
    unit_bytes: usize,
    available: impl FnOnce() -> Result<Available, PoolError>,
) -> Result<Option<Start>, PoolError> {
    let Some(size) = options.size else { return Ok(None) };
    if size.is_fixed() && options.growth_factor.is_some() {
        let rule = "a pool of fixed size does not grow";
        return Err(PoolError::NotHere { option: "growth_factor", rule });
    }
    let available = available()?;
    let Available { free_bytes, headroom_bytes, .. } = available;
    let bytes = match size {
        PoolSize::AllButHeadroom => {
            let most =
                free_bytes.saturating_sub(headroom_bytes).min(options.limit_bytes.unwrap_or(usize::MAX));
            most / unit_bytes * unit_bytes
        }
        PoolSize::Fixed(bytes) | PoolSize::Initial(bytes) => {
            bytes.checked_next_multiple_of(unit_bytes).ok_or_else(|| available.refused(bytes, None))?
        }
    };
    if bytes == 0 && size != PoolSize::AllButHeadroom {
        return Err(PoolError::Option {
            option: size.key(),
            value: 0,
            rule: "a pool needs at least one page",
        });
    }
    if bytes == 0 || bytes.saturating_add(headroom_bytes) > free_bytes {
        return Err(available.refused(bytes.max(unit_bytes), None));
    }
    if let Some(value) = options.limit_bytes.filter(|&limit| limit < bytes) {
        let rule = "the pool is to have more than that from the start";
        return Err(PoolError::Option { option: "limit", value, rule });
    }
    if size.is_fixed() {
        options.limit_bytes = Some(bytes);
    }
    Ok(Some(Start { bytes, available }))
}

/// By how much a pool that holds `held_bytes` grows for a request of `size_bytes`; `None` when that is no more
/// than the request needs.
#[inline]
pub(crate) fn growth_bytes(held_bytes: usize, factor: f64, size_bytes: usize) -> Option<usize> {
    // Beyond what numbers can tell nobody has memory either.
    let growth_bytes = (held_bytes as f64 * (factor - 1.0)) as usize;
    (growth_bytes > size_bytes).then_some(growth_bytes)
}
