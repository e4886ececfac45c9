//! Blocks that outlive the step that made them, as an application's results do.
//!
//! A step adds one block of 1 MiB; every eighth step drops the eight collected so far first, as a
//! program hands on a batch of results. The chains add theirs right after their first large tensor,
//! so the block lies between tensors that come and go.
//!
//! This decides what glibc does with tensors of 2 MB, which it takes from its heap once it has
//! raised its mmap threshold past them. It gives the free top of the heap back when that exceeds
//! about 4 MB. Without long-lived blocks every step ends with an empty heap, so glibc trims it every
//! step and faults it all in again (about 990 page faults a step of `chain_2mb`); with the
//! last few blocks kept in a ring, a block always sits near the top and glibc never trims (none).
//! Either alone would make glibc look worse or better than it is in a program, which sees both:
//! with batches some steps trim and others do not (about 400 on average).
//!
//! Tensors of 64 MB are above the highest mmap threshold that glibc sets itself (32 MiB), so it
//! maps and unmaps each of them whatever the blocks do. There the blocks are for the others, which
//! must not place one inside a free stretch so that the next tensor no longer fits it.

const BLOCK_BYTES: usize = 1 << 20;

/// Steps from one handing on to the next.
pub(super) const BATCH: usize = 8;

/// The blocks of the current batch.
#[derive(Default)]
pub(super) struct LongLived {
    blocks: Vec<Vec<u8>>,
}

impl LongLived {
    /// Allocates the block of this step and writes all of it.
    pub(super) fn keep_one(&mut self, step: usize) {
        if self.blocks.len() == BATCH {
            self.blocks.clear();
        }
        // Never zero: a zeroed vector would come from calloc and might stay untouched.
        self.blocks.push(vec![step as u8 | 1; BLOCK_BYTES]);
    }

    /// A word made of the blocks still held, so that one overwritten while it lived would show.
    pub(super) fn checksum(&self) -> u64 {
        let ends = |block: &Vec<u8>| u64::from(block[0]) << 8 | u64::from(block[BLOCK_BYTES - 1]);
        self.blocks.iter().fold(0, |sum, block| sum.rotate_left(16) ^ ends(block))
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH, LongLived};

    #[test]
    fn a_full_batch_is_dropped_before_the_next_block() {
        let mut blocks = LongLived::default();
        for step in 0..BATCH {
            blocks.keep_one(step);
        }
        assert_eq!(blocks.blocks.len(), BATCH);
        blocks.keep_one(BATCH);
        assert_eq!(blocks.blocks.len(), 1);
        assert_ne!(blocks.checksum(), 0);
    }
}
