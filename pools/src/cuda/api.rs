//! The driver's functions, looked up behind the program's own definitions.
//!
//! They are looked up by name and not linked, so that hooks reach the driver's own functions
//! and not themselves, and so that one build works with drivers of any version.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::ffi::{CStr, c_int, c_uint, c_void};

/// `CUresult`: 0 is success.
pub(crate) type Code = c_uint;

/// `CUmemLocation`, `CU_MEM_LOCATION_TYPE_DEVICE`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemLocation {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MemAllocationProp {
    pub(crate) kind: c_uint,
    pub(crate) requested_handle_types: c_uint,
    pub(crate) location: MemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) alloc_flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MemAccessDesc {
    pub(crate) location: MemLocation,
    pub(crate) flags: c_uint,
}

macro_rules! functions {
    ($table:ident: $doc:literal; $($field:ident = $name:literal: fn($($arg:ty),*);)*) => {
        #[doc = $doc]
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> Code,)*
        }

        impl $table {
            /// Looks all of them up; `None` when the driver lacks one.
            pub(crate) fn load() -> Option<Self> {
                Some(Self {
                    $($field: {
                        let found = look_up($name)?;
                        // SAFETY: the driver's function of this name has this signature, in all
                        // versions that have it.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    Api: "The functions that pools call.";
    ctx_get_current = c"cuCtxGetCurrent": fn(*mut usize);
    ctx_set_current = c"cuCtxSetCurrent": fn(usize);
    ctx_synchronize = c"cuCtxSynchronize": fn();
    device_get = c"cuDeviceGet": fn(*mut c_int, c_int);
    device_get_count = c"cuDeviceGetCount": fn(*mut c_int);
    device_get_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_uint, c_int);
    device_can_access_peer = c"cuDeviceCanAccessPeer": fn(*mut c_int, c_int, c_int);
    primary_ctx_retain = c"cuDevicePrimaryCtxRetain": fn(*mut usize, c_int);
    primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2": fn(c_int);
    primary_ctx_get_state = c"cuDevicePrimaryCtxGetState": fn(c_int, *mut c_uint, *mut c_int);
    stream_get_id = c"cuStreamGetId": fn(usize, *mut u64);
    stream_get_ctx = c"cuStreamGetCtx": fn(usize, *mut usize);
    stream_get_capture_info =
        c"cuStreamGetCaptureInfo_v2": fn(usize, *mut c_uint, *mut u64, *mut usize, *mut usize, *mut usize);
    stream_synchronize = c"cuStreamSynchronize": fn(usize);
    stream_wait_event = c"cuStreamWaitEvent": fn(usize, usize, c_uint);
    thread_exchange_stream_capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_uint);
    user_object_create =
        c"cuUserObjectCreate": fn(*mut usize, *mut c_void, unsafe extern "C" fn(*mut c_void), c_uint, c_uint);
    user_object_release = c"cuUserObjectRelease": fn(usize, c_uint);
    graph_retain_user_object = c"cuGraphRetainUserObject": fn(usize, usize, c_uint, c_uint);
    event_create = c"cuEventCreate": fn(*mut usize, c_uint);
    event_destroy = c"cuEventDestroy_v2": fn(usize);
    event_record = c"cuEventRecord": fn(usize, usize);
    event_query = c"cuEventQuery": fn(usize);
    event_synchronize = c"cuEventSynchronize": fn(usize);
    event_elapsed_time = c"cuEventElapsedTime": fn(*mut f32, usize, usize);
    mem_get_info = c"cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    mem_get_allocation_granularity =
        c"cuMemGetAllocationGranularity": fn(*mut usize, *const MemAllocationProp, c_uint);
    mem_address_reserve = c"cuMemAddressReserve": fn(*mut u64, usize, usize, u64, u64);
    mem_create = c"cuMemCreate": fn(*mut u64, usize, *const MemAllocationProp, u64);
    mem_release = c"cuMemRelease": fn(u64);
    mem_map = c"cuMemMap": fn(u64, usize, usize, u64, u64);
    mem_set_access = c"cuMemSetAccess": fn(u64, usize, *const MemAccessDesc, usize);
    mem_unmap = c"cuMemUnmap": fn(u64, usize);
    memcpy_dtod_async = c"cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, usize);
    memset_d8_async = c"cuMemsetD8Async": fn(u64, u8, usize, usize);
    memcpy_dtoh_async = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, usize);
}

functions! {
    Originals: "The functions that this crate defines too.";
    mem_alloc_async = c"cuMemAllocAsync": fn(*mut u64, usize, usize);
    mem_free_async = c"cuMemFreeAsync": fn(u64, usize);
    mem_alloc = c"cuMemAlloc_v2": fn(*mut u64, usize);
    mem_free = c"cuMemFree_v2": fn(u64);
    event_create = c"cuEventCreate": fn(*mut usize, c_uint);
    event_destroy = c"cuEventDestroy_v2": fn(usize);
    stream_create = c"cuStreamCreate": fn(*mut usize, c_uint);
    stream_create_with_priority = c"cuStreamCreateWithPriority": fn(*mut usize, c_uint, c_int);
    stream_destroy = c"cuStreamDestroy_v2": fn(usize);
    stream_begin_capture = c"cuStreamBeginCapture_v2": fn(usize, c_uint);
    stream_end_capture = c"cuStreamEndCapture": fn(usize, *mut usize);
}

/// The next definition of `name` after the program's own, else the one in `libcuda.so.1`: in a
/// library that another program loads, there may be none behind it.
fn look_up(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` is a C string; looking a symbol up changes nothing.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return Some(next);
    }
    // SAFETY: the driver's library has been loaded by whoever calls its functions, or loading it
    // is harmless. It is never closed.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: as above, in an open library.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
