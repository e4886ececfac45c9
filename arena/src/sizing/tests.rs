use super::{Margin, Size, Sizing, SizingError};
use crate::conf::{Conf, ConfError};
use crate::replay::ReplayError;
use crate::trace::Event;

const POLICIES: [&str; 8] = [
    "policy:pages",
    "policy:pages,mode:moving",
    "policy:segments",
    "policy:buckets",
    "policy:buddy",
    "policy:bfc,allow_growth:False",
    "policy:torch",
    "policy:expandable",
];

fn sizing(conf: &str, margin: f64) -> Sizing {
    Sizing::new(conf.parse::<Conf>().unwrap(), Margin::new(margin).unwrap())
}

/// A training run: weights that stay, and steps of a forward and a backward pass, of two lengths. All
/// sizes are `percent` of what they are.
fn training(percent: usize) -> Vec<Event> {
    let (mut events, mut next) = (Vec::new(), 0);
    let mut allocate = |events: &mut Vec<Event>, kib: usize| {
        next += 1;
        events.push(Event::Allocate { id: next, size_bytes: kib * 1024 * percent / 100, stream: 1 });
        next
    };
    for layer in 0..12 {
        allocate(&mut events, 3000 + 500 * layer);
        allocate(&mut events, 12);
    }
    for step in 0..6 {
        let tokens = if step % 3 == 1 { 192 } else { 128 };
        let mut kept = Vec::new();
        for layer in 0..12 {
            let scratch = allocate(&mut events, tokens * 64);
            kept.push(allocate(&mut events, tokens * (20 + layer)));
            kept.push(allocate(&mut events, tokens));
            events.push(Event::Free { id: scratch });
        }
        while let Some(id) = kept.pop() {
            let gradient = allocate(&mut events, tokens * 30);
            events.push(Event::Free { id });
            events.push(Event::Free { id: gradient });
        }
        events.push(Event::StepEnd { step });
    }
    events
}

#[test]
fn a_size_holds_the_run_and_one_whose_every_size_is_5_percent_larger() {
    let (run, larger) = (training(100), training(105));
    for conf in POLICIES {
        for margin in [0.1, 0.15, 0.2] {
            let sizing = sizing(conf, margin);
            let Size { peak_requested_bytes, least_bytes, size_bytes } = sizing.size_from(&run).unwrap();
            assert!(peak_requested_bytes <= least_bytes, "{conf}");
            assert!(sizing.completes_on(&run, least_bytes).unwrap(), "{conf}");
            assert!(!sizing.completes_on(&run, least_bytes - sizing.page_bytes).unwrap(), "{conf}");
            assert!(sizing.completes_on(&run, size_bytes).unwrap(), "{conf}");
            assert_eq!(size_bytes % sizing.page_bytes, 0);
            let added = size_bytes as f64 / least_bytes as f64 - 1.0;
            // Pages of 20 MiB and powers of two are longer steps than the margin.
            let long_steps = conf.contains("buddy") || conf.contains("expandable");
            let most = if long_steps { 1.0 } else { margin + 0.03 };
            assert!(added > margin - 1e-9 && added < most, "{conf}: {added}");
            assert!(sizing.completes_on(&larger, size_bytes).unwrap(), "{conf} with a margin of {margin}");
        }
    }
}

#[test]
fn pages_need_hardly_more_than_what_lives_at_once() {
    let run = training(100);
    let Size { peak_requested_bytes, least_bytes, .. } = sizing("", 0.15).size_from(&run).unwrap();
    assert!(least_bytes as f64 <= 1.1 * peak_requested_bytes as f64, "{least_bytes}, {peak_requested_bytes}");
}

#[test]
fn streams_share_a_size() {
    let mut events = Vec::new();
    for stream in 0..4 {
        events.push(Event::Allocate { id: stream, size_bytes: 40 << 20, stream });
        events.push(Event::Free { id: stream });
    }
    let size = sizing("", 0.1).size_from(&events).unwrap();
    assert_eq!((size.peak_requested_bytes, size.least_bytes), (40 << 20, 40 << 20));
}

#[test]
fn what_cannot_be_sized_is_told() {
    assert_eq!(Margin::new(0.05), Err(SizingError::Margin { share: 0.05 }));
    assert!(Margin::new(f64::NAN).is_err() && Margin::new(0.21).is_err());
    assert_eq!(sizing("", 0.1).size_from(&[]), Err(SizingError::Empty));
    let run = training(100);
    for conf in ["policy:none", "policy:simple"] {
        let error = sizing(conf, 0.1).size_from(&run).unwrap_err();
        assert!(matches!(error, SizingError::Conf(ConfError::NotOfPolicy { .. })), "{error}");
    }
    let broken = [Event::Free { id: 3 }];
    let error = sizing("", 0.1).size_from(&broken).unwrap_err();
    assert_eq!(error, SizingError::Replay(ReplayError::NotLive { event: 1, id: 3 }));
}
