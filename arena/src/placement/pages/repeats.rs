//! Which moves of pages are not worth it: those that come back with every step, and those that come too often.
//!
//! Where any page can move by itself, moving it and moving it back is all that a step that repeats itself would get
//! from it, each time. So a request that would move pages after the very requests that came before it the last time
//! maps new ones instead. So do requests while much of what is asked for would have to move first: moving a page takes
//! a tenth to a fifth of the time in which it can be written once.

use std::collections::VecDeque;

/// Two requests are the same when those before them are, so many: more than most steps have, since what layers of a
/// model do again within a step is no step that repeats itself.
const WINDOW: usize = 1024;
/// Requests that moved pages, as many as are remembered.
const REMEMBERED: usize = 64;
/// When they moved more than one byte of so many that were asked for meanwhile, that is too often.
const TOO_OFTEN_PARTS: u64 = 8;
/// A factor whose powers differ for the whole length of the window: Knuth's for 64 bits.
const FACTOR: u64 = 6_364_136_223_846_793_005;

/// A request that moved pages.
#[derive(Debug, Clone, Copy)]
struct Moved {
    /// See [`Repeats::recent`].
    recent: u64,
    /// What was asked for until then, and what moved for it, in bytes.
    asked_for: u64,
    bytes: u64,
}

/// The requests of late, and which of them moved pages.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    requests: usize,
    asked_for: u64,
    /// The sum of the lengths of the last requests, each times a power of [`FACTOR`] (Rabin and Karp's rolling hash).
    recent: u64,
    /// The lengths, by the number of the request; empty before the first one.
    lengths: Vec<u64>,
    moved: VecDeque<Moved>,
    /// What they moved together.
    moved_bytes: u64,
}

impl Repeats {
    /// Notes a request.
    #[inline]
    pub(super) fn note_request(&mut self, len: usize) {
        const OLDEST: u64 = FACTOR.wrapping_pow(WINDOW as u32);
        if self.lengths.is_empty() {
            self.lengths = vec![0; WINDOW];
        }
        let len = len as u64;
        let oldest = std::mem::replace(&mut self.lengths[self.requests % WINDOW], len);
        let with_it = self.recent.wrapping_mul(FACTOR).wrapping_add(len);
        self.recent = with_it.wrapping_sub(oldest.wrapping_mul(OLDEST));
        self.requests = self.requests.wrapping_add(1);
        self.asked_for = self.asked_for.wrapping_add(len);
    }

    /// Whether pages moved for the last request when the same requests had come before it. Otherwise it is remembered
    /// that so many bytes do now.
    pub(super) fn come_back(&mut self, bytes: usize) -> bool {
        if self.moved.iter().any(|moved| moved.recent == self.recent) {
            return true;
        }
        if self.moved.len() == REMEMBERED
            && let Some(first) = self.moved.pop_front()
        {
            self.moved_bytes -= first.bytes;
        }
        let bytes = bytes as u64;
        self.moved.push_back(Moved { recent: self.recent, asked_for: self.asked_for, bytes });
        self.moved_bytes += bytes;
        false
    }

    /// Whether too much moves.
    pub(super) fn too_often(&self) -> bool {
        let first = self.moved.front().filter(|_| self.moved.len() == REMEMBERED);
        first.is_some_and(|first| {
            let asked_for = self.asked_for.wrapping_sub(first.asked_for);
            (self.moved_bytes - first.bytes).saturating_mul(TOO_OFTEN_PARTS) > asked_for
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of a step, of which the third would move pages, and whether it should.
    fn step(repeats: &mut Repeats, lengths: &[usize]) -> bool {
        lengths[..3].iter().for_each(|&len| repeats.note_request(len));
        let worth_it = !repeats.come_back(1);
        lengths[3..].iter().for_each(|&len| repeats.note_request(len));
        worth_it
    }

    #[test]
    fn a_step_that_repeats_itself_moves_nothing_after_as_many_requests_as_are_looked_at() {
        let mut repeats = Repeats::default();
        let lengths: Vec<usize> = (1..=300).collect();
        let moves: Vec<bool> = (0..20).map(|_| step(&mut repeats, &lengths)).collect();
        // Four steps have as many requests, and the fifth can be compared with one.
        assert_eq!(moves.iter().filter(|&&moves| moves).count(), 5, "{moves:?}");
        assert!(moves[..5].iter().all(|&moves| moves));
        // Another length within the window makes it another step.
        let mut other = lengths.clone();
        other[299] += 1;
        assert!(!step(&mut repeats, &other));
        assert!(step(&mut repeats, &lengths));
    }

    #[test]
    fn what_moves_is_too_much_when_it_is_more_than_an_eighth_of_what_is_asked_for() {
        let mut repeats = Repeats::default();
        let mut worth_it = |at: usize, asked_for: usize| {
            repeats.note_request(asked_for - at);
            repeats.note_request(at);
            assert!(!repeats.come_back(1 << 20));
            !repeats.too_often()
        };
        assert!((0..500).all(|at| worth_it(at, 8 << 20)));
        // Only when as many as are remembered moved so much.
        let moves: Vec<bool> = (500..700).map(|at| worth_it(at, 7 << 20)).collect();
        assert!(moves.iter().all(|&moves| !moves), "{moves:?}");
        let moves: Vec<bool> = (700..900).map(|at| worth_it(at, 9 << 20)).collect();
        assert_eq!(moves.iter().position(|&moves| moves), Some(31));
        assert!(moves[31..].iter().all(|&moves| moves));
    }
}
