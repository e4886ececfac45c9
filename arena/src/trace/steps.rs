//! The buffers of each step of a trace: what is born and dies within it.

use std::collections::HashMap;

use thiserror::Error;

use crate::plan::Buffer;
use crate::trace::Event;

/// A step's buffers. Times are the numbers of the trace's events, counted from 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// The step's name in the trace. The end of the trace ends one more, which has the next number if there is one.
    pub step: Option<u64>,
    /// The buffers, in the order of their births.
    pub buffers: Vec<Buffer>,
    /// The allocation each is.
    pub ids: Vec<u64>,
}

/// An allocation of the step that goes on.
#[derive(Debug)]
struct Open {
    lower: u64,
    /// When the owner freed it.
    freed: Option<u64>,
    /// When its last use completed.
    completed: Option<u64>,
    size_bytes: usize,
    id: u64,
}

/// An id that names two allocations at one time.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("event {event} allocates {id} again, which is alive since event {first}")]
pub struct Twice {
    /// The number of the second allocation among the trace's events, counted from 1.
    pub event: u64,
    /// That of the first one.
    pub first: u64,
    /// The id.
    pub id: u64,
}

/// Sorts a trace by steps. Steps without buffers are left out.
///
/// Where a step allocates on one stream, a buffer's bytes serve others from its free on; where it allocates on
/// several, only once the free has completed, and where the trace does not tell that, not in this step.
///
/// # Errors
/// [`Twice`]: which of the two a free would end cannot be known.
pub fn steps(events: &[Event]) -> Result<Vec<Step>, Twice> {
    let mut steps = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    // Of all steps, by the number of its event.
    let mut alive: HashMap<u64, u64> = HashMap::new();
    let mut live: HashMap<u64, usize> = HashMap::new();
    let mut freed: HashMap<u64, usize> = HashMap::new();
    let mut streams = (None, false);
    let mut next = Some(0);
    for (at, &event) in (0_u64..).zip(events) {
        match event {
            Event::Allocate { id, size_bytes, stream } => {
                if let Some(first) = alive.insert(id, at) {
                    return Err(Twice { event: at + 1, first: first + 1, id });
                }
                live.insert(id, open.len());
                freed.remove(&id);
                open.push(Open { lower: at, freed: None, completed: None, size_bytes, id });
                let first = *streams.0.get_or_insert(stream);
                streams.1 |= first != stream;
            }
            Event::Free { id } => {
                alive.remove(&id);
                if let Some(which) = live.remove(&id) {
                    open[which].freed = Some(at);
                    freed.insert(id, which);
                }
            }
            Event::FreeCompleted { id } => {
                if let Some(which) = freed.remove(&id) {
                    open[which].completed = Some(at);
                }
            }
            Event::StepEnd { step } => {
                steps.extend(finish(Some(step), std::mem::take(&mut open), streams.1, at));
                live.clear();
                freed.clear();
                streams = (None, false);
                next = step.checked_add(1);
            }
        }
    }
    steps.extend(finish(next, open, streams.1, events.len() as u64));
    Ok(steps)
}

fn finish(step: Option<u64>, open: Vec<Open>, several_streams: bool, end: u64) -> Option<Step> {
    let mut found = Step { step, ..Step::default() };
    for Open { lower, freed, completed, size_bytes, id } in open {
        let Some(freed) = freed else { continue };
        let upper = if several_streams { completed.unwrap_or(end) } else { freed };
        found.buffers.push(Buffer::new(lower, upper, size_bytes));
        found.ids.push(id);
    }
    (!found.buffers.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(id: u64, size_bytes: usize, stream: u64) -> Event {
        Event::Allocate { id, size_bytes, stream }
    }

    #[test]
    fn what_outlives_its_step_is_not_of_it() {
        let events = [
            allocate(1, 10, 0),
            allocate(2, 20, 0),
            Event::Free { id: 2 },
            Event::StepEnd { step: 7 },
            Event::Free { id: 1 },
            Event::StepEnd { step: 8 },
            allocate(2, 30, 0),
            Event::Free { id: 2 },
        ];
        let found = steps(&events).unwrap();
        assert_eq!(found.len(), 2, "a step that allocates nothing is left out");
        assert_eq!((found[0].step, &found[0].ids[..]), (Some(7), &[2][..]));
        assert_eq!(found[0].buffers, [Buffer::new(1, 2, 20)]);
        assert_eq!((found[1].step, &found[1].buffers[..]), (Some(9), &[Buffer::new(6, 7, 30)][..]));
    }

    #[test]
    fn memory_changes_streams_only_when_its_free_has_completed() {
        let mut events = vec![
            allocate(1, 10, 0),
            Event::Free { id: 1 },
            allocate(2, 10, 0),
            Event::Free { id: 2 },
            Event::FreeCompleted { id: 1 },
        ];
        let uppers = |events: &[Event]| -> Vec<u64> {
            steps(events).unwrap()[0].buffers.iter().map(|buffer| buffer.upper).collect()
        };
        assert_eq!(uppers(&events), [1, 3]);
        events[2] = allocate(2, 10, 1);
        assert_eq!(uppers(&events), [4, 5]);
    }

    #[test]
    fn an_id_that_is_alive_names_nothing_else() {
        let mut events = vec![allocate(1, 10, 0), Event::StepEnd { step: 0 }, allocate(1, 10, 0)];
        assert_eq!(steps(&events), Err(Twice { event: 3, first: 1, id: 1 }));
        events.insert(2, Event::Free { id: 1 });
        assert_eq!(steps(&events), Ok(Vec::new()), "both outlive their steps");
    }

    #[test]
    fn what_follows_the_step_with_the_last_number_has_none() {
        let events = [Event::StepEnd { step: u64::MAX }, allocate(1, 10, 0), Event::Free { id: 1 }];
        assert_eq!(steps(&events).unwrap()[0].step, None);
    }
}
