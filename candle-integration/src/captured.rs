//! A step that is recorded once as a CUDA graph and replayed.

#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
#[cfg(not(all(feature = "cuda", target_os = "linux")))]
#[path = "captured/none.rs"]
mod cuda;
mod verify;

use std::fmt;

use candle_core::{Device, Tensor};

use self::cuda::Graph;
pub use self::verify::{OutputCheck, Outputs, Verification};
use crate::error::{Error, Result};
use crate::pool::MemPool;

/// How often the step is run before it is captured: whatever is loaded, compiled or uploaded at the first time is there
/// then.
const WARM_UP_RUNS: usize = 2;

/// A step on a CUDA device, captured as a graph: a replay launches all of its kernels by one call.
///
/// ```ignore
/// # use candle_core::{Device, Tensor};
/// # use candle_mempool::{CapturedStep, MemPool};
/// # fn main() -> candle_core::Result<()> {
/// let device = Device::new_cuda_with_stream(0)?;
/// // SAFETY: everything here is used on one stream.
/// unsafe { device.as_cuda_device()?.disable_event_tracking() };
/// let weight = Tensor::randn(0_f32, 1.0, (512, 512), &device)?;
/// let x = Tensor::zeros((8, 512), candle_core::DType::F32, &device)?; // the input: written before each replay
/// let pool = MemPool::new(&device)?;
/// let mut step = CapturedStep::capture(&pool, &device, || x.matmul(&weight)?.relu())?;
/// for _ in 0..100 {
///     step.write(&x, &Tensor::randn(0_f32, 1.0, (8, 512), &device)?)?;
///     step.replay()?;
///     let y = step.output(); // always at the same address
///     assert_eq!(y.dims(), [8, 512]);
/// }
/// # Ok(())
/// # }
/// ```
///
/// * **What is replayed** are the kernels that the step launched, with the addresses and numbers that they had. Whatever
///   the host decided is frozen: shapes, positions, constants, random numbers. [`verify`](Self::verify) compares a replay
///   with the step run anew.
/// * **Inputs** are tensors that the step reads; write new values into them ([`write`](Self::write), or an operation that
///   writes into a given tensor) before a replay. **Outputs** are overwritten by each replay.
/// * **Memory** that the step allocates comes from the pool, serves nothing else, and stays for as long as the graph:
///   other work and other graphs of the pool cannot disturb it. What the step reads lives as long as this does, because
///   the closure is kept; a tensor that the closure can reach but that is *replaced* later (in a `RefCell`, say) is the
///   caller's to keep.
/// * **One thread**: it is not `Send`, because candle's cache of uploaded constants is the thread's.
/// * Event tracking must be off (`CudaDevice::disable_event_tracking`): events that
///   were recorded outside cannot be waited for inside a capture.
/// * The step runs as many times as it takes to warm up before it is captured, then once into the graph, without effect
///   on the device.
pub struct CapturedStep<'a, T> {
    // The graph goes first: until then everything below may be in use.
    graph: Graph,
    output: T,
    step: Box<dyn FnMut() -> candle_core::Result<T> + 'a>,
    pool: MemPool,
    replays: u64,
}

impl<'a, T: Outputs> CapturedStep<'a, T> {
    /// Captures `step`, with the memory it allocates from `pool`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device without graphs, [`Error::EventTracking`] while it is on,
    /// [`Error::BufferDevice`] for a pool of another device, [`Error::Candle`] for an error of the step before it is
    /// captured. [`Error::Capture`] when it cannot be captured, with the reason and what had been captured before it;
    /// [`Error::GraphAllocates`] when a library allocates for itself in it. After an error the stream, the device and
    /// the pool are as before.
    pub fn capture(
        pool: &MemPool,
        device: &Device,
        step: impl FnMut() -> candle_core::Result<T> + 'a,
    ) -> Result<Self> {
        if !pool.device.same_device(device) {
            return Err(Error::BufferDevice);
        }
        let mut step: Box<dyn FnMut() -> candle_core::Result<T> + 'a> = Box::new(step);
        let (graph, output) = Graph::capture(pool, device, WARM_UP_RUNS, &mut *step)?;
        Ok(Self { graph, output, step, pool: pool.clone(), replays: 0 })
    }

    /// Launches the graph. It runs in the order of the device's stream, after what was queued there before.
    ///
    /// # Errors
    /// [`Error::Capture`] when the driver refuses.
    pub fn replay(&mut self) -> Result<()> {
        self.replays += 1;
        self.graph.launch()
    }

    /// What the step returned: each replay writes its results there.
    #[must_use]
    pub fn output(&self) -> &T {
        &self.output
    }

    /// Writes `value` into an input of the step, in the order of the device's stream. It may lie on another device.
    ///
    /// # Errors
    /// [`Error::Candle`] for another shape or dtype, and for an input that is a view with gaps.
    pub fn write(&self, input: &Tensor, value: &Tensor) -> Result<()> {
        let copy = || -> candle_core::Result<()> {
            let value = value.to_device(&self.pool.device)?.contiguous()?;
            if value.shape() != input.shape() {
                candle_core::bail!("the input has shape {:?}, not {:?}", input.shape(), value.shape());
            }
            if value.elem_count() == 0 {
                return Ok(());
            }
            // A scalar has no dimension to write along.
            let (input, value) = if input.rank() == 0 {
                (input.reshape(1)?, value.reshape(1)?)
            } else {
                (input.clone(), value)
            };
            input.slice_set(&value, 0, 0)
        };
        self.pool.with(copy).map_err(Error::candle)
    }

    /// Runs the step twice, replays the graph, and compares all outputs bit by bit. To be called with inputs that
    /// differ from those at the capture: whatever should have followed them and did not shows.
    ///
    /// The step's own effects, such as a cache that grows, happen twice.
    ///
    /// # Errors
    /// As [`replay`](Self::replay); [`Error::Candle`] for an error of the step.
    pub fn verify(&mut self) -> Result<Verification> {
        let mut eager = || self.pool.with(&mut self.step).map_err(Error::candle);
        let first = eager()?;
        let second = eager()?;
        self.replay()?;
        verify::compare(&first.tensors(), &second.tensors(), &self.output.tensors())
    }

    /// Kernels, copies and fills that a replay launches.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.graph.node_count()
    }

    /// How often it was replayed.
    #[must_use]
    pub fn replay_count(&self) -> u64 {
        self.replays
    }
}

impl<T> fmt::Debug for CapturedStep<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedStep")
            .field("nodes", &self.graph.node_count())
            .field("replays", &self.replays)
            .finish_non_exhaustive()
    }
}
