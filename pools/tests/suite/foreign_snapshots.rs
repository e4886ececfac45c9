//! Snapshots that others wrote, and files that are none.

use mempool_pools::PoolError;
use mempool_pools::snapshot::{Action, BlockState, DeviceKind, SegmentType, Snapshot, SnapshotError};
use proptest::prelude::*;

/// Three streams, a pool, and a request that found no memory, on PyTorch 2.11.
const PYTORCH: &[u8] = include_bytes!("../data/pytorch_2_11.pickle.gz");

fn unpacked() -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::copy(&mut flate2::read::GzDecoder::new(PYTORCH), &mut bytes).unwrap();
    bytes
}

fn problem(bytes: &[u8]) -> String {
    Snapshot::read(bytes).unwrap_err().to_string()
}

#[test]
fn what_pytorch_wrote_is_read_with_its_streams_pools_and_call_sites() {
    let snapshot = Snapshot::read(PYTORCH).unwrap();
    assert_eq!((snapshot.mempool.version, snapshot.segments.len()), (0, 11));
    assert_eq!(snapshot.mempool.devices.len(), 1);
    assert_eq!(snapshot.mempool.devices[0].kind, DeviceKind::Device);
    let count = |action| snapshot.device_traces[0].iter().filter(|entry| entry.action == action).count();
    assert_eq!((count(Action::Alloc), count(Action::FreeCompleted)), (283, 236));
    assert_eq!((count(Action::SegmentAlloc), count(Action::SegmentFree), count(Action::Oom)), (22, 11, 1));
    let oom = snapshot.device_traces[0].iter().find(|entry| entry.action == Action::Oom).unwrap();
    assert!(oom.addr.is_none() && oom.device_free.is_some());
    let streams: std::collections::BTreeSet<u64> =
        snapshot.segments.iter().map(|segment| segment.stream).collect();
    assert!(streams.len() >= 3, "{streams:?}");
    assert!(snapshot.segments.iter().any(|segment| segment.segment_type == SegmentType::Small));
    assert!(snapshot.mempool.pools.iter().any(|pool| pool.id == (0, 0) && pool.name == "default"));
    assert!(snapshot.mempool.pools.iter().any(|pool| pool.id == (0, 1) && pool.stats.is_none()));
    let live = snapshot.live_blocks();
    assert!(!live.is_empty());
    for block in live {
        let site = snapshot.call_site(block.stack).unwrap();
        assert!(site.place().ends_with(&format!(".py:{}", site.line)), "{site:?}");
        assert!(!block.owner.as_ref().unwrap().is_older, "the trace has all of them");
    }
    // What is shared in the file is there once.
    assert!(snapshot.mempool.stacks.len() < 20, "{} stacks", snapshot.mempool.stacks.len());
    // It is as good as one of ours: written and read again it is the same.
    let (mut pickle, mut json) = (Vec::new(), Vec::new());
    snapshot.write_pickle(&mut pickle).unwrap();
    snapshot.write_json(&mut json).unwrap();
    assert_eq!(Snapshot::read(&pickle[..]).unwrap(), snapshot);
    assert_eq!(Snapshot::read(&json[..]).unwrap(), snapshot);
}

#[test]
fn what_pytorch_wrote_as_json_is_read_as_well() {
    let block = r#"{"size":512,"requested_size":500,"state":"active_allocated","frames":[{"name":"f","filename":"a.py","line":3}]}"#;
    let free = r#"{"size":1536,"state":"inactive"}"#;
    let text = format!(
        r#"{{"segments":[{{"address":4096,"total_size":2048,"segment_type":"small","blocks":[{block},{free}]}}],"device_traces":[[]]}}"#
    );
    let snapshot = Snapshot::read(text.as_bytes()).unwrap();
    let segment = &snapshot.segments[0];
    assert_eq!((segment.allocated_size, segment.active_size, segment.requested_size), (512, 512, 500));
    assert_eq!((segment.blocks[1].address, segment.blocks[1].state), (4608, BlockState::Inactive));
    assert_eq!(snapshot.call_site(segment.blocks[0].stack).unwrap().place(), "a.py:3");
    assert!(segment.blocks[0].owner.as_ref().unwrap().is_older, "no entry tells of it");
}

#[test]
fn what_is_no_snapshot_is_told_and_nothing_is_made_of_it() {
    assert!(matches!(Snapshot::read(&b"op,id,bytes\n"[..]), Err(SnapshotError::Format)));
    assert!(matches!(Snapshot::read(&b""[..]), Err(SnapshotError::Format)));
    for (bytes, said) in [
        (&b"\x80\x02]."[..], "it is no dictionary"),
        (b"\x80\x02}.", "field segments is missing"),
        (b"{\"segments\": 5}", "field segments is not a list"),
        (b"{\"segments\": [5]}", "a segment: it is no dictionary"),
        (b"{\"segments\": [{\"address\": -5}]}", "not a number that is not negative"),
        (b"{\"segments\": [{\"address\": 5, \"device\": 99999}]}", "device 99999"),
        (b"{\"segments\": [{\"address\": 5, \"total_size\": 9}]}", "it has 9 bytes, and its blocks have 0"),
        (
            b"{\"segments\": [{\"address\": 5, \"total_size\": 9, \"blocks\": [{\"state\": \"x\"}]}]}",
            "state \"x\" is not known",
        ),
        (b"{\"segments\": [], \"device_traces\": [[{\"action\": \"alloc\"}]]}", "field addr is missing"),
        (b"{\"segments\": [], \"mempool\": {}}", "what it says of pools"),
        (b"\x80\x02cos\nsystem\n", "asks for a class or function (GLOBAL)"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93", "asks for a class or function"),
        (b"\x80\x02}q\x00(h\x01", "value 1 is referred to"),
        (b"\x80\x02}(X\xff\xff\xff\xff", "ends within an instruction"),
        (b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01", "more than 64 bits"),
        (b"\x80\x02e", "finds no value"),
        (b"\x80\x02K\x01K\x02a", "of another kind"),
        (b"\x80\x02\xff", "is not one of pickles"),
    ] {
        let told = problem(bytes);
        assert!(told.contains(said), "{told}");
    }
    let path = std::env::temp_dir().join(format!("mempool-{}-no.pickle", std::process::id()));
    std::fs::write(&path, b"\x80\x02e").unwrap();
    let error = Snapshot::load(&path).unwrap_err();
    assert!(matches!(&error, PoolError::ReadSnapshot { path: at, .. } if *at == path), "{error}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn figures_of_another_version_are_left_out_and_all_else_is_read() {
    let pool = mempool_pools::MemPool::builder().name("of old").build().unwrap();
    let snapshot = pool.snapshot();
    let mut value = serde_json::to_value(&snapshot).unwrap();
    value["mempool"]["pools"][0]["stats"].as_object_mut().unwrap().remove("largest_free_bytes");
    let read = Snapshot::read(value.to_string().as_bytes()).unwrap();
    assert_eq!((&*read.mempool.pools[0].name, &read.mempool.pools[0].stats), ("of old", &None));
    assert_eq!(read.segments, snapshot.segments);
}

#[test]
fn a_short_file_that_stands_for_a_large_one_is_refused() {
    // One block in a list of 60,000 references to it, in 60,000 references to its segment.
    let mut bomb = b"\x80\x02}(X\x08\0\0\0segments](}(X\x07\0\0\0addressK\x01X\x0a\0\0\0total_sizeK\x00X\x06\0\0\0blocks](}(X\x05\0\0\0stateX\x08\0\0\0inactiveX\x04\0\0\0sizeK\x00uq\x01".to_vec();
    bomb.extend(b"h\x01".repeat(60_000));
    bomb.extend(b"euq\x02");
    bomb.extend(b"h\x02".repeat(60_000));
    bomb.extend(b"eu.");
    assert!(problem(&bomb).contains("many times its size"), "{}", problem(&bomb));
    // Nesting ends in no recursion, and what contains itself in no end.
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(b"]".repeat(1_000_000));
    deep.extend(b"a".repeat(999_999));
    deep.extend(b".");
    assert!(problem(&deep).contains("no dictionary"));
    let mut deep = b"\x80\x02}X\x07\0\0\0mempool".to_vec();
    deep.extend(b"]".repeat(1_000_000));
    deep.extend(b"a".repeat(999_999));
    deep.extend(b"s.");
    assert!(problem(&deep).contains("many times its size"));
    let own = b"\x80\x02}q\x01(X\x08\0\0\0segments](h\x01eX\x07\0\0\0mempoolh\x01u.";
    assert!(problem(own).contains("many times its size"), "{}", problem(own));
    // A dictionary of many keys that each record looks through.
    let mut wide = b"\x80\x02}(".to_vec();
    wide.extend(b"K\x01K\x01".repeat(100_000));
    wide.extend(b"u.");
    assert!(problem(&wide).contains("100000 fields"));
    // JSON within JSON within JSON.
    assert!(Snapshot::read(&[b"{\"segments\":".as_slice(), &b"[".repeat(100_000)].concat()[..]).is_err());
}

#[test]
fn sizes_that_no_machine_has_are_looked_at_without_overflow_and_without_end() {
    // Four exbibytes in one free block, mapped page by page, and a request of as much that found no memory.
    let most = 1_usize << 61;
    let refused = serde_json::json!({"action": "oom", "size": most, "device_free": 0});
    let text = serde_json::json!({
        "segments": [
            {"address": 4096, "total_size": most, "is_expandable": true, "blocks": [{"size": most, "state": "inactive"}]},
            {"address": 4096, "total_size": most, "blocks": [{"size": most, "state": "active_allocated"}]},
        ],
        "device_traces": [[{"action": "alloc", "addr": 9, "size": most}, refused, refused]],
    })
    .to_string();
    let snapshot = Snapshot::read(text.as_bytes()).unwrap();
    assert!(!snapshot.diagnose().findings.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Bytes of a real snapshot that are changed, cut out and doubled.
    #[test]
    fn damaged_files_are_errors_or_snapshots_and_nothing_else(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_usize..4), 1..12),
        as_json in any::<bool>(),
    ) {
        let mut bytes = unpacked();
        if as_json {
            let snapshot = Snapshot::read(&bytes[..]).unwrap();
            bytes.clear();
            snapshot.write_json(&mut bytes).unwrap();
        }
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..(at + usize::from(byte)).min(bytes.len()))),
                2 => bytes.insert(at, byte),
                _ => {
                    let piece = bytes[at..(at + usize::from(byte)).min(bytes.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        if let Ok(read) = Snapshot::read(&bytes[..]) {
            let grown = read.diff(&read);
            prop_assert!(grown.is_empty(), "{grown:?} since itself");
            prop_assert!(read.diagnose().findings.len() < 100);
        }
    }

    /// Instructions in any order, so that more than one in a thousand is one that can be followed.
    #[test]
    fn programs_of_any_instructions_end(
        codes in prop::collection::vec(prop::sample::select(&b"()]}Nau012etdls\x85\x86\x87\x88\x94h\x00h\x01q\x00q\x01K\x05K\x07M\x01\x02X\x02\0\0\0ab\x8a\x01\x01.\x8c\x01x"[..]), 0..400),
    ) {
        let bytes = [b"\x80\x02", codes.as_slice()].concat();
        let _ = Snapshot::read(&bytes[..]);
        // The same as a part of a snapshot.
        let bytes = [b"\x80\x02}(X\x08\0\0\0segments", codes.as_slice(), b"u."].concat();
        let _ = Snapshot::read(&bytes[..]);
    }
}
