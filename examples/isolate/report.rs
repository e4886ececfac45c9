//! What the program prints, and how its runs have to end.

use anyhow::{Result, bail, ensure};
use mempool_examples::human_bytes;

use crate::steps::{
    BIG_BYTES, LIMIT_BYTES, MARK_STEPS, Outcome, SURVIVOR_BYTES, SURVIVOR_COUNT, SURVIVORS_BYTES, WEIGHTS,
};

/// How a run has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    OutOfMemory,
    /// All steps, and the same memory after each from the first mark on.
    Flat,
}

impl Expected {
    /// `Ok` if the run ended like that. A run with too few steps for survivors to be in the way passes.
    pub(crate) fn check(self, name: &str, outcome: &Outcome, steps: usize) -> Result<()> {
        match (self, outcome.out_of_memory) {
            (Self::OutOfMemory, Some(_)) => Ok(()),
            (Self::OutOfMemory, None) if steps <= SURVIVOR_COUNT => Ok(()),
            (Self::OutOfMemory, None) => bail!("{name}: memory was to run out, but all {steps} steps passed"),
            (Self::Flat, Some((step, _))) => bail!("{name}: out of memory in step {step}"),
            (Self::Flat, None) => {
                let settled = outcome.reserved_bytes.get(MARK_STEPS..).unwrap_or_default();
                let flat = settled.windows(2).all(|pair| pair[0] == pair[1]);
                ensure!(flat, "{name}: what is reserved goes on changing");
                Ok(())
            }
        }
    }
}

/// What the program does, with its sizes.
pub(crate) fn scenario() -> String {
    let weights: usize = WEIGHTS.iter().sum();
    let live = weights + BIG_BYTES + SURVIVOR_COUNT * SURVIVOR_BYTES;
    format!(
        "{} of weights stay. Each step makes a block of {} and frees it, then one of {} that lives\n\
         for {SURVIVOR_COUNT} steps. At most {} are live; the limit is {}, of which a pool for survivors gets {}.",
        human_bytes(weights),
        human_bytes(BIG_BYTES),
        human_bytes(SURVIVOR_BYTES),
        human_bytes(live),
        human_bytes(LIMIT_BYTES),
        human_bytes(SURVIVORS_BYTES),
    )
}

/// How a run ended, in lines.
pub(crate) fn lines(name: &str, outcome: &Outcome) -> String {
    match outcome.out_of_memory {
        Some((step, state)) => format!(
            "  {name:28} out of memory in step {step}: of {} reserved {} are free, {} in one piece; {} may be added\n",
            human_bytes(state.reserved_bytes),
            human_bytes(state.reserved_bytes - state.allocated_bytes),
            human_bytes(state.largest_free_bytes),
            human_bytes(LIMIT_BYTES.saturating_sub(state.reserved_bytes)),
        ),
        None => {
            let steps = outcome.reserved_bytes.len();
            let peak = outcome.reserved_bytes.iter().copied().max().unwrap_or(0);
            let mut text = format!("  {name:28} {steps} steps; reserved at most {}\n", human_bytes(peak));
            let marks: Vec<String> = (1..=steps / MARK_STEPS)
                .map(|mark| format!("{}", outcome.reserved_bytes[mark * MARK_STEPS - 1] >> 20))
                .collect();
            if !marks.is_empty() {
                text += &format!("  {:28} MiB after each {MARK_STEPS}: {}\n", "", marks.join(" "));
            }
            text
        }
    }
}

#[cfg(test)]
mod tests;
