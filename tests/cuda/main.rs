//! candle on a CUDA device inside pools. Needs a GPU: `cargo test --release --features cuda --test cuda`.
//!
//! The tests share one device and look at its free memory, so they run one after the other:
//! each takes [`alone`].

#[path = "../candle/buffer_sets.rs"]
mod buffer_sets;
#[path = "../candle/buffers.rs"]
mod buffers;
mod captured;
#[path = "../candle/diagnosis.rs"]
mod diagnosis;
#[path = "../candle/growth.rs"]
mod growth;
#[path = "../candle/models.rs"]
mod models;
#[path = "../candle/out.rs"]
mod out;
mod pools;
mod sharing;
#[path = "../candle/steps.rs"]
mod steps;
mod streams;
#[path = "../candle/weights.rs"]
mod weights;

use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Tensor};
use candle_mempool::{PoolDevice, cuda_device};

#[global_allocator]
static ALLOC: candle_mempool::PoolAllocator = candle_mempool::PoolAllocator::new();

/// The number formats that models run in here.
const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// The device that models run on here.
fn device() -> Device {
    thread_local! {
        static DEVICE: Device = Device::new_cuda(0).expect("a CUDA device");
    }
    DEVICE.with(Clone::clone)
}

fn pools() -> PoolDevice {
    cuda_device(&device()).expect("a device with pools")
}

/// One test at a time, from an empty default cache.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = pools().empty_cache();
    guard
}

/// Free bytes of the device.
fn free_bytes() -> usize {
    let device = device();
    let cuda = device.as_cuda_device().expect("a CUDA device");
    cuda.cuda_stream().context().mem_get_info().expect("the driver answers").0
}

/// The tensor's values, whatever its shape.
fn values(tensor: &Tensor) -> Vec<f32> {
    let flat = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all());
    flat.and_then(|tensor| tensor.to_vec1()).expect("values")
}

/// Random cases of each property.
const CASES: u32 = 48;

/// Where elementwise operations can write here: candle's kernels write one number after the other.
const OUTPUT_PLACES: &[out::Place] = &[out::Place::Plain, out::Place::Offset];
