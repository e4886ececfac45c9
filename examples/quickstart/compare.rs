//! Running a step without and with a pool, in turn.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use candle_mempool::{MemPool, PoolStats, mark_step, without_pools};
use indicatif::ProgressBar;

use crate::page_faults;

/// What the steps of one side took.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) times: Vec<Duration>,
    pub(crate) faults: Vec<u64>,
}

/// Both sides of one program.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) program: &'static str,
    pub(crate) without: Side,
    pub(crate) with: Side,
    pub(crate) pool: PoolStats,
}

impl Side {
    fn measure(&mut self, step: impl FnOnce() -> candle_core::Result<f32>) -> Result<()> {
        let (faults, start) = (page_faults::count(), Instant::now());
        let value = step()?;
        self.times.push(start.elapsed());
        self.faults.extend(page_faults::count().zip(faults).map(|(after, before)| after - before));
        ensure!(value.is_finite(), "a step returned {value}");
        Ok(())
    }
}

/// Runs `step` without and with a pool, `warm_up + steps` times each, and forgets the first ones.
pub(crate) fn compare(
    program: &'static str,
    warm_up: usize,
    steps: usize,
    bar: &ProgressBar,
    mut step: impl FnMut() -> candle_core::Result<f32>,
) -> Result<Comparison> {
    let pool = MemPool::builder(&Device::Cpu).name(program).build()?;
    let (mut without, mut with) = (Side::default(), Side::default());
    for round in 0..warm_up + steps {
        if round == warm_up {
            (without, with) = (Side::default(), Side::default());
        }
        without_pools(|| without.measure(&mut step)).with_context(|| format!("{program} without a pool"))?;
        bar.inc(1);
        pool.with(|| with.measure(&mut step)).with_context(|| format!("{program} with a pool"))?;
        mark_step();
        bar.inc(1);
    }
    Ok(Comparison { program, without, with, pool: pool.stats() })
}
