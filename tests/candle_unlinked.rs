//! A candle program without the allocator line gets an error that names it.

use candle_core::Device;
use candle_mempool::{Error, MemPool, default_pool, empty_cache};

#[test]
fn the_error_names_the_line_of_this_crate() {
    let error = MemPool::new(&Device::Cpu).unwrap_err();
    assert!(matches!(error, Error::Pool(_)));
    let message = error.to_string();
    assert!(message.contains("static ALLOC: candle_mempool::PoolAllocator"), "{message}");
    assert!(default_pool(&Device::Cpu).unwrap_err().to_string().contains("candle_mempool::"));
    assert!(empty_cache(&Device::Cpu).is_err());
}

#[test]
fn the_error_converts_into_candles() {
    fn in_candle_code() -> candle_core::Result<MemPool> {
        Ok(MemPool::new(&Device::Cpu)?)
    }
    let error = in_candle_code().unwrap_err();
    assert!(error.to_string().contains("#[global_allocator]"), "{error}");
}
