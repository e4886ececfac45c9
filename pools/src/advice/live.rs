//! Advice on a pool of this process.

use std::time::Duration;

use mempool_arena::{CostModel, HandleCost};

use super::thresholds::FEW_REQUESTS;
use super::{Advice, AdviceError, AdviceOptions, Happening, Kind, Window, advise_on_stats, advise_on_window};
use crate::history::{self, Kind as Happened};
use crate::pool::{MemPool, Place};
use crate::process;
use crate::scope::without_pools;
use crate::snapshot::BlockState;
use crate::thread_state::inside;

impl MemPool {
    /// What suits what the pool was used for: see [`advise`](super::advise).
    ///
    /// Where a [history](crate::record_history) is kept, its entries of this pool are replayed under every policy, which
    /// takes some seconds for a million of them; with fewer than 100 allocations, and without a history, the
    /// pool's counters have to do, and the advice says what they do not tell. Memory, duration, the kind of memory and
    /// what mapping took so far are filled in where `options` does not say them.
    ///
    /// ```
    /// use mempool_pools::advice::{AdviceOptions, Strategy};
    /// use mempool_pools::{HistoryOptions, MemPool, PoolAllocator, mark_step, record_history, stop_history};
    ///
    /// #[global_allocator]
    /// static ALLOC: PoolAllocator = PoolAllocator::new();
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// record_history(HistoryOptions::default())?;
    /// let pool = MemPool::new()?;
    /// for _ in 0..60 {
    ///     let tensors = pool.with(|| (vec![1.0_f32; 1 << 20], vec![1.0_f32; 1 << 19]));
    ///     drop(tensors);
    ///     mark_step();
    /// }
    /// let advice = pool.advise(&AdviceOptions { device_bytes: Some(32 << 20), ..AdviceOptions::default() })?;
    /// assert_eq!(advice.recommendation.strategy, Strategy::StepPlan);
    /// println!("{advice}");
    /// # stop_history();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AdviceError::Empty`] when the pool was not used.
    pub fn advise(&self, options: &AdviceOptions) -> Result<Advice, AdviceError> {
        let known = inside(|| self.known());
        // What the replays allocate is nobody's: it is not to change what they look at.
        without_pools(|| known.advise(self, options))
    }

    /// What is known of the pool. The caller is inside pool code.
    fn known(&self) -> Known {
        let (device, device_bytes) = match self.place() {
            Place::Host(_) => (None, process::available_for(0.0).total_bytes),
            Place::Device(slot) => (Some(slot.device.id), slot.device.total_bytes),
        };
        let log = history::view();
        let mut known = Known { is_host: device.is_none(), device_bytes, window: None, dropped: 0 };
        let Some(log) = log else { return known };
        known.dropped = log.dropped();
        let is_here =
            |source: crate::recording::Source| source.device == device && source.pool_id == self.id();
        let entries = log.entries().filter(|entry| is_here(entry.source)).filter_map(|entry| {
            let is_allocation = match entry.kind {
                Happened::Allocated => true,
                Happened::Completed => false,
                Happened::Freed | Happened::OutOfMemory | Happened::Mapped | Happened::Unmapped => {
                    return None;
                }
            };
            Some(Happening {
                is_allocation,
                addr: entry.addr as u64,
                size_bytes: entry.bytes,
                stream: crate::snapshot::stream_number(entry.source.order),
                step: entry.by.step,
                time_us: entry.by.time_us,
            })
        });
        let snapshot = self.snapshot();
        let live = snapshot.segments.iter().flat_map(|segment| {
            let used = segment.blocks.iter().filter(|block| {
                block.state == BlockState::ActiveAllocated && block.requested_size > 0 && !block.is_kept
            });
            used.map(|block| (block.address as u64, block.requested_size, segment.stream))
        });
        known.window = Some(Window::new(entries, live));
        known
    }
}

/// What a pool and the history tell.
struct Known {
    is_host: bool,
    device_bytes: usize,
    window: Option<Window>,
    dropped: u64,
}

impl Known {
    fn advise(self, pool: &MemPool, options: &AdviceOptions) -> Result<Advice, AdviceError> {
        let stats = pool.stats();
        let kind = if self.is_host { Kind::Host } else { Kind::Device };
        let device_bytes = options.device_bytes.or(Some(self.device_bytes).filter(|&bytes| bytes > 0));
        let mut options = AdviceOptions { kind, device_bytes, ..options.clone() };
        if let Some(costs) = measured(stats.mapping_time, stats.map_calls) {
            options.costs = costs;
        }
        let Some(window) = self.window.filter(|window| window.allocations >= FEW_REQUESTS) else {
            return advise_on_stats(&stats.placement, &options);
        };
        advise_on_window(&window, self.dropped, &options, |_| {})
    }
}

/// What mapping took in this process, where that is known: all calls alike.
fn measured(mapping_time: Duration, map_calls: u64) -> Option<CostModel> {
    if map_calls == 0 || mapping_time.is_zero() {
        return None;
    }
    let create_us = mapping_time.as_secs_f64() * 1e6 / map_calls as f64;
    let handle =
        HandleCost { bytes: 2 << 20, create_us, map_us: 0.0, access_us: 0.0, unmap_us: 0.0, release_us: 0.0 };
    Some(CostModel { handles: vec![handle] })
}
