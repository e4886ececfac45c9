//! Pools as programs use them.

use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::cuda_backend::cudarc::driver::result::memset_d8_async;
use candle_core::{DType, Device, Result, Tensor};
use candle_mempool::{MemPool, Policy, available_bytes, default_pool, empty_cache, mark_step};

use crate::{alone, device, free_bytes, pools, values};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

fn zeros(bytes: usize, device: &Device) -> Tensor {
    Tensor::zeros(bytes, DType::U8, device).expect("memory")
}

#[test]
fn tensors_of_a_scope_lie_in_its_pool() {
    let _alone = alone();
    let device = device();
    let pool = MemPool::new(&device).unwrap();
    let tensor = pool.with(|| zeros(10 * MIB, &device));
    assert_eq!(pool.stats().requested.current, 10 * MIB);
    drop(tensor);
    assert_eq!(pool.stats().requested.current, 0);
    assert_eq!(pool.stats().hits + pool.stats().misses, 1);
}

#[test]
fn dropping_one_of_two_loaded_models_returns_its_memory_and_disturbs_nothing() {
    let _alone = alone();
    let device = device();
    let load = |pool: &MemPool| -> Vec<Tensor> {
        let one = |k: usize| Tensor::full(half::f16::from_f32(k as f32), (4096, 4096), &device);
        pool.with(|| (0..200).map(one).collect::<Result<_>>().unwrap())
    };
    let (first, second) = (MemPool::new(&device).unwrap(), MemPool::new(&device).unwrap());
    let one = load(&first);
    let other = load(&second);
    let bytes = 200 * 4096 * 4096 * 2;
    assert_eq!(second.stats().requested.current, bytes);
    device.synchronize().unwrap();
    let before = free_bytes();
    drop(one);
    drop(first);
    let returned = free_bytes() - before;
    assert!(returned >= bytes, "{returned} of {bytes} bytes came back");
    assert_eq!(second.stats().requested.current, bytes);
    for (k, tensor) in other.iter().enumerate().step_by(37) {
        let sum = values(&tensor.narrow(0, 4000, 1).unwrap());
        assert!(sum.iter().all(|&value| value == k as f32), "tensor {k} is intact");
    }
    // Its steps run on.
    let calls = second.stats().map_calls;
    for _ in 0..3 {
        drop(second.with(|| other[0].matmul(&other[1])).unwrap());
    }
    assert!(second.stats().map_calls <= calls + 1);
}

/// A step that allocates a big block and keeps a small tensor made between two of them.
fn story_step(device: &Device, kept: &mut Vec<Tensor>, step: usize) -> Result<()> {
    let big = zeros(256 * MIB, device);
    kept.push(zeros(64 << 10, device));
    let bigger = zeros(256 * MIB + step % 7 * 2 * MIB, device);
    drop((big, bigger));
    device.synchronize()
}

#[test]
fn a_pool_with_min_bytes_keeps_its_steps_flat_where_small_survivors_would_split_it() {
    let _alone = alone();
    let device = device();
    let pool = MemPool::builder(&device).min_bytes(MIB).build().unwrap();
    let mut kept = Vec::new();
    pool.with(|| story_step(&device, &mut kept, 6)).unwrap();
    mark_step();
    let reserved = pool.stats().reserved.current;
    for step in 0..1000 {
        pool.with(|| story_step(&device, &mut kept, step)).unwrap();
        empty_cache(&device).unwrap();
        mark_step();
        let last = pool.stats().last_step;
        assert_eq!((last.map_calls, last.unmap_calls), (0, 0), "step {step} asks the driver for no memory");
        assert_eq!(pool.stats().reserved.current, reserved);
    }
    assert_eq!(pool.stats().bypassed_count, 1001, "the small survivors are elsewhere");
}

#[test]
fn a_repeated_training_step_asks_the_driver_for_nothing() {
    use candle_nn::{AdamW, Module, Optimizer, VarBuilder, VarMap, linear};
    let _alone = alone();
    let device = device();
    let pool = MemPool::new(&device).unwrap();
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let first = linear(512, 2048, vb.pp("a")).unwrap();
    let second = linear(2048, 512, vb.pp("b")).unwrap();
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 1e-3).unwrap();
    let x = Tensor::randn(0f32, 1.0, (64, 512), &device).unwrap();
    let mut step = || {
        let loss = second.forward(&first.forward(&x)?.gelu()?)?.sqr()?.mean_all()?;
        optimizer.backward_step(&loss)?;
        loss.to_scalar::<f32>()
    };
    for _ in 0..5 {
        pool.with(&mut step).unwrap();
    }
    mark_step();
    let passed = mempool_pools::cuda::hook_counts();
    for _ in 0..20 {
        pool.with(&mut step).unwrap();
        mark_step();
        let last = pool.stats().last_step;
        assert!(last.hits > 50);
        assert_eq!((last.misses, last.map_calls, last.unmap_calls), (0, 0, 0));
    }
    assert_eq!(mempool_pools::cuda::hook_counts(), passed, "nothing went past the pools");
}

#[test]
fn after_an_out_of_memory_error_everything_is_intact_and_a_smaller_request_works() {
    let _alone = alone();
    let device = device();
    let pool = MemPool::builder(&device).limit(GIB).name("small").build().unwrap();
    let kept = pool.with(|| Tensor::full(7f32, (256 * MIB / 4,), &device)).unwrap().contiguous().unwrap();
    let error = pool.with(|| Tensor::zeros(GIB, DType::U8, &device)).unwrap_err();
    assert!(error.to_string().contains("OUT_OF_MEMORY"), "{error}");
    let report = pools().last_oom().expect("a report");
    assert_eq!((report.pool.as_str(), report.requested_bytes), ("small", GIB));
    assert_eq!(report.limit_bytes, Some(GIB));
    assert!(report.to_string().contains("raise the pool's limit"), "{report}");
    let smaller = pool.with(|| Tensor::ones(400 * MIB, DType::U8, &device)).unwrap();
    assert!(values(&smaller.narrow(0, 0, 1000).unwrap()).iter().all(|&value| value == 1.0));
    assert!(values(&kept.narrow(0, 1000, 1000).unwrap()).iter().all(|&value| value == 7.0));
}

#[test]
fn the_device_itself_can_run_out_and_recovers() {
    let _alone = alone();
    let device = device();
    let total = available_bytes(&device).unwrap();
    let most = zeros(total - 4 * GIB, &device);
    assert!(Tensor::zeros(8 * GIB, DType::U8, &device).is_err());
    let report = pools().last_oom().expect("a report");
    assert_eq!(report.requested_bytes, 8 * GIB);
    drop(most);
    drop(zeros(total - 4 * GIB, &device));
    assert!(empty_cache(&device).unwrap() > total / 2);
    assert!(default_pool(&device).unwrap().stats().reserved.current < GIB);
}

#[test]
fn a_pool_with_no_split_gives_each_tensors_memory_back_whole() {
    let _alone = alone();
    let device = device();
    for policy in [Policy::Pages, Policy::Segments] {
        let pool = MemPool::builder(&device).policy(policy).no_split(true).build().unwrap();
        let tensors: Vec<Tensor> = pool.with(|| (1..=3).map(|k| zeros(k * 10 * MIB, &device)).collect());
        assert_eq!(pool.stats().reserved.current, 60 * MIB);
        drop(tensors);
        device.synchronize().unwrap();
        let before = free_bytes();
        assert_eq!(pool.trim().unwrap(), 60 * MIB);
        assert_eq!(free_bytes() - before, 60 * MIB, "{policy:?}");
    }
}

#[test]
fn a_write_outside_a_tensor_is_found_when_it_is_dropped() {
    let _alone = alone();
    let device = device();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    let pool = MemPool::builder(&device).guard(true).build().unwrap();
    let before = pools().guard_reports().len();
    let within = pool.with(|| Tensor::ones(1000, DType::U8, &device).unwrap());
    assert_eq!(values(&within), [1.0; 1000]);
    drop(within);
    assert_eq!(pools().guard_reports().len(), before, "nobody wrote outside");
    let slice = pool.with(|| stream.alloc_zeros::<u8>(1000).unwrap());
    let (start, _use) = slice.device_ptr(&stream);
    drop(_use);
    overrun(start + 1000);
    drop(slice);
    let reports = pools().guard_reports();
    assert_eq!(reports.len(), before + 1);
    assert!(reports[before].to_string().contains("1000"), "{}", reports[before]);
}

/// Writes 16 bytes where no block lies.
#[allow(unsafe_code)] // listed in ARCHITECTURE.md
fn overrun(addr: u64) {
    let device = device();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    // SAFETY: the margin of the only block near this address, which nothing uses.
    let written = unsafe { memset_d8_async(addr, 7, 16, stream.cu_stream()) };
    written.unwrap();
}
