//! Where a tensor's storage lies.

use candle_core::{CpuStorage, Storage, Tensor};

/// The address of the storage, if the tensor is all of it, in order.
pub(crate) fn of_whole(tensor: &Tensor) -> Option<usize> {
    let (storage, layout) = tensor.storage_and_layout();
    if !layout.is_contiguous() || layout.start_offset() != 0 {
        return None;
    }
    let (addr, elements) = of(&storage)?;
    (elements == tensor.elem_count()).then_some(addr)
}

/// The address of the storage, whatever part of it the tensor is.
pub(crate) fn of_storage(tensor: &Tensor) -> Option<usize> {
    of(&tensor.storage_and_layout().0).map(|(addr, _)| addr)
}

/// Address and number of elements.
fn of(storage: &Storage) -> Option<(usize, usize)> {
    match storage {
        Storage::Cpu(storage) => Some(of_cpu(storage)),
        #[cfg(all(feature = "cuda", target_os = "linux"))]
        Storage::Cuda(storage) => Some(crate::cuda::address_of(storage)),
        #[cfg(not(all(feature = "cuda", target_os = "linux")))]
        Storage::Cuda(_) => None,
        Storage::Metal(_) => None,
    }
}

/// Address and number of elements.
fn of_cpu(storage: &CpuStorage) -> (usize, usize) {
    fn of<T>(elements: &[T]) -> (usize, usize) {
        (elements.as_ptr().addr(), elements.len())
    }
    match storage {
        CpuStorage::U8(elements)
        | CpuStorage::F6E2M3(elements)
        | CpuStorage::F6E3M2(elements)
        | CpuStorage::F4(elements)
        | CpuStorage::F8E8M0(elements) => of(elements),
        CpuStorage::U32(elements) => of(elements),
        CpuStorage::I16(elements) => of(elements),
        CpuStorage::I32(elements) => of(elements),
        CpuStorage::I64(elements) => of(elements),
        CpuStorage::BF16(elements) => of(elements),
        CpuStorage::F16(elements) => of(elements),
        CpuStorage::F32(elements) => of(elements),
        CpuStorage::F64(elements) => of(elements),
        CpuStorage::F8E4M3(elements) => of(elements),
    }
}
