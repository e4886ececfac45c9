//! A pool's figures counted from scratch in its snapshot.

use mempool_pools::MemPool;
use mempool_pools::snapshot::{BlockState, Segment};

/// Whether a pool's figures are what its snapshot comes to, while nobody uses the pool.
pub fn check(pool: &MemPool) -> Result<(), String> {
    let snapshot = pool.snapshot();
    let stats = pool.stats();
    let expect = |what: &str, said: usize, counted: usize| -> Result<(), String> {
        if said == counted { Ok(()) } else { Err(format!("{what}: {said} are said and {counted} are there")) }
    };
    let sum = |of: fn(&Segment) -> usize| -> usize { snapshot.segments.iter().map(of).sum() };
    expect("allocated bytes", stats.allocated.current, sum(|segment| segment.allocated_size))?;
    expect("active bytes", stats.active.current, sum(|segment| segment.active_size))?;
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let is_live = |block: &&mempool_pools::snapshot::Block| block.state == BlockState::ActiveAllocated;
    // What steps and sets of buffers keep counts as one block each, whatever lies in it.
    let keeps = blocks.clone().any(|block| block.is_kept);
    if !keeps {
        expect("requested bytes", stats.requested.current, sum(|segment| segment.requested_size))?;
        expect("blocks", stats.blocks.current, blocks.filter(is_live).count())?;
    }
    let mapped = sum(|segment| segment.total_size);
    // Pages that were set aside are the pool's, and serve nobody.
    if mapped > stats.reserved.current {
        return Err(format!("{mapped} bytes are mapped, and {} are said to be", stats.reserved.current));
    }
    for segment in &snapshot.segments {
        let mut at = segment.address;
        for block in &segment.blocks {
            if block.address != at || block.size == 0 {
                return Err(format!("the block at {:#x} does not follow the one before", block.address));
            }
            if block.requested_size > block.size {
                return Err(format!("the block at {:#x} is shorter than it was asked for", block.address));
            }
            at += block.size;
        }
        expect("bytes of a segment", segment.total_size, at - segment.address)?;
    }
    let ends = snapshot.segments.iter().map(|segment| segment.address + segment.total_size);
    let overlaps = ends.zip(snapshot.segments.iter().skip(1)).any(|(end, next)| next.address < end);
    if overlaps { Err("segments overlap".to_owned()) } else { Ok(()) }
}
