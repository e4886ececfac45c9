use std::collections::BTreeSet;

use mempool_pools::{GroupStats, MemPool, MemoryStats, Policy, SummaryRows};

use crate::suite::{BIG, big};

/// PyTorch's names of figures.
const GROUPS: [&str; 9] = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
];
const FIGURES: [&str; 4] = ["current", "peak", "allocated", "freed"];
const COUNTERS: [&str; 7] = [
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
    "max_split_size",
];

fn keys_of(prefixes: &[String]) -> BTreeSet<String> {
    prefixes.iter().flat_map(|prefix| FIGURES.map(|figure| format!("{prefix}.{figure}"))).collect()
}

fn in_parts(name: &str) -> [String; 3] {
    ["all", "large_pool", "small_pool"].map(|part| format!("{name}.{part}"))
}

#[test]
fn figures_have_pytorchs_keys_in_order_and_no_other() {
    let pool = MemPool::new().unwrap();
    let mut prefixes: Vec<String> = GROUPS.iter().flat_map(|name| in_parts(name)).collect();
    prefixes.extend(["oversize_allocations", "oversize_segments"].map(str::to_owned));
    let mut expected = keys_of(&prefixes);
    assert_eq!(expected.len(), 108 + 8);
    expected.extend(COUNTERS.map(str::to_owned));
    let private = format!("reserved_bytes_by_private_pools.0_{}", pool.id());
    let own = keys_of(&in_parts(&private));
    let found: BTreeSet<String> = pool.memory_stats().into_keys().collect();
    assert_eq!(found, &expected | &own);
    // The process has those of each pool that somebody made.
    let found: BTreeSet<String> = mempool_pools::memory_stats().into_keys().collect();
    assert!(found.is_superset(&(&expected | &own)));
    let others = found.difference(&expected);
    assert!(others.clone().all(|key| key.starts_with("reserved_bytes_by_private_pools.0_")));
    let default = mempool_pools::default_pool().unwrap().memory_stats();
    assert_eq!(default.len(), expected.len(), "the default pool is nobody's own");
}

fn get(stats: &MemoryStats, key: &str) -> i64 {
    *stats.get(key).unwrap_or_else(|| panic!("{key} is not there"))
}

#[test]
fn small_and_large_requests_are_counted_apart_where_segments_are() {
    for (policy, apart) in [
        (Policy::Pages, true),
        (Policy::Torch, true),
        (Policy::Buckets, true),
        (Policy::Simple, true),
        (Policy::Buddy, false),
        (Policy::Bfc, false),
    ] {
        let pool = MemPool::builder().policy(policy).build().unwrap();
        let blocks = pool.with(|| (vec![1_u8; BIG], vec![1_u8; BIG / 2], vec![1_u8; BIG + 1]));
        let stats = pool.memory_stats();
        let small = if apart { 2 } else { 0 };
        assert_eq!(get(&stats, "allocation.small_pool.current"), small, "{policy:?}");
        assert_eq!(get(&stats, "allocation.large_pool.current"), 3 - small, "{policy:?}");
        let bytes = if apart { BIG + BIG / 2 } else { 0 } as i64;
        assert_eq!(get(&stats, "requested_bytes.small_pool.current"), bytes);
        assert_eq!(get(&stats, "reserved_bytes.small_pool.current") > 0, apart, "{policy:?}");
        drop(blocks);
        let stats = pool.memory_stats();
        for name in ["allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes"] {
            for part in in_parts(name) {
                assert_eq!(get(&stats, &format!("{part}.current")), 0, "{part}");
                let went = get(&stats, &format!("{part}.freed"));
                assert_eq!(went, get(&stats, &format!("{part}.allocated")), "{part}");
            }
        }
    }
}

#[test]
fn totals_and_counters_begin_anew_and_what_is_there_stays() {
    let pool = MemPool::new().unwrap();
    let (kept, gone) = pool.with(|| (big(), big()));
    drop(gone);
    let before = pool.memory_stats();
    pool.reset_accumulated_stats();
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.map_calls), (0, 0, 0));
    assert!(stats.buckets.iter().all(|bucket| bucket.requests() == 0));
    let after = pool.memory_stats();
    for (key, value) in &after {
        if key.ends_with(".allocated") || key.ends_with(".freed") || key.starts_with("num_") {
            assert_eq!(*value, 0, "{key}");
        } else {
            assert_eq!(*value, before[key], "{key}");
        }
    }
    drop(kept);
    let after = pool.memory_stats();
    assert_eq!(get(&after, "requested_bytes.all.freed"), BIG as i64, "what was there then and is gone");
    assert_eq!(get(&after, "requested_bytes.all.allocated"), 0);
    assert_eq!(get(&after, "requested_bytes.all.peak"), 2 * BIG as i64);
    pool.reset_peak_stats();
    let after = pool.memory_stats();
    for part in in_parts("requested_bytes") {
        assert_eq!(get(&after, &format!("{part}.peak")), 0);
    }
}

#[test]
fn a_pool_that_is_no_more_stays_in_the_totals() {
    let bytes = 37 * BIG;
    let before = mempool_pools::stats().total;
    let pool = MemPool::new().unwrap();
    let id = pool.id();
    drop(pool.with(|| vec![1_u8; bytes]));
    drop(pool);
    let after = mempool_pools::stats();
    assert!(after.pools.iter().all(|pool| pool.id != id));
    let came = after.total.requested.total_allocated - before.requested.total_allocated;
    assert!(came >= bytes as u64, "{came}");
    let went = after.total.requested.total_freed() - before.requested.total_freed();
    assert!(went >= bytes as u64, "{went}");
}

#[test]
fn figures_of_the_process_are_the_sum_of_its_pools_and_survive_json() {
    let pools: Vec<MemPool> = (0..3).map(|_| MemPool::new().unwrap()).collect();
    let kept: Vec<Vec<u8>> = pools.iter().map(|pool| pool.with(big)).collect();
    let group = mempool_pools::stats();
    let sum = group.pools.iter().map(|pool| pool.requested.current).sum::<usize>();
    assert_eq!(group.total.requested.current, sum);
    for pool in &pools {
        let said = group.pools.iter().find(|said| said.id == pool.id() && said.device.is_none()).unwrap();
        assert_eq!((&said.name, said.requested.current), (&pool.stats().name, BIG));
    }
    let text = serde_json::to_string(&group).unwrap();
    assert_eq!(serde_json::from_str::<GroupStats>(&text).unwrap(), group);
    drop(kept);
}

#[test]
fn hit_rates_are_told_for_the_sizes_that_were_asked_for() {
    let pool = MemPool::new().unwrap();
    for _ in 0..4 {
        drop(pool.with(big));
    }
    assert_eq!(pool.stats().hit_rates().collect::<Vec<_>>(), [(BIG, 0.75)]);
}

#[test]
fn what_a_hard_limit_refuses_is_out_of_memory_and_what_overflows_is_not() {
    for (hard, expected) in [(false, (0, 1)), (true, (1, 0))] {
        let builder = MemPool::builder();
        let builder = if hard { builder.hard_limit(4 * BIG) } else { builder.limit(4 * BIG) };
        let pool = builder.build().unwrap();
        let reserved = pool.with(|| Vec::<u8>::new().try_reserve_exact(8 * BIG));
        assert_eq!(reserved.is_err(), hard);
        let (flat, stats) = (pool.memory_stats(), pool.stats());
        assert_eq!((get(&flat, "num_ooms"), stats.overflow_count), expected);
        assert_eq!(get(&flat, "num_oom_rejections"), expected.0);
    }
}

#[test]
fn a_summary_is_pytorchs_table() {
    let pool = MemPool::new().unwrap();
    let kept = pool.with(|| (vec![1_u8; 3 * BIG], big()));
    let full = pool.memory_summary(SummaryRows::Full);
    let short = pool.memory_summary(SummaryRows::Abbreviated);
    for (table, count) in [(&full, 47), (&short, 29), (&mempool_pools::memory_summary(SummaryRows::Full), 47)]
    {
        assert_eq!(table.lines().count(), count, "{table}");
        assert!(table.ends_with("|\n"));
        for line in table.lines() {
            assert_eq!(line.len(), 77, "{line}");
            assert!(line.starts_with('|') && line.ends_with('|'));
        }
    }
    let lines: Vec<&str> = full.lines().collect();
    assert_eq!(lines[0], format!("|{}|", "=".repeat(75)));
    assert_eq!(lines[2], format!("|{}|", "-".repeat(75)));
    assert_eq!(lines[5], "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |");
    let row = |name: &str| *lines.iter().find(|line| line.starts_with(&format!("| {name}"))).unwrap();
    assert_eq!(
        row("Requested memory"),
        "| Requested memory      |   4096 KiB |   4096 KiB |   4096 KiB |      0 B   |"
    );
    let at = lines.iter().position(|line| line.starts_with("| Requested memory")).unwrap();
    let of_large = "|       from large pool |   3072 KiB |   3072 KiB |   3072 KiB |      0 B   |";
    let of_small = "|       from small pool |   1024 KiB |   1024 KiB |   1024 KiB |      0 B   |";
    assert_eq!(lines[at + 1..at + 3], [of_large, of_small]);
    let blocks = "| Allocations           |       2    |       2    |       2    |       0    |";
    assert_eq!(row("Allocations"), blocks);
    drop(kept);
}
