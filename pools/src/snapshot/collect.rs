//! Looking at pools.

use std::time::{SystemTime, UNIX_EPOCH};

use mempool_arena::{MappedSegment, SizeClass, Usage};

use super::{
    AllocatorSettings, Block, BlockState, DeviceInfo, DeviceKind, Extra, Order, PoolInfo, Segment,
    SegmentType, Snapshot, TraceEntry, trace,
};
use crate::device::{ArenaCore, DeviceId, DeviceState, Owner, PoolSlot};
use crate::history::{self, Kind, Log};
use crate::slot::Slot;
use crate::stats::PoolStats;

/// Puts a snapshot together.
pub(crate) struct Collector {
    history: Option<Log>,
    devices: Vec<DeviceInfo>,
    /// What history knows them by.
    ids: Vec<Option<DeviceId>>,
    pools: Vec<PoolInfo>,
    segments: Vec<Segment>,
}

impl Order {
    fn of(owner: Owner) -> Self {
        match owner {
            Owner::Stream(_) => Self::Stream,
            Owner::Capture(..) => Self::Capture,
            Owner::Synchronous => Self::Synchronous,
            Owner::Ended => Self::Ended,
        }
    }
}

/// Whose a segment is.
struct Of<'a> {
    device: usize,
    pool_id: u64,
    pool_name: &'a str,
    order: Order,
    stream: u64,
    is_expandable: bool,
}

impl Collector {
    /// Nothing yet. The caller is inside pool code.
    pub(crate) fn new() -> Self {
        Self {
            history: history::view(),
            devices: Vec::new(),
            ids: Vec::new(),
            pools: Vec::new(),
            segments: Vec::new(),
        }
    }

    /// Adds a pool of the host, whichever the slot holds.
    pub(crate) fn add_host_pool(&mut self, slot: &Slot) {
        let device = self.index_of(None, 0);
        let Some((pool_id, stats, layout)) = slot.look() else { return };
        let of = Of {
            device,
            pool_id,
            pool_name: &stats.name.clone(),
            order: Order::Host,
            stream: 0,
            is_expandable: true,
        };
        self.add(&of, layout, |_| false);
        self.add_pool(pool_id, device, stats);
    }

    /// Adds the host, whether or not it has pools.
    pub(crate) fn add_host(&mut self) {
        self.index_of(None, 0);
    }

    /// Adds all pools of a device.
    pub(crate) fn add_device(&mut self, device: &'static DeviceState) {
        self.index_of(Some(device.id), device.ordinal);
        device.pools().into_iter().for_each(|pool| self.add_device_pool(pool));
    }

    /// Adds a pool of a device.
    pub(crate) fn add_device_pool(&mut self, pool: &'static PoolSlot) {
        let device = self.index_of(Some(pool.device.id), pool.device.ordinal);
        let Some(stats) = pool.stats_if_open() else { return };
        let (pool_id, is_expandable) = (pool.id(), pool.maps_pages());
        pool.for_each_arena(|core: &mut ArenaCore| {
            core.arena.settle();
            let (order, stream) = (Order::of(core.owner), trace::stream(Some(core.owner)));
            let of = Of { device, pool_id, pool_name: &stats.name, order, stream, is_expandable };
            self.add(&of, core.arena.layout(), |addr| core.is_pending(addr));
        });
        self.add_pool(pool_id, device, stats);
    }

    fn add_pool(&mut self, id: u64, device: usize, stats: PoolStats) {
        self.pools.push(PoolInfo { id, device, stats });
    }

    fn index_of(&mut self, id: Option<DeviceId>, ordinal: u32) -> usize {
        self.ids.iter().position(|other| *other == id).unwrap_or_else(|| {
            let kind = if id.is_some() { DeviceKind::Device } else { DeviceKind::Host };
            self.devices.push(DeviceInfo { kind, ordinal });
            self.ids.push(id);
            self.ids.len() - 1
        })
    }

    fn add(&mut self, of: &Of<'_>, layout: Vec<MappedSegment>, is_pending: impl Fn(usize) -> bool) {
        for MappedSegment { range, class, parts } in layout {
            let block = |part: mempool_arena::LaidOut| {
                let (requested_size, state, is_kept) = match part.usage {
                    Usage::Live { requested_bytes } if is_pending(part.range.start) => {
                        (requested_bytes, BlockState::ActivePendingFree, false)
                    }
                    Usage::Live { requested_bytes } => (requested_bytes, BlockState::ActiveAllocated, false),
                    Usage::Kept { buffer_bytes } => (buffer_bytes, BlockState::ActiveAllocated, true),
                    Usage::Free => (0, BlockState::Inactive, false),
                };
                let (address, size) = (part.range.start, part.range.len);
                let is_owned = matches!(part.usage, Usage::Live { .. });
                let owner = self.history.as_ref().filter(|_| is_owned);
                let owner = owner.and_then(|log| log.owner(self.ids[of.device], address)).map(trace::owner);
                let frames = owner.as_ref().map_or_else(Vec::new, trace::frames);
                Block { address, size, requested_size, state, frames, owner, is_kept }
            };
            let blocks: Vec<Block> = parts.into_iter().map(block).collect();
            let sum = |of: fn(&Block) -> usize, counts: fn(BlockState) -> bool| -> usize {
                blocks.iter().filter(|block| counts(block.state)).map(of).sum()
            };
            let is_allocated = |state| state == BlockState::ActiveAllocated;
            self.segments.push(Segment {
                device: of.device,
                address: range.start,
                total_size: range.len,
                allocated_size: sum(|block| block.size, is_allocated),
                active_size: sum(|block| block.size, |state| state != BlockState::Inactive),
                requested_size: sum(|block| block.requested_size, is_allocated),
                stream: of.stream,
                segment_type: match class {
                    SizeClass::Small => SegmentType::Small,
                    SizeClass::Large => SegmentType::Large,
                },
                segment_pool_id: (0, of.pool_id),
                is_expandable: of.is_expandable,
                frames: Vec::new(),
                blocks,
                pool_name: of.pool_name.to_owned(),
                order: of.order,
            });
        }
    }

    /// For each device what happened in its segments. PyTorch's page follows entries backwards from the segments, and cannot
    /// follow one that lies in none.
    fn traces(&self) -> Vec<Vec<TraceEntry>> {
        let mut traces = vec![Vec::new(); self.devices.len()];
        let Some(log) = &self.history else { return traces };
        for entry in log.entries() {
            let Some(device) = self.ids.iter().position(|id| *id == entry.source.device) else { continue };
            let is_here =
                self.pools.iter().any(|pool| pool.device == device && pool.id == entry.source.pool_id);
            if is_here && (entry.kind == Kind::OutOfMemory || self.is_mapped(device, entry.addr)) {
                traces[device].push(trace::entry(entry));
            }
        }
        traces
    }

    fn is_mapped(&self, device: usize, addr: usize) -> bool {
        let after = self.segments.partition_point(|other| (other.device, other.address) <= (device, addr));
        let before = after.checked_sub(1).map(|at| &self.segments[at]);
        before.is_some_and(|other| other.device == device && addr - other.address < other.total_size)
    }

    /// The snapshot.
    pub(crate) fn finish(mut self) -> Snapshot {
        self.segments.sort_by_key(|segment| (segment.device, segment.address));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Snapshot {
            device_traces: self.traces(),
            allocator_settings: AllocatorSettings {
                conf: String::new(),
                max_split_size: -1,
                garbage_collection_threshold: 0.0,
                expandable_segments: self.segments.iter().any(|segment| segment.is_expandable),
            },
            external_annotations: Vec::new(),
            segments: self.segments,
            mempool: Extra {
                version: 1,
                time_us: u64::try_from(since.as_micros()).unwrap_or(0),
                devices: self.devices,
                pools: self.pools,
                dropped_entries: self.history.as_ref().map(Log::dropped),
            },
        }
    }
}
