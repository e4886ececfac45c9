//! Where a request needs the fewest new pages, and which free pages go there.

use std::ops::ControlFlow;

use super::cutting::aligned_start;
use super::{Mode, Pages};
use crate::block::BlockId;
use crate::range::AddressRange;
use crate::size_index::FreeEntry;
use crate::upstream::Upstream;

/// Free blocks that are looked at for the place where the fewest pages are missing.
const LOOKED_AT: usize = 256;
/// What may be mapped beyond the most that was ever asked for at once: one part in so many.
const SLACK_PARTS: usize = 600;
/// When so many times all that was ever asked for at once has moved, and that did not become more, it goes to and
/// fro at each step: from then on more may be mapped, by one part in so many, and again each time that all has
/// moved once more, until a step that repeats itself moves nothing.
const MOVED_TIMES: usize = 32;
const MORE_SLACK_PARTS: usize = 100;
/// That often at most.
const MORE_SLACK_TIMES: usize = 50;
/// A handle is no longer than this part of the request that it is made for,
const HANDLES_A_REQUEST: usize = 3;
/// nor longer than this part of all that was ever asked for at once,
pub(super) const HANDLES_IN_ALL: usize = 460;
/// but may be so many pages in any case.
const SHORT_HANDLE_PAGES: usize = 3;
/// While less than one part in so many of what can be mapped was asked for at once, memory is not short and few calls
/// matter more: a handle may be as long as if so much had been asked for,
const ROOM_PARTS: usize = 8;
/// and this part of its request.
const HANDLES_A_REQUEST_WITH_ROOM: usize = 2;
/// Where memory only moves when it is short, few calls matter more: a handle may be as long as this part of
/// all that was ever asked for at once, and so many pages in any case,
const LONG_HANDLES_IN_ALL: usize = 64;
const LONG_HANDLE_PAGES: usize = 32;
/// unless that is more than this part of the device or the limit: of few long ones too many would have a
/// block on them when memory is short.
const LONG_HANDLES_IN_CAPACITY: usize = 2048;
/// One part in so many of what is mapped, and so many pages at most, is mapped at the end of a range beyond what
/// is needed.
const AHEAD_PARTS: usize = 16;
const AHEAD_PAGES: usize = 2;
/// When so much too much has to be mapped because free memory is pinned by blocks that share its
/// handles, one part of what was ever asked for at once and so many pages at least,
const PINNED_PARTS: usize = 200;
const PINNED_PAGES: usize = 4;
/// what is expected to live long goes apart until there were so many more frees.
const FREES_APART: u32 = 50;
/// When it is even so much, one part of what was ever asked for at once and so many pages at least,
const MUCH_PINNED_PARTS: usize = 125;
const MUCH_PINNED_PAGES: usize = 24;
/// handles become shorter by so many parts of a hundred, down to one part in so many.
const SHORTER_PERCENT: usize = 3;
const SHORTEST_PARTS: usize = 4;

/// A handle, or a page where there are none, in a free block.
#[derive(Debug)]
pub(super) struct FreeHandle {
    /// Blocks that ended since one ended here.
    age: u32,
    range: AddressRange,
    block: BlockId,
}

impl Pages {
    /// The free block, and the place in it, where the fewest pages are missing for `len` bytes, and whether
    /// mapping there would wait: then there is no other.
    pub(super) fn find_least_missing(
        &self,
        zone: usize,
        len: usize,
        align: usize,
        upstream: &mut dyn Upstream,
    ) -> Option<(FreeEntry, usize, bool)> {
        let mut best: Option<((bool, usize, usize), FreeEntry, usize)> = None;
        let mut looked_at = 0;
        self.zones[zone].sparse.visit_from(len, |id| {
            looked_at += 1;
            let more = if looked_at < LOOKED_AT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
            let block = self.blocks.get(id);
            let entry = FreeEntry { len: block.len, start: block.start, id };
            // Besides the pages that lie in the block whole there are those at its ends.
            let fewest = (len / self.page_bytes).saturating_sub(block.extra as usize + 2);
            if best.as_ref().is_some_and(|((blocked, missing, _), ..)| !blocked && fewest > *missing) {
                return more;
            }
            let pages = &self.segment(block).pages;
            let first = aligned_start(block.start, align);
            // From the end it is tried only where the whole block is in view, not at the end of a range.
            let last = (block.end() - len) & !(align.max(self.options.granule_bytes) - 1);
            let mut starts = [Some(first), Some(last).filter(|_| !block.next.is_none()), None];
            for at in 0..starts.len() {
                let Some(start) = starts[at] else { continue };
                let part = AddressRange::new(start, len);
                if start < block.start || part.end() > block.end() {
                    continue;
                }
                let touched = part.outer_pages(self.page_bytes);
                let missing = touched.len / self.page_bytes - pages.mapped_page_count(touched);
                let key = (false, missing, entry.len);
                if best.as_ref().is_some_and(|(other, ..)| key >= *other) {
                    continue;
                }
                let blocked = if missing == 0 { None } else { upstream.blocked_until(touched) };
                if let (Some(end), 0) = (blocked, at) {
                    // Behind what is in use there may be room.
                    starts[2] = Some(aligned_start(end, align));
                }
                let key = (blocked.is_some(), missing, entry.len);
                if best.as_ref().is_none_or(|(other, ..)| key < *other) {
                    best = Some((key, entry, start));
                }
            }
            more
        });
        best.map(|((blocked, ..), entry, start)| (entry, start, blocked))
    }

    /// `part` of a free block at the end of a range, with some pages behind it that are mapped with it: where
    /// memory moves only when it is short, few calls matter more.
    pub(super) fn ahead_of(&self, id: BlockId, part: AddressRange) -> Option<AddressRange> {
        let block = self.blocks.get(id);
        let at_end = block.next.is_none() && !self.options.whole_ranges;
        if self.options.mode != Mode::OnPressure || !at_end {
            return None;
        }
        let pages = (self.stats.reserved.current / self.page_bytes / AHEAD_PARTS).min(AHEAD_PAGES);
        let end = part.outer_pages(self.page_bytes).end() + pages * self.page_bytes;
        (pages > 0 && part.len < pages * self.page_bytes && end <= block.end())
            .then(|| AddressRange::between(part.start, end))
    }

    /// The first part of an unmapped run that is mapped as one handle for a block that takes `part`.
    /// Pages that the block shares with others are handles of their own.
    /// `capacity_bytes` can be mapped at all.
    pub(super) fn handle_of(
        &self,
        run: AddressRange,
        part: AddressRange,
        capacity_bytes: usize,
    ) -> AddressRange {
        if !self.handles {
            return run;
        }
        if self.options.mode == Mode::OnPressure {
            let most =
                (self.stats.requested.peak / LONG_HANDLES_IN_ALL).max(LONG_HANDLE_PAGES * self.page_bytes);
            let room = capacity_bytes / LONG_HANDLES_IN_CAPACITY;
            let most = most.min(room) & !(self.page_bytes - 1);
            if most > self.handle_bytes(part.len, capacity_bytes) {
                return AddressRange::new(run.start, run.len.min(most));
            }
        }
        let piece = self.piece_of(run, part);
        AddressRange::new(run.start, piece.len.min(self.handle_bytes(part.len, capacity_bytes)))
    }

    /// The first part of an unmapped run that handles of a block that takes `part` may fill.
    fn piece_of(&self, run: AddressRange, part: AddressRange) -> AddressRange {
        let inner = part.inner_pages(self.page_bytes);
        if run.start < inner.start || inner.is_empty() {
            return AddressRange::new(run.start, self.page_bytes);
        }
        let until = if run.start < inner.end() { inner.end() } else { run.end() };
        AddressRange::between(run.start, run.end().min(until))
    }

    /// The longest handle for a request of `len` bytes.
    fn handle_bytes(&self, len: usize, capacity_bytes: usize) -> usize {
        if len <= self.options.small_limit_bytes {
            return self.page_bytes;
        }
        // Where nothing is known of the capacity there is none to spare.
        let room = if capacity_bytes == usize::MAX { 0 } else { capacity_bytes / ROOM_PARTS };
        let peak = self.stats.requested.peak;
        let parts = if room > peak { HANDLES_A_REQUEST_WITH_ROOM } else { HANDLES_A_REQUEST };
        let most = (peak.max(room) / self.handles_in_all).max(SHORT_HANDLE_PAGES * self.page_bytes);
        (len / parts).min(most).max(self.page_bytes) & !(self.page_bytes - 1)
    }

    /// Moves free memory to where `part` of a free block that is in no index misses some, as long as more
    /// than was ever asked for at once would be mapped otherwise. What cannot be moved is left.
    pub(super) fn move_pages(
        &mut self,
        id: BlockId,
        part: AddressRange,
        requested: usize,
        upstream: &mut dyn Upstream,
    ) {
        let touched = part.outer_pages(self.page_bytes);
        let slot = self.blocks.get(id).segment as usize;
        let mapped = self.pages_mut(slot).mapped_page_count(touched) * self.page_bytes;
        let live = self.stats.requested.peak.max(self.stats.requested.current + requested);
        let slack = live / SLACK_PARTS + live / MORE_SLACK_PARTS * self.more_slack + self.mapped_instead;
        let most = (live + slack).max(self.kept_bytes);
        let wanted = self.stats.reserved.current + touched.len - mapped;
        let mut over = wanted.saturating_sub(most);
        // A request that nothing makes room for moves nothing either.
        let capacity = self.capacity_bytes(upstream);
        let spare = self.stats.releasable_bytes + self.blocks.get(id).extra as usize * self.page_bytes;
        if live > self.settled_peak + self.settled_peak / SLACK_PARTS {
            (self.settled_peak, self.moved_pages) = (live, 0);
            self.joins_at_once = false;
        }
        if over == 0 || wanted.saturating_sub(spare) > capacity {
            return;
        }
        if !self.handles && (self.repeats.come_back(over) || self.repeats.too_often()) {
            self.mapped_instead += over;
            return;
        }
        if self.handles && self.parks() && self.repeats.come_back(over) {
            self.joins_at_once = true;
        }
        let mut free = self.free_handles(id, touched);
        let mut in_use = Vec::new();
        // First those of the very length. Then others go back to the device, for new ones of the right
        // length: the shortest that suffices, else the longest. What work still uses cannot go back,
        // but it can move, and shorter ones together fill a long place.
        over = self.fill(id, part, over, &mut free, true, upstream);
        while over > 0 {
            let suffices = |handle: &FreeHandle| handle.range.len >= over;
            // Asking whether a handle is idle may take longer than finding it.
            let found = loop {
                let best = best_of(&free, |handle| {
                    let len = handle.range.len;
                    let rank = if suffices(handle) { usize::MAX - len } else { len };
                    Some((suffices(handle), rank))
                });
                let Some(at) = best else { break None };
                let handle = free.swap_remove(at);
                if upstream.is_idle(handle.range) {
                    break Some(handle);
                }
                in_use.push(handle);
            };
            let Some(handle) = found else { break };
            over = over.saturating_sub(self.give_up(&handle, id, upstream));
        }
        if over > 0 {
            over = self.fill(id, part, over, &mut in_use, false, upstream);
        }
        self.free_handles = free;
        if over > (live / MUCH_PINNED_PARTS).max(MUCH_PINNED_PAGES * self.page_bytes) {
            self.handles_in_all += self.handles_in_all * SHORTER_PERCENT / 100;
            self.handles_in_all = self.handles_in_all.min(SHORTEST_PARTS * HANDLES_IN_ALL);
        }
        if over > (live / PINNED_PARTS).max(PINNED_PAGES * self.page_bytes) {
            self.apart_until = self.frees.wrapping_add(FREES_APART);
        }
    }

    /// Moves handles into unmapped parts of `part` until `over` more bytes than should be are no longer
    /// missing, and returns what is left of `over`: only handles of the very length of new ones, or the
    /// longest that fit.
    fn fill(
        &mut self,
        id: BlockId,
        part: AddressRange,
        mut over: usize,
        free: &mut Vec<FreeHandle>,
        exactly: bool,
        upstream: &mut dyn Upstream,
    ) -> usize {
        let touched = part.outer_pages(self.page_bytes);
        let slot = self.blocks.get(id).segment as usize;
        let capacity = self.capacity_bytes(upstream);
        let mut rest = touched;
        // Lengths that are not there: most handles of a place have one of two lengths.
        let mut not_there = [0; 2];
        while over > 0
            && let Some(run) = self.pages_mut(slot).first_unmapped_run(rest)
        {
            // Where there are no handles every page moves by itself.
            let wanted = if self.handles { self.handle_of(run, part, capacity).len } else { self.page_bytes };
            let longest = self.piece_of(run, part).len;
            // One of the very length, or the longest, and of those the one that was free for longest.
            let found = if exactly {
                let of_length = |handle: &FreeHandle| (handle.range.len == wanted).then_some(handle.age);
                if not_there.contains(&wanted) { None } else { best_of(free, of_length) }
            } else {
                best_of(free, |handle| {
                    (handle.range.len <= longest).then_some((handle.range.len, handle.age))
                })
            };
            let Some(at) = found else {
                not_there = [wanted, not_there[0]];
                rest = AddressRange::between(run.start + wanted, touched.end());
                continue;
            };
            let handle = free.swap_remove(at);
            let to = AddressRange::new(run.start, handle.range.len);
            rest = AddressRange::between(to.end(), touched.end());
            if self.relocate(&handle, id, to, upstream) {
                over = over.saturating_sub(to.len);
            }
        }
        over
    }

    /// Every handle of free blocks, those under `touched` excepted. `id` is a free block that is in no
    /// index.
    fn free_handles(&mut self, id: BlockId, touched: AddressRange) -> Vec<FreeHandle> {
        let mut free = std::mem::take(&mut self.free_handles);
        free.clear();
        for index in self.zones.iter().flat_map(|zone| [&zone.resident, &zone.sparse]) {
            // Shorter blocks have no whole page.
            index.visit_from(self.page_bytes, |block| {
                if !self.handles || self.has_whole_handles(block) {
                    self.add_handles(block, None, &mut free);
                }
                ControlFlow::Continue(())
            });
        }
        self.add_handles(id, Some(touched), &mut free);
        free
    }

    /// Adds the whole handles of a free block, but not those under `touched`.
    fn add_handles(&self, id: BlockId, touched: Option<AddressRange>, free: &mut Vec<FreeHandle>) {
        let block = self.blocks.get(id);
        if block.extra == 0 {
            return;
        }
        let pages = &self.segment(block).pages;
        let inner = block.range().inner_pages(self.page_bytes);
        let whole = pages.whole_handles(inner);
        // Most of a block at the end of a range is not mapped: nobody looks there for handles. What lies
        // before and behind the whole ones is mapped.
        let mut mapped_bytes = block.extra as usize * self.page_bytes - (inner.len - whole.len);
        let mut handles = pages.handles(whole);
        while mapped_bytes > 0
            && let Some(range) = handles.next()
        {
            mapped_bytes = mapped_bytes.saturating_sub(range.len);
            let apart = touched.is_none_or(|part| range.end() <= part.start || range.start >= part.end());
            if apart {
                // The count of frees wraps.
                let age = self.frees.wrapping_sub(pages.freed_at(range.start));
                free.push(FreeHandle { age, range, block: id });
            }
        }
    }

    /// Changes what is mapped of a free block; `id` is one that is in no index.
    fn change_free<R>(&mut self, block: BlockId, id: BlockId, change: impl FnOnce(&mut Self) -> R) -> R {
        if block != id {
            self.remove_free(block);
        }
        let result = change(self);
        if block != id {
            self.insert_free(block);
        }
        result
    }

    /// Moves a handle to unmapped pages of `id`. When it got lost on the way its memory is given back.
    fn relocate(
        &mut self,
        handle: &FreeHandle,
        id: BlockId,
        to: AddressRange,
        upstream: &mut dyn Upstream,
    ) -> bool {
        let from = handle.range;
        self.stats.map_calls += 1;
        let moved = upstream.relocate(from, to);
        let lost = match &moved {
            Ok(()) => from.len,
            Err(error) => from.len - error.completed_bytes,
        };
        if lost > 0 {
            self.change_free(handle.block, id, |this| {
                this.note_unmapped(handle.block, AddressRange::new(from.start, lost));
            });
        }
        if moved.is_ok() {
            self.note_mapped(id, to);
            // What was written there may have come along.
            let slot = self.blocks.get(id).segment as usize;
            self.pages_mut(slot).set_dirty(to);
            self.stats.moved_bytes += to.len as u64;
            self.note_moved(to.len);
        }
        moved.is_ok()
    }

    /// Gives a handle's memory back and returns its bytes.
    fn give_up(&mut self, handle: &FreeHandle, id: BlockId, upstream: &mut dyn Upstream) -> usize {
        let bytes = self.change_free(handle.block, id, |this| {
            this.unmap_pages(handle.block, handle.range, handle.range.len, usize::MAX, upstream)
        });
        self.note_moved(bytes);
        bytes
    }

    /// Notes that memory went elsewhere.
    fn note_moved(&mut self, bytes: usize) {
        self.moved_pages += bytes / self.page_bytes;
        let times = if self.more_slack == 0 { MOVED_TIMES } else { 1 };
        if self.moved_pages > self.settled_peak / self.page_bytes * times
            && self.more_slack < MORE_SLACK_TIMES
        {
            self.more_slack += 1;
            self.moved_pages = 0;
        }
    }
}

/// The place of the handle with the greatest key, the first of equal ones.
fn best_of<K: Ord>(handles: &[FreeHandle], key: impl Fn(&FreeHandle) -> Option<K>) -> Option<usize> {
    let mut best: Option<(K, usize)> = None;
    for (at, handle) in handles.iter().enumerate() {
        if let Some(key) = key(handle)
            && best.as_ref().is_none_or(|(other, _)| key > *other)
        {
            best = Some((key, at));
        }
    }
    best.map(|(_, at)| at)
}
