//! candle on a CUDA device: steps in pools, without pools, and without pools but with the driver's
//! release threshold raised to the maximum, which is what an expert does by hand; and as planned steps
//! of a pool. The four take turns in one process, so that they see the same machine.
//!
//! `cargo run --release --features cuda -p mempool-benches --bin cuda-steps`
#![allow(unsafe_code)] // listed in ARCHITECTURE.md: the driver's own pool, event tracking, bare allocations

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, result, sys};
use candle_core::{DType, Device, Tensor};
use candle_mempool::{CapturedStep, MemPool, cuda_device, mark_step, set_event_reuse, without_pools};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};
use candle_transformers::models::llama;
use clap::Parser;

#[global_allocator]
static ALLOC: candle_mempool::PoolAllocator = candle_mempool::PoolAllocator::new();

/// Times candle's steps on a CUDA device with and without pools.
#[derive(Parser)]
struct Options {
    /// Turns of each kind.
    #[arg(long, default_value_t = 7)]
    turns: usize,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// The device.
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Let cudarc's events serve again in all three, so that only allocation differs.
    #[arg(long)]
    share_events: bool,
}

/// How memory is had.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stock,
    Raised,
    Pool,
    /// As a step of a pool that is planned.
    Planned,
}

/// Without plans, where several threads run steps.
const KINDS: [Kind; 3] = [Kind::Stock, Kind::Raised, Kind::Pool];
const STEP_KINDS: [Kind; 4] = [Kind::Stock, Kind::Raised, Kind::Pool, Kind::Planned];

impl Kind {
    fn is_pooled(self) -> bool {
        matches!(self, Self::Pool | Self::Planned)
    }
}

/// Sets how much of its free memory the driver's default pool keeps at a synchronisation, and
/// gives back what it has.
fn set_release_threshold(context: &CudaContext, bytes: u64) -> Result<()> {
    let device = context.cu_device();
    let mut pool = std::ptr::null_mut();
    let attribute = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut value = bytes;
    context.bind_to_thread()?;
    // SAFETY: `pool` is a place for the result.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) }.result()?;
    // SAFETY: this attribute is a 64-bit number.
    unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) }.result()?;
    result::ctx::synchronize()?;
    // SAFETY: the pool is the device's.
    unsafe { sys::cuMemPoolTrimTo(pool, 0) }.result()?;
    Ok(())
}

/// Makes the process what it is without this crate, or with it: without it cudarc's events do not
/// serve again either.
fn prepare(options: &Options, context: &CudaContext, kind: Kind) -> Result<()> {
    set_event_reuse(kind.is_pooled() || options.share_events);
    set_release_threshold(context, if kind == Kind::Raised { u64::MAX } else { 0 })
}

/// The most that the driver's default pool held since the last call.
fn driver_peak(context: &CudaContext) -> Result<u64> {
    let mut pool = std::ptr::null_mut();
    let attribute = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    let (mut value, mut zero) = (0_u64, 0_u64);
    // SAFETY: `pool` is a place for the result.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()) }.result()?;
    // SAFETY: this attribute is a 64-bit number.
    unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) }.result()?;
    // SAFETY: as above; setting zero resets it.
    unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut zero).cast()) }.result()?;
    Ok(value)
}

/// What one kind took.
#[derive(Default, Clone)]
struct Timed {
    turns: Vec<f64>,
    peak_bytes: u64,
}

impl Timed {
    fn median(&self) -> f64 {
        let mut turns = self.turns.clone();
        turns.sort_by(f64::total_cmp);
        turns[turns.len() / 2]
    }
}

/// Runs `step` by turns of each kind; microseconds a step.
fn compare(
    options: &Options,
    device: &Device,
    name: &str,
    steps: usize,
    mut step: impl FnMut() -> Result<()>,
) -> Result<()> {
    if !name.contains(&options.only) {
        return Ok(());
    }
    let context = device.as_cuda_device()?.cuda_stream().context().clone();
    let pool = MemPool::builder(device).name(name).build()?;
    let planned_pool = MemPool::builder(device).name(name).build()?;
    let mut plan = planned_pool.step();
    let mut timed: [Timed; STEP_KINDS.len()] = Default::default();
    let mut calls = 0;
    for turn in 0..options.turns {
        for at in 0..STEP_KINDS.len() {
            // Another kind begins each turn.
            let at = (at + turn) % STEP_KINDS.len();
            let kind = STEP_KINDS[at];
            prepare(options, &context, kind)?;
            driver_peak(&context)?;
            let mut run = |steps: usize| -> Result<Duration> {
                let start = Instant::now();
                for _ in 0..steps {
                    match kind {
                        Kind::Pool => pool.with(&mut step)?,
                        Kind::Planned => plan.run(&mut step)?,
                        Kind::Stock | Kind::Raised => without_pools(&mut step)?,
                    }
                }
                Ok(start.elapsed())
            };
            run(5)?;
            mark_step();
            let took = run(steps)?;
            mark_step();
            timed[at].turns.push(took.as_secs_f64() * 1e6 / steps as f64);
            if kind.is_pooled() {
                let stats = if kind == Kind::Pool { pool.stats() } else { planned_pool.stats() };
                if kind == Kind::Pool {
                    calls = stats.last_step.map_calls + stats.last_step.unmap_calls;
                }
                timed[at].peak_bytes = stats.reserved.peak as u64;
            } else {
                timed[at].peak_bytes = timed[at].peak_bytes.max(driver_peak(&context)?);
            }
        }
    }
    set_release_threshold(&context, 0)?;
    let [stock, raised, pooled, planned] = &timed;
    let (s, r, p, planned_us) = (stock.median(), raised.median(), pooled.median(), planned.median());
    let runs = plan.stats();
    let share = 100.0 * runs.planned_runs as f64 / runs.runs.max(1) as f64;
    let mib = |timed: &Timed| timed.peak_bytes as f64 / f64::from(1 << 20);
    println!(
        "| {name} | {s:.1} | {r:.1} | {p:.1} | {planned_us:.1} | {:.2}x | {:.2}x | {:.2}x | {share:.0}% | {calls} | {:.0} | {:.0} | {:.0} | {:.0} |",
        s / p,
        r / p,
        p / planned_us,
        mib(stock),
        mib(raised),
        mib(pooled),
        mib(planned)
    );
    Ok(())
}

/// Blocks of two linear layers with a residual.
struct Mlp(Vec<(Linear, Linear)>);

impl Mlp {
    fn new(blocks: usize, width: usize, dtype: DType, device: &Device) -> Result<Self> {
        let variables = VarMap::new();
        let vb = VarBuilder::from_varmap(&variables, dtype, device);
        let block = |k: usize| -> Result<(Linear, Linear)> {
            let vb = vb.pp(k);
            let up = linear(width, 4 * width, vb.pp("up"))?;
            let down = linear(4 * width, width, vb.pp("down"))?;
            // Inference: without a graph behind the weights.
            let fixed =
                |layer: &Linear| Linear::new(layer.weight().detach(), layer.bias().map(Tensor::detach));
            Ok((fixed(&up), fixed(&down)))
        };
        Ok(Self((0..blocks).map(block).collect::<Result<_>>()?))
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = x.clone();
        for (up, down) in &self.0 {
            x = (&x + down.forward(&up.forward(&x)?.gelu()?)?)?;
        }
        Ok(x)
    }
}

fn decoder(layers: usize, hidden: usize, device: &Device) -> Result<(llama::Llama, llama::Config)> {
    let config = llama::Config {
        hidden_size: hidden,
        intermediate_size: hidden * 11 / 4,
        vocab_size: 1000,
        num_hidden_layers: layers,
        num_attention_heads: hidden / 64,
        num_key_value_heads: hidden / 64,
        max_position_embeddings: 1024,
        ..llama::Config::config_7b_v2(false)
    };
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, device);
    Ok((llama::Llama::load(vb, &config)?, config))
}

fn decode(
    model: &llama::Llama,
    config: &llama::Config,
    tokens: &Tensor,
    device: &Device,
) -> Result<impl FnMut() -> Result<()>> {
    let mut cache = llama::Cache::new(false, DType::F32, config, device)?;
    let (model, tokens, device) = (model.clone(), tokens.clone(), device.clone());
    Ok(move || {
        model.forward(&tokens, 0, &mut cache)?;
        Ok(device.synchronize()?)
    })
}

fn all_steps(options: &Options, device: &Device, suffix: &str) -> Result<()> {
    let mlp = Mlp::new(8, 1024, DType::F32, device)?;
    let x = Tensor::randn(0_f32, 1.0, (1, 1024), device)?;
    compare(options, device, &format!("8 MLP blocks b1 d1024{suffix}"), 200, || {
        mlp.forward(&x)?;
        Ok(device.synchronize()?)
    })?;
    let (model, config) = decoder(24, 1024, device)?;
    let one = Tensor::zeros((1, 1), DType::U32, device)?;
    let step = decode(&model, &config, &one, device)?;
    compare(options, device, &format!("24 decoder blocks b1 t1 h1024{suffix}"), 50, step)?;
    drop(model);
    let (model, config) = decoder(4, 2048, device)?;
    let batch = Tensor::zeros((8, 512), DType::U32, device)?;
    let step = decode(&model, &config, &batch, device)?;
    compare(options, device, &format!("4 decoder blocks b8 t512 h2048{suffix}"), 20, step)?;
    training(options, device, suffix)
}

/// The decoder's step as it is, in a pool, planned, and captured once and replayed.
fn captured(options: &Options) -> Result<()> {
    let name = "captured: 24 decoder blocks b1 t1 h1024";
    if !name.contains(&options.only) {
        return Ok(());
    }
    let device = Device::new_cuda_with_stream(options.device)?;
    // SAFETY: each tensor of this device is used on its one stream.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    let (model, config) = decoder(24, 1024, &device)?;
    let tokens = Tensor::zeros((1, 1), DType::U32, &device)?;
    let pool = MemPool::new(&device)?;
    // A cache for each: nothing is kept in it.
    let forward = || model.forward(&tokens, 0, &mut llama::Cache::new(false, DType::F32, &config, &device)?);
    let mut cache = llama::Cache::new(false, DType::F32, &config, &device)?;
    let mut eager = || model.forward(&tokens, 0, &mut cache);
    let mut graph_cache = llama::Cache::new(false, DType::F32, &config, &device)?;
    let mut step = CapturedStep::capture(&pool, &device, || model.forward(&tokens, 0, &mut graph_cache))?;
    let values = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
    let mut same = 0;
    for token in 0..100_u32 {
        step.write(&tokens, &Tensor::new(&[[token * 7]], &device)?)?;
        step.replay()?;
        let expected = values(&without_pools(forward)?)?;
        let replayed = values(step.output())?;
        same += usize::from(expected.iter().zip(&replayed).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
    let mut timed = [const { Vec::new() }; 3];
    let steps = 50;
    for _ in 0..options.turns {
        let mut time = |at: usize, run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            run()?;
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..steps {
                run()?;
                device.synchronize()?;
            }
            timed[at].push(start.elapsed().as_secs_f64() * 1e6 / f64::from(steps));
            Ok(())
        };
        set_event_reuse(false);
        time(0, &mut || without_pools(&mut eager).map(drop).map_err(Into::into))?;
        set_event_reuse(true);
        time(1, &mut || pool.with(&mut eager).map(drop).map_err(Into::into))?;
        time(2, &mut || step.replay().map_err(Into::into))?;
    }
    let [stock, pooled, replayed] = timed.map(|turns| Timed { turns, peak_bytes: 0 }.median());
    println!(
        "\n{name}: stock {stock:.0} us, pool {pooled:.0} us, replay {replayed:.0} us ({:.2}x of stock, {} nodes); \
         {same} of 100 replays the same to the bit",
        stock / replayed,
        step.node_count(),
    );
    Ok(())
}

fn training(options: &Options, device: &Device, suffix: &str) -> Result<()> {
    use candle_nn::{AdamW, Optimizer};
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, device);
    let (up, down) = (linear(1024, 4096, vb.pp("a"))?, linear(4096, 1024, vb.pp("b"))?);
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 1e-4)?;
    let x = Tensor::randn(0_f32, 1.0, (64, 1024), device)?;
    compare(options, device, &format!("AdamW step of an MLP b64 d1024{suffix}"), 50, || {
        let loss = down.forward(&up.forward(&x)?.gelu()?)?.sqr()?.mean_all()?;
        optimizer.backward_step(&loss)?;
        Ok(device.synchronize()?)
    })
}

/// What each of several threads does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    /// A small model's step.
    Model,
    /// A hundred allocations of 4 KiB and their frees.
    Pairs,
}

/// Threads, each with a stream and a job of its own.
fn threads(options: &Options, count: usize, job: Job) -> Result<()> {
    const STEPS: usize = 100;
    let name = match job {
        Job::Model => format!("{count} threads: 2 MLP blocks b1 d1024 each"),
        Job::Pairs => format!("{count} threads: 100 pairs of 4 KiB each"),
    };
    if !name.contains(&options.only) {
        return Ok(());
    }
    let main = Device::new_cuda_with_stream(options.device)?;
    let context = main.as_cuda_device()?.cuda_stream().context().clone();
    let pool = MemPool::builder(&main).name("threads").build()?;
    let mut timed = [Timed::default(), Timed::default(), Timed::default()];
    for turn in 0..options.turns {
        for at in 0..KINDS.len() {
            let at = (at + turn) % KINDS.len();
            let kind = KINDS[at];
            prepare(options, &context, kind)?;
            driver_peak(&context)?;
            let start = std::sync::Barrier::new(count);
            let times: Vec<Result<Duration>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..count)
                    .map(|_| {
                        let (pool, start, device) = (&pool, &start, options.device);
                        scope.spawn(move || -> Result<Duration> {
                            let device = Device::new_cuda_with_stream(device)?;
                            let mlp = Mlp::new(2, 1024, DType::F32, &device)?;
                            let x = Tensor::randn(0_f32, 1.0, (1, 1024), &device)?;
                            let step = || -> Result<()> {
                                if job == Job::Model {
                                    mlp.forward(&x)?;
                                } else {
                                    for _ in 0..100 {
                                        // SAFETY: nobody reads the memory.
                                        drop(unsafe { device.as_cuda_device()?.alloc::<u8>(4096) }?);
                                    }
                                }
                                Ok(device.synchronize()?)
                            };
                            let run = |steps: usize| -> Result<()> {
                                for _ in 0..steps {
                                    match kind {
                                        Kind::Pool | Kind::Planned => pool.with(step)?,
                                        Kind::Stock | Kind::Raised => without_pools(step)?,
                                    }
                                }
                                Ok(())
                            };
                            run(5)?;
                            start.wait();
                            let begin = Instant::now();
                            run(STEPS)?;
                            Ok(begin.elapsed())
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("a thread ends well")).collect()
            });
            let times = times.into_iter().collect::<Result<Vec<_>>>()?;
            let slowest = times.into_iter().max().context("there are threads")?;
            timed[at].turns.push(slowest.as_secs_f64() * 1e6 / STEPS as f64);
            timed[at].peak_bytes = match kind {
                Kind::Pool | Kind::Planned => pool.stats().reserved.peak as u64,
                Kind::Stock | Kind::Raised => timed[at].peak_bytes.max(driver_peak(&context)?),
            };
        }
    }
    let [stock, raised, pooled] = &timed;
    let (s, r, p) = (stock.median(), raised.median(), pooled.median());
    let mib = |timed: &Timed| timed.peak_bytes as f64 / f64::from(1 << 20);
    println!(
        "| {name} | {s:.1} | {r:.1} | {p:.1} | - | {:.2}x | {:.2}x | - | - | - | {:.0} | {:.0} | {:.0} | - |",
        s / p,
        r / p,
        mib(stock),
        mib(raised),
        mib(pooled)
    );
    Ok(())
}

/// Nanoseconds that `pair` takes.
fn pair_ns(turns: usize, count: usize, mut pair: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..turns {
        let start = Instant::now();
        for _ in 0..count {
            pair()?;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
    }
    Ok(best)
}

/// One allocation and its free, as candle and as the hooks see it.
fn pairs(options: &Options, device: &Device, suffix: &str) -> Result<()> {
    let cuda = device.as_cuda_device()?;
    let stream = cuda.cuda_stream();
    let handle = stream.cu_stream();
    let pool = MemPool::new(device)?;
    println!("\n| pair{suffix} | sync | hooks, pool ns | candle, pool ns | candle, stock ns |");
    println!("|---|---|---|---|---|");
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30_usize] {
        for sync in [false, true] {
            let count = if sync { 300 } else { 3000 };
            let synchronize = || -> Result<()> {
                if sync {
                    stream.synchronize()?;
                }
                Ok(())
            };
            // What the synchronisation itself takes is taken off.
            let idle = pair_ns(options.turns, count, || {
                stream.context().bind_to_thread()?;
                synchronize()
            })?;
            let hooks = pool.with(|| {
                pair_ns(options.turns, count, || {
                    // SAFETY: the stream is live, and the memory is freed at once.
                    let pointer = unsafe { result::malloc_async(handle, bytes) }?;
                    // SAFETY: allocated above.
                    unsafe { result::free_async(pointer, handle) }?;
                    synchronize()
                })
            })?;
            let candle = || {
                pair_ns(options.turns, count, || {
                    // SAFETY: nobody reads the memory.
                    drop(unsafe { cuda.alloc::<u8>(bytes) }?);
                    synchronize()
                })
            };
            let pooled = pool.with(candle)?;
            set_event_reuse(options.share_events);
            let stock = without_pools(candle)?;
            set_event_reuse(true);
            println!(
                "| {} KiB | {} | {:.0} | {:.0} | {:.0} |",
                bytes >> 10,
                if sync { "each" } else { "none" },
                hooks - idle,
                pooled - idle,
                stock - idle
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = Device::new_cuda(options.device)?;
    let pools = cuda_device(&device)?;
    println!("device {}: {}", pools.ordinal(), device.as_cuda_device()?.cuda_stream().context().name()?);
    println!(
        "\n| case, us a step | stock | threshold raised | pool | planned | stock/pool | raised/pool | pool/planned | \
         runs as planned | driver memory calls | peak MiB stock | raised | pool | planned |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    all_steps(&options, &device, "")?;
    for count in [1, 2, 4, 8] {
        threads(&options, count, Job::Model)?;
    }
    threads(&options, 8, Job::Pairs)?;
    // SAFETY: from here on each tensor is used on the stream that made it, and by one thread.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    all_steps(&options, &device, ", no event tracking")?;
    captured(&options)?;
    if options.only.is_empty() || options.only.contains("pair") {
        pairs(&options, &device, ", no event tracking")?;
        // SAFETY: what was made without tracking is gone.
        unsafe { device.as_cuda_device()?.cuda_stream().context().enable_event_tracking() };
        pairs(&options, &device, "")?;
    }
    println!("\n{} bytes reserved by all pools at the end", pools.reserved_bytes());
    Ok(())
}
