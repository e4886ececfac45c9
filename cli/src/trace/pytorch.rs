//! PyTorch's snapshots: a pickle of lists, dictionaries, strings and numbers. One that asks for
//! anything else is refused: nothing is ever built from its classes.

use std::io::BufRead;

use serde::Deserialize;

use super::addresses::ByAddress;
use super::{ReadError, Trace};

/// The part of a snapshot that is a trace.
#[derive(Debug, Deserialize)]
struct Snapshot {
    device_traces: Vec<Vec<Entry>>,
}

/// An entry of a device's history. What a block takes is counted from `free_completed` on, since
/// other streams may use it until then.
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
}

pub(super) fn parse(source: impl BufRead) -> Result<Trace, ReadError> {
    let wrong = |problem: String| ReadError::Snapshot { problem };
    // Frames are shared between entries, which the reader takes for recursion when it meets them in one
    // another; it may replace them, since nobody looks at them here.
    let options = serde_pickle::DeOptions::new().decode_strings().replace_recursive_structures();
    let snapshot: Snapshot =
        serde_pickle::from_reader(source, options).map_err(|error| wrong(error.to_string()))?;
    let used = snapshot.device_traces.iter().filter(|entries| !entries.is_empty()).count();
    if used > 1 {
        return Err(wrong(format!("it has the histories of {used} devices: one is expected")));
    }
    let mut trace = ByAddress::default();
    for entry in snapshot.device_traces.iter().flatten() {
        match entry.action.as_str() {
            "alloc" => {
                let size = usize::try_from(entry.size)
                    .map_err(|_| wrong(format!("an allocation of {} bytes", entry.size)))?;
                trace.allocate(entry.addr, size, entry.stream as u64);
            }
            "free_completed" => trace.free(entry.addr),
            // The rest tells of the allocator's own segments, of failures and of annotations.
            _ => {}
        }
    }
    Ok(trace.finish())
}

#[cfg(test)]
mod tests {
    use mempool_pools::arena::trace::Event;

    use crate::trace::parse;

    #[test]
    fn a_snapshot_is_read_with_its_streams_whatever_its_entries_share() {
        let trace = parse(&include_bytes!("shared_frames.pickle")[..]).unwrap();
        assert_eq!(
            trace.events,
            [
                Event::Allocate { id: 1, size_bytes: 1000, stream: 0 },
                Event::Free { id: 1 },
                Event::Allocate { id: 2, size_bytes: 20, stream: 7 },
            ]
        );
        assert_eq!(trace.unknown_frees, 1);
    }
}
