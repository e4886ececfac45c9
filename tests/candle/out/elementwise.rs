//! Operations on each number.

use candle_core::{DType, Result, Tensor};
use candle_mempool::TensorOut;
use proptest::prelude::*;

use super::bits::{ALL, FLOATS, Numbers, Place, assert_same_bits, bits, output_place, place, placed, shape};
use crate::alone;

type Unary =
    (&'static str, fn(&Tensor) -> Result<Tensor>, fn(&Tensor, &Tensor) -> candle_mempool::Result<()>);
type Binary = (
    &'static str,
    fn(&Tensor, &Tensor) -> Result<Tensor>,
    fn(&Tensor, &Tensor, &Tensor) -> candle_mempool::Result<()>,
);

/// What there is, candle's operation, and the one that writes into a tensor.
pub const UNARY: &[Unary] = &[
    ("exp", Tensor::exp, Tensor::exp_out),
    ("log", Tensor::log, Tensor::log_out),
    ("sqrt", Tensor::sqrt, Tensor::sqrt_out),
    ("sqr", Tensor::sqr, Tensor::sqr_out),
    ("abs", Tensor::abs, Tensor::abs_out),
    ("neg", Tensor::neg, Tensor::neg_out),
    ("recip", Tensor::recip, Tensor::recip_out),
    ("sin", Tensor::sin, Tensor::sin_out),
    ("cos", Tensor::cos, Tensor::cos_out),
    ("tanh", Tensor::tanh, Tensor::tanh_out),
    ("relu", Tensor::relu, Tensor::relu_out),
    ("gelu", Tensor::gelu, Tensor::gelu_out),
    ("gelu_erf", Tensor::gelu_erf, Tensor::gelu_erf_out),
    ("silu", Tensor::silu, Tensor::silu_out),
    ("sigmoid", candle_nn::ops::sigmoid, Tensor::sigmoid_out),
];

pub const BINARY: &[Binary] = &[
    ("add", Tensor::broadcast_add, Tensor::add_out),
    ("sub", Tensor::broadcast_sub, Tensor::sub_out),
    ("mul", Tensor::broadcast_mul, Tensor::mul_out),
    ("div", Tensor::broadcast_div, Tensor::div_out),
    ("maximum", Tensor::broadcast_maximum, Tensor::maximum_out),
    ("minimum", Tensor::broadcast_minimum, Tensor::minimum_out),
];

/// Numbers to subtract from and to divide: greater than those of [`subtrahend`] where there is no sign.
fn minuend(dtype: DType, seed: u64) -> Numbers {
    if dtype.is_int() { Numbers::between(seed, 5, 9) } else { Numbers::wild(seed) }
}

fn subtrahend(dtype: DType, seed: u64) -> Numbers {
    if dtype.is_int() { Numbers::between(seed, 1, 5) } else { Numbers::wild(seed) }
}

/// A shape, and two that broadcast to it.
fn broadcast_shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    shape(0..=4).prop_flat_map(|dims| {
        let ones = prop::collection::vec(prop::bool::weighted(0.3), dims.len());
        (Just(dims), ones.clone(), ones, 0_usize..3, any::<bool>()).prop_map(|(dims, a, b, cut, first)| {
            let with = |ones: &[bool]| -> Vec<usize> {
                dims.iter().zip(ones).map(|(&dim, &one)| if one { 1 } else { dim }).collect()
            };
            let (mut a, mut b) = (with(&a), with(&b));
            let shorter = if first { &mut a } else { &mut b };
            shorter.drain(..cut.min(shorter.len()));
            (a, b)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::CASES))]

    #[test]
    fn operations_on_one_number_have_candles_bits(
        dims in shape(0..=4), seed in any::<u64>(), from in place(), to in output_place(),
    ) {
        let _alone = alone();
        for &dtype in ALL {
            let x = placed(&dims, dtype, Numbers::wild(seed), from).tensor;
            for (name, candle, out) in UNARY {
                if dtype.is_int() && !["abs", "relu"].contains(name) {
                    continue;
                }
                assert_same_bits(name, candle(&x), to, |y| out(&x, y));
            }
            if dtype.is_float() {
                assert_same_bits("powf", x.powf(1.7), to, |y| x.powf_out(1.7, y));
            }
            assert_same_bits("clamp", x.clamp(2.0, 3.0), to, |y| x.clamp_out(2.0, 3.0, y));
            assert_same_bits("affine", x.affine(3.0, 0.7), to, |y| x.affine_out(3.0, 0.7, y));
            assert_same_bits("copy", Ok(x.clone()), to, |y| x.copy_out(y));
            assert_same_bits("fill", x.ones_like(), to, |y| y.fill_in_place(1.0));
        }
    }

    #[test]
    fn operations_on_two_numbers_have_candles_bits(
        (left, right) in broadcast_shapes(), seed in any::<u64>(), from in place(), with in place(),
        to in output_place(),
    ) {
        let _alone = alone();
        for &dtype in ALL {
            let a = placed(&left, dtype, minuend(dtype, seed), from).tensor;
            let b = placed(&right, dtype, subtrahend(dtype, seed ^ 1), with).tensor;
            for (name, candle, out) in BINARY {
                assert_same_bits(name, candle(&a, &b), to, |y| out(&a, &b, y));
            }
        }
    }

    #[test]
    fn numbers_change_their_format_as_in_candle(
        dims in shape(0..=3), seed in any::<u64>(), from in place(), to in output_place(),
    ) {
        let _alone = alone();
        for &source in ALL {
            let x = placed(&dims, source, Numbers::wild(seed), from).tensor;
            for &dtype in ALL {
                // What a device makes of an infinity as an integer is not defined.
                let x = if dtype.is_int() { x.clamp(-100.0, 100.0).unwrap() } else { x.clone() };
                let x = if source.is_float() && dtype.is_int() { x.abs().unwrap() } else { x };
                assert_same_bits("to_dtype", x.to_dtype(dtype), to, |y| x.to_dtype_out(y));
            }
        }
    }

    #[test]
    fn a_choice_has_candles_bits(
        dims in shape(0..=4), seed in any::<u64>(), by in place(), yes in place(), no in place(),
        to in output_place(),
    ) {
        let _alone = alone();
        for choice in [DType::U8, DType::U32, DType::I64] {
            let choice = placed(&dims, choice, Numbers::below(seed, 2), by).tensor;
            for &dtype in ALL {
                let a = placed(&dims, dtype, Numbers::wild(seed ^ 1), yes).tensor;
                let b = placed(&dims, dtype, Numbers::wild(seed ^ 2), no).tensor;
                assert_same_bits("where_cond", choice.where_cond(&a, &b), to, |y| {
                    choice.where_cond_out(&a, &b, y)
                });
            }
        }
    }

    #[test]
    fn an_output_may_be_a_source_at_any_place(
        dims in shape(0..=4), seed in any::<u64>(), at in output_place(),
    ) {
        let _alone = alone();
        for &dtype in FLOATS {
            let fresh = |seed| placed(&dims, dtype, Numbers::wild(seed), at);
            for (name, candle, out) in UNARY {
                let x = fresh(seed);
                let Ok(expected) = candle(&x.tensor) else { continue };
                out(&x.tensor, &x.tensor).unwrap();
                prop_assert_eq!(bits(&x.tensor), bits(&expected), "{}", name);
            }
            let other = placed(&dims, dtype, Numbers::wild(seed ^ 1), Place::Plain).tensor;
            for (name, candle, out) in BINARY {
                let (left, right, both) = (fresh(seed), fresh(seed), fresh(seed));
                let Ok(expected) = candle(&left.tensor, &other) else { continue };
                out(&left.tensor, &other, &left.tensor).unwrap();
                prop_assert_eq!(bits(&left.tensor), bits(&expected), "{} on the left", name);
                let expected = candle(&other, &right.tensor).unwrap();
                out(&other, &right.tensor, &right.tensor).unwrap();
                prop_assert_eq!(bits(&right.tensor), bits(&expected), "{} on the right", name);
                let expected = candle(&both.tensor, &both.tensor).unwrap();
                out(&both.tensor, &both.tensor, &both.tensor).unwrap();
                prop_assert_eq!(bits(&both.tensor), bits(&expected), "{} on both sides", name);
            }
            let x = fresh(seed).tensor;
            let expected = x.affine(0.3, 2.0).unwrap().clamp(-1.0, 1.0).unwrap();
            x.affine_out(0.3, 2.0, &x).unwrap();
            x.clamp_out(-1.0, 1.0, &x).unwrap();
            prop_assert_eq!(bits(&x), bits(&expected));
        }
    }
}

#[test]
fn tensors_that_several_threads_share_out_have_candles_bits() {
    let _alone = alone();
    let dims = [3, 70_001];
    for &dtype in FLOATS {
        let x = placed(&dims, dtype, Numbers::wild(5), Place::Plain).tensor;
        let y = placed(&dims, dtype, Numbers::wild(6), Place::Offset).tensor;
        for (name, candle, out) in UNARY {
            assert_same_bits(name, candle(&x), Place::Offset, |to| out(&x, to));
        }
        for (name, candle, out) in BINARY {
            assert_same_bits(name, candle(&x, &y), Place::Plain, |to| out(&x, &y, to));
            let row = y.narrow(0, 1, 1).unwrap();
            assert_same_bits(name, candle(&x, &row), Place::Plain, |to| out(&x, &row, to));
        }
        let expected = x.exp().unwrap();
        x.exp_out(&x).unwrap();
        assert_eq!(bits(&x), bits(&expected));
    }
}

#[test]
fn copies_go_from_any_strides_to_any() {
    let _alone = alone();
    for &dtype in ALL {
        for &from in super::bits::PLACES {
            for &to in super::bits::PLACES {
                for dims in [&[2, 3, 4, 5][..], &[7], &[1, 6, 1], &[3, 1]] {
                    let x = placed(dims, dtype, Numbers::wild(8), from).tensor;
                    assert_same_bits("copy", Ok(x.clone()), to, |y| x.copy_out(y));
                }
            }
        }
    }
}
