//! Which pools a candle device has.

use std::path::Path;

use candle_core::Device;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use mempool_pools::device::PoolDevice;
use mempool_pools::{MemPoolBuilder, TraceRecording};

use crate::error::{Error, Result};
use crate::pool::MemPool;

/// The line that the error about a missing allocator shows.
pub(crate) const CRATE_PATH: &str = "candle_mempool";

/// A device's pools.
#[derive(Debug, Clone)]
pub(crate) enum Backing {
    Host,
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(PoolDevice),
}

impl Backing {
    /// The pools of `device`.
    pub(crate) fn of(device: &Device) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::Host),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Device::Cuda(cuda) => {
                let device = mempool_pools::cuda::device(cuda.cuda_stream().context())?;
                Ok(Self::Cuda(device))
            }
            #[cfg(not(all(feature = "cuda", target_os = "linux")))]
            Device::Cuda(_) => Err(Error::Unsupported { device: "CUDA" }),
            Device::Metal(_) => Err(Error::Unsupported { device: "Metal" }),
        }
    }

    /// Options for a pool.
    pub(crate) fn builder(&self) -> MemPoolBuilder {
        match self {
            Self::Host => mempool_pools::MemPool::builder().crate_path(CRATE_PATH),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Self::Cuda(device) => device.pool_builder(),
        }
    }

    /// The pool of what is allocated outside any scope.
    pub(crate) fn default_pool(&self) -> Result<mempool_pools::MemPool> {
        match self {
            Self::Host => Ok(mempool_pools::default_pool_for(CRATE_PATH)?),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Self::Cuda(device) => Ok(device.default_pool()),
        }
    }

    /// A buffer of the pool; on CUDA in the order of the stream that the device has on this thread.
    pub(crate) fn buffer(&self, pool: &MemPool, bytes: usize) -> Result<mempool_pools::Buffer> {
        match self {
            Self::Host => Ok(pool.pool.buffer(bytes)?),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Self::Cuda(_) => {
                let Device::Cuda(cuda) = &pool.device else {
                    return Err(Error::Unsupported { device: "this" });
                };
                Ok(mempool_pools::cuda::buffer(&pool.pool, bytes, &cuda.cuda_stream())?)
            }
        }
    }

    /// Records all pools there.
    pub(crate) fn record_trace(&self, path: &Path) -> Result<TraceRecording> {
        match self {
            Self::Host => Ok(mempool_pools::record_trace_for(CRATE_PATH, path)?),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Self::Cuda(device) => Ok(device.record_trace(path)?),
        }
    }

    /// Bytes that can be had.
    pub(crate) fn available_bytes(&self) -> Result<usize> {
        match self {
            Self::Host => Ok(mempool_pools::available_bytes()),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Self::Cuda(device) => Ok(device.available_bytes()?),
        }
    }
}
