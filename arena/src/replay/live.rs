//! The live allocations of a replay by their ids.
//!
//! Small ids index a vector: looking up an allocation should take little beside what the policy does.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Ids below this are looked up in a vector, of 16 MiB at most.
const SMALL_IDS: u64 = 1 << 20;

/// The stream's place and the address of each live allocation.
#[derive(Debug, Default)]
pub(super) struct Live {
    small: Vec<Option<(u32, usize)>>,
    large: HashMap<u64, (u32, usize), FxBuildHasher>,
}

impl Live {
    #[inline]
    pub(super) fn contains(&self, id: u64) -> bool {
        if id < SMALL_IDS {
            self.small.get(id as usize).is_some_and(Option::is_some)
        } else {
            self.large.contains_key(&id)
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<(usize, usize)> {
        let allocation = if id < SMALL_IDS {
            self.small.get(id as usize).copied().flatten()
        } else {
            self.large.get(&id).copied()
        };
        allocation.map(|(stream, addr)| (stream as usize, addr))
    }

    #[inline]
    pub(super) fn insert(&mut self, id: u64, (stream, addr): (usize, usize)) {
        // Streams have a placement each; nobody has 2^32 of them.
        let allocation = (stream as u32, addr);
        if id < SMALL_IDS {
            let at = id as usize;
            if at >= self.small.len() {
                self.small.resize(at + 1, None);
            }
            self.small[at] = Some(allocation);
        } else {
            self.large.insert(id, allocation);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u64) -> Option<(usize, usize)> {
        let allocation = if id < SMALL_IDS {
            self.small.get_mut(id as usize).and_then(Option::take)
        } else {
            self.large.remove(&id)
        };
        allocation.map(|(stream, addr)| (stream as usize, addr))
    }
}
