//! Figures of devices, under PyTorch's names.

use mempool_pools::device::Stream;
use mempool_pools::device::simulated::Simulator;
use mempool_pools::{MemoryStats, SummaryRows};

use crate::recount;
use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;
const KIB: usize = 1 << 10;

fn get(stats: &MemoryStats, key: &str) -> i64 {
    *stats.get(key).unwrap_or_else(|| panic!("{key} is not there"))
}

#[test]
fn segments_come_and_go_as_in_pytorch_for_sizes_at_its_borders() {
    // PyTorch's test_graph_memory_stats_and_use_result_after_destroy_graph: size, segments, class.
    let cases = [
        (512, 2 * MIB, "small_pool"),
        (MIB, 2 * MIB, "small_pool"),
        (MIB + 512, 20 * MIB, "large_pool"),
        (10 * MIB - 512, 20 * MIB, "large_pool"),
        (10 * MIB + 512, 12 * MIB, "large_pool"),
    ];
    for mapping in [true, false] {
        for (bytes, segment_bytes, part) in cases {
            let builder = Simulator::builder();
            let machine = Machine::with(if mapping { builder } else { builder.without_mapping() });
            let pool = machine.device.pool_builder().conf("policy:torch").unwrap().build().unwrap();
            let block = pool.with(|| machine.allocate(bytes, OWN));
            let stats = pool.memory_stats();
            for part in ["all", part] {
                let current = |name: &str| get(&stats, &format!("{name}.{part}.current"));
                assert_eq!((current("segment"), current("reserved_bytes")), (1, segment_bytes as i64));
                assert_eq!((current("allocation"), current("active")), (1, 1));
                assert_eq!(current("allocated_bytes"), bytes as i64);
                let split = segment_bytes - bytes;
                assert_eq!((current("inactive_split"), current("inactive_split_bytes")), (1, split as i64));
            }
            let other = if part == "small_pool" { "large_pool" } else { "small_pool" };
            let of_other = stats.iter().filter(|(key, _)| key.contains(other));
            assert!(of_other.into_iter().all(|(_, value)| *value == 0), "nothing is counted in {other}");
            block.free(OWN);
            assert_eq!(pool.trim().unwrap(), segment_bytes);
            let stats = pool.memory_stats();
            for name in ["segment", "reserved_bytes", "allocation", "inactive_split"] {
                for part in ["all", part] {
                    assert_eq!(get(&stats, &format!("{name}.{part}.current")), 0, "{name}.{part}");
                }
            }
            machine.check();
        }
    }
}

#[test]
fn a_freed_block_that_work_uses_is_in_use_and_nobodys_also_in_peaks() {
    let machine = Machine::new();
    let side = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool().unwrap();
    let waits = |bytes: usize| {
        let block = pool.with(|| machine.allocate(bytes, OWN));
        assert!(machine.device.record_stream(block.addr, side, ()));
        block.write(side);
        block.free(OWN);
    };
    waits(6 * MIB);
    waits(MIB);
    let figures = |part: &str| {
        let stats = pool.memory_stats();
        ["allocated_bytes", "active_bytes", "allocation", "active"].map(|name| {
            ["current", "peak", "freed"].map(|figure| get(&stats, &format!("{name}.{part}.{figure}")))
        })
    };
    let mib = MIB as i64;
    // At no time was more than the larger one somebody's.
    let all = [[0, 6 * mib, 7 * mib], [7 * mib, 7 * mib, 0], [0, 1, 2], [2, 2, 0]];
    assert_eq!(figures("all"), all);
    assert_eq!(figures("small_pool"), [[0, mib, mib], [mib, mib, 0], [0, 1, 1], [1, 1, 0]]);
    let large = [[0, 6 * mib, 6 * mib], [6 * mib, 6 * mib, 0], [0, 1, 1], [1, 1, 0]];
    assert_eq!(figures("large_pool"), large);
    pool.reset_accumulated_stats();
    pool.reset_peak_stats();
    assert_eq!(figures("all"), [[0, 0, 0], [7 * mib, 7 * mib, 0], [0, 0, 0], [2, 2, 0]]);
    recount_all(&machine);
    machine.simulator.synchronize_stream(side).unwrap();
    // Whatever looks for finished work: here a trim.
    assert!(pool.trim().unwrap() > 0);
    assert_eq!(figures("all"), [[0, 0, 0], [0, 7 * mib, 7 * mib], [0, 0, 0], [0, 2, 2]]);
    machine.check();
}

fn recount_all(machine: &Machine) {
    recount::check(&machine.device.default_pool()).unwrap();
}

#[test]
fn shortages_are_counted_by_what_was_done_about_them() {
    let machine = Machine::small(64);
    let pool = machine.device.pool_builder().limit(32 * MIB).build().unwrap();
    let counters = |stats: &MemoryStats| {
        ["num_alloc_retries", "num_ooms", "num_oom_rejections"].map(|key| get(stats, key))
    };
    // Memory of the default pool is given up for a pool that needs it.
    machine.allocate(50 * MIB, OWN).free(OWN);
    let block = pool.with(|| machine.allocate(20 * MIB, OWN));
    assert_eq!(counters(&pool.memory_stats()), [1, 0, 0]);
    // The limit refuses, and the driver is not asked.
    assert!(pool.with(|| machine.try_allocate(20 * MIB, OWN)).is_none());
    assert_eq!(counters(&pool.memory_stats()), [2, 1, 1]);
    // The device has no more.
    assert!(machine.try_allocate(60 * MIB, OWN).is_none());
    let default = machine.device.default_pool().memory_stats();
    assert_eq!((get(&default, "num_ooms"), get(&default, "num_oom_rejections")), (1, 0));
    assert!(get(&default, "num_sync_all_streams") > 0, "all work was waited for");
    let all = machine.device.memory_stats();
    assert_eq!(get(&all, "num_ooms"), 2);
    let private = format!("reserved_bytes_by_private_pools.0_{}.all.current", pool.id());
    assert_eq!(get(&all, &private), 20 * MIB as i64);
    machine.device.reset_accumulated_stats();
    assert_eq!(counters(&machine.device.memory_stats()), [0, 0, 0]);
    block.free(OWN);
    machine.check();
}

#[test]
fn what_is_too_large_to_be_cut_is_counted_as_oversize() {
    let machine = Machine::new();
    let conf = "policy:torch,max_split_size_mb:30";
    let pool = machine.device.pool_builder().conf(conf).unwrap().build().unwrap();
    let figures = || {
        let stats = pool.memory_stats();
        assert_eq!(get(&stats, "max_split_size"), 30 * MIB as i64);
        ["oversize_allocations", "oversize_segments"]
            .map(|name| ["current", "allocated"].map(|figure| get(&stats, &format!("{name}.{figure}"))))
    };
    let (below, above) = pool.with(|| (machine.allocate(20 * MIB, OWN), machine.allocate(40 * MIB, OWN)));
    assert_eq!(figures(), [[1, 1], [1, 1]]);
    above.free(OWN);
    assert_eq!(figures(), [[0, 1], [1, 1]]);
    below.free(OWN);
    let _ = pool.trim().unwrap();
    assert_eq!(figures(), [[0, 1], [0, 1]]);
    let without = machine.device.default_pool().memory_stats();
    assert_eq!(get(&without, "max_split_size"), -1);
}

#[test]
fn a_device_has_the_sum_of_its_pools_and_of_those_that_are_gone() {
    let machine = Machine::new();
    let kept = machine.allocate(3 * MIB, OWN);
    for _ in 0..2 {
        let pool = machine.device.pool().unwrap();
        pool.with(|| machine.allocate(8 * MIB, OWN)).free(OWN);
    }
    let pool = machine.device.pool_builder().name("activations").build().unwrap();
    let block = pool.with(|| machine.allocate(512 * KIB, OWN));
    let stats = machine.device.stats();
    let names: Vec<&str> = stats.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["default", "activations"]);
    let total = &stats.total;
    assert_eq!(total.requested.current, 3 * MIB + 512 * KIB);
    assert_eq!(total.requested.total_allocated, (3 * MIB + 2 * 8 * MIB + 512 * KIB) as u64);
    assert_eq!(total.requested.total_freed(), 16 * MIB as u64);
    assert_eq!((total.device, total.reserved.current), (Some(0), machine.device.reserved_bytes()));
    // Of the whole device, also while pools were there that are gone.
    let stats = machine.device.memory_stats();
    assert!(get(&stats, "reserved_bytes.all.peak") >= 12 * MIB as i64);
    assert_eq!(get(&stats, "reserved_bytes.all.freed"), 16 * MIB as i64);
    let table = machine.device.memory_summary(SummaryRows::Abbreviated);
    assert!(table.contains("CUDA memory summary, device ID 0  "), "{table}");
    assert!(table.contains("| GPU reserved segments |"), "{table}");
    let line = pool.stats().line().to_string();
    assert!(line.starts_with("pool activations on device 0: 512.0 KiB allocated, "), "{line}");
    machine.device.reset_peak_stats();
    let stats = machine.device.memory_stats();
    let reserved = machine.device.reserved_bytes() as i64;
    assert_eq!(get(&stats, "reserved_bytes.all.peak"), reserved);
    kept.free(OWN);
    block.free(OWN);
}
