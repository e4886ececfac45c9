//! Reductions, and operations on each row.

use candle_core::{DType, Tensor};
use candle_mempool::{Error, TensorOut};
use candle_nn::ops::{layer_norm, rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;
use proptest::prelude::*;

use super::bits::{
    ALL, FLOATS, Numbers, Place, assert_same_bits, bits, contiguous_place, place, placed, shape,
};
use crate::alone;

/// Numbers few and small enough for their sums to fit.
fn summands(dtype: DType, seed: u64) -> Numbers {
    if dtype == DType::U8 { Numbers::below(seed, 2) } else { Numbers::wild(seed) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::CASES))]

    #[test]
    fn sums_and_means_have_candles_bits(
        dims in prop::collection::vec(1_usize..6, 1..=4), chosen in prop::collection::vec(any::<bool>(), 4),
        seed in any::<u64>(), from in place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        let over: Vec<usize> = (0..dims.len()).filter(|&k| chosen[k]).collect();
        for &dtype in ALL {
            let numbers = if dtype.is_float() { Numbers::small(seed) } else { summands(dtype, seed) };
            let x = placed(&dims, dtype, numbers, from).tensor;
            let over = over.as_slice();
            if dtype == DType::U8 && x.elem_count() > 200 {
                continue;
            }
            assert_same_bits("sum", x.sum(over), to, |y| x.sum_out(over, y));
            assert_same_bits("sum_keepdim", x.sum_keepdim(over), to, |y| x.sum_out(over, y));
            if dtype.is_float() {
                assert_same_bits("mean", x.mean(over), to, |y| x.mean_out(over, y));
                assert_same_bits("mean_keepdim", x.mean_keepdim(over), to, |y| x.mean_out(over, y));
            }
        }
    }

    #[test]
    fn extremes_have_candles_bits(
        dims in shape(1..=4), dim in any::<prop::sample::Index>(), seed in any::<u64>(), from in place(),
        to in contiguous_place(),
    ) {
        let _alone = alone();
        let dim = dim.index(dims.len());
        for &dtype in ALL {
            let x = placed(&dims, dtype, Numbers::wild(seed), from).tensor;
            assert_same_bits("max", x.max(dim), to, |y| x.max_out(dim, y));
            assert_same_bits("min", x.min(dim), to, |y| x.min_out(dim, y));
            assert_same_bits("max_keepdim", x.max_keepdim(dim), to, |y| x.max_out(dim, y));
            assert_same_bits("min_keepdim", x.min_keepdim(dim), to, |y| x.min_out(dim, y));
        }
    }

    #[test]
    fn operations_on_rows_have_candles_bits(
        dims in shape(1..=4), seed in any::<u64>(), from in contiguous_place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        let last = *dims.last().unwrap();
        for &dtype in FLOATS {
            let fresh = || placed(&dims, dtype, Numbers::small(seed), from).tensor;
            let x = fresh();
            let weight = placed(&[last], dtype, Numbers::small(seed ^ 1), Place::Offset).tensor;
            let bias = placed(&[last], dtype, Numbers::small(seed ^ 2), Place::Plain).tensor;
            assert_same_bits("softmax", softmax_last_dim(&x), to, |y| x.softmax_last_dim_out(y));
            let expected = rms_norm(&x, &weight, 1e-5);
            assert_same_bits("rms_norm", expected, to, |y| x.rms_norm_out(&weight, 1e-5, y));
            let expected = layer_norm(&x, &weight, &bias, 1e-5);
            assert_same_bits("layer_norm", expected, to, |y| x.layer_norm_out(&weight, &bias, 1e-5, y));

            let x = fresh();
            let expected = softmax_last_dim(&x).unwrap();
            x.softmax_last_dim_out(&x).unwrap();
            prop_assert_eq!(bits(&x), bits(&expected), "softmax in place");
            let x = fresh();
            if let Ok(expected) = rms_norm(&x, &weight, 1e-5) {
                x.rms_norm_out(&weight, 1e-5, &x).unwrap();
                prop_assert_eq!(bits(&x), bits(&expected), "rms_norm in place");
            }
            let x = fresh();
            if let Ok(expected) = layer_norm(&x, &weight, &bias, 1e-5) {
                x.layer_norm_out(&weight, &bias, 1e-5, &x).unwrap();
                prop_assert_eq!(bits(&x), bits(&expected), "layer_norm in place");
            }
        }
    }

    #[test]
    fn rotary_embeddings_have_candles_bits(
        (batch, heads, steps, half) in (1_usize..4, 1_usize..4, 1_usize..9, 1_usize..9),
        more_steps in 0_usize..3, seed in any::<u64>(), from in contiguous_place(), to in contiguous_place(),
        of_batch in any::<bool>(),
    ) {
        let _alone = alone();
        let table = if of_batch { vec![batch, steps, half] } else { vec![steps + more_steps, half] };
        for &dtype in FLOATS {
            let x = placed(&[batch, heads, steps, 2 * half], dtype, Numbers::small(seed), from).tensor;
            let cos = placed(&table, dtype, Numbers::small(seed ^ 1), Place::Offset).tensor;
            let sin = placed(&table, dtype, Numbers::small(seed ^ 2), Place::Plain).tensor;
            assert_same_bits("rope", rope(&x, &cos, &sin), to, |y| x.rope_out(&cos, &sin, y));
            let refused = x.rope_out(&cos, &sin, &x).unwrap_err();
            prop_assert_eq!(refused, Error::Aliased { op: "rope_out", source_index: 0 });
        }
    }
}

#[test]
fn reductions_over_nothing_are_zero_or_refused() {
    let _alone = alone();
    if crate::device().is_cuda() {
        return; // an allocation of nothing fails there
    }
    let x = Tensor::zeros((2, 0, 3), DType::F32, &crate::device()).unwrap();
    let y = super::bits::output(&[2, 3], DType::F32, Place::Plain).tensor;
    x.sum_out(1, &y).unwrap();
    assert_eq!(super::bits::numbers(&y), [0.0; 6]);
    let error = x.max_out(1, &y).unwrap_err();
    assert!(matches!(error, Error::Shapes { op: "max_out", .. }), "{error}");
}
