//! How blocks are placed: one trait, one file for each policy.

pub(crate) mod bfc;
pub(crate) mod buckets;
pub(crate) mod buddy;
pub(crate) mod pages;
pub(crate) mod torch;
pub(crate) mod whole;

use std::fmt;

use crate::error::ArenaError;
use crate::in_advance::PartInAdvance;
use crate::invariant::Violation;
use crate::range::AddressRange;
use crate::request::Request;
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;

/// A policy that cuts the ranges of an [`Upstream`] into blocks.
///
/// Every method that can fail leaves all live blocks as they were and the placement usable.
/// A placement must always be given the same upstream.
pub trait Placement: Send + fmt::Debug {
    /// The policy's name, as options spell it.
    fn name(&self) -> &'static str;

    /// Places a block.
    ///
    /// # Errors
    /// [`ArenaError::OutOfMemory`] when neither free memory nor upstream can serve it,
    /// [`ArenaError::SizeOverflow`] and [`ArenaError::Alignment`] for requests no memory
    /// could serve.
    fn allocate(&mut self, request: Request, upstream: &mut dyn Upstream) -> Result<Placed, ArenaError>;

    /// Places a block on memory that is mapped already; `None`, and nothing is changed or counted,
    /// when there is none for it, also for requests no memory could serve.
    fn allocate_mapped(&mut self, request: Request) -> Option<Placed>;

    /// Ends the block that starts at `addr` and returns what it was.
    ///
    /// # Errors
    /// [`ArenaError::UnknownAddress`] when no live block starts there.
    fn free(&mut self, addr: usize, upstream: &mut dyn Upstream) -> Result<LiveBlock, ArenaError>;

    /// Makes the block at `addr` hold `size_bytes` without moving it: takes what is missing
    /// from the free block behind it, or frees its end. `None` when that is not possible; then
    /// the block is unchanged.
    ///
    /// # Errors
    /// [`ArenaError::UnknownAddress`], [`ArenaError::SizeOverflow`].
    fn resize_in_place(
        &mut self,
        addr: usize,
        size_bytes: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<Option<LiveBlock>, ArenaError>;

    /// Gives free pages back to upstream until `target_bytes` are returned or none is left that
    /// [`keep`](Self::keep) lets go, and returns how many bytes it were. Pages that upstream refuses to take
    /// stay mapped and counted.
    fn trim(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize;

    /// Sets how many mapped bytes stay: neither [`trim`](Self::trim) nor the policy of its own accord goes
    /// below. Only to place a block where a limit or upstream refuses more are fewer mapped for a while. 0
    /// at first. A policy that cannot take memory in advance keeps nothing.
    fn keep(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// How `missing_bytes` of memory are best taken in advance; `None` for a policy whose memory
    /// serves only the sizes that it was taken for.
    fn part_in_advance(&self, missing_bytes: usize) -> Option<PartInAdvance> {
        let _ = missing_bytes;
        None
    }

    /// Gives everything back: pages and reserved ranges.
    ///
    /// # Errors
    /// [`ArenaError::StillLive`] when there are live blocks; nothing is released then.
    /// [`ArenaError::Upstream`] when upstream refused; the rest can be tried again.
    fn release_all(&mut self, upstream: &mut dyn Upstream) -> Result<(), ArenaError> {
        let (live_blocks, allocated_bytes) = (self.stats().blocks.current, self.stats().allocated.current);
        if live_blocks > 0 {
            return Err(ArenaError::StillLive { live_blocks, allocated_bytes });
        }
        self.keep(0);
        self.trim(upstream, usize::MAX);
        if self.stats().segments.current > 0 {
            return Err(ArenaError::NotReleased { reserved_bytes: self.stats().reserved.current });
        }
        Ok(())
    }

    /// The live block that starts at `addr`.
    fn live_block(&self, addr: usize) -> Option<LiveBlock>;

    /// All live blocks, in no order. Walks everything.
    fn live_blocks(&self) -> Vec<LiveBlock>;

    /// Parts of the live block at `addr` that read as zero, if its owner has written nothing
    /// yet: whole or partial pages on which no block has ended since they were mapped. In
    /// order of address; empty for an unknown address.
    fn clean_ranges(&self, addr: usize) -> Vec<AddressRange>;

    /// Joins free blocks that were set aside for quick reuse with their neighbours, so that
    /// figures and largest blocks are those of a placement at rest.
    fn settle(&mut self);

    /// The largest free block whose memory is mapped. Of free blocks that are mapped in part only
    /// the largest counts, with its mapped pages; so the answer needs no walk.
    fn largest_free_bytes(&self) -> usize;

    /// Whether memory is mapped and unmapped page by page, so that free pages of a segment can go back and serve elsewhere.
    /// Otherwise segments are had and given back whole.
    fn maps_pages(&self) -> bool {
        false
    }

    /// Mapped ranges of whole pages, in no order, each in one segment. For tests and snapshots; walks all segments.
    fn mapped_ranges(&self) -> Vec<AddressRange>;

    /// [`mapped_ranges`](Self::mapped_ranges), each with the class of its segment.
    fn mapped_by_class(&self) -> Vec<(AddressRange, SizeClass)> {
        self.mapped_ranges().into_iter().map(|range| (range, SizeClass::Large)).collect()
    }

    /// The class of the segment that the live block at `addr` lies in.
    fn class_of_block(&self, addr: usize) -> SizeClass {
        let _ = addr;
        SizeClass::Large
    }

    /// The figures kept on the way.
    fn stats(&self) -> &Stats;

    /// The figures, to reset peaks.
    fn stats_mut(&mut self) -> &mut Stats;

    /// Walks everything and checks every invariant.
    ///
    /// # Errors
    /// The first rule that does not hold.
    fn validate(&self) -> Result<(), Violation>;
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveBlock {
    /// Its first address.
    pub addr: usize,
    /// Bytes the caller asked for.
    pub requested_bytes: usize,
    /// Bytes it takes.
    pub allocated_bytes: usize,
}

/// A block that was just placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its first address.
    pub addr: usize,
    /// Bytes it takes.
    pub allocated_bytes: usize,
    /// Whether it was served from memory that was mapped already.
    pub hit: bool,
}

/// Length of a virtual range unless another is set: 4 GiB, where there are so many addresses.
pub(crate) const DEFAULT_RANGE_BYTES: usize = 1 << (if usize::BITS == 64 { 32 } else { 26 });

/// Rejects a granule that is larger than a page: blocks would not tile their ranges.
pub(crate) fn check_page(granule_bytes: usize, page_bytes: usize) -> Result<(), ArenaError> {
    if granule_bytes <= page_bytes {
        return Ok(());
    }
    Err(ArenaError::Option {
        option: "granule_bytes",
        value: granule_bytes,
        rule: "upstream's pages are smaller than that",
    })
}

/// Rejects options that no policy can work with.
pub(crate) fn check_granule(granule_bytes: usize) -> Result<(), ArenaError> {
    if granule_bytes.is_power_of_two() && granule_bytes <= 1 << 20 {
        return Ok(());
    }
    Err(ArenaError::Option {
        option: "granule_bytes",
        value: granule_bytes,
        rule: "a power of two of at most 1 MiB is needed",
    })
}
