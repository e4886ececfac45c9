//! Memory that moves: how little is reserved, and that queued work finds its memory all the same. The simulator
//! reports work on memory that is not mapped or that is unmapped too early, and work of two owners on one byte.

use mempool_pools::PoolStats;
use mempool_pools::device::Stream;

use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

/// Steps whose sizes never repeat, far ahead of the device.
fn uneven_steps(machine: &Machine, conf: &str) -> PoolStats {
    let pool = machine.device.pool_builder().conf(conf).unwrap().build().unwrap();
    let mut live = Vec::new();
    let mut random = 1_usize;
    for _ in 0..400 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mib = 3 + (random >> 33) % 60;
        let block = pool.with(|| machine.allocate(mib * MIB - 1000, OWN));
        block.write(OWN);
        live.push(block);
        if live.len() > 8 {
            live.swap_remove((random >> 40) % live.len()).free(OWN);
        }
    }
    live.into_iter().for_each(|block| {
        block.write(OWN);
        block.free(OWN);
    });
    machine.check();
    pool.validate().unwrap();
    pool.stats()
}

fn fragmentation(stats: &PoolStats) -> f64 {
    1.0 - stats.requested.peak as f64 / stats.reserved.peak as f64
}

#[test]
fn moving_memory_is_never_unmapped_under_queued_work() {
    let machine = Machine::new();
    let moving = uneven_steps(&machine, "mode:moving");
    let still = uneven_steps(&Machine::new(), "mode:on_pressure");
    assert!(moving.moved_bytes > 0 && still.moved_bytes == 0);
    let (moving, still) = (fragmentation(&moving), fragmentation(&still));
    assert!(moving < 0.06 && moving < still / 2.0, "{moving} of what is reserved is unused, else {still}");
}

#[test]
fn a_failed_move_leaves_everything_where_it_was() {
    for call in ["map", "set_access", "unmap", "create"] {
        let machine = Machine::new();
        for number in (1..200).step_by(7) {
            machine.simulator.fail(call, number, 999);
        }
        let pool = machine.device.pool_builder().conf("mode:moving").unwrap().build().unwrap();
        let mut live = Vec::new();
        for step in 0..200_usize {
            if let Some(block) = pool.with(|| machine.try_allocate((2 + step * 37 % 40) * MIB, OWN)) {
                block.write(OWN);
                live.push(block);
            }
            if live.len() > 5 {
                live.swap_remove(step % 5).free(OWN);
            }
            pool.validate().unwrap();
        }
        live.into_iter().for_each(|block| block.free(OWN));
        machine.check();
        machine.simulator.clear_failures();
        let before = machine.device_free();
        pool.trim().unwrap();
        assert!(machine.device_free() > before, "{call}: memory comes back");
        assert_eq!(pool.stats().reserved.current, 0, "{call}: all of it");
    }
}
