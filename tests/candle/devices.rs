//! Devices without pools.

use candle_core::Device;
use candle_mempool::{Error, MemPool};

#[test]
fn a_metal_device_is_a_typed_error() {
    // A build without Metal has a device of that kind all the same, which can only be named.
    let device = Device::Metal(candle_core::MetalDevice);
    let error = MemPool::new(&device).unwrap_err();
    assert_eq!(error, Error::Unsupported { device: "Metal" });
    assert!(error.to_string().contains("Metal"), "{error}");
}
