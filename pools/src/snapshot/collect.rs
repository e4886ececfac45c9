//! Looking at pools.

use std::time::{SystemTime, UNIX_EPOCH};

use mempool_arena::{MappedSegment, Usage};

use super::{
    AllocatorSettings, Block, BlockState, DeviceInfo, DeviceKind, Extra, Order, PoolInfo, Segment,
    SegmentType, Snapshot,
};
use crate::device::{ArenaCore, DeviceState, Owner, PoolSlot};
use crate::slot::Slot;
use crate::stats::PoolStats;

/// Blocks up to this are small, as PyTorch has it.
const SMALL_BYTES: usize = 1 << 20;

/// Puts a snapshot together.
pub(crate) struct Collector {
    devices: Vec<DeviceInfo>,
    pools: Vec<PoolInfo>,
    segments: Vec<Segment>,
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
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self { devices: Vec::new(), pools: Vec::new(), segments: Vec::new() }
    }

    /// Adds a pool of the host, whichever the slot holds.
    pub(crate) fn add_host_pool(&mut self, slot: &Slot) {
        let device = self.index_of(DeviceInfo { kind: DeviceKind::Host, ordinal: 0 });
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
        self.index_of(DeviceInfo { kind: DeviceKind::Host, ordinal: 0 });
    }

    /// Adds all pools of a device.
    pub(crate) fn add_device(&mut self, device: &'static DeviceState) {
        self.index_of(DeviceInfo { kind: DeviceKind::Device, ordinal: device.ordinal });
        device.pools().into_iter().for_each(|pool| self.add_device_pool(pool));
    }

    /// Adds a pool of a device.
    pub(crate) fn add_device_pool(&mut self, pool: &'static PoolSlot) {
        let device = self.index_of(DeviceInfo { kind: DeviceKind::Device, ordinal: pool.device.ordinal });
        let Some(stats) = pool.stats_if_open() else { return };
        let (pool_id, is_expandable) = (pool.id(), pool.maps_pages());
        pool.for_each_arena(|core: &mut ArenaCore| {
            core.arena.settle();
            let (order, stream) = match core.owner {
                Owner::Stream(id) => (Order::Stream, id.0),
                Owner::Capture(id, ..) => (Order::Capture, id.0),
                Owner::Synchronous => (Order::Synchronous, 0),
                Owner::Ended => (Order::Ended, 0),
            };
            let of = Of { device, pool_id, pool_name: &stats.name, order, stream, is_expandable };
            self.add(&of, core.arena.layout(), |addr| core.is_pending(addr));
        });
        self.add_pool(pool_id, device, stats);
    }

    fn add_pool(&mut self, id: u64, device: usize, stats: PoolStats) {
        self.pools.push(PoolInfo { id, device, stats });
    }

    fn index_of(&mut self, device: DeviceInfo) -> usize {
        let known = self.devices.iter().position(|other| *other == device);
        known.unwrap_or_else(|| {
            self.devices.push(device);
            self.devices.len() - 1
        })
    }

    fn add(&mut self, of: &Of<'_>, layout: Vec<MappedSegment>, is_pending: impl Fn(usize) -> bool) {
        for MappedSegment { range, parts } in layout {
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
                Block { address, size, requested_size, state, frames: Vec::new(), is_kept }
            };
            let blocks: Vec<Block> = parts.into_iter().map(block).collect();
            let sum = |of: fn(&Block) -> usize, counts: fn(BlockState) -> bool| -> usize {
                blocks.iter().filter(|block| counts(block.state)).map(of).sum()
            };
            let is_allocated = |state| state == BlockState::ActiveAllocated;
            let used = blocks.iter().filter(|block| block.state != BlockState::Inactive);
            let is_large = used.map(|block| block.size).max().unwrap_or(range.len) > SMALL_BYTES;
            self.segments.push(Segment {
                device: of.device,
                address: range.start,
                total_size: range.len,
                allocated_size: sum(|block| block.size, is_allocated),
                active_size: sum(|block| block.size, |state| state != BlockState::Inactive),
                requested_size: sum(|block| block.requested_size, is_allocated),
                stream: of.stream,
                segment_type: if is_large { SegmentType::Large } else { SegmentType::Small },
                segment_pool_id: (0, of.pool_id),
                is_expandable: of.is_expandable,
                frames: Vec::new(),
                blocks,
                pool_name: of.pool_name.to_owned(),
                order: of.order,
            });
        }
    }

    /// The snapshot.
    pub(crate) fn finish(mut self) -> Snapshot {
        self.segments.sort_by_key(|segment| (segment.device, segment.address));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Snapshot {
            device_traces: vec![Vec::new(); self.devices.len()],
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
            },
        }
    }
}
