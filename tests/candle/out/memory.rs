//! What operations allocate: nothing as large as their result.

use candle_core::DType;
use candle_mempool::{MemPool, Result, TensorOut, cat_out};

use super::bits::{Numbers, Place, output, placed};
use super::elementwise::{BINARY, UNARY};
use crate::{alone, device};

/// Bytes of the results: far above what pools leave to others, and above what gemm packs for short sums.
const RESULT_BYTES: usize = 1024 * 1024 * 4;

/// Runs `f` in a pool and fails if it took as much at once as the result has.
fn assert_takes_little(name: &str, f: impl FnOnce() -> Result<()>) {
    let pool = MemPool::new(&device()).unwrap();
    pool.with(f).unwrap_or_else(|error| panic!("{name}: {error}"));
    let taken = pool.stats().requested.peak;
    assert!(taken < RESULT_BYTES / 4, "{name} took {taken} bytes");
}

#[test]
fn no_operation_takes_memory_of_its_results_size() {
    let _alone = alone();
    let of = |dims: &[usize], seed| placed(dims, DType::F32, Numbers::small(seed), Place::Plain).tensor;
    let (x, y) = (of(&[1024, 1024], 1), of(&[1024, 1024], 2));
    let (row, out) = (of(&[1024], 3), output(&[1024, 1024], DType::F32, Place::Plain).tensor);
    for (name, _, run) in UNARY {
        assert_takes_little(name, || run(&x, &out));
        assert_takes_little(name, || run(&out, &out));
    }
    for (name, _, run) in BINARY {
        assert_takes_little(name, || run(&x, &y, &out));
        assert_takes_little(name, || run(&x, &row, &out));
        assert_takes_little(name, || run(&x, &x.t().unwrap(), &out));
    }
    assert_takes_little("affine", || x.affine_out(2.0, 1.0, &out));
    assert_takes_little("clamp", || x.clamp_out(0.0, 1.0, &out));
    assert_takes_little("powf", || x.powf_out(2.0, &out));
    assert_takes_little("copy", || x.t().unwrap().copy_out(&out));
    assert_takes_little("fill", || out.fill_in_place(3.0));
    let half = x.to_dtype(DType::BF16).unwrap();
    assert_takes_little("to_dtype", || half.to_dtype_out(&out));
    let choice = placed(&[1024, 1024], DType::U8, Numbers::below(4, 2), Place::Plain).tensor;
    assert_takes_little("where_cond", || choice.where_cond_out(&x, &y, &out));
    let (left, right) = (of(&[1024, 8], 5), of(&[8, 1024], 6));
    assert_takes_little("matmul", || left.matmul_out(&right, &out));
    assert_takes_little("matmul", || left.matmul_scaled_out(&right, &out, 2.0, 1.0));
    assert_takes_little("softmax", || x.softmax_last_dim_out(&out));
    assert_takes_little("rms_norm", || x.rms_norm_out(&row, 1e-5, &out));
    assert_takes_little("layer_norm", || x.layer_norm_out(&row, &row, 1e-5, &out));
    let table = of(&[512, 64], 7);
    let (heads, rotated) = (x.reshape((1, 16, 512, 128)).unwrap(), out.reshape((1, 16, 512, 128)).unwrap());
    assert_takes_little("rope", || heads.rope_out(&table, &table, &rotated));
    let cube = of(&[1024, 1024, 2], 8);
    assert_takes_little("sum", || cube.sum_out(2, &out));
    assert_takes_little("mean", || cube.mean_out(2, &out));
    assert_takes_little("max", || cube.max_out(2, &out));
    assert_takes_little("min", || cube.transpose(0, 1).unwrap().min_out(2, &out));
    let ids = placed(&[1024], DType::U32, Numbers::below(9, 1024), Place::Plain).tensor;
    assert_takes_little("index_select", || x.index_select_out(&ids, 0, &out));
    assert_takes_little("embedding", || x.embedding_out(&ids, &out));
    let ids = ids.broadcast_as((1024, 1024)).unwrap().contiguous().unwrap();
    assert_takes_little("gather", || x.gather_out(&ids, 0, &out));
    let (top, bottom) = (of(&[512, 1024], 10), of(&[512, 1024], 11));
    assert_takes_little("cat", || cat_out(&[&top, &bottom], 0, &out));
}
