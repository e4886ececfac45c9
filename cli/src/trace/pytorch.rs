//! Memory snapshots, PyTorch's and ours: what their histories have of blocks.

use std::io::Read;

use mempool_pools::snapshot::{Action, Snapshot};

use super::addresses::ByAddress;
use super::{ReadError, Trace};

/// The history in a snapshot. What a block takes is counted from `free_completed` on, since other streams may use it until then.
pub(super) fn parse(source: impl Read) -> Result<Trace, ReadError> {
    let wrong = |problem: String| ReadError::Snapshot { problem };
    let snapshot = Snapshot::read(source).map_err(|error| wrong(error.to_string()))?;
    let used = snapshot.device_traces.iter().filter(|entries| !entries.is_empty()).count();
    if used > 1 {
        return Err(wrong(format!("it has the histories of {used} devices: one is expected")));
    }
    let mut trace = ByAddress::default();
    for entry in snapshot.device_traces.iter().flatten() {
        let addr = entry.addr.unwrap_or(0) as u64;
        match entry.action {
            Action::Alloc => trace.allocate(addr, entry.size, entry.stream),
            Action::FreeCompleted => trace.free(addr),
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
