//! What PyTorch's page does with a snapshot: from the segments and blocks at the end it undoes one entry after the other.

use std::collections::HashMap;

use mempool_pools::snapshot::{Action, BlockState, Segment, Snapshot, TraceEntry};

#[derive(Debug, Clone, PartialEq)]
struct Stretch {
    addr: usize,
    size: usize,
    stream: u64,
}

impl Stretch {
    fn end(&self) -> usize {
        self.addr + self.size
    }
}

/// Draws all moments of all devices, and says what the page would stumble over.
pub fn draw(snapshot: &Snapshot) -> Result<(), String> {
    for (device, trace) in snapshot.device_traces.iter().enumerate() {
        let segments: Vec<&Segment> = snapshot.segments.iter().filter(|one| one.device == device).collect();
        draw_device(&segments, trace)?;
    }
    Ok(())
}

fn draw_device(segments: &[&Segment], trace: &[TraceEntry]) -> Result<(), String> {
    let stretch = |one: &&Segment| Stretch { addr: one.address, size: one.total_size, stream: one.stream };
    let mut mapped: Vec<Stretch> = segments.iter().map(stretch).collect();
    mapped.sort_by_key(|one| one.addr);
    // Whether it is freed and in use.
    let mut blocks: HashMap<usize, bool> = HashMap::new();
    for block in
        segments.iter().flat_map(|one| &one.blocks).filter(|block| block.state != BlockState::Inactive)
    {
        blocks.insert(block.address, block.state == BlockState::ActivePendingFree);
    }
    for entry in trace.iter().rev() {
        let addr = entry.addr.unwrap_or(0);
        let of = Stretch { addr, size: entry.size, stream: entry.stream };
        match entry.action {
            Action::Alloc => {
                // The page would not notice; it would be no past of what is there.
                blocks.remove(&addr).ok_or(format!("{entry:?} is not there afterwards"))?;
            }
            Action::FreeRequested => {
                *blocks.get_mut(&addr).ok_or(format!("{entry:?} is of nothing"))? = false;
            }
            Action::FreeCompleted => drop(blocks.insert(addr, true)),
            Action::SegmentUnmap => map(&mut mapped, of),
            Action::SegmentFree => {
                let at = mapped.partition_point(|one| one.addr <= of.addr);
                mapped.insert(at, of);
            }
            Action::SegmentAlloc => {
                let at = mapped.iter().position(|one| one.addr == of.addr && one.size == of.size);
                mapped.remove(at.ok_or(format!("{entry:?} is no segment"))?);
            }
            Action::SegmentMap => unmap(&mut mapped, of).ok_or(format!("{entry:?} is in no segment"))?,
            _ => {}
        }
        // Only what the entry may have changed is looked at again, as the page looks at all.
        if let Action::FreeCompleted = entry.action
            && !mapped.iter().any(|one| one.addr <= addr && addr < one.end())
        {
            return Err(format!("{entry:?} lies in no segment"));
        }
        if let Action::SegmentMap | Action::SegmentAlloc = entry.action
            && let Some(block) = blocks.keys().find(|&&block| addr <= block && block - addr < entry.size)
        {
            return Err(format!("a block at {block:#x} lies where nothing was mapped before {entry:?}"));
        }
    }
    Ok(())
}

fn map(mapped: &mut Vec<Stretch>, mut new: Stretch) {
    let at = mapped.partition_point(|one| one.addr <= new.addr);
    if let Some(next) = mapped.get(at)
        && new.end() == next.addr
        && new.stream == next.stream
    {
        new.size += next.size;
        mapped.remove(at);
    }
    match at.checked_sub(1).map(|before| &mut mapped[before]) {
        Some(before) if before.end() == new.addr && before.stream == new.stream => before.size += new.size,
        _ => mapped.insert(at, new),
    }
}

fn unmap(mapped: &mut Vec<Stretch>, gone: Stretch) -> Option<()> {
    let at = mapped.iter().position(|one| one.addr <= gone.addr && gone.end() <= one.end())?;
    let whole = mapped.remove(at);
    let after = Stretch { addr: gone.end(), size: whole.end() - gone.end(), stream: whole.stream };
    let before = Stretch { addr: whole.addr, size: gone.addr - whole.addr, stream: whole.stream };
    mapped.splice(at..at, [before, after].into_iter().filter(|one| one.size > 0));
    Some(())
}
