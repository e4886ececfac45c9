//! A pool's figures counted from scratch in its snapshot.

use mempool_pools::MemPool;
use mempool_pools::snapshot::{Block, BlockState, Segment, SegmentType};

/// What a walk over segments comes to.
#[derive(Debug, Default)]
struct Sums {
    requested: usize,
    allocated: usize,
    active: usize,
    mapped: usize,
    blocks: usize,
    active_blocks: usize,
}

impl Sums {
    fn of<'a>(segments: impl Iterator<Item = &'a Segment>) -> Self {
        let mut sums = Self::default();
        for segment in segments {
            sums.mapped += segment.total_size;
            sums.requested += segment.requested_size;
            sums.allocated += segment.allocated_size;
            sums.active += segment.active_size;
            let count = |is: fn(BlockState) -> bool| segment.blocks.iter().filter(|b| is(b.state)).count();
            sums.blocks += count(|state| state == BlockState::ActiveAllocated);
            sums.active_blocks += count(|state| state != BlockState::Inactive);
        }
        sums
    }
}

/// PyTorch's names of all segments, and of those of one class.
const PARTS: [(&str, Option<SegmentType>); 3] =
    [("all", None), ("small_pool", Some(SegmentType::Small)), ("large_pool", Some(SegmentType::Large))];

/// Whether a pool's figures are what its snapshot comes to, while nobody uses the pool.
pub fn check(pool: &MemPool) -> Result<(), String> {
    let snapshot = pool.snapshot();
    let stats = pool.stats();
    let flat = stats.memory_stats();
    let said = |key: String| flat.get(&key).copied().ok_or_else(|| format!("{key} is not said"));
    let expect = |key: String, counted: usize| -> Result<(), String> {
        let said = said(key.clone())?;
        if said == counted as i64 {
            Ok(())
        } else {
            Err(format!("{key}: {said} are said and {counted} are there"))
        }
    };
    // What steps and sets of buffers keep counts as one block each, whatever lies in it.
    let keeps =
        snapshot.segments.iter().flat_map(|segment| &segment.blocks).any(|block: &Block| block.is_kept);
    for (part, class) in PARTS {
        let of_class = |segment: &&Segment| class.is_none_or(|class| segment.segment_type == class);
        let sums = Sums::of(snapshot.segments.iter().filter(of_class));
        expect(format!("allocated_bytes.{part}.current"), sums.allocated)?;
        expect(format!("active_bytes.{part}.current"), sums.active)?;
        if !keeps {
            expect(format!("requested_bytes.{part}.current"), sums.requested)?;
            expect(format!("allocation.{part}.current"), sums.blocks)?;
            expect(format!("active.{part}.current"), sums.active_blocks)?;
        }
        // Pages that were set aside are the pool's, serve nobody, and count as large.
        let key = format!("reserved_bytes.{part}.current");
        if class == Some(SegmentType::Small) {
            expect(key, sums.mapped)?;
        } else if said(key.clone())? < sums.mapped as i64 {
            return Err(format!("{key}: {} bytes are mapped, and fewer are said to be", sums.mapped));
        }
    }
    check_figures(&flat)?;
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
        if segment.total_size != at - segment.address {
            return Err(format!("{} bytes of a segment are {}", segment.total_size, at - segment.address));
        }
    }
    let ends = snapshot.segments.iter().map(|segment| segment.address + segment.total_size);
    let overlaps = ends.zip(snapshot.segments.iter().skip(1)).any(|(end, next)| next.address < end);
    if overlaps { Err("segments overlap".to_owned()) } else { Ok(()) }
}

/// What holds for any figures, whatever is in the pool, as long as totals were not reset.
fn check_figures(flat: &mempool_pools::MemoryStats) -> Result<(), String> {
    let get = |name: &str, part: &str, figure: &str| flat[&format!("{name}.{part}.{figure}")];
    for name in flat.keys().filter_map(|key| key.strip_suffix(".all.current")) {
        for (part, _) in PARTS {
            let of = |figure| get(name, part, figure);
            if of("freed") != of("allocated") - of("current") || of("freed") < 0 {
                return Err(format!("{name}.{part}: {} freed", of("freed")));
            }
            if of("peak") < of("current") || of("peak") > of("allocated") {
                return Err(format!("{name}.{part}: a peak of {}", of("peak")));
            }
        }
        let both = get(name, "small_pool", "current") + get(name, "large_pool", "current");
        if both != get(name, "all", "current") {
            return Err(format!(
                "{name}: classes come to {both}, and all to {}",
                get(name, "all", "current")
            ));
        }
    }
    Ok(())
}
