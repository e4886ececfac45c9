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
    pub(super) plan: u64,
    pub(super) slot: u32,
    pub(super) len: usize,
    pub(super) size_bytes: usize,
    /// It is listed as late.
    late: bool,
}

impl PlacedBlock {
    pub(super) fn new(plan: u64, slot: u32, len: usize, size_bytes: usize) -> Self {
        Self { plan, slot, len, size_bytes, late: false }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) id: u64,
    pub(super) step: StepId,
    /// No plan uses it any more; it goes when its last block ends.
    pub(super) retired: bool,
    range: AddressRange,
    /// By address.
    live: HashMap<usize, PlacedBlock, FxBuildHasher>,
    /// Live blocks whose planned end has passed. Few, or none.
    late: Vec<AddressRange>,
}

impl Slab {
    pub(super) fn new(id: u64, step: StepId, range: AddressRange) -> Self {
        Self { id, step, retired: false, range, live: HashMap::default(), late: Vec::new() }
    }

    #[inline]
    pub(super) fn range(&self) -> AddressRange {
        self.range
    }

    pub(super) fn is_unused(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether something late lies in `range`.
    #[inline]
    pub(super) fn is_blocked(&self, range: AddressRange) -> bool {
        self.late.iter().any(|late| late.start < range.end() && range.start < late.end())
    }

    #[inline]
    pub(super) fn insert(&mut self, addr: usize, block: PlacedBlock) {
        let before = self.live.insert(addr, block);
        debug_assert!(before.is_none(), "{addr:#x} was handed out already");
    }

    /// The block's planned end has passed. Whether it is alive; then nothing is placed over it.
    #[inline]
    pub(super) fn note_end(&mut self, addr: usize, plan: u64, slot: u32) -> bool {
        match self.live.get_mut(&addr) {
            Some(block) if block.plan == plan && block.slot == slot => {
                if !block.late {
                    block.late = true;
                    self.late.push(AddressRange::new(addr, block.len));
                }
                true
            }
            _ => false,
        }
    }

    /// Whether the block at `addr` is this one, placed in the run in progress.
    pub(super) fn holds(&self, addr: usize, plan: u64, slot: u32) -> bool {
        self.live.get(&addr).is_some_and(|block| block.plan == plan && block.slot == slot && !block.late)
    }

    /// Whatever is alive is late from now on.
    pub(super) fn note_all_late(&mut self) {
        for (&addr, block) in self.live.iter_mut().filter(|(_, block)| !block.late) {
            block.late = true;
            self.late.push(AddressRange::new(addr, block.len));
        }
    }

    #[inline]
    pub(super) fn free(&mut self, addr: usize) -> Option<PlacedBlock> {
        let block = self.live.remove(&addr)?;
        if block.late {
            self.late.retain(|late| late.start != addr);
        }
        Some(block)
    }

    pub(super) fn live_bytes(&self, addr: usize) -> Option<usize> {
        self.live.get(&addr).map(|block| block.len)
    }

    pub(super) fn live_blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.live.iter().map(|(&addr, block)| LiveBlock {
            addr,
            requested_bytes: block.size_bytes,
            allocated_bytes: block.len,
        })
    }

    pub(super) fn live_count(&self) -> usize {
        self.live.len()
    }

    pub(super) fn check(&self) -> Result<(), Violation> {
        let mut blocks: Vec<AddressRange> =
            self.live.iter().map(|(&addr, block)| AddressRange::new(addr, block.len)).collect();
        blocks.sort();
        for block in &blocks {
            Violation::unless(self.range.covers(*block), || format!("{block} is outside of {}", self.range))?;
        }
        for pair in blocks.windows(2) {
            let apart = pair[0].end() <= pair[1].start;
            Violation::unless(apart, || format!("{} and {} are both alive", pair[0], pair[1]))?;
        }
        let mut late: Vec<AddressRange> = self.late.clone();
        let mut expected: Vec<AddressRange> = self
            .live
            .iter()
            .filter(|(_, block)| block.late)
            .map(|(&addr, block)| AddressRange::new(addr, block.len))
            .collect();
        late.sort();
        expected.sort();
        Violation::unless(late == expected, || format!("late are {expected:?}, listed {late:?}"))
    }
}
