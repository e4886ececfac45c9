//! Tensors that share memory, and threads that share tensors.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp2, InplaceOp3, Layout, Tensor};
use candle_mempool::{Error, TensorOut, cat_out};

use super::bits::{Numbers, Place, bits, numbers, placed};
use crate::{alone, device};

/// Integers, whose sums are the same in any order.
fn sequence(len: usize) -> Tensor {
    placed(&[len], DType::F32, Numbers::below(3, 9), Place::Plain).tensor
}

#[test]
fn an_output_that_overlaps_a_source_is_refused_and_nothing_is_written() {
    let _alone = alone();
    let whole = sequence(36);
    let at =
        |start, dims: &[usize]| whole.narrow(0, start, dims.iter().product()).unwrap().reshape(dims).unwrap();
    let before = bits(&whole);
    let out = at(6, &[3, 4]);
    let other = placed(&[3, 4], DType::F32, Numbers::small(1), Place::Plain).tensor;
    let aliased = |op, source_index| Err(Error::Aliased { op, source_index });
    for start in [0, 5, 7, 17] {
        let source = at(start, &[3, 4]);
        assert_eq!(source.exp_out(&out), aliased("exp_out", 0), "from {start}");
        assert_eq!(source.add_out(&other, &out), aliased("add_out", 0));
        assert_eq!(other.add_out(&source, &out), aliased("add_out", 1));
        assert_eq!(out.add_out(&source, &out), aliased("add_out", 1));
    }
    // The same elements in another order.
    assert_eq!(at(6, &[4, 3]).t().unwrap().exp_out(&out), aliased("exp_out", 0));
    // A row of the output, for all rows.
    assert_eq!(other.mul_out(&at(6, &[4]), &out), aliased("mul_out", 1));
    // Not element by element.
    let square = at(0, &[3, 3]);
    assert_eq!(square.matmul_out(&square, &square), aliased("matmul_out", 0));
    assert_eq!(at(20, &[3, 3]).matmul_out(&square, &square), aliased("matmul_out", 1));
    assert_eq!(square.sum_out(0, &at(8, &[3])), aliased("sum_out", 0));
    assert_eq!(square.sum_out(0, &at(0, &[3])), aliased("sum_out", 0));
    let weight = at(6, &[4]);
    assert_eq!(out.rms_norm_out(&weight, 1e-5, &out), aliased("rms_norm_out", 1));
    let parts = [&at(0, &[4]), &at(10, &[4])];
    assert_eq!(cat_out(&parts, 0, &at(4, &[8])), aliased("cat_out", 1));
    assert_eq!(bits(&whole), before, "nothing was written");
}

#[test]
fn an_output_before_or_after_its_sources_in_one_storage_is_written() {
    let _alone = alone();
    let whole = sequence(60);
    let part =
        |start, dims: &[usize]| whole.narrow(0, start, dims.iter().product()).unwrap().reshape(dims).unwrap();
    let (first, middle, last) = (part(0, &[3, 4]), part(12, &[3, 4]), part(24, &[4, 3]));
    let expected = first.add(&last.t().unwrap()).unwrap();
    first.add_out(&last.t().unwrap(), &middle).unwrap();
    assert_eq!(bits(&middle), bits(&expected));
    let product = first.matmul(&last).unwrap();
    let out = part(40, &[3, 3]);
    first.matmul_out(&last, &out).unwrap();
    assert_eq!(bits(&out), bits(&product));
    let sums = last.sum(1).unwrap();
    last.sum_out(1, &part(50, &[4])).unwrap();
    assert_eq!(bits(&part(50, &[4])), bits(&sums));
    let both = Tensor::cat(&[&first, &middle], 0).unwrap();
    cat_out(&[&first, &middle], 0, &part(36, &[6, 4])).unwrap();
    assert_eq!(bits(&part(36, &[6, 4])), bits(&both));
}

#[test]
fn a_tensor_grows_in_place_when_it_is_its_own_part_of_the_output() {
    let _alone = alone();
    let whole = sequence(20);
    let (kept, out) = (whole.narrow(0, 0, 12).unwrap(), whole.clone());
    let more = placed(&[8], DType::F32, Numbers::small(9), Place::Plain).tensor;
    let expected = Tensor::cat(&[&kept, &more], 0).unwrap();
    cat_out(&[&kept, &more], 0, &out).unwrap();
    assert_eq!(bits(&out), bits(&expected));
}

/// How often a thread repeats its operation before all begin anew with other tensors.
const ROUNDS: usize = 300;

/// Runs every function on a thread of its own, again and again, and fails if they do not come to an end.
fn assert_no_circle(rounds: usize, work: Vec<Box<dyn Fn() + Send>>) {
    let (done, wait) = mpsc::channel();
    let (threads, finished) = (work.len(), std::sync::Arc::new(AtomicUsize::new(0)));
    for work in work {
        let (done, finished) = (done.clone(), finished.clone());
        thread::spawn(move || {
            (0..rounds).for_each(|_| work());
            finished.fetch_add(1, Ordering::Relaxed);
            let _ = done.send(());
        });
    }
    for _ in 0..threads {
        let ended = wait.recv_timeout(Duration::from_secs(120));
        assert!(ended.is_ok(), "{} of {threads} threads ended", finished.load(Ordering::Relaxed));
    }
}

/// An operation of candle's that has its storages locked and leaves them as they are.
struct Nothing;

impl InplaceOp2 for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> candle_core::Result<()> {
        Ok(())
    }

    fn cuda_fwd(
        &self,
        _: &mut CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        Ok(())
    }
}

impl InplaceOp3 for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        Ok(())
    }

    fn cuda_fwd(
        &self,
        _: &mut CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        Ok(())
    }
}

type Four = [Tensor; 4];

fn four() -> Four {
    [(); 4].map(|()| Tensor::ones(64, DType::F32, &device()).unwrap())
}

/// `work` on the tensors in another order.
fn with(tensors: &Four, order: [usize; 4], work: fn([&Tensor; 4])) -> Box<dyn Fn() + Send> {
    let tensors = order.map(|k| tensors[k].clone());
    Box::new(move || work(tensors.each_ref()))
}

/// Out-operations that give the tensors every role.
fn out_operations(tensors: &Four) -> Vec<Box<dyn Fn() + Send>> {
    fn layer_norm([a, b, c, d]: [&Tensor; 4]) {
        let row = |x: &Tensor| x.reshape((1, 64)).unwrap();
        row(a).layer_norm_out(b, c, 1.0, &row(d)).unwrap();
    }
    vec![
        with(tensors, [0, 1, 2, 3], |[a, b, ..]| a.add_out(b, b).unwrap()),
        with(tensors, [1, 0, 2, 3], |[a, b, ..]| a.add_out(b, b).unwrap()),
        with(tensors, [0, 1, 2, 3], |[a, b, c, _]| a.maximum_out(b, c).unwrap()),
        with(tensors, [2, 1, 0, 3], |[a, b, c, _]| a.maximum_out(b, c).unwrap()),
        with(tensors, [1, 2, 0, 3], |[a, b, c, _]| a.minimum_out(b, c).unwrap()),
        with(tensors, [3, 2, 1, 0], layer_norm),
        with(tensors, [0, 1, 2, 3], layer_norm),
    ]
}

// What candle's own operations would make a circle of without this crate is not run together: in-place operations beside
// those that allocate (see `out/locks.rs`), and two of `slice_set` with swapped tensors.

#[test]
fn out_operations_and_operations_that_allocate_never_wait_in_a_circle() {
    let _alone = alone();
    for _ in 0..20 {
        let tensors = four();
        let mut work = out_operations(&tensors);
        work.extend([
            with(&tensors, [3, 0, 1, 2], |[a, b, ..]| drop(a.add(b).unwrap())),
            with(&tensors, [0, 3, 1, 2], |[a, b, ..]| drop(a.add(b).unwrap())),
            with(&tensors, [1, 2, 3, 0], |[a, b, ..]| drop(a.add(b).unwrap())),
            with(&tensors, [2, 1, 0, 3], |[a, b, c, _]| {
                drop(candle_nn::ops::layer_norm(a, b, c, 1.0).unwrap())
            }),
        ]);
        assert_no_circle(ROUNDS, work);
    }
}

#[test]
fn out_operations_and_operations_in_place_never_wait_in_a_circle() {
    let _alone = alone();
    for _ in 0..20 {
        let tensors = four();
        let mut work = out_operations(&tensors);
        work.extend([
            with(&tensors, [1, 3, 0, 2], |[a, b, ..]| a.inplace_op2(b, &Nothing).unwrap()),
            with(&tensors, [3, 1, 0, 2], |[a, b, c, _]| a.inplace_op3(b, c, &Nothing).unwrap()),
            with(&tensors, [0, 2, 3, 1], |[a, b, c, _]| a.inplace_op3(b, c, &Nothing).unwrap()),
        ]);
        assert_no_circle(ROUNDS, work);
    }
}

#[test]
fn out_operations_and_one_that_locks_in_an_order_of_its_own_never_wait_in_a_circle() {
    let _alone = alone();
    for order in [[0, 1, 2, 3], [1, 0, 2, 3], [3, 0, 1, 2], [2, 3, 1, 0]] {
        let tensors = four();
        let mut work = out_operations(&tensors);
        work.push(with(&tensors, order, |[a, b, ..]| a.slice_set(b, 0, 0).unwrap()));
        assert_no_circle(ROUNDS, work);
    }
}

#[test]
fn an_operation_is_seen_whole_by_readers() {
    let _alone = alone();
    let out = Tensor::zeros(4096, DType::F32, &device()).unwrap();
    let (ones, twos) = (out.ones_like().unwrap(), (out.ones_like().unwrap() * 2.0).unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                ones.copy_out(&out).unwrap();
                twos.copy_out(&out).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            let seen = numbers(&out);
            assert!(seen.iter().all(|&number| number == seen[0]), "half of a result");
        }
    });
}
