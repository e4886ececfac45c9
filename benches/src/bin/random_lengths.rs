//! A decoder that is trained on batches of random sizes and lengths, on a CUDA device: what each policy reserves
//! for it, and how fast the steps are. No shape repeats, so every step asks for other sizes.
//!
//! Each kind runs the same steps on a new pool, in turns; a step's time is the shortest of its turns.
//!
//! `cargo run --release --features cuda -p mempool-benches --bin random-lengths`
#![allow(unsafe_code)] // listed in ARCHITECTURE.md: the driver's own pool

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::{D, DType, Device, Tensor};
use candle_mempool::{MemPool, PoolStats, mark_step, set_event_reuse, without_pools};
use candle_nn::{
    AdamW, Embedding, Linear, Module, Optimizer, ParamsAdamW, RmsNorm, VarBuilder, VarMap, embedding,
    linear_no_bias, loss, ops, rms_norm,
};
use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[global_allocator]
static ALLOC: candle_mempool::PoolAllocator = candle_mempool::PoolAllocator::new();

/// Trains a decoder on random batches under several policies.
#[derive(Parser)]
struct Options {
    /// Steps of each run.
    #[arg(long, default_value_t = 40)]
    steps: usize,
    /// Turns of each kind.
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// What to run: `stock` (candle without pools), or a pool's options, such as `policy:pages,mode:moving`.
    #[arg(long, default_values = ["stock", "policy:torch", "policy:pages", "policy:pages,mode:moving"])]
    kind: Vec<String>,
    /// Limit of each pool, in bytes.
    #[arg(long)]
    limit: Option<usize>,
    /// Records the first turn of the last kind here.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Seed of the batches.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// The device.
    #[arg(long, default_value_t = 0)]
    device: usize,
}

const HIDDEN: usize = 1024;
const HEADS: usize = 16;
const LAYERS: usize = 8;
const VOCABULARY: usize = 32_000;
const LARGEST_BATCH: usize = 8;
const LONGEST: usize = 512;

/// A layer, with attention to what came before.
struct Layer {
    norms: [RmsNorm; 2],
    attention: [Linear; 4],
    widen: Linear,
    narrow: Linear,
}

impl Layer {
    fn new(vars: &VarBuilder) -> candle_core::Result<Self> {
        let square = |name| linear_no_bias(HIDDEN, HIDDEN, vars.pp(name));
        Ok(Self {
            norms: [rms_norm(HIDDEN, 1e-5, vars.pp("norm1"))?, rms_norm(HIDDEN, 1e-5, vars.pp("norm2"))?],
            attention: [square("q")?, square("k")?, square("v")?, square("o")?],
            widen: linear_no_bias(HIDDEN, 4 * HIDDEN, vars.pp("widen"))?,
            narrow: linear_no_bias(4 * HIDDEN, HIDDEN, vars.pp("narrow"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> candle_core::Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        let normed = self.norms[0].forward_diff(x)?;
        let heads = |linear: &Linear| -> candle_core::Result<Tensor> {
            let split = linear.forward(&normed)?.reshape((batch, length, HEADS, HIDDEN / HEADS))?;
            split.transpose(1, 2)?.contiguous()
        };
        let [q, k, v, o] = &self.attention;
        let (q, k, v) = (heads(q)?, heads(k)?, heads(v)?);
        let scores = (q.matmul(&k.t()?)? / ((HIDDEN / HEADS) as f64).sqrt())?.broadcast_add(mask)?;
        let mixed = ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        let mixed = mixed.transpose(1, 2)?.reshape((batch, length, HIDDEN))?;
        let x = (x + o.forward(&mixed)?)?;
        let wide = self.widen.forward(&self.norms[1].forward_diff(&x)?)?.gelu()?;
        x + self.narrow.forward(&wide)?
    }
}

/// A decoder and its optimizer.
struct Training {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    optimizer: AdamW,
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        // The same weights each time.
        device.set_seed(7)?;
        let map = VarMap::new();
        let vars = VarBuilder::from_varmap(&map, DType::F32, device);
        let layers = (0..LAYERS).map(|n| Layer::new(&vars.pp(format!("layer{n}"))));
        let layers = layers.collect::<candle_core::Result<_>>()?;
        let model = (
            embedding(VOCABULARY, HIDDEN, vars.pp("embedding"))?,
            layers,
            rms_norm(HIDDEN, 1e-5, vars.pp("norm"))?,
            linear_no_bias(HIDDEN, VOCABULARY, vars.pp("head"))?,
        );
        let optimizer = AdamW::new(map.all_vars(), ParamsAdamW { lr: 1e-4, ..ParamsAdamW::default() })?;
        let (embedding, layers, norm, head) = model;
        Ok(Self { embedding, layers, norm, head, optimizer })
    }

    /// One step; returns the loss, which the host waits for.
    fn step(&mut self, ids: &[u32], batch: usize, device: &Device) -> Result<f32> {
        let length = ids.len() / batch - 1;
        let ids = Tensor::from_slice(ids, (batch, length + 1), device)?;
        let (inputs, targets) = (ids.narrow(1, 0, length)?, ids.narrow(1, 1, length)?);
        let mask: Vec<f32> = (0..length * length)
            .map(|at| if at % length > at / length { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        let mask = Tensor::from_vec(mask, (1, 1, length, length), device)?;
        let mut x = self.embedding.forward(&inputs.contiguous()?)?;
        for layer in &self.layers {
            x = layer.forward(&x, &mask)?;
        }
        let logits = self.head.forward(&self.norm.forward_diff(&x)?)?;
        let logits = logits.reshape((batch * length, VOCABULARY))?;
        let loss = loss::cross_entropy(&logits, &targets.contiguous()?.flatten_all()?)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss.to_scalar()?)
    }
}

/// What one run gave.
struct Run {
    steps: Vec<Duration>,
    losses: Vec<f32>,
    pool: Option<PoolStats>,
    driver_peak_bytes: u64,
    failed: Option<String>,
}

/// Trains on the same batches each time.
fn train(options: &Options, device: &Device) -> (Vec<Duration>, Vec<f32>, Option<String>) {
    let mut random = StdRng::seed_from_u64(options.seed);
    let (mut times, mut losses) = (Vec::new(), Vec::new());
    let mut run = || -> Result<()> {
        let mut training = Training::new(device)?;
        for _ in 0..options.steps {
            let batch = random.random_range(1..=LARGEST_BATCH);
            let length = random.random_range(64..=LONGEST);
            let ids: Vec<u32> =
                (0..batch * (length + 1)).map(|_| random.random_range(0..VOCABULARY as u32)).collect();
            let start = Instant::now();
            losses.push(training.step(&ids, batch, device)?);
            times.push(start.elapsed());
            mark_step();
        }
        Ok(())
    };
    let failed = run().err().map(|error| format!("{error:#}"));
    (times, losses, failed)
}

fn run(options: &Options, device: &Device, kind: &str, record: bool) -> Result<Run> {
    device.synchronize()?;
    set_event_reuse(kind != "stock");
    driver_peak(device)?;
    if kind == "stock" {
        let (steps, losses, failed) = without_pools(|| train(options, device));
        return Ok(Run { steps, losses, failed, pool: None, driver_peak_bytes: driver_peak(device)? });
    }
    let mut builder = MemPool::builder(device).name(kind).conf(kind)?;
    if let Some(limit) = options.limit {
        builder = builder.limit(limit);
    }
    let pool = builder.build()?;
    let recording = match &options.record {
        Some(path) if record => Some(pool.record_trace(path)?),
        _ => None,
    };
    let (steps, losses, failed) = pool.with(|| train(options, device));
    if let Some(recording) = recording {
        println!("recorded: {:?}", recording.finish()?);
    }
    device.synchronize()?;
    Ok(Run { steps, losses, failed, pool: Some(pool.stats()), driver_peak_bytes: driver_peak(device)? })
}

/// The most that the driver's default pool held since the last call, after giving back what it holds.
fn driver_peak(device: &Device) -> Result<u64> {
    let context = device.as_cuda_device()?.cuda_stream().context().clone();
    context.bind_to_thread()?;
    let mut pool = std::ptr::null_mut();
    let attribute = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    let (mut value, mut zero) = (0_u64, 0_u64);
    // SAFETY: `pool` is a place for the result.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()) }.result()?;
    // SAFETY: this attribute is a 64-bit number.
    unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) }.result()?;
    result::ctx::synchronize()?;
    // SAFETY: the pool is the device's.
    unsafe { sys::cuMemPoolTrimTo(pool, 0) }.result()?;
    // SAFETY: as above; setting zero resets it.
    unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut zero).cast()) }.result()?;
    Ok(value)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = Device::new_cuda(options.device).context("this needs a CUDA device")?;
    // Kernels are loaded, and libraries make their workspaces.
    without_pools(|| train(&Options { steps: 3, ..Options::parse() }, &device));
    let mut runs: Vec<Vec<Run>> = options.kind.iter().map(|_| Vec::new()).collect();
    for turn in 0..options.turns {
        for (at, kind) in options.kind.iter().enumerate() {
            let record = turn == 0 && at + 1 == options.kind.len();
            runs[at].push(run(&options, &device, kind, record)?);
        }
    }
    let mut losses: Option<Vec<f32>> = None;
    println!(
        "{:<28} {:>9} {:>9} {:>7} {:>9} {:>9} {:>8} {:>7} {:>9}",
        "kind", "live MiB", "peak MiB", "frag", "median ms", "total ms", "map ms", "maps", "moved MiB"
    );
    for (kind, runs) in options.kind.iter().zip(&runs) {
        if let Some((run, error)) = runs.iter().find_map(|run| Some((run, run.failed.as_ref()?))) {
            println!("{kind:<28} failed in step {}: {error}", run.steps.len() + 1);
            continue;
        }
        let expected = losses.get_or_insert_with(|| runs[0].losses.clone());
        if runs.iter().any(|run| run.losses != *expected) {
            bail!("{kind} computes other losses");
        }
        let shortest = |step: usize| runs.iter().map(|run| run.steps[step]).min().unwrap_or_default();
        let steps: Vec<Duration> = (0..options.steps).map(shortest).collect();
        let mut sorted = steps.clone();
        sorted.sort_unstable();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let (median, total) = (milliseconds(sorted[sorted.len() / 2]), milliseconds(steps.iter().sum()));
        let mib = |bytes: usize| bytes >> 20;
        match &runs[0].pool {
            Some(stats) => println!(
                "{kind:<28} {:>9} {:>9} {:>6.2}% {median:>9.2} {total:>9.0} {:>8.1} {:>7} {:>9}",
                mib(stats.requested.peak),
                mib(stats.reserved.peak),
                100.0 * (1.0 - stats.requested.peak as f64 / stats.reserved.peak as f64),
                milliseconds(stats.mapping_time),
                stats.map_calls,
                mib(stats.moved_bytes as usize),
            ),
            None => println!(
                "{kind:<28} {:>9} {:>9} {:>7} {median:>9.2} {total:>9.0}",
                "",
                mib(runs[0].driver_peak_bytes as usize),
                ""
            ),
        }
    }
    Ok(())
}
