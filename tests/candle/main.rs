//! candle inside pools: unmodified models, bit for bit the same as without.

mod buffer_sets;
mod buffers;
mod devices;
mod diagnosis;
mod growth;
mod models;
mod out;
mod placement;
mod steps;
mod threads;
mod weights;

#[global_allocator]
static ALLOC: candle_mempool::PoolAllocator = candle_mempool::PoolAllocator::new();

/// The device that models run on here.
fn device() -> candle_core::Device {
    candle_core::Device::Cpu
}

/// Nothing here needs to be alone.
fn alone() -> impl Sized {}

/// The number formats that models run in here: those that candle has all operations for.
const DTYPES: &[candle_core::DType] = &[candle_core::DType::F32];

/// Random cases of each property.
const CASES: u32 = 24;

/// Where elementwise operations can write here: anywhere.
const OUTPUT_PLACES: &[out::Place] = out::PLACES;
