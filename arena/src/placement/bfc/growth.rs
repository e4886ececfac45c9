//! The part of policy `bfc` that talks to upstream: how long regions are, and when they go.

use super::{Bfc, Region, is_whole_region};
use crate::block::{Block, BlockId, BlockState};
use crate::error::{ArenaError, MapError, UpstreamError};
use crate::placement::check_page;
use crate::range::AddressRange;
use crate::request::Request;
use crate::stats::SizeClass;
use crate::upstream::Upstream;

impl Bfc {
    /// A new region in which a request of `len` bytes fits, as one block in no index.
    pub(super) fn grow_for(
        &mut self,
        request: Request,
        len: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, ArenaError> {
        let page_bytes = upstream.page_bytes();
        check_page(self.options.granule_bytes, page_bytes)?;
        if !self.options.allow_growth && self.known_limit(upstream) == usize::MAX {
            return Err(ArenaError::Option {
                option: "allow_growth",
                value: 0,
                rule: "without growth a limit, or upstream's capacity, has to say how much is taken",
            });
        }
        // A region begins at a page.
        let needed = len + request.align_bytes.saturating_sub(page_bytes);
        let mut got = self.extend(needed, upstream);
        if got.is_err() && self.collect_garbage(needed, upstream) {
            got = self.extend(needed, upstream);
        }
        got.map_err(|source| self.out_of_memory(request.size_bytes, source))
    }

    /// What is known of how much can be mapped: the limit, and upstream's capacity.
    fn known_limit(&self, upstream: &dyn Upstream) -> usize {
        self.options.limit_bytes.unwrap_or(usize::MAX).min(upstream.capacity_bytes())
    }

    /// A new region of at least `needed` bytes, as one block in no index. Or what upstream answered,
    /// `None` if the limit forbids to ask.
    fn extend(
        &mut self,
        needed: usize,
        upstream: &mut dyn Upstream,
    ) -> Result<BlockId, Option<UpstreamError>> {
        let page_bytes = upstream.page_bytes();
        let reserved = self.stats.reserved.current;
        let room = |limit: usize| limit.saturating_sub(reserved) / page_bytes * page_bytes;
        let available = room(self.options.limit_bytes.unwrap_or(usize::MAX));
        if needed > available {
            return Err(None);
        }
        let planned = self.next_region_bytes.unwrap_or_else(|| match self.options.allow_growth {
            true => self.options.initial_region_bytes,
            false => self.known_limit(upstream).max(1),
        });
        let mut region_bytes = planned;
        while region_bytes < needed {
            region_bytes = region_bytes.saturating_mul(2);
        }
        // Asking for more than there is would only be refused, again and again: TensorFlow's limit is
        // never above the device's memory.
        let most = available.min(room(upstream.capacity_bytes()).max(needed.next_multiple_of(page_bytes)));
        let mut bytes = region_bytes.checked_next_multiple_of(page_bytes).map_or(most, |len| len.min(most));
        let id = loop {
            let source = match self.map_region(bytes, upstream) {
                Ok(id) => break id,
                Err(source) => source,
            };
            // Down to a page where TensorFlow rounds up, so that each try is shorter than the last.
            bytes = (bytes - bytes.div_ceil(10)) / page_bytes * page_bytes;
            if bytes < needed {
                self.release_empty_regions(upstream);
                return Err(Some(source));
            }
        };
        // TensorFlow keeps what it doubled to for a request that then failed. It knows the device; here
        // one mistaken request would make all later regions as long as upstream lets them be.
        let doubled_already = region_bytes > planned;
        self.next_region_bytes =
            Some(if doubled_already { region_bytes } else { region_bytes.saturating_mul(2) });
        Ok(id)
    }

    /// Maps a region of `bytes`. When upstream refuses, its range waits for a shorter try.
    fn map_region(&mut self, bytes: usize, upstream: &mut dyn Upstream) -> Result<BlockId, UpstreamError> {
        let slot = match self.take_empty(bytes) {
            Some(slot) => slot,
            None => self.reserve_region(bytes, upstream)?,
        };
        let range = AddressRange::new(self.region(slot).reserved.start, bytes);
        self.stats.map_calls += 1;
        match upstream.map(range) {
            Ok(()) => Ok(self.fill_region(slot, range)),
            Err(MapError { completed_bytes: 0, source }) => {
                self.empty_regions.push(slot);
                Err(source)
            }
            Err(MapError { completed_bytes, source }) => {
                let id = self.fill_region(slot, AddressRange::new(range.start, completed_bytes));
                self.insert_free(id);
                self.unmap_region(id, upstream);
                Err(source)
            }
        }
    }

    /// A region without memory of at least `bytes`.
    fn take_empty(&mut self, bytes: usize) -> Option<u16> {
        let at = self.empty_regions.iter().position(|&slot| self.region(slot).reserved.len >= bytes)?;
        Some(self.empty_regions.swap_remove(at))
    }

    fn reserve_region(&mut self, bytes: usize, upstream: &mut dyn Upstream) -> Result<u16, UpstreamError> {
        let slot = match self.unused_regions.pop() {
            Some(slot) => slot,
            None => {
                let full = UpstreamError::AddressSpace { requested_bytes: bytes };
                let slot = u16::try_from(self.regions.len()).map_err(|_| full)?;
                self.regions.push(None);
                slot
            }
        };
        match upstream.reserve(bytes) {
            Ok(reserved) => {
                let mapped = AddressRange::new(reserved.start, 0);
                let (first_block, clean_from) = (BlockId::NONE, reserved.start);
                self.regions[slot as usize] = Some(Region { reserved, mapped, first_block, clean_from });
                self.stats.count_segment(SizeClass::Large);
                Ok(slot)
            }
            Err(error) => {
                self.unused_regions.push(slot);
                Err(error)
            }
        }
    }

    /// Notes that `mapped` of a region now is, and returns it as one free block in no index.
    fn fill_region(&mut self, slot: u16, mapped: AddressRange) -> BlockId {
        let id = self.blocks.insert(Block {
            start: mapped.start,
            len: mapped.len,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            extra: 0,
            segment: slot,
            state: BlockState::Free,
            dirty: false,
        });
        let region = self.region_mut(slot);
        (region.mapped, region.first_block, region.clean_from) = (mapped, id, mapped.start);
        self.stats.count_mapped(SizeClass::Large, mapped.len);
        id
    }

    /// Unmaps a region that is one free block, and returns how many bytes upstream took. What it did
    /// not take serves on, as a shorter region.
    fn unmap_region(&mut self, id: BlockId, upstream: &mut dyn Upstream) -> usize {
        let Block { segment: slot, .. } = *self.blocks.get(id);
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
        self.stats.count_unmapped(SizeClass::Large, done);
        let rest = AddressRange::between(range.start + done, range.end());
        self.region_mut(slot).mapped = rest;
        if rest.is_empty() {
            self.blocks.remove(id);
            self.region_mut(slot).first_block = BlockId::NONE;
            self.empty_regions.push(slot);
        } else {
            let block = self.blocks.get_mut(id);
            (block.start, block.len) = (rest.start, rest.len);
            self.insert_free(id);
        }
        done
    }

    /// Gives back the ranges of regions without memory. Those that upstream refuses wait on.
    pub(super) fn release_empty_regions(&mut self, upstream: &mut dyn Upstream) {
        for slot in std::mem::take(&mut self.empty_regions) {
            if upstream.release(self.region(slot).reserved).is_err() {
                self.empty_regions.push(slot);
                continue;
            }
            self.regions[slot as usize] = None;
            self.unused_regions.push(slot);
            self.stats.count_segment_end(SizeClass::Large);
        }
    }

    /// Gives regions back of which nothing is used, until `target_bytes` are returned, and no more than
    /// `most_bytes`.
    pub(super) fn release_free_regions(
        &mut self,
        upstream: &mut dyn Upstream,
        target_bytes: usize,
        most_bytes: usize,
    ) -> usize {
        let mut returned = 0;
        for slot in 0..self.regions.len() {
            if returned >= target_bytes {
                break;
            }
            let Some(Region { first_block: id, .. }) = self.regions[slot] else { continue };
            let fits = |len: usize| len <= most_bytes - returned;
            if self.is_free(id) && is_whole_region(self.blocks.get(id)) && fits(self.blocks.get(id).len) {
                returned += self.unmap_region(id, upstream);
            }
        }
        self.release_empty_regions(upstream);
        returned
    }

    /// Gives all unused regions back, if `needed` bytes could be had then. TensorFlow's
    /// `DeallocateFreeRegions`.
    fn collect_garbage(&mut self, needed: usize, upstream: &mut dyn Upstream) -> bool {
        let spare_bytes = self.stats.releasable_bytes;
        let most = self.known_limit(upstream).saturating_add(spare_bytes);
        self.options.garbage_collection
            && spare_bytes > 0
            && needed <= most.saturating_sub(self.stats.reserved.current)
            && self.release_free_regions(upstream, usize::MAX, usize::MAX) > 0
    }
}
