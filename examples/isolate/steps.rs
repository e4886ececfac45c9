//! The program: weights that stay, and in each step a big block, freed again, and a survivor.

use std::collections::VecDeque;

use anyhow::{Result, ensure};

const MIB: usize = 1 << 20;
/// What stays all the time. Beside it PyTorch's first segment, of 20 MiB, has room for the first survivors.
pub(crate) const WEIGHTS: [usize; 3] = [4 * MIB; 3];
/// What a step needs for a moment.
pub(crate) const BIG_BYTES: usize = 32 * MIB;
/// What a step leaves: more than the 1 MiB up to which PyTorch keeps requests apart by itself.
pub(crate) const SURVIVOR_BYTES: usize = 3 * MIB / 2;
/// Steps for which a survivor lives.
pub(crate) const SURVIVOR_COUNT: usize = 8;
/// What may be mapped: 1.4 times what is live at most, but not a second big block.
pub(crate) const LIMIT_BYTES: usize = 80 * MIB;
/// The part of it that a pool for survivors gets: one of PyTorch's segments holds them all.
pub(crate) const SURVIVORS_BYTES: usize = 20 * MIB;
/// Steps between two figures.
pub(crate) const MARK_STEPS: usize = 100;

/// Where a block goes when there is a pool for survivors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Passing,
    Survivor,
}

/// Memory under a limit. Dropping or freeing a block ends it.
pub(crate) trait Memory {
    type Block;

    /// A block; `None` when memory is out.
    fn allocate(&mut self, kind: Kind, bytes: usize) -> Result<Option<Self::Block>>;

    fn free(&mut self, block: Self::Block) -> Result<()>;

    fn state(&self) -> State;
}

/// How memory stands, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) reserved_bytes: usize,
    pub(crate) allocated_bytes: usize,
    pub(crate) largest_free_bytes: usize,
}

/// How a run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The step in which memory was out, counted from 1, and how it stood then.
    pub(crate) out_of_memory: Option<(usize, State)>,
    /// What was reserved after each step.
    pub(crate) reserved_bytes: Vec<usize>,
}

/// Runs `steps` steps, or until memory is out. `advanced` is told of each.
pub(crate) fn run<M: Memory>(memory: &mut M, steps: usize, mut advanced: impl FnMut()) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut weights = Vec::new();
    for bytes in WEIGHTS {
        weights.extend(memory.allocate(Kind::Passing, bytes)?);
    }
    ensure!(weights.len() == WEIGHTS.len(), "the limit has no room for the weights");
    let mut survivors = VecDeque::new();
    for step in 1..=steps {
        if !one(memory, &mut survivors)? {
            outcome.out_of_memory = Some((step, memory.state()));
            break;
        }
        outcome.reserved_bytes.push(memory.state().reserved_bytes);
        advanced();
    }
    for block in weights.into_iter().chain(survivors) {
        memory.free(block)?;
    }
    Ok(outcome)
}

/// One step; `false` when memory is out.
fn one<M: Memory>(memory: &mut M, survivors: &mut VecDeque<M::Block>) -> Result<bool> {
    let Some(big) = memory.allocate(Kind::Passing, BIG_BYTES)? else { return Ok(false) };
    memory.free(big)?;
    if survivors.len() == SURVIVOR_COUNT {
        let oldest = survivors.pop_front();
        oldest.map_or(Ok(()), |block| memory.free(block))?;
    }
    let Some(survivor) = memory.allocate(Kind::Survivor, SURVIVOR_BYTES)? else { return Ok(false) };
    survivors.push_back(survivor);
    Ok(true)
}
