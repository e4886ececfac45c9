//! What the page shows of a snapshot, in the page's own terms.
//!
//! Nothing else of the report knows the snapshot's model. Texts and places are in tables, each once, and blocks and
//! events have their numbers.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use indexmap::IndexSet;
use mempool_pools::snapshot::{
    Action, Block, BlockOwner, BlockState, DeviceKind, PoolInfo, Segment, Snapshot, TraceEntry,
};
use serde::Serialize;
use serde_json::{Value, json};

/// A number that stands for none.
pub(super) const NONE: u32 = u32::MAX;

/// Sizes of blocks are multiples of this on the host, and on devices. The history has what was asked for.
const HOST_GRANULE_BYTES: usize = 64;
const DEVICE_GRANULE_BYTES: usize = 512;

/// A snapshot in terms of the page.
#[derive(Debug)]
pub(super) struct Data {
    /// Microseconds since 1970.
    pub time_us: u64,
    /// Entries of the history that are no longer kept; `None` where no history is kept.
    pub dropped_entries: Option<u64>,
    pub names: Names,
    pub devices: Vec<Device>,
}

/// Texts and places by number.
#[derive(Debug, Serialize)]
pub(super) struct Names {
    /// The first is the empty one.
    pub labels: Vec<String>,
    /// The first is the empty one.
    pub threads: Vec<String>,
    pub frames: Vec<Place>,
    pub stacks: Vec<Stack>,
    pub owners: Vec<Owner>,
}

/// A place in a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Place {
    pub name: String,
    pub file: String,
    pub line: u32,
}

/// Where something was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Stack {
    /// The frame that is the user's, which the page calls the call site.
    pub site: u32,
    /// Innermost first.
    pub frames: Vec<u32>,
}

/// Whose a segment is: a pool's, for one stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Owner {
    pub pool: String,
    /// As the device calls it.
    pub stream: String,
}

#[derive(Debug)]
pub(super) struct Device {
    pub name: String,
    pub granule_bytes: usize,
    /// Without overlap, in no order.
    pub segments: Vec<Mapping>,
    /// Those of the segments that are not free.
    pub blocks: Vec<Held>,
    /// The first first.
    pub events: Vec<Event>,
    /// Figures of its pools, as JSON.
    pub pools: Vec<Value>,
}

/// Memory that is mapped when the snapshot is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapping {
    pub range: Range<usize>,
    pub owner: u32,
    /// Whether it is one with what lies beside it.
    pub is_expandable: bool,
}

/// A block when the snapshot is taken.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub range: Range<usize>,
    pub requested_bytes: usize,
    pub hold: Hold,
    pub origin: Option<Origin>,
}

/// What holds a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Somebody has it.
    Live,
    /// It was freed, and queued work may still use it.
    Pending,
    /// A planned step or a buffer keeps it, and nobody has it.
    Kept,
}

/// Where something came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub label: u32,
    pub stack: u32,
    pub thread: u32,
    pub step: u32,
    pub position: u32,
    pub time_us: u64,
    /// It was there before the history began, and nothing else is known of it.
    pub is_older: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Event {
    pub kind: Kind,
    pub address: usize,
    pub bytes: usize,
    pub owner: u32,
    pub origin: Origin,
}

/// What happened. The page has the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Allocated = 0,
    FreeRequested = 1,
    FreeCompleted = 2,
    /// A request found no memory; `address` is what the device had free.
    OutOfMemory = 3,
    Mapped = 4,
    Unmapped = 5,
    /// As the two before, for memory that is one with what lies beside it.
    PageMapped = 6,
    PageUnmapped = 7,
}

impl Data {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut tables = Tables::of(snapshot);
        let pool_devices = snapshot.mempool.devices.len();
        let of_segments = snapshot.segments.iter().map(|segment| segment.device + 1).max().unwrap_or(0);
        let count = pool_devices.max(of_segments).max(snapshot.device_traces.len());
        let devices = (0..count).filter_map(|index| tables.device(snapshot, index)).collect();
        Self {
            time_us: time(snapshot),
            dropped_entries: snapshot.mempool.dropped_entries,
            names: tables.finish(),
            devices,
        }
    }
}

/// When the snapshot was taken; for one that does not say so, when the last thing happened.
fn time(snapshot: &Snapshot) -> u64 {
    let last = snapshot.device_traces.iter().flatten().map(|entry| entry.time_us).max();
    snapshot.mempool.time_us.max(last.unwrap_or(0))
}

/// Names while they are collected.
struct Tables<'a> {
    labels: IndexSet<&'a str>,
    threads: IndexSet<&'a str>,
    frames: IndexSet<(&'a str, &'a str, u32)>,
    /// By the snapshot's own numbers.
    stacks: Vec<Stack>,
    owners: IndexSet<((u64, u64), u64, usize)>,
    pool_names: HashMap<(usize, (u64, u64)), &'a str>,
}

fn number<T: Hash + Eq>(table: &mut IndexSet<T>, value: T) -> u32 {
    u32::try_from(table.insert_full(value).0).expect("a table has fewer entries than a file bytes")
}

/// A stack with its call site.
fn stack<'a>(snapshot: &'a Snapshot, at: usize, frames: &mut IndexSet<(&'a str, &'a str, u32)>) -> Stack {
    let mut place = |frame: &'a mempool_pools::snapshot::Frame| {
        number(frames, (frame.name.as_str(), frame.filename.as_str(), frame.line))
    };
    let site = snapshot.call_site(u32::try_from(at).ok()).map_or(NONE, &mut place);
    Stack { site, frames: snapshot.mempool.stacks[at].frames.iter().map(place).collect() }
}

impl<'a> Tables<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        let of_pools = snapshot.mempool.pools.iter().map(|pool| ((pool.device, pool.id), pool.name.as_str()));
        let of_segments = snapshot
            .segments
            .iter()
            .map(|segment| ((segment.device, segment.segment_pool_id), segment.pool_name.as_str()));
        let mut frames = IndexSet::new();
        let stacks = (0..snapshot.mempool.stacks.len()).map(|at| stack(snapshot, at, &mut frames)).collect();
        Self {
            labels: IndexSet::from([""]),
            threads: IndexSet::from([""]),
            frames,
            stacks,
            owners: IndexSet::new(),
            pool_names: of_pools.chain(of_segments).filter(|(_, name)| !name.is_empty()).collect(),
        }
    }

    /// What the page shows of a device; `None` where there is nothing.
    fn device(&mut self, snapshot: &'a Snapshot, index: usize) -> Option<Device> {
        let info = snapshot.mempool.devices.get(index);
        let is_host = info.is_some_and(|info| info.kind == DeviceKind::Host);
        let name = match info {
            Some(info) if is_host && info.ordinal == 0 => "host".to_owned(),
            Some(info) => format!("device {}", info.ordinal),
            None => format!("device {index}"),
        };
        let segments: Vec<&Segment> =
            snapshot.segments.iter().filter(|segment| segment.device == index).collect();
        let trace = snapshot.device_traces.get(index).map_or(&[][..], Vec::as_slice);
        let pools: Vec<Value> = snapshot
            .mempool
            .pools
            .iter()
            .filter(|pool| pool.device == index)
            .filter_map(pool_figures)
            .collect();
        if segments.is_empty() && trace.is_empty() && pools.is_empty() {
            return None;
        }
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        Some(Device {
            name,
            granule_bytes: if is_host { HOST_GRANULE_BYTES } else { DEVICE_GRANULE_BYTES },
            blocks: blocks.filter_map(|block| self.held(block)).collect(),
            events: trace.iter().filter_map(|entry| self.event(entry, index)).collect(),
            segments: segments.iter().map(|segment| self.mapping(segment)).collect(),
            pools,
        })
    }

    fn mapping(&mut self, segment: &Segment) -> Mapping {
        Mapping {
            range: segment.address..segment.address.saturating_add(segment.total_size),
            owner: number(&mut self.owners, (segment.segment_pool_id, segment.stream, segment.device)),
            is_expandable: segment.is_expandable,
        }
    }

    fn held(&mut self, block: &'a Block) -> Option<Held> {
        let hold = match block.state {
            BlockState::Inactive => return None,
            BlockState::ActivePendingFree => Hold::Pending,
            BlockState::ActiveAllocated if block.is_kept => Hold::Kept,
            BlockState::ActiveAllocated => Hold::Live,
        };
        let stack = block.stack.unwrap_or(NONE);
        let origin = match &block.owner {
            Some(owner) => Some(self.origin(owner, stack)),
            None if stack == NONE => None,
            None => {
                let (step, position) = (NONE, NONE);
                Some(Origin { label: 0, stack, thread: 0, step, position, time_us: 0, is_older: false })
            }
        };
        let range = block.address..block.address.saturating_add(block.size);
        Some(Held { range, requested_bytes: block.requested_size, hold, origin })
    }

    fn origin(&mut self, owner: &'a BlockOwner, stack: u32) -> Origin {
        Origin {
            label: number(&mut self.labels, &owner.label),
            stack,
            thread: number(&mut self.threads, &owner.thread),
            step: owner.step,
            position: owner.position,
            time_us: owner.time_us,
            is_older: owner.is_older,
        }
    }

    fn event(&mut self, entry: &'a TraceEntry, device: usize) -> Option<Event> {
        let (kind, address) = match (entry.action, entry.addr) {
            (Action::Alloc, Some(address)) => (Kind::Allocated, address),
            (Action::FreeRequested, Some(address)) => (Kind::FreeRequested, address),
            (Action::FreeCompleted, Some(address)) => (Kind::FreeCompleted, address),
            (Action::Oom, _) => (Kind::OutOfMemory, entry.device_free.unwrap_or(0)),
            (Action::SegmentAlloc, Some(address)) => (Kind::Mapped, address),
            (Action::SegmentFree, Some(address)) => (Kind::Unmapped, address),
            (Action::SegmentMap, Some(address)) => (Kind::PageMapped, address),
            (Action::SegmentUnmap, Some(address)) => (Kind::PageUnmapped, address),
            (Action::Other, _) | (_, None) => return None,
        };
        Some(Event {
            kind,
            address,
            bytes: entry.size,
            owner: number(&mut self.owners, (entry.pool_id, entry.stream, device)),
            origin: Origin {
                label: number(&mut self.labels, &entry.user_metadata),
                stack: entry.stack.unwrap_or(NONE),
                thread: number(&mut self.threads, &entry.thread),
                step: entry.step,
                position: entry.position,
                time_us: entry.time_us,
                is_older: false,
            },
        })
    }

    fn finish(self) -> Names {
        let owned = |texts: IndexSet<&str>| texts.into_iter().map(readable).collect();
        let place = |(name, file, line): (&str, &str, u32)| Place {
            name: readable(name),
            file: readable(file),
            line,
        };
        let owner = |(pool, stream, device): ((u64, u64), u64, usize)| {
            let pool = match (self.pool_names.get(&(device, pool)), pool) {
                (Some(name), _) => readable(name),
                (None, (0, 0)) => "default".to_owned(),
                (None, (0, id)) => format!("pool {id}"),
                (None, (high, low)) => format!("pool {high}.{low}"),
            };
            Owner { pool, stream: stream.to_string() }
        };
        Names {
            labels: owned(self.labels),
            threads: owned(self.threads),
            frames: self.frames.into_iter().map(place).collect(),
            stacks: self.stacks,
            owners: self.owners.into_iter().map(owner).collect(),
        }
    }
}

/// A text of a snapshot as it can be shown: without characters that cannot be seen, or that turn the text around them.
pub fn readable(text: &str) -> String {
    let is_seen = |character: char| {
        !character.is_control()
            && !matches!(character,
                '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().map(|character| if is_seen(character) { character } else { '\u{fffd}' }).collect()
}

/// The figures of a pool that the page shows.
fn pool_figures(pool: &PoolInfo) -> Option<Value> {
    let stats = pool.stats.as_ref()?;
    Some(json!({
        "name": readable(&pool.name),
        "requested": stats.requested.current,
        "requestedPeak": stats.requested.peak,
        "allocated": stats.allocated.current,
        "allocatedPeak": stats.allocated.peak,
        "reserved": stats.reserved.current,
        "reservedPeak": stats.reserved.peak,
        "largestFree": stats.largest_free_bytes,
        "hits": stats.hits,
        "misses": stats.misses,
        "mapCalls": stats.map_calls,
        "unmapCalls": stats.unmap_calls,
        "bypassed": stats.bypassed_count,
        "overflows": stats.overflow_count,
        "failures": stats.failures,
    }))
}

#[cfg(test)]
mod tests;
