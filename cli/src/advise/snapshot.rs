//! Snapshots as advice sees them: what lies where, and the last entries of the history.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use mempool_pools::advice::{Happening, Layout, LayoutSegment, Window};
use serde::Deserialize;

use crate::trace::ReadError;

/// What a snapshot tells of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Its number in the snapshot.
    pub device: usize,
    /// What lies where.
    pub layout: Layout,
    /// What happened lately.
    pub window: Window,
    /// Entries of the history that are no longer kept, where the snapshot tells.
    pub dropped: u64,
}

#[derive(Debug, Deserialize)]
struct Snapshot {
    segments: Vec<Segment>,
    #[serde(default)]
    device_traces: Vec<Vec<Entry>>,
    mempool: Option<Extra>,
}

/// What this project's snapshots have beside PyTorch's.
#[derive(Debug, Deserialize)]
struct Extra {
    dropped_entries: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Segment {
    #[serde(default)]
    device: usize,
    address: u64,
    total_size: usize,
    #[serde(default)]
    stream: i64,
    #[serde(default)]
    is_expandable: bool,
    blocks: Vec<Block>,
}

#[derive(Debug, Deserialize)]
struct Block {
    size: usize,
    /// Absent in those of old versions.
    requested_size: Option<usize>,
    state: String,
    #[serde(default)]
    is_kept: bool,
}

#[derive(Debug, Deserialize)]
struct Entry {
    action: String,
    /// Absent in reports of failures.
    #[serde(default)]
    addr: u64,
    #[serde(default)]
    size: i64,
    #[serde(default)]
    stream: i64,
    #[serde(default)]
    time_us: u64,
    #[serde(default)]
    step: u32,
}

pub(super) fn read_pickle(source: impl BufRead) -> Result<Vec<DeviceMemory>, ReadError> {
    // Frames are shared between entries, which the reader takes for recursion; nobody looks at them here.
    let options = serde_pickle::DeOptions::new().decode_strings().replace_recursive_structures();
    let snapshot = serde_pickle::from_reader(source, options);
    sorted(snapshot.map_err(|error| wrong(error.to_string()))?)
}

pub(super) fn read_json(source: impl BufRead) -> Result<Vec<DeviceMemory>, ReadError> {
    sorted(serde_json::from_reader(source).map_err(|error| wrong(error.to_string()))?)
}

fn wrong(problem: String) -> ReadError {
    ReadError::Snapshot { problem }
}

/// What is live on a device: address, bytes requested and stream.
type Live = Vec<(u64, usize, u64)>;

/// Sorts a snapshot by devices.
fn sorted(snapshot: Snapshot) -> Result<Vec<DeviceMemory>, ReadError> {
    let dropped = snapshot.mempool.and_then(|extra| extra.dropped_entries).unwrap_or(0);
    let mut devices: BTreeMap<usize, (Layout, Live)> = BTreeMap::new();
    for segment in snapshot.segments {
        let (layout, live) = devices.entry(segment.device).or_default();
        let (mut addr, mut used) = (segment.address, Vec::new());
        for Block { size, requested_size, state, is_kept } in segment.blocks {
            if state != "inactive" {
                let requested_bytes = requested_size.unwrap_or(size);
                used.push((requested_bytes, size));
                // What a planned step keeps is nobody's.
                if state == "active_allocated" && !is_kept {
                    live.push((addr, requested_bytes, segment.stream as u64));
                }
            }
            addr = addr.saturating_add(size as u64);
        }
        let (bytes, maps_pages) = (segment.total_size, segment.is_expandable);
        layout.segments.push(LayoutSegment { bytes, maps_pages, used });
    }
    let mut found = Vec::new();
    let mut traces = snapshot.device_traces;
    let numbers: BTreeSet<usize> = devices.keys().copied().chain(0..traces.len()).collect();
    for device in numbers {
        let entries = traces.get_mut(device).map(std::mem::take).unwrap_or_default();
        let (layout, live) = devices.remove(&device).unwrap_or_default();
        if entries.is_empty() && layout.segments.is_empty() {
            continue;
        }
        let mut happenings = Vec::new();
        for entry in entries {
            let is_allocation = match entry.action.as_str() {
                "alloc" => true,
                // Other streams may use it until then.
                "free_completed" => false,
                _ => continue,
            };
            let size_bytes =
                usize::try_from(entry.size).map_err(|_| wrong(format!("a block of {} bytes", entry.size)))?;
            let Entry { addr, stream, time_us, step, .. } = entry;
            let stream = stream as u64;
            happenings.push(Happening { is_allocation, addr, size_bytes, stream, step, time_us });
        }
        found.push(DeviceMemory { device, layout, window: Window::new(happenings, live), dropped });
    }
    if found.is_empty() {
        return Err(wrong("it has neither segments nor a history".to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT: &str = r#"{
        "segments": [
            {"device": 1, "address": 1000, "total_size": 41943040, "stream": 7, "is_expandable": false, "blocks": [
                {"size": 1048576, "requested_size": 1000000, "state": "active_allocated"},
                {"size": 512, "requested_size": 500, "state": "active_pending_free"},
                {"size": 40893952, "requested_size": 0, "state": "inactive"}]}
        ],
        "device_traces": [[], [
            {"action": "alloc", "addr": 5000, "size": 300, "stream": 7, "time_us": 100},
            {"action": "oom", "size": 9, "stream": 7, "time_us": 150},
            {"action": "free_requested", "addr": 5000, "size": 300, "stream": 7, "time_us": 170},
            {"action": "free_completed", "addr": 5000, "size": 300, "stream": 7, "time_us": 180},
            {"action": "free_completed", "addr": 9000, "size": 200, "stream": 7, "time_us": 2100, "step": 1}
        ]],
        "mempool": {"dropped_entries": 3}
    }"#;

    #[test]
    fn what_was_live_before_the_first_entry_comes_first() {
        let found = read_json(SNAPSHOT.as_bytes()).unwrap();
        let [DeviceMemory { device: 1, layout, window, dropped: 3 }] = &found[..] else {
            panic!("one device has memory: {found:?}")
        };
        let used = vec![(1_000_000, 1_048_576), (500, 512)];
        assert_eq!(layout.segments, [LayoutSegment { bytes: 41_943_040, maps_pages: false, used }]);
        use mempool_pools::arena::trace::Event;
        assert_eq!(
            window.events,
            [
                Event::Allocate { id: 2, size_bytes: 200, stream: 7 },
                Event::Allocate { id: 3, size_bytes: 1_000_000, stream: 7 },
                Event::Allocate { id: 1, size_bytes: 300, stream: 7 },
                Event::Free { id: 1 },
                Event::StepEnd { step: 0 },
                Event::Free { id: 2 },
            ]
        );
        assert_eq!((window.allocations, window.older_blocks), (1, 2));
        assert_eq!(window.duration.unwrap().as_micros(), 2000);
    }

    #[test]
    fn what_is_no_snapshot_is_refused() {
        for text in ["{}", r#"{"segments": [], "device_traces": []}"#, r#"{"segments": 3}"#, "{"] {
            assert!(matches!(read_json(text.as_bytes()), Err(ReadError::Snapshot { .. })), "{text}");
        }
        let huge = SNAPSHOT.replace(r#""device": 1"#, r#""device": 18446744073709551615"#);
        assert_eq!(read_json(huge.as_bytes()).unwrap().len(), 2, "devices are not counted up to it");
    }
}
