//! Where tensors lie on the device, in the order of the stream that uses them.

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
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
    /// A tensor of `storage`.
    pub(super) fn new(storage: Place, dtype: DType, layout: &'a Layout) -> Self {
        let offset_bytes = layout.start_offset() * dtype.size_in_bytes();
        Self { address: storage.address + offset_bytes as u64, dtype, layout }
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

/// A storage in device memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Of its first number.
    address: u64,
    /// How many numbers it has.
    len: usize,
}

impl Place {
    /// Whether all that `layout` reaches lies in the storage.
    pub(super) fn holds(self, layout: &Layout) -> bool {
        let reached = layout.dims().iter().zip(layout.stride());
        let last = reached.map(|(dim, stride)| dim.saturating_sub(1).saturating_mul(*stride));
        let end = last.fold(layout.start_offset().saturating_add(1), usize::saturating_add);
        end <= self.len || layout.shape().elem_count() == 0
    }
}

/// Where a storage is, for `stream` to read when all that writes it has ended. Nothing for a format that
/// out-operations do not know.
pub(super) fn to_read<'a>(
    slice: &'a CudaStorageSlice,
    stream: &'a CudaStream,
) -> Option<(Place, SyncOnDrop<'a>)> {
    match slice {
        CudaStorageSlice::U8(slice) => Some(read(slice, stream)),
        CudaStorageSlice::U32(slice) => Some(read(slice, stream)),
        CudaStorageSlice::I64(slice) => Some(read(slice, stream)),
        CudaStorageSlice::BF16(slice) => Some(read(slice, stream)),
        CudaStorageSlice::F16(slice) => Some(read(slice, stream)),
        CudaStorageSlice::F32(slice) => Some(read(slice, stream)),
        CudaStorageSlice::F64(slice) => Some(read(slice, stream)),
        _ => None,
    }
}

/// As [`to_read`], to write when all that reads or writes it has ended.
pub(super) fn to_write<'a>(
    slice: &'a mut CudaStorageSlice,
    stream: &'a CudaStream,
) -> Option<(Place, SyncOnDrop<'a>)> {
    match slice {
        CudaStorageSlice::U8(slice) => Some(write(slice, stream)),
        CudaStorageSlice::U32(slice) => Some(write(slice, stream)),
        CudaStorageSlice::I64(slice) => Some(write(slice, stream)),
        CudaStorageSlice::BF16(slice) => Some(write(slice, stream)),
        CudaStorageSlice::F16(slice) => Some(write(slice, stream)),
        CudaStorageSlice::F32(slice) => Some(write(slice, stream)),
        CudaStorageSlice::F64(slice) => Some(write(slice, stream)),
        _ => None,
    }
}

fn read<'a, T>(slice: &'a CudaSlice<T>, stream: &'a CudaStream) -> (Place, SyncOnDrop<'a>) {
    let (address, guard) = slice.device_ptr(stream);
    (Place { address, len: slice.len() }, guard)
}

fn write<'a, T>(slice: &'a mut CudaSlice<T>, stream: &'a CudaStream) -> (Place, SyncOnDrop<'a>) {
    let len = slice.len();
    let (address, guard) = slice.device_ptr_mut(stream);
    (Place { address, len }, guard)
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
