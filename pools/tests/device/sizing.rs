//! Pools with memory from the start, and pools that grow.

use std::io::Write as _;

use mempool_pools::device::Stream;
use mempool_pools::device::simulated::Simulator;
use mempool_pools::{Conf, ConfError, Margin, MemPool, Policy, PoolError, PoolStats};

use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

/// The policies whose memory serves requests of all sizes.
const POLICIES: [&str; 9] = [
    "policy:pages",
    "policy:pages,mode:moving",
    "policy:segments",
    "policy:buckets",
    "policy:buddy",
    "policy:bfc",
    "policy:bfc,allow_growth:False",
    "policy:torch",
    "policy:expandable",
];

fn pool(machine: &Machine, conf: &str) -> MemPool {
    machine
        .device
        .pool_builder()
        .conf(conf)
        .unwrap()
        .build()
        .unwrap_or_else(|error| panic!("{conf}: {error}"))
}

/// Calls of the driver for memory.
fn calls(machine: &Machine) -> u64 {
    machine.simulator.memory_calls()
}

#[test]
fn a_pool_of_fixed_size_has_its_memory_from_the_start_and_gives_it_back_at_its_end() {
    for conf in POLICIES {
        let machine = Machine::small(512);
        let pool = pool(&machine, &format!("{conf},fixed_size_mb:128"));
        assert_eq!(pool.stats().reserved.current, 128 * MIB, "{conf}");
        assert_eq!(machine.device_free(), 384 * MIB, "{conf}");
        let PoolStats { placement, .. } = pool.stats();
        assert_eq!((placement.requested.peak, placement.hits, placement.misses), (0, 0, 0), "{conf}");
        assert_eq!(pool.trim().unwrap(), 0, "{conf}");
        pool.validate().unwrap();
        drop(pool);
        assert_eq!(machine.device_free(), 512 * MIB, "{conf}");
        machine.check();
    }
}

#[test]
fn a_run_that_fits_makes_no_call_for_memory() {
    // Buckets cut no large block, and powers of two have their places.
    for conf in POLICIES {
        let machine = Machine::small(512);
        let pool = pool(&machine, &format!("{conf},fixed_size_mb:256"));
        let (before, mapped) = (calls(&machine), pool.stats().map_calls);
        for _ in 0..3 {
            let blocks = pool.with(|| {
                [30 * MIB, 16 * MIB, 5000, 60 * MIB, 3 * MIB, 300_000, MIB, 7 * MIB]
                    .map(|bytes| machine.allocate(bytes, OWN))
            });
            blocks.into_iter().for_each(|block| {
                block.write(OWN);
                block.free(OWN);
            });
            machine.device.mark_step();
        }
        assert_eq!((calls(&machine), pool.stats().map_calls), (before, mapped), "{conf}");
        assert!((pool.stats().hit_rate() - 1.0).abs() < 1e-9, "{conf}");
        machine.check();
    }
}

#[test]
fn a_device_with_less_is_an_error_with_the_numbers() {
    let machine = Machine::small(100);
    machine.simulator.set_foreign_bytes(0, 20 * MIB);
    for conf in POLICIES.into_iter().filter(|conf| !conf.contains("allow_growth")) {
        let builder = || machine.device.pool_builder().conf(conf).unwrap();
        let error = builder().fixed_size(75 * MIB).build().unwrap_err();
        let expected = PoolError::Size {
            asked_bytes: 76 * MIB,
            free_bytes: 80 * MIB,
            total_bytes: 100 * MIB,
            headroom_bytes: 10 * MIB,
            cause: None,
        };
        assert_eq!(error, expected, "{conf}");
        for number in ["79691776", "83886080", "104857600", "10485760"] {
            assert!(error.to_string().contains(number), "{error}");
        }
        assert!(builder().initial_size(75 * MIB).build().is_err(), "{conf}");
        assert_eq!(machine.device.reserved_bytes(), 0, "{conf}");
        // The headroom is to be chosen.
        drop(builder().fixed_size(75 * MIB).headroom_share(0.04).build().unwrap());
        assert_eq!(machine.device.reserved_bytes(), 0, "{conf}");
        assert!(builder().fixed_size(60 * MIB).headroom_share(0.25).build().is_err(), "{conf}");
    }
    machine.device.set_headroom(0.5).unwrap();
    let error = machine.device.pool_builder().fixed_size(40 * MIB).build().unwrap_err();
    assert!(matches!(error, PoolError::Size { headroom_bytes, .. } if headroom_bytes == 50 * MIB), "{error}");
    machine.device.set_headroom(0.0).unwrap();
    machine.device.set_memory_fraction(0.3).unwrap();
    assert!(machine.device.pool_builder().fixed_size(32 * MIB).build().is_err());
    drop(machine.device.pool_builder().fixed_size(30 * MIB).build().unwrap());
}

#[test]
fn all_but_the_headroom_is_what_is_free_without_it() {
    let machine = Machine::small(1000);
    machine.simulator.set_foreign_bytes(0, 100 * MIB);
    let pool = pool(&machine, "fixed_size_mb:all,headroom_percent:20");
    assert_eq!(pool.stats().reserved.current, 700 * MIB);
    drop(pool);
    let pool = machine.device.pool_builder().fixed_size_all().limit(300 * MIB).build().unwrap();
    assert_eq!(pool.stats().reserved.current, 300 * MIB);
    machine.simulator.set_foreign_bytes(0, 650 * MIB);
    let error = machine.device.pool_builder().fixed_size_all().build().unwrap_err();
    assert!(matches!(error, PoolError::Size { free_bytes, .. } if free_bytes == 50 * MIB), "{error}");
}

#[test]
fn a_driver_that_refuses_leaves_no_pool_and_no_memory_behind() {
    for conf in POLICIES {
        for number in 1..4 {
            let machine = Machine::small(512);
            for call in ["create", "allocate_segment"] {
                machine.simulator.fail(call, number, 2);
            }
            let builder = machine.device.pool_builder().conf(conf).unwrap().fixed_size(100 * MIB);
            match builder.build() {
                Err(error @ PoolError::Size { cause: Some(_), .. }) => {
                    assert!(error.to_string().contains("104857600"), "{error}");
                }
                // It asks less often.
                Ok(_) if number > 1 => {}
                other => panic!("{conf}: {other:?}"),
            }
            assert_eq!(machine.device.reserved_bytes(), 0, "{conf}");
            machine.simulator.clear_failures();
            machine.check();
        }
    }
}

#[test]
fn what_is_kept_stays_while_others_need_memory_and_thresholds_are_passed() {
    for conf in POLICIES.into_iter().filter(|conf| !conf.contains("allow_growth")) {
        let machine = Machine::small(200);
        let besides = "garbage_collection_threshold:0.3,release_threshold_mb:4";
        let pool = pool(&machine, &format!("{conf},initial_size_mb:64,{besides},use_on_oom:True"));
        pool.with(|| {
            let large = machine.allocate(90 * MIB, OWN);
            large.free(OWN);
        });
        machine.device.mark_step();
        assert!(pool.stats().reserved.current >= 64 * MIB, "{conf}: {:?}", pool.stats().reserved);
        pool.trim().unwrap();
        assert!(pool.stats().reserved.current >= 64 * MIB, "{conf}: {:?}", pool.stats().reserved);
        let kept = pool.stats().reserved.current;
        // Another pool takes what there is, and more.
        let mut other = Vec::new();
        while let Some(block) = machine.try_allocate(20 * MIB, OWN) {
            other.push(block);
            assert!(other.len() < 20);
        }
        assert!(
            pool.stats().reserved.current >= 64 * MIB,
            "{conf}: {} of {kept}",
            pool.stats().reserved.current
        );
        pool.with(|| machine.try_allocate(4 * MIB, OWN)).into_iter().for_each(|block| block.free(OWN));
        other.into_iter().for_each(|block| block.free(OWN));
        machine.check();
        drop(pool);
        let _ = machine.device.empty_cache();
        assert_eq!(machine.device.reserved_bytes(), 0, "{conf}");
    }
}

#[test]
fn what_cannot_be_trimmed_is_not_counted_as_available() {
    let machine = Machine::small(100);
    let pool = pool(&machine, "initial_size_mb:40");
    assert_eq!(machine.device.available_bytes().unwrap(), 60 * MIB);
    drop(pool);
    assert_eq!(machine.device.available_bytes().unwrap(), 100 * MIB);
}

#[test]
fn the_memory_of_a_fixed_pool_goes_to_the_stream_that_needs_it() {
    for conf in POLICIES {
        let machine = Machine::small(256);
        let pool = pool(&machine, &format!("{conf},fixed_size_mb:64"));
        let other = machine.simulator.create_stream(false).unwrap();
        pool.with(|| {
            let first = machine.allocate(32 * MIB, OWN);
            first.write(OWN);
            first.free(OWN);
            for _ in 0..3 {
                for stream in [other, OWN] {
                    let block = machine.allocate(32 * MIB, stream);
                    block.write(stream);
                    block.free(stream);
                }
            }
        });
        assert_eq!(pool.stats().reserved.current, 64 * MIB, "{conf}: the pool has its size");
        assert!(pool.stats().reserved.peak <= 64 * MIB, "{conf}");
        assert_eq!(pool.trim().unwrap(), 0, "{conf}");
        machine.check();
        drop(pool);
        assert_eq!(machine.device_free(), 256 * MIB, "{conf}");
    }
}

#[test]
fn a_stream_that_is_gone_leaves_the_memory_to_the_next() {
    let machine = Machine::small(256);
    let pool = pool(&machine, "fixed_size_mb:64");
    let before = calls(&machine);
    for _ in 0..5 {
        let stream = machine.simulator.create_stream(false).unwrap();
        pool.with(|| machine.allocate(50 * MIB, stream)).free(stream);
        machine.platform.stream_ends(stream);
        machine.simulator.destroy_stream(stream).unwrap();
    }
    assert_eq!(calls(&machine), before);
    machine.check();
}

#[test]
fn a_capture_takes_memory_of_its_own_and_none_that_waiting_would_have_to_free() {
    for (conf, has_room) in [("initial_size_mb:64", true), ("fixed_size_mb:64", false)] {
        let machine = Machine::small(256);
        let pool = pool(&machine, conf);
        let stream = machine.simulator.create_stream(false).unwrap();
        machine.begin_capture(stream);
        let block = pool.with(|| machine.try_allocate(20 * MIB, stream));
        assert_eq!(block.is_some(), has_room, "{conf}");
        if let Some(block) = block {
            block.write(stream);
            block.free(stream);
        }
        let graph = machine.end_capture(stream);
        pool.with(|| machine.allocate(50 * MIB, stream)).free(stream);
        pool.trim().unwrap();
        assert!(pool.stats().reserved.current >= 64 * MIB, "{conf}");
        machine.simulator.destroy_graph(graph);
        machine.device.mark_step();
        machine.check();
        drop(pool);
        machine.device.mark_step();
        assert_eq!(machine.device_free(), 256 * MIB, "{conf}");
    }
}

/// The allocations of a step, whose sizes follow the batch, and which are all live at once at its end.
fn step_sizes(batch: usize) -> Vec<usize> {
    (1..=12).map(|layer| batch * (64 << 10) + layer * batch * 4096).collect()
}

#[test]
fn a_growing_pool_follows_the_batch_without_moving_what_lives() {
    for conf in POLICIES.into_iter().filter(|conf| !conf.contains("allow_growth")) {
        let machine = Machine::small(2048);
        let (weights_bytes, initial) = (8 * MIB, 64 * MIB);
        let pool = machine.device.pool_builder().conf(conf).unwrap();
        let pool = pool.initial_size(initial).growth_factor(2.0).build().unwrap();
        let weights = pool.with(|| machine.allocate(weights_bytes, OWN));
        weights.write(OWN);
        let mut grown = Vec::new();
        for batch in [32, 64, 128] {
            for _ in 0..3 {
                let blocks: Vec<_> = pool.with(|| {
                    step_sizes(batch).into_iter().map(|bytes| machine.allocate(bytes, OWN)).collect()
                });
                blocks.iter().for_each(|block| block.write(OWN));
                blocks.into_iter().for_each(|block| block.free(OWN));
            }
            grown.push(pool.stats().growths);
            pool.validate().unwrap();
        }
        // 42, 76 and 144 MiB with the weights: one doubling each, where nothing is lost to powers of two.
        let expected =
            if ["policy:buddy", "policy:bfc"].contains(&conf) { grown.clone() } else { vec![0, 1, 2] };
        assert_eq!(grown, expected, "{conf}");
        assert!((1..=3).contains(&grown[2]), "{conf}: {grown:?}");
        assert_eq!(pool.stats().overflow_count, 0);
        weights.write(OWN);
        weights.free(OWN);
        pool.trim().unwrap();
        assert!(pool.stats().reserved.current >= initial, "{conf}: what it began with stays");
        machine.check();
    }
}

#[test]
fn a_growth_that_is_refused_leaves_the_need_alone() {
    for conf in POLICIES.into_iter().filter(|conf| !conf.contains("bfc")) {
        let machine = Machine::small(200);
        let pool = pool(&machine, &format!("{conf},initial_size_mb:64,growth_factor:2,limit_mb:120"));
        let blocks = pool.with(|| [machine.allocate(60 * MIB, OWN), machine.allocate(16 * MIB, OWN)]);
        assert_eq!((pool.stats().growths, pool.stats().misses > 0), (0, true), "{conf}");
        assert!(pool.stats().reserved.current <= 120 * MIB, "{conf}");
        blocks.into_iter().for_each(|block| block.free(OWN));
        machine.check();
    }
}

#[test]
fn a_growth_leaves_the_headroom_and_the_need_does_not() {
    let machine = Machine::small(200);
    let pool = pool(&machine, "initial_size_mb:100,growth_factor:1.8,headroom_percent:15");
    pool.with(|| {
        machine.allocate(96 * MIB, OWN);
        machine.allocate(20 * MIB, OWN);
    });
    // By 80 MiB there would be 20 left.
    // 2 MiB are left of the first 100, for large and for small ones.
    assert_eq!((pool.stats().growths, pool.stats().reserved.current), (0, 118 * MIB));
    pool.with(|| machine.allocate(70 * MIB, OWN));
    assert_eq!(pool.stats().reserved.current, 188 * MIB);
}

#[test]
fn options_that_contradict_each_other_are_typed_errors() {
    let machine = Machine::new();
    let build = |conf: &str| machine.device.pool_builder().conf(conf).unwrap().build().unwrap_err();
    for policy in [Policy::None, Policy::Simple] {
        for (size, key) in [
            ("fixed_size_mb:8", "fixed_size_mb"),
            ("initial_size_mb:8", "initial_size_mb"),
            ("growth_factor:2", "growth_factor"),
        ] {
            let error = build(&format!("policy:{policy},{size}"));
            assert_eq!(error, PoolError::Conf(ConfError::NotOfPolicy { key, policy }));
        }
    }
    let error = build("no_split:True,initial_size_mb:8");
    assert_eq!(error, PoolError::Conf(ConfError::NotWithNoSplit { key: "initial_size_mb" }));
    let option = |conf: &str| match build(conf) {
        PoolError::Option { option, .. } | PoolError::NotHere { option, .. } => option,
        other => panic!("{other}"),
    };
    assert_eq!(option("fixed_size_mb:8,growth_factor:2"), "growth_factor");
    assert_eq!(option("fixed_size_mb:8,limit_mb:6"), "limit");
    assert_eq!(option("initial_size_mb:8,limit_mb:6"), "limit");
    let builder = || machine.device.pool_builder();
    assert!(matches!(
        builder().fixed_size(0).build(),
        Err(PoolError::Option { option: "fixed_size_mb", .. })
    ));
    assert!(matches!(builder().growth_factor(0.5).build(), Err(PoolError::Share { .. })));
    assert!(matches!(builder().growth_factor(f64::NAN).build(), Err(PoolError::Share { .. })));
    assert!(matches!(builder().headroom_share(0.6).build(), Err(PoolError::Share { .. })));
    assert!(matches!(builder().fixed_size(usize::MAX).build(), Err(PoolError::Size { .. })));
}

#[test]
fn a_recorded_run_tells_the_size_on_which_it_and_a_larger_one_fit() {
    let machine = Machine::small(2048);
    let run = |pool: &MemPool, percent: usize| {
        for _ in 0..3 {
            let blocks: Vec<_> = pool.with(|| {
                step_sizes(64)
                    .into_iter()
                    .map(|bytes| machine.try_allocate(bytes * percent / 100, OWN))
                    .collect()
            });
            assert!(blocks.iter().all(Option::is_some), "it fits");
            blocks.into_iter().flatten().for_each(|block| block.free(OWN));
        }
    };
    let path = std::env::temp_dir().join(format!("mempool-size-{}.csv.gz", std::process::id()));
    for conf in ["policy:pages", "policy:torch", "policy:bfc", "policy:segments"] {
        let recorded = pool(&machine, conf);
        let recording = recorded.record_trace(&path).unwrap();
        run(&recorded, 100);
        recording.finish().unwrap();
        let peak = recorded.stats().requested.peak;
        let builder = machine.device.pool_builder().conf(conf).unwrap();
        let sized = builder.size_from(&path, Margin::default()).unwrap().build().unwrap();
        let size = sized.stats().reserved.current;
        assert!(size >= peak + peak / 10 && size <= peak + peak / 2, "{conf}: {size} for {peak}");
        let before = calls(&machine);
        run(&sized, 105);
        assert_eq!(calls(&machine), before, "{conf}");
    }
    let mut file = std::fs::File::create(&path).unwrap();
    writeln!(file, "op,id,bytes,stream\nx,1,2,3").unwrap();
    let read = |conf: Conf| machine.device.pool_builder().placement(conf).size_from(&path, Margin::default());
    let error = read(Conf::default()).unwrap_err();
    assert!(matches!(&error, PoolError::ReadTrace { reason, .. } if reason.contains("line 2")), "{error}");
    std::fs::write(&path, "op,id,bytes,stream\n").unwrap();
    assert!(matches!(read(Conf::default()), Err(PoolError::Sizing { .. })));
    assert!(matches!(read(Conf::of(Policy::None)), Err(PoolError::Conf(ConfError::NotOfPolicy { .. }))));
    std::fs::write(&path, "").unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(read(Conf::default()), Err(PoolError::ReadTrace { .. })));
}

#[test]
fn a_device_without_mapping_has_pools_of_fixed_size_too() {
    for conf in ["policy:segments", "policy:buckets", "policy:bfc", "policy:torch"] {
        let machine = Machine::with(Simulator::builder().capacity_bytes(256 * MIB).without_mapping());
        let pool = pool(&machine, &format!("{conf},fixed_size_mb:64"));
        assert_eq!((pool.stats().reserved.current, machine.device_free()), (64 * MIB, 192 * MIB), "{conf}");
        let before = calls(&machine);
        pool.with(|| machine.allocate(20 * MIB, OWN)).free(OWN);
        assert_eq!(calls(&machine), before, "{conf}");
        machine.check();
    }
}
