//! Many threads.

use std::sync::mpsc;

use mempool_pools::{MemPool, propagate};
use rayon::prelude::*;

use crate::suite::{BIG, big};

#[test]
fn many_threads_share_one_pool() {
    let pool = MemPool::new().unwrap();
    std::thread::scope(|threads| {
        for thread in 0..8_u8 {
            let pool = &pool;
            threads.spawn(move || {
                pool.with(|| {
                    for round in 0..200_usize {
                        let blocks: Vec<Vec<u8>> =
                            (0..4).map(|k| vec![thread; 20_000 + 7919 * ((round + k) % 50)]).collect();
                        assert!(blocks.iter().flatten().all(|&byte| byte == thread));
                    }
                });
            });
        }
    });
    assert_eq!(pool.stats().requested.current, 0);
    pool.validate().unwrap();
}

#[test]
fn hundreds_of_threads_come_and_go() {
    let pool = MemPool::new().unwrap();
    std::thread::scope(|threads| {
        for _ in 0..400 {
            threads.spawn(|| drop(pool.with(big)));
        }
    });
    assert_eq!(pool.stats().requested.current, 0);
    pool.validate().unwrap();
}

#[test]
fn a_block_may_be_freed_on_another_thread() {
    let pool = MemPool::new().unwrap();
    let (sender, receiver) = mpsc::channel::<Vec<u8>>();
    let consumer = std::thread::spawn(move || receiver.into_iter().map(|block| block.len()).sum::<usize>());
    pool.with(|| (0..500).for_each(|_| sender.send(big()).unwrap()));
    drop(sender);
    assert_eq!(consumer.join().unwrap(), 500 * BIG);
    assert_eq!(pool.stats().requested.current, 0);
    pool.validate().unwrap();
}

#[test]
fn allocating_in_a_thread_locals_destructor_works() {
    struct AllocatesLate(Option<MemPool>);
    impl Drop for AllocatesLate {
        fn drop(&mut self) {
            let pool = self.0.take().unwrap();
            let block = pool.with(big);
            assert_eq!(pool.stats().requested.current, BIG);
            drop(block);
            drop(big());
        }
    }
    thread_local! {
        static LATE: std::cell::RefCell<Option<AllocatesLate>> = const { std::cell::RefCell::new(None) };
    }
    let pool = MemPool::new().unwrap();
    let in_thread = pool.clone();
    std::thread::spawn(move || {
        LATE.with(|late| *late.borrow_mut() = Some(AllocatesLate(Some(in_thread))));
    })
    .join()
    .unwrap();
    assert_eq!(pool.stats().requested.current, 0);
    assert_eq!(pool.stats().blocks.total_allocated, 1);
}

#[test]
fn rayon_jobs_reach_the_pool_when_the_scope_is_handed_over() {
    let pool = MemPool::new().unwrap();
    let blocks: Vec<Vec<u8>> = pool.with(|| {
        let scopes = propagate();
        (0..32).into_par_iter().map(|_| scopes.with(big)).collect()
    });
    assert!(pool.stats().requested.current >= 32 * BIG);
    drop(blocks);
    assert_eq!(pool.stats().requested.current, 0);
    pool.validate().unwrap();
}

#[test]
fn a_scope_may_be_entered_inside_a_rayon_job() {
    let pool = MemPool::new().unwrap();
    let blocks: Vec<Vec<u8>> = (0..32).into_par_iter().map(|_| pool.with(big)).collect();
    assert_eq!(pool.stats().requested.current, 32 * BIG);
    drop(blocks);
}

#[test]
fn the_last_handle_and_the_last_block_may_go_at_the_same_time() {
    for _ in 0..300 {
        let pool = MemPool::new().unwrap();
        let block = pool.with(big);
        std::thread::scope(|threads| {
            threads.spawn(move || drop(pool));
            threads.spawn(move || drop(block));
        });
    }
}
