//! Threads and streams: who may use a freed block, and when.

use std::sync::mpsc;
use std::thread;

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::{DType, Device, Tensor};
use candle_mempool::{MemPool, default_pool};

use crate::{alone, device, free_bytes, values};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

#[test]
fn a_block_that_one_threads_work_still_uses_serves_no_other_thread() {
    let _alone = alone();
    let device = device();
    let pool = MemPool::new(&device).unwrap();
    for round in 0..20 {
        let (dropped, wait) = mpsc::channel();
        thread::scope(|scope| {
            let (first, second) = (&device, &device);
            let pool = &pool;
            let one = scope.spawn(move || {
                pool.with(|| {
                    let a = (Tensor::ones((4096, 4096), DType::F32, first).unwrap() / 4096.0).unwrap();
                    let mut y = a.clone();
                    for _ in 0..200 {
                        y = y.matmul(&a).unwrap();
                    }
                    let result = y.narrow(0, 0, 1).unwrap().copy().unwrap();
                    drop((a, y));
                    dropped.send(()).unwrap();
                    values(&result)
                })
            });
            let other = scope.spawn(move || {
                wait.recv().unwrap();
                pool.with(|| {
                    let filled = Tensor::full(round as f32, (4096, 4096), second).unwrap();
                    let filled = filled.contiguous().unwrap();
                    values(&filled)
                })
            });
            let expected = 1.0 / 4096.0;
            assert!(one.join().unwrap().iter().all(|&value| (value - expected).abs() < 1e-7));
            assert!(other.join().unwrap().iter().all(|&value| value == round as f32));
        });
    }
}

#[test]
fn a_tensor_dropped_by_a_fresh_thread_comes_back() {
    let _alone = alone();
    let device = device();
    let pool = MemPool::new(&device).unwrap();
    for _ in 0..10 {
        let tensor = pool.with(|| Tensor::zeros(GIB, DType::U8, &device)).unwrap();
        thread::spawn(move || drop(tensor)).join().unwrap();
        // The next operation finds no stale error.
        device.synchronize().unwrap();
    }
    assert_eq!(pool.stats().requested.current, 0);
    assert!(pool.stats().reserved.peak <= 2 * GIB, "{:?}", pool.stats().reserved);
    let before = free_bytes();
    drop(pool);
    assert!(free_bytes() >= before + GIB);
}

#[test]
fn tensors_outlive_the_threads_that_made_them_and_memory_does_not_grow_with_threads() {
    let _alone = alone();
    let device = device();
    let pool = MemPool::new(&device).unwrap();
    let mut reserved = 0;
    for round in 0..200 {
        let tensor = thread::scope(|scope| {
            let (device, pool) = (&device, &pool);
            scope
                .spawn(move || {
                    pool.with(|| {
                        let tensor = Tensor::full(round as f32, (1 << 20,), device).unwrap();
                        tensor.contiguous().unwrap()
                    })
                })
                .join()
                .unwrap()
        });
        assert!(values(&tensor).iter().all(|&value| value == round as f32));
        drop(tensor);
        if round == 20 {
            reserved = pool.stats().reserved.current;
        }
    }
    assert_eq!(pool.stats().requested.current, 0);
    assert!(pool.stats().reserved.current <= reserved, "{} after {reserved}", pool.stats().reserved.current);
}

#[test]
fn memory_of_a_device_whose_stream_is_gone_is_used_again() {
    let _alone = alone();
    let pool = MemPool::new(&device()).unwrap();
    let mut reserved = 0;
    for round in 0..50 {
        let device = Device::new_cuda_with_stream(0).unwrap();
        let tensor =
            pool.with(|| Tensor::full(round as f32, (1 << 22,), &device)).unwrap().contiguous().unwrap();
        let sum = pool.with(|| tensor.sum_all()).unwrap();
        drop(device);
        assert_eq!(values(&sum)[0], (round * (1 << 22)) as f32);
        drop((tensor, sum));
        if round == 3 {
            reserved = pool.stats().reserved.current;
        }
    }
    assert!(pool.stats().reserved.current <= reserved, "{} after {reserved}", pool.stats().reserved.current);
}

#[test]
fn one_device_made_twice_is_one_device_here() {
    let _alone = alone();
    let (one, other) = (device(), Device::new_cuda(0).unwrap());
    let pool = MemPool::new(&one).unwrap();
    let tensor = pool.with(|| Tensor::zeros(MIB, DType::U8, &other)).unwrap();
    assert_eq!(pool.stats().requested.current, MIB);
    drop(tensor);
}

#[test]
fn a_drop_without_a_context_leaves_no_error_behind() {
    let _alone = alone();
    let device = device();
    let tensors: Vec<Tensor> =
        (0..50).map(|k| Tensor::zeros(k * 1000 + 1, DType::F32, &device).unwrap()).collect();
    thread::scope(|scope| {
        for tensor in tensors {
            scope.spawn(move || drop(tensor));
        }
    });
    let context = device.as_cuda_device().unwrap().cuda_stream().context().clone();
    assert!(context.check_err().is_ok());
    assert_eq!(default_pool(&device).unwrap().stats().requested.current, 0);
}

#[test]
fn cudarc_without_candle_is_served_too() {
    let _alone = alone();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let pool = MemPool::new(&device()).unwrap();
    pool.with(|| {
        let slice = stream.clone_htod(&vec![3_u32; 1 << 20]).unwrap();
        let copy = stream.clone_dtod(&slice).unwrap();
        drop(slice);
        let other = stream.alloc_zeros::<u32>(1 << 20).unwrap();
        assert!(stream.clone_dtoh(&copy).unwrap().iter().all(|&value| value == 3));
        assert!(stream.clone_dtoh(&other).unwrap().iter().all(|&value| value == 0));
    });
    assert_eq!(pool.stats().requested.total_allocated, 3 * 4 * MIB as u64);
    drop(stream);
    assert_eq!(pool.stats().requested.current, 0);
}
