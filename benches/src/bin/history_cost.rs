//! What a history costs an allocation and its free, with labels, with call stacks of all and of some, each beside pairs
//! without a history in the same run; and how long a snapshot of 100,000 entries takes to make and to write.

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use mempool_benches::statistics::median;
use mempool_pools::{
    CallStacks, HistoryMode, HistoryOptions, MemPool, PoolAllocator, label, mark_step, record_history,
    stop_history,
};

#[global_allocator]
static ALLOC: PoolAllocator = PoolAllocator::new();

/// Pairs of one timing, in steps of a hundred.
const STEPS: u32 = 40;
const PAIRS: u32 = 100;
const ROUNDS: usize = 51;
/// Calls that lie between `main` and the allocation, as in a model.
const DEPTH: u32 = 20;

#[allow(unsafe_code)] // the global allocator's interface, without the page touching of a `Vec`
fn pair() {
    let layout = Layout::from_size_align(64 << 10, 64).expect("a valid layout");
    // SAFETY: the layout has a size that is not zero.
    let pointer = black_box(unsafe { alloc(layout) });
    assert!(!pointer.is_null());
    // SAFETY: `pointer` was just allocated with this layout.
    unsafe { dealloc(pointer, layout) };
}

#[inline(never)]
fn below(depth: u32) {
    if depth == 0 {
        for _ in 0..PAIRS {
            pair();
        }
    } else {
        black_box(below as fn(u32))(depth - 1);
    }
    black_box(depth);
}

/// Nanoseconds a pair takes.
fn time() -> f64 {
    let start = Instant::now();
    for _ in 0..STEPS {
        let _outer = label("model");
        let _inner = label("layer 3");
        below(DEPTH);
        mark_step();
    }
    start.elapsed().as_nanos() as f64 / f64::from(STEPS * PAIRS)
}

/// Nanoseconds that an event takes beyond what a pair takes without a history: a pair is three events, an allocation and
/// the two of a free.
fn beyond(pool: &MemPool, options: HistoryOptions) -> (f64, f64) {
    let mut with = Vec::new();
    let mut without = Vec::new();
    pool.with(|| {
        for _ in 0..ROUNDS {
            without.push(time());
            record_history(options).expect("few entries");
            with.push(time());
            stop_history();
        }
    });
    (median(&without), median(&with))
}

fn timed<R>(f: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let result = f();
    (result, start.elapsed())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = MemPool::builder().name("bench").build()?;
    let all = HistoryOptions::new();
    let some = CallStacks::Sampled(NonZeroU32::new(64).expect("not zero"));
    println!("history                           ns a pair   without   ns an event beyond");
    for (name, options) in [
        ("state: who has what", all.mode(HistoryMode::State)),
        ("all", all),
        ("all, stacks of one in 64", all.call_stacks(some)),
        ("all, stacks of 1 MiB or more", all.call_stacks(CallStacks::AtLeast(1 << 20))),
        ("all, stacks of all", all.call_stacks(CallStacks::All)),
    ] {
        let (without, with) = beyond(&pool, options);
        println!("{name:<32}  {with:>9.0}  {without:>8.0}   {:>18.0}", (with - without) / 3.0);
    }
    for stacks in [CallStacks::None, CallStacks::All] {
        record_history(all.call_stacks(stacks))?;
        let kept: Vec<Vec<u8>> = pool.with(|| {
            (0..400).for_each(|_| below(DEPTH));
            (0..2000).map(|_| Vec::with_capacity(64 << 10)).collect()
        });
        let folder = std::env::temp_dir();
        for turn in ["first", "second"] {
            let (snapshot, took) = timed(|| pool.snapshot());
            let entries: usize = snapshot.device_traces.iter().map(Vec::len).sum();
            print!(
                "{entries} entries, stacks {stacks:?}, {turn}: snapshot {:.0} ms",
                took.as_secs_f64() * 1e3
            );
            for name in ["pickle", "json"] {
                let path = folder.join(format!("mempool-history-cost-{}.{name}", std::process::id()));
                let (dumped, took) = timed(|| snapshot.dump(&path));
                dumped?;
                let bytes = std::fs::metadata(&path)?.len();
                std::fs::remove_file(&path)?;
                print!(", {name} {:.0} ms ({:.1} MB)", took.as_secs_f64() * 1e3, bytes as f64 / 1e6);
            }
            println!();
        }
        drop(kept);
        stop_history();
    }
    Ok(())
}
