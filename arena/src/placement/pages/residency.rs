//! Mapping and unmapping: the part of policy `pages` that talks to upstream.
//!
//! Unmapped pages inside a free block always lie in it whole, because the pages at its ends
//! are shared with live blocks and segments end at page boundaries. So mapping for a block
//! never changes what a neighbour sees.

use super::cutting::aligned_start;
use super::{Kind, LARGE, LONG, Mode, Pages, SMALL, class_of};
use crate::block::{BlockId, BlockState};
use crate::error::{ArenaError, MapError, UpstreamError};
use crate::page_map::PageMap;
use crate::placement::Placed;
use crate::range::AddressRange;
use crate::request::Request;
use crate::upstream::Upstream;

/// Why pages could not be mapped.
pub(super) enum Refused {
    /// The placement's own limit is this many bytes too low.
    Limit {
        missing_bytes: usize,
    },
    Upstream {
        missing_bytes: usize,
        source: UpstreamError,
    },
}

impl Pages {
    /// Serves a request that no resident free block can hold.
    pub(super) fn allocate_sparse(
        &mut self,
        request: Request,
        len: usize,
        kind: Kind,
        upstream: &mut dyn Upstream,
    ) -> Result<Placed, ArenaError> {
        let served = self.map_for(request, len, kind, upstream);
        // Memory in advance is one long range where ranges are mapped whole, of which some is always used:
        // small requests that are more than was expected would fail beside it.
        let beside = kind.zone == SMALL && self.options.whole_ranges && self.kept_bytes > 0;
        if beside
            && matches!(served, Err(ArenaError::OutOfMemory { .. }))
            && let Some(placed) = self.place_mapped(request, len, Kind { zone: LARGE, ..kind })
        {
            self.stats.failures -= 1;
            return Ok(placed);
        }
        served
    }

    /// Maps pages for a request, and serves it.
    fn map_for(
        &mut self,
        request: Request,
        len: usize,
        kind: Kind,
        upstream: &mut dyn Upstream,
    ) -> Result<Placed, ArenaError> {
        let (zone, align) = (kind.zone, request.align_bytes);
        let found = self.find_least_missing(zone, len, align, upstream);
        let (entry, start) = match found {
            Some((entry, start, false)) => (entry, start),
            // Other addresses are better than waiting, if there are any.
            None | Some((.., true)) => match (self.add_segment(zone, len, align, upstream), found) {
                (Ok(entry), _) => (entry, aligned_start(entry.start, align)),
                (Err(_), Some((entry, start, _))) => (entry, start),
                (Err(ArenaError::Upstream(source)), None) => {
                    return Err(self.out_of_memory(request.size_bytes, Some(source)));
                }
                (Err(other), None) => return Err(other),
            },
        };
        self.remove_free(entry.id);
        let part = AddressRange::new(start, len);
        let calls_before = self.stats.map_calls;
        let mapped = if self.options.whole_ranges { self.range_of(entry.id) } else { part };
        if self.options.mode == Mode::Moving {
            self.move_pages(entry.id, part, request.size_bytes, upstream);
        }
        let ahead = self.ahead_of(entry.id, part);
        let done = ahead.is_some_and(|more| self.map_missing(entry.id, more, upstream).is_ok());
        if !done && let Err(refused) = self.map_making_room(entry.id, mapped, upstream) {
            self.insert_free(entry.id);
            if self.options.whole_ranges {
                // A range that cannot be mapped whole would stand in the way of shorter ones.
                self.release_empty_segments(upstream);
            }
            let source = match refused {
                Refused::Limit { .. } => None,
                Refused::Upstream { source, .. } => Some(source),
            };
            return Err(self.out_of_memory(request.size_bytes, source));
        }
        let extra = self.live_extra(request, len, start, kind);
        self.carve(entry.id, start, len, extra);
        let hit = self.stats.map_calls == calls_before;
        if !hit {
            self.quiet_frees = 0;
        }
        let class = self.class_of(entry.id);
        self.stats.count_allocation(class, request.size_bytes, len, hit);
        Ok(Placed { addr: start, allocated_bytes: len, hit })
    }

    /// Maps what `part` of a free block needs, unmapping free pages elsewhere when refused.
    fn map_making_room(
        &mut self,
        id: BlockId,
        part: AddressRange,
        upstream: &mut dyn Upstream,
    ) -> Result<(), Refused> {
        loop {
            let refused = match self.map_missing(id, part, upstream) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            // The block's own pages that are not needed, before and behind the part.
            let (range, kept) = (self.range_of(id), part.outer_pages(self.page_bytes));
            let own = [
                AddressRange::between(kept.end().max(range.start), range.end()),
                AddressRange::between(range.start, kept.start),
            ];
            let pages = &self.segment(self.blocks.get(id)).pages;
            let own_pages = |rest: &AddressRange| {
                let whole = pages.whole_handles(rest.inner_pages(self.page_bytes));
                pages.mapped_page_count(whole)
            };
            let own_bytes = own.iter().map(own_pages).sum::<usize>() * self.page_bytes;
            let spare_bytes = self.stats.releasable_bytes + own_bytes;
            let (missing, hopeless) = match refused {
                Refused::Limit { missing_bytes } => (missing_bytes, spare_bytes < missing_bytes),
                Refused::Upstream { missing_bytes, .. } => {
                    let needed = self.stats.reserved.current - spare_bytes + missing_bytes;
                    (missing_bytes, needed > upstream.capacity_bytes())
                }
            };
            // When giving up everything would not be enough, nothing is given up.
            if hopeless {
                return Err(refused);
            }
            // The block is in no index now, so other blocks give first.
            let mut returned = self.unmap_free_pages(upstream, missing, usize::MAX);
            for rest in own {
                returned +=
                    self.unmap_pages(id, rest, missing.saturating_sub(returned), usize::MAX, upstream);
            }
            // Each round returns at least a page, so this ends.
            if returned == 0 {
                return Err(refused);
            }
        }
    }

    /// Maps every unmapped page under `part` of a free block that is in no index, all or none.
    pub(super) fn map_missing(
        &mut self,
        id: BlockId,
        part: AddressRange,
        upstream: &mut dyn Upstream,
    ) -> Result<(), Refused> {
        let slot = self.blocks.get(id).segment as usize;
        let touched = part.outer_pages(self.page_bytes);
        let pages = &self.segments[slot].as_ref().expect("a block's segment exists").pages;
        let touched_pages = touched.len / self.page_bytes;
        let missing_bytes = (touched_pages - pages.mapped_page_count(touched)) * self.page_bytes;
        if missing_bytes == 0 {
            return Ok(());
        }
        let reserved = self.stats.reserved.current;
        if let Some(limit) = self.options.limit_bytes
            && reserved.saturating_add(missing_bytes) > limit
        {
            return Err(Refused::Limit { missing_bytes: reserved + missing_bytes - limit });
        }
        let capacity = self.capacity_bytes(upstream);
        // What was mapped, and whether it is new.
        let mut mapped_runs = std::mem::take(&mut self.mapped_runs);
        mapped_runs.clear();
        while let Some(run) = self.pages_mut(slot).first_unmapped_run(touched) {
            let waiting = upstream.waiting_in(run);
            let run = match waiting {
                Some(waiting) if waiting.start == run.start => waiting,
                Some(waiting) => {
                    self.handle_of(AddressRange::between(run.start, waiting.start), part, capacity)
                }
                None => self.handle_of(run, part, capacity),
            };
            self.stats.map_calls += 1;
            let result = upstream.map(run);
            let done = match &result {
                Ok(()) => run.len,
                Err(MapError { completed_bytes, .. }) => *completed_bytes,
            };
            if done > 0 {
                let done = AddressRange::new(run.start, done);
                self.note_mapped(id, done);
                mapped_runs.push((done, waiting != Some(run)));
            }
            if let Err(error) = result {
                self.unmap_again(id, mapped_runs, upstream);
                return Err(Refused::Upstream { missing_bytes, source: error.source });
            }
        }
        self.mapped_runs = mapped_runs;
        Ok(())
    }

    /// What can be mapped at once.
    pub(super) fn capacity_bytes(&self, upstream: &dyn Upstream) -> usize {
        self.options.limit_bytes.unwrap_or(usize::MAX).min(upstream.capacity_bytes())
    }

    /// Unmaps what was mapped just now, new or not. What cannot be unmapped stays mapped and counted, as
    /// free memory.
    fn unmap_again(&mut self, id: BlockId, runs: Vec<(AddressRange, bool)>, upstream: &mut dyn Upstream) {
        for (run, is_new) in runs.into_iter().rev() {
            self.stats.unmap_calls += 1;
            let unmapped = if is_new { upstream.unmap_unused(run) } else { upstream.unmap(run) };
            let done = unmapped.map_or_else(|error| error.completed_bytes, |()| run.len);
            if done > 0 {
                self.note_unmapped(id, AddressRange::new(run.start, done));
            }
        }
    }

    /// Unmaps whole free pages, those of the largest blocks first, until `target_bytes` are returned, and no
    /// more than `most_bytes`: what is unmapped as one may be more than is wanted.
    pub(super) fn unmap_free_pages(
        &mut self,
        upstream: &mut dyn Upstream,
        target_bytes: usize,
        most_bytes: usize,
    ) -> usize {
        if self.stats.releasable_bytes == 0 {
            return 0;
        }
        let mut returned = 0;
        // Resident blocks by size, from the index. Few long unmaps are cheaper than many short ones.
        for zone in [LONG, LARGE, SMALL] {
            let mut passed_over = Vec::new();
            while returned < target_bytes
                && let Some(entry) = self.zones[zone].resident.largest()
                && entry.len >= self.page_bytes
            {
                self.remove_free(entry.id);
                let range = self.range_of(entry.id);
                let (wanted, most) = (target_bytes - returned, most_bytes - returned);
                let taken = self.unmap_pages(entry.id, range, wanted, most, upstream);
                returned += taken;
                if taken > 0 {
                    self.insert_free(entry.id);
                } else {
                    // No whole page in it, or upstream refused.
                    passed_over.push(entry.id);
                }
            }
            passed_over.into_iter().for_each(|id| self.insert_free(id));
        }
        // Blocks that lost a part of their pages before, or never had all of them.
        if returned < target_bytes && self.stats.releasable_bytes > 0 {
            let sparse = self.zones.iter().flat_map(|zone| zone.sparse.iter()).map(|entry| entry.id);
            let sparse: Vec<BlockId> = sparse.filter(|&id| self.blocks.get(id).extra > 0).collect();
            for id in sparse {
                if returned >= target_bytes {
                    break;
                }
                self.remove_free(id);
                let range = self.range_of(id);
                let (wanted, most) = (target_bytes - returned, most_bytes - returned);
                returned += self.unmap_pages(id, range, wanted, most, upstream);
                self.insert_free(id);
            }
        }
        returned
    }

    /// Unmaps mapped whole pages of a free block that is in no index, within `range`, until
    /// `target_bytes` are returned, and no more than `most_bytes`.
    pub(super) fn unmap_pages(
        &mut self,
        id: BlockId,
        range: AddressRange,
        target_bytes: usize,
        most_bytes: usize,
        upstream: &mut dyn Upstream,
    ) -> usize {
        let slot = self.blocks.get(id).segment as usize;
        let whole = self.options.whole_ranges;
        let mut rest = range.inner_pages(self.page_bytes);
        if self.handles {
            rest = self.pages_mut(slot).whole_handles(rest);
        }
        if whole {
            // All that is mapped goes, or nothing.
            let pages = self.pages_mut(slot);
            if pages.mapped_page_count(rest) != pages.mapped_page_count(pages.range()) {
                return 0;
            }
        }
        let mut returned = 0;
        while returned < target_bytes
            && let Some(run) = self.pages_mut(slot).first_mapped_run(rest)
        {
            let wanted = (target_bytes - returned).checked_next_multiple_of(self.page_bytes);
            let wanted = wanted.filter(|_| !whole).unwrap_or(usize::MAX);
            let mut run = AddressRange::new(run.start, run.len.min(wanted));
            if self.handles {
                run = AddressRange::between(run.start, self.pages_mut(slot).handle_end(run.end()));
                if run.len > most_bytes - returned {
                    let first_page = run.start + self.page_bytes;
                    run = AddressRange::between(run.start, self.pages_mut(slot).handle_end(first_page));
                }
            }
            if run.len > most_bytes - returned {
                rest = AddressRange::between(run.end(), rest.end());
                continue;
            }
            self.stats.unmap_calls += 1;
            let done = match upstream.unmap(run) {
                Ok(()) => run.len,
                Err(MapError { completed_bytes, .. }) => completed_bytes,
            };
            if done > 0 {
                self.note_unmapped(id, AddressRange::new(run.start, done));
                returned += done;
            }
            rest = AddressRange::between(run.end(), rest.end());
        }
        returned
    }

    /// Gives back the ranges of segments that hold neither blocks nor mapped pages.
    pub(super) fn release_empty_segments(&mut self, upstream: &mut dyn Upstream) {
        for slot in 0..self.segments.len() {
            let Some(segment) = &self.segments[slot] else { continue };
            let (id, range, zone) = (segment.first_block, segment.pages.range(), segment.zone);
            let block = *self.blocks.get(id);
            if block.state != BlockState::Free || block.len != range.len || block.extra > 0 {
                continue;
            }
            self.remove_free(id);
            if upstream.release(range).is_err() {
                // The range stays reserved and usable.
                self.insert_free(id);
                continue;
            }
            self.blocks.remove(id);
            self.segments[slot] = None;
            let next = &mut self.zones[zone].next_range_bytes;
            *next = (*next / 2).max(self.options.first_range_bytes);
            self.stats.count_segment_end(class_of(zone));
        }
    }

    pub(super) fn note_mapped(&mut self, id: BlockId, range: AddressRange) {
        let slot = self.blocks.get(id).segment as usize;
        if self.handles {
            self.pages_mut(slot).set_mapped_as_one(range);
        } else {
            self.pages_mut(slot).set_mapped(range);
        }
        self.blocks.get_mut(id).extra += (range.len / self.page_bytes) as u32;
        let class = self.class_of(id);
        self.stats.count_mapped(class, range.len);
    }

    pub(super) fn note_unmapped(&mut self, id: BlockId, range: AddressRange) {
        let slot = self.blocks.get(id).segment as usize;
        self.pages_mut(slot).set_unmapped(range);
        self.blocks.get_mut(id).extra -= (range.len / self.page_bytes) as u32;
        let class = self.class_of(id);
        self.stats.count_unmapped(class, range.len);
    }

    #[inline]
    pub(super) fn pages_mut(&mut self, slot: usize) -> &mut PageMap {
        &mut self.segments[slot].as_mut().expect("a block's segment exists").pages
    }
}
