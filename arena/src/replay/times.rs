//! What the bookkeeping of a policy takes, as replays of a trace tell.
//!
//! Other programs interrupt the one that is measured, and nothing makes it faster than it is. So each time is
//! the shortest of a few runs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Replay, ReplayError};
use crate::trace::Event;

/// Runs of one kind at most: a short trace needs many until one is not interrupted,
const RUNS: usize = 100;
/// and no further one after so long.
const LONG_ENOUGH: Duration = Duration::from_millis(500);

/// Times of an allocation or a free, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReplayTimes {
    /// The mean.
    pub mean_ns: f64,
    /// 99.9% take no longer.
    pub p999_ns: f64,
    /// The slowest.
    pub slowest_ns: f64,
}

impl ReplayTimes {
    /// The mean alone, in nanoseconds, by replays that `new_replay` makes: as many as fit into a budget, one at least.
    /// The trace has [small ids](renumbered).
    ///
    /// # Errors
    /// Those of `new_replay`, and [`ReplayError`] on a trace that is not served.
    pub fn mean_ns<'a, E: From<ReplayError>>(
        events: &[Event],
        budget: Duration,
        new_replay: impl Fn() -> Result<Replay<'a>, E>,
    ) -> Result<f64, E> {
        let operations = events.iter().filter(|event| is_operation(event)).count();
        if operations == 0 {
            return Ok(0.0);
        }
        let mut shortest = Duration::MAX;
        repeat(budget, || -> Result<(), E> {
            let mut replay = new_replay()?.without_totals();
            let start = Instant::now();
            for &event in events {
                replay.apply(event)?;
            }
            shortest = shortest.min(start.elapsed());
            Ok(())
        })?;
        Ok(shortest.as_nanos() as f64 / operations as f64)
    }

    /// Replays a trace that is known to be served, and has [small ids](renumbered), several times, each time by a
    /// replay that `new_replay` makes: once to see what all of it takes, and once to see what each event takes.
    ///
    /// # Errors
    /// As [`mean_ns`](Self::mean_ns).
    pub fn measure<'a, E: From<ReplayError>>(
        events: &[Event],
        new_replay: impl Fn() -> Result<Replay<'a>, E>,
    ) -> Result<Self, E> {
        if !events.iter().any(is_operation) {
            return Ok(Self::default());
        }
        let mean_ns = Self::mean_ns(events, LONG_ENOUGH, &new_replay)?;
        let mut each = vec![u32::MAX; events.len()];
        repeat(LONG_ENOUGH, || -> Result<(), E> {
            let mut replay = new_replay()?.without_totals();
            for (&event, shortest) in events.iter().zip(&mut each) {
                let start = Instant::now();
                replay.apply(event)?;
                let elapsed = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
                *shortest = elapsed.min(*shortest);
            }
            Ok(())
        })?;
        let timed = events.iter().zip(each).filter(|(event, _)| is_operation(event));
        let mut each: Vec<u32> = timed.map(|(_, time)| time).collect();
        // Reading the clock takes time, which is not the policy's.
        let mut empty: Vec<u128> = (0..1001).map(|_| Instant::now().elapsed().as_nanos()).collect();
        let (_, clock, _) = empty.select_nth_unstable(500);
        let clock = *clock as f64;
        let at = (each.len() * 999 / 1000).min(each.len() - 1);
        let (_, p999, slower) = each.select_nth_unstable(at);
        let slowest = slower.iter().copied().max().unwrap_or(*p999);
        Ok(Self {
            mean_ns,
            p999_ns: (f64::from(*p999) - clock).max(0.0),
            slowest_ns: (f64::from(slowest) - clock).max(0.0),
        })
    }
}

fn repeat<E>(budget: Duration, mut run: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let start = Instant::now();
    for _ in 0..RUNS {
        run()?;
        if start.elapsed() > budget {
            break;
        }
    }
    Ok(())
}

fn is_operation(event: &Event) -> bool {
    matches!(event, Event::Allocate { .. } | Event::Free { .. })
}

/// The events with the smallest ids that tell live allocations apart: looking up long ids takes time that
/// is the replay's, not the policy's.
///
/// # Panics
/// On a trace that frees what is not live: replay it first.
#[must_use]
pub fn renumbered(events: &[Event]) -> Vec<Event> {
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    let mut unused: Vec<u64> = Vec::new();
    let mut next = 0;
    let mut number = |event: &Event| match *event {
        Event::Allocate { id, size_bytes, stream } => {
            let number = unused.pop().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            numbers.insert(id, number);
            Event::Allocate { id: number, size_bytes, stream }
        }
        Event::Free { id } => {
            let number = numbers.remove(&id).expect("what is freed is live");
            unused.push(number);
            Event::Free { id: number }
        }
        other => other,
    };
    events.iter().map(&mut number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_allocations_keep_numbers_of_their_own() {
        let allocate = |id, size_bytes| Event::Allocate { id, size_bytes, stream: 7 };
        let free = |id| Event::Free { id };
        let events = [allocate(900, 1), allocate(500, 2), free(900), allocate(900, 3), free(500), free(900)];
        let expected = [allocate(0, 1), allocate(1, 2), free(0), allocate(0, 3), free(1), free(0)];
        assert_eq!(renumbered(&events), expected);
    }
}
