//! What is live when a pool closes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::history;
use crate::pool::MemPool;
use crate::snapshot::{Block, Snapshot};

/// Blocks of one place that were live when a pool closed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// Where they were allocated, as `optimizer.rs:88`; empty where a [history](crate::record_history) keeps no call stacks.
    pub site: String,
    /// The [labels](crate::label) that they were allocated under.
    pub label: String,
    /// The name of the thread that allocated the oldest.
    pub thread: String,
    /// How many blocks.
    pub blocks: usize,
    /// Bytes that were asked for in them.
    pub bytes: usize,
    /// The step in which the oldest was allocated.
    pub step: u32,
    /// How long the oldest has been there; `None` for what was live before the history began.
    pub age: Option<Duration>,
    /// The library that keeps such blocks for itself, if that is why they are there.
    pub library: Option<&'static str>,
}

/// What is live in a pool, by where it comes from: the most bytes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// The pool's name.
    pub pool: String,
    /// What is live.
    pub leaks: Vec<Leak>,
    /// Whether a history tells of it.
    pub has_history: bool,
}

/// What of libraries keeps memory for later, for as long as a thread, a device or the process: parts of the names of functions or
/// files, and what it is. Where debug information has lines only, names are short, and for some the file alone tells.
const KEEPERS: [(&str, &str); 7] = [
    ("/gemm-common-", "gemm's buffer of a thread"),
    ("gemm_common::", "gemm's buffer of a thread"),
    ("params_from_vec", "candle's cache of parameters of the process"),
    ("cached_htod_slice", "candle's cache of parameters of a thread"),
    ("/quantized/fast_mmq.rs", "candle's workspace for quantized products"),
    ("/quantized/k_quants.rs", "candle's buffer of a thread for quantized products"),
    ("/src/cublas/safe/", "cuBLAS's workspace"),
];

impl LeakReport {
    fn of(pool: String, snapshot: &Snapshot) -> Self {
        let mut leaks: BTreeMap<(String, String, bool), Leak> = BTreeMap::new();
        // The oldest comes first, and gives its figures.
        for block in snapshot.oldest_blocks().into_iter().chain(snapshot.unowned_blocks()) {
            let site = snapshot.call_site(block.stack).map(crate::snapshot::Frame::place).unwrap_or_default();
            let label = block.owner.as_ref().map(|owner| owner.label.clone()).unwrap_or_default();
            let is_known = block.owner.as_ref().is_some_and(|owner| !owner.is_older);
            let leak = leaks.entry((site.clone(), label.clone(), is_known)).or_insert_with(|| Leak {
                site,
                label,
                thread: block.owner.as_ref().map(|owner| owner.thread.clone()).unwrap_or_default(),
                blocks: 0,
                bytes: 0,
                step: block.owner.as_ref().map_or(0, |owner| owner.step),
                age: age(block, snapshot),
                library: keeper(block, snapshot),
            });
            leak.blocks += 1;
            leak.bytes += block.requested_size;
        }
        let mut leaks: Vec<Leak> = leaks.into_values().collect();
        leaks.sort_by_key(|leak| std::cmp::Reverse(leak.bytes));
        Self { pool, leaks, has_history: snapshot.mempool.dropped_entries.is_some() }
    }

    /// Whether nothing is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaks.is_empty()
    }

    /// Live blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.leaks.iter().map(|leak| leak.blocks).sum()
    }

    /// Bytes that were asked for in them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.leaks.iter().map(|leak| leak.bytes).sum()
    }
}

fn age(block: &Block, snapshot: &Snapshot) -> Option<Duration> {
    let owner = block.owner.as_ref().filter(|owner| !owner.is_older)?;
    Some(Duration::from_micros(snapshot.mempool.time_us.saturating_sub(owner.time_us)))
}

fn keeper(block: &Block, snapshot: &Snapshot) -> Option<&'static str> {
    let frames = &snapshot.mempool.stacks.get(block.stack? as usize)?.frames;
    let keeps = |(part, _): &&(&str, &'static str)| {
        frames.iter().any(|frame| frame.name.contains(part) || frame.filename.contains(part))
    };
    KEEPERS.iter().find(keeps).map(|(_, what)| *what)
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// What stands in one message; the report has all.
        const SHOWN: usize = 10;
        if self.is_empty() {
            return write!(f, "pool \"{}\" has no live blocks", self.pool);
        }
        let (blocks, bytes) = (self.blocks(), self.bytes());
        let plural = if blocks == 1 { "block" } else { "blocks" };
        write!(f, "pool \"{}\" has {blocks} live {plural} of {bytes} bytes in all", self.pool)?;
        for leak in self.leaks.iter().take(SHOWN) {
            let Leak { site, label, thread, blocks, bytes, step, age, library } = leak;
            write!(f, "; {blocks} of {bytes} bytes")?;
            if !site.is_empty() {
                write!(f, " from {site}")?;
            }
            if !label.is_empty() {
                write!(f, " under {label}")?;
            }
            match age {
                Some(age) => write!(f, ", thread \"{thread}\", step {step}, {:.1} s old", age.as_secs_f64())?,
                None if self.has_history => f.write_str(", of before the history")?,
                None => {}
            }
            if let Some(library) = library {
                write!(f, ": {library}, no leak")?;
            }
        }
        match self.leaks.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} places more"),
        }
    }
}

impl MemPool {
    /// What is live in the pool, by where it comes from.
    ///
    /// With a [history](crate::record_history) it says when, under which label and on which thread the blocks were allocated,
    /// and with [call stacks](crate::CallStacks) where in the program. While one is kept, the end of a pool's last handle with
    /// live blocks is reported as this, by a warning through `tracing` with target `mempool_pools::leaks`: what is live stays valid
    /// and keeps the pool's memory.
    ///
    /// ```
    /// use mempool_pools::{HistoryOptions, MemPool, PoolAllocator, label, record_history};
    ///
    /// #[global_allocator]
    /// static ALLOC: PoolAllocator = PoolAllocator::new();
    ///
    /// # fn main() -> Result<(), mempool_pools::PoolError> {
    /// record_history(HistoryOptions::new())?;
    /// let pool = MemPool::new()?;
    /// let _label = label("cache");
    /// let kept = pool.with(|| vec![1_u8; 1 << 20]);
    /// let report = pool.leaks();
    /// assert_eq!((report.leaks[0].label.as_str(), report.bytes()), ("cache", 1 << 20));
    /// # drop(kept);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn leaks(&self) -> LeakReport {
        let snapshot = self.snapshot();
        let name = snapshot.mempool.pools.first().map(|pool| pool.name.clone()).unwrap_or_default();
        LeakReport::of(name, &snapshot)
    }
}

/// Reports what is live in a pool whose last handle ends, if a history is kept. The caller is not inside pool code: whoever
/// listens to the report may do what it likes.
pub(crate) fn report(look: impl FnOnce() -> Snapshot) {
    if !history::is_kept() {
        return;
    }
    let snapshot = look();
    let name = snapshot.mempool.pools.first().map(|pool| pool.name.clone()).unwrap_or_default();
    let report = LeakReport::of(name, &snapshot);
    if !report.is_empty() {
        tracing::warn!(blocks = report.blocks(), bytes = report.bytes(), "a pool closes: {report}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libraries_keep_is_no_leak() {
        // As debug information with lines only has it, and whole.
        for (name, file, expected) in [
            (
                "with_capacity",
                "/registry/src/x/gemm-common-0.19.0/src/gemm.rs",
                Some("gemm's buffer of a thread"),
            ),
            ("gemm_common::gemm::L2_SLAB::{{constant}}", "", Some("gemm's buffer of a thread")),
            (
                "params_from_vec",
                "/candle-core/src/cuda_backend/mod.rs",
                Some("candle's cache of parameters of the process"),
            ),
            ("forward", "/a/model.rs", None),
        ] {
            let text = serde_json::json!({
                "segments": [{"address": 4096, "total_size": 512, "blocks": [
                    {"size": 512, "requested_size": 500, "state": "active_allocated", "frames": [
                        {"name": name, "filename": file, "line": 3}, {"name": "main", "filename": "/a/main.rs", "line": 9},
                    ]},
                ]}],
                "device_traces": [[]],
            });
            let snapshot = Snapshot::read(text.to_string().as_bytes()).unwrap();
            let report = LeakReport::of("pool".to_owned(), &snapshot);
            assert_eq!(
                (report.blocks(), report.bytes(), report.leaks[0].library),
                (1, 500, expected),
                "{name}"
            );
            assert_eq!(report.to_string().ends_with(", no leak"), expected.is_some(), "{report}");
        }
    }
}
