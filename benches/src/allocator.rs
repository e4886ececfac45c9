//! The allocators under comparison and the names of their worker binaries.

use serde::{Deserialize, Serialize};

/// One allocator under comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocator {
    /// The C library's malloc, through `std::alloc::System`.
    Glibc,
    /// mimalloc with its default options.
    Mimalloc,
    /// jemalloc with its default options.
    Jemalloc,
    /// candle-mempool: `PoolAllocator` with every step inside one pool.
    Pool,
}

impl Allocator {
    /// Every allocator, in the order of a round.
    pub const ALL: [Self; 4] = [Self::Glibc, Self::Mimalloc, Self::Jemalloc, Self::Pool];

    /// The allocators the pool is measured against.
    pub const PEERS: [Self; 3] = [Self::Glibc, Self::Mimalloc, Self::Jemalloc];

    /// The name in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::Pool => "pool",
        }
    }

    /// The file name of the worker binary, without a platform suffix.
    pub fn worker(self) -> String {
        format!("worker-{}", self.name())
    }

    /// The position in [`Allocator::ALL`], for arrays that hold one value an allocator.
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Allocator;

    #[test]
    fn index_is_the_position_in_all() {
        for (position, allocator) in Allocator::ALL.into_iter().enumerate() {
            assert_eq!(allocator.index(), position);
        }
    }

    #[test]
    fn the_pool_is_not_its_own_peer() {
        assert!(!Allocator::PEERS.contains(&Allocator::Pool));
        assert_eq!(Allocator::PEERS.len() + 1, Allocator::ALL.len());
    }
}
