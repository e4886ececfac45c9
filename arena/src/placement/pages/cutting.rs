//! Cutting live blocks out of free ones and joining free ones again: the part of policy `pages`
//! that keeps blocks, their page counts and the two size indexes of a zone in step.

use super::{Kind, Mode, Pages, class_of};
use crate::block::{Block, BlockId, BlockState};
use crate::placement::Placed;
use crate::range::AddressRange;
use crate::request::Request;
use crate::size_index::{FreeEntry, SizeIndex};

impl Pages {
    /// Puts a free block into the index that fits its state, and counts it.
    #[inline]
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let block = *self.blocks.get(id);
        let whole = self.whole_pages(block.range());
        debug_assert!(block.extra as usize <= whole);
        let zone = self.segment(&block).zone;
        self.index_in(zone, &block, whole).insert(block.len, block.start, id);
        let (edges, releasable) = self.free_parts(&block, whole);
        if self.handles {
            let at = id.number() as usize;
            if at >= self.releasable.len() {
                self.releasable.resize(at + 1, 0);
                self.have_releasable.resize(at / 64 + 1, 0);
            }
            let pages = (releasable / self.page_bytes) as u32;
            self.releasable[at] = pages;
            self.have_releasable[at / 64] |= u64::from(pages > 0) << (at % 64);
        }
        self.stats.count_split(class_of(zone), edges);
        self.stats.releasable_bytes += releasable;
    }

    /// Undoes [`insert_free`](Self::insert_free).
    #[inline]
    pub(super) fn remove_free(&mut self, id: BlockId) {
        let block = *self.blocks.get(id);
        let whole = self.whole_pages(block.range());
        let zone = self.segment(&block).zone;
        let found = self.index_in(zone, &block, whole).remove(block.len, block.start);
        debug_assert_eq!(found, id);
        let (edges, mapped) = self.parts_in_pages(&block, whole);
        // What lies on handles was found when the block was inserted: nothing around it has changed since.
        let stuck = if self.handles {
            let at = id.number() as usize;
            self.have_releasable[at / 64] &= !(1 << (at % 64));
            mapped - self.releasable[at] as usize * self.page_bytes
        } else {
            0
        };
        let (edges, releasable) = (edges + stuck, mapped - stuck);
        self.stats.count_split_end(class_of(zone), edges);
        self.stats.releasable_bytes -= releasable;
    }

    /// Whether a block in an index has whole handles, where there are handles.
    #[inline]
    pub(super) fn has_whole_handles(&self, id: BlockId) -> bool {
        let at = id.number() as usize;
        self.have_releasable[at / 64] >> (at % 64) & 1 == 1
    }

    /// Mapped bytes of a free block that cannot be given back, because they share a page or a handle
    /// with what is not free, and those that can.
    #[inline]
    pub(super) fn free_parts(&self, block: &Block, whole_pages: usize) -> (usize, usize) {
        let (edges, mapped) = self.parts_in_pages(block, whole_pages);
        if !self.handles || mapped == 0 {
            return (edges, mapped);
        }
        let inner = block.range().inner_pages(self.page_bytes);
        let whole = self.segment(block).pages.whole_handles(inner);
        // What lies before and behind the whole handles is mapped.
        let stuck = inner.len - whole.len;
        (edges + stuck, mapped - stuck)
    }

    /// The same where any page can be given back by itself.
    #[inline]
    fn parts_in_pages(&self, block: &Block, whole_pages: usize) -> (usize, usize) {
        (block.len - whole_pages * self.page_bytes, block.extra as usize * self.page_bytes)
    }

    /// The index that a free block of this zone with this many whole pages belongs to.
    #[inline]
    fn index_in(&mut self, zone: usize, block: &Block, whole_pages: usize) -> &mut SizeIndex {
        let zone = &mut self.zones[zone];
        if block.extra as usize == whole_pages { &mut zone.resident } else { &mut zone.sparse }
    }

    /// The best fit of `index` that can hold `len` bytes aligned to `align`.
    #[inline]
    pub(super) fn find(index: &mut SizeIndex, len: usize, align: usize, granule: usize) -> Option<FreeEntry> {
        let entry = index.best_fit(len)?;
        if align <= granule || aligned_start(entry.start, align) + len <= entry.start + entry.len {
            return Some(entry);
        }
        // Blocks start at multiples of the granule, so this much always suffices.
        index.best_fit(len + align - granule)
    }

    /// Cuts the live block `[start, start + len)` out of a free block that is in no index and
    /// whose pages there are mapped. What is left before and behind becomes free blocks.
    pub(super) fn carve(&mut self, id: BlockId, start: usize, len: usize, extra: u32) -> BlockId {
        let whole = self.range_of(id);
        let mapped = self.blocks.get(id).extra as usize;
        let (mut live, end) = (id, start + len);
        let tail_mapped = if end == whole.end() {
            0
        } else if mapped == self.whole_pages(whole) {
            self.whole_pages(AddressRange::between(end, whole.end()))
        } else {
            // Subtracting what lies before avoids counting a tail that may be terabytes long.
            let inner = whole.inner_pages(self.page_bytes);
            let head = AddressRange::between(inner.start, end).outer_pages(self.page_bytes);
            let head = AddressRange::between(inner.start, head.end().min(inner.end()));
            mapped - self.segment(self.blocks.get(id)).pages.mapped_page_count(head)
        };
        if start > whole.start {
            live = self.blocks.split(id, start - whole.start);
            let before = AddressRange::between(whole.start, start);
            let inner = before.inner_pages(self.page_bytes);
            let count = self.segment(self.blocks.get(id)).pages.mapped_page_count(inner);
            self.blocks.get_mut(id).extra = count as u32;
            self.insert_free(id);
        }
        if end < whole.end() {
            let tail = self.blocks.split(live, len);
            self.blocks.get_mut(tail).extra = tail_mapped as u32;
            self.insert_free(tail);
        }
        let block = self.blocks.get_mut(live);
        block.state = BlockState::Live;
        block.dirty = false;
        block.extra = extra;
        self.blocks.publish(live);
        live
    }

    /// Frees what is neither live nor in an index any more: counts its pages, joins it with its
    /// free neighbours and indexes the result.
    pub(super) fn settle_block(&mut self, id: BlockId) {
        let range = self.range_of(id);
        let whole = self.whole_pages(range);
        let block = self.blocks.get_mut(id);
        block.state = BlockState::Free;
        block.extra = whole as u32;
        if self.options.mode == Mode::Moving {
            self.frees = self.frees.wrapping_add(1);
            let (slot, frees) = (self.blocks.get(id).segment as usize, self.frees);
            self.pages_mut(slot).note_free(range, frees);
        }
        self.coalesce(id);
    }

    /// Settles a parked block that was just taken out of its list.
    pub(super) fn unpark(&mut self, id: BlockId) {
        self.stats.parked_bytes -= self.blocks.get(id).len;
        self.blocks.withdraw(id);
        self.settle_block(id);
    }

    /// Joins a free block that is in no index with its free neighbours and indexes the result.
    #[inline]
    pub(super) fn coalesce(&mut self, mut id: BlockId) {
        let Block { prev, next, .. } = *self.blocks.get(id);
        if !prev.is_none() && self.blocks.get(prev).state == BlockState::Free {
            self.remove_free(prev);
            self.join_with_next(prev);
            id = prev;
        }
        if !next.is_none() && self.blocks.get(next).state == BlockState::Free {
            self.remove_free(next);
            self.join_with_next(id);
        }
        self.insert_free(id);
    }

    /// Joins two free blocks, both in no index, and counts the page that they shared.
    pub(super) fn join_with_next(&mut self, id: BlockId) {
        let boundary = self.blocks.get(id).end();
        let behind = self.blocks.get(self.blocks.get(id).next).extra;
        self.blocks.absorb_next(id);
        let joined = self.range_of(id);
        let page = AddressRange::new(boundary & !(self.page_bytes - 1), self.page_bytes);
        // A page with blocks on both sides of a boundary inside it is mapped: one of the two
        // was live just now.
        let shared = page.start != boundary && joined.covers(page);
        self.blocks.get_mut(id).extra += behind + u32::from(shared);
    }

    /// Places a request in a resident free block that can hold it.
    #[inline]
    pub(super) fn place_resident(
        &mut self,
        entry: FreeEntry,
        request: Request,
        len: usize,
        kind: Kind,
    ) -> Placed {
        self.remove_free(entry.id);
        let start = aligned_start(entry.start, request.align_bytes);
        let extra = self.live_extra(request, len, start, kind);
        self.carve(entry.id, start, len, extra);
        // It is in an index of this zone, or of another one of the same class.
        self.stats.count_allocation(class_of(kind.zone), request.size_bytes, len, true);
        Placed { addr: start, allocated_bytes: len, hit: true }
    }
}

/// `start` rounded up to `align`, a power of two.
#[inline]
pub(super) fn aligned_start(start: usize, align: usize) -> usize {
    (start + align - 1) & !(align - 1)
}
