//! What a recorded run would leave in a policy's memory, as a snapshot.

use std::collections::HashMap;

use mempool_arena::trace::Event;
use mempool_arena::{ArenaError, MappedSegment, Replay, ReplayError, Upstream as _, Usage, layout_of};

use super::trace::NO_CONTEXT;
use super::{
    Action, AllocatorSettings, Block, BlockOwner, BlockState, DeviceInfo, DeviceKind, Empty, Extra, Order,
    PoolInfo, Segment, SegmentType, Snapshot, TraceEntry,
};

/// A run's part that is looked at has at least this share of what was live at most: there memory is short.
const NEAR_THE_PEAK: f64 = 0.95;

/// Builds the trace of a replay, where time is the event's number.
struct Recorder {
    trace: Vec<TraceEntry>,
    owners: HashMap<usize, BlockOwner>,
    step: u32,
    position: u32,
    now: u64,
}

/// The last event at which nearly as much was live as ever.
fn last_near_the_peak(events: &[Event]) -> usize {
    let mut sizes: HashMap<u64, usize> = HashMap::new();
    let mut live = 0_usize;
    let after: Vec<usize> = events
        .iter()
        .map(|event| {
            match *event {
                Event::Allocate { id, size_bytes, .. } => {
                    sizes.insert(id, size_bytes);
                    live = live.saturating_add(size_bytes);
                }
                Event::Free { id } => live -= sizes.remove(&id).unwrap_or(0),
                Event::FreeCompleted { .. } | Event::StepEnd { .. } => {}
            }
            live
        })
        .collect();
    let peak = after.iter().copied().max().unwrap_or(0);
    let near = |&live: &usize| live as f64 >= NEAR_THE_PEAK * peak as f64;
    after.iter().rposition(near).unwrap_or(0)
}

impl Snapshot {
    /// How memory stands in a replay when nearly as much is live as ever, for the last time, or when a request finds no memory.
    ///
    /// # Errors
    /// Those of [`Replay::apply`] but for requests that find no memory.
    pub(crate) fn of_replay(mut replay: Replay<'_>, events: &[Event]) -> Result<Self, ReplayError> {
        let last = last_near_the_peak(events);
        let limit_bytes = Some(replay.upstream().capacity_bytes()).filter(|&bytes| bytes != usize::MAX);
        let mut to = Recorder { trace: Vec::new(), owners: HashMap::new(), step: 0, position: 0, now: 0 };
        let mut ids: HashMap<u64, (usize, usize, u64)> = HashMap::new();
        for &event in &events[..events.len().min(last + 1)] {
            to.now += 1;
            let reserved = replay.totals().reserved.current;
            match replay.apply(event) {
                Ok(()) => {}
                Err(ReplayError::Refused { source: ArenaError::OutOfMemory { .. }, .. }) => {
                    if let Event::Allocate { size_bytes, stream, .. } = event {
                        to.add(Action::Oom, None, size_bytes, stream);
                    }
                    break;
                }
                Err(error) => return Err(error),
            }
            match event {
                Event::Allocate { id, size_bytes, stream } => {
                    let addr = replay.address_of(id).unwrap_or(0);
                    let now = replay.totals().reserved.current;
                    if now > reserved {
                        to.add(Action::SegmentMap, Some(addr), now - reserved, stream);
                    }
                    ids.insert(id, (addr, size_bytes, stream));
                    to.allocate(addr, size_bytes, stream);
                }
                Event::Free { id } => {
                    if let Some((addr, size_bytes, stream)) = ids.remove(&id) {
                        to.add(Action::FreeRequested, Some(addr), size_bytes, stream);
                        to.add(Action::FreeCompleted, Some(addr), size_bytes, stream);
                    }
                }
                Event::FreeCompleted { .. } => {}
                Event::StepEnd { .. } => (to.step, to.position) = (to.step + 1, 0),
            }
        }
        let mut segments = Vec::new();
        for (stream, placement) in replay.placements() {
            let laid_out = layout_of(placement).into_iter();
            segments.extend(laid_out.map(|segment| to.segment(segment, stream, placement.maps_pages())));
        }
        segments.sort_by_key(|segment| segment.address);
        Ok(Self {
            segments,
            device_traces: vec![to.trace],
            allocator_settings: AllocatorSettings {
                conf: String::new(),
                max_split_size: -1,
                garbage_collection_threshold: 0.0,
                expandable_segments: false,
            },
            external_annotations: Empty,
            mempool: Extra {
                version: 1,
                time_us: to.now,
                devices: vec![DeviceInfo { kind: DeviceKind::Device, ordinal: 0 }],
                pools: vec![PoolInfo {
                    id: (0, 0),
                    device: 0,
                    name: "replayed".to_owned(),
                    limit_bytes,
                    stats: None,
                }],
                dropped_entries: None,
                history_began_us: Some(0),
                stacks: Vec::new(),
            },
        })
    }
}

impl Recorder {
    fn add(&mut self, action: Action, addr: Option<usize>, size: usize, stream: u64) {
        self.trace.push(TraceEntry {
            action,
            addr,
            device_free: addr.is_none().then_some(0),
            size,
            stream,
            time_us: self.now,
            compile_context: NO_CONTEXT.to_owned(),
            user_metadata: String::new(),
            pool_id: (0, 0),
            stack: None,
            frames: Empty,
            thread: String::new(),
            step: self.step,
            position: self.position,
        });
    }

    fn allocate(&mut self, addr: usize, size: usize, stream: u64) {
        self.add(Action::Alloc, Some(addr), size, stream);
        let owner = BlockOwner {
            step: self.step,
            position: self.position,
            time_us: self.now,
            is_older: false,
            ..BlockOwner::unknown()
        };
        self.owners.insert(addr, owner);
        self.position += 1;
    }

    fn segment(&self, segment: MappedSegment, stream: u64, is_expandable: bool) -> Segment {
        let block = |part: mempool_arena::LaidOut| {
            let (requested_size, state) = match part.usage {
                Usage::Live { requested_bytes } => (requested_bytes, BlockState::ActiveAllocated),
                Usage::Kept { .. } | Usage::Free => (0, BlockState::Inactive),
            };
            let is_live = state == BlockState::ActiveAllocated;
            Block {
                address: part.range.start,
                size: part.range.len,
                requested_size,
                state,
                stack: None,
                frames: Empty,
                owner: self.owners.get(&part.range.start).filter(|_| is_live).cloned(),
                is_kept: false,
            }
        };
        let blocks: Vec<Block> = segment.parts.into_iter().map(block).collect();
        let live = || blocks.iter().filter(|block| block.state == BlockState::ActiveAllocated);
        let allocated_size = live().map(|block| block.size).sum();
        Segment {
            device: 0,
            address: segment.range.start,
            total_size: segment.range.len,
            allocated_size,
            active_size: allocated_size,
            requested_size: live().map(|block| block.requested_size).sum(),
            stream,
            segment_type: SegmentType::Large,
            segment_pool_id: (0, 0),
            is_expandable,
            frames: Empty,
            blocks,
            pool_name: "replayed".to_owned(),
            order: Order::Stream,
        }
    }
}
