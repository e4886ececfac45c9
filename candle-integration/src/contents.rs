//! What a buffer holds after its last result was dropped.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md: storage over memory that holds numbers already

use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{DType, Device, Shape, Storage, Tensor};

use crate::address;
use crate::error::{Error, Result};

/// The result that a block holds. Whoever writes the block makes new ones.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    shape: Shape,
    dtype: DType,
}

impl Contents {
    /// What `block` holds as long as it is not written again, if that is this result.
    pub(crate) fn of(result: &Tensor, block: &mempool_pools::Buffer) -> Option<Self> {
        let there = address::of_whole(result) == Some(block.addr());
        there.then(|| Self { shape: result.shape().clone(), dtype: result.dtype() })
    }

    /// The result again, in a storage that owns the block.
    pub(crate) fn tensor(&self, block: &mut mempool_pools::Buffer, device: &Device) -> Result<Tensor> {
        let bytes = self.shape.elem_count() * self.dtype.size_in_bytes();
        let storage = block.place_next(bytes, || self.storage(device))?.map_err(Error::candle)?;
        let tensor = Tensor::from_storage(storage, self.shape.clone(), BackpropOp::none(), false);
        // Memory from elsewhere is dropped unread.
        if address::of_whole(&tensor) == Some(block.addr()) { Ok(tensor) } else { Err(Error::BufferDevice) }
    }

    /// A storage whose memory nobody writes.
    fn storage(&self, device: &Device) -> candle_core::Result<Storage> {
        let Self { shape, dtype } = self;
        match device {
            // SAFETY: the storage is read only if it lies in the block, which a result of this shape and dtype has written.
            Device::Cpu => unsafe { CpuDevice.alloc_uninit(shape, *dtype) }.map(Storage::Cpu),
            // SAFETY: as above.
            Device::Cuda(cuda) => unsafe { cuda.alloc_uninit(shape, *dtype) }.map(Storage::Cuda),
            Device::Metal(_) => candle_core::bail!("there are no memory pools for Metal devices"),
        }
    }
}
