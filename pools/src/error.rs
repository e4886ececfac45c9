//! What can go wrong with pools.

use mempool_arena::ArenaError;
use thiserror::Error;

/// Failure of a pool operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The program does not use the pools' allocator, so no allocation could reach a pool.
    #[error(
        "the global allocator of this program is not the pools' one: add\n\n    #[global_allocator]\n    \
         static ALLOC: {path}::PoolAllocator = {path}::PoolAllocator::new();\n\nto the program's main file \
         (a library must not declare it)"
    )]
    AllocatorNotLinked {
        /// The crate to name in that line.
        path: &'static str,
    },
    /// Host pools do not work in this process; every request goes to the inner allocator.
    #[error("host pools are not available in this process: {reason}")]
    PassThrough {
        /// Why.
        reason: String,
    },
    /// As many pools exist as can.
    #[error("{limit} pools exist already, which is the most there can be")]
    TooManyPools {
        /// The most that can exist at once.
        limit: usize,
    },
    /// An option has a value that cannot work.
    #[error("{option} of {value} cannot work: {rule}")]
    Option {
        /// The option.
        option: &'static str,
        /// The value given.
        value: usize,
        /// What it has to satisfy.
        rule: &'static str,
    },
    /// The placement refused.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}
