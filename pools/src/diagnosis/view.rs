//! A pool's part of a snapshot, and the sums over it that causes are told by.

use std::collections::{BTreeMap, HashMap};

use super::Site;
use super::words;
use crate::snapshot::{
    Action, Block, BlockState, DeviceInfo, DeviceKind, PoolInfo, Segment, Snapshot, TraceEntry,
};

/// The unit of mapping that is reckoned with: that of CUDA devices, and of this project's host pools.
pub(super) const PAGE_BYTES: usize = 2 << 20;

/// A pool in a snapshot.
pub(super) struct View<'a> {
    snapshot: &'a Snapshot,
    pub(super) pool: &'a PoolInfo,
    pub(super) segments: Vec<&'a Segment>,
    /// What happened to the pool's memory, in order.
    pub(super) trace: Vec<&'a TraceEntry>,
    /// Mapped bytes.
    pub(super) reserved: usize,
    /// Bytes of blocks that are live, or that queued work uses.
    pub(super) active: usize,
    /// Bytes of the largest free block.
    pub(super) largest_free: usize,
    /// What can be given back by itself: a segment, or a page of one that is mapped by pages. Pages without free memory are not
    /// among them.
    pub(super) units: Vec<Unit<'a>>,
    /// The step in progress.
    pub(super) last_step: u32,
    /// Nearly as much is live as ever, by the trace: what is free now, beyond what was live at most, does not serve.
    pub(super) is_at_peak: bool,
    /// Bytes that were live at most, by the trace.
    peak: usize,
    /// Where something was allocated in the last half of the trace: starts and ends, in order, apart from each other.
    lately: Vec<(usize, usize)>,
}

/// Memory that can be given back only as a whole.
pub(super) struct Unit<'a> {
    pub(super) address: usize,
    pub(super) bytes: usize,
    pub(super) free_bytes: usize,
    /// Blocks in it that are in use, also those that lie in others too.
    pub(super) used: Vec<&'a Block>,
    /// The segment that it is, or a part of.
    pub(super) segment: &'a Segment,
}

/// Blocks that come from one place.
#[derive(Debug, Default)]
pub(super) struct AtSite<'a> {
    pub(super) blocks: Vec<&'a Block>,
    pub(super) bytes: usize,
}

impl<'a> View<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, pool: &'a PoolInfo) -> Self {
        let is_here =
            |segment: &&Segment| segment.device == pool.device && segment.segment_pool_id == pool.id;
        let segments: Vec<&Segment> = snapshot.segments.iter().filter(is_here).collect();
        let entries = snapshot.device_traces.get(pool.device).map_or(&[][..], Vec::as_slice);
        // PyTorch's of before 2.12 do not say which pool an entry is of: those of its segments are this one's.
        let trace = entries.iter().filter(|entry| {
            entry.pool_id == pool.id
                && (snapshot.mempool.version > 0 || pool.id == (0, 0) || lies_in(&segments, entry.addr))
        });
        let trace: Vec<&TraceEntry> = trace.collect();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let of_blocks = blocks.filter_map(|block| block.owner.as_ref()).map(|owner| owner.step).max();
        let last_step = of_blocks.max(trace.iter().map(|entry| entry.step).max()).unwrap_or(0);
        let (is_at_peak, peak) = peak(&segments, &trace);
        let lately = allocated_in(&trace[trace.len() / 2..]);
        let free = |segment: &&'a Segment| {
            let blocks = segment.blocks.iter().filter(|block| block.state == BlockState::Inactive);
            blocks.map(|block| block.size).max().unwrap_or(0)
        };
        Self {
            snapshot,
            pool,
            trace,
            last_step,
            is_at_peak,
            peak,
            lately,
            reserved: total(segments.iter().map(|segment| segment.total_size)),
            active: total(segments.iter().map(|segment| segment.active_size)),
            largest_free: segments.iter().map(free).max().unwrap_or(0),
            units: segments.iter().flat_map(|segment| units(segment)).collect(),
            segments,
        }
    }

    /// The pool's name, with its device where there are several.
    pub(super) fn name(&self) -> String {
        let devices = &self.snapshot.mempool.devices;
        match devices.get(self.pool.device).filter(|_| devices.len() > 1) {
            Some(DeviceInfo { kind: DeviceKind::Host, .. }) => format!("{} (host)", self.pool.name),
            Some(DeviceInfo { ordinal, .. }) => format!("{} (device {ordinal})", self.pool.name),
            None => self.pool.name.clone(),
        }
    }

    /// Bytes that planned steps and sets of buffers keep, and that are nobody's now.
    pub(super) fn kept(&self) -> usize {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        total(blocks.filter(|block| block.is_kept).map(|block| block.size))
    }

    /// Mapped bytes that no block has.
    pub(super) fn free(&self) -> usize {
        self.reserved.saturating_sub(self.active)
    }

    /// Requests that found no memory.
    pub(super) fn refused(&self) -> impl Iterator<Item = &'a TraceEntry> + '_ {
        self.trace.iter().copied().filter(|entry| entry.action == Action::Oom)
    }

    /// Whether a request found no memory.
    pub(super) fn has_failed(&self) -> bool {
        let overflowed = self.pool.stats.as_ref().is_some_and(|stats| stats.overflow_count > 0);
        overflowed || self.refused().next().is_some()
    }

    /// Blocks that are somebody's.
    pub(super) fn live(&self) -> impl Iterator<Item = &'a Block> + '_ {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == BlockState::ActiveAllocated && !block.is_kept)
    }

    /// The place that a block comes from.
    pub(super) fn site(&self, block: &Block) -> String {
        let label = block.owner.as_ref().map_or("", |owner| &owner.label);
        self.site_of(block.stack, label, block.requested_size)
    }

    /// The place that an entry of the trace comes from.
    pub(super) fn site_of_entry(&self, entry: &TraceEntry) -> String {
        self.site_of(entry.stack, &entry.user_metadata, entry.size)
    }

    fn site_of(&self, stack: Option<u32>, label: &str, bytes: usize) -> String {
        match self.snapshot.call_site(stack) {
            Some(frame) => frame.place(),
            None if !label.is_empty() => label.to_owned(),
            None => format!("unnamed requests of {}", words::size(bytes)),
        }
    }

    /// Blocks by where they come from.
    pub(super) fn by_site(&self, blocks: impl Iterator<Item = &'a Block>) -> HashMap<String, AtSite<'a>> {
        let mut sites: HashMap<String, AtSite<'a>> = HashMap::new();
        for block in blocks {
            let site = sites.entry(self.site(block)).or_default();
            site.blocks.push(block);
            site.bytes = site.bytes.saturating_add(block.size);
        }
        sites
    }

    /// Sites by their bytes, the most first.
    pub(super) fn largest_sites(&self, blocks: impl Iterator<Item = &'a Block>) -> Vec<Site> {
        let sites = self.by_site(blocks).into_iter();
        sorted(sites.map(|(name, at)| Site { name, blocks: at.blocks.len(), bytes: at.bytes }).collect())
    }

    /// When the history began, as far as that is known.
    pub(super) fn history_began_us(&self) -> Option<u64> {
        self.snapshot.mempool.history_began_us
    }

    /// Whether a history tells of steps.
    pub(super) fn has_steps(&self) -> bool {
        self.last_step > 0
    }

    /// As many of the bytes, which are free, as were not needed when the most was live.
    pub(super) fn never_needed(&self, bytes: usize) -> usize {
        if self.is_at_peak { bytes.min(self.reserved.saturating_sub(self.peak)) } else { bytes }
    }

    /// Whether what happened is known at all.
    pub(super) fn has_trace(&self) -> bool {
        self.trace.iter().any(|entry| entry.action == Action::Alloc)
    }

    /// Whether nothing was allocated in a range for the last half of the trace.
    pub(super) fn is_idle(&self, start: usize, bytes: usize) -> bool {
        let after = self.lately.partition_point(|(_, end)| *end <= start);
        self.lately.get(after).is_none_or(|(other, _)| *other >= start.saturating_add(bytes))
    }
}

/// A sum that a damaged file, or a request of any size, cannot make overflow.
pub(super) fn total(values: impl Iterator<Item = usize>) -> usize {
    values.fold(0, usize::saturating_add)
}

/// Sites by their bytes, the most first.
pub(super) fn sorted(mut sites: Vec<Site>) -> Vec<Site> {
    sites.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name)));
    sites
}

/// Whether one of the segments, which are in order, has the address.
fn lies_in(segments: &[&Segment], addr: Option<usize>) -> bool {
    let Some(addr) = addr else { return false };
    let after = segments.partition_point(|segment| segment.address <= addr);
    let before = after.checked_sub(1).map(|at| segments[at]);
    before.is_some_and(|segment| addr - segment.address < segment.total_size)
}

/// Share of the most that was live, from which on memory is as full as it becomes.
const AT_PEAK: f64 = 0.9;

/// Whether nearly as much is live as ever was, followed back by the trace, and how much that was. Without a trace it is not known.
fn peak(segments: &[&Segment], trace: &[&TraceEntry]) -> (bool, usize) {
    let now = total(segments.iter().map(|segment| segment.requested_size));
    let (mut live, mut peak, mut least) = (now, now, now);
    for entry in trace.iter().rev() {
        match entry.action {
            Action::Alloc => live = live.saturating_sub(entry.size),
            Action::FreeCompleted => live = live.saturating_add(entry.size),
            _ => {}
        }
        (peak, least) = (peak.max(live), least.min(live));
    }
    // Where little changed there is no peak.
    (now as f64 >= AT_PEAK * peak as f64 && (least as f64) < AT_PEAK * peak as f64, peak)
}

/// The ranges that allocations took, those that touch each other as one.
fn allocated_in(trace: &[&TraceEntry]) -> Vec<(usize, usize)> {
    let allocated = trace.iter().filter(|entry| entry.action == Action::Alloc);
    let mut ranges: Vec<(usize, usize)> = allocated
        .filter_map(|entry| entry.addr.map(|addr| (addr, addr.saturating_add(entry.size))))
        .collect();
    ranges.sort_unstable();
    let mut joined: Vec<(usize, usize)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// A segment as what can be given back by itself.
fn units(segment: &Segment) -> Vec<Unit<'_>> {
    let end = segment.address.saturating_add(segment.total_size);
    let unit =
        |address: usize, bytes: usize| Unit { address, bytes, free_bytes: 0, used: Vec::new(), segment };
    if !segment.is_expandable {
        let mut whole = unit(segment.address, segment.total_size);
        for block in &segment.blocks {
            match block.state {
                BlockState::Inactive => whole.free_bytes += block.size,
                _ => whole.used.push(block),
            }
        }
        return vec![whole];
    }
    // Pages that lie whole in one block are one unit together, however many they are.
    let mut units: Vec<Unit<'_>> = Vec::new();
    let mut shared: BTreeMap<usize, Unit<'_>> = BTreeMap::new();
    for block in segment.blocks.iter().filter(|block| block.size > 0) {
        let is_free = block.state == BlockState::Inactive;
        let block_end = block.address + block.size;
        let whole = (block.address.div_ceil(PAGE_BYTES), block_end / PAGE_BYTES);
        if is_free && whole.0 < whole.1 {
            let bytes = (whole.1 - whole.0) * PAGE_BYTES;
            units.push(Unit { free_bytes: bytes, ..unit(whole.0 * PAGE_BYTES, bytes) });
        }
        let (first, last) = (block.address / PAGE_BYTES, (block_end - 1) / PAGE_BYTES);
        let cut = [Some(first), Some(last).filter(|&last| last != first)].into_iter().flatten();
        for page in cut.filter(|page| !(whole.0..whole.1).contains(page)) {
            let from = (page * PAGE_BYTES).max(segment.address);
            let until = ((page + 1) * PAGE_BYTES).min(end);
            let of = shared.entry(page).or_insert_with(|| unit(from, until - from));
            if is_free {
                of.free_bytes += block_end.min(until) - block.address.max(from);
            } else {
                of.used.push(block);
            }
        }
    }
    units.extend(shared.into_values());
    units
}
