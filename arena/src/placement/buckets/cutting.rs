//! Blocks of a segment: cut for requests, joined when they end, and found by their size.

use super::{Buckets, Class};
use crate::block::{Block, BlockId, BlockState};
use crate::placement::Placed;
use crate::request::Request;
use crate::size_index::FreeEntry;

/// A large block serves requests that leave at most this part of their size unused.
const LARGE_WASTE_DIVISOR: usize = 8;
/// A block's unused bytes are counted in 32 bits; this leaves room for what rounding adds.
const LARGE_WASTE_BYTES: usize = 1 << 31;

impl Buckets {
    /// Whether a block is all of its segment.
    #[inline]
    pub(super) fn is_whole(&self, id: BlockId) -> bool {
        let block = self.blocks.get(id);
        block.prev.is_none() && block.next.is_none()
    }

    #[inline]
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let Block { start, len, segment, .. } = *self.blocks.get(id);
        let class = self.segment(segment).class;
        if self.is_whole(id) {
            self.stats.releasable_bytes += len;
            self.idle.push_newest(segment);
        } else {
            self.stats.count_split(class.counted_as(), len);
        }
        self.free[class as usize].insert(len, start, id);
    }

    #[inline]
    pub(super) fn remove_free(&mut self, id: BlockId) {
        let Block { start, len, segment, .. } = *self.blocks.get(id);
        let class = self.segment(segment).class;
        if self.is_whole(id) {
            self.stats.releasable_bytes -= len;
            self.idle.remove(segment);
        } else {
            self.stats.count_split_end(class.counted_as(), len);
        }
        let found = self.free[class as usize].remove(len, start);
        debug_assert_eq!(found, id);
    }

    /// The free block that serves a request, out of the index.
    #[inline]
    pub(super) fn take_free(&mut self, class: Class, len: usize, align: usize) -> Option<BlockId> {
        let index = &mut self.free[class as usize];
        let most = match class {
            Class::Large => len + (len / LARGE_WASTE_DIVISOR).min(LARGE_WASTE_BYTES),
            _ => usize::MAX,
        };
        let serves = |entry: &FreeEntry| holds_aligned(entry, len, align, class);
        let mut entry = index.best_fit(len).filter(|entry| entry.len <= most)?;
        if !serves(&entry) {
            // This much holds it wherever it lies, if the class is cut.
            let padded = index.best_fit(len + align - self.options.granule_bytes).filter(serves);
            entry = match padded {
                Some(entry) if entry.len <= most => entry,
                // Segments begin at a page: only for more than that there is something to look for.
                _ if align > self.page_bytes => {
                    index.iter_from(len).take_while(|entry| entry.len <= most).find(serves)?
                }
                _ => return None,
            };
        }
        self.remove_free(entry.id);
        Some(entry.id)
    }

    /// Makes a part of a free block that is in no index live, and the rest free blocks. A large block is
    /// not cut.
    #[inline]
    pub(super) fn carve(
        &mut self,
        mut id: BlockId,
        request: Request,
        class: Class,
        len: usize,
        hit: bool,
    ) -> Placed {
        if class != Class::Large {
            let Block { start, .. } = *self.blocks.get(id);
            let at = aligned_from(start, request.align_bytes);
            if at > start {
                let head = id;
                id = self.split(head, at - start);
                self.insert_free(head);
            }
            if self.blocks.get(id).len > len {
                let tail = self.split(id, len);
                self.insert_free(tail);
            }
        }
        let block = self.blocks.get_mut(id);
        let (addr, allocated_bytes) = (block.start, block.len);
        block.state = BlockState::Live;
        let extra = u32::try_from(allocated_bytes - request.size_bytes);
        block.extra = extra.expect("a page and what a large block may leave unused is less");
        self.blocks.publish(id);
        self.stats.count_allocation(class.counted_as(), request.size_bytes, allocated_bytes, hit);
        Placed { addr, allocated_bytes, hit }
    }

    /// Joins a free block that is in no index with its free neighbours, and indexes the result.
    #[inline]
    pub(super) fn coalesce(&mut self, mut id: BlockId) {
        let Block { prev, next, .. } = *self.blocks.get(id);
        if self.is_free(prev) {
            self.remove_free(prev);
            self.join_next(prev);
            id = prev;
        }
        if self.is_free(next) {
            self.remove_free(next);
            self.join_next(id);
        }
        self.insert_free(id);
    }

    /// Makes a live block of a segment that is cut hold `len` bytes, if what lies behind it permits.
    pub(super) fn resize(&mut self, id: BlockId, len: usize) -> bool {
        let Block { len: old, next, .. } = *self.blocks.get(id);
        if len > old {
            let behind = if self.is_free(next) { self.blocks.get(next).len } else { 0 };
            if behind < len - old {
                return false;
            }
            self.remove_free(next);
            self.join_next(id);
        }
        if self.blocks.get(id).len > len {
            let tail = self.split(id, len);
            if len < old {
                // The owner may have written there.
                self.blocks.get_mut(tail).dirty = true;
            }
            self.coalesce(tail);
        }
        true
    }

    fn is_free(&self, id: BlockId) -> bool {
        !id.is_none() && self.blocks.get(id).state == BlockState::Free
    }

    fn split(&mut self, id: BlockId, head_len: usize) -> BlockId {
        let tail = self.blocks.split(id, head_len);
        self.blocks.get_mut(tail).dirty = self.blocks.get(id).dirty;
        tail
    }

    fn join_next(&mut self, id: BlockId) {
        let next_dirty = self.blocks.get(self.blocks.get(id).next).dirty;
        self.blocks.absorb_next(id);
        self.blocks.get_mut(id).dirty |= next_dirty;
    }
}

/// Whether a block of `len` bytes fits into a free one with its start aligned: anywhere in one that is
/// cut, else at its start.
#[inline]
fn holds_aligned(entry: &FreeEntry, len: usize, align: usize, class: Class) -> bool {
    let before = aligned_from(entry.start, align) - entry.start;
    before <= if class == Class::Large { 0 } else { entry.len - len }
}

/// The first address from `start` on that is aligned. No overflow: blocks end below `isize::MAX`, and so
/// do size and alignment of a request together.
#[inline]
fn aligned_from(start: usize, align: usize) -> usize {
    (start + (align - 1)) & !(align - 1)
}
