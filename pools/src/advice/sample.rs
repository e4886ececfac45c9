//! The part of a long trace that is replayed.

use std::borrow::Cow;

use mempool_arena::trace::Event;
use rustc_hash::FxHashMap;

/// More events are not replayed: a replay of a million takes 0.1 to 0.3 s, and advice takes about fifty.
pub(super) const MOST_EVENTS: usize = 3_000_000;
/// Part of the window that lies before the moment when most is live: what fragments memory comes before it.
const BEFORE: f64 = 0.75;

/// All of a trace that is known to be valid, or a window of so many events around the moment when most is live; it begins
/// with what lived before it.
pub(super) fn sampled(events: &[Event], most_events: usize) -> Cow<'_, [Event]> {
    if events.len() <= most_events {
        return Cow::Borrowed(events);
    }
    let peak_at = peak_at(events);
    let before = (most_events as f64 * BEFORE) as usize;
    let start = peak_at.saturating_sub(before).min(events.len() - most_events);
    let mut live: FxHashMap<u64, (usize, Event)> = FxHashMap::default();
    for (at, &event) in events[..start].iter().enumerate() {
        match event {
            Event::Allocate { id, .. } => drop(live.insert(id, (at, event))),
            Event::Free { id } => drop(live.remove(&id)),
            Event::FreeCompleted { .. } | Event::StepEnd { .. } => {}
        }
    }
    let mut live: Vec<(usize, Event)> = live.into_values().collect();
    live.sort_unstable_by_key(|(at, _)| *at);
    let window = &events[start..start + most_events];
    Cow::Owned(live.into_iter().map(|(_, event)| event).chain(window.iter().copied()).collect())
}

fn peak_at(events: &[Event]) -> usize {
    let mut live = super::sizes::Live::default();
    let (mut peak_bytes, mut peak_at) = (0, 0);
    for (at, event) in events.iter().enumerate() {
        live.apply(event);
        if live.bytes > peak_bytes {
            (peak_bytes, peak_at) = (live.bytes, at);
        }
    }
    peak_at
}
