use serde_json::json;

use super::*;

fn block(address: usize, state: &str, stack: Option<u32>, owner: Value) -> Value {
    json!({
        "address": address, "size": 512, "requested_size": 500, "state": state, "frames": [], "stack": stack,
        "owner": owner, "is_kept": address == 1024,
    })
}

fn segment(device: usize, pool: u64, name: &str, blocks: &[Value]) -> Value {
    json!({
        "device": device, "address": 0, "total_size": 4096, "allocated_size": 0, "active_size": 0, "requested_size": 0,
        "stream": 7, "segment_type": "small", "segment_pool_id": [0, pool], "is_expandable": true, "frames": [],
        "blocks": blocks, "pool_name": name, "order": "stream",
    })
}

fn entry(action: &str, addr: Option<usize>, label: &str, stack: Option<u32>) -> Value {
    let mut entry = json!({
        "action": action, "size": 500, "stream": 7, "time_us": 50, "compile_context": "N/A", "user_metadata": label,
        "pool_id": [0, 3], "frames": [], "stack": stack, "thread": "", "step": 2, "position": 4,
    });
    match addr {
        Some(addr) => entry["addr"] = json!(addr),
        None => entry["device_free"] = json!(9000),
    }
    entry
}

fn snapshot(segments: &[Value], traces: Value, devices: Value) -> Snapshot {
    serde_json::from_value(json!({
        "segments": segments, "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": true,
        },
        "external_annotations": [],
        "mempool": {"version": 1, "time_us": 20, "devices": devices, "pools": [], "dropped_entries": null, "stacks": [
            {"frames": [
                {"name": "alloc::vec", "filename": "/rustc/1/library/alloc/src/vec.rs", "line": 9},
                {"name": "inner", "filename": "a.rs", "line": 5},
            ]},
        ]},
    }))
    .unwrap()
}

fn owner(label: &str) -> Value {
    json!({"label": label, "thread": "main", "step": 1, "position": 2, "time_us": 3, "is_older": false})
}

#[test]
fn places_and_labels_are_those_of_blocks_and_events() {
    let blocks = [
        block(0, "active_allocated", Some(0), owner("")),
        block(512, "active_allocated", None, owner("layer")),
        block(1024, "active_allocated", None, Value::Null),
        block(1536, "active_pending_free", Some(0), owner("layer")),
        block(2048, "inactive", None, Value::Null),
    ];
    let mapped = entry("segment_map", Some(0), "", None);
    let trace = json!([[mapped, entry("alloc", Some(0), "", Some(0)), entry("oom", None, "layer", None)]]);
    let host = json!([{"kind": "host", "ordinal": 0}]);
    let data = Data::of(&snapshot(&[segment(0, 3, "a pool", &blocks)], trace, host));
    let [device] = &*data.devices else { panic!("{:?}", data.devices) };
    assert_eq!((&*device.name, device.granule_bytes), ("host", 64));
    let holds: Vec<Hold> = device.blocks.iter().map(|held| held.hold).collect();
    assert_eq!(holds, [Hold::Live, Hold::Live, Hold::Kept, Hold::Pending]);
    let origins: Vec<Option<(u32, u32)>> =
        device.blocks.iter().map(|held| held.origin.map(|origin| (origin.label, origin.stack))).collect();
    assert_eq!(origins, [Some((0, 0)), Some((1, NONE)), None, Some((1, 0))]);
    assert_eq!(data.names.labels, ["", "layer"]);
    let place = |name: &str, file: &str, line| Place { name: name.to_owned(), file: file.to_owned(), line };
    let vec = place("alloc::vec", "/rustc/1/library/alloc/src/vec.rs", 9);
    assert_eq!(data.names.frames, [place("inner", "a.rs", 5), vec]);
    assert_eq!(data.names.stacks, [Stack { site: 0, frames: vec![1, 0] }]);
    let [mapped, alloc, oom] = &*device.events else { panic!() };
    assert_eq!((mapped.kind, mapped.address, mapped.bytes), (Kind::PageMapped, 0, 500));
    assert_eq!((alloc.kind, alloc.address, alloc.origin.stack), (Kind::Allocated, 0, 0));
    assert_eq!((oom.kind, oom.address, oom.origin.label), (Kind::OutOfMemory, 9000, 1));
    // Segments and events of one pool and stream have one owner, under the pool's name.
    assert_eq!((device.segments[0].owner, alloc.owner), (0, 0));
    assert_eq!(data.names.owners, [Owner { pool: "a pool".to_owned(), stream: "7".to_owned() }]);
    // What happened last came after the time that the snapshot has.
    assert_eq!(data.time_us, 50);
}

#[test]
fn devices_with_nothing_are_left_out_and_the_others_keep_their_numbers_and_pools() {
    let segments = [segment(1, 0, "", &[]), segment(3, 5, "", &[])];
    let data = Data::of(&snapshot(&segments, json!([[], [], []]), json!([])));
    let names: Vec<(&str, usize)> =
        data.devices.iter().map(|device| (&*device.name, device.granule_bytes)).collect();
    assert_eq!(names, [("device 1", 512), ("device 3", 512)]);
    let pools: Vec<&str> = data.names.owners.iter().map(|owner| &*owner.pool).collect();
    assert_eq!(pools, ["default", "pool 5"]);
}

#[test]
fn characters_that_cannot_be_seen_or_turn_text_around_are_shown_as_such() {
    assert_eq!(readable("l\u{e4}yer </3>\u{1f980}"), "l\u{e4}yer </3>\u{1f980}");
    for hidden in ['\0', '\n', '\u{7f}', '\u{85}', '\u{200b}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{feff}']
    {
        assert_eq!(readable(&format!("a{hidden}b")), "a\u{fffd}b", "{hidden:?}");
    }
}
