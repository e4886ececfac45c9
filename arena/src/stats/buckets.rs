//! Hits and misses by the size of requests.

use std::ops::Sub;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of size buckets: bucket `k` counts requests of `[2^k, 2^(k+1))` bytes.
pub const BUCKET_COUNT: usize = usize::BITS as usize;

/// The bucket of a request of `size_bytes`; zero counts as one byte.
#[must_use]
#[inline]
pub const fn bucket_of(size_bytes: usize) -> usize {
    (usize::BITS - 1 - (size_bytes | 1).leading_zeros()) as usize
}

/// Requests of one size bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketStats {
    /// Served from memory that was mapped already.
    pub hits: u64,
    /// Served after mapping.
    pub misses: u64,
}

impl BucketStats {
    /// All requests that were served.
    #[must_use]
    pub fn requests(self) -> u64 {
        self.hits + self.misses
    }
}

impl Sub for BucketStats {
    type Output = Self;

    /// What was counted since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self { hits: self.hits - earlier.hits, misses: self.misses - earlier.misses }
    }
}

type Buckets = Box<[BucketStats; BUCKET_COUNT]>;

/// Buckets as a sequence, which serde derives for short arrays only.
pub(super) fn serialize<S: Serializer>(buckets: &Buckets, serializer: S) -> Result<S::Ok, S::Error> {
    buckets.as_slice().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Buckets, D::Error> {
    let buckets = Vec::<BucketStats>::deserialize(deserializer)?;
    let count = buckets.len();
    let wrong = || D::Error::custom(format!("{count} size buckets, where there are {BUCKET_COUNT}"));
    buckets.into_boxed_slice().try_into().map_err(|_| wrong())
}
