//! Options of policy `buckets`.

use super::Class;
use crate::error::ArenaError;
use crate::placement::{DEFAULT_RANGE_BYTES, check_granule};

/// Options of [`Buckets`](super::Buckets).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketsOptions {
    /// Sizes are rounded up to a multiple of this power of two, and blocks are aligned to it.
    pub granule_bytes: usize,
    /// Requests up to this size, once rounded, are small.
    pub small_limit_bytes: usize,
    /// Requests up to this size, once rounded, are medium; those above are large.
    pub medium_limit_bytes: usize,
    /// Length of the segments that small requests are cut from; a page at least.
    pub small_segment_bytes: usize,
    /// Length of the segments that medium requests are cut from, unless they are half of that or more:
    /// those begin segments of their own size.
    pub medium_segment_bytes: usize,
    /// Mapped bytes are kept at or below this.
    pub limit_bytes: Option<usize>,
    /// Segments of which nothing is used are kept up to so many bytes; beyond, those go back first that
    /// were free for longest. `None`: they are kept until memory is short.
    pub max_cached_bytes: Option<usize>,
    /// Before more is mapped than blocks ever took at once, and so many percent of that, segments of which
    /// nothing is used go back, those first that were free for longest. `None`: they are kept until memory
    /// is short, which maps less often, and holds a block of each large size that ever was.
    pub slack_percent: Option<usize>,
    /// Length of a virtual range.
    pub range_bytes: usize,
    /// Reserves a range for each segment, for an upstream whose ranges are memory.
    pub whole_ranges: bool,
}

impl Default for BucketsOptions {
    fn default() -> Self {
        Self {
            granule_bytes: 512,
            small_limit_bytes: 1 << 20,
            medium_limit_bytes: 100 << 20,
            small_segment_bytes: 2 << 20,
            medium_segment_bytes: 32 << 20,
            limit_bytes: None,
            max_cached_bytes: None,
            slack_percent: Some(0),
            range_bytes: DEFAULT_RANGE_BYTES,
            whole_ranges: false,
        }
    }
}

impl BucketsOptions {
    pub(super) fn check(&self) -> Result<(), ArenaError> {
        check_granule(self.granule_bytes)?;
        let Self { small_limit_bytes: small, medium_limit_bytes: medium, .. } = *self;
        for (holds, option, value, rule) in [
            (small <= medium, "medium_limit_bytes", medium, "at least the limit of small requests is needed"),
            (
                self.small_segment_bytes >= small,
                "small_segment_bytes",
                self.small_segment_bytes,
                "a small request has to fit in",
            ),
            (
                self.medium_segment_bytes >= self.small_segment_bytes,
                "medium_segment_bytes",
                self.medium_segment_bytes,
                "at least the length of a small segment is needed",
            ),
            (
                self.medium_segment_bytes <= isize::MAX as usize,
                "medium_segment_bytes",
                self.medium_segment_bytes,
                "no memory is as long",
            ),
            (self.range_bytes > 0, "range_bytes", self.range_bytes, "a range needs a length"),
        ] {
            if !holds {
                return Err(ArenaError::Option { option, value, rule });
            }
        }
        Ok(())
    }

    /// The class of a request of `len` bytes, whole granules.
    #[inline]
    pub(super) fn class_of(&self, len: usize) -> Class {
        if len <= self.small_limit_bytes {
            Class::Small
        } else if len <= self.medium_limit_bytes {
            Class::Medium
        } else {
            Class::Large
        }
    }

    /// Bytes of a new segment for a block of `len` bytes, before they are rounded to pages.
    pub(super) fn segment_bytes(&self, class: Class, len: usize) -> usize {
        match class {
            Class::Small => self.small_segment_bytes,
            Class::Medium if len < self.medium_segment_bytes / 2 => self.medium_segment_bytes,
            Class::Medium | Class::Large => len,
        }
    }
}
