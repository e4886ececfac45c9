//! Which sizes a run asks for.

use mempool_arena::bucket_of;
use mempool_arena::trace::Event;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Requests of `[2^k, 2^(k+1))` bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeBucket {
    /// Its number `k`, as [`bucket_of`] tells it.
    pub bucket: usize,
    /// How many there were.
    pub requests: u64,
    /// Their bytes; `None` where only their number is known.
    pub bytes: Option<u64>,
    /// How many of them were live when most was; `None` where that is not known.
    pub live_at_peak: Option<u64>,
    /// Their bytes then.
    pub live_at_peak_bytes: Option<u64>,
}

/// The sizes of a run's requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// The buckets that have requests, by size.
    pub buckets: Vec<SizeBucket>,
    /// All requests.
    pub requests: u64,
    /// Sizes that differ from each other; `None` where only their buckets are known.
    pub distinct: Option<u64>,
    /// How scattered they are: as many sizes, all asked for equally often, would be as hard to guess (2 to the power
    /// of the sizes' entropy in bits). 1 where all are equal, `requests` where no two are; `None` as `distinct`.
    pub effective: Option<f64>,
    /// The most that was asked for at once, in bytes; of the part that is known.
    pub peak_requested_bytes: usize,
}

impl Sizes {
    /// Those of a trace that is known to be valid.
    pub(super) fn of(events: &[Event]) -> Self {
        let mut counts: FxHashMap<usize, u64> = FxHashMap::default();
        let mut buckets = [SizeBucket::default(); usize::BITS as usize];
        let mut live = Live::default();
        let (mut peak_bytes, mut peak_at) = (0, 0);
        for (at, event) in events.iter().enumerate() {
            if let &Event::Allocate { size_bytes, .. } = event {
                *counts.entry(size_bytes).or_default() += 1;
                let bucket = &mut buckets[bucket_of(size_bytes)];
                bucket.requests += 1;
                bucket.bytes = Some(bucket.bytes.unwrap_or(0) + size_bytes as u64);
            }
            live.apply(event);
            if live.bytes > peak_bytes {
                (peak_bytes, peak_at) = (live.bytes, at + 1);
            }
        }
        let mut live = Live::default();
        events[..peak_at].iter().for_each(|event| live.apply(event));
        for &size_bytes in live.sizes.values() {
            let bucket = &mut buckets[bucket_of(size_bytes)];
            bucket.live_at_peak = Some(bucket.live_at_peak.unwrap_or(0) + 1);
            let bytes = bucket.live_at_peak_bytes.unwrap_or(0) + size_bytes as u64;
            bucket.live_at_peak_bytes = Some(bytes);
        }
        let requests = counts.values().sum();
        let mut found = Self {
            requests,
            distinct: Some(counts.len() as u64),
            effective: Some(effective(counts.values().copied(), requests)),
            peak_requested_bytes: peak_bytes,
            ..Self::default()
        };
        for (number, bucket) in buckets.into_iter().enumerate().filter(|(_, bucket)| bucket.requests > 0) {
            let known = |figure: Option<u64>| Some(figure.unwrap_or(0));
            found.buckets.push(SizeBucket {
                bucket: number,
                live_at_peak: known(bucket.live_at_peak),
                live_at_peak_bytes: known(bucket.live_at_peak_bytes),
                ..bucket
            });
        }
        found
    }
}

/// What is live.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) sizes: FxHashMap<u64, usize>,
    pub(super) bytes: usize,
}

impl Live {
    pub(super) fn apply(&mut self, event: &Event) {
        match *event {
            Event::Allocate { id, size_bytes, .. } => {
                self.bytes += size_bytes;
                self.sizes.insert(id, size_bytes);
            }
            Event::Free { id } => self.bytes -= self.sizes.remove(&id).unwrap_or(0),
            Event::FreeCompleted { .. } | Event::StepEnd { .. } => {}
        }
    }
}

fn effective(counts: impl Iterator<Item = u64>, all: u64) -> f64 {
    let bits: f64 = counts
        .map(|count| {
            let share = count as f64 / all as f64;
            -share * share.log2()
        })
        .sum();
    bits.exp2()
}
