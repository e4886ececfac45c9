//! Live blocks, and what grew from one snapshot to another.

use std::collections::{BTreeMap, HashSet};

use super::{Block, BlockState, Snapshot};

/// What grew under one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    /// The label; empty for blocks without one.
    pub label: String,
    /// Blocks that were not there before.
    pub blocks: usize,
    /// Bytes that were asked for in them.
    pub bytes: usize,
    /// The first of the steps in which they were allocated, and the last.
    pub steps: (u32, u32),
}

impl Snapshot {
    /// The blocks that are somebody's, the largest first. Those of planned steps and buffers that are nobody's now are not
    /// among them.
    #[must_use]
    pub fn live_blocks(&self) -> Vec<&Block> {
        let mut live: Vec<&Block> = self.live().map(|(_, block)| block).collect();
        live.sort_by_key(|block| (std::cmp::Reverse(block.size), block.address));
        live
    }

    /// The live blocks that were allocated first, with the [history](crate::record_history) that knows it; those
    /// from before it come first.
    #[must_use]
    pub fn oldest_blocks(&self) -> Vec<&Block> {
        let mut live: Vec<&Block> =
            self.live().map(|(_, block)| block).filter(|block| block.owner.is_some()).collect();
        let since = |block: &Block| {
            block.owner.as_ref().map(|owner| (!owner.is_older, owner.time_us, owner.position))
        };
        live.sort_by_key(|block| (since(block), block.address));
        live
    }

    /// Live blocks of which no history tells.
    pub(crate) fn unowned_blocks(&self) -> impl Iterator<Item = &Block> {
        self.live().map(|(_, block)| block).filter(|block| block.owner.is_none())
    }

    /// What is live here and was not in `before`, by label, the most bytes first: what a program does not let go of. A block
    /// at an address that was live before counts as new if a history says that it was allocated since; so a history that
    /// is kept for both tells most.
    #[must_use]
    pub fn diff(&self, before: &Self) -> Vec<Growth> {
        let known: HashSet<(usize, usize)> =
            before.live().map(|(device, block)| (device, block.address)).collect();
        let is_since = |block: &Block| {
            let owner = block.owner.as_ref().filter(|owner| !owner.is_older);
            owner.is_some_and(|owner| owner.time_us > before.mempool.time_us)
        };
        let mut grown: BTreeMap<&str, Growth> = BTreeMap::new();
        for (device, block) in self
            .live()
            .filter(|(device, block)| !known.contains(&(*device, block.address)) || is_since(block))
        {
            debug_assert!(device < self.mempool.devices.len(), "a segment's device is listed");
            let (label, step) = block.owner.as_ref().map_or(("", 0), |owner| (&*owner.label, owner.step));
            let growth = grown.entry(label).or_insert_with(|| Growth {
                label: label.to_owned(),
                blocks: 0,
                bytes: 0,
                steps: (step, step),
            });
            growth.blocks += 1;
            growth.bytes = growth.bytes.saturating_add(block.requested_size);
            growth.steps = (growth.steps.0.min(step), growth.steps.1.max(step));
        }
        let mut grown: Vec<Growth> = grown.into_values().collect();
        grown.sort_by_key(|growth| std::cmp::Reverse(growth.bytes));
        grown
    }

    /// Blocks that are somebody's, each with its device.
    fn live(&self) -> impl Iterator<Item = (usize, &Block)> {
        let blocks = self
            .segments
            .iter()
            .flat_map(|segment| segment.blocks.iter().map(move |block| (segment.device, block)));
        blocks.filter(|(_, block)| block.state == BlockState::ActiveAllocated && !block.is_kept)
    }
}
