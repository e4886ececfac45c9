//! Buffers: allocated once, written every time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mempool_pools::{Buffer, MemPool, PoolError};

use crate::suite::{BIG, big};

/// Writes what `f` makes, and copies it if it is not in the buffer; its address.
fn write(buffer: &mut Buffer, f: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>, PoolError> {
    let (result, written) = buffer.write(f)?;
    if buffer.settle(written, result.as_ptr().addr())? {
        return Ok(result);
    }
    let copy = buffer.place_next(result.len(), || {
        let mut copy = Vec::with_capacity(result.len());
        copy.extend_from_slice(&result);
        copy
    })?;
    assert_eq!(copy.as_ptr().addr(), buffer.addr());
    Ok(copy)
}

/// A result among temporaries, some of its own size.
fn compute(tag: u8, len: usize) -> Vec<u8> {
    let temporary = vec![tag; len];
    let other = vec![1_u8; 3 * len];
    let mut result = vec![0_u8; len];
    assert!(result.iter().all(|&byte| byte == 0));
    result.copy_from_slice(&temporary);
    drop(other);
    drop(vec![tag; len]);
    result
}

#[test]
fn the_first_result_is_copied_and_later_ones_are_computed_in_place() {
    let pool = MemPool::new().unwrap();
    for len in [BIG, 100, 7] {
        let mut buffer = pool.buffer(len).unwrap();
        for tag in 0..6 {
            let result = write(&mut buffer, || pool.with(|| compute(tag, len))).unwrap();
            assert_eq!(result.as_ptr().addr(), buffer.addr());
            assert!(result.iter().all(|&byte| byte == tag));
        }
        let stats = buffer.stats();
        assert_eq!((stats.copied, stats.placed), (1, 5), "{len} bytes");
    }
    pool.validate().unwrap();
    assert_eq!(pool.stats().blocks.current, 0);
}

#[test]
fn a_buffer_whose_result_is_alive_is_not_written() {
    let pool = MemPool::new().unwrap();
    let mut buffer = pool.buffer(BIG).unwrap();
    let first = write(&mut buffer, || compute(5, BIG)).unwrap();
    assert!(!buffer.is_free());
    let error = write(&mut buffer, || unreachable!("it is not run")).unwrap_err();
    assert_eq!(error, PoolError::BufferInUse { bytes: BIG });
    assert!(first.iter().all(|&byte| byte == 5));
    drop(first);
    assert!(buffer.is_free());
    drop(write(&mut buffer, || compute(6, BIG)).unwrap());
}

#[test]
fn a_result_outlives_its_buffer_and_its_pool() {
    let pool = MemPool::new().unwrap();
    let mut buffer = pool.buffer(BIG).unwrap();
    let mut result = Vec::new();
    for tag in 0..3 {
        drop(std::mem::take(&mut result));
        result = write(&mut buffer, || compute(tag, BIG)).unwrap();
    }
    drop((buffer, pool));
    for _ in 0..10 {
        drop(MemPool::new().unwrap().with(big));
    }
    assert!(result.iter().all(|&byte| byte == 2));
    std::thread::spawn(move || drop(result)).join().unwrap();
}

#[test]
fn results_of_several_sizes_are_all_placed() {
    let pool = MemPool::new().unwrap();
    let mut buffer = pool.buffer(BIG).unwrap();
    let sizes = [BIG, BIG / 2, 1000];
    for round in 0..4 {
        for len in sizes {
            let result = write(&mut buffer, || pool.with(|| compute(round, len))).unwrap();
            assert_eq!((result.len(), result.as_ptr().addr()), (len, buffer.addr()));
        }
    }
    assert_eq!((buffer.stats().copied, buffer.stats().placed), (3, 9));
}

#[test]
fn another_order_is_a_copy_and_no_harm() {
    let pool = MemPool::new().unwrap();
    let mut buffer = pool.buffer(BIG).unwrap();
    for tag in 0..20_u8 {
        let result = write(&mut buffer, || {
            let mut made: Vec<Vec<u8>> = (0..4).map(|at| vec![tag.wrapping_add(at); BIG]).collect();
            made.swap_remove(usize::from(tag) * 7 % 4)
        })
        .unwrap();
        let expected = tag.wrapping_add((u16::from(tag) * 7 % 4) as u8);
        assert!(result.iter().all(|&byte| byte == expected));
    }
    assert!(buffer.stats().copied > 0);
    pool.validate().unwrap();
}

#[test]
fn what_takes_the_buffer_and_is_kept_is_an_error_that_says_so() {
    let pool = MemPool::new().unwrap();
    let mut buffer = pool.buffer(BIG).unwrap();
    for tag in 0..2 {
        drop(write(&mut buffer, || vec![tag; BIG]).unwrap());
    }
    // What was the result is kept beside it this time.
    let mut kept = Vec::new();
    let error = write(&mut buffer, || {
        kept = vec![9_u8; BIG];
        vec![8; BIG]
    })
    .map(|result| result[0]);
    assert_eq!(error, Err(PoolError::BufferTaken { bytes: BIG }));
    assert!(kept.iter().all(|&byte| byte == 9));
    drop(kept);
    drop(write(&mut buffer, || vec![1; BIG]).unwrap());
}

#[test]
fn writes_nest_unwind_and_stay_on_their_thread() {
    let pool = MemPool::new().unwrap();
    let (mut outer, mut inner) = (pool.buffer(BIG).unwrap(), pool.buffer(BIG).unwrap());
    for tag in 0..4 {
        let result = write(&mut outer, || {
            let half = write(&mut inner, || vec![tag; BIG]).unwrap();
            assert_eq!(half.as_ptr().addr(), inner.addr());
            let elsewhere = std::thread::spawn(big).join().unwrap();
            assert_ne!(elsewhere.as_ptr().addr(), inner.addr());
            half.iter().map(|byte| byte * 2).collect()
        })
        .unwrap();
        assert!(result.iter().all(|&byte| byte == tag * 2));
    }
    let unwound = catch_unwind(AssertUnwindSafe(|| outer.write(|| -> Vec<u8> { panic!("on purpose") })));
    assert!(unwound.is_err());
    let block = big();
    assert_ne!(block.as_ptr().addr(), outer.addr(), "nothing is meant for it any more");
    drop(write(&mut outer, || vec![1; BIG]).unwrap());
}

#[test]
fn a_result_that_comes_later_or_earlier_than_before_is_learned_anew() {
    let pool = MemPool::new().unwrap();
    let mut buffer = pool.buffer(BIG).unwrap();
    for temporaries in [0, 0, 2, 2, 2, 1, 1, 0, 0, 3, 3] {
        let result = write(&mut buffer, || {
            (0..temporaries).for_each(|_| drop(std::hint::black_box(vec![1_u8; BIG])));
            vec![7_u8; BIG]
        });
        assert!(result.unwrap().iter().all(|&byte| byte == 7));
    }
    assert_eq!((buffer.stats().copied, buffer.stats().placed), (5, 6), "one copy for each change");
}
