//! Histories of device pools: blocks that wait for work, and requests that found no memory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mempool_pools::device::Stream;
use mempool_pools::snapshot::{Action, BlockState, Order};
use mempool_pools::{HistoryOptions, label, record_history, stop_history};
use proptest::prelude::*;

use crate::program;
use crate::support::{MIB, Machine};
use crate::world::SimulatedWorld;

/// There is one history in a process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const OWN: Stream = Stream::PER_THREAD;

#[test]
fn a_snapshot_of_a_device_has_streams_waiting_blocks_and_what_found_no_memory() {
    let _alone = alone();
    let machine = Machine::small(64);
    record_history(HistoryOptions::default()).unwrap();
    let other = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool_builder().name("device pool").build().unwrap();
    let _label = label("work");
    let (kept, freed) = pool.with(|| (machine.allocate(4 * MIB, OWN), machine.allocate(8 * MIB, OWN)));
    let on_other = pool.with(|| machine.allocate(2 * MIB, other));
    freed.write(OWN);
    let event = machine.simulator.create_event();
    machine.simulator.record_event(event, OWN).unwrap();
    machine.simulator.wait_event(other, event).unwrap();
    freed.write(other);
    freed.free(other);
    let snapshot = pool.snapshot();
    assert!(pool.with(|| machine.try_allocate(100 * MIB, OWN)).is_none());
    let after = pool.snapshot();
    let state = |addr: usize| {
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.into_iter().find(|block| block.address == addr).map(|block| block.state)
    };
    assert_eq!(state(kept.addr), Some(BlockState::ActiveAllocated));
    assert_eq!(
        snapshot.segments.iter().filter(|segment| segment.order == Order::Stream).count(),
        snapshot.segments.len()
    );
    let mut streams: Vec<u64> = snapshot.segments.iter().map(|segment| segment.stream).collect();
    streams.dedup();
    assert!(streams.len() > 1, "{streams:?}");
    let trace = &snapshot.device_traces[0];
    let oom = after.device_traces[0].iter().find(|entry| entry.action == Action::Oom).unwrap();
    assert_eq!((oom.size, oom.addr, &*oom.user_metadata), (100 * MIB, None, "work"));
    assert!(oom.device_free.is_some());
    let of_freed: Vec<Action> =
        trace.iter().filter(|entry| entry.addr == Some(freed.addr)).map(|entry| entry.action).collect();
    let of_freed: Vec<Action> = of_freed.into_iter().filter(|action| *action != Action::SegmentMap).collect();
    assert_eq!(of_freed[..2], [Action::Alloc, Action::FreeRequested]);
    stop_history();
    kept.free(OWN);
    on_other.free(other);
    machine.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Streams that end and are followed by others, captures, trims, memory that is short: whatever happens, what is kept of it
    /// is an end of it that leads back from what is there. The programs look at each step.
    #[test]
    fn a_trace_of_a_device_ends_at_what_is_there(seed in 0_u64..1 << 32, ops in program::ops(true)) {
        let _alone = alone();
        record_history(HistoryOptions::default()).unwrap();
        program::FOLLOWS_HISTORY.store(true, Ordering::Relaxed);
        let wrong = program::run(Arc::new(SimulatedWorld::new(seed)), &ops);
        program::FOLLOWS_HISTORY.store(false, Ordering::Relaxed);
        stop_history();
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
