//! The random programs on a real device: `cargo test --release -p mempool-pools --features cuda --test device`.
//!
//! Work writes a block full of its allocation's number, late; work that reads takes samples,
//! which are compared in the end. So a block that serves two allocations at once shows.
#![allow(unsafe_code)] // bare driver calls

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, result, sys};
use mempool_pools::device::simulated::Access;
use mempool_pools::device::{Event, PoolDevice, Stream};
use mempool_pools::{cuda, without_pools};
use proptest::prelude::*;

use crate::program::{ops, run, streams_of_one_handle};
use crate::world::{GraphId, World};

/// What is written in front of each piece of work, to make it late.
const DELAY_BYTES: usize = 512 << 20;
/// Places for samples.
const SAMPLES: usize = 1 << 16;

struct Samples {
    expected: Vec<u32>,
}

struct GpuWorld {
    context: Arc<CudaContext>,
    device: PoolDevice,
    delay: u64,
    log: u64,
    samples: Mutex<Samples>,
    graphs: Mutex<Vec<sys::CUgraphExec>>,
    _alone: MutexGuard<'static, ()>,
}

// SAFETY: handles of the driver may be used from any thread; the guard is only dropped.
unsafe impl Send for GpuWorld {}
// SAFETY: as above.
unsafe impl Sync for GpuWorld {}

fn raw(stream: Stream) -> sys::CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0)
}

fn raw_event(event: Event) -> sys::CUevent {
    std::ptr::with_exposed_provenance_mut(event.0)
}

/// Checks a driver call that is made with handles and addresses that are live.
macro_rules! must {
    ($call:expr) => {
        // SAFETY: handles and addresses are those of live streams, events, graphs and blocks.
        unsafe { $call }.result().expect(stringify!($call))
    };
}

impl GpuWorld {
    fn new(allowed_bytes: usize) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let context = CudaContext::new(0).expect("a CUDA device");
        let device = cuda::device(&context).expect("a device with pools");
        let total = context.total_mem().expect("the driver answers");
        let _ = device.empty_cache();
        device.set_memory_fraction(allowed_bytes as f64 / total as f64).expect("a share");
        let take = |bytes: usize| {
            // SAFETY: nobody reads it before it is written.
            without_pools(|| unsafe { result::malloc_sync(bytes) }).expect("memory")
        };
        let (delay, log) = (take(DELAY_BYTES), take(SAMPLES * 4));
        let samples = Mutex::new(Samples { expected: Vec::new() });
        Self { context, device, delay, log, samples, graphs: Mutex::new(Vec::new()), _alone: alone }
    }
}

impl Drop for GpuWorld {
    fn drop(&mut self) {
        self.device.set_memory_fraction(1.0).expect("a share");
        for addr in [self.delay, self.log] {
            // SAFETY: allocated in `new`, and all work is done.
            unsafe { result::free_sync(addr) }.expect("the memory is the driver's");
        }
    }
}

impl World for GpuWorld {
    fn device(&self) -> PoolDevice {
        self.device
    }

    fn bind(&self) {
        self.context.bind_to_thread().expect("a context");
    }

    fn allocate(&self, bytes: usize, stream: Stream, _: u64) -> Option<usize> {
        // SAFETY: programs write blocks before they read them.
        unsafe { result::malloc_async(raw(stream), bytes) }.ok().map(|addr| addr as usize)
    }

    fn free(&self, addr: usize, stream: Stream) -> bool {
        // SAFETY: the program frees its own block, once.
        unsafe { result::free_async(addr as u64, raw(stream)) }.is_ok()
    }

    fn create_stream(&self, blocking: bool) -> Stream {
        let kind = if blocking {
            result::stream::StreamKind::Default
        } else {
            result::stream::StreamKind::NonBlocking
        };
        Stream(result::stream::create(kind).expect("a stream").expose_provenance())
    }

    fn destroy_stream(&self, stream: Stream) {
        must!(sys::cuStreamDestroy_v2(raw(stream)));
    }

    fn launch(&self, stream: Stream, access: Access) {
        let (addr, words) = (access.addr as u64, access.bytes / 4);
        must!(sys::cuMemsetD8Async(self.delay, 1, DELAY_BYTES, raw(stream)));
        let pattern = access.allocation as u32;
        if access.writes {
            must!(sys::cuMemsetD32Async(addr, pattern, words, raw(stream)));
            return;
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        must!(sys::cuStreamIsCapturing(raw(stream), &raw mut status));
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            // What a graph reads is read at its launches, which may never come.
            must!(sys::cuMemcpyDtoDAsync_v2(self.delay, addr, 4, raw(stream)));
            return;
        }
        let mut samples = self.samples.lock().expect("nobody panics");
        for word in [0, words / 2, words - 1] {
            if samples.expected.len() == SAMPLES {
                return;
            }
            let to = self.log + samples.expected.len() as u64 * 4;
            must!(sys::cuMemcpyDtoDAsync_v2(to, addr + word as u64 * 4, 4, raw(stream)));
            samples.expected.push(pattern);
        }
    }

    fn record(&self, stream: Stream) -> Event {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).expect("an event");
        must!(sys::cuEventRecord(event, raw(stream)));
        Event(event.expose_provenance())
    }

    fn wait(&self, stream: Stream, event: Event) {
        must!(sys::cuStreamWaitEvent(raw(stream), raw_event(event), 0));
    }

    fn synchronize(&self, stream: Stream) {
        must!(sys::cuStreamSynchronize(raw(stream)));
    }

    fn begin_capture(&self, stream: Stream) {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        must!(sys::cuStreamBeginCapture_v2(raw(stream), mode));
    }

    fn end_capture(&self, stream: Stream) -> Option<GraphId> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: `graph` is a place for the result.
        unsafe { sys::cuStreamEndCapture(raw(stream), &raw mut graph) }.result().ok()?;
        let mut exec = std::ptr::null_mut();
        must!(sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        must!(sys::cuGraphDestroy(graph));
        let mut graphs = self.graphs.lock().expect("nobody panics");
        graphs.push(exec);
        Some(GraphId(graphs.len() - 1))
    }

    fn launch_graph(&self, graph: GraphId, stream: Stream) {
        let exec = self.graphs.lock().expect("nobody panics")[graph.0];
        must!(sys::cuGraphLaunch(exec, raw(stream)));
    }

    fn destroy_graph(&self, graph: GraphId) {
        let exec = self.graphs.lock().expect("nobody panics")[graph.0];
        must!(sys::cuGraphExecDestroy(exec));
    }

    fn fail(&self, _: &'static str) {}

    fn verdict(&self) -> Vec<String> {
        self.context.synchronize().expect("all work ends well");
        let expected = std::mem::take(&mut self.samples.lock().expect("nobody panics").expected);
        let mut found = vec![0_u32; expected.len()];
        if !found.is_empty() {
            let into = found.as_mut_ptr().cast::<c_void>();
            must!(sys::cuMemcpyDtoH_v2(into, self.log, found.len() * 4));
        }
        let wrong = expected.iter().zip(&found).filter(|(expected, found)| expected != found);
        wrong.map(|(expected, found)| format!("allocation {expected} holds what {found} wrote")).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn programs_run_right_on_a_device(mib in prop::sample::select(vec![32_usize, 64, 256]), ops in ops(false)) {
        let wrong = run(Arc::new(GpuWorld::new(mib << 20)), &ops);
        prop_assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn streams_that_get_one_handle_are_told_apart_on_a_device() {
    let wrong = streams_of_one_handle(Arc::new(GpuWorld::new(256 << 20)));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
