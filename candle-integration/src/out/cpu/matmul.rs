//! Matrix products, as candle cuts them: the same calls of gemm give the same bits.

use candle_core::{CpuStorage, DType, Layout, NdIter, Shape, WithDType};

use super::elem::{FloatElem, each};
use super::operands::{Beside, Output, Strided};
use super::primitives::{Matrix, Size, matmul, span};
use crate::error::Result;
use crate::out::check::Operand;
use crate::out::op::Matmul;

/// Sources of shapes `(.., m, k)` and `(.., k, n)` with the same leading dimensions, the output contiguous.
pub(super) fn run<T: FloatElem>(
    op: &'static str,
    params: &Matmul,
    mut out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    let (lhs, rhs) = (beside.apart(op, &sources[0])?, beside.apart(op, &sources[1])?);
    let rank = lhs.layout.dims().len();
    let (m, k, n) = (lhs.layout.dims()[rank - 2], lhs.layout.dims()[rank - 1], rhs.layout.dims()[rank - 1]);
    let factors = (<T as WithDType>::from_f64(params.alpha), <T as WithDType>::from_f64(params.beta));
    let out = out.contiguous().expect("was checked to be contiguous");

    let (lhs_batch, rhs_batch) = (batch(&lhs.layout), batch(&rhs.layout));
    let blocks = NdIter::new([&lhs_batch, &rhs_batch]);
    let (block_len, [lhs_step, rhs_step]) = (blocks.inner_size, blocks.inner_strides);
    let count: usize = lhs_batch.shape().elem_count();
    let row_stride = lhs.layout.stride()[rank - 2];
    // candle makes one product of all rows where the right side is the same for all. It looks at the distance
    // of the matrices only; their rows have to follow each other, too.
    let folds = params.fold && rank > 2 && block_len == count && rhs_step == 0 && lhs_step == m * k;
    if folds && (row_stride * m == lhs_step || m == 1) {
        let row_stride = if m == 1 { lhs_step } else { row_stride };
        let left = lhs.matrix(lhs.layout.start_offset(), row_stride, rank);
        let right = rhs.matrix(rhs.layout.start_offset(), rhs.layout.stride()[rank - 2], rank);
        product(Size { m: count * m, n, k }, out, left, right, factors);
        return Ok(());
    }
    let mut products = out.chunks_exact_mut(m * n);
    for [lhs_start, rhs_start] in blocks {
        for step in 0..block_len {
            let out = products.next().expect("a matrix for each product");
            let left = lhs.matrix(lhs_start + step * lhs_step, row_stride, rank);
            let right = rhs.matrix(rhs_start + step * rhs_step, rhs.layout.stride()[rank - 2], rank);
            product(Size { m, n, k }, out, left, right, factors);
        }
    }
    Ok(())
}

/// One product. gemm has none for `bf16`, and candle computes that in `f32` and rounds; so the two matrices and
/// the product lie in memory once more, of the current pool, while it is computed.
pub(super) fn product<T: FloatElem>(
    size: Size,
    out: &mut [T],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    (alpha, beta): (T, T),
) {
    if T::DTYPE != DType::BF16 {
        return matmul(size, (out, size.n), lhs, rhs, (alpha, beta));
    }
    let left = wide(lhs.numbers, span(size.m, lhs.row_stride, size.k, lhs.column_stride));
    let right = wide(rhs.numbers, span(size.k, rhs.row_stride, size.n, rhs.column_stride));
    let mut sums = wide(out, size.m * size.n);
    let lhs = Matrix { numbers: &left, row_stride: lhs.row_stride, column_stride: lhs.column_stride };
    let rhs = Matrix { numbers: &right, row_stride: rhs.row_stride, column_stride: rhs.column_stride };
    matmul(size, (&mut sums, size.n), lhs, rhs, (alpha.as_(), beta.as_()));
    each(&sums, out, |sum| T::from_f32(sum).unwrap_or_else(T::nan));
}

/// The first `len` numbers as `f32`.
fn wide<T: FloatElem>(numbers: &[T], len: usize) -> Vec<f32> {
    numbers[..len].iter().map(|number| number.as_()).collect()
}

impl<'a, T> Strided<'a, T> {
    /// The matrix that begins at `start`.
    fn matrix(&self, start: usize, row_stride: usize, rank: usize) -> Matrix<'a, T> {
        Matrix { numbers: &self.numbers[start..], row_stride, column_stride: self.layout.stride()[rank - 1] }
    }
}

/// The layout of the first numbers of all matrices.
fn batch(layout: &Layout) -> Layout {
    let rank = layout.dims().len() - 2;
    Layout::new(Shape::from(&layout.dims()[..rank]), layout.stride()[..rank].to_vec(), layout.start_offset())
}
