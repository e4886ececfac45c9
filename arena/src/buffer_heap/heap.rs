//! The places of a heap's buffers.

use std::collections::{BTreeMap, HashMap};

use rustc_hash::FxBuildHasher;

use super::{BufferId, HeapOptions, HeapStats, Moment};
use crate::invariant::Violation;
use crate::placement::LiveBlock;
use crate::range::AddressRange;

/// A heap does not grow by more than this at once, unless a buffer needs it.
const MOST_GROWTH_BYTES: usize = 256 << 20;

/// A buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) id: BufferId,
    pub(super) len: usize,
    pub(super) live: bool,
    /// The buffer is no more; its place goes when it is nobody's.
    pub(super) removed: bool,
    /// Compactions that it has seen.
    pub(super) survived: u32,
    /// Somebody has had it.
    pub(super) written: bool,
    /// It lost what it held, and nobody has had it since.
    lost: bool,
    taken: Moment,
    /// It was somebody's while something was recorded, which may know its address.
    pub(super) recorded: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Heap {
    options: HeapOptions,
    /// The pool's blocks, the largest first: so small ones get empty.
    blocks: Vec<AddressRange>,
    pub(super) places: BTreeMap<usize, Place>,
    addrs: HashMap<BufferId, usize, FxBuildHasher>,
    next_buffer: u64,
    pub(super) compactions: u32,
    retired: bool,
}

impl Heap {
    pub(super) fn new(options: HeapOptions) -> Self {
        debug_assert!(options.granule_bytes.is_power_of_two(), "a granule is a power of two");
        Self {
            options,
            blocks: Vec::new(),
            places: BTreeMap::new(),
            addrs: HashMap::default(),
            next_buffer: 0,
            compactions: 0,
            retired: false,
        }
    }

    pub(super) fn options(&self) -> HeapOptions {
        self.options
    }

    pub(super) fn set_options(&mut self, options: HeapOptions) {
        self.options = options;
    }

    pub(super) fn blocks(&self) -> &[AddressRange] {
        &self.blocks
    }

    pub(super) fn has_no_blocks(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired
    }

    /// All buffers are removed, and no more come.
    pub(super) fn retire(&mut self) {
        self.retired = true;
        for (_, addr) in std::mem::take(&mut self.addrs) {
            self.end_place(addr);
        }
    }

    #[inline]
    pub(super) fn contains(&self, addr: usize) -> bool {
        self.blocks.iter().any(|block| block.contains(addr))
    }

    /// Bytes of the place of a buffer of `size_bytes`.
    fn place_bytes(&self, size_bytes: usize) -> Option<usize> {
        size_bytes.max(1).checked_next_multiple_of(self.options.granule_bytes)
    }

    pub(super) fn wanted_block(&self, size_bytes: usize) -> Option<(usize, usize)> {
        let needed = self.place_bytes(size_bytes)?;
        let there: usize = self.blocks.iter().map(|block| block.len).sum();
        let granules = self.options.granule_bytes - 1;
        Some((needed.max((there / 2).min(MOST_GROWTH_BYTES) & !granules), needed))
    }

    pub(super) fn add_block(&mut self, block: AddressRange) {
        let at = self.blocks.partition_point(|other| other.len >= block.len);
        self.blocks.insert(at, block);
    }

    /// The shortest hole that suffices, and of those the first.
    pub(super) fn place(&mut self, size_bytes: usize) -> Option<BufferId> {
        let len = self.place_bytes(size_bytes)?;
        let mut best: Option<AddressRange> = None;
        self.for_each_hole(|hole, _| {
            if hole.len >= len && best.is_none_or(|best| hole.len < best.len) {
                best = Some(hole);
            }
        });
        let hole = best?;
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        let place = Place {
            id,
            len,
            live: false,
            removed: false,
            survived: 0,
            written: false,
            lost: false,
            taken: Moment::default(),
            recorded: false,
        };
        self.places.insert(hole.start, place);
        self.addrs.insert(id, hole.start);
        Some(id)
    }

    /// Runs `f` on what no buffer has of each block, in order of address, with whether it lies behind all buffers.
    fn for_each_hole(&self, mut f: impl FnMut(AddressRange, bool)) {
        for block in &self.blocks {
            let mut at = block.start;
            for (&addr, place) in self.places.range(block.start..block.end()) {
                if addr > at {
                    f(AddressRange::between(at, addr), false);
                }
                at = addr + place.len;
            }
            if at < block.end() {
                f(AddressRange::between(at, block.end()), true);
            }
        }
    }

    pub(super) fn remove_buffer(&mut self, id: BufferId) {
        if let Some(addr) = self.addrs.remove(&id) {
            self.end_place(addr);
        }
    }

    /// The buffer at `addr` is no more.
    fn end_place(&mut self, addr: usize) {
        let place = self.places.get_mut(&addr).expect("a buffer has its place");
        place.removed = true;
        if !place.live {
            self.places.remove(&addr);
        }
    }

    #[inline]
    pub(super) fn take(&mut self, id: BufferId, size_bytes: usize, now: Moment) -> Option<usize> {
        let addr = *self.addrs.get(&id)?;
        let place = self.places.get_mut(&addr).filter(|place| !place.live && size_bytes <= place.len)?;
        (place.live, place.written, place.lost) = (true, true, false);
        place.taken = now;
        place.recorded |= now.recording;
        Some(addr)
    }

    #[inline]
    pub(super) fn free(&mut self, addr: usize, now: Moment) -> Option<usize> {
        let place = self.places.get_mut(&addr).filter(|place| place.live)?;
        place.live = false;
        // A recording that is going on either was at the taking, or has begun since.
        place.recorded |= now.count != place.taken.count;
        let len = place.len;
        if place.removed {
            self.places.remove(&addr);
        }
        Some(len)
    }

    pub(super) fn addr(&self, id: BufferId) -> Option<usize> {
        self.addrs.get(&id).copied()
    }

    pub(super) fn is_free(&self, id: BufferId) -> bool {
        self.addr(id).is_some_and(|addr| !self.places[&addr].live)
    }

    /// A copy of what the buffer at `addr` holds was not finished. `true` as there is such a buffer.
    pub(super) fn lose_contents(&mut self, addr: usize) -> bool {
        self.places.get_mut(&addr).map(|place| place.lost = true).is_some()
    }

    pub(super) fn has_lost_contents(&self, id: BufferId) -> bool {
        self.addr(id).is_some_and(|addr| self.places[&addr].lost)
    }

    pub(super) fn live_bytes(&self, addr: usize) -> Option<usize> {
        self.places.get(&addr).filter(|place| place.live).map(|place| place.len)
    }

    pub(super) fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        let live = self.places.iter().filter(|(_, place)| place.live);
        live.map(|(&addr, &Place { len, .. })| LiveBlock { addr, requested_bytes: len, allocated_bytes: len })
    }

    pub(super) fn buffers(&self) -> impl Iterator<Item = (BufferId, usize)> + '_ {
        self.places.values().filter(|place| !place.removed).map(|place| (place.id, place.len))
    }

    pub(super) fn free_buffers(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let free = self.places.iter().filter(|(_, place)| !place.live);
        free.map(|(&addr, place)| AddressRange::new(addr, place.len))
    }

    /// The buffer at `from` lies at `to` from now on.
    pub(super) fn moved(&mut self, from: usize, to: usize) {
        let place = self.places.remove(&from).expect("a buffer lies there");
        self.addrs.insert(place.id, to);
        let before = self.places.insert(to, place);
        debug_assert!(before.is_none(), "buffers have places of their own");
    }

    /// Takes the blocks out in which no buffer lies.
    pub(super) fn take_unused_blocks(&mut self) -> Vec<AddressRange> {
        let places = &self.places;
        let unused = |block: &mut AddressRange| places.range(block.start..block.end()).next().is_none();
        self.blocks.extract_if(.., unused).collect()
    }

    /// As [`take_unused_blocks`](Self::take_unused_blocks), one.
    pub(super) fn take_unused_block(&mut self) -> Option<usize> {
        let unused = |block: &AddressRange| self.places.range(block.start..block.end()).next().is_none();
        let at = self.blocks.iter().position(unused)?;
        Some(self.blocks.remove(at).start)
    }

    /// The part of each block up to its last buffer, where that is not all.
    pub(super) fn used_parts(&self) -> Vec<AddressRange> {
        let used = |block: &AddressRange| {
            let (addr, place) = self.places.range(block.start..block.end()).next_back()?;
            let used = AddressRange::between(block.start, addr + place.len);
            (used.len < block.len).then_some(used)
        };
        self.blocks.iter().filter_map(used).collect()
    }

    /// The block at `start` is so long from now on.
    pub(super) fn resize_block(&mut self, start: usize, len: usize) {
        if let Some(block) = self.blocks.iter_mut().find(|block| block.start == start) {
            block.len = len;
        }
        self.blocks.sort_by_key(|block| std::cmp::Reverse(block.len));
    }

    pub(super) fn stats(&self) -> HeapStats {
        let mut hole_bytes = 0;
        self.for_each_hole(|hole, is_last| hole_bytes += if is_last { 0 } else { hole.len });
        HeapStats {
            buffers: self.places.len(),
            buffer_bytes: self.places.values().map(|place| place.len).sum(),
            block_bytes: self.blocks.iter().map(|block| block.len).sum(),
            hole_bytes,
        }
    }

    pub(super) fn check(&self) -> Result<(), Violation> {
        let mut before = 0;
        for (&addr, place) in &self.places {
            let range = AddressRange::new(addr, place.len);
            Violation::unless(before <= addr, || format!("the buffer at {addr:#x} overlaps the one before"))?;
            Violation::unless(self.blocks.iter().any(|block| block.covers(range)), || {
                format!("the buffer at {addr:#x} lies in no block")
            })?;
            Violation::unless(addr.is_multiple_of(self.options.granule_bytes), || {
                format!("the buffer at {addr:#x} lies in the middle of a granule")
            })?;
            let known = self.addrs.get(&place.id) == Some(&addr);
            Violation::unless(known || (place.removed && place.live), || {
                format!("nobody knows the buffer at {addr:#x}")
            })?;
            before = range.end();
        }
        let known = self.addrs.values().all(|addr| self.places.contains_key(addr));
        Violation::unless(known, || "a buffer has no place".to_owned())
    }
}
