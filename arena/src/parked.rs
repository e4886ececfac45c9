//! Freed blocks set aside whole, for the next request of exactly their size.
//!
//! A step that repeats itself asks for the sizes it freed a moment ago. Joining such a block
//! with its neighbours and cutting it out again would be most of the work of both calls, so a
//! few blocks of each recent size wait here first. They are joined after all when their list
//! or their place is needed, and all of them before the placement maps a new page: parking
//! never makes it take more memory.

use crate::block::{BlockId, Blocks};

/// Sizes that are remembered at once: one bit of a word each.
const PLACE_COUNT: usize = 64;
/// Blocks of one size that wait at most.
const LIST_LEN: u32 = 8;

#[derive(Debug, Clone, Copy)]
struct Place {
    /// Length of the blocks in the list.
    len: usize,
    /// The block freed last; each links to the one freed before it.
    head: BlockId,
    count: u32,
}

/// The lists of parked blocks.
#[derive(Debug)]
pub(crate) struct Parked {
    places: [Place; PLACE_COUNT],
    /// Bit `k` is set when place `k` has blocks.
    used: u64,
}

impl Default for Parked {
    fn default() -> Self {
        Self { places: [Place { len: 0, head: BlockId::NONE, count: 0 }; PLACE_COUNT], used: 0 }
    }
}

impl Parked {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The block of exactly `len` bytes that was parked last, if it is aligned to `align`.
    #[inline]
    pub(crate) fn take(&mut self, len: usize, align: usize, blocks: &Blocks) -> Option<BlockId> {
        let at = place_of(len);
        let place = &mut self.places[at];
        if place.count == 0 || place.len != len {
            return None;
        }
        let id = place.head;
        let block = blocks.get(id);
        if block.start & (align - 1) != 0 {
            return None;
        }
        place.head = BlockId::from_number(block.extra);
        place.count -= 1;
        if place.count == 0 {
            self.used &= !(1 << at);
        }
        Some(id)
    }

    /// Parks a block, if there is room for one more of its size.
    #[inline]
    pub(crate) fn push(&mut self, id: BlockId, blocks: &mut Blocks) -> bool {
        let block = blocks.get_mut(id);
        let at = place_of(block.len);
        let place = &mut self.places[at];
        if place.count == 0 {
            place.len = block.len;
            place.head = BlockId::NONE;
        } else if place.len != block.len || place.count == LIST_LEN {
            return false;
        }
        block.extra = place.head.number();
        place.head = id;
        place.count += 1;
        self.used |= 1 << at;
        true
    }

    /// Takes one block out of the list that stands where blocks of `len` bytes belong.
    pub(crate) fn evict(&mut self, len: usize, blocks: &Blocks) -> Option<BlockId> {
        self.pop(place_of(len), blocks)
    }

    /// Takes any block out.
    pub(crate) fn pop_any(&mut self, blocks: &Blocks) -> Option<BlockId> {
        if self.used == 0 { None } else { self.pop(self.used.trailing_zeros() as usize, blocks) }
    }

    /// The parked blocks.
    pub(crate) fn iter<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + 'a {
        self.places.iter().flat_map(move |place| {
            let mut next = place.head;
            (0..place.count).map(move |_| {
                let id = next;
                next = BlockId::from_number(blocks.get(id).extra);
                id
            })
        })
    }

    fn pop(&mut self, at: usize, blocks: &Blocks) -> Option<BlockId> {
        let place = &mut self.places[at];
        if place.count == 0 {
            return None;
        }
        let id = place.head;
        place.head = BlockId::from_number(blocks.get(id).extra);
        place.count -= 1;
        if place.count == 0 {
            self.used &= !(1 << at);
        }
        Some(id)
    }
}

/// The place of blocks of `len` bytes: the top bits of a multiplicative hash (Fibonacci hashing).
#[inline]
fn place_of(len: usize) -> usize {
    let hash = (len as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> (u64::BITS - PLACE_COUNT.trailing_zeros())) as usize
}
