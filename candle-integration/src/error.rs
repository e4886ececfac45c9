//! What can go wrong between candle and its pools.

use std::sync::Arc;

use candle_core::{DType, DeviceLocation};
use mempool_pools::PoolError;
use thiserror::Error as ThisError;

/// The result of a pool operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a pool operation, or of an operation that writes into a given tensor
/// ([`TensorOut`](crate::TensorOut)); in the latter nothing was written unless the variant says so. Converts into
/// candle's error, so that `?` works in a function that returns [`candle_core::Result`].
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// Pools do not exist for this kind of device.
    #[error("there are no memory pools for {device} devices")]
    Unsupported {
        /// The device's kind.
        device: &'static str,
    },
    /// The tensor's memory came from the driver, not from a pool.
    #[error("the tensor does not lie in a pool")]
    NotPooled,
    /// A result that does not fit into its buffer.
    #[error("the buffer is for results of shape {expected:?}, not {got:?}")]
    BufferShape {
        /// The buffer's shape.
        expected: Vec<usize>,
        /// The result's shape.
        got: Vec<usize>,
    },
    /// A result of another dtype than its buffer.
    #[error("the buffer is for results of dtype {expected:?}, not {got:?}")]
    BufferDType {
        /// The buffer's dtype.
        expected: DType,
        /// The result's dtype.
        got: DType,
    },
    /// A result on another device than its buffer, or computed by another stream.
    #[error("the result is another device's or another stream's than the buffer")]
    BufferDevice,
    /// A buffer of more bytes than can be counted.
    #[error("a buffer of shape {shape:?} has more bytes than can be counted")]
    BufferTooLarge {
        /// The shape.
        shape: Vec<usize>,
    },
    /// A buffer that holds nothing.
    #[error("the buffer holds nothing: it was not written, or its last write failed")]
    BufferEmpty,
    /// A name that a set of buffers has already.
    #[error("there is a buffer {name:?} already")]
    BufferExists {
        /// The name.
        name: String,
    },
    /// A name that a set of buffers does not have.
    #[error("there is no buffer {name:?}: there are {}", known.join(", "))]
    NoBuffer {
        /// The name.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A device that cannot capture steps.
    #[error("steps cannot be captured on {device} devices")]
    NoGraphs {
        /// The device's kind.
        device: &'static str,
    },
    /// Events would have to be waited for that were recorded outside of the capture.
    #[error(
        "a step cannot be captured while cudarc tracks events: call disable_event_tracking on the device before tensors \
         are made, and use them on one stream"
    )]
    EventTracking,
    /// A step that cannot be captured, or a graph that the driver refuses.
    #[error("the step cannot be captured: {reason}")]
    Capture {
        /// What was refused, and by whom.
        reason: String,
    },
    /// A graph that would allocate memory at each replay.
    #[error(
        "the graph allocates or frees memory by itself in {nodes} places: some library does so in the step"
    )]
    GraphAllocates {
        /// How many.
        nodes: usize,
    },
    /// The computation failed.
    #[error(transparent)]
    Candle(CandleError),
    /// The operation does not exist for this kind of device, or not in this build.
    #[error("{op} has no implementation for {device:?}")]
    UnsupportedOp {
        /// The operation.
        op: &'static str,
        /// Where the output lies.
        device: DeviceLocation,
    },
    /// The operation does not exist for numbers of this format on this device.
    #[error("{op} has no implementation for {dtype:?}")]
    UnsupportedDType {
        /// The operation.
        op: &'static str,
        /// The format.
        dtype: DType,
    },
    /// The sources' shapes do not go together, or not with the operation's parameters.
    #[error("{op} does not take sources of shapes {shapes:?}: {reason}")]
    Shapes {
        /// The operation.
        op: &'static str,
        /// The sources' shapes.
        shapes: Vec<Vec<usize>>,
        /// The rule that is broken.
        reason: &'static str,
    },
    /// The output does not have the result's shape.
    #[error("the result of {op} has shape {expected:?}, and the output {got:?}")]
    OutputShape {
        /// The operation.
        op: &'static str,
        /// The result's shape.
        expected: Vec<usize>,
        /// The output's.
        got: Vec<usize>,
    },
    /// A tensor's numbers have another format than the operation needs there.
    #[error("{op} needs {operand} of {expected:?}, not of {got:?}")]
    OperandDType {
        /// The operation.
        op: &'static str,
        /// The tensor's part in the operation: `"output"`, `"source 1"`.
        operand: String,
        /// The format that is needed.
        expected: DType,
        /// The tensor's.
        got: DType,
    },
    /// The tensors lie on different devices.
    #[error("{op} needs {operand} on {expected:?}, not on {got:?}")]
    OperandDevice {
        /// The operation.
        op: &'static str,
        /// The tensor's part in the operation.
        operand: String,
        /// Where the output lies.
        expected: DeviceLocation,
        /// Where the tensor lies.
        got: DeviceLocation,
    },
    /// A tensor's elements do not lie in memory as the operation needs it.
    #[error("{op} needs {operand} {requirement}, not of shape {shape:?} with strides {strides:?}")]
    OperandLayout {
        /// The operation.
        op: &'static str,
        /// The tensor's part in the operation.
        operand: String,
        /// What is needed, as in `"contiguous"`.
        requirement: &'static str,
        /// The tensor's shape.
        shape: Vec<usize>,
        /// Its strides, in elements.
        strides: Vec<usize>,
    },
    /// The output shares memory with a source in a way that the operation would read what it wrote.
    #[error("{op} would overwrite source {source_index}, which shares memory with the output")]
    Aliased {
        /// The operation.
        op: &'static str,
        /// Which source, from 0.
        source_index: usize,
    },
    /// The tensor takes part in automatic differentiation, which would not know of what is written. Detach it.
    #[error("{op} does not take {operand}, whose gradient is tracked: detach it")]
    Tracked {
        /// The operation.
        op: &'static str,
        /// The tensor's part in the operation.
        operand: String,
    },
    /// A dimension that the tensor does not have, or has once and was asked for twice.
    #[error("{op} on shape {shape:?}: {message}")]
    Dimension {
        /// The operation.
        op: &'static str,
        /// The source's shape.
        shape: Vec<usize>,
        /// What candle says of the dimension.
        message: String,
    },
    /// An index that the indexed dimension does not have.
    #[error("{op} is asked for index {index} of {len}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        len: usize,
    },
    /// candle or the driver failed. What the output holds is then not defined.
    #[error("{op} failed: {message}")]
    Failed {
        /// The operation.
        op: &'static str,
        /// What was said.
        message: String,
    },
    /// The pool refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl Error {
    pub(crate) fn candle(error: candle_core::Error) -> Self {
        Self::Candle(CandleError(Arc::new(error)))
    }
}

/// An error of candle, from a computation that was to be done. Two are equal when they say the same.
#[derive(Debug, Clone, ThisError)]
#[error(transparent)]
pub struct CandleError(Arc<candle_core::Error>);

impl CandleError {
    /// What candle said.
    #[must_use]
    pub fn error(&self) -> &candle_core::Error {
        &self.0
    }
}

impl PartialEq for CandleError {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

impl Eq for CandleError {}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            // What came from candle goes back to it as it was.
            Error::Candle(CandleError(error)) => {
                Arc::try_unwrap(error).unwrap_or_else(|error| Self::wrap(CandleError(error)))
            }
            other => Self::wrap(other),
        }
    }
}
