//! What can go wrong between candle and its pools.

use mempool_pools::PoolError;
use thiserror::Error as ThisError;

/// The result of a pool operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a pool operation. Converts into candle's error, so that `?` works in a function
/// that returns [`candle_core::Result`].
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
    /// The pool refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        Self::wrap(error)
    }
}
