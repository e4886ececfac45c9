//! Host memory for an arena: parts of the [`region`], committed in pages of 1 MiB, which can move.
//!
//! There are few parts, and some policies reserve a range for each segment. So what is shorter than a part
//! shares one with others of the same pool, and the part goes back when nothing of it is used.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mempool_arena::{AddressRange, Arena, Holes, MapError, Upstream, UpstreamError};

use crate::history::Observed;
use crate::{os, region};

/// What is committed at least, and what moves: half a huge page. With whole ones blocks of a few MiB pin more
/// than moving saves.
pub(crate) const PAGE_BYTES: usize = 1 << 20;

/// Whether memory is committed with the advice to use huge pages.
static HUGE_PAGES: AtomicBool = AtomicBool::new(true);

/// Pages of all pools that have moved: each is a mapping of its own, of which a process may have so many.
static MOVED_PAGES: AtomicUsize = AtomicUsize::new(0);
/// A quarter of the mappings that Linux allows a process.
const MAX_MOVED_PAGES: usize = 16 << 10;

/// Chooses whether memory that pools take from now on is backed by huge pages where the system
/// has them (on Linux, transparent huge pages); it is unless this says otherwise.
///
/// Huge pages make the first touch of memory rarer by a factor of 500 and address translation
/// cheaper. They can make it slower instead: where memory is so fragmented that the system has to
/// compact it first, or in virtual machines whose host takes free huge pages back.
pub fn set_huge_pages(enabled: bool) {
    HUGE_PAGES.store(enabled, Ordering::Relaxed);
}

/// An arena of host memory.
pub(crate) type HostArena = Arena<Observed<HostUpstream>>;

/// Host memory on behalf of one pool.
#[derive(Debug)]
pub(crate) struct HostUpstream {
    slot_index: u32,
    /// Parts that several ranges share, and what of them is unused.
    shared: Holes,
    /// What is mapped is touched at once.
    touches: bool,
    mapping_time: Duration,
    /// The pages that have moved to where they are.
    moved: BTreeSet<usize>,
}

impl HostUpstream {
    pub(crate) fn new(slot_index: u32) -> Self {
        Self {
            slot_index,
            shared: Holes::default(),
            touches: false,
            mapping_time: Duration::ZERO,
            moved: BTreeSet::new(),
        }
    }

    /// Chooses whether the system has to find memory for what is mapped from now on at once, and not when
    /// it is first written to: then mapping fails where there is none, and writing causes no page faults.
    pub(crate) fn touch_what_is_mapped(&mut self, enabled: bool) {
        self.touches = enabled;
    }

    /// Time spent in calls of the system that commit and decommit memory.
    pub(crate) fn mapping_time(&self) -> Duration {
        self.mapping_time
    }

    /// That time begins at zero.
    pub(crate) fn reset_mapping_time(&mut self) {
        self.mapping_time = Duration::ZERO;
    }

    /// Notes that pages are no longer where they had moved to.
    fn forget_moved(&mut self, range: AddressRange) {
        let before = self.moved.len();
        while let Some(&page) = self.moved.range(range.start..range.end()).next() {
            self.moved.remove(&page);
        }
        MOVED_PAGES.fetch_sub(before - self.moved.len(), Ordering::Relaxed);
    }

    fn timed<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        self.mapping_time += start.elapsed();
        result
    }
}

impl Upstream for HostUpstream {
    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn capacity_bytes(&self) -> usize {
        region::HOST.len()
    }

    fn reserve(&mut self, len: usize) -> Result<AddressRange, UpstreamError> {
        let len = len.max(1).checked_next_multiple_of(self.page_bytes()).unwrap_or(len);
        if len >= region::HOST.part_bytes() {
            return region::HOST.take(len, self.slot_index);
        }
        if let Some(range) = self.shared.take(len, self.page_bytes()) {
            return Ok(range);
        }
        let part = region::HOST.take(len, self.slot_index)?;
        self.shared.add_range(part);
        Ok(self.shared.take(len, self.page_bytes()).expect("a part holds it"))
    }

    fn release(&mut self, range: AddressRange) -> Result<(), UpstreamError> {
        // A range that has parts to itself is none that shares one.
        if range.len >= region::HOST.part_bytes() {
            region::HOST.give_back(range);
        } else if let Some(part) = self.shared.give(range) {
            self.shared.remove_range(part);
            region::HOST.give_back(part);
        }
        Ok(())
    }

    fn map(&mut self, range: AddressRange) -> Result<(), MapError> {
        let touches = self.touches;
        self.timed(|| {
            let committed = os::commit(range, HUGE_PAGES.load(Ordering::Relaxed));
            let touched = committed.and_then(|()| if touches { os::populate(range) } else { Ok(()) });
            touched.map_err(|source| {
                // A part may have been committed before the rest was refused. If taking it back fails
                // too, it is readable memory that nobody uses.
                let _ = os::decommit(range);
                MapError { completed_bytes: 0, source }
            })
        })
    }

    fn unmap(&mut self, range: AddressRange) -> Result<(), MapError> {
        self.timed(|| os::decommit(range)).map_err(|source| MapError { completed_bytes: 0, source })?;
        self.forget_moved(range);
        Ok(())
    }

    fn relocate(&mut self, from: AddressRange, to: AddressRange) -> Result<(), MapError> {
        if MOVED_PAGES.load(Ordering::Relaxed) < MAX_MOVED_PAGES && self.timed(|| os::relocate(from, to)) {
            self.forget_moved(from);
            self.moved.extend((to.start..to.end()).step_by(PAGE_BYTES));
            MOVED_PAGES.fetch_add(to.len / PAGE_BYTES, Ordering::Relaxed);
            return Ok(());
        }
        self.unmap(from).map_err(|error| MapError { completed_bytes: from.len, ..error })?;
        self.map(to)
    }
}

impl Drop for HostUpstream {
    fn drop(&mut self) {
        MOVED_PAGES.fetch_sub(self.moved.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use crate::thread_state::inside;

    #[test]
    fn tens_of_thousands_of_short_ranges_take_few_parts_and_give_them_back() {
        const OWNER: u32 = 4000;
        inside(registry::require_open).unwrap();
        let part = region::HOST.part_bytes();
        let mut upstream = HostUpstream::new(OWNER);
        let page = upstream.page_bytes();
        let mut ranges: Vec<AddressRange> = (0..40_000).map(|_| upstream.reserve(page).unwrap()).collect();
        assert!(ranges.iter().all(|range| region::HOST.owner(range.start) == Some(OWNER)));
        ranges.sort();
        assert!(ranges.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        let parts = (40_000 * page).div_ceil(part);
        assert_eq!(upstream.shared.ranges().count(), parts);
        // The second half goes back, and what follows takes its places.
        let second = ranges.split_off(20_000);
        let given_back = second[20_000 - 1].start;
        second.into_iter().for_each(|range| upstream.release(range).unwrap());
        assert_eq!(region::HOST.owner(given_back), None);
        assert!(upstream.shared.ranges().count() <= parts / 2 + 1);
        // Two lengths, and one with parts of its own, beside each other.
        let long = upstream.reserve(part).unwrap();
        ranges.extend((0..5000).map(|_| upstream.reserve(3 * page - 5).unwrap()));
        assert!(
            ranges.iter().all(|range| range.start % page == 0 && region::HOST.owner(range.start).is_some())
        );
        ranges.push(long);
        ranges.into_iter().for_each(|range| upstream.release(range).unwrap());
        assert_eq!(upstream.shared.ranges().count(), 0);
        assert_eq!(region::HOST.owner(long.start), None);
    }

    #[test]
    fn pages_that_moved_are_counted_until_they_go_back() {
        inside(registry::require_open).unwrap();
        let mut upstream = HostUpstream::new(4002);
        let range = upstream.reserve(8 * PAGE_BYTES).unwrap();
        let pages = |at: usize, count| AddressRange::new(range.start + at * PAGE_BYTES, count * PAGE_BYTES);
        upstream.map(pages(0, 4)).unwrap();
        upstream.relocate(pages(0, 1), pages(5, 1)).unwrap();
        upstream.relocate(pages(2, 2), pages(6, 2)).unwrap();
        // On other systems they do not move, but go back and come new.
        let moves = cfg!(target_os = "linux");
        assert_eq!(upstream.moved.len(), if moves { 3 } else { 0 });
        // What moved on is counted once, and what goes back no more.
        upstream.relocate(pages(6, 1), pages(0, 1)).unwrap();
        assert_eq!(upstream.moved.len(), if moves { 3 } else { 0 });
        upstream.unmap(pages(0, 2)).unwrap();
        upstream.unmap(pages(7, 1)).unwrap();
        let left: Vec<usize> = upstream.moved.iter().copied().collect();
        assert_eq!(left, if moves { vec![pages(5, 1).start] } else { vec![] });
        upstream.unmap(pages(5, 1)).unwrap();
        upstream.release(range).unwrap();
    }

    #[test]
    fn lengths_that_no_region_has_are_refused() {
        inside(registry::require_open).unwrap();
        let mut upstream = HostUpstream::new(4001);
        for len in [usize::MAX, usize::MAX - (1 << 20), 1 << 63, region::HOST.len() + 1] {
            assert!(matches!(upstream.reserve(len), Err(UpstreamError::AddressSpace { .. })), "{len}");
        }
    }
}
