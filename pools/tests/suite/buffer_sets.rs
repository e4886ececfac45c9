//! Buffers that may move: they keep what they hold, and stay where somebody knows them.

use std::os::unix::fs::FileExt;

use mempool_pools::arena::trace::Event;
use mempool_pools::{Buffer, BufferSet, CompactionOptions, MemPool, PoolError};

use crate::suite::BIG as MIB;
use crate::suite::recorded::{Trace, replayed_peak};

/// Fills a buffer, and lets go of it.
fn fill(buffer: &mut Buffer, value: u8) {
    let len = buffer.bytes();
    let held = buffer.place_next(len, || vec_of(value, len)).unwrap();
    assert_eq!(held.as_ptr().addr(), buffer.addr());
}

/// As `vec![value; len]`, which may ask for zeroed memory.
fn vec_of(value: u8, len: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(len);
    all.resize(len, value);
    all
}

/// What memory holds that nobody has.
fn holds(buffer: &Buffer, value: u8) -> bool {
    let mut contents = vec![0; buffer.bytes()];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut contents, buffer.addr() as u64).unwrap();
    contents.iter().all(|&byte| byte == value)
}

#[test]
fn moved_buffers_hold_what_they_held() {
    let pool = MemPool::new().unwrap();
    let mut set = BufferSet::new(&pool);
    set.reserve(16 * MIB).unwrap();
    let mut buffers: Vec<Buffer> = [1, 3, 2, 1, 4].iter().map(|mib| set.add(mib * MIB).unwrap()).collect();
    for (value, buffer) in (1..).zip(&mut buffers) {
        fill(buffer, value);
    }
    let held_at = buffers[3].addr();
    let held = buffers[3].place_next(MIB, || vec_of(40, MIB)).unwrap();
    buffers.remove(0);
    assert!(set.fragmentation() > 0.08);
    let done = set.defrag_if(|fragmentation| fragmentation > 0.08).unwrap().unwrap();
    assert_eq!((done.moved, done.held), (2, 1));
    assert_eq!((buffers[2].addr(), held.as_ptr().addr()), (held_at, held_at));
    drop(held);
    for (value, buffer) in [2, 3, 40, 5].into_iter().zip(&buffers) {
        assert!(holds(buffer, value), "{value}");
    }
    pool.validate().unwrap();
}

#[test]
fn a_set_and_its_buffers_end_in_any_order() {
    for order in 0..3 {
        let pool = MemPool::new().unwrap();
        let stats = pool.clone();
        let mut set = BufferSet::new(&pool);
        let mut buffer = set.add(MIB).unwrap();
        let held = buffer.place_next(MIB, || vec_of(7, MIB)).unwrap();
        match order {
            0 => drop((set, buffer, pool)),
            1 => drop((pool, buffer, set)),
            _ => drop((buffer, pool, set)),
        }
        assert!(held.iter().all(|&byte| byte == 7));
        assert_eq!(stats.stats().blocks.current, 1, "what is held keeps its block");
        drop(held);
        assert_eq!(stats.stats().blocks.current, 0);
        stats.validate().unwrap();
    }
}

#[test]
fn a_pool_at_its_limit_moves_buffers_where_that_is_wanted() {
    for on_oom in [false, true] {
        let pool = MemPool::builder().limit(32 * MIB).build().unwrap();
        let mut set = BufferSet::new(&pool);
        set.set_options(CompactionOptions { on_oom, ..CompactionOptions::default() }).unwrap();
        set.reserve(30 * MIB).unwrap();
        let mut buffers: Vec<Buffer> = (0..6).map(|_| set.add(5 * MIB).unwrap()).collect();
        for (value, buffer) in (1..).zip(&mut buffers) {
            fill(buffer, value);
        }
        buffers =
            buffers.into_iter().enumerate().filter(|(k, _)| k % 2 == 1).map(|(_, buffer)| buffer).collect();
        drop(pool.with(|| vec_of(1, 12 * MIB)));
        assert_eq!(pool.stats().overflow_count, u64::from(!on_oom), "on_oom: {on_oom}");
        for (value, buffer) in [2, 4, 6].into_iter().zip(&buffers) {
            assert!(holds(buffer, value));
        }
        pool.validate().unwrap();
    }
}

#[test]
fn a_buffer_is_found_room_for_where_buffers_move_when_memory_is_short() {
    for on_oom in [false, true] {
        let pool = MemPool::builder().limit(32 * MIB).build().unwrap();
        let mut set = BufferSet::new(&pool);
        set.set_options(CompactionOptions { on_oom, ..CompactionOptions::default() }).unwrap();
        set.reserve(32 * MIB).unwrap();
        let buffers: Vec<Buffer> = (0..8).map(|_| set.add(4 * MIB).unwrap()).collect();
        let kept: Vec<Buffer> =
            buffers.into_iter().enumerate().filter(|(k, _)| k % 2 == 0).map(|(_, buffer)| buffer).collect();
        assert_eq!(set.add(14 * MIB).is_ok(), on_oom);
        drop(kept);
    }
}

#[test]
fn no_policy_loses_memory_when_it_is_trimmed() {
    for policy in
        ["pages", "pages,mode:moving", "buckets", "buddy", "bfc", "torch", "simple", "none", "expandable"]
    {
        let pool = MemPool::builder().conf(&format!("policy:{policy}")).unwrap().build().unwrap();
        let mut set = BufferSet::new(&pool);
        set.reserve(64 * MIB).unwrap();
        let mut kept: Vec<Buffer> = (0..4).map(|_| set.add(4 * MIB).unwrap()).collect();
        kept.iter_mut().for_each(|buffer| fill(buffer, 9));
        pool.trim().unwrap();
        let (of_set, of_pool) = (set.stats().block_bytes, pool.stats().allocated.current);
        assert_eq!(of_set, of_pool, "{policy}: all that the set's blocks have can be used");
        kept.extend((0..3).map(|_| set.add(4 * MIB).unwrap()));
        kept.iter_mut().skip(4).for_each(|buffer| fill(buffer, 9));
        assert!(kept.iter().all(|buffer| holds(buffer, 9)), "{policy}");
        drop(kept);
        drop(set);
        assert_eq!(pool.stats().allocated.current, 0, "{policy}");
        pool.validate().unwrap();
    }
}

#[test]
fn trim_gives_back_what_lies_behind_the_buffers() {
    let pool = MemPool::new().unwrap();
    let mut set = BufferSet::new(&pool);
    set.reserve(64 * MIB).unwrap();
    let mut buffer = set.add(MIB).unwrap();
    fill(&mut buffer, 3);
    let before = pool.stats().reserved.current;
    assert!(pool.trim().unwrap() >= 48 * MIB, "of {before}");
    assert!(holds(&buffer, 3));
    let mut again = set.add(8 * MIB).unwrap();
    fill(&mut again, 4);
    assert!(holds(&buffer, 3) && holds(&again, 4));
    assert!(matches!(set.add(usize::MAX), Err(PoolError::Arena(_))));
    pool.validate().unwrap();
}

#[test]
fn a_recording_has_buffers_for_as_long_as_there_are_whoever_has_them() {
    for begins_first in [true, false] {
        let trace = Trace::plain();
        let pool = MemPool::new().unwrap();
        let begin = || pool.record_trace(trace.path()).unwrap();
        let mut recording = begins_first.then(begin);
        let mut set = BufferSet::new(&pool);
        let mut buffers: Vec<Buffer> = (0..3).map(|_| set.add(4 * MIB).unwrap()).collect();
        buffers.push(pool.buffer(2 * MIB).unwrap());
        // One of them is somebody's when the recording begins.
        let held = buffers[0].place_next(4 * MIB, || vec_of(1, 4 * MIB)).unwrap();
        let recording = recording.take().unwrap_or_else(begin);
        drop(held);
        buffers.iter_mut().for_each(|buffer| fill(buffer, 1));
        drop(buffers.remove(0));
        set.defrag_if(|_| true).unwrap();
        buffers.iter_mut().for_each(|buffer| fill(buffer, 2));
        let block = pool.with(|| vec_of(1, MIB));
        drop((block, buffers, set));
        recording.finish().unwrap();
        let events = trace.events();
        assert_eq!(replayed_peak(&events), 14 * MIB, "begins first: {begins_first}");
        let frees = events.iter().filter(|event| matches!(event, Event::Free { .. })).count();
        assert_eq!(frees, 5, "four buffers and one block end");
    }
}
