//! Matrix products and convolutions.

use candle_core::{D, DType, Tensor};
use candle_mempool::{ConvParams, TensorOut};
use proptest::prelude::*;

use super::bits::{
    FLOATS, Numbers, Place, assert_same_bits, bits, contiguous_place, numbers, output, place, placed,
};
use crate::alone;

/// As [`assert_same_bits`] where cuBLAS is called as candle calls it: with the output where an allocation would be and
/// the sources where they are. It chooses by alignment, and candle copies sources that it broadcasts. Else the result is
/// only close.
fn assert_product(
    name: &str,
    expected: candle_core::Result<Tensor>,
    place: Place,
    as_candle: bool,
    run: impl FnOnce(&Tensor) -> candle_mempool::Result<()>,
) {
    if crate::device().is_cpu() || (as_candle && place == Place::Plain) {
        return assert_same_bits(name, expected, place, run);
    }
    let Ok(expected) = expected else { return };
    let out = output(expected.dims(), expected.dtype(), place);
    run(&out.tensor).unwrap_or_else(|error| panic!("{name}: {error}"));
    // Short formats may be summed in themselves, over up to 130 products.
    let tolerance = match expected.dtype() {
        DType::BF16 => 0.08,
        DType::F16 => 0.02,
        _ => 0.003,
    };
    for (got, expected) in numbers(&out.tensor).into_iter().zip(numbers(&expected)) {
        assert!(
            (got - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{name}: {got} is not {expected}"
        );
    }
    out.assert_nothing_beside_changed();
}

/// A matrix or a batch of them, perhaps transposed in memory.
fn matrices(batch: &[usize], rows: usize, columns: usize, dtype: DType, seed: u64, at: Place) -> Tensor {
    let dims = [batch, &[rows, columns]].concat();
    if at != Place::Transposed {
        return placed(&dims, dtype, Numbers::small(seed), at).tensor;
    }
    let dims = [batch, &[columns, rows]].concat();
    placed(&dims, dtype, Numbers::small(seed), Place::Offset).tensor.transpose(D::Minus1, D::Minus2).unwrap()
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 1_usize..6, 2 => 6_usize..40, 1 => 60_usize..130]
}

fn matrix_place() -> impl Strategy<Value = Place> {
    prop::sample::select(&[Place::Plain, Place::Offset, Place::Transposed])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::CASES))]

    #[test]
    fn products_have_candles_bits(
        batch in prop::collection::vec(1_usize..4, 0..=2), (m, n) in (size(), size()),
        k in prop_oneof![size(), 500_usize..1300],
        seed in any::<u64>(), left in matrix_place(), right in matrix_place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        for &dtype in FLOATS {
            let a = matrices(&batch, m, k, dtype, seed, left);
            let b = matrices(&batch, k, n, dtype, seed ^ 1, right);
            assert_product("matmul", a.matmul(&b), to, true, |y| a.matmul_out(&b, y));
            let a = matrices(&batch, m, k, dtype, seed, contiguous(left));
            let b = matrices(&[], k, n, dtype, seed ^ 1, right);
            assert_product("one right side", a.broadcast_matmul(&b), to, true, |y| a.matmul_out(&b, y));
            let c = matrices(&[], m, k, dtype, seed, contiguous(left));
            let b = matrices(&batch, k, n, dtype, seed ^ 1, right);
            assert_product("one left side", c.broadcast_matmul(&b), to, false, |y| c.matmul_out(&b, y));
        }
    }

    #[test]
    fn products_with_both_sides_broadcast_have_candles_bits(
        (b1, b2) in (2_usize..4, 2_usize..4), (m, n, k) in (size(), size(), size()), seed in any::<u64>(),
    ) {
        let _alone = alone();
        for &dtype in FLOATS {
            let a = matrices(&[b1, 1], m, k, dtype, seed, Place::Offset);
            let b = matrices(&[b2], k, n, dtype, seed ^ 1, Place::Plain);
            assert_product("matmul", a.broadcast_matmul(&b), Place::Plain, false, |y| a.matmul_out(&b, y));
        }
    }

    #[test]
    fn convolutions_in_one_dimension_have_candles_bits(
        (batch, channels, outputs) in (1_usize..4, 1_usize..5, 1_usize..5),
        (length, size) in (1_usize..40, 1_usize..6), groups in 1_usize..3,
        (padding, stride, dilation) in (0_usize..3, 1_usize..4, 1_usize..3),
        seed in any::<u64>(), from in place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        let length = length + size * dilation;
        for &dtype in FLOATS {
            let x = placed(&[batch, channels * groups, length], dtype, Numbers::small(seed), from).tensor;
            let kernel = placed(&[outputs * groups, channels, size], dtype, Numbers::small(seed ^ 1), Place::Offset);
            let expected = x.conv1d(&kernel.tensor, padding, stride, dilation, groups);
            let params = ConvParams { padding, stride, dilation, groups };
            assert_same_bits("conv1d", expected, to, |y| x.conv1d_out(&kernel.tensor, params, y));
        }
    }

    #[test]
    fn convolutions_in_two_dimensions_have_candles_bits(
        (batch, channels, outputs) in (1_usize..4, 1_usize..5, 1_usize..5),
        (height, width, rows, columns) in (1_usize..12, 1_usize..12, 1_usize..4, 1_usize..4),
        groups in 1_usize..3,
        (padding, stride, dilation) in (0_usize..3, 1_usize..3, 1_usize..3),
        seed in any::<u64>(), from in place(), kernel_at in place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        let (height, width) = (height + rows * dilation, width + columns * dilation);
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let x = placed(&[batch, channels * groups, height, width], dtype, Numbers::small(seed), from).tensor;
            let kernel = [outputs * groups, channels, rows, columns];
            let kernel = placed(&kernel, dtype, Numbers::small(seed ^ 1), kernel_at).tensor;
            let expected = x.conv2d(&kernel, padding, stride, dilation, groups);
            let params = ConvParams { padding, stride, dilation, groups };
            assert_same_bits("conv2d", expected, to, |y| x.conv2d_out(&kernel, params, y));
        }
    }
}

/// What candle's copy of a broadcast side is: contiguous.
fn contiguous(place: Place) -> Place {
    if place == Place::Transposed { Place::Plain } else { place }
}

#[test]
fn convolutions_of_many_pixels_and_channels_have_candles_bits() {
    let _alone = alone();
    for (dims, kernel, stride) in [
        ([2, 70, 30, 41], [5, 70, 3, 3], 1),
        ([3, 6, 40, 31], [70, 6, 1, 1], 1),
        ([3, 600, 40, 31], [3, 600, 1, 1], 2),
        ([2, 3, 57, 9], [1, 3, 2, 2], 1),
    ] {
        for dtype in [DType::F32, DType::F16] {
            let x = placed(&dims, dtype, Numbers::small(1), Place::Plain).tensor;
            let kernel = placed(&kernel, dtype, Numbers::small(2), Place::Plain).tensor;
            let params = ConvParams { stride, ..ConvParams::default() };
            let expected = x.conv2d(&kernel, 0, stride, 1, 1);
            assert_same_bits("conv2d", expected, Place::Offset, |y| x.conv2d_out(&kernel, params, y));
        }
    }
    for (dims, kernel) in
        [([3, 130, 700], [5, 130, 9]), ([4, 3, 530], [100, 3, 4]), ([2, 200, 1100], [1, 200, 7])]
    {
        for &dtype in FLOATS {
            let x = placed(&dims, dtype, Numbers::small(1), Place::Plain).tensor;
            let kernel = placed(&kernel, dtype, Numbers::small(2), Place::Plain).tensor;
            let expected = x.conv1d(&kernel, 2, 1, 1, 1);
            let params = ConvParams { padding: 2, ..ConvParams::default() };
            assert_same_bits("conv1d", expected, Place::Offset, |y| x.conv1d_out(&kernel, params, y));
        }
    }
}

#[test]
fn a_product_is_scaled_and_added_to_what_is_there() {
    let _alone = alone();
    for &dtype in FLOATS {
        let a = matrices(&[2], 7, 33, dtype, 1, Place::Plain);
        let b = matrices(&[2], 33, 5, dtype, 2, Place::Transposed);
        let product = a.matmul(&b).unwrap();
        // Twice a number and half of one have the same digits.
        let out = output(&[2, 7, 5], dtype, Place::Plain).tensor;
        a.matmul_scaled_out(&b, &out, 2.0, 0.0).unwrap();
        assert_eq!(bits(&out), bits(&(&product * 2.0).unwrap()));
        let out = placed(&[2, 7, 5], dtype, Numbers::small(3), Place::Plain).tensor;
        let expected = ((&product * 0.5).unwrap() - (&out * 0.25).unwrap()).unwrap();
        a.matmul_scaled_out(&b, &out, 0.5, -0.25).unwrap();
        let tolerance = if dtype == DType::BF16 { 0.08 } else { 0.01 };
        for (got, expected) in numbers(&out).into_iter().zip(numbers(&expected)) {
            assert!((got - expected).abs() < tolerance, "{got} is not {expected}, {dtype:?}");
        }
    }
}

#[test]
fn a_product_over_nothing_is_zero() {
    let _alone = alone();
    if crate::device().is_cuda() {
        return; // an allocation of nothing fails there
    }
    let (a, b) =
        (matrices(&[], 2, 0, DType::F32, 1, Place::Plain), matrices(&[], 0, 3, DType::F32, 1, Place::Plain));
    assert_same_bits("matmul", a.matmul(&b), Place::Offset, |y| a.matmul_out(&b, y));
    let out = output(&[2, 3], DType::F32, Place::Plain).tensor;
    a.matmul_scaled_out(&b, &out, 1.0, 0.5).unwrap();
    assert_eq!(numbers(&out), [38.5; 6]);
}
