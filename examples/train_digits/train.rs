//! Driving one or two runs to their end.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::digits::Digits;
use crate::run::{Memory, Outcome, Run, Settings};

/// Trains one network for each of `memories`, all from the same start.
///
/// The runs advance in lockstep and take turns at going first. One after the other would be no
/// fair race: the second finds threads started and the allocator's heap grown, and came out up to
/// a third faster even when both ran without a pool.
pub(crate) fn train(digits: &Digits, settings: Settings, memories: &[Memory<'_>]) -> Result<Vec<Outcome>> {
    let mut runs = Vec::with_capacity(memories.len());
    for &memory in memories {
        runs.push(Run::new(digits, settings, memory)?);
    }
    let steps = runs.first().map_or(0, Run::steps);
    let bar = progress_bar(steps);
    for step in 0..steps {
        for turn in 0..runs.len() {
            let next = (step + turn) % runs.len();
            let loss = runs[next].step()?;
            bar.set_message(format!("loss {loss:.4}"));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    runs.into_iter().map(Run::finish).collect()
}

/// Draws on stderr, and only when that is a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} steps, {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use candle_mempool::MemPool;

    /// 45 steps, the last of an epoch short, so both full and partial batches are compared.
    #[test]
    fn runs_agree_with_and_without_a_pool() {
        let digits = Digits::bundled().unwrap();
        let settings = Settings { epochs: 1, batch: 32, seed: 3, lr: 3e-3 };
        let pool = MemPool::new(&Device::Cpu).unwrap();
        let memories = [Memory::System, Memory::Pool(&pool)];
        let outcomes = train(&digits, settings, &memories).unwrap();
        crate::report::check_same(&outcomes[0], &outcomes[1]).unwrap();
        assert_eq!(outcomes[0].step_times.len(), 45);
        assert!(outcomes[0].accuracy() > 0.5, "{}", outcomes[0].accuracy());
    }
}
