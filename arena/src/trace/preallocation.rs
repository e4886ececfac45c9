//! What a run would need if its memory were taken before it, and nothing served twice within a step.
//!
//! That is what "preallocate your buffers" comes to when it is all that is done: each tensor of a step has
//! memory of its own, which serves the same tensor again in the next step. A tensor that is freed leaves
//! its memory unused until the step ends; one that outlives its step keeps it.

use std::collections::HashMap;

use crate::trace::Event;

/// The most that a step needs, in bytes: what lives when it begins, and what it allocates. `rounded` says
/// what a request takes. Without steps the whole trace is one.
///
/// # Panics
/// On a trace that frees what is not live: replay it first.
pub fn preallocated_bytes(events: &[Event], rounded: impl Fn(usize) -> usize) -> usize {
    let mut sizes: HashMap<u64, usize> = HashMap::new();
    let (mut live, mut taken, mut most) = (0, 0, 0);
    for event in events {
        match *event {
            Event::Allocate { id, size_bytes, .. } => {
                let bytes = rounded(size_bytes);
                sizes.insert(id, bytes);
                live += bytes;
                taken += bytes;
                most = most.max(taken);
            }
            Event::Free { id } => live -= sizes.remove(&id).expect("what is freed is live"),
            Event::FreeCompleted { .. } => {}
            Event::StepEnd { .. } => taken = live,
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Event = Event::StepEnd { step: 0 };

    fn allocate(id: u64, size_bytes: usize) -> Event {
        Event::Allocate { id, size_bytes, stream: 0 }
    }

    fn free(id: u64) -> Event {
        Event::Free { id }
    }

    #[test]
    fn nothing_serves_twice_within_a_step() {
        let events = [allocate(1, 10), free(1), allocate(2, 10), free(2), END, allocate(3, 15), free(3)];
        assert_eq!(preallocated_bytes(&events, |bytes| bytes), 20);
        assert_eq!(preallocated_bytes(&events[..4], |bytes| bytes.next_multiple_of(16)), 32);
    }

    #[test]
    fn what_outlives_its_step_is_needed_beside_the_next_one() {
        let events = [allocate(1, 10), allocate(2, 5), free(1), END, allocate(3, 12), free(2), free(3), END];
        assert_eq!(preallocated_bytes(&events, |bytes| bytes), 17);
        assert_eq!(preallocated_bytes(&[], |bytes| bytes), 0);
    }
}
