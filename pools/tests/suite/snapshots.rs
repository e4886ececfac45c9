//! Snapshots: what they say, and the files that others read.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use mempool_pools::snapshot::{BlockState, DeviceKind, Order, SegmentType, Snapshot};
use mempool_pools::{BufferSet, MemPool, PoolError};
use proptest::prelude::*;

use crate::suite::{BIG, recount};

#[test]
fn a_snapshot_says_what_lies_where() {
    let pool = MemPool::builder().name("snapped").build().unwrap();
    let (first, second, third) = pool.with(|| (vec![1_u8; BIG], vec![2_u8; 3 * BIG], vec![3_u8; 5000]));
    drop(second);
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.mempool.pools.len(), 1);
    assert_eq!((snapshot.mempool.pools[0].id, &*snapshot.mempool.pools[0].name), ((0, pool.id()), "snapped"));
    assert_eq!(snapshot.mempool.devices[0].kind, DeviceKind::Host);
    let find = |addr: usize| {
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.into_iter().find(|block| block.address == addr).unwrap().clone()
    };
    let block = find(first.as_ptr().addr());
    assert_eq!((block.requested_size, block.state), (BIG, BlockState::ActiveAllocated));
    for segment in &snapshot.segments {
        assert_eq!((segment.segment_pool_id, segment.order), ((0, pool.id()), Order::Host));
        assert_eq!(segment.pool_name, "snapped");
        assert!(segment.is_expandable && segment.stream == 0);
    }
    assert!(snapshot.segments.iter().any(|segment| segment.segment_type == SegmentType::Small));
    recount::check(&pool).unwrap();
    // The process's has it, and the default pool.
    let all = mempool_pools::snapshot();
    assert!(all.mempool.pools.iter().any(|other| other.id == (0, pool.id())));
    assert!(all.mempool.pools.iter().any(|other| other.id == (0, 0)));
    drop((first, third));
}

#[test]
fn what_steps_and_buffers_keep_is_not_free() {
    let pool = MemPool::new().unwrap();
    let mut set = BufferSet::new(&pool);
    set.reserve(8 * BIG).unwrap();
    let mut buffer = set.add(BIG).unwrap();
    let held = buffer.place_next(BIG, || vec![1_u8; BIG]).unwrap();
    let mut step = pool.step();
    for _ in 0..4 {
        step.run(|| drop((vec![1_u8; BIG], vec![2_u8; 2 * BIG])));
    }
    let snapshot = pool.snapshot();
    let blocks = || snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let kept: usize = blocks().filter(|block| block.is_kept).map(|block| block.size).sum();
    assert_eq!(kept, 7 * BIG + 3 * BIG);
    // A buffer keeps what it holds.
    let other = set.add(2 * BIG).unwrap();
    let snapshot = pool.snapshot();
    let blocks = || snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let buffer = blocks().find(|block| block.address == other.addr()).unwrap();
    assert_eq!((buffer.size, buffer.requested_size, buffer.is_kept), (2 * BIG, 2 * BIG, true));
    let live = blocks().find(|block| block.address == held.as_ptr().addr()).unwrap();
    assert_eq!((live.size, live.requested_size, live.is_kept), (BIG, BIG, false));
    recount::check(&pool).unwrap();
}

/// Follows a pickle, and fails at what PyTorch's page does not read.
fn read_as_the_page_does(pickle: &[u8]) {
    let (mut at, mut marks, mut since_mark, mut remembered) = (2, Vec::new(), 0_usize, 0_usize);
    assert_eq!(pickle[..2], [0x80, 2], "protocol 2");
    let number = |at: usize| u32::from_le_bytes(pickle[at..at + 4].try_into().unwrap()) as usize;
    while at < pickle.len() {
        let code = pickle[at];
        at += 1;
        match code {
            b'}' | b']' | b')' | b'N' | 0x88 | 0x89 => since_mark += 1,
            b'(' => marks.push(std::mem::take(&mut since_mark)),
            b'e' | b'u' => {
                assert!(since_mark <= 1000 * if code == b'u' { 2 } else { 1 }, "{since_mark} at once");
                since_mark = marks.pop().unwrap();
            }
            b't' => since_mark = marks.pop().unwrap() + 1,
            0x85 => {}
            0x86 => since_mark -= 1,
            0x87 => since_mark -= 2,
            b'J' => (at, since_mark) = (at + 4, since_mark + 1),
            b'K' => (at, since_mark) = (at + 1, since_mark + 1),
            b'M' => (at, since_mark) = (at + 2, since_mark + 1),
            b'G' => (at, since_mark) = (at + 8, since_mark + 1),
            0x8a => {
                let len = pickle[at] as usize;
                assert!(len <= 8, "a number of {len} bytes");
                (at, since_mark) = (at + 1 + len, since_mark + 1);
            }
            b'X' => (at, since_mark) = (at + 4 + number(at), since_mark + 1),
            b'q' => (at, remembered) = (at + 1, remembered + 1),
            b'r' => (at, remembered) = (at + 4, remembered + 1),
            b'h' => {
                assert!(usize::from(pickle[at]) < remembered, "what was not remembered");
                (at, since_mark) = (at + 1, since_mark + 1);
            }
            b'j' => {
                assert!(number(at) < remembered, "what was not remembered");
                (at, since_mark) = (at + 4, since_mark + 1);
            }
            b'.' => assert_eq!(at, pickle.len(), "nothing comes behind the end"),
            other => panic!("the page does not know {other:#x}"),
        }
    }
    assert!(marks.is_empty());
}

#[test]
fn files_are_read_back_and_hold_what_pytorchs_page_reads() {
    let pool = MemPool::builder().name("a name with \"quotes\" and \u{e4}").build().unwrap();
    let kept: Vec<Vec<u8>> = pool.with(|| (0..2500).map(|_| vec![1_u8; 20_000]).collect());
    let snapshot = pool.snapshot();
    assert!(snapshot.segments.iter().map(|segment| segment.blocks.len()).sum::<usize>() >= 2500);
    let (mut pickle, mut json) = (Vec::new(), Vec::new());
    snapshot.write_pickle(&mut pickle).unwrap();
    snapshot.write_json(&mut json).unwrap();
    read_as_the_page_does(&pickle);
    let from_json: Snapshot = serde_json::from_slice(&json).unwrap();
    assert_eq!(from_json, snapshot);
    assert_eq!(Snapshot::read(&json[..]).unwrap(), snapshot);
    assert_eq!(Snapshot::read(&pickle[..]).unwrap(), snapshot);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&pickle).unwrap();
    assert_eq!(Snapshot::read(&packed.finish().unwrap()[..]).unwrap(), snapshot);
    // Others read it as they read any pickle.
    let options = serde_pickle::DeOptions::new().replace_recursive_structures();
    let others: serde_json::Value = serde_pickle::from_slice(&pickle, options).unwrap();
    assert_eq!(others["segments"][0]["blocks"][1]["size"], snapshot.segments[0].blocks[1].size);
    // The keys that PyTorch's readers need.
    let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(value["device_traces"], serde_json::json!([[]]));
    let segment = &value["segments"][0];
    for key in [
        "device",
        "address",
        "total_size",
        "allocated_size",
        "active_size",
        "requested_size",
        "stream",
        "frames",
    ] {
        assert!(!segment[key].is_null(), "{key}");
    }
    assert!(["small", "large"].contains(&segment["segment_type"].as_str().unwrap()));
    assert_eq!(segment["segment_pool_id"], serde_json::json!([0, pool.id()]));
    let states: Vec<&str> = value["segments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|segment| segment["blocks"].as_array().unwrap())
        .map(|block| block["state"].as_str().unwrap())
        .collect();
    assert!(
        states.iter().all(|state| ["active_allocated", "active_pending_free", "inactive"].contains(state))
    );
    drop(kept);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_with_its_name() {
    let pool = MemPool::new().unwrap();
    let error = pool.snapshot().dump("/nonexistent/folder/a.pickle").unwrap_err();
    assert!(matches!(&error, PoolError::Snapshot { kind: std::io::ErrorKind::NotFound, .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/folder/a.pickle"));
    // What was there before stays until what replaces it is whole, and what is no file is not removed.
    #[cfg(target_os = "linux")]
    {
        assert!(pool.snapshot().dump("/dev/full").is_err());
        assert!(std::path::Path::new("/dev/full").exists());
        let folder = std::env::temp_dir().join(format!("mempool-dump-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (old, link) = (folder.join("old.pickle"), folder.join("link.pickle"));
        std::fs::write(&old, "precious").unwrap();
        std::os::unix::fs::symlink(&old, &link).unwrap();
        pool.snapshot().dump(&link).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(Snapshot::load(&old).unwrap().mempool.pools[0].name, pool.stats().name);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "nothing is left beside them");
        std::fs::remove_dir_all(folder).unwrap();
    }
    let folder = std::env::temp_dir();
    for name in ["mempool-snapshot.pickle", "mempool-snapshot.JSON"] {
        let path = folder.join(format!("{}-{name}", std::process::id()));
        pool.snapshot().dump(&path).unwrap();
        let starts = std::fs::read(&path).unwrap()[0];
        assert_eq!(starts == b'{', name.ends_with("JSON"));
        std::fs::remove_file(path).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn figures_are_what_a_recount_of_the_snapshot_comes_to(
        ops in prop::collection::vec((0_u8..5, 0_usize..64, 1_usize..6_000_000), 1..60),
        policy in 0_usize..10,
    ) {
        const POLICIES: [&str; 10] = [
            "pages", "pages,mode:moving", "buckets", "buddy", "bfc", "torch", "simple", "expandable", "none",
            "pages,no_split:True",
        ];
        let conf = format!("policy:{}", POLICIES[policy]);
        let pool = MemPool::builder().conf(&conf).unwrap().build().unwrap();
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        for (kind, which, bytes) in ops {
            match kind {
                0 | 1 => blocks.push(pool.with(|| Vec::with_capacity(bytes))),
                2 if !blocks.is_empty() => drop(blocks.swap_remove(which % blocks.len())),
                3 if !blocks.is_empty() => {
                    let at = which % blocks.len();
                    blocks[at].reserve_exact(bytes);
                }
                4 => drop(pool.trim().unwrap()),
                _ => {}
            }
            if let Err(rule) = recount::check(&pool) {
                return Err(TestCaseError::fail(format!("{conf}: {rule}")));
            }
        }
    }
}
