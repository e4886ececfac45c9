//! What lies where in pools, at one moment, in the layout of PyTorch's memory snapshots.

mod collect;
mod compare;
mod file;
mod frames;
mod pickle;
mod reading;
mod record;
mod replayed;
mod suffix;
mod trace;
mod writing;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::stats::PoolStats;

pub(crate) use collect::Collector;
pub use compare::Growth;
pub use file::SnapshotError;
pub use frames::{Frame, Stack};
pub(crate) use trace::stream as stream_number;
pub use trace::{Action, TraceEntry};

/// What lies where in pools at one moment.
///
/// The layout is that of PyTorch's `torch.cuda.memory._snapshot()`, so PyTorch's tools open what
/// [`dump`](Self::dump) writes: `_memory_viz.py` and [pytorch.org/memory_viz](https://pytorch.org/memory_viz). What PyTorch does
/// not have is beside it, in [`mempool`](Self::mempool) and in some keys of segments and blocks; its tools pass over them.
///
/// Pools are looked at one after the other, each stream's part of one under its lock: what a program does meanwhile may be in
/// it for one and not yet for the other.
///
/// [`load`](Self::load) reads such files, and those that PyTorch wrote.
///
/// As JSON an object has the names of fields as its keys, kinds, states and actions are texts in `snake_case`, addresses and sizes
/// are numbers of bytes, pairs are lists of two, and what is `None` is `null` or left out. Lists called `frames` are empty there:
/// blocks and entries name a call stack by its place in `mempool.stacks`. A pickle has the same keys, and in `frames` what stands
/// in that list, followed by the parts of the label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Stretches of mapped memory without gaps, in order of address for each device.
    pub segments: Vec<Segment>,
    /// For each device the last entries of the [history](crate::record_history) of the pools here: nothing where none is kept. Undone
    /// from the last to the first they lead from the segments here back to what was there before.
    pub device_traces: Vec<Vec<TraceEntry>>,
    /// What the allocator was set to.
    pub allocator_settings: AllocatorSettings,
    external_annotations: Empty,
    /// What PyTorch's snapshots do not have.
    pub mempool: Extra,
}

/// What PyTorch's snapshots do not have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extra {
    /// Of the layout: 1, or 0 where PyTorch wrote the snapshot.
    pub version: u32,
    /// Microseconds since 1970; of PyTorch's the time of the last entry, or 0.
    pub time_us: u64,
    /// Those that pools were looked at of; segments name them by their place in here.
    pub devices: Vec<DeviceInfo>,
    /// The pools that were looked at.
    pub pools: Vec<PoolInfo>,
    /// Entries of the history that are no longer kept; `None` where no history is kept, and for PyTorch's.
    pub dropped_entries: Option<u64>,
    /// When the history began, in microseconds since 1970; `None` where none is kept, and for PyTorch's.
    #[serde(default)]
    pub history_began_us: Option<u64>,
    /// The call stacks that blocks and entries name by their place in here.
    pub stacks: Vec<Stack>,
}

/// A device with pools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The host, or a device of some kind.
    pub kind: DeviceKind,
    /// Its number among devices of its kind.
    pub ordinal: u32,
}

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host: memory of the process.
    Host,
    /// A device behind a driver.
    Device,
}

/// A pool and its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// As [`Segment::segment_pool_id`].
    pub id: (u64, u64),
    /// Its device, by its place in [`Extra::devices`].
    pub device: usize,
    /// Its name.
    pub name: String,
    /// The most it may hold; `None` where there is no limit.
    #[serde(default)]
    pub limit_bytes: Option<usize>,
    /// Its figures; `None` for PyTorch's, which have none, and for those that another version of this crate wrote in another way.
    #[serde(default, deserialize_with = "known_stats")]
    pub stats: Option<PoolStats>,
}

/// A stretch of mapped memory without gaps that one pool has for one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The device, by its place in [`Extra::devices`].
    pub device: usize,
    /// First address.
    pub address: usize,
    /// Bytes.
    pub total_size: usize,
    /// Bytes of blocks that are somebody's, or kept for a planned step or a set of buffers.
    pub allocated_size: usize,
    /// The same, and freed blocks that queued work still uses.
    pub active_size: usize,
    /// Bytes that were asked for in blocks that are somebody's, or a buffer's.
    pub requested_size: usize,
    /// The stream that it serves; 0 where there is none: on the host, for synchronous allocations, after the stream's end.
    pub stream: u64,
    /// `small` when no block in it is larger than 1 MiB.
    pub segment_type: SegmentType,
    /// 0 and the pool's id, which is 0 for the default pool of a device. PyTorch counts the pools of graphs in the first number.
    pub segment_pool_id: (u64, u64),
    /// Whether it may grow in place: it is mapped page by page.
    pub is_expandable: bool,
    frames: Empty,
    /// Its blocks, which cover it.
    pub blocks: Vec<Block>,
    /// The pool's name.
    pub pool_name: String,
    /// In whose order it is used.
    pub order: Order,
}

/// Whether a segment serves small requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentType {
    /// No block of more than 1 MiB lies in it.
    Small,
    /// One does.
    Large,
}

/// In whose order a segment is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The host's: whoever is next.
    Host,
    /// A stream's.
    Stream,
    /// That of a graph, captured or in capture.
    Capture,
    /// Nobody's: what is handed out is idle.
    Synchronous,
    /// That of a stream which is gone.
    Ended,
}

/// A part of a segment that has one use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// First address.
    pub address: usize,
    /// Bytes.
    pub size: usize,
    /// Bytes that were asked for; 0 for what is free, or kept and no buffer's.
    pub requested_size: usize,
    /// What it is used for, as PyTorch says it.
    pub state: BlockState,
    /// Where it was asked for, by its place in [`Extra::stacks`], where a history keeps call stacks. A pickle has what stands
    /// there, and the label, as `frames`.
    pub stack: Option<u32>,
    frames: Empty,
    /// Who allocated it; `None` for what is free, and where no [history](crate::record_history) is kept.
    pub owner: Option<BlockOwner>,
    /// Kept for a planned step or a buffer, and nobody's now. Its state is that of an allocated block.
    pub is_kept: bool,
}

/// Who allocated a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockOwner {
    /// The [labels](crate::label) that it was allocated under, as `encoder/layer 3`; empty for none.
    pub label: String,
    /// The thread's name; empty for one without.
    pub thread: String,
    /// Steps that had ended since the history began.
    pub step: u32,
    /// Allocations of that step that came before.
    pub position: u32,
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// It was live before the history began: nothing else is known of it.
    pub is_older: bool,
}

/// What a block is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Somebody has it.
    ActiveAllocated,
    /// It was freed, and queued work may still use it.
    ActivePendingFree,
    /// It is free.
    Inactive,
}

/// What an allocator was set to, as PyTorch's viewers print it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct AllocatorSettings {
    /// The variable of the environment: `MEMPOOL_CONF`, or PyTorch's.
    #[serde(rename = "PYTORCH_CUDA_ALLOC_CONF")]
    pub conf: String,
    /// Bytes above which blocks are not cut; -1 for none.
    pub max_split_size: i64,
    /// Share of a limit above which PyTorch gives back what is unused; 0 for never.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow in place.
    pub expandable_segments: bool,
}

/// Figures, if they are those of this version.
fn known_stats<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PoolStats>, D::Error> {
    let value = Option::<serde_json::Value>::deserialize(deserializer)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// A list that PyTorch's readers look for, and that is always empty in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Empty;

impl Serialize for Empty {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [(); 0].serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Empty {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}
