//! Which pool a request goes to.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mempool_pools::{MemPool, default_pool, mark_step, propagate, with_pool, without_pools};

use crate::suite::{BIG, big};

fn held(pool: &MemPool) -> usize {
    pool.stats().requested.current
}

#[test]
fn what_is_allocated_inside_lies_in_the_pool_and_what_is_not_does_not() {
    let pool = MemPool::new().unwrap();
    let outside = big();
    assert_eq!(held(&pool), 0);
    let inside = pool.with(big);
    assert_eq!(held(&pool), BIG);
    drop((outside, inside));
    assert_eq!(held(&pool), 0);
    pool.validate().unwrap();
}

#[test]
fn the_innermost_scope_wins_and_the_outer_one_comes_back() {
    let (outer, inner) = (MemPool::new().unwrap(), MemPool::new().unwrap());
    let blocks = outer.with(|| {
        let first = big();
        let second = with_pool(&inner, big);
        (first, second, big())
    });
    assert_eq!((held(&outer), held(&inner)), (2 * BIG, BIG));
    drop(blocks);
}

#[test]
fn a_pool_can_be_entered_again_inside_itself() {
    let pool = MemPool::new().unwrap();
    let blocks = pool.with(|| (pool.with(big), big()));
    assert_eq!(held(&pool), 2 * BIG);
    drop(blocks);
}

#[test]
fn without_pools_sends_requests_to_the_inner_allocator() {
    let (pool, default) = (MemPool::new().unwrap(), default_pool().unwrap());
    let before = default.stats().requested.total_allocated;
    drop(without_pools(|| Vec::<u8>::with_capacity(4096 * BIG)));
    let after = default.stats().requested.total_allocated;
    // Other tests use the default pool too, but not for gigabytes at once.
    assert!(after - before < 4096 * BIG as u64);
    let blocks = pool.with(|| {
        let outside = without_pools(|| (big(), std::thread::spawn(propagate().wrap(big)).join().unwrap()));
        (outside, big())
    });
    assert_eq!(held(&pool), BIG);
    drop(blocks);
    assert_eq!(held(&pool), 0);
}

#[test]
fn guards_may_end_in_any_order() {
    let (first, second) = (MemPool::new().unwrap(), MemPool::new().unwrap());
    let outer = first.enter();
    let inner = second.enter();
    drop(outer);
    let block = big();
    assert_eq!((held(&first), held(&second)), (0, BIG));
    drop(inner);
    let outside = big();
    assert_eq!((held(&first), held(&second)), (0, BIG));
    drop((block, outside));
}

#[test]
fn a_forgotten_guard_keeps_its_pool_and_nothing_else_breaks() {
    let pool = MemPool::new().unwrap();
    let id = pool.id();
    std::thread::spawn(move || {
        std::mem::forget(pool.enter());
        let weak_copy = pool.clone();
        drop(pool);
        let block = big();
        assert_eq!(held(&weak_copy), BIG);
        drop(weak_copy);
        // The entry still holds the pool, so allocating is safe.
        assert_eq!(big(), block);
    })
    .join()
    .unwrap();
    assert_ne!(MemPool::new().unwrap().id(), id);
}

/// A panic without the panic hook, which would keep debug information that it loads (and so
/// allocates) on the way.
fn unwind() {
    std::panic::resume_unwind(Box::new("expected by this test"));
}

#[test]
fn a_scope_ends_when_its_closure_panics() {
    let pool = MemPool::new().unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.with(|| {
            let _block = big();
            unwind();
        });
    }));
    assert!(result.is_err());
    drop(result);
    assert_eq!(held(&pool), 0);
    let outside = big();
    assert_eq!(held(&pool), 0);
    drop(outside);
}

#[test]
fn allocating_while_a_panic_unwinds_goes_to_the_scope_that_is_open() {
    struct AllocatesOnDrop<'a>(&'a MemPool);
    impl Drop for AllocatesOnDrop<'_> {
        fn drop(&mut self) {
            let before = held(self.0);
            let block = big();
            assert_eq!(held(self.0), before + BIG);
            drop(block);
        }
    }
    let pool = MemPool::new().unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.with(|| {
            let _guard = AllocatesOnDrop(&pool);
            unwind();
        })
    }));
    assert!(result.is_err());
}

#[test]
fn a_scope_ends_on_early_return() {
    fn work(pool: &MemPool) -> Result<Vec<u8>, std::num::ParseIntError> {
        let _scope = pool.enter();
        let size: usize = "not a number".parse()?;
        Ok(vec![1; size])
    }
    let pool = MemPool::new().unwrap();
    assert!(work(&pool).is_err());
    let outside = big();
    assert_eq!(held(&pool), 0);
    drop(outside);
}

#[test]
fn a_scope_does_not_reach_other_threads_unless_handed_over() {
    let pool = MemPool::new().unwrap();
    let blocks = pool.with(|| {
        let scopes = propagate();
        std::thread::scope(|threads| {
            let escaped = threads.spawn(big).join().unwrap();
            let handed_over = threads.spawn(scopes.wrap(big)).join().unwrap();
            (escaped, handed_over)
        })
    });
    assert_eq!(held(&pool), BIG);
    drop(blocks);
}

#[test]
fn a_guard_hands_its_scope_over_too() {
    let pool = MemPool::new().unwrap();
    let guard = pool.enter();
    let scopes = guard.propagate();
    drop(guard);
    let block = std::thread::spawn(move || scopes.with(big)).join().unwrap();
    assert_eq!(held(&pool), BIG);
    drop(block);
}

#[test]
fn propagation_from_outside_any_scope_changes_nothing() {
    let scopes = propagate();
    let pool = MemPool::new().unwrap();
    let block = pool.with(|| scopes.with(big));
    assert_eq!(held(&pool), BIG);
    drop(block);
}

#[test]
fn a_future_is_in_the_scope_at_each_poll_and_not_between() {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    let pool = MemPool::new().unwrap();
    let mut yielded = false;
    let mut kept = Vec::with_capacity(2);
    let future = pool.instrument(async {
        kept.push(big());
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        kept.push(big());
    });
    {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        use std::future::Future as _;
        assert!(future.as_mut().poll(&mut context).is_pending());
        let between = big();
        assert_eq!(held(&pool), BIG);
        drop(between);
        assert!(future.as_mut().poll(&mut context).is_ready());
    }
    assert_eq!(held(&pool), 2 * BIG);
    drop(kept);
    let sum = futures_executor::block_on(pool.instrument(async { big().len() }));
    assert_eq!(sum, BIG);
}

#[test]
fn small_requests_below_min_bytes_go_to_the_default_pool() {
    let pool = MemPool::builder().min_bytes(BIG).build().unwrap();
    let blocks = pool.with(|| (vec![1_u8; BIG - 1], big()));
    assert_eq!(held(&pool), BIG);
    assert_eq!(pool.stats().blocks.current, 1);
    drop(blocks);
}

#[test]
fn requests_outside_any_scope_are_served_by_the_default_pool_again_and_again() {
    let default = default_pool().unwrap();
    let before = default.stats();
    for _ in 0..10 {
        drop(vec![1_u8; 3 * BIG + 4096]);
    }
    let after = default.stats();
    assert!(after.hits >= before.hits + 9, "{} hits after {}", after.hits, before.hits);
    assert_eq!(after.name, "default");
}

#[test]
fn a_step_is_what_happens_between_two_marks() {
    let pool = MemPool::new().unwrap();
    drop(pool.with(big));
    mark_step();
    drop(pool.with(|| (big(), big())));
    // Another test may mark a step at any time, so only what is true of every cut is asserted.
    let step = mark_step();
    let stats = pool.stats();
    assert!(step >= 2);
    assert!(stats.last_step.hits + stats.last_step.misses <= 3);
    assert_eq!(stats.hits + stats.misses, 3);
}
