//! What only CUDA devices have.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
use candle_core::{Device, Storage, Tensor};
use mempool_pools::device::PoolDevice;

use crate::device::Backing;
use crate::error::{Error, Result};

/// The pools of a candle CUDA device, for what only such devices have: memory fraction, headroom,
/// the report of the last out-of-memory error.
///
/// # Errors
/// [`Error::Unsupported`] for other devices; [`Error::Pool`] when candle's allocations do not
/// arrive at pools.
pub fn cuda_device(device: &Device) -> Result<PoolDevice> {
    match Backing::of(device)? {
        Backing::Cuda(device) => Ok(device),
        Backing::Host => Err(Error::Unsupported { device: "CPU" }),
    }
}

/// Declares that work queued in `stream` uses the tensor: once its memory is freed, that work is
/// waited for too before the memory serves anything else.
///
/// cudarc orders streams by itself while its event tracking is on; this is for programs that
/// turned it off, and for work that cudarc cannot see.
///
/// # Errors
/// [`Error::Unsupported`] for a tensor on another kind of device, [`Error::NotPooled`] for one
/// whose memory is not a pool's.
pub fn record_stream(tensor: &Tensor, stream: &Arc<CudaStream>) -> Result<()> {
    use mempool_pools::cuda::record_stream as record;
    let (storage, _) = tensor.storage_and_layout();
    let storage = match &*storage {
        Storage::Cuda(storage) => storage,
        Storage::Cpu(_) => return Err(Error::Unsupported { device: "CPU" }),
        Storage::Metal(_) => return Err(Error::Unsupported { device: "Metal" }),
    };
    let recorded = match &storage.slice {
        CudaStorageSlice::U8(slice)
        | CudaStorageSlice::F6E2M3(slice)
        | CudaStorageSlice::F6E3M2(slice)
        | CudaStorageSlice::F4(slice)
        | CudaStorageSlice::F8E8M0(slice) => record(slice, stream),
        CudaStorageSlice::U32(slice) => record(slice, stream),
        CudaStorageSlice::I16(slice) => record(slice, stream),
        CudaStorageSlice::I32(slice) => record(slice, stream),
        CudaStorageSlice::I64(slice) => record(slice, stream),
        CudaStorageSlice::BF16(slice) => record(slice, stream),
        CudaStorageSlice::F16(slice) => record(slice, stream),
        CudaStorageSlice::F32(slice) => record(slice, stream),
        CudaStorageSlice::F64(slice) => record(slice, stream),
        CudaStorageSlice::F8E4M3(slice) => record(slice, stream),
    };
    if recorded { Ok(()) } else { Err(Error::NotPooled) }
}

/// Address and number of elements.
pub(crate) fn address_of(storage: &CudaStorage) -> (usize, usize) {
    use mempool_pools::cuda::address_of as of;
    match &storage.slice {
        CudaStorageSlice::U8(slice)
        | CudaStorageSlice::F6E2M3(slice)
        | CudaStorageSlice::F6E3M2(slice)
        | CudaStorageSlice::F4(slice)
        | CudaStorageSlice::F8E8M0(slice) => (of(slice), slice.len()),
        CudaStorageSlice::U32(slice) => (of(slice), slice.len()),
        CudaStorageSlice::I16(slice) => (of(slice), slice.len()),
        CudaStorageSlice::I32(slice) => (of(slice), slice.len()),
        CudaStorageSlice::I64(slice) => (of(slice), slice.len()),
        CudaStorageSlice::BF16(slice) => (of(slice), slice.len()),
        CudaStorageSlice::F16(slice) => (of(slice), slice.len()),
        CudaStorageSlice::F32(slice) => (of(slice), slice.len()),
        CudaStorageSlice::F64(slice) => (of(slice), slice.len()),
        CudaStorageSlice::F8E4M3(slice) => (of(slice), slice.len()),
    }
}
