//! Snapshots to make pages of: of real pools, and one as PyTorch lays memory out.

use std::sync::{Mutex, MutexGuard};

use mempool_pools::snapshot::Snapshot;
use mempool_pools::{BufferSet, HistoryOptions, MemPool, label, mark_step, record_history, stop_history};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

/// Text that would break out of HTML, of a script, of an attribute or of a line, where it is not kept from it.
pub(crate) const HOSTILE: &str =
    "</script><img src=x onerror=\"document.title='broken'\">\u{2028}'\"`${1}<!--\u{0}\u{202e}]]>";

/// There is one history in a process.
static HISTORY: Mutex<()> = Mutex::new(());

/// A history while it is kept, and nobody else's.
pub(crate) struct Kept(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Kept {
    pub(crate) fn begin() -> Self {
        let guard = HISTORY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        record_history(HistoryOptions::default()).unwrap();
        Self(guard)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        stop_history();
    }
}

fn block(bytes: usize) -> Vec<u8> {
    // Memory that is reserved and never touched costs the test nothing.
    Vec::with_capacity(bytes)
}

/// A model that is trained for so many steps of about 170 events, beside caches of sessions that come and go, and a log that
/// is never emptied.
pub(crate) fn training(steps: usize) -> Snapshot {
    const MIB: usize = 1 << 20;
    let mut random = StdRng::seed_from_u64(7);
    let before = MemPool::builder().name("parameters").build().unwrap();
    let older = before.with(|| block(3 * MIB));
    let history = Kept::begin();
    let pool = MemPool::builder().name("activations").build().unwrap();
    let parameters: Vec<Vec<u8>> = before.with(|| {
        let _label = label("parameters");
        (0..12)
            .map(|layer| {
                let _label = label(&format!("layer {layer}"));
                block(MIB + layer * MIB / 8)
            })
            .collect()
    });
    let mut set = BufferSet::new(&pool);
    set.reserve(24 * MIB).unwrap();
    let (mut log, mut sessions) = (Vec::new(), Vec::<Vec<u8>>::new());
    for step in 0..steps {
        let _scope = pool.enter();
        let batch = 1 + random.random_range(0..4_usize);
        let mut kept = Vec::new();
        for layer in 0..12 {
            let _outer = label("encoder");
            let _label = label(&format!("layer {layer}"));
            kept.push(block(batch * MIB / 2));
            for _ in 0..2 {
                drop((block(batch * 200_000), block(batch * MIB)));
            }
        }
        {
            let _label = label("decoder/head");
            kept.push(block(batch * 3 * MIB));
        }
        if step % 16 == 0 {
            let _label = label("metrics");
            log.push(block(20_000 + step));
        }
        let _label = label("session caches");
        sessions.push(block(random.random_range(MIB / 2..6 * MIB)));
        if sessions.len() > 24 {
            drop(sessions.swap_remove(random.random_range(0..sessions.len())));
        }
        drop(kept);
        mark_step();
    }
    std::thread::scope(|scope| {
        let spawned = std::thread::Builder::new().name("loader".to_owned()).spawn_scoped(scope, || {
            let _label = label("batches");
            pool.with(|| sessions.push(block(5 * MIB)));
        });
        spawned.unwrap().join().unwrap();
    });
    let mut snapshot = mempool_pools::snapshot();
    drop((history, older, parameters, log, sessions));
    // Other tests use the default pool meanwhile.
    snapshot.segments.retain(|segment| segment.segment_pool_id.1 != 0);
    snapshot.device_traces.iter_mut().for_each(|trace| trace.retain(|entry| entry.pool_id.1 != 0));
    snapshot.mempool.pools.retain(|pool| pool.id.1 != 0);
    snapshot
}

/// 25,000 blocks that are live at once, with holes between them: 100,000 events.
pub(crate) fn scattered() -> Snapshot {
    let mut random = StdRng::seed_from_u64(8);
    let history = Kept::begin();
    let pool = MemPool::builder().name("scattered").build().unwrap();
    let mut blocks: Vec<Vec<u8>> = pool.with(|| {
        (0..50_000)
            .map(|index| {
                let _label = label(&format!("shard {}", index % 300));
                block(random.random_range(16..40) << 10)
            })
            .collect()
    });
    for _ in 0..25_000 {
        drop(blocks.swap_remove(random.random_range(0..blocks.len())));
    }
    let snapshot = pool.snapshot();
    drop((history, blocks));
    snapshot
}

/// A snapshot in which every text is hostile.
pub(crate) fn hostile() -> Snapshot {
    let history = Kept::begin();
    let pool = MemPool::builder().name(HOSTILE).build().unwrap();
    let thread = std::thread::Builder::new().name(HOSTILE.replace('\0', ""));
    let blocks = thread.spawn({
        let pool = pool.clone();
        move || {
            let _label = label(HOSTILE);
            pool.with(|| (0..5).map(|_| block(1 << 20)).collect::<Vec<_>>())
        }
    });
    let blocks = blocks.unwrap().join().unwrap();
    let snapshot = pool.snapshot();
    drop((history, blocks));
    snapshot
}

/// As PyTorch lays memory out, on two devices: segments of fixed size at high addresses, several streams, call sites and no
/// labels.
pub(crate) fn of_pytorch() -> Snapshot {
    const SEGMENT: u64 = 2 << 20;
    let site = |line: u32| json!([{"name": "forward", "filename": "model.py", "line": line}, {"name": "<module>", "filename": "train.py", "line": 7}]);
    let mut segments = Vec::new();
    let mut traces = [const { Vec::new() }; 4];
    for index in 0..40_u64 {
        // The first and the third device have nothing, as in a process that uses the others.
        let device = if index % 4 == 3 { 3 } else { 1 };
        let trace = &mut traces[device];
        // None has a page of 2 MiB at a multiple of its size.
        let address = 0x7fae_d408_0000 + index * 2 * SEGMENT;
        let stream = [0, 778_568_464, 778_620_960][index as usize % 3];
        let entry = |action: &str, at: u64, size: u64, line: u32| {
            json!({
                "action": action, "addr": address + at, "size": size, "stream": stream,
                "time_us": 1_795_973_158_000_000_u64 + index * 1000 + at / 1000, "compile_context": "N/A",
                "user_metadata": "", "pool_id": [0, 0], "frames": site(line),
            })
        };
        // A small tensor that stays keeps the segment, and what lay beside it is gone.
        trace.push(entry("alloc", 0, 1_500_000, 21));
        trace.push(entry("alloc", 1_500_160, 4, 88));
        trace.push(entry("free_requested", 0, 1_500_000, 22));
        trace.push(entry("free_completed", 0, 1_500_000, 22));
        segments.push(json!({
            "device": device, "address": address, "total_size": SEGMENT, "allocated_size": 512, "active_size": 512,
            "requested_size": 4, "stream": stream, "segment_type": "small", "segment_pool_id": [0, 0],
            "is_expandable": false, "frames": [],
            "blocks": [
                pytorch_block(address, 1_500_160, 0, "inactive", json!([])),
                pytorch_block(address + 1_500_160, 512, 4, "active_allocated", site(88)),
                pytorch_block(address + 1_500_672, SEGMENT - 1_500_672, 0, "inactive", json!([])),
            ],
        }));
    }
    let file = json!({
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": false},
        "external_annotations": [],
    });
    Snapshot::read(file.to_string().as_bytes()).unwrap()
}

fn pytorch_block(address: u64, size: u64, requested: u64, state: &str, frames: Value) -> Value {
    json!({
        "address": address, "size": size, "requested_size": requested, "state": state, "frames": frames,
    })
}
