//! The figures of several pools together: those of a device, or of the process.

use serde::{Deserialize, Serialize};

use super::PoolStats;

/// Figures of all pools of a device, or of the process, at one moment.
///
/// Pools are looked at one after the other, so while others allocate the sum is of no one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStats {
    /// The sum over all pools, those included that somebody made and those that are no more.
    ///
    /// Its peaks are sums of the pools' peaks, and of their arenas' in a pool of a device: what all together
    /// reached at most. They are more than was ever used at once unless all were at their peaks at the same
    /// time. Exact is the peak of `reserved` of one device. Pools that are no more have no peak.
    pub total: PoolStats,
    /// The pools that exist, the default pool first.
    pub pools: Vec<PoolStats>,
}

impl GroupStats {
    /// `total` begins with what pools came to that are no more.
    pub(crate) fn new(name: String, device: Option<u32>, past: Option<&PoolStats>) -> Self {
        let mut total = PoolStats { name, device, ..PoolStats::default() };
        past.into_iter().for_each(|past| total.add(past));
        Self { total, pools: Vec::new() }
    }

    pub(crate) fn push(&mut self, pool: PoolStats) {
        self.total.add(&pool);
        self.pools.push(pool);
    }

    /// Adds another group's total and its pools.
    pub(crate) fn join(&mut self, other: Self) {
        self.total.add(&other.total);
        self.pools.extend(other.pools);
    }
}
