//! Capturing on a CUDA device.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md: graph nodes and cuBLAS's workspace

use std::sync::Arc;

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::cublas::sys as cublas;
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaSlice, CudaStream, sys};
use candle_core::{CudaDevice, Device};
use mempool_pools::cuda::address_of;

use crate::error::{Error, Result};
use crate::pool::MemPool;

/// cuBLAS's own default on Hopper and later, and before: with another workspace it would choose other kernels.
const HOPPER_WORKSPACE_BYTES: usize = 32 << 20;
const WORKSPACE_BYTES: usize = 4 << 20;
const HOPPER: (i32, i32) = (9, 0);

/// A graph, ready to be launched.
pub(super) struct Graph {
    graph: CudaGraph,
    node_count: usize,
    /// Its matrix products use this. It is freed in the order of the stream that the graph is launched on.
    _workspace: CudaSlice<u8>,
}

/// While this lives, cuBLAS uses a workspace that is known: in a capture it must not allocate one.
struct OwnWorkspace {
    cuda: CudaDevice,
    /// There until it is handed over.
    slice: Option<CudaSlice<u8>>,
}

impl OwnWorkspace {
    fn new(pool: &MemPool, cuda: &CudaDevice) -> Result<Self> {
        let capability = cuda.cuda_stream().context().compute_capability().unwrap_or(HOPPER);
        let bytes = if capability >= HOPPER { HOPPER_WORKSPACE_BYTES } else { WORKSPACE_BYTES };
        let slice = pool.with(|| cuda.alloc_zeros::<u8>(bytes)).map_err(Error::candle)?;
        let handle = *cuda.cublas_handle().handle();
        let address = std::ptr::with_exposed_provenance_mut(address_of(&slice));
        // SAFETY: the handle is the device's. The memory is the slice's, which lives for as long as it is used: `drop`
        // makes cuBLAS forget it, and the graph keeps it.
        let status = unsafe { cublas::cublasSetWorkspace_v2(handle, address, bytes) };
        if status != cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
            return Err(Error::Capture { reason: format!("cuBLAS takes no workspace: {status:?}") });
        }
        Ok(Self { cuda: cuda.clone(), slice: Some(slice) })
    }

    /// The memory, for those who keep it.
    fn into_slice(mut self) -> CudaSlice<u8> {
        self.slice.take().expect("it is handed over once")
    }
}

impl Drop for OwnWorkspace {
    fn drop(&mut self) {
        let handle = *self.cuda.cublas_handle().handle();
        let stream = self.cuda.cuda_stream().cu_stream();
        // Setting the stream, also the same one, gives the handle its own workspace back.
        // SAFETY: both are the device's.
        let status = unsafe { cublas::cublasSetStream_v2(handle, stream.cast()) };
        debug_assert_eq!(status, cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
    }
}

/// A capture in progress. However it ends, the stream leaves it.
struct Capturing<'a> {
    stream: &'a Arc<CudaStream>,
}

impl<'a> Capturing<'a> {
    fn begin(stream: &'a Arc<CudaStream>) -> Result<Self> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(|error| refused("the stream cannot be captured", &error))?;
        Ok(Self { stream })
    }

    fn end(self) -> Result<CudaGraph> {
        let stream = self.stream;
        std::mem::forget(self);
        let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        match ended {
            Ok(Some(graph)) => Ok(graph),
            Ok(None) => Err(Error::Capture { reason: "nothing was captured".to_owned() }),
            Err(error) => {
                forget_errors(stream);
                Err(refused("the graph cannot be made", &error))
            }
        }
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        // The step failed or unwound: there is no graph, or none that anybody wants.
        drop(self.stream.end_capture(sys::CUgraphInstantiate_flags(0)));
        forget_errors(self.stream);
    }
}

/// cudarc keeps errors of calls that return none and reports them at the next call. Those of a capture that failed
/// are told of already.
fn forget_errors(stream: &CudaStream) {
    let _ = stream.context().check_err();
}

fn refused(what: &str, error: &dyn std::fmt::Debug) -> Error {
    Error::Capture { reason: format!("{what}: {error:?}") }
}

impl Graph {
    pub(super) fn capture<T>(
        pool: &MemPool,
        device: &Device,
        warm_up_runs: usize,
        step: &mut dyn FnMut() -> candle_core::Result<T>,
    ) -> Result<(Self, T)> {
        let Device::Cuda(cuda) = device else {
            return Err(Error::NoGraphs { device: if device.is_cpu() { "CPU" } else { "Metal" } });
        };
        if cuda.is_event_tracking() {
            return Err(Error::EventTracking);
        }
        let stream = cuda.cuda_stream();
        let idle = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        if stream.capture_status().map_err(|error| refused("the stream cannot be asked", &error))? != idle {
            return Err(Error::Capture { reason: "the stream is in a capture already".to_owned() });
        }
        // Small uploads are cached on this thread when the step runs first, and are found in the capture.
        let _uploads = cuda.enable_cuda_graph_htod_cache();
        let workspace = OwnWorkspace::new(pool, cuda)?;
        for _ in 0..warm_up_runs {
            pool.with(&mut *step).map_err(Error::candle)?;
        }
        cuda.synchronize().map_err(Error::candle)?;
        let capturing = Capturing::begin(&stream)?;
        let output = match pool.with(&mut *step) {
            Ok(output) => output,
            Err(error) => {
                drop(capturing);
                return Err(Error::Capture { reason: error.to_string() });
            }
        };
        let graph = capturing.end()?;
        let (node_count, memory_nodes) = count_nodes(&graph)?;
        if memory_nodes > 0 {
            return Err(Error::GraphAllocates { nodes: memory_nodes });
        }
        graph.upload().map_err(|error| refused("the graph cannot be uploaded", &error))?;
        Ok((Self { graph, node_count, _workspace: workspace.into_slice() }, output))
    }

    pub(super) fn launch(&self) -> Result<()> {
        self.graph.launch().map_err(|error| refused("the graph cannot be launched", &error))
    }

    pub(super) fn node_count(&self) -> usize {
        self.node_count
    }
}

/// Number of nodes, and of those that allocate or free memory.
fn count_nodes(graph: &CudaGraph) -> Result<(usize, usize)> {
    let failed = |error: sys::CUresult| refused("the graph cannot be read", &error);
    let success = sys::CUresult::CUDA_SUCCESS;
    let mut count = 0;
    // SAFETY: the graph is live; without a place for nodes only their number is written.
    let status = unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &raw mut count) };
    if status != success {
        return Err(failed(status));
    }
    let mut nodes: Vec<sys::CUgraphNode> = vec![std::ptr::null_mut(); count];
    // SAFETY: the graph is live, and `nodes` has room for as many as `count` says.
    let status = unsafe { sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &raw mut count) };
    if status != success {
        return Err(failed(status));
    }
    let mut memory_nodes = 0;
    for node in nodes {
        let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is one of the live graph.
        let status = unsafe { sys::cuGraphNodeGetType(node, &raw mut kind) };
        if status != success {
            return Err(failed(status));
        }
        memory_nodes += usize::from(matches!(
            kind,
            sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC
                | sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE
        ));
    }
    Ok((count, memory_nodes))
}
