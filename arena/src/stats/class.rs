//! The two classes of sizes that PyTorch's statistics tell apart.

use serde::{Deserialize, Serialize};

use super::Stat;
use crate::invariant::Violation;

/// Whether memory serves small requests or large ones.
///
/// As in PyTorch, a segment is of one class and its blocks are of the class of their segment, whatever
/// their size; so the figures of a class are what is found in its segments. Where segments are of the class
/// that they were made for:
///
/// * `pages`: ranges for requests up to its `small_limit_bytes` are small, those for others large.
/// * `torch`, `expandable`, `segments`: its two pools.
/// * `buckets`: segments for small requests are small, those for medium and large ones large.
/// * `no_split`, `simple`, `none`: pages are of the class of the first request they were mapped for. Ranges,
///   which hold pages of both classes, are large.
/// * `buddy` and `bfc` serve all sizes from the same memory: all of it is large, and so are its blocks. How
///   large requests are is told by the [size buckets](super::Stats::buckets).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SizeClass {
    /// Requests up to [`SMALL_BYTES`](Self::SMALL_BYTES), unless the policy's options have another limit.
    Small,
    /// Larger ones, or those of all sizes.
    Large,
}

impl SizeClass {
    /// The largest request, rounded up to granules, that is a small one: 1 MiB, PyTorch's boundary.
    pub const SMALL_BYTES: usize = 1 << 20;

    /// The class of a request of so many bytes.
    #[must_use]
    pub const fn of(size_bytes: usize) -> Self {
        if size_bytes <= Self::SMALL_BYTES { Self::Small } else { Self::Large }
    }
}

/// The figures of one class. Those of both classes add up to the figures of all, but for the peaks, which
/// the classes need not have had at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassStats {
    /// What callers asked for.
    pub requested: Stat,
    /// Bytes of live blocks, rounding included.
    pub allocated: Stat,
    /// Live blocks.
    pub blocks: Stat,
    /// Mapped bytes.
    pub reserved: Stat,
    /// Ranges reserved from upstream.
    pub segments: Stat,
    /// Free blocks that share a page with a live block.
    pub inactive_split_blocks: Stat,
    /// Free bytes on pages that also hold a live block.
    pub inactive_split: Stat,
}

/// Current values of one class.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClassCounts {
    pub(crate) requested: usize,
    pub(crate) allocated: usize,
    pub(crate) blocks: usize,
    pub(crate) reserved: usize,
    pub(crate) inactive_split: usize,
    pub(crate) inactive_split_blocks: usize,
}

impl ClassCounts {
    /// Adds a live block.
    pub(crate) fn add_live(&mut self, requested: usize, allocated: usize) {
        self.requested += requested;
        self.allocated += allocated;
        self.blocks += 1;
    }

    /// Adds a free block of which so many bytes share a page with a live one.
    pub(crate) fn add_split(&mut self, bytes: usize) {
        self.inactive_split += bytes;
        self.inactive_split_blocks += usize::from(bytes > 0);
    }
}

impl ClassStats {
    /// What a walk found in segments of one class, to compare with what was counted.
    pub(crate) fn check(&self, found: ClassCounts) -> Result<(), Violation> {
        let ClassCounts { requested, allocated, blocks, reserved, inactive_split, inactive_split_blocks } =
            found;
        for (what, said, found) in [
            ("requested of a class", self.requested, requested),
            ("allocated of a class", self.allocated, allocated),
            ("blocks of a class", self.blocks, blocks),
            ("reserved of a class", self.reserved, reserved),
            ("inactive split of a class", self.inactive_split, inactive_split),
            ("inactive split blocks of a class", self.inactive_split_blocks, inactive_split_blocks),
        ] {
            let right = said.current == found;
            Violation::unless(right, || format!("{what}: {}, expected {found}", said.current))?;
        }
        Ok(())
    }

    /// All of its figures.
    pub(super) fn figures_mut(&mut self) -> [&mut Stat; 7] {
        let Self { requested, allocated, blocks, reserved, segments, inactive_split_blocks, inactive_split } =
            self;
        [requested, allocated, blocks, reserved, segments, inactive_split_blocks, inactive_split]
    }
}
