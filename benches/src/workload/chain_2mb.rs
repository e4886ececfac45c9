//! `chain_2mb`: an elementwise chain of 25 ops on 2 MB tensors, each result a fresh allocation.
//!
//! As `chain_64mb`, with 2^19 f32 in each tensor: affine, then four turns of relu, sqr, add, mul,
//! affine and abs. After the first result the step adds a block that outlives it; at this size that
//! block decides whether glibc trims its heap (see `long_lived`).

use super::long_lived::LongLived;
use super::{Workload, seeded};
use crate::checksum;
use anyhow::Result;
use candle_core::Tensor;

const ELEMENTS: usize = 1 << 19;
const TURNS: usize = 4;

pub(super) struct Chain2Mb {
    input: Tensor,
    long_lived: LongLived,
}

impl Chain2Mb {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { input: seeded::uniform(2, ELEMENTS, -1.0, 1.0)?, long_lived: LongLived::default() })
    }
}

impl Workload for Chain2Mb {
    fn step(&mut self, step: usize) -> Result<u64> {
        let x = &self.input;
        // The step number goes in so that no two steps have the same result.
        let mut t = x.affine(0.5, 0.25 + (step % 16) as f64 / 64.0)?;
        self.long_lived.keep_one(step);
        for _ in 0..TURNS {
            // Each assignment drops the operand once the result exists.
            t = t.relu()?;
            t = t.sqr()?;
            t = (t + x)?;
            t = (t * x)?;
            t = t.affine(0.5, 0.1)?;
            t = t.abs()?;
        }
        Ok(checksum::of(&t)? ^ self.long_lived.checksum())
    }
}
