//! What was live when, by the shortest way: a map that follows the trace backwards.

use std::collections::BTreeMap;

use mempool_pools::snapshot::{Action, BlockState, Snapshot};

/// Blocks at one moment: by address whether queued work alone still uses them.
pub(crate) type Blocks = BTreeMap<usize, bool>;

/// The blocks of a device after so many entries of its trace.
pub(crate) fn blocks_at(snapshot: &Snapshot, device: usize, moment: usize) -> Blocks {
    let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
    let mut blocks: Blocks = segments
        .flat_map(|segment| &segment.blocks)
        .filter(|block| block.state != BlockState::Inactive && !block.is_kept)
        .map(|block| (block.address, block.state == BlockState::ActivePendingFree))
        .collect();
    for entry in snapshot.device_traces[device][moment..].iter().rev() {
        match (entry.action, entry.addr) {
            (Action::Alloc, Some(addr)) => assert!(blocks.remove(&addr).is_some()),
            (Action::FreeRequested, Some(addr)) => drop(blocks.insert(addr, false)),
            (Action::FreeCompleted, Some(addr)) => assert!(blocks.insert(addr, true).is_none()),
            _ => {}
        }
    }
    blocks
}
