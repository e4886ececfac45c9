//! Figures under PyTorch's names.

use std::collections::BTreeMap;

use mempool_arena::Stat;

use super::{GroupStats, PoolStats};

/// Figures by name, in order of the names: what `torch.cuda.memory_stats` returns, with its keys.
///
/// `G.P.F` for each `G` of `allocation`, `segment`, `active`, `inactive_split` (counts) and `allocated_bytes`,
/// `reserved_bytes`, `active_bytes`, `inactive_split_bytes`, `requested_bytes`, each `P` of `all`,
/// `large_pool`, `small_pool`, and each `F` of `current`, `peak`, `allocated`, `freed`; the same `F` of
/// `oversize_allocations` and `oversize_segments`; `reserved_bytes_by_private_pools.0_ID.P.F` for pools that
/// somebody made; and counters. Where a figure means something else than PyTorch's:
///
/// * `large_pool`, `small_pool`: see [`SizeClass`](crate::SizeClass).
/// * `segment` and `inactive_split` count segments whose memory is mapped page by page as any others;
///   PyTorch leaves those out.
/// * `requested_bytes` is what live blocks were asked for. PyTorch counts a freed block that queued work uses
///   until that is done.
/// * `num_alloc_retries`: requests for which memory was given back and that were tried again. 0 on the host.
/// * `num_ooms`: requests that failed. On the host only a hard limit fails any.
/// * `num_oom_rejections`: the part of these that a limit, the memory fraction or the headroom refused.
/// * `num_sync_all_streams`: times that the whole device was waited for. 0 on the host.
/// * `num_device_alloc`, `num_device_free`: times that a pool mapped and unmapped memory. What a device's pool
///   unmapped may come back without a call of the driver, while work uses it.
/// * `max_split_size`: the least that policy `torch` does not cut; -1 where there is no such size, and the
///   least of all for several pools. The `oversize` figures count blocks and segments from that size on, and
///   are 0 without it.
///
/// Peaks of several pools are [sums](GroupStats::total).
pub type MemoryStats = BTreeMap<String, i64>;

/// The figures with this name for all, large and small segments.
struct Group<'a> {
    name: &'static str,
    parts: [&'a Stat; 3],
}

pub(super) const ALL: usize = 0;

/// PyTorch's names for all, and for the two classes.
const PARTS: [&str; 3] = ["all", "large_pool", "small_pool"];

fn groups(stats: &PoolStats) -> [Group<'_>; 9] {
    let PoolStats { placement: all, active, active_blocks, active_small, active_large, .. } = stats;
    let (large, small) = (&all.large, &all.small);
    let group = |name, all, large, small| Group { name, parts: [all, large, small] };
    [
        group("allocation", &all.blocks, &large.blocks, &small.blocks),
        group("segment", &all.segments, &large.segments, &small.segments),
        group("active", active_blocks, &active_large.blocks, &active_small.blocks),
        group(
            "inactive_split",
            &all.inactive_split_blocks,
            &large.inactive_split_blocks,
            &small.inactive_split_blocks,
        ),
        group("allocated_bytes", &all.allocated, &large.allocated, &small.allocated),
        group("reserved_bytes", &all.reserved, &large.reserved, &small.reserved),
        group("active_bytes", active, &active_large.bytes, &active_small.bytes),
        group("inactive_split_bytes", &all.inactive_split, &large.inactive_split, &small.inactive_split),
        group("requested_bytes", &all.requested, &large.requested, &small.requested),
    ]
}

/// The figures of a group by PyTorch's name of it, for all, large and small segments.
pub(super) fn group_named<'a>(stats: &'a PoolStats, name: &str) -> [&'a Stat; 3] {
    let found = groups(stats).into_iter().find(|group| group.name == name);
    found.expect("a group of this name").parts
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn insert(flat: &mut MemoryStats, prefix: &str, stat: &Stat) {
    for (figure, value) in [
        ("current", stat.current as u64),
        ("peak", stat.peak as u64),
        ("allocated", stat.total_allocated),
        ("freed", stat.total_freed()),
    ] {
        flat.insert(format!("{prefix}.{figure}"), number(value));
    }
}

fn insert_private(flat: &mut MemoryStats, pool: &PoolStats) {
    if pool.id == crate::registry::DEFAULT_ID {
        return;
    }
    for (part, stat) in PARTS.iter().zip(group_named(pool, "reserved_bytes")) {
        insert(flat, &format!("reserved_bytes_by_private_pools.0_{}.{part}", pool.id), stat);
    }
}

fn flat(stats: &PoolStats) -> MemoryStats {
    let mut flat = MemoryStats::new();
    for Group { name, parts } in groups(stats) {
        for (part, stat) in PARTS.iter().zip(parts) {
            insert(&mut flat, &format!("{name}.{part}"), stat);
        }
    }
    insert(&mut flat, "oversize_allocations", &stats.oversize_blocks);
    insert(&mut flat, "oversize_segments", &stats.oversize_segments);
    for (name, value) in [
        ("num_alloc_retries", stats.retries),
        ("num_ooms", stats.out_of_memory_count),
        ("num_oom_rejections", stats.limit_refusals),
        ("num_sync_all_streams", stats.synchronizations),
        ("num_device_alloc", stats.map_calls),
        ("num_device_free", stats.unmap_calls),
    ] {
        flat.insert(name.to_owned(), number(value));
    }
    let max_split = stats.max_split_bytes.map_or(-1, |bytes| number(bytes as u64));
    flat.insert("max_split_size".to_owned(), max_split);
    flat
}

impl PoolStats {
    /// The figures under PyTorch's names.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        let mut flat = flat(self);
        insert_private(&mut flat, self);
        flat
    }
}

impl GroupStats {
    /// The sums under PyTorch's names, and what each pool that somebody made has reserved.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        let mut flat = flat(&self.total);
        self.pools.iter().for_each(|pool| insert_private(&mut flat, pool));
        flat
    }
}
