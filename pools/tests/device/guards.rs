//! Pools whose blocks lie between margins.

use mempool_pools::device::Stream;

use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

#[test]
fn a_write_outside_a_block_is_reported_at_its_free() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().name("guarded").guard(true).build().unwrap();
    for (offset, bytes) in [(3000_isize, 3000_usize), (-1, 5), (3511, 3000), (-512, 700)] {
        let before = machine.device.guard_reports().len();
        let block = pool.with(|| machine.allocate(bytes, OWN));
        block.write(OWN);
        machine.simulator.poke(block.addr.checked_add_signed(offset).unwrap(), 1, 7);
        block.free(OWN);
        let reports = machine.device.guard_reports();
        assert_eq!(reports.len(), before + 1, "offset {offset}");
        let report = reports.last().unwrap();
        assert_eq!(
            (report.addr, report.bytes, report.offset, report.changed_bytes),
            (block.addr, bytes, offset, 1)
        );
        assert!(report.to_string().contains("guarded"), "{report}");
    }
    machine.check();
}

#[test]
fn blocks_that_nobody_leaves_are_not_reported_and_freed_memory_is_filled() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().guard(true).build().unwrap();
    let mut blocks = Vec::new();
    for k in 1..60 {
        let block = pool.with(|| machine.allocate(k * 7777 % (3 * MIB) + 1, OWN));
        assert_eq!(block.addr % 256, 0);
        block.write(OWN);
        machine.simulator.poke(block.addr, block.bytes, 9);
        blocks.push(block);
    }
    for block in blocks {
        block.free(OWN);
        assert_eq!(machine.simulator.peek(block.addr + block.bytes / 2), 0xdd);
    }
    assert_eq!(machine.device.guard_reports(), []);
    assert_eq!(pool.stats().requested.current, 0);
    drop(pool);
    assert_eq!(machine.device.reserved_bytes(), 0);
    machine.check();
}

#[test]
fn guards_hold_across_streams() {
    let machine = Machine::new();
    let side = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool_builder().guard(true).build().unwrap();
    let block = pool.with(|| machine.allocate(MIB, OWN));
    block.write(OWN);
    machine.simulator.poke(block.addr + MIB, 2, 1);
    block.free(side);
    assert_eq!(machine.device.guard_reports().len(), 1);
    let other = pool.with(|| machine.allocate(MIB, side));
    assert!(machine.device.record_stream(other.addr, OWN, ()));
    other.free(side);
    assert_eq!(machine.device.guard_reports().len(), 1);
    machine.check();
}
