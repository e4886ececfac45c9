//! The device shared with another process, with another device, and with a graph.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md: event tracking

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::{DType, Device, Tensor};
use candle_mempool::{MemPool, available_bytes, cuda_device, without_pools};

use crate::{alone, device, free_bytes, pools, values};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const OTHER: &str = "MEMPOOL_TEST_OTHER_PROCESS_BYTES";

/// What the other process is: it takes memory from the driver, says so, and holds it.
#[test]
fn the_other_process() {
    let Ok(bytes) = std::env::var(OTHER) else { return };
    let device = device();
    let held = without_pools(|| Tensor::zeros(bytes.parse::<usize>().unwrap(), DType::U8, &device)).unwrap();
    device.synchronize().unwrap();
    println!("\nholding");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    drop(held);
}

#[test]
fn headroom_is_left_to_another_process_that_takes_memory_meanwhile() {
    let _alone = alone();
    let device = device();
    let pools = pools();
    pools.set_headroom(0.25).unwrap();
    let total = device.as_cuda_device().unwrap().cuda_stream().context().total_mem().unwrap();
    let before = available_bytes(&device).unwrap();
    assert!(before <= free_bytes() - total / 4, "{before} bytes are available beside the headroom");
    // Another process takes a third of the device.
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["sharing::the_other_process", "--exact", "--nocapture"])
        .env(OTHER, (total / 3).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("holding")), "the other process holds its memory");
    let free = free_bytes();
    assert!(free < total - total / 3);
    let pool = MemPool::new(&device).unwrap();
    let mut kept = Vec::new();
    while let Ok(tensor) = pool.with(|| Tensor::zeros(4 * GIB, DType::U8, &device)) {
        kept.push(tensor);
    }
    let left = free_bytes();
    assert!(left >= total / 4, "{left} bytes are left, and the headroom is {}", total / 4);
    assert!(left < total / 4 + 5 * GIB, "{left} bytes are left: more could have been had");
    assert!(pools.last_oom().unwrap().to_string().contains("are left to others"));
    other.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(other.wait().unwrap().success());
    // What the other process gave back can be had.
    kept.push(pool.with(|| Tensor::zeros(4 * GIB, DType::U8, &device)).unwrap());
    pools.set_headroom(0.0).unwrap();
}

#[test]
fn two_devices_have_pools_apart_and_copies_between_them_are_right() {
    let _alone = alone();
    let Ok(second) = Device::new_cuda(1) else {
        println!("one device only: nothing to compare");
        return;
    };
    let first = device();
    let (near, far) = (MemPool::new(&first).unwrap(), MemPool::new(&second).unwrap());
    assert_ne!(cuda_device(&first).unwrap(), cuda_device(&second).unwrap());
    near.with(|| {
        far.with(|| {
            let here = Tensor::full(3_f32, (1024, 1024), &first).unwrap();
            let there = Tensor::full(5_f32, (2048, 1024), &second).unwrap();
            assert_eq!(near.stats().requested.current, 4 * MIB);
            assert_eq!(far.stats().requested.current, 8 * MIB);
            let moved = here.to_device(&second).unwrap();
            assert_eq!(far.stats().requested.current, 12 * MIB);
            let sum = (there.narrow(0, 0, 1024).unwrap() + moved).unwrap();
            assert!(values(&sum).iter().all(|&value| value == 8.0));
            let back = sum.to_device(&first).unwrap();
            assert!(values(&back.affine(2.0, 0.0).unwrap()).iter().all(|&value| value == 16.0));
            peer_copy(&first, &second);
        });
    });
    assert_eq!((near.stats().requested.current, far.stats().requested.current), (0, 0));
    let before = free_bytes();
    drop(near);
    assert!(free_bytes() >= before + 4 * MIB);
}

/// A copy by the driver, from one device's pool to the other's.
fn peer_copy(first: &Device, second: &Device) {
    let (one, other) = (first.as_cuda_device().unwrap(), second.as_cuda_device().unwrap());
    let source = one.cuda_stream().clone_htod(&vec![7_u32; 1 << 20]).unwrap();
    one.cuda_stream().synchronize().unwrap();
    let mut target = other.alloc_zeros::<u32>(1 << 20).unwrap();
    other.cuda_stream().memcpy_dtod(&source, &mut target).unwrap();
    other.cuda_stream().synchronize().unwrap();
    let copied = other.cuda_stream().clone_dtoh(&target).unwrap();
    assert!(copied.iter().all(|&value| value == 7));
}

#[test]
fn a_captured_step_keeps_its_memory_and_repeats_to_the_bit() {
    let _alone = alone();
    let device = Device::new_cuda_with_stream(0).unwrap();
    let cuda = device.as_cuda_device().unwrap().clone();
    // SAFETY: everything here is used on one stream.
    unsafe { cuda.disable_event_tracking() };
    let stream = cuda.cuda_stream();
    let pool = MemPool::new(&device).unwrap();
    let weight = Tensor::randn(0_f32, 0.05, (512, 512), &device).unwrap();
    let x = Tensor::randn(0_f32, 1.0, (64, 512), &device).unwrap();
    let step = || {
        let hidden = x.affine(1.0, 0.25)?.relu()?;
        (hidden.sqr()? + weight.narrow(0, 0, 64)?)?.exp()
    };
    let _cache = cuda.enable_cuda_graph_htod_cache();
    let expected = values(&pool.with(step).unwrap());
    stream.synchronize().unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).unwrap();
    let output = pool.with(step).unwrap();
    let graph = stream
        .end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        .unwrap()
        .expect("a graph");
    let reserved = pool.stats().reserved.current;
    for _ in 0..20 {
        graph.launch().unwrap();
        // What others allocate meanwhile does not touch the graph's memory.
        let others: Vec<Tensor> =
            (1..8).map(|k| pool.with(|| Tensor::full(k as f32, (64 * k, 512), &device)).unwrap()).collect();
        assert_eq!(values(&output), expected);
        drop(others);
    }
    pool.trim().unwrap();
    assert!(pool.stats().reserved.current > 0 && reserved > 0, "the graph's memory stays");
    graph.launch().unwrap();
    assert_eq!(values(&output), expected);
    drop((graph, output));
    stream.synchronize().unwrap();
    // The driver tells of a graph's end when it comes to it.
    for _ in 0..200 {
        pool.trim().unwrap();
        if pool.stats().reserved.current == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(pool.stats().reserved.current, 0, "without its graph it goes");
    // SAFETY: no slice without tracking is left that another stream uses.
    unsafe { stream.context().enable_event_tracking() };
}

#[test]
fn a_tensor_declared_for_another_stream_waits_for_it() {
    let _alone = alone();
    let device = device();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    let side = stream.context().new_stream().unwrap();
    let pool = MemPool::new(&device).unwrap();
    let tensor = pool.with(|| Tensor::ones(8 * MIB, DType::U8, &device)).unwrap();
    candle_mempool::record_stream(&tensor, &side).unwrap();
    drop(tensor);
    let stats = pool.stats();
    assert_eq!(stats.requested.current, 0);
    let outside = without_pools(|| Tensor::ones(MIB, DType::U8, &device)).unwrap();
    let error = candle_mempool::record_stream(&outside, &side).unwrap_err();
    assert_eq!(error, candle_mempool::Error::NotPooled);
    side.synchronize().unwrap();
    pool.trim().unwrap();
    assert_eq!(pool.stats().active.current, 0);
}
