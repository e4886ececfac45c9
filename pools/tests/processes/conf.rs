//! `MEMPOOL_CONF`, which a process reads once: each case in one of its own.

use mempool_pools::device::simulated::Simulator;
use mempool_pools::device::{Allocation, Platform, Stream};
use mempool_pools::{Conf, ConfError, MemPool, Mode, Policy, PoolError, default_pool};

use crate::{BIG, child, errors, is_child};

/// Runs a test of this module in a child with `MEMPOOL_CONF`, and returns what it wrote to standard error.
fn child_with(name: &str, conf: &str) -> String {
    let output = child(name, &format!("export MEMPOOL_CONF='{conf}';"));
    assert!(output.status.success(), "{output:?}");
    errors(&output)
}

/// Bytes that the pool takes for a block of 3 MiB: tells the policy.
fn reserved_for_a_block(pool: &MemPool) -> usize {
    let block = pool.with(|| vec![1_u8; 3 * BIG]);
    let reserved = pool.stats().reserved.current;
    drop(block);
    reserved
}

fn machine() -> (Simulator, Platform) {
    let simulator = Simulator::builder().capacity_bytes(256 * BIG).build();
    let platform = simulator.platform();
    simulator.bind(0);
    (simulator, platform)
}

#[test]
fn the_environment_decides_for_default_pools_and_for_builders_that_do_not() {
    const NAME: &str = "conf::the_environment_decides_for_default_pools_and_for_builders_that_do_not";
    if !is_child(NAME) {
        assert!(!child_with(NAME, "policy:buckets,limit_mb:64,min_bytes:50000").contains("MEMPOOL_CONF"));
        return;
    }
    let pool = default_pool().unwrap();
    let before = pool.stats();
    let block = vec![1_u8; 2 * BIG + 1];
    let after = pool.stats();
    // Buckets cut a medium segment where pages would map three pages, and buddy round up to 4 MiB.
    assert!(
        after.reserved.current >= before.reserved.current + 32 * BIG || before.reserved.current >= 34 * BIG
    );
    drop(block);
    let overflows = pool.stats().overflow_count;
    drop(vec![1_u8; 65 * BIG]);
    assert_eq!(pool.stats().overflow_count, overflows + 1, "the limit is a soft one");
    let pool = MemPool::new().unwrap();
    assert_eq!(reserved_for_a_block(&pool), 32 * BIG);
    pool.with(|| drop(vec![1_u8; 40_000]));
    assert_eq!(pool.stats().bypassed_count, 0, "what goes to the default pool is not counted as bypassed");
    assert_eq!(pool.stats().misses + pool.stats().hits, 1);
    pool.with(|| drop(vec![1_u8; 65 * BIG]));
    assert_eq!(pool.stats().overflow_count, 1);
}

#[test]
fn what_a_builder_says_wins_over_the_environment() {
    const NAME: &str = "conf::what_a_builder_says_wins_over_the_environment";
    if !is_child(NAME) {
        child_with(NAME, "policy:buckets,small_limit_mb:8,limit_mb:20,guard:True");
        return;
    }
    // The small segment holds two requests of the limit.
    assert_eq!(reserved_for_a_block(&MemPool::new().unwrap()), 16 * BIG);
    let reserved = |builder: mempool_pools::MemPoolBuilder| reserved_for_a_block(&builder.build().unwrap());
    assert_eq!(reserved(MemPool::builder().policy(Policy::Buddy)), 4 * BIG);
    assert_eq!(reserved(MemPool::builder().conf("mode:moving").unwrap()), 3 * BIG, "pages have modes");
    assert_eq!(reserved(MemPool::builder().no_split(true)), 3 * BIG);
    let limited = MemPool::builder().placement(Conf::default().small_limit_bytes(BIG)).limit(64 * BIG);
    assert_eq!(reserved(limited), 32 * BIG);
    // The last word of the builder's own counts.
    let builder = MemPool::builder().policy(Policy::Torch).conf("policy:buddy,limit_mb:100").unwrap();
    assert_eq!(reserved(builder.clone()), 4 * BIG);
    assert_eq!(reserved(builder.policy(Policy::Bfc)), 4 * BIG);
    // Devices have options that the host has not.
    let (simulator, platform) = machine();
    let device = platform.device(0).unwrap();
    let guarded = |pool: &MemPool| {
        pool.with(|| assert!(matches!(platform.allocate(BIG, Stream::PER_THREAD), Allocation::Block(_))));
        pool.stats().requested.current > BIG
    };
    assert!(guarded(&device.pool().unwrap()));
    assert!(!guarded(&device.pool_builder().guard(false).build().unwrap()));
    assert!(guarded(&device.default_pool()));
    assert_eq!(device.default_pool().stats().reserved.current, 16 * BIG);
    assert_eq!(simulator.violations(), []);
}

#[test]
fn a_policy_of_devices_leaves_the_host_as_it_is() {
    const NAME: &str = "conf::a_policy_of_devices_leaves_the_host_as_it_is";
    if !is_child(NAME) {
        assert!(!child_with(NAME, "policy:segments").contains("MEMPOOL_CONF"));
        return;
    }
    assert_eq!(reserved_for_a_block(&MemPool::new().unwrap()), 3 * BIG);
    assert!(default_pool().is_ok());
    let (_simulator, platform) = machine();
    let pool = platform.device(0).unwrap().default_pool();
    assert!(matches!(platform.allocate(3 * BIG, Stream::PER_THREAD), Allocation::Block(_)));
    assert_eq!(pool.stats().reserved.current, 20 * BIG);
}

#[test]
fn a_malformed_variable_is_told_once_and_an_error_of_whoever_asks_for_a_pool() {
    const NAME: &str = "conf::a_malformed_variable_is_told_once_and_an_error_of_whoever_asks_for_a_pool";
    if is_child(NAME) {
        // Served before anybody asks.
        let block = vec![7_u8; 5 * BIG];
        for error in [
            default_pool().unwrap_err(),
            MemPool::new().unwrap_err(),
            MemPool::builder().policy(Policy::Buddy).build().unwrap_err(),
            mempool_pools::empty_cache().unwrap_err(),
        ] {
            assert!(matches!(error, PoolError::Environment { .. }), "{error:?}");
            assert!(error.to_string().starts_with("MEMPOOL_CONF: "), "{error}");
        }
        let (_simulator, platform) = machine();
        assert!(matches!(platform.device(0), Err(PoolError::Environment { .. })));
        assert!(matches!(platform.allocate(BIG, Stream::PER_THREAD), Allocation::Block(_)));
        assert!(block.iter().all(|&byte| byte == 7));
        return;
    }
    for (conf, told) in [
        ("polcy:torch", "unknown option \"polcy\": the known ones are policy, "),
        ("polcy:torch", "limit_mb"),
        ("policy:fast", "one of none, simple"),
        ("policy:buddy,mode:moving", "policy buddy has no option mode"),
        ("policy:torch,no_split:True", "policy torch has no option no_split"),
        ("policy:buckets,small_limit_mb:9,medium_limit_mb:8", "medium_limit_mb:8 is not possible"),
        ("limit_mb", "not a key and a value"),
        ("limit_mb:0", "from 2"),
    ] {
        let message = child_with(NAME, conf);
        assert_eq!(message.matches("candle-mempool: MEMPOOL_CONF: ").count(), 1, "{conf}: {message}");
        assert!(message.contains(told), "{conf}: {message}");
    }
}

#[test]
fn what_the_host_cannot_do_is_told_once_and_an_error_there_alone() {
    const NAME: &str = "conf::what_the_host_cannot_do_is_told_once_and_an_error_there_alone";
    if is_child(NAME) {
        let block = vec![7_u8; 5 * BIG];
        for error in [default_pool().unwrap_err(), MemPool::new().unwrap_err()] {
            assert!(matches!(error, PoolError::NotHere { option: "allow_growth:False", .. }), "{error:?}");
        }
        assert!(MemPool::builder().limit(64 * BIG).build().is_ok());
        drop(block);
        let (_simulator, platform) = machine();
        let device = platform.device(0).unwrap();
        assert!(matches!(platform.allocate(BIG, Stream::PER_THREAD), Allocation::Block(_)));
        assert_eq!(device.default_pool().stats().reserved.current, 256 * BIG);
        return;
    }
    let message = child_with(NAME, "policy:bfc,allow_growth:False");
    assert_eq!(message.matches("candle-mempool: ").count(), 1, "{message}");
}

#[test]
fn options_that_make_no_sense_together_are_refused() {
    let refused = |text: &str| MemPool::builder().conf(text).and_then(|builder| builder.build()).unwrap_err();
    for (text, key) in [
        ("policy:buddy,mode:moving", "mode"),
        ("policy:torch,no_split:True", "no_split"),
        ("max_split_size_mb:64", "max_split_size_mb"),
    ] {
        let error = refused(text);
        assert!(
            matches!(&error, PoolError::Conf(ConfError::NotOfPolicy { key: found, .. }) if *found == key),
            "{error:?}"
        );
    }
    let error = refused("mode:moving,no_split:True");
    assert!(matches!(error, PoolError::Conf(ConfError::NotWithNoSplit { key: "mode" })), "{error:?}");
    for text in ["policy:segments", "guard:True", "garbage_collection_threshold:0.5", "use_on_oom:True"] {
        assert!(matches!(refused(text), PoolError::NotHere { .. }), "{text}");
    }
    let error = refused("limits:3");
    assert!(matches!(error, PoolError::Conf(ConfError::UnknownKey { .. })), "{error:?}");
    let moving = Conf::of(Policy::Pages).mode(Mode::Moving).separate_lifetimes(false);
    assert!(MemPool::builder().placement(moving).build().is_ok());
    assert!(MemPool::builder().policy(Policy::Torch).garbage_collection_threshold(0.5).build().is_ok());
    let (_simulator, platform) = machine();
    let device = platform.device(0).unwrap();
    assert!(device.pool_builder().conf("garbage_collection_threshold:0.5").unwrap().build().is_ok());
}

#[test]
#[cfg(target_os = "linux")]
fn a_pool_may_have_tens_of_thousands_of_segments() {
    const NAME: &str = "conf::a_pool_may_have_tens_of_thousands_of_segments";
    if !is_child(NAME) {
        // In a process of its own: a process may have so many mappings and no more.
        child_with(NAME, "");
        return;
    }
    for policy in ["torch,large_segment_size_mb:2", "buckets"] {
        let pool = MemPool::builder().conf(&format!("policy:{policy}")).unwrap().build().unwrap();
        // Untouched, so the blocks take address space only. In policy buckets large ones have segments.
        let (count, bytes) = if policy == "buckets" { (20_000, 101 * BIG) } else { (40_000, 2 * BIG) };
        let blocks: Vec<Vec<u8>> = (0..count).map(|_| pool.with(|| Vec::with_capacity(bytes))).collect();
        let stats = pool.stats();
        assert_eq!(stats.blocks.current as u64 + stats.overflow_count, count as u64, "{policy}");
        // A system may refuse to commit so much.
        if stats.overflow_count == 0 && policy != "buckets" {
            assert_eq!(stats.segments.current, count, "{policy}");
        }
        let other = MemPool::new().unwrap();
        assert_eq!(reserved_for_a_block(&other), 3 * BIG);
        pool.validate().unwrap();
        drop(blocks);
        assert_eq!(pool.trim().unwrap(), pool.stats().reserved.peak);
        assert_eq!((pool.stats().segments.current, pool.stats().reserved.current), (0, 0), "{policy}");
    }
}

#[test]
fn sizes_in_the_environment_are_those_of_default_pools_of_devices() {
    const NAME: &str = "conf::sizes_in_the_environment_are_those_of_default_pools_of_devices";
    if !is_child(NAME) {
        assert_eq!(child_with(NAME, "initial_size_mb:64,growth_factor:2").find("candle-mempool"), None);
        return;
    }
    let (_simulator, platform) = machine();
    let device = platform.device(0).unwrap();
    assert_eq!(device.default_pool().stats().reserved.current, 64 * BIG);
    assert_eq!(device.empty_cache(), 0);
    assert_eq!(device.pool().unwrap().stats().reserved.current, 0);
    assert_eq!(MemPool::new().unwrap().stats().reserved.current, 0);
    assert!(default_pool().unwrap().stats().reserved.current < 64 * BIG);
}

#[test]
fn a_default_pool_whose_size_cannot_be_had_says_so_and_serves() {
    const NAME: &str = "conf::a_default_pool_whose_size_cannot_be_had_says_so_and_serves";
    if !is_child(NAME) {
        let errors = child_with(NAME, "fixed_size_mb:1024");
        assert!(errors.contains("1073741824 bytes were to be taken"), "{errors}");
        assert!(errors.contains("268435456"), "{errors}");
        return;
    }
    let (_simulator, platform) = machine();
    let device = platform.device(0).unwrap();
    assert_eq!(device.default_pool().stats().reserved.current, 0);
    assert!(matches!(platform.allocate(BIG, Stream::PER_THREAD), Allocation::Block(_)));
}
