//! Pools for CUDA devices, behind the driver's own allocation functions.
//!
//! This crate defines `cuMemAllocAsync`, `cuMemFreeAsync`, `cuMemAlloc_v2` and `cuMemFree_v2`.
//! It also watches streams, events and captures begin and end (`cuStreamCreate`, `cuEventCreate`,
//! `cuStreamBeginCapture` and their like), and lets cudarc's events serve again.
//! The program's definitions come before those of `libcuda.so`, so everything that cudarc
//! allocates, and candle through it, arrives here, and is served by the pool of the thread's
//! scope or by the device's default pool. What libraries such as cuBLAS take for themselves does
//! not, and passes by.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use mempool_pools::cuda;
//!
//! let context = CudaContext::new(0)?;
//! let device = cuda::device(&context)?;
//! let pool = device.pool_builder().name("activations").build()?;
//! let stream = context.new_stream()?;
//! let zeros = pool.with(|| stream.alloc_zeros::<f32>(1 << 20))?; // lies in the pool
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api;
mod driver;
mod events;
mod hooks;

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};

use crate::buffer::Buffer;
use crate::buffer_set::BufferSet;
use crate::device::{Context, Platform, PoolDevice, Stream};
use crate::error::PoolError;
use crate::pool::MemPool;
use crate::registry;
use crate::thread_state::inside;
use driver::CudaDriver;

/// The platform of the process, if its driver can do what pools need.
pub(crate) fn platform() -> Option<Platform> {
    static PLATFORM: OnceLock<Option<Platform>> = OnceLock::new();
    *PLATFORM.get_or_init(|| CudaDriver::load().map(Platform::new))
}

/// The device of a context, with its pools. The context must be the device's primary one, as
/// those from [`CudaContext::new`] are: two of the same number are one device.
///
/// # Errors
/// [`PoolError::HooksNotLinked`] when cudarc's allocations do not arrive at pools,
/// [`PoolError::DriverTooOld`], [`PoolError::NotPrimary`], [`PoolError::Driver`],
/// [`PoolError::Environment`] when `MEMPOOL_CONF` is malformed.
pub fn device(context: &Arc<CudaContext>) -> Result<PoolDevice, PoolError> {
    let device = serving_device(context)?;
    inside(registry::environment)?;
    Ok(device)
}

/// As [`device`], whatever the environment says.
fn serving_device(context: &Arc<CudaContext>) -> Result<PoolDevice, PoolError> {
    hooks::require_linked()?;
    let platform = platform().ok_or(PoolError::DriverTooOld)?;
    let ordinal = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
    let device = platform.serving_device(ordinal)?;
    if device.state.context != Context(context.cu_ctx().expose_provenance()) {
        return Err(PoolError::NotPrimary { ordinal });
    }
    Ok(device)
}

/// Declares that work queued in `stream` uses a slice that another stream allocated: once the
/// slice is dropped, that work is waited for too before its memory serves anything else. `false`
/// when the slice lies in no pool.
///
/// cudarc orders streams by itself while its event tracking is on; this is for programs that
/// turned it off, and for work that cudarc cannot see.
#[must_use = "false says that the slice is not a pool's"]
pub fn record_stream<T>(slice: &CudaSlice<T>, stream: &Arc<CudaStream>) -> bool {
    // Also while pools have default options because the variable is malformed.
    let Ok(device) = serving_device(slice.stream().context()) else { return false };
    // On its own stream a slice's address can be had without an order to anything.
    let (addr, _use) = slice.device_ptr(slice.stream());
    let handle = Stream(stream.cu_stream().expose_provenance());
    device.record_stream(addr as usize, handle, Arc::clone(stream))
}

/// Where a slice lies on its device.
#[must_use]
pub fn address_of<T>(slice: &CudaSlice<T>) -> usize {
    // On its own stream a slice's address can be had without an order to anything.
    let (addr, _use) = slice.device_ptr(slice.stream());
    addr as usize
}

/// A buffer of `bytes` in a pool of the stream's device, to be written by work of `stream`. The per-thread default
/// stream is the calling thread's.
///
/// # Errors
/// As [`MemPool::buffer_on`].
pub fn buffer(pool: &MemPool, bytes: usize, stream: &Arc<CudaStream>) -> Result<Buffer, PoolError> {
    pool.buffer_on(bytes, Stream(stream.cu_stream().expose_provenance()))
}

/// Buffers that may move, of a pool of the stream's device, to be written by work of `stream`. The per-thread default
/// stream is the calling thread's.
#[must_use]
pub fn buffer_set(pool: &MemPool, stream: &Arc<CudaStream>) -> BufferSet {
    BufferSet::new_on(pool, Stream(stream.cu_stream().expose_provenance())).keeping(Arc::clone(stream))
}

pub use events::set_event_reuse;

/// What passed by the pools.
#[doc(hidden)]
pub use hooks::{HookCounts, hook_counts};
