//! Snapshots from what a file has, ours or PyTorch's.

use std::collections::HashMap;

use super::pickle::{Tree, Value};
use super::record::{Budget, Record, Wrong, to_json};
use super::trace::NO_CONTEXT;
use super::{
    Action, AllocatorSettings, Block, BlockOwner, BlockState, DeviceInfo, DeviceKind, Empty, Extra, Frame,
    Order, PoolInfo, Segment, SegmentType, Snapshot, Stack, TraceEntry,
};

/// What reads a file.
struct Reader<'a> {
    tree: &'a Tree,
    budget: Budget,
    stacks: Stacks,
    /// The file says what stands in [`Extra`].
    is_ours: bool,
}

/// Call stacks that PyTorch's files have in each block and entry, where most are the same list.
#[derive(Default)]
struct Stacks {
    all: Vec<Stack>,
    by_content: HashMap<Stack, u32>,
    by_node: HashMap<u32, Option<u32>>,
}

impl Snapshot {
    /// The snapshot that a file's values are.
    pub(super) fn from_tree(tree: &Tree) -> Result<Self, Wrong> {
        let mut budget = Budget::for_source(tree.source_bytes());
        let root = Record::new(tree, tree.root(), "the snapshot")?;
        let extra = match root.get("mempool") {
            Some(extra) => Some(
                serde_json::from_value::<Extra>(to_json(tree, extra, &mut budget)?)
                    .map_err(|error| Wrong::Extra(error.to_string()))?,
            ),
            None => None,
        };
        if root.get("segments").is_none() {
            return Err(Wrong::Missing { record: "the snapshot", field: "segments" });
        }
        let mut reader = Reader { tree, budget, stacks: Stacks::default(), is_ours: extra.is_some() };
        let mut segments = reader.all(root.list("segments")?, Reader::segment)?;
        segments.sort_by_key(|segment| (segment.device, segment.address));
        let mut device_traces = Vec::new();
        for trace in root.list("device_traces")? {
            let of = || Wrong::Shape { record: "device_traces", what: "it is no list of lists".to_owned() };
            device_traces.push(reader.all(tree.list(*trace).ok_or_else(of)?, Reader::entry)?);
        }
        let allocator_settings = reader.settings(&root)?;
        let mut snapshot = Self {
            segments,
            device_traces,
            allocator_settings,
            external_annotations: Empty,
            mempool: extra.unwrap_or_else(|| Extra {
                version: 0,
                time_us: 0,
                devices: Vec::new(),
                pools: Vec::new(),
                dropped_entries: None,
                history_began_us: None,
                stacks: reader.stacks.all,
            }),
        };
        if !reader.is_ours {
            snapshot.complete();
        }
        snapshot.check()?;
        Ok(snapshot)
    }

    /// What PyTorch's files do not say, as far as it follows from what they do.
    fn complete(&mut self) {
        let devices = self.segments.iter().map(|segment| segment.device + 1).max().unwrap_or(0);
        let devices = devices.max(self.device_traces.len()).min(MAX_DEVICES);
        self.device_traces.resize(devices, Vec::new());
        let info = |ordinal: usize| DeviceInfo { kind: DeviceKind::Device, ordinal: ordinal as u32 };
        self.mempool.devices = (0..devices).map(info).collect();
        let last = self.device_traces.iter().filter_map(|trace| trace.last());
        self.mempool.time_us = last.map(|entry| entry.time_us).max().unwrap_or(0);
        let mut pools: Vec<(usize, (u64, u64))> =
            self.segments.iter().map(|segment| (segment.device, segment.segment_pool_id)).collect();
        pools.sort_unstable();
        pools.dedup();
        let pool =
            |(device, id)| PoolInfo { id, device, name: pool_name(id), limit_bytes: None, stats: None };
        self.mempool.pools = pools.into_iter().map(pool).collect();
        self.name_owners();
    }

    /// Whose blocks are, by the trace: the last that was allocated at each address.
    fn name_owners(&mut self) {
        for (device, trace) in self.device_traces.iter().enumerate() {
            let mut last: HashMap<usize, &TraceEntry> = HashMap::new();
            for entry in trace.iter().filter(|entry| entry.action == Action::Alloc) {
                last.insert(entry.addr.unwrap_or(0), entry);
            }
            let blocks = self.segments.iter_mut().filter(|segment| segment.device == device);
            let blocks = blocks.flat_map(|segment| &mut segment.blocks);
            for block in blocks.filter(|block| block.state != BlockState::Inactive) {
                block.owner =
                    Some(last.get(&block.address).map_or_else(BlockOwner::unknown, |entry| BlockOwner {
                        label: entry.user_metadata.clone(),
                        time_us: entry.time_us,
                        is_older: false,
                        ..BlockOwner::unknown()
                    }));
                block.stack = block.stack.or_else(|| last.get(&block.address).and_then(|entry| entry.stack));
            }
        }
    }

    /// Whether what names something names something that is there, and blocks cover their segments.
    fn check(&self) -> Result<(), Wrong> {
        let wrong = |record, what| Err(Wrong::Shape { record, what });
        let (devices, stacks) = (self.mempool.devices.len(), self.mempool.stacks.len());
        if self.device_traces.len() > devices {
            return wrong("device_traces", format!("{} for {devices} devices", self.device_traces.len()));
        }
        for pool in &self.mempool.pools {
            if pool.device >= devices {
                return wrong("a pool", format!("device {} of {devices}", pool.device));
            }
        }
        let is_there = |stack: Option<u32>| stack.is_none_or(|at| (at as usize) < stacks);
        for segment in &self.segments {
            if segment.device >= devices {
                return wrong("a segment", format!("device {} of {devices}", segment.device));
            }
            let mut at = segment.address;
            for block in &segment.blocks {
                if block.address != at {
                    return wrong("a block", format!("address {:#x} where {at:#x} comes", block.address));
                }
                if !is_there(block.stack) {
                    return wrong("a block", format!("a stack of {stacks} that is not there"));
                }
                let Some(end) = at.checked_add(block.size).filter(|&end| end < MAX_ADDRESS) else {
                    return wrong("a block", format!("{} bytes at {at:#x}", block.size));
                };
                at = end;
            }
            if at - segment.address != segment.total_size {
                let (is, sum) = (segment.total_size, at - segment.address);
                return wrong("a segment", format!("it has {is} bytes, and its blocks have {sum}"));
            }
        }
        for entry in self.device_traces.iter().flatten() {
            let addr = entry.addr.unwrap_or(0);
            if !is_there(entry.stack) {
                return wrong("an entry", format!("a stack of {stacks} that is not there"));
            }
            if entry.size >= MAX_ADDRESS || addr >= MAX_ADDRESS {
                return wrong("an entry", format!("{} bytes at {addr:#x}", entry.size));
            }
        }
        Ok(())
    }
}

/// Addresses end here: sums of an address and a size do not overflow, and readers in other languages have them exactly.
const MAX_ADDRESS: usize = 1 << 62;
/// More than any machine has: a file could name a device of any number.
const MAX_DEVICES: usize = 1024;

fn pool_name(id: (u64, u64)) -> String {
    match id {
        (0, 0) => "default".to_owned(),
        (graph, 0) => format!("graph {graph}"),
        (_, pool) => format!("pool {pool}"),
    }
}

impl<'a> Reader<'a> {
    fn all<T>(
        &mut self,
        values: &[Value],
        one: fn(&mut Self, Value) -> Result<T, Wrong>,
    ) -> Result<Vec<T>, Wrong> {
        self.budget.spend(values.len().saturating_mul(16))?;
        values.iter().map(|&value| one(self, value)).collect()
    }

    fn segment(&mut self, value: Value) -> Result<Segment, Wrong> {
        let record = Record::new(self.tree, value, "a segment")?;
        let is_small = record.text("segment_type", &mut self.budget)? == "small";
        let segment_pool_id = record.pair("segment_pool_id")?;
        let device = record.count_or("device", 0)?;
        if device >= MAX_DEVICES {
            return Err(Wrong::Shape { record: "a segment", what: format!("device {device}") });
        }
        let address = record.count("address")?;
        let mut blocks = self.all(record.list("blocks")?, Self::block)?;
        // PyTorch's of before 2.0 have sizes only.
        let mut at = address;
        for block in &mut blocks {
            if block.address == UNKNOWN_ADDRESS {
                block.address = at;
            }
            at = block.address.saturating_add(block.size);
        }
        let allocated = sum(&blocks, |block| block.state == BlockState::ActiveAllocated, |block| block.size);
        let requested =
            sum(&blocks, |block| block.state == BlockState::ActiveAllocated, |block| block.requested_size);
        let active = sum(&blocks, |block| block.state != BlockState::Inactive, |block| block.size);
        let name = if self.is_ours {
            record.text("pool_name", &mut self.budget)?
        } else {
            pool_name(segment_pool_id)
        };
        Ok(Segment {
            device,
            address,
            total_size: record.count("total_size")?,
            allocated_size: record.count_or("allocated_size", allocated)?,
            active_size: record.count_or("active_size", active)?,
            requested_size: record.count_or("requested_size", requested)?,
            stream: record.bits("stream")?,
            segment_type: if is_small { SegmentType::Small } else { SegmentType::Large },
            segment_pool_id,
            is_expandable: record.flag("is_expandable")?,
            frames: Empty,
            blocks,
            pool_name: name,
            order: match &*record.text("order", &mut self.budget)? {
                "host" => Order::Host,
                "capture" => Order::Capture,
                "synchronous" => Order::Synchronous,
                "ended" => Order::Ended,
                _ => Order::Stream,
            },
        })
    }

    fn block(&mut self, value: Value) -> Result<Block, Wrong> {
        let record = Record::new(self.tree, value, "a block")?;
        let state = match &*record.text("state", &mut self.budget)? {
            "active_allocated" => BlockState::ActiveAllocated,
            "active_pending_free" | "active_awaiting_free" => BlockState::ActivePendingFree,
            "inactive" => BlockState::Inactive,
            other => {
                let what = format!("state {:?} is not known", other.chars().take(40).collect::<String>());
                return Err(Wrong::Shape { record: "a block", what });
            }
        };
        let size = record.count("size")?;
        let free = state == BlockState::Inactive;
        let owner = match record.record("owner")? {
            None => None,
            Some(owner) => Some(BlockOwner {
                label: owner.text("label", &mut self.budget)?,
                thread: owner.text("thread", &mut self.budget)?,
                step: owner.short("step")?,
                position: owner.short("position")?,
                time_us: owner.bits("time_us")?,
                is_older: owner.flag("is_older")?,
            }),
        };
        Ok(Block {
            address: record.count_or("address", UNKNOWN_ADDRESS)?,
            size,
            requested_size: if free { 0 } else { record.count_or("requested_size", size)? },
            state,
            stack: self.stack(&record)?,
            frames: Empty,
            owner,
            is_kept: record.flag("is_kept")?,
        })
    }

    fn entry(&mut self, value: Value) -> Result<TraceEntry, Wrong> {
        let record = Record::new(self.tree, value, "an entry")?;
        let action = match record.get("action").map(|name| self.tree.text(name)) {
            Some(Some(name)) => Action::named(name),
            _ => return Err(Wrong::Kind { record: "an entry", field: "action", expected: "a text" }),
        };
        let context = record.text("compile_context", &mut self.budget)?;
        let optional = |field| record.get(field).map(|_| record.count(field)).transpose();
        let (addr, device_free) = (optional("addr")?, optional("device_free")?);
        // An entry of a block names it; what is not known may have no address.
        if addr.is_none() && !matches!(action, Action::Oom | Action::Other) {
            return Err(Wrong::Missing { record: "an entry", field: "addr" });
        }
        Ok(TraceEntry {
            action,
            addr,
            device_free,
            size: record.count_or("size", 0)?,
            stream: record.bits("stream")?,
            time_us: record.bits("time_us")?,
            compile_context: if context.is_empty() { NO_CONTEXT.to_owned() } else { context },
            user_metadata: self.metadata(&record)?,
            pool_id: record.pair("pool_id")?,
            stack: self.stack(&record)?,
            frames: Empty,
            thread: record.text("thread", &mut self.budget)?,
            step: record.short("step")?,
            position: record.short("position")?,
        })
    }

    /// A text, or in newer files of PyTorch a dictionary that has no meaning here.
    fn metadata(&mut self, record: &Record<'_>) -> Result<String, Wrong> {
        let is_dict = record.get("user_metadata").is_some_and(|value| self.tree.dict(value).is_some());
        if is_dict { Ok(String::new()) } else { record.text("user_metadata", &mut self.budget) }
    }

    fn stack(&mut self, record: &Record<'_>) -> Result<Option<u32>, Wrong> {
        if self.is_ours {
            return record.get("stack").map(|_| record.short("stack")).transpose();
        }
        let Some(list) = record.get("frames") else { return Ok(None) };
        let Value::Node(node) = list else { return Ok(None) };
        if let Some(&known) = self.stacks.by_node.get(&node) {
            return Ok(known);
        }
        let frames = self.all(record.list("frames")?, Self::frame)?;
        let at = (!frames.is_empty()).then(|| {
            let next = self.stacks.all.len() as u32;
            let stack = Stack { frames };
            *self.stacks.by_content.entry(stack.clone()).or_insert_with(|| {
                self.stacks.all.push(stack);
                next
            })
        });
        self.stacks.by_node.insert(node, at);
        Ok(at)
    }

    fn frame(&mut self, value: Value) -> Result<Frame, Wrong> {
        let record = Record::new(self.tree, value, "a frame")?;
        Ok(Frame {
            name: record.text("name", &mut self.budget)?,
            filename: record.text("filename", &mut self.budget)?,
            line: u32::try_from(record.bits("line")?).unwrap_or(0),
        })
    }

    fn settings(&mut self, root: &Record<'_>) -> Result<AllocatorSettings, Wrong> {
        let none = AllocatorSettings {
            conf: String::new(),
            max_split_size: -1,
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
        };
        let Some(record) = root.record("allocator_settings")? else { return Ok(none) };
        Ok(AllocatorSettings {
            conf: record.text("PYTORCH_CUDA_ALLOC_CONF", &mut self.budget)?,
            max_split_size: match record.get("max_split_size") {
                Some(Value::Int(bytes)) => bytes,
                _ => -1,
            },
            garbage_collection_threshold: match record.get("garbage_collection_threshold") {
                Some(Value::Float(share)) => share,
                _ => 0.0,
            },
            expandable_segments: record.flag("expandable_segments")?,
        })
    }
}

/// Of a block whose address follows from those before.
const UNKNOWN_ADDRESS: usize = usize::MAX;

fn sum(blocks: &[Block], counts: impl Fn(&Block) -> bool, bytes: impl Fn(&Block) -> usize) -> usize {
    blocks.iter().filter(|block| counts(block)).map(bytes).fold(0, usize::saturating_add)
}
