//! Which requests live long, learned from those before them.
//!
//! A model asks for the same sizes in the same order again and again: once a layer, once a step. A
//! request is known by its size and the sizes asked for just before it. When the block that the
//! same request got the last time is still live, requests of this kind outlive the time until they
//! come back: they are *long*. A counter of two bits, as processors keep for branches, makes one
//! exception no rule.

/// Kinds of requests that are remembered at once. A kind's number fits into 12 bits.
const PLACE_COUNT: usize = 1 << 12;
/// So many sizes before a request are part of its kind.
const HISTORY: usize = 2;
/// Counters end here.
const CERTAIN: u8 = 3;
/// From here on a kind is long.
const LONG_FROM: u8 = 2;

#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    tag: u32,
    score: u8,
    /// Where the last block of this kind is, until it ends.
    last_start: usize,
}

/// A request's kind, and what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    place: u16,
    tag: u32,
    /// Whether it will outlive the time until its kind comes back.
    pub(crate) long: bool,
}

/// What was learned.
#[derive(Debug)]
pub(crate) struct Lifetimes {
    kinds: Box<[Kind]>,
    sizes: [usize; HISTORY],
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { kinds: vec![Kind::default(); PLACE_COUNT].into_boxed_slice(), sizes: [0; HISTORY] }
    }
}

impl Lifetimes {
    /// What is expected of a request of `len` bytes that would come now.
    #[inline]
    pub(crate) fn expect(&self, len: usize) -> Expected {
        let mix =
            |hash: u64, size: usize| (hash ^ size as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let hash = self.sizes.iter().fold(mix(0, len), |hash, &size| mix(hash, size));
        // Place 0 is no kind's.
        let place = (hash >> 52).max(1) as u16;
        let tag = hash as u32;
        let kind = &self.kinds[place as usize];
        Expected { place, tag, long: kind.tag == tag && self.score_now(kind) >= LONG_FROM }
    }

    /// The score once it is known whether the last block of the kind is still live.
    #[inline]
    fn score_now(&self, kind: &Kind) -> u8 {
        if kind.last_start != 0 { (kind.score + 1).min(CERTAIN) } else { kind.score.saturating_sub(1) }
    }

    /// Notes that the request of `len` bytes was served at `start`, and returns the number that its end
    /// is noted by.
    #[inline]
    pub(crate) fn began(&mut self, expected: Expected, len: usize, start: usize) -> u16 {
        let kind = self.kinds[expected.place as usize];
        let known = kind.tag == expected.tag;
        let score = if known { self.score_now(&kind) } else { 0 };
        self.kinds[expected.place as usize] = Kind { tag: expected.tag, score, last_start: start };
        self.sizes.copy_within(..HISTORY - 1, 1);
        self.sizes[0] = len;
        expected.place
    }

    /// Notes the end of a block.
    #[inline]
    pub(crate) fn ended(&mut self, place: u16, start: usize) {
        let kind = &mut self.kinds[place as usize];
        if kind.last_start == start {
            kind.last_start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lifetimes;

    #[test]
    fn what_outlives_its_return_is_long_and_what_ends_before_is_not() {
        let mut lifetimes = Lifetimes::default();
        let mut expected = Vec::new();
        let mut start = 0x1000;
        for _ in 0..5 {
            // Each layer: scratch, a cache that stays, scratch of the cache's size.
            for (len, stays) in [(300, false), (100, true), (100, false)] {
                let expectation = lifetimes.expect(len);
                start += 0x1000;
                let number = lifetimes.began(expectation, len, start);
                expected.push((expectation.long, stays));
                if !stays {
                    lifetimes.ended(number, start);
                }
            }
        }
        for (long, stays) in &expected[9..] {
            assert_eq!(long, stays);
        }
        assert!(expected[..6].iter().all(|(long, _)| !long), "nothing is known yet");
    }
}
