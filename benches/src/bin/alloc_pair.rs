//! What one allocation and free that hits costs through the global allocator, against an
//! uncontended lock and unlock of a `parking_lot` mutex timed in the same run; and how that
//! cost changes with 8 threads on one pool and on 8 pools, and in a planned step.

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use mempool_benches::statistics::median;
use mempool_pools::{MemPool, PoolAllocator, StepPlan};

#[global_allocator]
static ALLOC: PoolAllocator = PoolAllocator::new();

const MIB: usize = 1 << 20;
/// Calls of one timing: a millisecond, short enough that most timings see no other process.
const CALLS: u32 = 10_000;
/// Calls of each thread where several run: long enough that all of them run at once.
const CALLS_OF_A_THREAD: u32 = 200_000;
const ROUNDS: usize = 101;
/// Rounds in which the threads run too.
const THREAD_ROUNDS: usize = 11;
const THREADS: usize = 8;
/// Requests of a planned step, first one after the other and then all at once.
const PLANNED_CALLS: u32 = 1000;
const PLANNED_RUNS: usize = 11;
const PLANNED_BYTES: usize = 64 << 10;

/// One pair. An allocation nobody sees might be removed by the optimiser.
#[allow(unsafe_code)] // the global allocator's interface, without the page touching of a `Vec`
fn pair(size: usize) {
    let layout = Layout::from_size_align(size, 64).expect("a valid layout");
    // SAFETY: the layout has a size that is not zero.
    let pointer = black_box(unsafe { alloc(layout) });
    assert!(!pointer.is_null());
    // SAFETY: `pointer` was just allocated with this layout.
    unsafe { dealloc(pointer, layout) };
}

/// Nanoseconds a call of `f` takes.
fn time(calls: u32, f: impl Fn()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        f();
    }
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// Nanoseconds that an allocation, and that a pair, take in runs of a step that is planned.
#[allow(unsafe_code)] // as `pair`
fn planned(step: &mut StepPlan) -> (f64, f64) {
    let layout = Layout::from_size_align(PLANNED_BYTES, 64).expect("a valid layout");
    let mut blocks = [std::ptr::null_mut(); PLANNED_CALLS as usize];
    let mut run = |step: &mut StepPlan| {
        step.run(|| {
            let pairs = time(PLANNED_CALLS, || pair(PLANNED_BYTES));
            let start = Instant::now();
            for block in &mut blocks {
                // SAFETY: the layout has a size that is not zero.
                *block = black_box(unsafe { alloc(layout) });
            }
            let allocations = start.elapsed().as_nanos() as f64 / f64::from(PLANNED_CALLS);
            for &block in &blocks {
                // SAFETY: `block` was just allocated with this layout.
                unsafe { dealloc(block, layout) };
            }
            (allocations, pairs)
        })
    };
    for _ in 0..3 {
        run(step);
    }
    let runs: Vec<(f64, f64)> = (0..PLANNED_RUNS).map(|_| run(step)).collect();
    let of = |one: fn(&(f64, f64)) -> f64| median(&runs.iter().map(one).collect::<Vec<_>>());
    (of(|run| run.0), of(|run| run.1))
}

/// Nanoseconds a pair takes each of 8 threads, each in the pool that `pool_of` gives it,
/// per core that they share: with two cores, four threads take turns on each.
fn threads(pool_of: impl Fn(usize) -> MemPool + Sync) -> f64 {
    let start_line = Barrier::new(THREADS);
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let elapsed: Vec<f64> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (pool_of, start_line) = (&pool_of, &start_line);
                scope.spawn(move || {
                    let pool = pool_of(thread);
                    pool.with(|| {
                        pair(MIB);
                        start_line.wait();
                        time(CALLS_OF_A_THREAD, || pair(MIB))
                    })
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread that does not panic")).collect()
    });
    median(&elapsed) * cores as f64 / THREADS as f64
}

fn main() -> Result<(), mempool_pools::PoolError> {
    let pool = MemPool::new()?;
    let pools: Vec<MemPool> = (0..THREADS).map(|_| MemPool::new()).collect::<Result<_, _>>()?;
    let mut step = pool.step();
    let mutex = parking_lot::Mutex::new(0_u64);
    let sizes = [64 << 10, MIB, 64 * MIB];
    let mut rows: Vec<Vec<f64>> = vec![Vec::new(); sizes.len() + 5];
    // Everything in turn, so that a change in the machine's speed meets all of them.
    for round in 0..ROUNDS {
        rows[0].push(time(CALLS, || *black_box(&mutex).lock() += 1));
        for (row, &size) in rows[1..].iter_mut().zip(&sizes) {
            row.push(pool.with(|| {
                pair(size);
                time(CALLS, || pair(size))
            }));
        }
        let (allocation, pair) = planned(&mut step);
        rows[sizes.len() + 3].push(allocation);
        rows[sizes.len() + 4].push(pair);
        if round < THREAD_ROUNDS {
            rows[sizes.len() + 1].push(threads(|_| pool.clone()));
            rows[sizes.len() + 2].push(threads(|thread| pools[thread].clone()));
        }
    }
    let names = [
        "parking_lot lock + unlock",
        "alloc + free, 64 KiB",
        "alloc + free, 1 MiB",
        "alloc + free, 64 MiB",
        "1 MiB, 8 threads, 1 pool, per core",
        "1 MiB, 8 threads, 8 pools, per core",
        "planned alloc, 64 KiB",
        "planned alloc + free, 64 KiB",
    ];
    println!("{:<38} {:>9} {:>9} {:>13}", "", "ns", "x lock", "x one thread");
    let lock = rows[0].clone();
    let single = rows[2].clone();
    for (name, row) in names.into_iter().zip(rows) {
        let ratio = |base: &[f64]| median(&row.iter().zip(base).map(|(a, b)| a / b).collect::<Vec<_>>());
        println!("{name:<38} {:>9.1} {:>9.2} {:>13.2}", median(&row), ratio(&lock), ratio(&single));
    }
    Ok(())
}
