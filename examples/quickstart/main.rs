//! What pools do for two candle programs: a BERT forward pass and a training step, each without
//! and with a pool, in turn. Needs no download and takes about ten seconds.
//!
//! ```text
//! cargo run --release --example quickstart
//! ```

mod bert;
mod compare;
mod page_faults;
mod table;
mod training;

use anyhow::Result;
use candle_mempool::PoolAllocator;
use indicatif::{ProgressBar, ProgressStyle};

use compare::compare;

#[global_allocator]
static ALLOC: PoolAllocator = PoolAllocator::new();

/// Steps of each program that are not measured: the first ones build caches and map memory.
const WARM_UP: usize = 3;

fn main() -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("This is a debug build; its times say little. Add --release.");
    }
    let (bert_steps, training_steps) = (15, 15);
    let steps = 2 * (bert_steps + training_steps + 2 * WARM_UP);
    let bar = ProgressBar::new(steps as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} steps [{elapsed}] {msg}")?);

    bar.set_message("BERT forward");
    let mut bert = bert::Bert::new()?;
    let forward = compare("BERT forward", WARM_UP, bert_steps, &bar, || bert.step())?;
    bar.set_message("MLP training");
    let mut training = training::Training::new()?;
    let train = compare("MLP training", WARM_UP, training_steps, &bar, || training.step())?;
    bar.finish_and_clear();

    print!("{}", table::render(&[forward, train]));
    Ok(())
}
