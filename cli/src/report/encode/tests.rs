use super::*;
use crate::report::Severity;
use crate::report::data::{Held, Hold, Mapping};

fn data() -> Data {
    let names = Names {
        labels: vec![String::new()],
        threads: vec![String::new()],
        frames: Vec::new(),
        stacks: Vec::new(),
        owners: Vec::new(),
    };
    // Numbers of blocks of which each column's length is no multiple of 8.
    let held = |index: usize| Held {
        range: index * 1024..index * 1024 + 512,
        requested_bytes: 500,
        hold: Hold::Live,
        origin: None,
    };
    let device = Device {
        name: "host".to_owned(),
        granule_bytes: 64,
        segments: vec![Mapping { range: 0..8192, owner: 0, is_expandable: true }],
        blocks: (0..3).map(held).collect(),
        events: Vec::new(),
        pools: Vec::new(),
    };
    Data { time_us: 1, dropped_entries: None, names, devices: vec![device] }
}

#[test]
fn columns_lie_behind_the_header_where_typed_arrays_may_begin() {
    let findings =
        [Finding { severity: Severity::Warning, text: "a\nb".to_owned(), advice: "\u{202e}".to_owned() }];
    for title in ["", "a", "ab", "abcdefg"] {
        let blob = encode(&data(), title, &findings);
        let len = u32::from_le_bytes(blob[..4].try_into().unwrap()) as usize;
        assert_eq!((4 + len) % 8, 0);
        let (header, columns) = blob[4..].split_at(len);
        let header: Value = serde_json::from_slice(header).unwrap();
        assert_eq!(header["title"], title);
        assert_eq!(header["findings"][0]["text"], "a\u{fffd}b");
        assert_eq!(header["findings"][0]["advice"], "\u{fffd}");
        assert_eq!(header["findings"][0]["severity"], "warning");
        let column = |part: &str, name: &str| {
            let column = &header["devices"][0][part][name];
            let number = |key: &str| column[key].as_u64().unwrap() as usize;
            (column["kind"].as_str().unwrap().to_owned(), number("offset"), number("len"))
        };
        let (kind, offset, len) = column("blocks", "address");
        assert_eq!((&*kind, offset % 8, len), ("steps", 0, 3));
        let steps: Vec<f64> = columns[offset..offset + 8 * len]
            .chunks(8)
            .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert_eq!(steps, [0.0, 1024.0, 1024.0]);
        let (kind, offset, len) = column("blocks", "begin");
        assert_eq!((&*kind, offset % 8, len), ("u32", 0, 3));
        assert_eq!(columns[offset..offset + 12], [0; 12]);
        assert_eq!(column("figures", "reserved").2, 1);
        assert_eq!(column("events", "kind").2, 0);
    }
}
