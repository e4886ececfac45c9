//! The one virtual range that all host pools live in.
//!
//! Whether a pointer belongs to a pool is one range compare, and which pool it belongs to one
//! look into a table: the range is cut into equal *parts*, and a pool owns whole parts. The
//! bounds are published as one word, so that no thread can see a base without its length.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use mempool_arena::{AddressRange, BuddyTree, UpstreamError};

use crate::lock::Lock;
use crate::os;

/// What is asked of the system first. Address space costs nothing until it is used; 16 TiB is
/// an eighth of what x86-64 gives a process.
const WANTED_LOG2: u32 = if usize::BITS == 64 { 44 } else { 28 };
/// Below this a region is not worth having.
const SMALLEST_LOG2: u32 = 26;
/// A region has at most this many parts: the size of the owner table.
const PART_COUNT_LOG2: u32 = 14;
/// A part is at least one page of the upstream.
pub(crate) const PAGE_LOG2: u32 = 21;

/// Base of the region, with the logarithm of its length in the low bits (the base is aligned
/// to a page, so they are free). Zero while there is no region.
static BOUNDS: AtomicUsize = AtomicUsize::new(0);

/// For each part, the index of its pool's slot plus one; zero for nobody.
static OWNERS: [AtomicU32; 1 << PART_COUNT_LOG2] = [const { AtomicU32::new(0) }; 1 << PART_COUNT_LOG2];

/// The parts nobody owns; `None` while there is no region.
static PARTS: Lock<Option<BuddyTree>> = Lock::new(None);

const LOG2_MASK: usize = 63;

/// Reserves the region. Called once, under the registry's lock.
pub(crate) fn open() -> Result<(), String> {
    let left = os::address_space_left();
    // Half of what a limited process may take is left to everything else in it.
    let allowed = left.map_or(usize::MAX, |bytes| bytes / 2);
    let mut refused = None;
    for log2 in (SMALLEST_LOG2..=WANTED_LOG2).rev() {
        // The page in front serves to align the base.
        let len = (1 << log2) + (1 << PAGE_LOG2);
        if len > allowed {
            continue;
        }
        match os::reserve(len) {
            Ok(range) => {
                let base = range.inner_pages(1 << PAGE_LOG2).start;
                let mut parts = BuddyTree::new(part_log2(log2));
                parts.add_region(base, log2);
                *PARTS.lock() = Some(parts);
                BOUNDS.store(base | log2 as usize, Ordering::Release);
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
pub(crate) fn len() -> usize {
    match BOUNDS.load(Ordering::Acquire) {
        0 => 0,
        bounds => 1 << (bounds & LOG2_MASK),
    }
}

/// Bytes of a part.
pub(crate) fn part_bytes() -> usize {
    1 << part_log2((BOUNDS.load(Ordering::Acquire) & LOG2_MASK) as u32)
}

/// Index of the slot of the pool that `addr` belongs to.
#[inline]
pub(crate) fn owner(addr: usize) -> Option<u32> {
    // Relaxed is enough: a thread that holds a pool's pointer got it from one that saw the
    // bounds, and for any other pointer stale bounds give the same answer.
    let bounds = BOUNDS.load(Ordering::Relaxed);
    let log2 = bounds & LOG2_MASK;
    let offset = addr.wrapping_sub(bounds & !LOG2_MASK);
    if offset >> log2 != 0 {
        return None;
    }
    OWNERS.get(offset >> part_log2(log2 as u32))?.load(Ordering::Relaxed).checked_sub(1)
}

/// Takes parts for at least `len` bytes, for the pool of slot `owner`.
pub(crate) fn take(len: usize, owner: u32) -> Result<AddressRange, UpstreamError> {
    let refused = UpstreamError::AddressSpace { requested_bytes: len };
    let mut parts = PARTS.lock();
    let tree = parts.as_mut().ok_or(refused.clone())?;
    let order = tree.order_for(len).ok_or(refused.clone())?;
    let start = tree.allocate(order).ok_or(refused)?;
    let range = AddressRange::new(start, 1 << order);
    set_owner(range, owner + 1);
    Ok(range)
}

/// Gives parts back that [`take`] returned.
pub(crate) fn give_back(range: AddressRange) {
    set_owner(range, 0);
    let mut parts = PARTS.lock();
    parts.as_mut().expect("parts come from a region").free(range.start, range.len.trailing_zeros());
}

/// The lock of the parts, for the fork handlers.
pub(crate) fn lock_for_fork() -> &'static Lock<Option<BuddyTree>> {
    &PARTS
}

const fn part_log2(region_log2: u32) -> u32 {
    let log2 = region_log2.saturating_sub(PART_COUNT_LOG2);
    if log2 > PAGE_LOG2 { log2 } else { PAGE_LOG2 }
}

fn set_owner(range: AddressRange, owner: u32) {
    let base = BOUNDS.load(Ordering::Acquire) & !LOG2_MASK;
    let part = part_bytes();
    for entry in &OWNERS[(range.start - base) / part..(range.end() - base) / part] {
        entry.store(owner, Ordering::Relaxed);
    }
}
