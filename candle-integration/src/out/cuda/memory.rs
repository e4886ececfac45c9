//! Where tensors lie on the device, in the order of the stream that uses them.

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use candle_core::{CudaDevice, DType, Layout, Result, WithDType};
use half::{bf16, f16};

/// A tensor in device memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// Of the first element.
    pub(super) address: u64,
    pub(super) dtype: DType,
    /// Its start does not count: the address has it.
    pub(super) layout: &'a Layout,
}

impl<'a> View<'a> {
    /// A tensor whose storage begins at `base`.
    pub(super) fn new(base: u64, dtype: DType, layout: &'a Layout) -> Self {
        let offset_bytes = layout.start_offset() * dtype.size_in_bytes();
        Self { address: base + offset_bytes as u64, dtype, layout }
    }

    /// How many numbers it has.
    pub(super) fn len(&self) -> usize {
        self.layout.shape().elem_count()
    }

    /// How many dimensions it has.
    pub(super) fn rank(&self) -> usize {
        self.layout.dims().len()
    }

    /// The address of the element `count` elements further in memory.
    pub(super) fn address_of(&self, count: usize) -> u64 {
        self.address + (count * self.dtype.size_in_bytes()) as u64
    }
}

/// Where a storage begins, for `stream` to read when all that writes it has ended. Nothing for a format that
/// out-operations do not know.
pub(super) fn to_read<'a>(
    slice: &'a CudaStorageSlice,
    stream: &'a CudaStream,
) -> Option<(u64, SyncOnDrop<'a>)> {
    match slice {
        CudaStorageSlice::U8(slice) => Some(slice.device_ptr(stream)),
        CudaStorageSlice::U32(slice) => Some(slice.device_ptr(stream)),
        CudaStorageSlice::I64(slice) => Some(slice.device_ptr(stream)),
        CudaStorageSlice::BF16(slice) => Some(slice.device_ptr(stream)),
        CudaStorageSlice::F16(slice) => Some(slice.device_ptr(stream)),
        CudaStorageSlice::F32(slice) => Some(slice.device_ptr(stream)),
        CudaStorageSlice::F64(slice) => Some(slice.device_ptr(stream)),
        _ => None,
    }
}

/// As [`to_read`], to write when all that reads or writes it has ended.
pub(super) fn to_write<'a>(
    slice: &'a mut CudaStorageSlice,
    stream: &'a CudaStream,
) -> Option<(u64, SyncOnDrop<'a>)> {
    match slice {
        CudaStorageSlice::U8(slice) => Some(slice.device_ptr_mut(stream)),
        CudaStorageSlice::U32(slice) => Some(slice.device_ptr_mut(stream)),
        CudaStorageSlice::I64(slice) => Some(slice.device_ptr_mut(stream)),
        CudaStorageSlice::BF16(slice) => Some(slice.device_ptr_mut(stream)),
        CudaStorageSlice::F16(slice) => Some(slice.device_ptr_mut(stream)),
        CudaStorageSlice::F32(slice) => Some(slice.device_ptr_mut(stream)),
        CudaStorageSlice::F64(slice) => Some(slice.device_ptr_mut(stream)),
        _ => None,
    }
}

/// A number in device memory.
pub(super) fn one_number(device: &CudaDevice, dtype: DType, value: f64) -> Result<Option<CudaStorageSlice>> {
    Ok(Some(match dtype {
        DType::U8 => CudaStorageSlice::U8(device.clone_htod(&[u8::from_f64(value)])?),
        DType::U32 => CudaStorageSlice::U32(device.clone_htod(&[u32::from_f64(value)])?),
        DType::I64 => CudaStorageSlice::I64(device.clone_htod(&[i64::from_f64(value)])?),
        DType::BF16 => CudaStorageSlice::BF16(device.clone_htod(&[bf16::from_f64(value)])?),
        DType::F16 => CudaStorageSlice::F16(device.clone_htod(&[f16::from_f64(value)])?),
        DType::F32 => CudaStorageSlice::F32(device.clone_htod(&[f32::from_f64(value)])?),
        DType::F64 => CudaStorageSlice::F64(device.clone_htod(&[value])?),
        _ => return Ok(None),
    }))
}
