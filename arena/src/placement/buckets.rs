//! Policy `buckets`: small, medium and large requests kept apart, and the memory that is unused for
//! longest given back first.
//!
//! What guides to device memory call a size-bucketed pool. Requests are *small* up to 1 MiB, *medium* up
//! to 100 MiB (256 MiB in other guides), and *large* above. Each class has *segments* of its own, runs of
//! pages that are mapped and given back as one, and serves from no other's: so a small block that lives
//! long never stands in the way of a large one. Small and medium segments are cut into blocks, best fit
//! first, and free neighbours join. A large block is a segment by itself, and never cut.
//!
//! Segments of which nothing is used are kept in the order in which they became free. When memory is
//! short they go back, the one that is free for longest first, of whatever class: this is how classes give
//! memory to each other. (Those of the request's own class first made fewer calls on recorded runs, and
//! needed more memory.)
//!
//! The guides stop there, and a run that never meets its limit then keeps a large block for each size it
//! ever had. So memory counts as short, too, when more would be mapped than blocks ever took at once, see
//! [`slack_percent`](BucketsOptions::slack_percent).

mod cutting;
mod idle;
mod options;
mod segments;
mod validate;

pub use options::BucketsOptions;

use crate::address_space::AddressSpace;
use crate::block::{BlockId, BlockState, Blocks};
use crate::error::{ArenaError, UpstreamError};
use crate::in_advance::PartInAdvance;
use crate::invariant::Violation;
use crate::placement::{LiveBlock, Placed, Placement, check_page};
use crate::range::AddressRange;
use crate::request::Request;
use crate::size_index::SizeIndex;
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;
use idle::IdleOrder;
use segments::{Refused, Segment};

/// Sizes of requests that share segments, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Small,
    Medium,
    Large,
}

impl Class {
    const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// What figures count it as.
    #[inline]
    fn counted_as(self) -> SizeClass {
        if self == Self::Small { SizeClass::Small } else { SizeClass::Large }
    }
}

/// The policy; see the module's text.
#[derive(Debug)]
pub struct Buckets {
    options: BucketsOptions,
    /// Upstream's, once it was asked for memory.
    page_bytes: usize,
    blocks: Blocks,
    segments: Vec<Option<Segment>>,
    vacant_slots: Vec<u16>,
    /// Free blocks by class.
    free: [SizeIndex; 3],
    /// Segments of which nothing is used.
    idle: IdleOrder,
    addresses: AddressSpace,
    /// The most that blocks took at once, as known when pages were last mapped. The figure in `stats` is
    /// its reader's to reset.
    most_allocated_bytes: usize,
    /// See [`Placement::keep`].
    kept_bytes: usize,
    stats: Stats,
}

impl Buckets {
    /// An empty placement.
    ///
    /// # Errors
    /// [`ArenaError::Option`] when an option has a value that cannot work.
    pub fn new(options: BucketsOptions) -> Result<Self, ArenaError> {
        options.check()?;
        Ok(Self {
            page_bytes: options.granule_bytes,
            blocks: Blocks::default(),
            segments: Vec::new(),
            vacant_slots: Vec::new(),
            free: Class::ALL.map(|_| SizeIndex::new(options.granule_bytes)),
            idle: IdleOrder::default(),
            addresses: AddressSpace::new(options.range_bytes, options.whole_ranges),
            most_allocated_bytes: 0,
            kept_bytes: 0,
            stats: Stats::default(),
            options,
        })
    }

    /// The class of a request, and the bytes of a block for it.
    #[inline]
    fn class_and_bytes(&self, request: Request) -> Result<(Class, usize), ArenaError> {
        let len = request.rounded_bytes(self.options.granule_bytes)?;
        let class = self.options.class_of(len);
        Ok((class, if class == Class::Large { self.to_pages(len, request)? } else { len }))
    }

    fn to_pages(&self, len: usize, request: Request) -> Result<usize, ArenaError> {
        let Request { size_bytes, align_bytes } = request;
        // Both are at most `isize::MAX`, so their sum does not wrap.
        let len = (len + (self.page_bytes - 1)) & !(self.page_bytes - 1);
        if isize::try_from(len).is_ok() {
            return Ok(len);
        }
        Err(ArenaError::SizeOverflow { size_bytes, align_bytes })
    }

    /// A block on new pages, in no index, which others may have to give up.
    fn take_new(
        &mut self,
        request: Request,
        class: Class,
        len: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, ArenaError> {
        check_page(self.options.granule_bytes, upstream.page_bytes())?;
        self.page_bytes = upstream.page_bytes();
        let least = self.to_pages(len, request)?;
        let mut wanted = self.to_pages(self.options.segment_bytes(class, len), request)?;
        self.keep_to_slack(len, wanted, upstream);
        loop {
            let Refused { missing_bytes, source } =
                match self.add_segment(class, wanted, request.align_bytes, upstream) {
                    Ok(id) => return Ok(id),
                    Err(refused) => refused,
                };
            // When giving up everything would not be enough, nothing is given up.
            if !self.could_map(wanted, upstream)
                || self.give_back_oldest(upstream, missing_bytes, usize::MAX) == 0
            {
                if wanted == least {
                    return Err(self.out_of_memory(request.size_bytes, source));
                }
                // A segment for this request alone is better than none.
                wanted = least;
            }
        }
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

    fn find_live(&self, addr: usize) -> Result<(BlockId, LiveBlock), ArenaError> {
        let id = self.blocks.find(addr).ok_or(ArenaError::UnknownAddress { addr })?;
        let block = self.blocks.get(id);
        let requested_bytes = block.len - block.extra as usize;
        Ok((id, LiveBlock { addr, requested_bytes, allocated_bytes: block.len }))
    }
}

impl Placement for Buckets {
    fn name(&self) -> &'static str {
        "buckets"
    }

    fn allocate(&mut self, request: Request, upstream: &mut dyn Upstream) -> Result<Placed, ArenaError> {
        let (class, len) = self.class_and_bytes(request)?;
        if let Some(id) = self.take_free(class, len, request.align_bytes) {
            return Ok(self.carve(id, request, class, len, true));
        }
        let id = self.take_new(request, class, len, upstream)?;
        Ok(self.carve(id, request, class, len, false))
    }

    fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        let (class, len) = self.class_and_bytes(request).ok()?;
        let id = self.take_free(class, len, request.align_bytes)?;
        Some(self.carve(id, request, class, len, true))
    }

    fn free(&mut self, addr: usize, upstream: &mut dyn Upstream) -> Result<LiveBlock, ArenaError> {
        let (id, ended) = self.find_live(addr)?;
        self.blocks.withdraw(id);
        let block = self.blocks.get_mut(id);
        (block.state, block.dirty) = (BlockState::Free, true);
        let (slot, range) = (block.segment, block.range());
        let class = self.segment(slot).class.counted_as();
        self.stats.count_free(class, ended.requested_bytes, ended.allocated_bytes);
        upstream.note_freed(range);
        self.coalesce(id);
        self.keep_to_cap(slot, upstream);
        Ok(ended)
    }

    fn resize_in_place(
        &mut self,
        addr: usize,
        size_bytes: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<Option<LiveBlock>, ArenaError> {
        let len = Request::new(size_bytes).rounded_bytes(self.options.granule_bytes)?;
        let (id, old) = self.find_live(addr)?;
        let class = self.segment(self.blocks.get(id).segment).class;
        // What grows out of its class has to move there.
        let fits = if class == Class::Large {
            len <= old.allocated_bytes && u32::try_from(old.allocated_bytes - size_bytes).is_ok()
        } else {
            self.options.class_of(len) <= class && self.resize(id, len)
        };
        if !fits {
            return Ok(None);
        }
        let block = self.blocks.get_mut(id);
        let allocated_bytes = block.len;
        block.extra = (allocated_bytes - size_bytes) as u32;
        let requested = (old.requested_bytes, size_bytes);
        self.stats.count_resize(class.counted_as(), requested, (old.allocated_bytes, allocated_bytes));
        if allocated_bytes < old.allocated_bytes {
            let end = addr + old.allocated_bytes;
            upstream.note_freed(AddressRange::between(addr + allocated_bytes, end));
        }
        Ok(Some(LiveBlock { addr, requested_bytes: size_bytes, allocated_bytes }))
    }

    fn trim(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize {
        let most_bytes = self.stats.reserved.current.saturating_sub(self.kept_bytes);
        let returned = self.give_back_oldest(upstream, target_bytes, most_bytes);
        self.addresses.release_unused(upstream, &mut self.stats);
        returned
    }

    fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
    }

    fn part_in_advance(&self, missing_bytes: usize) -> Option<PartInAdvance> {
        let small_bytes = self.options.small_limit_bytes;
        // No block is cut from a large one. And what does not fill half a medium segment would take a whole
        // one, which is more than is missing.
        let most_bytes = self.options.medium_limit_bytes;
        let part_bytes = missing_bytes.min(most_bytes);
        let fits = part_bytes >= self.options.medium_segment_bytes / 2;
        let part_bytes = if fits { part_bytes } else { small_bytes };
        Some(PartInAdvance { part_bytes, small_bytes, most_bytes, moves: false })
    }

    fn live_block(&self, addr: usize) -> Option<LiveBlock> {
        self.find_live(addr).ok().map(|(_, block)| block)
    }

    fn live_blocks(&self) -> Vec<LiveBlock> {
        self.blocks.live().filter_map(|id| self.live_block(self.blocks.get(id).start)).collect()
    }

    fn clean_ranges(&self, addr: usize) -> Vec<AddressRange> {
        // Known by the block: none has ended on any part of it since its segment was mapped.
        let clean = self.blocks.find(addr).map(|id| self.blocks.get(id)).filter(|block| !block.dirty);
        clean.map(|block| block.range()).into_iter().collect()
    }

    fn settle(&mut self) {}

    fn largest_free_bytes(&self) -> usize {
        self.free.iter().filter_map(SizeIndex::largest).map(|entry| entry.len).max().unwrap_or(0)
    }

    fn mapped_ranges(&self) -> Vec<AddressRange> {
        self.segments.iter().flatten().map(|segment| segment.mapped).collect()
    }

    fn mapped_by_class(&self) -> Vec<(AddressRange, SizeClass)> {
        let segments = self.segments.iter().flatten();
        segments.map(|segment| (segment.mapped, segment.class.counted_as())).collect()
    }

    fn class_of_block(&self, addr: usize) -> SizeClass {
        let segment = self.blocks.find(addr).map(|id| self.segment(self.blocks.get(id).segment));
        segment.map_or(SizeClass::Large, |segment| segment.class.counted_as())
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
