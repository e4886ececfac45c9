//! What a program on one stream sees.

use mempool_pools::Policy;
use mempool_pools::device::simulated::Simulator;
use mempool_pools::device::{Allocation, Free, Stream};

use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

#[test]
fn a_freed_block_serves_its_stream_at_once() {
    let machine = Machine::new();
    let first = machine.allocate(3 * MIB, OWN);
    first.write(OWN);
    first.free(OWN);
    let calls = machine.simulator.memory_calls();
    let second = machine.allocate(3 * MIB, OWN);
    assert_eq!(second.addr, first.addr);
    second.write(OWN);
    assert_eq!(machine.simulator.memory_calls(), calls, "a hit asks the driver for no memory");
    second.free(OWN);
    machine.check();
}

#[test]
fn blocks_of_one_scope_lie_in_its_pool() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().name("activations").build().expect("a pool");
    let inside = pool.with(|| machine.allocate(MIB, OWN));
    let outside = machine.allocate(MIB, OWN);
    assert_eq!(pool.stats().requested.current, MIB);
    assert_eq!(machine.device.default_pool().stats().requested.current, MIB);
    inside.free(OWN);
    outside.free(OWN);
    assert_eq!(pool.stats().requested.current, 0);
    assert_eq!(machine.device.default_pool().stats().requested.current, 0);
    machine.check();
}

#[test]
fn a_pool_gives_its_memory_back_with_its_last_block() {
    let machine = Machine::new();
    let before = machine.device_free();
    let pool = machine.device.pool().expect("a pool");
    let block = pool.with(|| machine.allocate(40 * MIB, OWN));
    block.write(OWN);
    drop(pool);
    assert_eq!(machine.device_free(), before - 40 * MIB, "a live block keeps its memory");
    block.free(OWN);
    assert_eq!(machine.device_free(), before);
    machine.check();
}

#[test]
fn empty_cache_gives_the_default_pools_memory_back_only() {
    let machine = Machine::new();
    let pool = machine.device.pool().expect("a pool");
    pool.with(|| machine.allocate(20 * MIB, OWN)).free(OWN);
    let block = machine.allocate(10 * MIB, OWN);
    block.write(OWN);
    block.free(OWN);
    assert_eq!(machine.device.empty_cache(), 10 * MIB);
    assert_eq!(pool.stats().reserved.current, 20 * MIB);
    assert_eq!(pool.trim(), Ok(20 * MIB));
    assert_eq!(machine.device.reserved_bytes(), 0);
    machine.check();
}

#[test]
fn what_is_not_a_pools_is_passed_through() {
    let machine = Machine::new();
    assert_eq!(machine.platform.allocate(0, OWN), Allocation::PassThrough);
    assert_eq!(machine.platform.free(0x1234, OWN), Free::PassThrough);
    machine.simulator.unbind();
    assert_eq!(machine.platform.allocate(MIB, OWN), Allocation::PassThrough);
    machine.simulator.bind(0);
    let served = mempool_pools::without_pools(|| machine.platform.allocate(MIB, OWN));
    assert_eq!(served, Allocation::PassThrough);
}

#[test]
fn a_second_free_is_refused_and_harms_nothing() {
    let machine = Machine::new();
    let block = machine.allocate(MIB, OWN);
    let other = machine.allocate(MIB, OWN);
    block.free(OWN);
    assert_eq!(machine.platform.free(block.addr, OWN), Free::Unknown);
    assert_eq!(machine.platform.free(other.addr + 512, OWN), Free::Unknown);
    other.write(OWN);
    other.free(OWN);
    machine.check();
}

#[test]
fn scopes_of_two_devices_nest_freely() {
    let machine = Machine::with(Simulator::builder().devices(2));
    let second = machine.platform.device(1).expect("a second device");
    let (near, far) = (machine.device.pool().expect("a pool"), second.pool().expect("a pool"));
    near.with(|| {
        far.with(|| {
            machine.allocate(MIB, OWN).free(OWN);
            machine.simulator.bind(1);
            machine.allocate(2 * MIB, OWN).free(OWN);
            machine.simulator.bind(0);
        });
        machine.allocate(MIB, OWN).free(OWN);
    });
    assert_eq!(near.stats().requested.total_allocated, 2 * MIB as u64);
    assert_eq!(far.stats().requested.total_allocated, 2 * MIB as u64);
    machine.check();
}

#[test]
fn whole_segments_serve_where_memory_cannot_be_mapped() {
    segments_serve(&Machine::with(Simulator::builder().without_mapping()));
    segments_serve(&Machine::new());
}

fn segments_serve(machine: &Machine) {
    let before = machine.device_free();
    let pool = machine.device.pool_builder().policy(Policy::Segments).build().expect("a pool");
    pool.with(|| {
        let blocks: Vec<_> = (1..20).map(|k| machine.allocate(k * MIB, OWN)).collect();
        blocks.iter().for_each(|block| block.write(OWN));
        let other = machine.allocate(700, OWN);
        blocks.into_iter().for_each(|block| block.free(OWN));
        let calls = machine.simulator.memory_calls();
        machine.allocate(15 * MIB, OWN).free(OWN);
        assert_eq!(machine.simulator.memory_calls(), calls);
        other.free(OWN);
    });
    assert_eq!(pool.stats().reserved.current, before - machine.device_free());
    drop(pool);
    assert_eq!(machine.device_free(), before);
    machine.check();
}

#[test]
fn the_default_pool_takes_options_while_it_runs() {
    let machine = Machine::new();
    let pool = machine.device.default_pool();
    machine.allocate(20 * MIB, OWN).free(OWN);
    pool.set_limit(Some(30 * MIB)).unwrap();
    assert!(machine.try_allocate(40 * MIB, OWN).is_none());
    machine.allocate(28 * MIB, OWN).free(OWN);
    assert!(pool.stats().reserved.current <= 30 * MIB, "the free pages made room");
    pool.set_limit(None).unwrap();
    machine.allocate(40 * MIB, OWN).free(OWN);
    for wrong in [0.0, 1.0, f64::NAN] {
        assert!(pool.set_garbage_collection_threshold(Some(wrong)).is_err(), "{wrong}");
    }
    pool.set_garbage_collection_threshold(Some(0.5)).unwrap();
    machine.check();
}

#[test]
fn a_release_threshold_bounds_the_cache_at_each_step() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().release_threshold(10 * MIB).build().unwrap();
    pool.with(|| {
        let kept = machine.allocate(6 * MIB, OWN);
        machine.allocate(40 * MIB, OWN).free(OWN);
        assert_eq!(pool.stats().reserved.current, 46 * MIB);
        machine.device.mark_step();
        assert_eq!(pool.stats().reserved.current, 16 * MIB);
        kept.free(OWN);
    });
    machine.check();
}
