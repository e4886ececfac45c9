//! Snapshots as advice sees them: what lies where, and the last entries of the history.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use mempool_pools::advice::{Happening, Layout, LayoutSegment, Window};
use mempool_pools::snapshot::{Action, BlockState, Snapshot, TraceEntry};

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

/// Reads a snapshot, PyTorch's or ours.
pub(super) fn read(source: impl Read) -> Result<Vec<DeviceMemory>, ReadError> {
    sorted(&Snapshot::read(source).map_err(|error| wrong(error.to_string()))?)
}

fn wrong(problem: String) -> ReadError {
    ReadError::Snapshot { problem }
}

/// What is live on a device: address, bytes requested and stream.
type Live = Vec<(u64, usize, u64)>;

/// Sorts a snapshot by devices.
fn sorted(snapshot: &Snapshot) -> Result<Vec<DeviceMemory>, ReadError> {
    let dropped = snapshot.mempool.dropped_entries.unwrap_or(0);
    let mut devices: BTreeMap<usize, (Layout, Live)> = BTreeMap::new();
    for segment in &snapshot.segments {
        let (layout, live) = devices.entry(segment.device).or_default();
        let in_use = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        let used = in_use.clone().map(|block| (block.requested_size, block.size)).collect();
        // What a planned step keeps is nobody's.
        let held = in_use.filter(|block| block.state == BlockState::ActiveAllocated && !block.is_kept);
        live.extend(held.map(|block| (block.address as u64, block.requested_size, segment.stream)));
        let (bytes, maps_pages) = (segment.total_size, segment.is_expandable);
        layout.segments.push(LayoutSegment { bytes, maps_pages, used });
    }
    let mut found = Vec::new();
    let numbers: BTreeSet<usize> = devices.keys().copied().chain(0..snapshot.device_traces.len()).collect();
    for device in numbers {
        let entries = snapshot.device_traces.get(device).map_or(&[][..], Vec::as_slice);
        let (layout, live) = devices.remove(&device).unwrap_or_default();
        if entries.is_empty() && layout.segments.is_empty() {
            continue;
        }
        let happenings = entries.iter().filter_map(|entry| {
            let is_allocation = match entry.action {
                Action::Alloc => true,
                // Other streams may use it until then.
                Action::FreeCompleted => false,
                _ => return None,
            };
            let TraceEntry { size: size_bytes, stream, time_us, step, .. } = *entry;
            let addr = entry.addr.unwrap_or(0) as u64;
            Some(Happening { is_allocation, addr, size_bytes, stream, step, time_us })
        });
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
        ]]
    }"#;

    #[test]
    fn what_was_live_before_the_first_entry_comes_first() {
        let found = read(SNAPSHOT.as_bytes()).unwrap();
        let [DeviceMemory { device: 1, layout, window, dropped: 0 }] = &found[..] else {
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
            assert!(matches!(read(text.as_bytes()), Err(ReadError::Snapshot { .. })), "{text}");
        }
        let huge = SNAPSHOT.replace(r#""device": 1"#, r#""device": 18446744073709551615"#);
        assert!(read(huge.as_bytes()).is_err(), "devices are not counted up to it");
    }
}
