//! Which kind of pool a candle device has.

use candle_core::Device;

use crate::error::{Error, Result};

/// `Ok` for devices that have host pools.
pub(crate) fn require_host(device: &Device) -> Result<()> {
    match device {
        Device::Cpu => Ok(()),
        Device::Cuda(_) => Err(Error::Unsupported { device: "CUDA" }),
        Device::Metal(_) => Err(Error::Unsupported { device: "Metal" }),
    }
}
