//! Embeds sentences with all-MiniLM-L6-v2 and prints the pairs that mean most nearly the same,
//! with each batch's tensors in a memory pool.
//!
//! ```text
//! examples/embed/fetch-model.sh
//! cargo run --release -p mempool-examples --example embed -- examples/embed/sentences.txt
//! ```

mod encoder;
mod input;
mod nearest;
mod pack;
mod report;

use std::io::{BufWriter, ErrorKind, Write, stdout};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use candle_core::Device;
use candle_mempool::{MemPool, PoolAllocator, StepArena, mark_step, without_pools};
use clap::Parser;
use indicatif::ProgressBar;
use mempool_examples::{Summary, median_ms};

use encoder::Encoder;
use input::{Input, Sentence};
use pack::{Shape, pack_batch};
use report::Format;

#[global_allocator]
static ALLOCATOR: PoolAllocator = PoolAllocator::new();

/// Prints the pairs of sentences that mean most nearly the same.
#[derive(Debug, Parser)]
struct Args {
    /// Sentences, one a line; `-` reads stdin.
    file: PathBuf,
    /// Directory that fetch-model.sh filled.
    #[arg(long, value_name = "DIR", default_value = "examples/embed/model")]
    model: PathBuf,
    /// Sentences in a batch.
    #[arg(long, value_name = "N", default_value = "8")]
    batch: NonZeroUsize,
    /// Pairs to print.
    #[arg(long, value_name = "K", default_value_t = 5)]
    top: usize,
    /// Allocate from the system, without a pool.
    #[arg(long)]
    no_pool: bool,
    /// Print JSON, with the exact bits of every cosine.
    #[arg(long)]
    json: bool,
    /// Add the exact bits to the text output.
    #[arg(long)]
    bits: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.no_pool { without_pools(|| run(&args)) } else { run(&args) }
}

fn run(args: &Args) -> Result<()> {
    let input = Input::read(&args.file)?;
    for (line, earlier) in &input.duplicates {
        eprintln!("line {line} repeats line {earlier} and is left out");
    }
    let start = Instant::now();
    let encoder = Encoder::load(&args.model)?;
    let load_time = start.elapsed();
    let tokens = tokenize(&encoder, &input.sentences)?;
    let pool = if args.no_pool {
        None
    } else {
        let pool = MemPool::builder(&Device::Cpu).name("embed").build();
        Some(pool.context("creating the pool")?)
    };

    let (embeddings, times) = embed_all(&encoder, &tokens, args.batch.get(), pool.as_ref())?;
    let width = encoder.width();
    let pairs = nearest::nearest_pairs(&embeddings, width, args.top);
    let format = Format { json: args.json, bits: args.bits };
    let mut out = BufWriter::new(stdout().lock());
    let written = report::write(&mut out, format, &input.sentences, &embeddings, width, &pairs)
        .and_then(|()| out.flush());
    // A reader such as `head` that has seen enough is no failure.
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        return Err(error).context("writing to stdout");
    }

    let mut summary = Summary::new(if pool.is_some() { "embed, pool on" } else { "embed, pool off" });
    let total: Duration = times.iter().sum();
    let rate = tokens.len() as f64 / total.as_secs_f64();
    summary
        .row("model load", format!("{:.0} ms", load_time.as_secs_f64() * 1e3))
        .row("sentences", format!("{} ({rate:.1} a second)", tokens.len()))
        .row("batches", times.len().to_string())
        .row("median batch", format!("{:.2} ms", median_ms(&times)));
    if let Some(pool) = &pool {
        summary.pool(&pool.stats());
    }
    eprint!("{summary}");
    Ok(())
}

fn tokenize(encoder: &Encoder, sentences: &[Sentence]) -> Result<Vec<Vec<u32>>> {
    let mut tokens = Vec::with_capacity(sentences.len());
    for Sentence { line, text } in sentences {
        let (ids, truncated) = encoder.tokenize(text).with_context(|| format!("line {line}"))?;
        if truncated {
            eprintln!("line {line} is too long: only its first {} tokens count", ids.len());
        }
        tokens.push(ids);
    }
    Ok(tokens)
}

/// The embeddings of all sentences back to back, and the time each batch took.
fn embed_all(
    encoder: &Encoder,
    tokens: &[Vec<u32>],
    batch: usize,
    pool: Option<&MemPool>,
) -> Result<(Vec<f32>, Vec<Duration>)> {
    // Results outlive their batch, so the memory for them is set aside before the first scope.
    let mut embeddings = Vec::with_capacity(tokens.len() * encoder.width());
    let mut times = Vec::with_capacity(tokens.len().div_ceil(batch));
    // Ids and masks of a batch are copied into tensors and forgotten.
    let mut scratch = StepArena::new();
    let bar = ProgressBar::new(tokens.len() as u64);
    for (index, sequences) in tokens.chunks(batch).enumerate() {
        let start = Instant::now();
        let len = Shape::of(sequences).scratch_len();
        let packed = pack_batch(scratch.alloc_slice_fill_copy(len, 0)?, sequences, encoder.pad_id())?;
        let mut forward = || encoder.embed(&packed, &mut embeddings);
        let done = match pool {
            Some(pool) => {
                let done = pool.with(forward);
                mark_step();
                done
            }
            None => forward(),
        };
        done.with_context(|| format!("batch {} of {} sentences", index + 1, sequences.len()))?;
        scratch.reset();
        times.push(start.elapsed());
        bar.inc(sequences.len() as u64);
    }
    bar.finish_and_clear();
    Ok((embeddings, times))
}
