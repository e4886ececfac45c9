//! `chain_64mb`: seven elementwise ops on 64 MB tensors, each result a fresh allocation.
//!
//! A step takes one 64 MB input (2^24 f32) through affine, relu, sqr, add, mul, affine and relu.
//! Each op allocates its result and the operand is dropped as soon as the result exists, so two
//! results live at a time beside the input. After the first result the step adds a block that
//! outlives it (see `long_lived`). There is no `exp` or `tanh` in the chain: its ops are bound by
//! memory rather than arithmetic, so what it shows is the cost of fresh memory.

use super::long_lived::LongLived;
use super::{Workload, seeded};
use crate::checksum;
use anyhow::Result;
use candle_core::Tensor;

const ELEMENTS: usize = 1 << 24;

pub(super) struct Chain64Mb {
    input: Tensor,
    long_lived: LongLived,
}

impl Chain64Mb {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { input: seeded::uniform(64, ELEMENTS, -1.0, 1.0)?, long_lived: LongLived::default() })
    }
}

impl Workload for Chain64Mb {
    fn step(&mut self, step: usize) -> Result<u64> {
        let x = &self.input;
        // The step number goes in so that no two steps have the same result.
        let mut t = x.affine(0.5, 0.25 + (step % 16) as f64 / 64.0)?;
        self.long_lived.keep_one(step);
        // Each assignment drops the operand once the result exists.
        t = t.relu()?;
        t = t.sqr()?;
        t = (t + x)?;
        t = (t * x)?;
        t = t.affine(2.0, -0.5)?;
        t = t.relu()?;
        Ok(checksum::of(&t)? ^ self.long_lived.checksum())
    }
}
