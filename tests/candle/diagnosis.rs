//! Programs with a known fault each, and what a snapshot of them is told to have.

use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Result, Tensor, Var};
use candle_mempool::diagnosis::{Cause, Diagnosis, Finding, Severity};
use candle_mempool::{
    CallStacks, HistoryOptions, MemPool, Snapshot, label, mark_step, record_history, snapshot, stop_history,
};

use crate::weights::tensor;

const MIB: usize = 1 << 20;

/// A history with call stacks, of which there is one in a process.
struct History {
    _alone: MutexGuard<'static, ()>,
}

impl History {
    fn begin() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        record_history(HistoryOptions::new().call_stacks(CallStacks::All)).unwrap();
        Self { _alone: alone }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        stop_history();
    }
}

fn pool(conf: &str) -> MemPool {
    MemPool::builder(&crate::device()).name("planted").conf(conf).unwrap().build().unwrap()
}

/// The worst that is found in the pool, which has to be this, and from there.
fn expect<'a>(diagnosis: &'a Diagnosis, cause: Cause, site: &str) -> &'a Finding {
    let first = &diagnosis.findings[0];
    assert_eq!((first.cause, first.severity), (cause, Severity::Problem), "{diagnosis}");
    if !site.is_empty() {
        assert_eq!(first.sites[0].name, site, "{diagnosis}");
        assert!(first.text.contains(site), "{diagnosis}");
    }
    first
}

/// As a file has it: what is told from a snapshot is told from its file.
fn reread(snapshot: &Snapshot) -> Snapshot {
    let mut bytes = Vec::new();
    snapshot.write_pickle(&mut bytes).unwrap();
    Snapshot::read(&bytes[..]).unwrap()
}

fn zeros(mib: usize) -> Result<Tensor> {
    Tensor::zeros(mib * MIB, DType::U8, &crate::device())
}

/// A line of this file, as sites are called.
fn line(number: u32) -> String {
    format!("diagnosis.rs:{number}")
}

#[test]
fn a_tensor_that_a_shadowed_variable_keeps_alive() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:pages,limit_mb:96");
    let weights = tensor(1, (1024, 16 * 1024), 0.01).unwrap();
    let run = || -> Result<(Diagnosis, u32)> {
        let x = tensor(2, (512, 1024), 1.0)?;
        let at = line!() + 1;
        let h = x.matmul(&weights)?;
        // The wide one lives on under the name that now is another's.
        let h = h.narrow(1, 0, 256)?.contiguous()?;
        let mut y = h.clone();
        for _ in 0..20 {
            y = (&y * 0.5)?.relu()?;
        }
        // What comes now finds no memory on a device, and other memory on the host.
        drop(zeros(72));
        Ok((reread(&pool.snapshot()).diagnose(), at))
    };
    for _ in 0..2 {
        pool.with(run).unwrap();
        mark_step();
    }
    let (diagnosis, at) = pool.with(run).unwrap();
    let held = diagnosis.find(Cause::HeldTensors).unwrap_or_else(|| panic!("{diagnosis}"));
    assert_eq!((held.severity, &held.sites[0].name), (Severity::Problem, &line(at)), "{diagnosis}");
    assert!(held.advice.contains("shadow"), "{held}");
    // A limit that is too low is the other side of it.
    assert!(diagnosis.findings[..2].contains(held), "{diagnosis}");
}

#[test]
fn a_loss_that_is_collected_with_its_graph() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:pages");
    let weights = Var::from_tensor(&tensor(1, (256, 256), 0.1).unwrap()).unwrap();
    let mut losses: Vec<Tensor> = Vec::new();
    let mut lines = (0, 0);
    pool.with(|| -> Result<()> {
        for number in 0..12 {
            let x = tensor(number, (256, 256), 1.0)?;
            lines.0 = line!();
            let h = x.matmul(&weights)?;
            let h = h.gelu()?;
            let loss = (&h * &h)?.mean_all()?;
            lines.1 = line!();
            losses.push(loss);
            mark_step();
        }
        Ok(())
    })
    .unwrap();
    let diagnosis = reread(&pool.snapshot()).diagnose();
    let grows = expect(&diagnosis, Cause::GrowsEachStep, "");
    let within = |name: &str| (lines.0..=lines.1).any(|number| name == line(number));
    assert!(grows.sites.iter().take(3).all(|site| within(&site.name)), "{diagnosis}");
    assert!(grows.advice.contains("detach"), "{diagnosis}");
    // The same with what is wanted kept only.
    losses.clear();
    for number in 0..12 {
        let x = tensor(number, (256, 256), 1.0).unwrap();
        let loss = pool.with(|| x.matmul(&weights)?.gelu()?.sqr()?.mean_all()).unwrap();
        losses.push(loss.detach());
        mark_step();
    }
    assert_eq!(pool.snapshot().diagnose().find(Cause::GrowsEachStep), None);
}

#[test]
fn a_collection_that_grows_by_one_tensor_a_step() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:pages");
    let mut seen = Vec::new();
    for _ in 0..20 {
        let _label = label("cache of embeddings");
        seen.push(pool.with(|| zeros(1)).unwrap());
        drop(pool.with(|| zeros(8)).unwrap());
        mark_step();
    }
    let at = line!() - 4;
    let diagnosis = pool.snapshot().diagnose();
    let grows = expect(&diagnosis, Cause::GrowsEachStep, "");
    assert!(grows.advice.contains("collection"), "{diagnosis}");
    // The function that both places share is where memory is asked for.
    assert!(grows.sites[0].blocks == 20 && grows.sites[0].bytes >= 20 * MIB, "{diagnosis}, {at}");
}

#[test]
fn a_small_block_in_each_large_segment() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:torch");
    let mut survivors = Vec::new();
    let mut at = 0;
    for number in 0..18 {
        let _label = label("step");
        // What is large comes and goes; what stays takes a part of its place.
        drop(pool.with(|| zeros(40)).unwrap());
        at = line!() + 1;
        let small = pool.with(|| Tensor::zeros(3 * MIB / 2, DType::U8, &crate::device())).unwrap();
        if number < 6 {
            survivors.push(small);
        }
        drop(pool.with(|| zeros(44)).unwrap());
        mark_step();
    }
    let diagnosis = reread(&pool.snapshot()).diagnose();
    let stuck = diagnosis.find(Cause::StuckBlocks).unwrap_or_else(|| panic!("{diagnosis}"));
    assert_eq!((stuck.severity, &stuck.sites[0].name), (Severity::Problem, &line(at)), "{diagnosis}");
}

#[test]
fn free_segments_of_sizes_that_nobody_asks_for_again() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:torch");
    let at = line!() + 1;
    let first = |mib: usize| Tensor::zeros(mib * MIB, DType::U8, &crate::device()).unwrap();
    drop(pool.with(|| (22..30).map(first).collect::<Vec<_>>()));
    for _ in 0..40 {
        drop(pool.with(|| (zeros(64).unwrap(), zeros(70).unwrap())));
        mark_step();
    }
    let diagnosis = reread(&pool.snapshot()).diagnose();
    let idle = expect(&diagnosis, Cause::IdleSegments, &line(at));
    assert!(idle.bytes >= 8 * 22 * MIB && idle.text.contains("70 MiB"), "{diagnosis}");
}

#[test]
fn a_cache_of_keys_that_grows_by_cat() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:pages");
    let mut at = 0;
    let mut cache = pool.with(|| tensor(1, (1, 64, 1024), 1.0)).unwrap();
    for number in 0..24 {
        let key = pool.with(|| tensor(number, (1, 16, 1024), 1.0)).unwrap();
        at = line!() + 1;
        cache = pool.with(|| Tensor::cat(&[&cache, &key], 1)).unwrap();
        mark_step();
    }
    let diagnosis = reread(&pool.snapshot()).diagnose();
    let grows = diagnosis.find(Cause::GrowingBuffer).unwrap_or_else(|| panic!("{diagnosis}"));
    assert_eq!((grows.severity, &grows.sites[0].name), (Severity::Problem, &line(at)), "{diagnosis}");
    assert!(diagnosis.findings[0].cause == Cause::GrowingBuffer, "{diagnosis}");
    assert_eq!(cache.dims(), [1, 64 + 24 * 16, 1024]);
}

#[test]
fn a_pool_that_is_too_large_and_one_that_is_too_small() {
    let _alone = crate::alone();
    let _history = History::begin();
    let large = pool("policy:pages,fixed_size_mb:256");
    for _ in 0..4 {
        drop(large.with(|| (zeros(20).unwrap(), zeros(12).unwrap())));
        mark_step();
    }
    let diagnosis = reread(&large.snapshot()).diagnose();
    let finding = expect(&diagnosis, Cause::PoolTooLarge, "");
    assert!(finding.advice.contains("fixed_size_mb:34"), "{finding}");
    // That size is one that it can be given.
    let right = pool("policy:pages,fixed_size_mb:34");
    drop(right.with(|| (zeros(20).unwrap(), zeros(12).unwrap())));
    assert_eq!(
        (right.stats().overflow_count, right.snapshot().diagnose().find(Cause::PoolTooLarge)),
        (0, None)
    );
    let small = pool("policy:pages,limit_mb:32");
    let at = line!() + 1;
    let more = |mib: usize| Tensor::zeros(mib * MIB, DType::U8, &crate::device());
    let kept = small.with(|| more(24)).unwrap();
    drop(small.with(|| more(30)));
    let diagnosis = reread(&small.snapshot()).diagnose();
    let finding = expect(&diagnosis, Cause::PoolTooSmall, &line(at));
    assert!(finding.advice.contains("limit_mb:58"), "{finding}");
    drop(kept);
}

#[test]
fn what_outlives_its_use_is_told_by_the_line_that_made_it() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:pages");
    let _label = label("weights");
    let at = line!() + 1;
    let kept = pool.with(|| Tensor::zeros(3 * MIB, DType::U8, &crate::device())).unwrap();
    let report = pool.leaks();
    let leak = report.leaks.iter().find(|leak| leak.label == "weights").unwrap();
    assert_eq!((&leak.site, leak.bytes, leak.library), (&line(at), 3 * MIB, None), "{report}");
    drop(kept);
    assert!(pool.leaks().leaks.iter().all(|leak| leak.bytes < MIB), "{}", pool.leaks());
}

#[test]
fn a_program_without_fault_has_no_problem() {
    let _alone = crate::alone();
    let _history = History::begin();
    let pool = pool("policy:pages");
    let weights = pool.with(|| tensor(1, (1024, 1024), 0.1)).unwrap();
    for number in 0..10 {
        let x = tensor(number, (512, 1024), 1.0).unwrap();
        let y = pool.with(|| x.matmul(&weights)?.gelu()?.matmul(&weights)).unwrap();
        assert_eq!(y.dims(), [512, 1024]);
        mark_step();
    }
    let diagnosis = pool.snapshot().diagnose();
    assert_eq!(diagnosis.problems().count(), 0, "{diagnosis}");
    // All pools of the process can be looked at together.
    let all = snapshot().diagnose();
    assert!(all.findings.iter().all(|finding| !finding.text.is_empty()));
}
