//! A virtual range that pools live in.
//!
//! Whether a pointer belongs to a pool is one range compare, and which pool it belongs to one
//! look into a table: the range is cut into equal *parts*, and an owner has whole parts. The
//! bounds are published as one word, so that no thread can see a base without its length.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use mempool_arena::{AddressRange, BuddyTree, UpstreamError};

use crate::lock::Lock;

/// What is asked for first. Address space costs nothing until it is used; 16 TiB is an eighth
/// of what x86-64 gives a process.
const WANTED_LOG2: u32 = if usize::BITS == 64 { 44 } else { 28 };
/// Below this a region is not worth having.
const SMALLEST_LOG2: u32 = 26;
/// A region has at most this many parts: the size of the owner table.
const PART_COUNT_LOG2: u32 = 14;
/// A part is at least one page of the upstream.
pub(crate) const PAGE_LOG2: u32 = 21;

const LOG2_MASK: usize = 63;

/// The region of all host pools.
pub(crate) static HOST: Region = Region::new();

/// See the module's text.
pub(crate) struct Region {
    /// Base of the region, with the logarithm of its length in the low bits (the base is
    /// aligned to a page, so they are free). Zero while nothing is reserved.
    bounds: AtomicUsize,
    /// For each part, its owner's index plus one; zero for nobody.
    owners: [AtomicU32; 1 << PART_COUNT_LOG2],
    /// The parts nobody owns; `None` while nothing is reserved.
    parts: Lock<Option<BuddyTree>>,
}

impl Region {
    /// A region without addresses.
    pub(crate) const fn new() -> Self {
        Self {
            bounds: AtomicUsize::new(0),
            owners: [const { AtomicU32::new(0) }; 1 << PART_COUNT_LOG2],
            parts: Lock::new(None),
        }
    }

    /// Takes addresses from `reserve`, as many as it gives of at most `left` bytes. Called once,
    /// under a lock of the caller.
    pub(crate) fn open(
        &self,
        left: Option<usize>,
        mut reserve: impl FnMut(usize) -> Result<AddressRange, UpstreamError>,
    ) -> Result<(), String> {
        // Half of what a limited process may take is left to everything else in it.
        let allowed = left.map_or(usize::MAX, |bytes| bytes / 2);
        let mut refused = None;
        for log2 in (SMALLEST_LOG2..=WANTED_LOG2).rev() {
            // The page in front serves to align the base.
            let len = (1 << log2) + (1 << PAGE_LOG2);
            if len > allowed {
                continue;
            }
            match reserve(len) {
                Ok(range) => {
                    let base = range.inner_pages(1 << PAGE_LOG2).start;
                    let mut parts = BuddyTree::new(part_log2(log2));
                    parts.add_region(base, log2);
                    *self.parts.lock() = Some(parts);
                    self.bounds.store(base | log2 as usize, Ordering::Release);
                    return Ok(());
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(match (left, refused) {
            (_, Some(error)) => format!("no address space could be reserved ({error})"),
            (Some(left), None) => format!(
                "{left} bytes of address space are left under this process's limit (RLIMIT_AS), too few for pools"
            ),
            (None, None) => "no address space could be reserved".to_owned(),
        })
    }

    /// The region's bytes; 0 while there is none.
    pub(crate) fn len(&self) -> usize {
        match self.bounds.load(Ordering::Acquire) {
            0 => 0,
            bounds => 1 << (bounds & LOG2_MASK),
        }
    }

    /// Bytes of a part.
    pub(crate) fn part_bytes(&self) -> usize {
        1 << part_log2((self.bounds.load(Ordering::Acquire) & LOG2_MASK) as u32)
    }

    /// The owner of `addr`.
    #[inline]
    pub(crate) fn owner(&self, addr: usize) -> Option<u32> {
        // Relaxed is enough: a thread that holds a pool's pointer got it from one that saw the
        // bounds, and for any other pointer stale bounds give the same answer.
        let bounds = self.bounds.load(Ordering::Relaxed);
        let log2 = bounds & LOG2_MASK;
        let offset = addr.wrapping_sub(bounds & !LOG2_MASK);
        if offset >> log2 != 0 {
            return None;
        }
        self.owners.get(offset >> part_log2(log2 as u32))?.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Takes parts for at least `len` bytes, for `owner`.
    pub(crate) fn take(&self, len: usize, owner: u32) -> Result<AddressRange, UpstreamError> {
        let refused = UpstreamError::AddressSpace { requested_bytes: len };
        let mut parts = self.parts.lock();
        let tree = parts.as_mut().ok_or(refused.clone())?;
        let order = tree.order_for(len).ok_or(refused.clone())?;
        let start = tree.allocate(order).ok_or(refused)?;
        let range = AddressRange::new(start, 1 << order);
        self.set_owner(range, owner + 1);
        Ok(range)
    }

    /// Gives parts back that [`take`](Self::take) returned.
    pub(crate) fn give_back(&self, range: AddressRange) {
        self.set_owner(range, 0);
        let mut parts = self.parts.lock();
        parts.as_mut().expect("parts come from a region").free(range.start, range.len.trailing_zeros());
    }

    /// The lock of the parts, for the fork handlers.
    pub(crate) fn lock_for_fork(&'static self) -> &'static Lock<Option<BuddyTree>> {
        &self.parts
    }

    fn set_owner(&self, range: AddressRange, owner: u32) {
        let base = self.bounds.load(Ordering::Acquire) & !LOG2_MASK;
        let part = self.part_bytes();
        for entry in &self.owners[(range.start - base) / part..(range.end() - base) / part] {
            entry.store(owner, Ordering::Relaxed);
        }
    }
}

const fn part_log2(region_log2: u32) -> u32 {
    let log2 = region_log2.saturating_sub(PART_COUNT_LOG2);
    if log2 > PAGE_LOG2 { log2 } else { PAGE_LOG2 }
}
