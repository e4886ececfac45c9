//! Expandable segments: pages of a long range that are mapped where blocks need them.

use super::{LARGE, Torch, class_of, whole_pages};
use crate::block::{BlockId, BlockState};
use crate::error::UpstreamError;
use crate::range::AddressRange;
use crate::size_index::FreeEntry;
use crate::upstream::Upstream;

impl Torch {
    /// Bytes that a free block could have with what is unmapped behind it.
    fn expandable_bytes(&self, id: BlockId) -> usize {
        let block = self.blocks.get(id);
        let behind = block.next;
        let unmapped = !behind.is_none() && self.blocks.get(behind).state == BlockState::Unmapped;
        block.len + if unmapped { self.blocks.get(behind).len } else { 0 }
    }

    /// The best fit from `entry` on, where a block counts with what it can expand to.
    pub(super) fn fit_expandable(&mut self, pool: usize, entry: FreeEntry) -> Option<FreeEntry> {
        if self.expandable_bytes(entry.id) == entry.len {
            // No later one is shorter.
            return Some(entry);
        }
        let mut passed = Vec::new();
        let mut chosen = entry;
        // Only blocks before unmapped parts are passed over, of which there are few.
        loop {
            self.free[pool].remove(chosen.len, chosen.start);
            passed.push(chosen);
            let Some(next) = self.free[pool].best_fit(chosen.len) else { break };
            if self.expandable_bytes(next.id) >= self.expandable_bytes(chosen.id) {
                break;
            }
            chosen = next;
        }
        for entry in passed {
            self.free[pool].insert(entry.len, entry.start, entry.id);
        }
        Some(chosen)
    }

    /// A block of at least `len` bytes in an expandable segment, in no index, on new pages and on
    /// what is free before them. Or how many bytes are missing, and why.
    pub(super) fn expand(
        &mut self,
        pool: usize,
        len: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, (usize, Option<UpstreamError>)> {
        let mut id = match self.find_expandable(pool, len) {
            Some(id) => id,
            None => self.add_expandable(pool, len, upstream).map_err(|error| (len, Some(error)))?,
        };
        if self.blocks.get(id).state == BlockState::Unmapped {
            let bytes = self.blocks.get(id).len.min(len);
            id = self.map_front(pool, id, bytes, upstream)?;
        }
        while self.blocks.get(id).len < len {
            let missing = len - self.blocks.get(id).len;
            let behind = self.blocks.get(id).next;
            let bytes = self.blocks.get(behind).len.min(missing);
            id = self.map_front(pool, behind, bytes, upstream)?;
        }
        self.remove_free(id);
        Ok(id)
    }

    /// The first unmapped part, or the free block before it, from which on enough is free or
    /// unmapped.
    fn find_expandable(&self, pool: usize, len: usize) -> Option<BlockId> {
        let usable = |id: BlockId| {
            !id.is_none() && matches!(self.blocks.get(id).state, BlockState::Free | BlockState::Unmapped)
        };
        self.unmapped[pool].iter().map(|&(_, number)| BlockId::from_number(number)).find_map(|id| {
            let before = self.blocks.get(id).prev;
            let first = if usable(before) { before } else { id };
            let (mut bytes, mut at) = (0, first);
            while bytes < len && usable(at) {
                bytes += self.blocks.get(at).len;
                at = self.blocks.get(at).next;
            }
            (bytes >= len).then_some(first)
        })
    }

    fn add_expandable(
        &mut self,
        pool: usize,
        len: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, UpstreamError> {
        let page_bytes =
            if pool == LARGE { self.options.large_segment_bytes } else { self.options.small_segment_bytes };
        let page_bytes = page_bytes.next_multiple_of(upstream.page_bytes());
        let needed = len.next_multiple_of(page_bytes);
        let mut wanted = self.options.expandable_range_bytes.next_multiple_of(page_bytes).max(needed);
        let range = loop {
            match upstream.reserve(wanted) {
                Ok(range) => break range,
                Err(error) if wanted == needed => return Err(error),
                // Where address space is scarce, a shorter segment is better than many.
                Err(_) => wanted = (wanted / 2).next_multiple_of(page_bytes).max(needed),
            }
        };
        let id = self.insert_segment(pool, range, Some(page_bytes))?;
        self.blocks.get_mut(id).state = BlockState::Unmapped;
        self.unmapped[pool].insert((range.start, id.number()));
        Ok(id)
    }

    /// Maps the pages of the first `bytes` of an unmapped part, and joins them with free neighbours.
    fn map_front(
        &mut self,
        pool: usize,
        id: BlockId,
        bytes: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, (usize, Option<UpstreamError>)> {
        let page_bytes = self.segment_of(id).page_bytes.expect("the segment is expandable");
        let block = *self.blocks.get(id);
        let len = bytes.next_multiple_of(page_bytes).min(block.len);
        self.admit(len).map_err(|over| (over, None))?;
        let mut mapped = 0;
        let mut failure = None;
        while mapped < len && failure.is_none() {
            let page = AddressRange::new(block.start + mapped, page_bytes.min(len - mapped));
            self.stats.map_calls += 1;
            match upstream.map(page) {
                Ok(()) => mapped += page.len,
                Err(error) => {
                    mapped += error.completed_bytes;
                    failure = Some(error.source);
                }
            }
        }
        if failure.is_some() {
            // All or nothing; what upstream does not take back stays, as a free block.
            let mut at = 0;
            while at < mapped {
                let part = AddressRange::new(block.start + at, page_bytes.min(mapped - at));
                self.stats.unmap_calls += 1;
                if let Err(error) = upstream.unmap(part) {
                    at += error.completed_bytes;
                    break;
                }
                at += part.len;
            }
            if at < mapped {
                self.note_mapped(pool, id, AddressRange::between(block.start + at, block.start + mapped));
            }
            return Err((len, failure));
        }
        Ok(self.note_mapped(pool, id, AddressRange::new(block.start, len)))
    }

    /// Makes a part of an unmapped block a free one.
    fn note_mapped(&mut self, pool: usize, id: BlockId, part: AddressRange) -> BlockId {
        let block = *self.blocks.get(id);
        self.unmapped[pool].remove(&(block.start, id.number()));
        let mut middle = id;
        if part.start > block.start {
            middle = self.blocks.split(id, part.start - block.start);
            self.unmapped[pool].insert((block.start, id.number()));
        }
        if part.end() < block.end() {
            let tail = self.blocks.split(middle, part.len);
            self.blocks.get_mut(tail).state = BlockState::Unmapped;
            self.unmapped[pool].insert((part.end(), tail.number()));
        }
        self.blocks.get_mut(middle).state = BlockState::Free;
        self.stats.count_mapped(class_of(pool), part.len);
        let before = self.blocks.get(middle).prev;
        let joins = !before.is_none() && self.blocks.get(before).state == BlockState::Free;
        self.coalesce(middle);
        if joins { before } else { middle }
    }

    /// Unmaps whole free pages until `target_bytes` are returned, and no more than `most_bytes`.
    pub(super) fn unmap_expandable(
        &mut self,
        upstream: &mut dyn Upstream,
        target_bytes: usize,
        most_bytes: usize,
    ) -> usize {
        let mut returned = 0;
        for pool in [LARGE, super::SMALL] {
            let free: Vec<BlockId> = self.free[pool].iter().map(|entry| entry.id).collect();
            for id in free {
                if returned >= target_bytes {
                    return returned;
                }
                let segment = self.segment_of(id);
                let Some(page_bytes) = segment.page_bytes else { continue };
                let pages = whole_pages(self.blocks.get(id).range(), segment.range.start, page_bytes);
                let most = (most_bytes - returned) / page_bytes * page_bytes;
                let pages = AddressRange::new(pages.start, pages.len.min(most));
                if !pages.is_empty() {
                    returned += self.unmap_pages(pool, id, pages, page_bytes, upstream);
                }
            }
        }
        returned
    }

    fn unmap_pages(
        &mut self,
        pool: usize,
        id: BlockId,
        pages: AddressRange,
        page_bytes: usize,
        upstream: &mut dyn Upstream,
    ) -> usize {
        let mut done = 0;
        while done < pages.len {
            self.stats.unmap_calls += 1;
            if let Err(error) = upstream.unmap(AddressRange::new(pages.start + done, page_bytes)) {
                done += error.completed_bytes;
                break;
            }
            done += page_bytes;
        }
        if done == 0 {
            return 0;
        }
        self.remove_free(id);
        let block = *self.blocks.get(id);
        let mut middle = id;
        if pages.start > block.start {
            middle = self.blocks.split(id, pages.start - block.start);
            self.insert_free(id);
        }
        if pages.start + done < block.end() {
            let tail = self.blocks.split(middle, done);
            self.insert_free(tail);
        }
        self.stats.count_unmapped(class_of(pool), done);
        self.blocks.get_mut(middle).state = BlockState::Unmapped;
        self.join_unmapped(pool, middle);
        done
    }

    /// Joins an unmapped part with its unmapped neighbours, and notes it.
    fn join_unmapped(&mut self, pool: usize, mut id: BlockId) {
        let neighbours = *self.blocks.get(id);
        let is_unmapped =
            |this: &Self, id: BlockId| !id.is_none() && this.blocks.get(id).state == BlockState::Unmapped;
        if is_unmapped(self, neighbours.prev) {
            let before = neighbours.prev;
            self.unmapped[pool].remove(&(self.blocks.get(before).start, before.number()));
            self.blocks.absorb_next(before);
            id = before;
        }
        if is_unmapped(self, neighbours.next) {
            let behind = neighbours.next;
            self.unmapped[pool].remove(&(self.blocks.get(behind).start, behind.number()));
            self.blocks.absorb_next(id);
        }
        self.unmapped[pool].insert((self.blocks.get(id).start, id.number()));
    }
}
