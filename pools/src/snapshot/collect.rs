//! Looking at pools.

use std::collections::{HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use mempool_arena::{MappedSegment, SizeClass, Usage};

use super::{
    AllocatorSettings, Block, BlockState, DeviceInfo, DeviceKind, Empty, Extra, Order, PoolInfo, Segment,
    SegmentType, Snapshot, Stack, TraceEntry, suffix, trace,
};
use crate::device::{ArenaCore, DeviceId, DeviceState, Owner, PoolSlot};
use crate::environment;
use crate::history::{self, Log};
use crate::recording::Source;
use crate::slot::{Look, Slot};
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
        let Some(Look { pool_id, limit_bytes, stats, maps_pages, layout }) = slot.look() else { return };
        let of = Of {
            device,
            pool_id,
            pool_name: &stats.name.clone(),
            order: Order::Host,
            stream: 0,
            is_expandable: maps_pages,
        };
        self.add(&of, layout, |_| false);
        self.add_pool(pool_id, device, limit_bytes, stats);
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
        let pool_id = pool.id();
        pool.for_each_arena(|core: &mut ArenaCore| {
            core.arena.settle();
            let (order, stream) = (Order::of(core.owner), trace::stream(Some(core.owner)));
            let is_expandable = core.arena.maps_pages();
            let of = Of { device, pool_id, pool_name: &stats.name, order, stream, is_expandable };
            self.add(&of, core.arena.layout(), |addr| core.is_pending(addr));
        });
        let limit_bytes = Some(pool.limit_bytes()).filter(|&bytes| bytes != usize::MAX);
        self.add_pool(pool_id, device, limit_bytes, stats);
    }

    /// Adds that a request found no memory, where no history has that.
    pub(crate) fn add_refused(&mut self, source: Source, bytes: usize, free_bytes: usize) {
        if self.history.is_none() {
            let mut log = Log::new(1);
            log.note_oom(source, bytes, free_bytes);
            self.history = Some(log);
        }
    }

    fn add_pool(&mut self, id: u64, device: usize, limit_bytes: Option<usize>, stats: PoolStats) {
        let name = stats.name.clone();
        self.pools.push(PoolInfo { id: (0, id), device, name, limit_bytes, stats: Some(stats) });
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
                let by = owner.and_then(|log| log.owner(self.ids[of.device], address));
                let (stack, owner) = (by.and_then(trace::number_of), by.map(trace::owner));
                Block { address, size, requested_size, state, stack, frames: Empty, owner, is_kept }
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
                frames: Empty,
                blocks,
                pool_name: of.pool_name.to_owned(),
                order: of.order,
            });
        }
    }

    /// For each device what happened in the pools that were looked at, and how much of it cannot be followed back.
    fn traces(&self) -> (Vec<Vec<TraceEntry>>, u64) {
        let mut traces = vec![Vec::new(); self.devices.len()];
        let Some(log) = &self.history else { return (traces, 0) };
        let pools: HashSet<(usize, u64)> = self.pools.iter().map(|pool| (pool.device, pool.id.1)).collect();
        // Whether its segments grow is the policy's doing, so all of a pool's do or none.
        let mut grows: HashMap<(usize, u64), bool> = HashMap::new();
        for segment in &self.segments {
            grows.insert((segment.device, segment.segment_pool_id.1), segment.is_expandable);
        }
        for entry in log.entries() {
            let Some(device) = self.ids.iter().position(|id| *id == entry.source.device) else { continue };
            let pool = (device, entry.source.pool_id);
            if pools.contains(&pool) {
                traces[device].push(trace::entry(entry, grows.get(&pool).copied().unwrap_or(true)));
            }
        }
        let cut = traces.iter_mut().enumerate().map(|(device, trace)| {
            let segments = self.segments.iter().filter(|segment| segment.device == device);
            let from = suffix::start(segments, trace);
            trace.drain(..from).len() as u64
        });
        let cut = cut.sum();
        (traces, cut)
    }

    /// The call stacks that blocks and entries have by the history's numbers, in whose place theirs in the list come.
    fn name_stacks(&mut self, traces: &mut [Vec<TraceEntry>]) -> Vec<Stack> {
        let blocks = self.segments.iter_mut().flat_map(|segment| &mut segment.blocks);
        let named = blocks.map(|block| &mut block.stack);
        let named = named.chain(traces.iter_mut().flatten().map(|entry| &mut entry.stack));
        let mut places = HashMap::new();
        let mut stacks = Vec::new();
        for stack in named {
            let place = stack.map(|number| {
                *places.entry(number).or_insert_with(|| {
                    stacks.push(Stack { frames: history::stack_frames(number) });
                    stacks.len() as u32 - 1
                })
            });
            *stack = place;
        }
        stacks
    }

    /// The snapshot.
    pub(crate) fn finish(mut self) -> Snapshot {
        self.segments.sort_by_key(|segment| (segment.device, segment.address));
        let (mut device_traces, cut) = self.traces();
        let stacks = self.name_stacks(&mut device_traces);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Snapshot {
            device_traces,
            allocator_settings: AllocatorSettings {
                conf: std::env::var(environment::VARIABLE).unwrap_or_default(),
                max_split_size: -1,
                garbage_collection_threshold: 0.0,
                expandable_segments: self.segments.iter().any(|segment| segment.is_expandable),
            },
            external_annotations: Empty,
            segments: self.segments,
            mempool: Extra {
                version: 1,
                time_us: u64::try_from(since.as_micros()).unwrap_or(0),
                devices: self.devices,
                pools: self.pools,
                dropped_entries: self.history.as_ref().map(|log| log.dropped() + cut),
                history_began_us: self.history.as_ref().map(Log::began_us),
                stacks,
            },
        }
    }
}
