//! candle's and gemm's functions that take raw pointers, behind slices.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use candle_core::DType;
use gemm::Parallelism;

use super::elem::{Elem, FloatElem};

/// The sum of `xs`, added up as candle does.
pub(super) fn sum<T: Elem>(xs: &[T]) -> T {
    let mut sum = T::zero();
    // SAFETY: the pointer and the length are a slice's, and the result goes into a variable.
    unsafe { T::vec_reduce_sum(xs.as_ptr(), &raw mut sum, xs.len()) };
    sum
}

/// The greatest of `xs`, which has at least one number, as candle finds it.
pub(super) fn greatest<T: Elem>(xs: &[T]) -> T {
    assert!(!xs.is_empty(), "there is a greatest number");
    let mut greatest = xs[0];
    // SAFETY: the pointer and the length are a slice's, which is not empty; the result goes into a variable.
    unsafe { T::vec_reduce_max(xs.as_ptr(), &raw mut greatest, xs.len()) };
    greatest
}

/// A matrix in a slice: the places of its first number, of the next row, of the next column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    pub(super) numbers: &'a [T],
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

/// Rows, columns, and the length of the sums.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// `dst = alpha * lhs rhs + beta * dst`, called as candle calls it. The rows of `dst` begin `row_stride` numbers
/// apart, and it is not read when `beta` is zero.
pub(super) fn matmul<T: FloatElem>(
    Size { m, n, k }: Size,
    (dst, row_stride): (&mut [T], usize),
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    (alpha, beta): (T, T),
) {
    assert!(matches!(T::DTYPE, DType::F16 | DType::F32 | DType::F64), "gemm knows the format");
    assert!(m > 0 && n > 0 && k > 0, "the matrices are not empty");
    assert!(row_stride >= n && dst.len() >= span(m, row_stride, n, 1), "the product fits");
    assert!(lhs.reaches(m, k) && rhs.reaches(k, n), "the matrices lie in their slices");
    let threads = candle_core::utils::get_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: all places that the sizes and strides reach were checked to lie in the slices; `dst` is borrowed
    // exclusively, so the sources do not overlap it, and its strides reach each place once.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.as_mut_ptr(),
            1,
            row_stride.cast_signed(),
            beta != T::zero(),
            lhs.numbers.as_ptr(),
            lhs.column_stride.cast_signed(),
            lhs.row_stride.cast_signed(),
            rhs.numbers.as_ptr(),
            rhs.column_stride.cast_signed(),
            rhs.row_stride.cast_signed(),
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

impl<T> Matrix<'_, T> {
    /// Whether a matrix of this size lies in the slice.
    fn reaches(&self, rows: usize, columns: usize) -> bool {
        span(rows, self.row_stride, columns, self.column_stride) <= self.numbers.len()
    }
}

/// Numbers from the first to the last of a matrix that is not empty.
pub(super) fn span(rows: usize, row_stride: usize, columns: usize, column_stride: usize) -> usize {
    (rows - 1) * row_stride + (columns - 1) * column_stride + 1
}
