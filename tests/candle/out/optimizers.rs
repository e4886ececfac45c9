//! Optimizers that update in place, beside candle-nn's.

use candle_core::{DType, Tensor, Var};
use candle_mempool::{AdamW, AdamWParams, MemPool, Sgd};
use candle_nn::{Optimizer, ParamsAdamW};

use super::bits::{FLOATS, Numbers, Place, bits, placed};
use crate::{alone, device};

const PARAMS: ParamsAdamW = ParamsAdamW { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-6, weight_decay: 0.1 };

fn ours(params: &ParamsAdamW) -> AdamWParams {
    let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = *params;
    AdamWParams { lr, beta1, beta2, eps, weight_decay }
}

/// A variable of each of some shapes.
fn variables(dtype: DType) -> Vec<Var> {
    let of = |(k, dims): (usize, &&[usize])| {
        Var::from_tensor(&placed(dims, dtype, Numbers::small(k as u64), Place::Plain).tensor).unwrap()
    };
    let shapes: [&[usize]; 4] = [&[3, 40], &[40], &[1], &[20_000]];
    shapes.iter().enumerate().map(of).collect()
}

/// A loss in which all variables are, with gradients that do not lie contiguous among others.
fn loss(vars: &[Var], dtype: DType) -> Tensor {
    let x = placed(&[40, 3], dtype, Numbers::small(9), Place::Plain).tensor;
    let y = x.matmul(&vars[0]).unwrap().broadcast_add(&vars[1]).unwrap().sqr().unwrap();
    let y = (y.mean_all().unwrap() + vars[3].sqr().unwrap().mean_all().unwrap()).unwrap();
    (y + (vars[2].sum_all().unwrap() * 0.5).unwrap()).unwrap()
}

#[test]
fn adamw_in_place_has_the_bits_of_candle_nn() {
    let _alone = alone();
    for &dtype in FLOATS {
        let (theirs, mine) = (variables(dtype), variables(dtype));
        let mut reference = candle_nn::AdamW::new(theirs.clone(), PARAMS).unwrap();
        let mut optimizer = AdamW::new(mine.clone(), ours(&PARAMS)).unwrap();
        for step in 0..6 {
            reference.step(&loss(&theirs, dtype).backward().unwrap()).unwrap();
            optimizer.step(&loss(&mine, dtype).backward().unwrap()).unwrap();
            for (k, (theirs, mine)) in theirs.iter().zip(&mine).enumerate() {
                assert_eq!(bits(mine), bits(theirs), "{dtype:?}, variable {k}, step {step}");
            }
        }
    }
}

#[test]
fn gradient_descent_in_place_has_the_bits_of_candle_nn() {
    let _alone = alone();
    for &dtype in FLOATS {
        let (theirs, mine) = (variables(dtype), variables(dtype));
        let mut reference = candle_nn::SGD::new(theirs.clone(), 0.1).unwrap();
        let mut optimizer = Sgd::new(mine.clone(), 0.1);
        for _ in 0..4 {
            reference.step(&loss(&theirs, dtype).backward().unwrap()).unwrap();
            optimizer.step(&loss(&mine, dtype).backward().unwrap()).unwrap();
            for (theirs, mine) in theirs.iter().zip(&mine) {
                assert_eq!(bits(mine), bits(theirs), "{dtype:?}");
            }
        }
    }
}

#[test]
fn a_step_of_an_optimizer_takes_no_memory_after_the_first() {
    let _alone = alone();
    let vars = vec![Var::from_tensor(&Tensor::ones((1024, 1024), DType::F32, &device()).unwrap()).unwrap()];
    let gradients = vars[0].sqr().unwrap().mean_all().unwrap().backward().unwrap();
    let mut adamw = AdamW::new(vars.clone(), AdamWParams::default()).unwrap();
    let mut sgd = Sgd::new(vars, 0.1);
    adamw.step(&gradients).unwrap();
    sgd.step(&gradients).unwrap();
    let pool = MemPool::new(&device()).unwrap();
    pool.with(|| {
        adamw.step(&gradients).unwrap();
        sgd.step(&gradients).unwrap();
    });
    let taken = pool.stats().requested.peak;
    assert!(taken < 4096, "{taken} bytes were taken");
}
