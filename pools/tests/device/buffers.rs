//! Buffers in device memory: in the order of their stream, and never under work that still reads them.

use mempool_pools::device::Stream;
use mempool_pools::{Buffer, MemPool, PoolError};

use crate::support::{Block, MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

/// A result of 4 MiB between temporaries, written.
fn compute<'m>(machine: &'m Machine, stream: Stream) -> Block<'m> {
    let before = machine.allocate(4 * MIB, stream);
    let result = machine.allocate(4 * MIB, stream);
    before.write(stream);
    result.write(stream);
    before.free(stream);
    result
}

fn write<'m>(machine: &'m Machine, pool: &MemPool, buffer: &mut Buffer) -> Result<Block<'m>, PoolError> {
    let (result, written) = buffer.write(|| pool.with(|| compute(machine, OWN)))?;
    if buffer.settle(written, result.addr)? {
        return Ok(result);
    }
    let copy = buffer.place_next(result.bytes, || machine.allocate(result.bytes, OWN))?;
    copy.write(OWN);
    result.free(OWN);
    assert_eq!(copy.addr, buffer.addr());
    Ok(copy)
}

#[test]
fn later_results_are_computed_in_the_buffer() {
    let machine = Machine::new();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut buffer = pool.buffer_on(4 * MIB, OWN).unwrap();
    for _ in 0..6 {
        let result = write(&machine, &pool, &mut buffer).unwrap();
        assert_eq!(result.addr, buffer.addr());
        assert!(matches!(buffer.write(|| ()), Err(PoolError::BufferInUse { .. })));
        result.free(OWN);
        machine.check();
    }
    assert_eq!((buffer.stats().copied, buffer.stats().placed), (1, 5));
    pool.validate().unwrap();
    drop((buffer, pool));
    machine.simulator.finish();
    assert_eq!(machine.device.reserved_bytes(), 0);
}

#[test]
fn a_result_freed_on_another_stream_keeps_the_buffer_until_that_work_is_done() {
    let machine = Machine::new();
    let other = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut buffer = pool.buffer_on(4 * MIB, OWN).unwrap();
    for _ in 0..4 {
        let result = write(&machine, &pool, &mut buffer).unwrap();
        let event = machine.simulator.create_event();
        machine.simulator.record_event(event, OWN).unwrap();
        machine.simulator.wait_event(other, event).unwrap();
        result.write(other);
        result.free(other);
        // The work runs at some time; until then there is nothing to write to.
        while !buffer.is_free() {
            assert!(matches!(buffer.write(|| ()), Err(PoolError::BufferInUse { .. })));
            machine.simulator.advance(1);
        }
    }
    machine.check();
}

#[test]
fn another_streams_work_is_not_placed_in_the_buffer() {
    let machine = Machine::new();
    let other = machine.simulator.create_stream(false).unwrap();
    let pool = machine.device.pool_builder().build().unwrap();
    let mut buffer = pool.buffer_on(4 * MIB, OWN).unwrap();
    for _ in 0..3 {
        let (result, written) = buffer.write(|| pool.with(|| compute(&machine, other))).unwrap();
        assert!(!buffer.settle(written, result.addr).unwrap());
        result.free(other);
    }
    machine.check();
    assert!(matches!(pool.buffer(4 * MIB), Err(PoolError::NotHere { .. })));
    let guarded = machine.device.pool_builder().guard(true).build().unwrap();
    assert!(matches!(guarded.buffer_on(4 * MIB, OWN), Err(PoolError::NotHere { .. })));
    let limited = machine.device.pool_builder().limit(2 * MIB).build().unwrap();
    assert!(matches!(limited.buffer_on(4 * MIB, OWN), Err(PoolError::NoMemory { .. })));
    machine.check();
}
