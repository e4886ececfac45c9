//! The block in which planned requests have their places.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

use super::StepId;
use crate::invariant::Violation;
use crate::placement::LiveBlock;
use crate::range::AddressRange;

/// A block that a plan placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlacedBlock {
    pub(super) plan: u32,
    pub(super) slot: u32,
    pub(super) len: usize,
    pub(super) size_bytes: usize,
}

/// What lies at one address of the slab, at one time or another.
#[derive(Debug)]
struct Spot {
    addr: usize,
    block: Option<PlacedBlock>,
    /// The block's planned end has passed.
    late: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) id: u64,
    pub(super) step: StepId,
    /// No plan uses it any more; it goes when its last block ends.
    pub(super) retired: bool,
    range: AddressRange,
    /// The addresses that plans have, so that placing a block looks nothing up.
    spots: Vec<Spot>,
    by_addr: HashMap<usize, u32, FxBuildHasher>,
    live_count: usize,
    /// Live blocks whose planned end has passed. Few, or none.
    late: Vec<AddressRange>,
}

impl Slab {
    pub(super) fn new(id: u64, step: StepId, range: AddressRange) -> Self {
        Self {
            id,
            step,
            retired: false,
            range,
            spots: Vec::new(),
            by_addr: HashMap::default(),
            live_count: 0,
            late: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn range(&self) -> AddressRange {
        self.range
    }

    pub(super) fn is_unused(&self) -> bool {
        self.live_count == 0
    }

    /// Forgets the addresses of plans that are no more, if nothing is alive.
    pub(super) fn forget_spots(&mut self) -> bool {
        if self.is_unused() {
            self.spots.clear();
            self.by_addr.clear();
        }
        self.is_unused()
    }

    /// The number of the spot so many bytes behind the beginning.
    pub(super) fn spot(&mut self, offset: usize) -> u32 {
        let addr = self.range.start + offset;
        let next = self.spots.len() as u32;
        let spot = *self.by_addr.entry(addr).or_insert(next);
        if spot == next {
            self.spots.push(Spot { addr, block: None, late: false });
        }
        spot
    }

    /// Places a block, unless something late lies there; its address.
    #[inline]
    pub(super) fn place(&mut self, spot: u32, block: PlacedBlock) -> Option<usize> {
        let spot = &mut self.spots[spot as usize];
        let range = AddressRange::new(spot.addr, block.len);
        if self.late.iter().any(|late| late.start < range.end() && range.start < late.end()) {
            return None;
        }
        debug_assert!(spot.block.is_none(), "{range} was handed out already");
        spot.block = Some(block);
        self.live_count += 1;
        Some(range.start)
    }

    /// The block's planned end has passed. Whether it is alive; then nothing is placed over it.
    #[inline]
    pub(super) fn note_end(&mut self, spot: u32, plan: u32, slot: u32) -> bool {
        let spot = &mut self.spots[spot as usize];
        match spot.block {
            Some(block) if block.plan == plan && block.slot == slot => {
                if !spot.late {
                    spot.late = true;
                    self.late.push(AddressRange::new(spot.addr, block.len));
                }
                true
            }
            _ => false,
        }
    }

    /// Whatever is alive is late from now on.
    pub(super) fn note_all_late(&mut self) {
        if self.live_count == self.late.len() {
            return;
        }
        for spot in self.spots.iter_mut().filter(|spot| !spot.late) {
            if let Some(block) = spot.block {
                spot.late = true;
                self.late.push(AddressRange::new(spot.addr, block.len));
            }
        }
    }

    /// The address of this block, if it was placed in the run in progress and is alive.
    pub(super) fn holds(&self, spot: u32, plan: u32, slot: u32) -> Option<usize> {
        let spot = &self.spots[spot as usize];
        let same = spot.block.is_some_and(|block| block.plan == plan && block.slot == slot);
        (same && !spot.late).then_some(spot.addr)
    }

    #[inline]
    pub(super) fn free(&mut self, addr: usize) -> Option<PlacedBlock> {
        let spot = &mut self.spots[*self.by_addr.get(&addr)? as usize];
        let block = spot.block.take()?;
        self.live_count -= 1;
        if std::mem::take(&mut spot.late) {
            self.late.retain(|late| late.start != addr);
        }
        Some(block)
    }

    pub(super) fn live_bytes(&self, addr: usize) -> Option<usize> {
        let spot = &self.spots[*self.by_addr.get(&addr)? as usize];
        spot.block.map(|block| block.len)
    }

    fn live(&self) -> impl Iterator<Item = (&Spot, PlacedBlock)> + '_ {
        self.spots.iter().filter_map(|spot| spot.block.map(|block| (spot, block)))
    }

    pub(super) fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.live().map(|(spot, block)| LiveBlock {
            addr: spot.addr,
            requested_bytes: block.size_bytes,
            allocated_bytes: block.len,
        })
    }

    pub(super) fn live_count(&self) -> usize {
        self.live_count
    }

    pub(super) fn check(&self) -> Result<(), Violation> {
        let mut blocks: Vec<AddressRange> =
            self.live().map(|(spot, block)| AddressRange::new(spot.addr, block.len)).collect();
        blocks.sort();
        for block in &blocks {
            Violation::unless(self.range.covers(*block), || format!("{block} is outside of {}", self.range))?;
        }
        for pair in blocks.windows(2) {
            let apart = pair[0].end() <= pair[1].start;
            Violation::unless(apart, || format!("{} and {} are both alive", pair[0], pair[1]))?;
        }
        Violation::unless(blocks.len() == self.live_count, || {
            format!("{} blocks are alive, {} were counted", blocks.len(), self.live_count)
        })?;
        let late = self.live().filter(|(spot, _)| spot.late);
        let mut expected: Vec<AddressRange> =
            late.map(|(spot, block)| AddressRange::new(spot.addr, block.len)).collect();
        let mut listed = self.late.clone();
        listed.sort();
        expected.sort();
        Violation::unless(listed == expected, || format!("late are {expected:?}, listed {listed:?}"))
    }
}
