//! Policy `torch`: how PyTorch's caching allocator places blocks on a CUDA device.
//!
//! For comparison, and for those who want what they know. Requests are rounded to 512 bytes; those
//! up to 1 MiB are cut from segments of 2 MiB, larger ones from segments of 20 MiB or of their own
//! size. The best fit is the smallest free block, the lowest address among equals. A free block
//! joins its free neighbours in the segment, and a segment goes back when nothing of it is used and
//! memory is short, or on request.
//!
//! With expandable segments there is one segment for small and one for large requests, whose pages
//! (2 MiB, 20 MiB) are mapped at its end, or where they were unmapped before.

mod expandable;
mod options;
mod validate;

use std::collections::{BTreeSet, HashMap};

pub use options::TorchOptions;

use crate::block::{Block, BlockId, BlockState, Blocks};
use crate::error::{ArenaError, MapError, UpstreamError};
use crate::in_advance::PartInAdvance;
use crate::invariant::Violation;
use crate::placement::{LiveBlock, Placed, Placement, check_page};
use crate::range::AddressRange;
use crate::request::Request;
use crate::size_index::{FreeEntry, SizeIndex};
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;

/// Sizes are rounded to this, and blocks aligned to it.
const GRANULE_BYTES: usize = 512;
/// What a block that must not be split may leave unused.
const UNSPLIT_WASTE_BYTES: usize = 20 << 20;

const SMALL: usize = 0;
const LARGE: usize = 1;

/// A range from upstream, mapped whole unless it is expandable.
#[derive(Debug)]
struct Segment {
    range: AddressRange,
    pool: usize,
    first_block: BlockId,
    /// Bytes of its pages, which are mapped one by one.
    page_bytes: Option<usize>,
}

/// The policy; see the module's text.
#[derive(Debug)]
pub struct Torch {
    options: TorchOptions,
    blocks: Blocks,
    segments: Vec<Option<Segment>>,
    unused_segments: Vec<u16>,
    /// Segments that lost their memory and whose ranges upstream did not take back.
    without_memory: Vec<u16>,
    /// Free blocks of small and of large segments.
    free: [SizeIndex; 2],
    /// Parts of expandable segments that are not mapped, by address.
    unmapped: [BTreeSet<(usize, u32)>; 2],
    searches: u64,
    /// How many searches there had been when a block that is a whole large segment became free.
    free_since: HashMap<u32, u64>,
    /// See [`Placement::keep`].
    kept_bytes: usize,
    stats: Stats,
}

impl Torch {
    /// An empty placement.
    ///
    /// # Errors
    /// [`ArenaError::Option`] when an option has a value that cannot work.
    pub fn new(options: TorchOptions) -> Result<Self, ArenaError> {
        options.check()?;
        let max_split_bytes = options.max_split_bytes;
        Ok(Self {
            options,
            blocks: Blocks::default(),
            segments: Vec::new(),
            unused_segments: Vec::new(),
            without_memory: Vec::new(),
            free: [SizeIndex::new(GRANULE_BYTES), SizeIndex::new(GRANULE_BYTES)],
            unmapped: [BTreeSet::new(), BTreeSet::new()],
            searches: 0,
            free_since: HashMap::new(),
            kept_bytes: 0,
            stats: Stats { max_split_bytes, ..Stats::default() },
        })
    }

    fn pool_of(&self, len: usize) -> usize {
        if len <= self.options.small_bytes { SMALL } else { LARGE }
    }

    fn segment_of(&self, id: BlockId) -> &Segment {
        self.segments[self.blocks.get(id).segment as usize].as_ref().expect("a block's segment exists")
    }

    /// Whether a block is all that is mapped of its segment.
    fn is_whole_segment(&self, id: BlockId) -> bool {
        let block = self.blocks.get(id);
        let nothing = |id: BlockId| id.is_none() || self.blocks.get(id).state == BlockState::Unmapped;
        nothing(block.prev) && nothing(block.next)
    }

    /// Bytes of a free block that could be given back, and bytes that cannot while its neighbours live.
    fn free_parts(&self, id: BlockId) -> (usize, usize) {
        let range = self.blocks.get(id).range();
        let segment = self.segment_of(id);
        let releasable = match segment.page_bytes {
            // Most blocks are shorter than a page, and dividing takes longest here.
            Some(page) if range.len < page => 0,
            Some(page) => whole_pages(range, segment.range.start, page).len,
            None if self.is_whole_segment(id) => range.len,
            None => 0,
        };
        (releasable, range.len - releasable)
    }

    fn insert_free(&mut self, id: BlockId) {
        let (releasable, split) = self.free_parts(id);
        self.stats.releasable_bytes += releasable;
        let block = *self.blocks.get(id);
        let pool = self.segment_of(id).pool;
        self.stats.count_split(class_of(pool), split);
        self.free[pool].insert(block.len, block.start, id);
        // As in PyTorch, what lies in expandable segments is not collected.
        if self.options.garbage_collection_threshold.is_some()
            && pool == LARGE
            && self.segment_of(id).page_bytes.is_none()
            && self.is_whole_segment(id)
        {
            self.free_since.insert(id.number(), self.searches);
        }
    }

    fn remove_free(&mut self, id: BlockId) {
        let (releasable, split) = self.free_parts(id);
        self.stats.releasable_bytes -= releasable;
        let block = *self.blocks.get(id);
        let pool = self.segment_of(id).pool;
        self.stats.count_split_end(class_of(pool), split);
        let found = self.free[pool].remove(block.len, block.start);
        debug_assert_eq!(found, id);
        if !self.free_since.is_empty() {
            self.free_since.remove(&id.number());
        }
    }

    /// The free block for a request of `len` bytes, taken out of the index.
    fn take_free(&mut self, pool: usize, len: usize) -> Option<BlockId> {
        self.searches += 1;
        let entry = self.best_fit(pool, len)?;
        let max_split = self.options.max_split_bytes.unwrap_or(usize::MAX);
        // A block too large to be split is for requests that are as large.
        if (len < max_split && entry.len >= max_split)
            || (len >= max_split && entry.len >= len.saturating_add(UNSPLIT_WASTE_BYTES))
        {
            return None;
        }
        self.remove_free(entry.id);
        Some(entry.id)
    }

    fn best_fit(&mut self, pool: usize, len: usize) -> Option<FreeEntry> {
        let entry = self.free[pool].best_fit(len)?;
        if self.segment_of(entry.id).page_bytes.is_none() {
            Some(entry)
        } else {
            self.fit_expandable(pool, entry)
        }
    }

    fn describe(&self, id: BlockId) -> LiveBlock {
        let block = self.blocks.get(id);
        LiveBlock {
            addr: block.start,
            requested_bytes: block.len - block.extra as usize,
            allocated_bytes: block.len,
        }
    }

    /// Makes the front of a free block that is in no index live.
    fn carve(&mut self, id: BlockId, request: Request, len: usize, hit: bool) -> Placed {
        let start = self.blocks.get(id).start.next_multiple_of(request.align_bytes);
        let mut id = id;
        if start > self.blocks.get(id).start {
            let head = id;
            id = self.blocks.split(head, start - self.blocks.get(head).start);
            self.insert_free(head);
        }
        let rest = self.blocks.get(id).len - len;
        let segment = self.segment_of(id);
        let max_split = self.options.max_split_bytes.unwrap_or(usize::MAX);
        let splits = if segment.pool == SMALL || segment.page_bytes.is_some() {
            rest >= GRANULE_BYTES
        } else {
            len < max_split && rest > self.options.small_bytes
        };
        if splits {
            let tail = self.blocks.split(id, len);
            self.insert_free(tail);
        }
        let block = self.blocks.get_mut(id);
        let (addr, allocated_bytes) = (block.start, block.len);
        block.state = BlockState::Live;
        // At most a segment's tail of 1 MiB, or what a block that is not split may leave unused.
        block.extra = u32::try_from(allocated_bytes - request.size_bytes).unwrap_or(u32::MAX);
        self.blocks.publish(id);
        let class = class_of(self.segment_of(id).pool);
        self.stats.count_allocation(class, request.size_bytes, allocated_bytes, hit);
        if allocated_bytes >= max_split {
            self.stats.oversize_blocks.increase(1);
        }
        Placed { addr, allocated_bytes, hit }
    }

    /// Whether so many more bytes may be had, or how many are too much.
    fn admit(&self, bytes: usize) -> Result<(), usize> {
        let limit = self.options.limit_bytes.unwrap_or(usize::MAX);
        let over = self.stats.reserved.current.saturating_add(bytes).saturating_sub(limit);
        if over > 0 { Err(over) } else { Ok(()) }
    }

    /// A new segment for a request of `len` bytes, as one block in no index. Or how many bytes are
    /// missing, and why.
    fn add_segment(
        &mut self,
        pool: usize,
        len: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, (usize, Option<UpstreamError>)> {
        let TorchOptions { small_bytes, small_segment_bytes, large_segment_bytes, .. } = self.options;
        let wanted = if len <= small_bytes {
            small_segment_bytes
        } else if len < large_segment_bytes / 2 {
            large_segment_bytes
        } else {
            len.next_multiple_of(small_segment_bytes)
        };
        let wanted = wanted.next_multiple_of(upstream.page_bytes());
        self.admit(wanted).map_err(|over| (over, None))?;
        let failed = |source| (wanted, Some(source));
        let id = match self.take_without_memory(pool, wanted) {
            Some(id) => id,
            None => {
                let range = upstream.reserve(wanted).map_err(failed)?;
                self.insert_segment(pool, range, None).map_err(failed)?
            }
        };
        let range = self.blocks.get(id).range();
        self.stats.map_calls += 1;
        if let Err(MapError { completed_bytes, source }) = upstream.map(range) {
            self.undo_segment(id, completed_bytes, upstream);
            return Err(failed(source));
        }
        self.blocks.get_mut(id).state = BlockState::Free;
        self.stats.count_mapped(class_of(pool), range.len);
        Ok(id)
    }

    /// The one block of a segment of this length that has no memory.
    fn take_without_memory(&mut self, pool: usize, len: usize) -> Option<BlockId> {
        let fits = |slot: &u16| {
            let segment = self.segments[*slot as usize].as_ref().expect("it was not given back");
            segment.pool == pool && segment.range.len == len
        };
        let at = self.without_memory.iter().position(fits)?;
        let slot = self.without_memory.swap_remove(at);
        Some(self.segments[slot as usize].as_ref().expect("found above").first_block)
    }

    /// Gives back what was mapped, from its start, of a new segment. What upstream does not take stays,
    /// as a shorter segment.
    fn undo_segment(&mut self, id: BlockId, mapped_bytes: usize, upstream: &mut dyn Upstream) {
        let slot = self.blocks.get(id).segment as usize;
        self.blocks.get_mut(id).state = BlockState::Unmapped;
        if mapped_bytes == 0 {
            self.release_range(slot, upstream);
            return;
        }
        let tail = self.blocks.split(id, mapped_bytes);
        self.blocks.get_mut(tail).state = BlockState::Unmapped;
        self.blocks.get_mut(id).state = BlockState::Free;
        self.stats.count_mapped(class_of(self.segment_of(id).pool), mapped_bytes);
        self.insert_free(id);
        self.release_segment(id, upstream);
    }

    fn insert_segment(
        &mut self,
        pool: usize,
        range: AddressRange,
        page_bytes: Option<usize>,
    ) -> Result<BlockId, UpstreamError> {
        let full = UpstreamError::AddressSpace { requested_bytes: range.len };
        let slot = match self.unused_segments.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.segments.len()).map_err(|_| full)?;
                self.segments.push(None);
                slot
            }
        };
        let id = self.blocks.insert(Block {
            start: range.start,
            len: range.len,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            extra: 0,
            segment: slot,
            state: BlockState::Free,
            dirty: false,
        });
        self.segments[slot as usize] = Some(Segment { range, pool, first_block: id, page_bytes });
        self.count_segment(pool, range.len, page_bytes, true);
        Ok(id)
    }

    /// Gives a segment back of which nothing is used, and returns its bytes; 0 when upstream refuses.
    fn release_segment(&mut self, id: BlockId, upstream: &mut dyn Upstream) -> usize {
        let range = self.blocks.get(id).range();
        self.stats.unmap_calls += 1;
        let done = match upstream.unmap(range) {
            Ok(()) => range.len,
            Err(MapError { completed_bytes, .. }) => completed_bytes,
        };
        if done == 0 {
            return 0;
        }
        self.remove_free(id);
        if done < range.len {
            // What upstream did not take serves on, as a shorter segment.
            let tail = self.blocks.split(id, done);
            self.blocks.get_mut(id).state = BlockState::Unmapped;
            self.insert_free(tail);
        }
        self.stats.count_unmapped(class_of(self.segment_of(id).pool), done);
        let block = self.blocks.get_mut(id);
        block.state = BlockState::Unmapped;
        let Block { prev, next, segment, .. } = *block;
        let unmapped =
            |this: &Self, id: BlockId| !id.is_none() && this.blocks.get(id).state == BlockState::Unmapped;
        if unmapped(self, next) {
            self.blocks.absorb_next(id);
        }
        if unmapped(self, prev) {
            self.blocks.absorb_next(prev);
        }
        self.release_range(segment as usize, upstream);
        done
    }

    /// Gives a segment's range back if nothing of it is mapped. A range that upstream refuses stays
    /// until the next try.
    fn release_range(&mut self, slot: usize, upstream: &mut dyn Upstream) {
        let Some(segment) = &self.segments[slot] else { return };
        let (id, range, pool, pages) = (segment.first_block, segment.range, segment.pool, segment.page_bytes);
        let block = self.blocks.get(id);
        if block.state != BlockState::Unmapped || block.len != range.len {
            return;
        }
        self.without_memory.retain(|&other| other as usize != slot);
        if upstream.release(range).is_err() {
            if pages.is_none() {
                self.without_memory.push(slot as u16);
            }
            return;
        }
        if pages.is_some() {
            self.unmapped[pool].remove(&(range.start, id.number()));
        }
        self.blocks.remove(id);
        self.segments[slot] = None;
        self.unused_segments.push(slot as u16);
        self.count_segment(pool, range.len, pages, false);
    }

    /// Counts a segment that begins or ends. As in PyTorch, one that expands is never oversize.
    fn count_segment(&mut self, pool: usize, len: usize, page_bytes: Option<usize>, begins: bool) {
        let max_split = self.options.max_split_bytes.unwrap_or(usize::MAX);
        let oversize = usize::from(len >= max_split && page_bytes.is_none());
        if begins {
            self.stats.count_segment(class_of(pool));
            self.stats.oversize_segments.increase(oversize);
        } else {
            self.stats.count_segment_end(class_of(pool));
            self.stats.oversize_segments.decrease(oversize);
        }
    }

    /// Free blocks that are whole segments, small ones last.
    fn whole_segments(&self) -> Vec<BlockId> {
        let free = self.free.iter().rev().flat_map(SizeIndex::iter).map(|entry| entry.id);
        free.filter(|&id| self.segment_of(id).page_bytes.is_none() && self.is_whole_segment(id)).collect()
    }

    /// Gives free segments and free pages back until `target_bytes` are returned, and no more than
    /// `most_bytes`.
    fn release_cached(
        &mut self,
        upstream: &mut dyn Upstream,
        target_bytes: usize,
        most_bytes: usize,
    ) -> usize {
        let mut returned = 0;
        for id in self.whole_segments() {
            if returned >= target_bytes {
                return returned;
            }
            if self.blocks.get(id).len <= most_bytes - returned {
                returned += self.release_segment(id, upstream);
            }
        }
        let target_bytes = target_bytes - returned.min(target_bytes);
        returned + self.unmap_expandable(upstream, target_bytes, most_bytes - returned)
    }

    /// Gives back what is too large to be split: one block that is as large as the request, else
    /// the largest ones first.
    fn release_oversize(&mut self, len: usize, upstream: &mut dyn Upstream) -> bool {
        let Some(max_split) = self.options.max_split_bytes else { return false };
        let wanted = len.max(max_split);
        let oversize: Vec<BlockId> = self.whole_segments();
        let size = |id: &BlockId| self.blocks.get(*id).len;
        if let Some(&id) = oversize.iter().filter(|id| size(id) >= wanted).min_by_key(|id| size(id)) {
            return self.release_segment(id, upstream) > 0;
        }
        let mut by_size: Vec<(usize, BlockId)> = oversize.iter().map(|id| (size(id), *id)).collect();
        by_size.sort_by_key(|&(size, _)| std::cmp::Reverse(size));
        let mut released = 0;
        for (_, id) in by_size.into_iter().take_while(|&(size, _)| size >= max_split) {
            if released >= wanted {
                break;
            }
            released += self.release_segment(id, upstream);
        }
        released >= wanted
    }

    /// Gives back large segments that were free for long, while more than the threshold is held.
    fn collect_garbage(&mut self, upstream: &mut dyn Upstream) {
        let Some(share) = self.options.garbage_collection_threshold else { return };
        let capacity = self.options.limit_bytes.unwrap_or(usize::MAX).min(upstream.capacity_bytes());
        let most = (capacity as f64 * share) as usize;
        let mut over = self.stats.reserved.current.saturating_sub(most);
        let mut freed_one = true;
        while over > 0 && freed_one && !self.free_since.is_empty() {
            let ages: Vec<(u64, u32)> =
                self.free_since.iter().map(|(&id, &since)| (self.searches - since, id)).collect();
            let mean = ages.iter().map(|&(age, _)| age as f64).sum::<f64>() / ages.len() as f64;
            freed_one = false;
            for (age, id) in ages {
                let id = BlockId::from_number(id);
                let spare = self.stats.reserved.current.saturating_sub(self.kept_bytes);
                if over > 0 && age as f64 >= mean && self.blocks.get(id).len <= spare {
                    let released = self.release_segment(id, upstream);
                    freed_one |= released > 0;
                    over = over.saturating_sub(released);
                }
            }
        }
    }

    fn allocate_new(
        &mut self,
        request: Request,
        len: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<Placed, ArenaError> {
        check_page(GRANULE_BYTES, upstream.page_bytes())?;
        let needed = padded(len, request.align_bytes);
        let pool = self.pool_of(needed);
        self.collect_garbage(upstream);
        let take = |this: &mut Self, upstream: &mut dyn Upstream| {
            if this.options.expandable_segments {
                this.expand(pool, needed, upstream)
            } else {
                this.add_segment(pool, needed, upstream)
            }
        };
        let mut got = take(self, upstream);
        if got.is_err() && self.release_oversize(needed, upstream) {
            got = take(self, upstream);
        }
        // Memory in advance is one long segment, of which some is always used: small requests that are more
        // than was expected would fail beside it. PyTorch has none, and does not do this.
        if got.is_err()
            && pool == SMALL
            && self.kept_bytes > 0
            && let Some(id) = self.take_free(LARGE, needed)
        {
            return Ok(self.carve(id, request, len, true));
        }
        if let Err((missing, source)) = &got {
            // When giving up everything would not be enough, nothing is given up.
            let spare_bytes = self.stats.releasable_bytes;
            let hopeless = if source.is_none() {
                spare_bytes < *missing
            } else {
                self.stats.reserved.current - spare_bytes + missing > upstream.capacity_bytes()
            };
            if !hopeless && self.release_cached(upstream, usize::MAX, usize::MAX) > 0 {
                got = take(self, upstream);
            }
        }
        match got {
            Ok(id) => Ok(self.carve(id, request, len, false)),
            Err((_, source)) => Err(self.out_of_memory(request.size_bytes, source)),
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

    fn find_free(&mut self, request: Request, len: usize) -> Option<BlockId> {
        let needed = padded(len, request.align_bytes);
        let pool = self.pool_of(needed);
        self.take_free(pool, needed)
    }

    /// Joins a free block that is in no index with its free neighbours, and indexes the result.
    fn coalesce(&mut self, mut id: BlockId) {
        let Block { prev, next, .. } = *self.blocks.get(id);
        let is_free =
            |this: &Self, id: BlockId| !id.is_none() && this.blocks.get(id).state == BlockState::Free;
        if is_free(self, prev) {
            self.remove_free(prev);
            self.blocks.absorb_next(prev);
            id = prev;
        }
        if is_free(self, next) {
            self.remove_free(next);
            self.blocks.absorb_next(id);
        }
        self.insert_free(id);
    }
}

/// The whole pages of a segment's `range`, counted from the segment's start.
fn whole_pages(range: AddressRange, base: usize, page_bytes: usize) -> AddressRange {
    let start = base + (range.start - base).next_multiple_of(page_bytes);
    AddressRange::between(start, base + (range.end() - base) / page_bytes * page_bytes)
}

/// The class of a pool's segments.
#[inline]
fn class_of(pool: usize) -> SizeClass {
    if pool == SMALL { SizeClass::Small } else { SizeClass::Large }
}

/// What has to be free for a block of `len` bytes at any alignment.
fn padded(len: usize, align: usize) -> usize {
    len + align.saturating_sub(GRANULE_BYTES)
}

impl Placement for Torch {
    fn name(&self) -> &'static str {
        if self.options.expandable_segments { "expandable" } else { "torch" }
    }

    fn allocate(&mut self, request: Request, upstream: &mut dyn Upstream) -> Result<Placed, ArenaError> {
        let len = self.options.rounded(request)?;
        match self.find_free(request, len) {
            Some(id) => Ok(self.carve(id, request, len, true)),
            None => self.allocate_new(request, len, upstream),
        }
    }

    fn allocate_mapped(&mut self, request: Request) -> Option<Placed> {
        let len = self.options.rounded(request).ok()?;
        let id = self.find_free(request, len)?;
        Some(self.carve(id, request, len, true))
    }

    fn free(&mut self, addr: usize, upstream: &mut dyn Upstream) -> Result<LiveBlock, ArenaError> {
        let ended = self.live_block(addr).ok_or(ArenaError::UnknownAddress { addr })?;
        let id = self.blocks.find(addr).expect("found above");
        self.blocks.withdraw(id);
        self.blocks.get_mut(id).state = BlockState::Free;
        let class = class_of(self.segment_of(id).pool);
        self.stats.count_free(class, ended.requested_bytes, ended.allocated_bytes);
        if ended.allocated_bytes >= self.options.max_split_bytes.unwrap_or(usize::MAX) {
            self.stats.oversize_blocks.decrease(1);
        }
        upstream.note_freed(AddressRange::new(addr, ended.allocated_bytes));
        self.coalesce(id);
        Ok(ended)
    }

    fn resize_in_place(
        &mut self,
        addr: usize,
        size_bytes: usize,
        _: &mut dyn Upstream,
    ) -> Result<Option<LiveBlock>, ArenaError> {
        let len = Request::new(size_bytes).rounded_bytes(GRANULE_BYTES)?;
        let old = self.live_block(addr).ok_or(ArenaError::UnknownAddress { addr })?;
        let Some(extra) = old.allocated_bytes.checked_sub(size_bytes).and_then(|e| u32::try_from(e).ok())
        else {
            return Ok(None);
        };
        if len > old.allocated_bytes {
            return Ok(None);
        }
        let id = self.blocks.find(addr).expect("found above");
        self.blocks.get_mut(id).extra = extra;
        let allocated = (old.allocated_bytes, old.allocated_bytes);
        let class = class_of(self.segment_of(id).pool);
        self.stats.count_resize(class, (old.requested_bytes, size_bytes), allocated);
        Ok(self.live_block(addr))
    }

    fn trim(&mut self, upstream: &mut dyn Upstream, target_bytes: usize) -> usize {
        for slot in std::mem::take(&mut self.without_memory) {
            self.release_range(slot as usize, upstream);
        }
        let most_bytes = self.stats.reserved.current.saturating_sub(self.kept_bytes);
        let returned = self.release_cached(upstream, target_bytes, most_bytes);
        if self.options.expandable_segments {
            (0..self.segments.len()).for_each(|slot| self.release_range(slot, upstream));
        }
        returned
    }

    fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
    }

    fn part_in_advance(&self, missing_bytes: usize) -> Option<PartInAdvance> {
        let part_bytes = self.options.part_in_advance(missing_bytes);
        // What is too large to be split is for requests that are as large.
        let most_bytes = self.options.max_split_bytes.map_or(usize::MAX, |least| least - 1);
        Some(PartInAdvance { part_bytes, small_bytes: self.options.small_bytes, most_bytes, moves: false })
    }

    fn live_block(&self, addr: usize) -> Option<LiveBlock> {
        self.blocks.find(addr).map(|id| self.describe(id))
    }

    fn live_blocks(&self) -> Vec<LiveBlock> {
        self.blocks.live().map(|id| self.describe(id)).collect()
    }

    fn clean_ranges(&self, _: usize) -> Vec<AddressRange> {
        // Nothing is known of what was written where.
        Vec::new()
    }

    fn settle(&mut self) {}

    fn largest_free_bytes(&self) -> usize {
        self.free.iter().filter_map(SizeIndex::largest).map(|entry| entry.len).max().unwrap_or(0)
    }

    fn maps_pages(&self) -> bool {
        self.options.expandable_segments
    }

    fn mapped_ranges(&self) -> Vec<AddressRange> {
        self.mapped_by_class().into_iter().map(|(range, _)| range).collect()
    }

    fn class_of_block(&self, addr: usize) -> SizeClass {
        self.blocks.find(addr).map_or(SizeClass::Large, |id| class_of(self.segment_of(id).pool))
    }

    fn mapped_by_class(&self) -> Vec<(AddressRange, SizeClass)> {
        let mut mapped: Vec<(AddressRange, SizeClass)> = Vec::new();
        for segment in self.segments.iter().flatten() {
            let mut id = segment.first_block;
            // Blocks that follow each other in a segment are one range.
            let mut end = None;
            while !id.is_none() {
                let block = self.blocks.get(id);
                if block.state != BlockState::Unmapped {
                    match mapped.last_mut() {
                        Some((last, _)) if end == Some(block.start) => last.len += block.len,
                        _ => mapped.push((block.range(), class_of(segment.pool))),
                    }
                    end = Some(block.start + block.len);
                }
                id = block.next;
            }
        }
        mapped
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
