//! Where tensors lie, how long they live, and that a repeated step takes nothing from the system.

use candle_core::{DType, Device, Result, Tensor};
use candle_mempool::{
    DEFAULT_THRESHOLD_BYTES, MemPool, available_bytes, default_pool, empty_cache, mark_step, with_pool,
};
use candle_nn::Module;

use crate::weights::{builder, tensor};

const ELEMENTS: usize = 1 << 18;
const BYTES: usize = 4 * ELEMENTS;

fn zeros() -> Result<Tensor> {
    Tensor::zeros(ELEMENTS, DType::F32, &Device::Cpu)
}

#[test]
fn every_tensor_made_inside_lies_in_the_pool() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    let (kept, small) = with_pool(&pool, || -> Result<_> {
        let a = zeros()?;
        let b = (&a + 1.0)?;
        // Far below the threshold: counted instead.
        let small = Tensor::zeros(8, DType::F32, &Device::Cpu)?;
        Ok((vec![b.relu()?, b.reshape((512, 512))?.t()?.contiguous()?], small))
    })
    .unwrap();
    let stats = pool.stats();
    assert_eq!(stats.requested.current, 2 * BYTES);
    assert_eq!(stats.blocks.total_allocated, 4);
    assert!(stats.bypassed_bytes >= 32 && stats.bypassed_bytes < DEFAULT_THRESHOLD_BYTES as u64);
    drop((kept, small));
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn tensors_outlive_scope_thread_and_pool() {
    let tensor = std::thread::spawn(|| {
        let pool = MemPool::new(&Device::Cpu).unwrap();
        pool.with(|| tensor(3, (64, 4096), 1.0).unwrap())
    })
    .join()
    .unwrap();
    for _ in 0..10 {
        let other = MemPool::new(&Device::Cpu).unwrap();
        drop(other.with(|| Tensor::ones((64, 4096), DType::F32, &Device::Cpu).unwrap()));
    }
    let expected = crate::weights::tensor(3, (64, 4096), 1.0).unwrap();
    let difference = (tensor - expected).unwrap().abs().unwrap().sum_all().unwrap();
    assert_eq!(difference.to_scalar::<f32>().unwrap(), 0.0);
}

#[test]
fn a_repeated_step_of_fixed_shape_takes_and_returns_no_memory() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    let layer = candle_nn::linear(512, 512, builder(candle_core::DType::F32).pp("layer")).unwrap();
    let x = tensor(4, (256, 512), 1.0).unwrap();
    let step = || {
        pool.with(|| {
            let mut hidden = x.clone();
            for _ in 0..4 {
                hidden = layer.forward(&hidden).unwrap().gelu().unwrap();
            }
        });
    };
    step();
    step();
    let before = pool.stats();
    for _ in 0..50 {
        step();
    }
    let after = pool.stats();
    assert_eq!((after.map_calls, after.unmap_calls), (before.map_calls, before.unmap_calls));
    assert_eq!(after.misses, before.misses);
    assert!(after.hits >= before.hits + 50 * 8);
    assert_eq!(after.reserved.peak, before.reserved.peak);
}

#[test]
fn a_small_survivor_does_not_enter_a_pool_with_a_minimum() {
    let pool = MemPool::builder(&Device::Cpu).min_bytes(BYTES).build().unwrap();
    let survivors: Vec<Tensor> = (0..20)
        .map(|_| {
            pool.with(|| {
                let big = zeros().unwrap();
                (big.narrow(0, 0, ELEMENTS / 8).unwrap() + 1.0).unwrap()
            })
        })
        .collect();
    let stats = pool.stats();
    assert_eq!(stats.requested.current, 0);
    assert_eq!(stats.blocks.peak, 1, "the same block each time");
    drop(survivors);
}

#[test]
fn empty_cache_gives_back_the_default_pools_memory_only() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    drop(pool.with(|| Tensor::zeros(16 * ELEMENTS, DType::F32, &Device::Cpu).unwrap()));
    let reserved = pool.stats().reserved.current;
    drop(Tensor::zeros(16 * ELEMENTS, DType::F32, &Device::Cpu).unwrap());
    assert!(empty_cache(&Device::Cpu).unwrap() > 0);
    assert_eq!(pool.stats().reserved.current, reserved);
    assert!(pool.trim().unwrap() >= 15 * BYTES);
    assert_eq!(default_pool(&Device::Cpu).unwrap().stats().name, "default");
    assert!(available_bytes(&Device::Cpu).unwrap() > 0);
}

#[test]
fn an_error_inside_leaves_the_scope_and_comes_out_as_candles() {
    fn wrong(pool: &MemPool) -> Result<Tensor> {
        let a = zeros()?;
        pool.with(|| a.reshape((512, 512))?.matmul(&zeros()?.reshape((256, 1024))?))
    }
    let pool = MemPool::builder(&Device::Cpu).name("forward").build().unwrap();
    assert!(wrong(&pool).is_err());
    assert_eq!(pool.stats().requested.current, 0);
    let outside = zeros().unwrap();
    assert_eq!(pool.stats().requested.current, 0);
    drop(outside);
}

#[test]
fn every_tensor_of_a_training_step_is_gone_after_it() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    let weight = candle_core::Var::from_tensor(&tensor(5, (512, 512), 0.1).unwrap()).unwrap();
    let x = tensor(6, (128, 512), 1.0).unwrap();
    for _ in 0..3 {
        let loss = pool.with(|| -> Result<f32> {
            let loss = x.matmul(&weight)?.sqr()?.mean_all()?;
            let gradients = loss.backward()?;
            assert!(gradients.get(&weight).is_some());
            loss.to_scalar()
        });
        assert!(loss.unwrap().is_finite());
        mark_step();
        assert_eq!(pool.stats().requested.current, 0);
    }
    pool.validate().unwrap();
}
