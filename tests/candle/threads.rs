//! candle on several threads, its own thread pool included.

use candle_core::{DType, Device, Tensor};
use candle_mempool::{MemPool, propagate};
use rayon::prelude::*;

use crate::weights::tensor;

const BYTES: usize = 4 << 18;

fn zeros() -> Tensor {
    Tensor::zeros(1 << 18, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn a_scope_inside_candles_thread_pool_works() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    let kept = Device::Cpu.with_context(|| pool.with(zeros));
    assert_eq!(pool.stats().requested.current, BYTES);
    drop(kept);
}

#[test]
fn a_scope_around_candles_thread_pool_works_when_it_is_handed_over() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    let (escaped, kept) = pool.with(|| {
        let scopes = propagate();
        (Device::Cpu.with_context(zeros), Device::Cpu.with_context(|| scopes.with(zeros)))
    });
    // candle's pool runs the closure on another thread, which is in no scope of its own.
    assert_eq!(pool.stats().requested.current, BYTES);
    drop((escaped, kept));
}

#[test]
fn models_on_many_threads_share_a_pool() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    let weight = tensor(1, (256, 256), 0.1).unwrap();
    let expected: f32 = {
        let y = tensor(2, (64, 256), 1.0).unwrap().matmul(&weight).unwrap();
        y.relu().unwrap().sum_all().unwrap().to_scalar().unwrap()
    };
    (0..32).into_par_iter().for_each(|_| {
        let sum: f32 = pool.with(|| {
            let y = tensor(2, (64, 256), 1.0).unwrap().matmul(&weight).unwrap();
            y.relu().unwrap().sum_all().unwrap().to_scalar().unwrap()
        });
        assert_eq!(sum.to_bits(), expected.to_bits());
    });
    assert_eq!(pool.stats().requested.current, 0);
    pool.validate().unwrap();
}

#[test]
fn a_tensor_may_be_dropped_on_another_thread() {
    let pool = MemPool::new(&Device::Cpu).unwrap();
    let tensors: Vec<Tensor> = (0..8).map(|_| pool.with(zeros)).collect();
    assert_eq!(pool.stats().requested.current, 8 * BYTES);
    std::thread::spawn(move || drop(tensors)).join().unwrap();
    assert_eq!(pool.stats().requested.current, 0);
}
