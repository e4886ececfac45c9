//! The CUDA driver as pools see it.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cuda::api::{Api, Code, MemAccessDesc, MemAllocationProp, MemLocation};
use crate::device::{
    CaptureId, CaptureState, Context, Driver, DriverError, DriverResult, Event, Physical, Stream, StreamId,
};

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_uint = 102;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: Code = 600;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_uint = 3;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_uint = 1;

/// The driver that is loaded in this process.
#[derive(Debug)]
pub(crate) struct CudaDriver {
    api: Api,
}

fn check(call: &'static str, code: Code) -> DriverResult<()> {
    if code == 0 { Ok(()) } else { Err(DriverError { call, code }) }
}

/// Calls a driver function and checks its result.
macro_rules! call {
    ($api:expr, $name:literal, $function:ident($($arg:expr),* $(,)?)) => {
        check($name, {
            // SAFETY: pointers are to places that live through the call and have the type that the
            // function writes; handles came from the driver, or from a caller of the driver, whose
            // contract they are under.
            unsafe { ($api.$function)($($arg),*) }
        })
    };
}

impl CudaDriver {
    /// The driver, if it has all that pools need: CUDA 12.0 or later.
    pub(crate) fn load() -> Option<Self> {
        Some(Self { api: Api::load()? })
    }

    fn prop(ordinal: u32) -> MemAllocationProp {
        MemAllocationProp {
            kind: PINNED,
            requested_handle_types: 0,
            location: MemLocation { kind: ON_DEVICE, id: ordinal as c_int },
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: [0; 8],
        }
    }

    fn device(&self, ordinal: u32) -> DriverResult<c_int> {
        let mut device = 0;
        call!(self.api, "cuDeviceGet", device_get(&raw mut device, ordinal as c_int))?;
        Ok(device)
    }
}

impl Driver for CudaDriver {
    #[inline]
    fn current_context(&self) -> Option<Context> {
        let mut context = 0;
        call!(self.api, "cuCtxGetCurrent", ctx_get_current(&raw mut context)).ok()?;
        (context != 0).then_some(Context(context))
    }

    fn set_current_context(&self, context: Option<Context>) -> DriverResult<()> {
        let context = context.map_or(0, |context| context.0);
        call!(self.api, "cuCtxSetCurrent", ctx_set_current(context))
    }

    fn device_of(&self, context: Context) -> Option<u32> {
        let mut count = 0;
        call!(self.api, "cuDeviceGetCount", device_get_count(&raw mut count)).ok()?;
        (0..count as u32).find(|&ordinal| {
            let Ok(device) = self.device(ordinal) else { return false };
            let (mut flags, mut active) = (0, 0);
            let state = call!(
                self.api,
                "cuDevicePrimaryCtxGetState",
                primary_ctx_get_state(device, &raw mut flags, &raw mut active)
            );
            // Asking an inactive one would make it.
            if state.is_err() || active == 0 {
                return false;
            }
            let Ok(primary) = self.retain_primary_context(ordinal) else { return false };
            let released = call!(self.api, "cuDevicePrimaryCtxRelease", primary_ctx_release(device));
            released.is_ok() && primary == context
        })
    }

    fn retain_primary_context(&self, ordinal: u32) -> DriverResult<Context> {
        let device = self.device(ordinal)?;
        let mut context = 0;
        call!(self.api, "cuDevicePrimaryCtxRetain", primary_ctx_retain(&raw mut context, device))?;
        Ok(Context(context))
    }

    fn synchronize(&self) -> DriverResult<()> {
        call!(self.api, "cuCtxSynchronize", ctx_synchronize())
    }

    #[inline]
    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId> {
        let mut id = 0;
        call!(self.api, "cuStreamGetId", stream_get_id(stream.0, &raw mut id))?;
        Ok(StreamId(id))
    }

    fn stream_context(&self, stream: Stream) -> DriverResult<Context> {
        let mut context = 0;
        call!(self.api, "cuStreamGetCtx", stream_get_ctx(stream.0, &raw mut context))?;
        Ok(Context(context))
    }

    #[inline]
    fn capture_state(&self, stream: Stream) -> DriverResult<CaptureState> {
        let (mut status, mut id) = (0, 0);
        let null = std::ptr::null_mut();
        call!(
            self.api,
            "cuStreamGetCaptureInfo",
            stream_get_capture_info(stream.0, &raw mut status, &raw mut id, null, null, null)
        )?;
        Ok(match status {
            0 => CaptureState::None,
            1 => CaptureState::Active(CaptureId(id)),
            _ => CaptureState::Invalidated,
        })
    }

    fn when_graph_ends(&self, stream: Stream, token: Arc<AtomicBool>) -> DriverResult<()> {
        let (mut status, mut id, mut graph) = (0, 0, 0);
        let null = std::ptr::null_mut();
        call!(
            self.api,
            "cuStreamGetCaptureInfo",
            stream_get_capture_info(stream.0, &raw mut status, &raw mut id, &raw mut graph, null, null)
        )?;
        let pointer = Arc::into_raw(token).cast_mut().cast::<c_void>();
        let (mut object, one, no_destructor_sync, moved) = (0, 1, 1, 1);
        let created = call!(
            self.api,
            "cuUserObjectCreate",
            user_object_create(&raw mut object, pointer, set_token, one, no_destructor_sync)
        );
        if let Err(error) = created {
            // SAFETY: the driver did not take the pointer, which came from `into_raw`.
            drop(unsafe { Arc::from_raw(pointer.cast::<AtomicBool>()) });
            return Err(error);
        }
        let retained =
            call!(self.api, "cuGraphRetainUserObject", graph_retain_user_object(graph, object, one, moved));
        if retained.is_err() {
            // This sets the token, since no graph keeps it; the error says that it means nothing.
            let _ = call!(self.api, "cuUserObjectRelease", user_object_release(object, one));
        }
        retained
    }

    #[inline]
    fn relax_captures(&self) -> Option<u32> {
        // The call swaps the thread's mode with the one it is given.
        let mut mode = RELAXED;
        call!(
            self.api,
            "cuThreadExchangeStreamCaptureMode",
            thread_exchange_stream_capture_mode(&raw mut mode)
        )
        .ok()
        .map(|()| mode)
    }

    #[inline]
    fn restore_captures(&self, mode: u32) {
        let mut mode = mode;
        // The same call worked a moment ago.
        let _ = call!(
            self.api,
            "cuThreadExchangeStreamCaptureMode",
            thread_exchange_stream_capture_mode(&raw mut mode)
        );
    }

    fn create_event(&self) -> DriverResult<Event> {
        let mut event = 0;
        call!(self.api, "cuEventCreate", event_create(&raw mut event, DISABLE_TIMING))?;
        Ok(Event(event))
    }

    fn create_timed_event(&self) -> DriverResult<Event> {
        let mut event = 0;
        call!(self.api, "cuEventCreate", event_create(&raw mut event, 0))?;
        Ok(Event(event))
    }

    fn elapsed(&self, start: Event, end: Event) -> DriverResult<Option<Duration>> {
        // Asking for a time too early counts as an error for tools that watch a program.
        if !self.event_done(start)? || !self.event_done(end)? {
            return Ok(None);
        }
        let mut milliseconds = 0.0;
        let asked =
            call!(self.api, "cuEventElapsedTime", event_elapsed_time(&raw mut milliseconds, start.0, end.0));
        match asked {
            Ok(()) => Ok(Some(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))),
            Err(DriverError { code: NOT_READY, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn destroy_event(&self, event: Event) -> DriverResult<()> {
        call!(self.api, "cuEventDestroy", event_destroy(event.0))
    }

    fn record_event(&self, event: Event, stream: Stream) -> DriverResult<()> {
        call!(self.api, "cuEventRecord", event_record(event.0, stream.0))
    }

    fn event_done(&self, event: Event) -> DriverResult<bool> {
        match call!(self.api, "cuEventQuery", event_query(event.0)) {
            Ok(()) => Ok(true),
            Err(DriverError { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn wait_for_event(&self, event: Event) -> DriverResult<()> {
        call!(self.api, "cuEventSynchronize", event_synchronize(event.0))
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        call!(self.api, "cuStreamWaitEvent", stream_wait_event(stream.0, event.0, 0))
    }

    fn page_bytes(&self, ordinal: u32) -> Option<usize> {
        let device = self.device(ordinal).ok()?;
        let mut supported = 0;
        call!(
            self.api,
            "cuDeviceGetAttribute",
            device_get_attribute(&raw mut supported, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device)
        )
        .ok()?;
        if supported == 0 {
            return None;
        }
        let (mut bytes, minimum) = (0, 0);
        let prop = Self::prop(ordinal);
        call!(
            self.api,
            "cuMemGetAllocationGranularity",
            mem_get_allocation_granularity(&raw mut bytes, &raw const prop, minimum)
        )
        .ok()?;
        bytes.is_power_of_two().then_some(bytes)
    }

    fn can_access(&self, peer: u32, ordinal: u32) -> bool {
        let (Ok(peer), Ok(device)) = (self.device(peer), self.device(ordinal)) else { return false };
        let mut can = 0;
        let asked =
            call!(self.api, "cuDeviceCanAccessPeer", device_can_access_peer(&raw mut can, peer, device));
        asked.is_ok() && can != 0
    }

    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        let mut start = 0;
        call!(self.api, "cuMemAddressReserve", mem_address_reserve(&raw mut start, bytes, 0, 0, 0))?;
        Ok(start as usize)
    }

    fn create(&self, ordinal: u32, bytes: usize) -> DriverResult<Physical> {
        let mut handle = 0;
        let prop = Self::prop(ordinal);
        call!(self.api, "cuMemCreate", mem_create(&raw mut handle, bytes, &raw const prop, 0))?;
        Ok(Physical(handle))
    }

    fn release(&self, physical: Physical) -> DriverResult<()> {
        call!(self.api, "cuMemRelease", mem_release(physical.0))
    }

    fn map(&self, addr: usize, bytes: usize, physical: Physical) -> DriverResult<()> {
        call!(self.api, "cuMemMap", mem_map(addr as u64, bytes, 0, physical.0, 0))
    }

    fn set_access(&self, addr: usize, bytes: usize, ordinals: &[u32]) -> DriverResult<()> {
        let descriptions: Vec<MemAccessDesc> = ordinals
            .iter()
            .map(|&ordinal| MemAccessDesc { location: Self::prop(ordinal).location, flags: READ_WRITE })
            .collect();
        call!(
            self.api,
            "cuMemSetAccess",
            mem_set_access(addr as u64, bytes, descriptions.as_ptr(), descriptions.len())
        )
    }

    fn unmap(&self, addr: usize, bytes: usize) -> DriverResult<()> {
        call!(self.api, "cuMemUnmap", mem_unmap(addr as u64, bytes))
    }

    fn allocate_segment(&self, bytes: usize) -> DriverResult<usize> {
        let originals = super::hooks::originals();
        let originals = originals.ok_or(DriverError { call: "cuMemAlloc", code: 3 })?;
        let mut start = 0;
        call!(originals, "cuMemAlloc", mem_alloc(&raw mut start, bytes))?;
        Ok(start as usize)
    }

    fn free_segment(&self, addr: usize) -> DriverResult<()> {
        let originals = super::hooks::originals();
        let originals = originals.ok_or(DriverError { call: "cuMemFree", code: 3 })?;
        call!(originals, "cuMemFree", mem_free(addr as u64))
    }

    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        call!(self.api, "cuMemGetInfo", mem_get_info(&raw mut free, &raw mut total))?;
        Ok((free, total))
    }

    fn copy(&self, from: usize, to: usize, bytes: usize, stream: Stream) -> DriverResult<()> {
        call!(self.api, "cuMemcpyDtoDAsync", memcpy_dtod_async(to as u64, from as u64, bytes, stream.0))
    }

    fn fill(&self, addr: usize, bytes: usize, value: u8, stream: Stream) -> DriverResult<()> {
        call!(self.api, "cuMemsetD8Async", memset_d8_async(addr as u64, value, bytes, stream.0))
    }

    fn read(&self, addr: usize, into: &mut [u8], stream: Stream) -> DriverResult<()> {
        let (pointer, len) = (into.as_mut_ptr().cast(), into.len());
        call!(self.api, "cuMemcpyDtoHAsync", memcpy_dtoh_async(pointer, addr as u64, len, stream.0))?;
        call!(self.api, "cuStreamSynchronize", stream_synchronize(stream.0))
    }
}

/// Called by the driver when the last graph that keeps the token is gone. May call nothing of CUDA.
unsafe extern "C" fn set_token(pointer: *mut c_void) {
    // SAFETY: the pointer is the one from `into_raw` in `when_graph_ends`, and comes once.
    let token = unsafe { Arc::from_raw(pointer.cast::<AtomicBool>()) };
    token.store(true, Ordering::Release);
}
