//! Policy `bfc`: how TensorFlow's allocator places blocks (best fit with coalescing).
//!
//! For comparison, and for those who want what they know. Requests are rounded to 256 bytes and cut
//! from *regions* that upstream maps whole. The best fit is the smallest free block, the lowest
//! address among equals; TensorFlow searches 21 bins for it in order, a [`SizeIndex`] gives the same
//! answer. A block is cut only when the rest is as large as the request, or larger than may be
//! wasted. A freed block joins its free neighbours in the region.
//!
//! Each region is at least twice as long as the one before, and is asked for again, a tenth shorter,
//! when upstream refuses it ([`growth`]). Without growth the first region is all there is. Regions of
//! which nothing is used go back when memory is short, or on request.
//!
//! What differs: lengths of regions are rounded to upstream's pages, requests of zero bytes get a
//! block, and regions that happen to touch stay two, as on TensorFlow's GPUs.

mod growth;
mod options;
mod validate;

pub use options::BfcOptions;

use crate::block::{Block, BlockId, BlockState, Blocks};
use crate::error::{ArenaError, UpstreamError};
use crate::in_advance::PartInAdvance;
use crate::invariant::Violation;
use crate::placement::{LiveBlock, Placed, Placement};
use crate::range::AddressRange;
use crate::request::Request;
use crate::size_index::SizeIndex;
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;

/// A range from upstream.
#[derive(Debug)]
struct Region {
    reserved: AddressRange,
    /// What of it is mapped, which its blocks cover: all, unless upstream mapped or took back a part.
    mapped: AddressRange,
    /// [`BlockId::NONE`] when nothing is mapped.
    first_block: BlockId,
    /// No block that ended since the region was mapped reached beyond this address.
    clean_from: usize,
}

/// The policy; see the module's text.
#[derive(Debug)]
pub struct Bfc {
    options: BfcOptions,
    blocks: Blocks,
    regions: Vec<Option<Region>>,
    unused_regions: Vec<u16>,
    /// Regions of which nothing is mapped: they wait for another try to map, or to be given back.
    empty_regions: Vec<u16>,
    free: SizeIndex,
    /// Length of the next region, if the request that needs it is not longer. `None` before the first.
    next_region_bytes: Option<usize>,
    /// See [`Placement::keep`].
    kept_bytes: usize,
    stats: Stats,
}

impl Bfc {
    /// An empty placement.
    ///
    /// # Errors
    /// [`ArenaError::Option`] when an option has a value that cannot work.
    pub fn new(options: BfcOptions) -> Result<Self, ArenaError> {
        options.check()?;
        Ok(Self {
            blocks: Blocks::default(),
            regions: Vec::new(),
            unused_regions: Vec::new(),
            empty_regions: Vec::new(),
            free: SizeIndex::new(options.granule_bytes),
            next_region_bytes: None,
            kept_bytes: 0,
            stats: Stats::default(),
            options,
        })
    }

    fn region(&self, slot: u16) -> &Region {
        self.regions[slot as usize].as_ref().expect("a block's region exists")
    }

    fn region_mut(&mut self, slot: u16) -> &mut Region {
        self.regions[slot as usize].as_mut().expect("a block's region exists")
    }

    #[inline]
    fn insert_free(&mut self, id: BlockId) {
        let block = *self.blocks.get(id);
        if is_whole_region(&block) {
            self.stats.releasable_bytes += block.len;
        } else {
            self.stats.count_split(SizeClass::Large, block.len);
        }
        self.free.insert(block.len, block.start, id);
    }

    #[inline]
    fn remove_free(&mut self, id: BlockId) {
        let block = *self.blocks.get(id);
        if is_whole_region(&block) {
            self.stats.releasable_bytes -= block.len;
        } else {
            self.stats.count_split_end(SizeClass::Large, block.len);
        }
        let found = self.free.remove(block.len, block.start);
        debug_assert_eq!(found, id);
    }

    /// The free block for a request, taken out of the index.
    #[inline]
    fn take_free(&mut self, len: usize, align: usize) -> Option<BlockId> {
        let id = if align <= self.options.granule_bytes {
            self.free.best_fit(len)?.id
        } else {
            // Rare, and TensorFlow's rule: what an alignment skips depends on each block's address.
            self.free.iter_from(len).find(|entry| skipped_bytes(entry.start, align) + len <= entry.len)?.id
        };
        self.remove_free(id);
        Some(id)
    }

    /// Whether a block of `block_len` bytes is cut when `len` bytes of it are needed.
    #[inline]
    fn is_cut(&self, block_len: usize, len: usize) -> bool {
        block_len - len >= len.min(self.options.max_internal_fragmentation_bytes)
    }

    /// Makes a free block that is in no index live, without what it need not hold.
    #[inline]
    fn carve(&mut self, id: BlockId, request: Request, len: usize, hit: bool) -> Placed {
        let mut id = id;
        let skipped = skipped_bytes(self.blocks.get(id).start, request.align_bytes);
        if skipped > 0 {
            let head = id;
            id = self.blocks.split(head, skipped);
            self.insert_free(head);
        }
        if self.is_cut(self.blocks.get(id).len, len) {
            let tail = self.blocks.split(id, len);
            self.insert_free(tail);
        }
        let block = self.blocks.get_mut(id);
        block.state = BlockState::Live;
        block.extra = unused_bytes(block.len, request.size_bytes);
        let placed = Placed { addr: block.start, allocated_bytes: block.len, hit };
        self.blocks.publish(id);
        self.stats.count_allocation(SizeClass::Large, request.size_bytes, placed.allocated_bytes, hit);
        placed
    }

    /// Notes that the owner of memory up to `end` gave it up, perhaps written to.
    #[inline]
    fn note_used(&mut self, slot: u16, end: usize) {
        let region = self.region_mut(slot);
        region.clean_from = region.clean_from.max(end);
    }

    #[inline]
    fn is_free(&self, id: BlockId) -> bool {
        !id.is_none() && self.blocks.get(id).state == BlockState::Free
    }

    /// Joins a free block that is in no index with its free neighbours, and indexes the result.
    #[inline]
    fn coalesce(&mut self, mut id: BlockId) {
        let Block { prev, next, .. } = *self.blocks.get(id);
        if self.is_free(next) {
            self.remove_free(next);
            self.blocks.absorb_next(id);
        }
        if self.is_free(prev) {
            self.remove_free(prev);
            self.blocks.absorb_next(prev);
            id = prev;
        }
        self.insert_free(id);
    }

    fn out_of_memory(&mut self, requested_bytes: usize, source: Option<UpstreamError>) -> ArenaError {
        self.stats.failures += 1;
        ArenaError::OutOfMemory {
            requested_bytes,
            allocated_bytes: self.stats.allocated.current,
            reserved_bytes: self.stats.reserved.current,
            limit_bytes: self.options.limit_bytes,
            largest_free_bytes: self.largest_free_bytes(),
            inactive_split_bytes: self.stats.inactive_split.current,
            source,
        }
    }
}

/// Bytes from `start` to the next multiple of `align`, a power of two.
#[inline]
fn skipped_bytes(start: usize, align: usize) -> usize {
    start.wrapping_neg() & (align - 1)
}

/// Whether a block is all that is mapped of its region.
#[inline]
fn is_whole_region(block: &Block) -> bool {
    block.prev.is_none() && block.next.is_none()
}

/// Bytes of a live block that nobody asked for, as it notes them.
#[inline]
fn unused_bytes(block_len: usize, requested: usize) -> u32 {
    // Less than the granule and what may be wasted together, which the options keep far below 4 GiB.
    u32::try_from(block_len - requested).expect("a block that wastes more is cut")
}

impl Placement for Bfc {
    fn name(&self) -> &'static str {
        "bfc"
    }

    fn allocate(&mut self, request: Request, upstream: &mut dyn Upstream) -> Result<Placed, ArenaError> {
        let len = request.rounded_bytes(self.options.granule_bytes)?;
        match self.take_free(len, request.align_bytes) {
            Some(id) => Ok(self.carve(id, request, len, true)),
            None => {
                let id = self.grow_for(request, len, upstream)?;
                Ok(self.carve(id, request, len, false))
            }
        }
    }

    fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        let len = request.rounded_bytes(self.options.granule_bytes).ok()?;
        let id = self.take_free(len, request.align_bytes)?;
        Some(self.carve(id, request, len, true))
    }

    fn free(&mut self, addr: usize, upstream: &mut dyn Upstream) -> Result<LiveBlock, ArenaError> {
        let id = self.blocks.find(addr).ok_or(ArenaError::UnknownAddress { addr })?;
        let block = *self.blocks.get(id);
        self.blocks.withdraw(id);
        self.blocks.get_mut(id).state = BlockState::Free;
        let ended = live(&block);
        self.stats.count_free(SizeClass::Large, ended.requested_bytes, ended.allocated_bytes);
        self.note_used(block.segment, block.end());
        upstream.note_freed(block.range());
        self.coalesce(id);
        Ok(ended)
    }

    fn resize_in_place(
        &mut self,
        addr: usize,
        size_bytes: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<Option<LiveBlock>, ArenaError> {
        let len = Request::new(size_bytes).rounded_bytes(self.options.granule_bytes)?;
        let id = self.blocks.find(addr).ok_or(ArenaError::UnknownAddress { addr })?;
        let old = *self.blocks.get(id);
        if len > old.len {
            if !self.is_free(old.next) || self.blocks.get(old.next).len < len - old.len {
                return Ok(None);
            }
            self.remove_free(old.next);
            self.blocks.absorb_next(id);
        }
        let whole = self.blocks.get(id).len;
        if self.is_cut(whole, len) {
            let tail = self.blocks.split(id, len);
            if len < old.len {
                self.note_used(old.segment, old.end());
                upstream.note_freed(AddressRange::between(addr + len, old.end()));
            }
            self.coalesce(tail);
        }
        let block = self.blocks.get_mut(id);
        block.extra = unused_bytes(block.len, size_bytes);
        let (before, now) = (live(&old), live(block));
        self.stats.count_resize(
            SizeClass::Large,
            (before.requested_bytes, now.requested_bytes),
            (before.allocated_bytes, now.allocated_bytes),
        );
        Ok(Some(now))
    }

    fn trim(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize {
        self.release_empty_regions(upstream);
        let most_bytes = self.stats.reserved.current.saturating_sub(self.kept_bytes);
        self.release_free_regions(upstream, target_bytes, most_bytes)
    }

    fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
    }

    fn part_in_advance(&self, missing_bytes: usize) -> Option<PartInAdvance> {
        let (part_bytes, most_bytes) = (missing_bytes, usize::MAX);
        Some(PartInAdvance { part_bytes, small_bytes: 0, most_bytes, moves: false })
    }

    fn live_block(&self, addr: usize) -> Option<LiveBlock> {
        self.blocks.find(addr).map(|id| live(self.blocks.get(id)))
    }

    fn live_blocks(&self) -> Vec<LiveBlock> {
        self.blocks.live().map(|id| live(self.blocks.get(id))).collect()
    }

    fn clean_ranges(&self, addr: usize) -> Vec<AddressRange> {
        let Some(id) = self.blocks.find(addr) else { return Vec::new() };
        let block = self.blocks.get(id);
        let clean_from = self.region(block.segment).clean_from.max(block.start);
        let clean = AddressRange::between(clean_from, block.end());
        if clean.is_empty() { Vec::new() } else { vec![clean] }
    }

    fn settle(&mut self) {}

    fn largest_free_bytes(&self) -> usize {
        self.free.largest().map_or(0, |entry| entry.len)
    }

    fn mapped_ranges(&self) -> Vec<AddressRange> {
        let mapped = self.regions.iter().flatten().map(|region| region.mapped);
        mapped.filter(|range| !range.is_empty()).collect()
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    fn validate(&self) -> Result<(), Violation> {
        self.check_all()
    }
}

/// What callers see of a live block.
#[inline]
fn live(block: &Block) -> LiveBlock {
    LiveBlock {
        addr: block.start,
        requested_bytes: block.len - block.extra as usize,
        allocated_bytes: block.len,
    }
}
