use super::{Replay, ReplayError};
use crate::trace::Event;
use crate::{Pages, PagesOptions, SimulatedUpstream};

fn replay(capacity_bytes: usize) -> Replay<'static> {
    let upstream = SimulatedUpstream::builder().capacity_bytes(capacity_bytes).build();
    Replay::new(upstream, || Ok(Box::new(Pages::new(PagesOptions::default())?)))
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
    assert_eq!(replay.totals().requested.peak, (5 << 20) + 100);
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

#[test]
fn streams_share_a_device_and_no_block() {
    let mut replay = replay(8 << 20);
    let on = |id, stream| Event::Allocate { id, size_bytes: 3 << 20, stream };
    replay.apply(on(1, 7)).unwrap();
    replay.apply(Event::Free { id: 1 }).unwrap();
    // Another stream has no use for what the first keeps.
    replay.apply(on(2, 8)).unwrap();
    assert_eq!((replay.totals().reserved.current, replay.stats().misses), (8 << 20, 2));
    // Until nothing else is left.
    replay.apply(on(3, 8)).unwrap();
    assert_eq!(replay.totals().reserved.current, 6 << 20);
    assert_eq!(replay.totals().reserved.peak, 8 << 20);
    assert_eq!(replay.at_peak().requested_bytes, 3 << 20);
    assert!(replay.placements().all(|(_, placement)| placement.validate().is_ok()));
}

#[test]
fn a_replay_for_measuring_does_what_another_does() {
    let steps = |replay: &mut Replay<'_>| {
        let mut random = 1_u64;
        let mut live = Vec::new();
        for id in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let size_bytes = 100_000 + (random >> 33) as usize % (40 << 20);
            if replay.apply(allocate(id, size_bytes)).is_ok() {
                live.push(id);
            }
            if live.len() > 20 {
                let at = (random >> 20) as usize % live.len();
                replay.apply(Event::Free { id: live.swap_remove(at) }).unwrap();
            }
        }
    };
    for (lag, handles) in [(0, true), (30, true), (0, false)] {
        let new = || {
            let builder = SimulatedUpstream::builder().capacity_bytes(600 << 20).lag(lag);
            Replay::new(builder.handles(handles).build(), || {
                let mode = crate::Mode::Moving;
                Ok(Box::new(Pages::new(PagesOptions { mode, ..PagesOptions::default() })?))
            })
        };
        let (mut checked, mut measured) = (new(), new().without_totals());
        steps(&mut checked);
        steps(&mut measured);
        assert_eq!(measured.stats(), checked.stats());
        assert!(checked.stats().moved_bytes > 0 && checked.stats().failures > 0, "{:?}", checked.stats());
        let counters = [checked.upstream().counters(), measured.upstream().counters()];
        assert_eq!(counters[0], counters[1]);
        assert_eq!(checked.upstream().mapped_bytes(), measured.upstream().mapped_bytes());
        assert!(checked.upstream().mapping_us() > 0.0);
    }
}
