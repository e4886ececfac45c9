use super::{Replay, ReplayError};
use crate::trace::Event;
use crate::{Arena, Pages, PagesOptions, SimulatedUpstream};

fn replay(capacity_bytes: usize) -> Replay<SimulatedUpstream, Pages> {
    let upstream = SimulatedUpstream::builder().capacity_bytes(capacity_bytes).build();
    Replay::new(Arena::new(Pages::new(PagesOptions::default()).unwrap(), upstream))
}

fn allocate(id: u64, size_bytes: usize) -> Event {
    Event::Allocate { id, size_bytes, stream: 0 }
}

#[test]
fn a_replay_counts_what_the_trace_does() {
    let mut replay = replay(usize::MAX);
    for step in 0..3 {
        for event in [allocate(1, 5 << 20), allocate(2, 100), Event::Free { id: 1 }] {
            replay.apply(event).unwrap();
        }
        replay.apply(Event::FreeCompleted { id: 1 }).unwrap();
        replay.apply(Event::Free { id: 2 }).unwrap();
        replay.apply(Event::StepEnd { step }).unwrap();
    }
    assert_eq!((replay.event_count(), replay.step_count()), (18, 3));
    assert_eq!(replay.stats().requested.peak, (5 << 20) + 100);
    assert_eq!(replay.stats().requested.current, 0);
    assert_eq!(replay.stats().misses, 2);
}

#[test]
fn events_that_contradict_the_trace_are_errors_with_their_number() {
    let mut replay = replay(4 << 20);
    replay.apply(allocate(1, 100)).unwrap();
    assert_eq!(replay.apply(allocate(1, 100)), Err(ReplayError::LiveAlready { event: 2, id: 1 }));
    assert_eq!(replay.apply(Event::Free { id: 9 }), Err(ReplayError::NotLive { event: 2, id: 9 }));
    let refused = replay.apply(allocate(2, 5 << 20)).unwrap_err();
    assert!(matches!(refused, ReplayError::Refused { event: 2, .. }), "{refused}");
    replay.apply(Event::Free { id: 1 }).unwrap();
}
