//! Out-operations on a device that this build has no code for.

use candle_core::{CudaStorage, DeviceLocation, Layout};

use super::check::Operand;
use super::op::Op;
use crate::error::{Error, Result};

/// There are no CUDA tensors in this build.
pub(super) fn run(op: &Op, _: &mut CudaStorage, _: &Layout, _: &[Operand<'_, CudaStorage>]) -> Result<()> {
    Err(Error::UnsupportedOp { op: op.name(), device: DeviceLocation::Cuda { gpu_id: 0 } })
}
