//! A service whose batches always have the same shape: token ids come in, embeddings go out. Its memory is had in five
//! ways, which take turns: stock candle, a pool, a planned step, a buffer for the result, and on a CUDA device a
//! captured step. One table at the end; every answer has to be the same to the bit.
//!
//! ```text
//! cargo run --release -p mempool-examples --example fixed_shape_inference
//! cargo run --release --features cuda -p mempool-examples --example fixed_shape_inference
//! ```

mod model;
mod service;

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use candle_core::Device;
use candle_mempool::{PoolAllocator, mark_step};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use mempool_examples::{human_bytes, median_ms};

use model::{Model, Requests};
use service::{Kind, Service};

#[global_allocator]
static ALLOCATOR: PoolAllocator = PoolAllocator::new();

/// Serves batches of one shape with memory had in several ways, and compares them.
#[derive(Debug, Parser)]
struct Args {
    /// Requests that are measured, for each way.
    #[arg(long, default_value_t = 60)]
    requests: usize,
    /// Sequences in a batch.
    #[arg(long, default_value_t = 2)]
    batch: usize,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Run on the CPU although there is a GPU.
    #[arg(long)]
    cpu: bool,
}

/// Requests of a turn: ways take turns, so that all see the same machine.
const TURN: usize = 10;
/// Requests before anything is measured: plans are made and graphs captured.
const WARM_UP: usize = 6;

fn main() -> Result<()> {
    let args = Args::parse();
    let device = device(args.cpu)?;
    let model = Model::new(&device)?;
    let requests = Requests::new(args.batch, args.tokens);
    let mut services = Vec::new();
    for kind in Kind::of(&device) {
        services.push(Service::new(kind, &model, &device, args.batch, args.tokens)?);
    }
    let bar = ProgressBar::new(((args.requests + WARM_UP) * services.len()) as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} requests [{elapsed}] {msg}")?);
    let mut times = vec![Vec::new(); services.len()];
    let mut answers = Answers::default();
    for service in &mut services {
        bar.set_message(service.kind().name());
        for number in 0..WARM_UP {
            answers.check(service.kind(), number, &service.answer(&requests.get(number))?)?;
            bar.inc(1);
        }
        service.begin_measuring();
    }
    let numbers: Vec<usize> = (0..args.requests).collect();
    for turn in numbers.chunks(TURN) {
        for (service, times) in services.iter_mut().zip(&mut times) {
            bar.set_message(service.kind().name());
            for &number in turn {
                let ids = requests.get(number);
                let start = Instant::now();
                let answer = service.answer(&ids)?;
                times.push(start.elapsed());
                answers.check(service.kind(), number, &answer)?;
                bar.inc(1);
            }
            mark_step();
        }
    }
    bar.finish_and_clear();

    println!(
        "{} sequences of {} tokens a request, {}",
        args.batch,
        args.tokens,
        if device.is_cuda() { "on a GPU" } else { "on the CPU" }
    );
    println!(
        "{:<14} {:>11} {:>9} {:>10} {:>10} {:>10} {:>13}",
        "", "ms/request", "x stock", "searches", "planned", "map calls", "memory"
    );
    let stock = median_ms(&times[0]);
    for (service, times) in services.iter().zip(&times) {
        let median = median_ms(times);
        let (figures, count) = (service.figures(), args.requests.max(1) as f64);
        let each = |number: Option<u64>| {
            number.map_or("-".to_owned(), |number| format!("{:.1}", number as f64 / count))
        };
        println!(
            "{:<14} {median:>11.3} {:>8.2}x {:>10} {:>10} {:>10} {:>13}",
            service.kind().name(),
            stock / median,
            each(figures.searches),
            each(figures.planned),
            each(figures.map_calls),
            figures.reserved_bytes.map_or("-".to_owned(), human_bytes),
        );
    }
    println!("\nSearches, planned: allocations of a request that a pool, or a plan, found a place for.");
    Ok(())
}

fn device(cpu: bool) -> Result<Device> {
    if cpu || !candle_core::utils::cuda_is_available() {
        return Ok(Device::Cpu);
    }
    service::untracked_device()
}

/// The bits of each request's first answer, which every other has to have.
#[derive(Default)]
struct Answers(HashMap<usize, Vec<u32>>);

impl Answers {
    fn check(&mut self, kind: Kind, number: usize, answer: &[f32]) -> Result<()> {
        let bits: Vec<u32> = answer.iter().map(|value| value.to_bits()).collect();
        let first = self.0.entry(number).or_insert_with(|| bits.clone());
        ensure!(*first == bits, "{} answers request {number} otherwise", kind.name());
        Ok(())
    }
}
