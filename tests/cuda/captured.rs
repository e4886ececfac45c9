//! Captured steps: replays that are right to the bit, beside other work, and captures that fail.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::{DType, Device, Result, Tensor};
use candle_mempool::{CapturedStep, Error, MemPool, OutputCheck};
use candle_nn::{Linear, Module, ops};

use crate::alone;

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// A device with a stream of its own and without event tracking, which is on again at the end.
struct Untracked {
    device: Device,
}

#[allow(unsafe_code)] // event tracking
impl Untracked {
    fn new() -> Self {
        let device = Device::new_cuda_with_stream(0).unwrap();
        // SAFETY: each test uses one stream.
        unsafe { device.as_cuda_device().unwrap().disable_event_tracking() };
        Self { device }
    }
}

#[allow(unsafe_code)] // event tracking
impl Drop for Untracked {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        let stream = self.device.as_cuda_device().unwrap().cuda_stream();
        // SAFETY: what was made without tracking is not used on another stream.
        unsafe { stream.context().enable_event_tracking() };
    }
}

/// Some layers with attention over a few positions.
struct Block {
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(width: usize, device: &Device) -> Self {
        let linear =
            |rows, columns| Linear::new(Tensor::randn(0_f32, 0.05, (rows, columns), device).unwrap(), None);
        Self {
            qkv: linear(3 * width, width),
            out: linear(width, width),
            up: linear(4 * width, width),
            down: linear(width, 4 * width),
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let qkv = self.qkv.forward(x)?.chunk(3, 1)?;
        let scores = qkv[0].contiguous()?.matmul(&qkv[1].t()?.contiguous()?)?;
        let mixed = ops::softmax_last_dim(&(scores * 0.1)?)?.matmul(&qkv[2].contiguous()?)?;
        let x = (x + self.out.forward(&mixed)?)?;
        &x + self.down.forward(&self.up.forward(&x)?.gelu()?)?
    }
}

#[test]
fn replays_follow_their_input_to_the_bit_beside_eager_work() {
    let _alone = alone();
    let untracked = Untracked::new();
    let device = &untracked.device;
    let blocks: Vec<Block> = (0..6).map(|_| Block::new(256, device)).collect();
    let forward = |x: &Tensor| blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x));
    let x = Tensor::zeros((16, 256), DType::F32, device).unwrap();
    let pool = MemPool::new(device).unwrap();
    let mut step = CapturedStep::capture(&pool, device, || forward(&x)).unwrap();
    assert!(step.node_count() > 6 * 8, "{step:?}");
    let inputs: Vec<Tensor> = (0..4).map(|_| Tensor::randn(0_f32, 1.0, (16, 256), device).unwrap()).collect();
    let expected: Vec<Vec<u32>> =
        inputs.iter().map(|input| bits(&pool.with(|| forward(input)).unwrap())).collect();
    for number in 0..1000 {
        let at = number % inputs.len();
        step.write(&x, &inputs[at]).unwrap();
        step.replay().unwrap();
        // What others allocate, in the pool and outside of it, must not disturb the graph.
        let others: Vec<Tensor> =
            pool.with(|| (1..4).map(|k| Tensor::full(k as f32, (16 * k, 256), device).unwrap()).collect());
        let eager = forward(&inputs[at]).unwrap();
        if number % 50 < 4 {
            assert_eq!(bits(step.output()), expected[at], "replay {number}");
            assert_eq!(bits(&eager), expected[at]);
        }
        drop((others, eager));
        if number % 300 == 299 {
            pool.trim().unwrap();
        }
    }
    assert!(step.verify().unwrap().is_same());
    assert_eq!(step.replay_count(), 1001);
}

#[test]
fn graphs_of_one_pool_end_in_any_order_and_give_their_memory_back() {
    let _alone = alone();
    let untracked = Untracked::new();
    let device = &untracked.device;
    let pool = MemPool::new(device).unwrap();
    let x = Tensor::randn(0_f32, 1.0, (64, 256), device).unwrap();
    let block = Block::new(256, device);
    let expected = bits(&block.forward(&x).unwrap());
    let mut steps: Vec<_> =
        (0..4).map(|_| CapturedStep::capture(&pool, device, || block.forward(&x)).unwrap()).collect();
    for ended in [2, 0, 1, 0] {
        for step in &mut steps {
            step.replay().unwrap();
            assert_eq!(bits(step.output()), expected);
        }
        // What it returned may be held for longer.
        let step = steps.remove(ended);
        let output = step.output().clone();
        drop(step);
        assert_eq!(bits(&output), expected);
    }
    device.synchronize().unwrap();
    for _ in 0..200 {
        pool.trim().unwrap();
        // What candle keeps for later captures on this thread is small.
        if pool.stats().reserved.current <= 4 << 20 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{} bytes are still reserved", pool.stats().reserved.current);
}

#[test]
fn what_the_host_decided_is_found_to_be_frozen() {
    let _alone = alone();
    let untracked = Untracked::new();
    let device = &untracked.device;
    let pool = MemPool::new(device).unwrap();
    let x = Tensor::ones(64, DType::F32, device).unwrap();
    let position = Cell::new(1.0);
    let mut step =
        CapturedStep::capture(&pool, device, || Ok((x.affine(position.get(), 0.0)?, x.affine(2.0, 0.0)?)))
            .unwrap();
    assert!(step.verify().unwrap().is_same());
    position.set(3.0);
    let outputs = step.verify().unwrap().outputs;
    let frozen = OutputCheck::Frozen { differing: 64, elements: 64, largest_difference: 2.0 };
    assert_eq!(outputs, [frozen, OutputCheck::Same]);
    drop(step);
    let count = Cell::new(0.0);
    let mut step = CapturedStep::capture(&pool, device, || {
        count.set(count.get() + 1.0);
        x.affine(count.get(), 0.0)
    })
    .unwrap();
    assert_eq!(step.verify().unwrap().outputs, [OutputCheck::Unsteady]);
}

#[test]
fn a_capture_that_fails_says_why_and_leaves_everything_usable() {
    let _alone = alone();
    let untracked = Untracked::new();
    let device = &untracked.device;
    let pool = MemPool::new(device).unwrap();
    let x = Tensor::randn(0_f32, 1.0, (64, 64), device).unwrap();
    let expected = bits(&x.matmul(&x).unwrap());
    for _ in 0..3 {
        // The result is read by the host.
        let error = CapturedStep::capture(&pool, device, || {
            let y = x.matmul(&x)?;
            let sum = y.sum_all()?.to_scalar::<f32>()?;
            y + f64::from(sum)
        })
        .unwrap_err();
        assert!(
            matches!(&error, Error::Capture { reason } if reason.contains("copies are not permitted")),
            "{error}"
        );
        // The host waits for the device.
        let error = CapturedStep::capture(&pool, device, || {
            let y = x.matmul(&x)?;
            device.synchronize()?;
            Ok(y)
        })
        .unwrap_err();
        assert!(matches!(error, Error::Capture { .. }), "{error}");
        // The step unwinds when it is captured.
        let runs = Cell::new(0);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            CapturedStep::capture(&pool, device, || {
                runs.set(runs.get() + 1);
                let y = x.matmul(&x)?;
                assert!(runs.get() < 3, "on purpose");
                Ok(y)
            })
        }));
        assert!(unwound.is_err());
        // An error before it is captured is the step's own.
        let error = CapturedStep::capture(&pool, device, || x.reshape(5)).unwrap_err();
        assert!(matches!(error, Error::Candle(_)), "{error}");
        assert_eq!(bits(&pool.with(|| x.matmul(&x)).unwrap()), expected);
        let mut step = CapturedStep::capture(&pool, device, || x.matmul(&x)).unwrap();
        step.replay().unwrap();
        assert_eq!(bits(step.output()), expected);
    }
    pool.validate().unwrap();
}

#[test]
fn what_cannot_be_captured_at_all_is_told_before_anything_runs() {
    let _alone = alone();
    let cpu = Device::Cpu;
    let pool = MemPool::new(&cpu).unwrap();
    let never = || -> Result<Tensor> { unreachable!("it is not run") };
    assert_eq!(CapturedStep::capture(&pool, &cpu, never).unwrap_err(), Error::NoGraphs { device: "CPU" });
    let tracked = Device::new_cuda_with_stream(0).unwrap();
    let pool = MemPool::new(&tracked).unwrap();
    assert_eq!(CapturedStep::capture(&pool, &tracked, never).unwrap_err(), Error::EventTracking);
    assert_eq!(CapturedStep::capture(&pool, &cpu, never).unwrap_err(), Error::BufferDevice);
}
