//! Numbers by index, and tensors put together.

use candle_core::{DType, Tensor};
use candle_mempool::{TensorOut, cat_out};
use proptest::prelude::*;

use super::bits::{ALL, Numbers, Place, assert_same_bits, contiguous_place, place, placed, shape};
use crate::alone;

const INDICES: [DType; 3] = [DType::U8, DType::U32, DType::I64];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::CASES))]

    #[test]
    fn chosen_slices_have_candles_bits(
        dims in prop::collection::vec(1_usize..6, 1..=4), dim in any::<prop::sample::Index>(), count in 1_usize..7,
        seed in any::<u64>(), from in contiguous_place(), ids_at in place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        let dim = dim.index(dims.len());
        // candle's kernel for CUDA does not look at the indices' strides.
        let ids_at = if crate::device().is_cuda() { Place::Offset } else { ids_at };
        for index in INDICES {
            let ids = placed(&[count], index, Numbers::below(seed, dims[dim]), ids_at).tensor;
            for &dtype in ALL {
                let x = placed(&dims, dtype, Numbers::wild(seed ^ 1), from).tensor;
                let expected = x.index_select(&ids, dim);
                assert_same_bits("index_select", expected, to, |y| x.index_select_out(&ids, dim, y));
            }
        }
    }

    #[test]
    fn rows_of_a_table_have_candles_bits(
        (rows, len, count) in (1_usize..9, 1_usize..300, 1_usize..9), seed in any::<u64>(), to in contiguous_place(),
    ) {
        let _alone = alone();
        for &dtype in ALL {
            let table = placed(&[rows, len], dtype, Numbers::wild(seed), Place::Offset).tensor;
            let ids = placed(&[count], DType::U32, Numbers::below(seed, rows), Place::Plain).tensor;
            assert_same_bits("embedding", table.embedding(&ids), to, |y| table.embedding_out(&ids, y));
        }
    }

    #[test]
    fn gathered_numbers_have_candles_bits(
        dims in prop::collection::vec(1_usize..6, 1..=4), dim in any::<prop::sample::Index>(), count in 1_usize..7,
        seed in any::<u64>(), from in contiguous_place(), ids_at in contiguous_place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        let dim = dim.index(dims.len());
        let mut ids_dims = dims.clone();
        ids_dims[dim] = count;
        for index in INDICES {
            let ids = placed(&ids_dims, index, Numbers::below(seed, dims[dim]), ids_at).tensor;
            for &dtype in ALL {
                let x = placed(&dims, dtype, Numbers::wild(seed ^ 1), from).tensor;
                assert_same_bits("gather", x.gather(&ids, dim), to, |y| x.gather_out(&ids, dim, y));
            }
        }
    }

    #[test]
    fn tensors_put_together_have_candles_bits(
        dims in shape(1..=4), dim in any::<prop::sample::Index>(), lens in prop::collection::vec(0_usize..5, 1..4),
        seed in any::<u64>(), from in contiguous_place(), to in contiguous_place(),
    ) {
        let _alone = alone();
        let dim = dim.index(dims.len());
        // An allocation of nothing fails on CUDA.
        let lens: Vec<usize> = lens.iter().map(|&len| if crate::device().is_cuda() { len.max(1) } else { len }).collect();
        for &dtype in ALL {
            let part = |(k, &len): (usize, &usize)| {
                let mut dims = dims.clone();
                dims[dim] = len;
                placed(&dims, dtype, Numbers::wild(seed ^ k as u64), from).tensor
            };
            let parts: Vec<Tensor> = lens.iter().enumerate().map(part).collect();
            let parts: Vec<&Tensor> = parts.iter().collect();
            assert_same_bits("cat", Tensor::cat(&parts, dim), to, |y| cat_out(&parts, dim, y));
        }
    }
}

#[test]
fn the_greatest_index_means_zero_as_in_candle() {
    let _alone = alone();
    let x = placed(&[3, 4], DType::F32, Numbers::small(1), Place::Plain).tensor;
    let ids = Tensor::new(&[1_u32, u32::MAX, 0], &crate::device()).unwrap();
    assert_same_bits("index_select", x.index_select(&ids, 0), Place::Plain, |y| {
        x.index_select_out(&ids, 0, y)
    });
    let ids = Tensor::new(&[[1_i64, i64::MAX], [0, 3], [2, 2]], &crate::device()).unwrap();
    assert_same_bits("gather", x.gather(&ids, 1), Place::Plain, |y| x.gather_out(&ids, 1, y));
}
