//! Which allocations of a thread are meant for a buffer.
//!
//! A computation that fills a buffer allocates its result somewhere in the middle: behind some temporaries, before
//! others. Which allocation becomes the result is learned: the first time all of them are noted, and the one whose
//! address the result has is known by its size and by how many of that size came before it. From then on that
//! allocation gets the buffer's memory.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use crate::buffer::BufferPlace;
use crate::thread_state::{inside, set_steering};

/// The allocation that becomes the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Learned {
    /// Its size in bytes.
    pub(crate) bytes: usize,
    /// How many of that size come before it.
    pub(crate) before: u32,
}

/// The buffer that a thread is filling.
#[derive(Debug)]
struct Steering {
    place: BufferPlace,
    learned: Vec<Learned>,
    /// How many of each learned size have come.
    seen: Vec<u32>,
    /// The buffer was handed out.
    taken: bool,
    /// Size and address of what came, in order.
    noted: Vec<(usize, usize)>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The buffer was handed out.
    pub(crate) taken: bool,
    noted: Vec<(usize, usize)>,
}

impl Outcome {
    /// How an allocation is known that was not handed the buffer.
    pub(crate) fn learn(&self, addr: usize) -> Option<Learned> {
        // An address may have served before: the last allocation there is the one that lives.
        let at = self.noted.iter().rposition(|&(_, other)| other == addr)?;
        let bytes = self.noted[at].0;
        let before = self.noted[..at].iter().filter(|&&(other, _)| other == bytes).count();
        Some(Learned { bytes, before: before as u32 })
    }
}

thread_local! {
    // Without a destructor, as everything that allocations look at.
    static STEERING: ManuallyDrop<RefCell<Vec<Steering>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Runs `f`; the learned allocation of it gets the buffer's memory. Ends however `f` ends.
pub(crate) fn steer<R>(place: BufferPlace, learned: &[Learned], f: impl FnOnce() -> R) -> (R, Outcome) {
    let steering = inside(|| Steering {
        place,
        learned: learned.to_vec(),
        seen: vec![0; learned.len()],
        taken: false,
        noted: Vec::new(),
    });
    inside(|| STEERING.with(|all| all.borrow_mut().push(steering)));
    let end = End { was_steering: set_steering(true) };
    let result = f();
    let outcome = end.end();
    (result, outcome)
}

/// Ends the innermost steering.
struct End {
    was_steering: bool,
}

impl End {
    fn end(self) -> Outcome {
        let was_steering = self.was_steering;
        std::mem::forget(self);
        Self::finish(was_steering)
    }

    fn finish(was_steering: bool) -> Outcome {
        set_steering(was_steering);
        inside(|| {
            STEERING.with(|all| {
                let mut all = all.borrow_mut();
                let ended = all.pop().expect("the innermost one is there");
                if all.is_empty() {
                    *all = Vec::new();
                }
                Outcome { taken: ended.taken, noted: ended.noted }
            })
        })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // `f` unwinds.
        let outcome = Self::finish(self.was_steering);
        inside(|| drop(outcome));
    }
}

/// The address of the buffer, if this allocation is the one that is meant for it; `take` makes the buffer the
/// caller's, if it can be, and says where it lies. `here` says whether the place is one that the allocation can have.
#[cold]
pub(crate) fn buffer_for(
    bytes: usize,
    here: impl FnOnce(&BufferPlace) -> bool,
    take: impl FnOnce(&BufferPlace) -> Option<usize>,
) -> Option<usize> {
    inside(|| {
        STEERING.with(|all| {
            let mut all = all.borrow_mut();
            let steering = all.last_mut().filter(|steering| here(&steering.place))?;
            let at = steering.learned.iter().position(|learned| learned.bytes == bytes)?;
            let before = steering.seen[at];
            steering.seen[at] += 1;
            let meant = !steering.taken && before == steering.learned[at].before;
            if !meant {
                return None;
            }
            let addr = take(&steering.place)?;
            steering.taken = true;
            // It counts among those before others of its size.
            steering.noted.push((bytes, addr));
            Some(addr)
        })
    })
}

/// Notes an allocation that did not get the buffer.
#[cold]
pub(crate) fn note(bytes: usize, addr: usize) {
    inside(|| {
        STEERING.with(|all| {
            if let Some(steering) = all.borrow_mut().last_mut() {
                steering.noted.push((bytes, addr));
            }
        });
    });
}
