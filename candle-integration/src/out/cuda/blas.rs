//! Matrix products by cuBLAS, called as candle calls it.
#![allow(unsafe_code)] // listed in ARCHITECTURE.md

use std::ffi::c_void;

use candle_core::cuda_backend::cudarc::cublas::result::{
    CublasError, dgemm_strided_batched, gemm_strided_batched_ex,
};
use candle_core::cuda_backend::cudarc::cublas::sys::{
    cublasComputeType_t as Compute, cublasGemmAlgo_t, cublasOperation_t as Operation,
    cudaDataType_t as DataType,
};
use candle_core::cuda_backend::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32,
};
use candle_core::{DType, Layout, NdIter, Shape};
use half::f16;

use super::Call;
use super::memory::View;
use crate::error::{Error, Result};
use crate::out::check::layout_error;
use crate::out::op::Matmul;

/// A batch of matrices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrices {
    /// Of the first.
    pub(super) address: u64,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
    /// From one matrix to the next.
    pub(super) step: usize,
}

/// `out = alpha lhs rhs + beta out` for a batch, whose products lie one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Products {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) lhs: Matrices,
    pub(super) rhs: Matrices,
    pub(super) out: u64,
    pub(super) alpha: f64,
    pub(super) beta: f64,
}

/// Sources of shapes `(.., m, k)` and `(.., k, n)` with the same leading dimensions.
pub(super) fn run(call: Call<'_>, params: &Matmul) -> Result<()> {
    let [left, right] = call.sources else { unreachable!("a product has two sources") };
    let rank = left.rank();
    let (m, k, n) =
        (left.layout.dims()[rank - 2], left.layout.dims()[rank - 1], right.layout.dims()[rank - 1]);
    let matrices = |view: &View<'_>, start, step| Matrices {
        address: view.address_of(start),
        row_stride: view.layout.stride()[rank - 2],
        column_stride: view.layout.stride()[rank - 1],
        step,
    };
    let blocks = NdIter::new([&batch(left.layout), &batch(right.layout)]);
    let (count, [left_step, right_step]) = (blocks.inner_size, blocks.inner_strides);
    // Of a single matrix candle says how large it is.
    let (left_step, right_step) = if count == 1 { (m * k, n * k) } else { (left_step, right_step) };
    for (block, [left_start, right_start]) in blocks.enumerate() {
        let products = Products {
            batch: count,
            m,
            n,
            k,
            lhs: matrices(left, left_start, left_step),
            rhs: matrices(right, right_start, right_step),
            out: call.out.address_of(block * count * m * n),
            alpha: params.alpha,
            beta: params.beta,
        };
        products.run(&call)?;
    }
    Ok(())
}

/// The layout of the first numbers of all matrices.
fn batch(layout: &Layout) -> Layout {
    let rank = layout.dims().len() - 2;
    Layout::new(Shape::from(&layout.dims()[..rank]), layout.stride()[..rank].to_vec(), 0)
}

impl Products {
    /// Queues the products of the format of the call's output.
    pub(super) fn run(&self, call: &Call<'_>) -> Result<()> {
        let refused = |index: usize| {
            let requirement = "with rows or columns that lie one after the other, on CUDA";
            layout_error(call.op.name(), format!("source {index}"), requirement, call.sources[index].layout)
        };
        let Self { m, n, k, lhs, rhs, .. } = *self;
        let (right_len, right_operation) = rhs.leading(k, n).ok_or_else(|| refused(1))?;
        let (left_len, left_operation) = lhs.leading(m, k).ok_or_else(|| refused(0))?;
        let dims = [m, n, k, right_len, left_len, self.batch].map(i32::try_from);
        let [Ok(m), Ok(n), Ok(k), Ok(right_len), Ok(left_len), Ok(batch)] = dims else {
            let requirement = "of fewer than 2^31 rows, columns and matrices";
            return Err(layout_error(call.op.name(), "the output".to_owned(), requirement, call.out.layout));
        };
        let sizes =
            Sizes { m, n, k, right_len, left_len, batch, operations: (right_operation, left_operation) };
        let done = match call.out.dtype {
            DType::F64 => self.double(call, sizes),
            DType::F32 => {
                let fast = gemm_reduced_precision_f32();
                let compute =
                    if fast { Compute::CUBLAS_COMPUTE_32F_FAST_TF32 } else { Compute::CUBLAS_COMPUTE_32F };
                self.mixed(call, sizes, DataType::CUDA_R_32F, compute)
            }
            DType::F16 => {
                let compute = if gemm_reduced_precision_f16() {
                    Compute::CUBLAS_COMPUTE_16F
                } else {
                    Compute::CUBLAS_COMPUTE_32F
                };
                self.mixed(call, sizes, DataType::CUDA_R_16F, compute)
            }
            DType::BF16 => {
                let fast = gemm_reduced_precision_bf16();
                let compute =
                    if fast { Compute::CUBLAS_COMPUTE_32F_FAST_16BF } else { Compute::CUBLAS_COMPUTE_32F };
                self.mixed(call, sizes, DataType::CUDA_R_16BF, compute)
            }
            dtype => return Err(call.unsupported(dtype)),
        };
        done.map_err(|error| Error::Failed { op: call.op.name(), message: format!("{error:?}") })
    }

    /// cuBLAS counts columns first, so the sides change places.
    fn mixed(
        &self,
        call: &Call<'_>,
        sizes: Sizes,
        format: DataType,
        compute: Compute,
    ) -> std::result::Result<(), CublasError> {
        let single = [self.alpha as f32, self.beta as f32];
        let half = single.map(f16::from_f32);
        let factors = |k: usize| -> *const c_void {
            if compute == Compute::CUBLAS_COMPUTE_16F {
                (&raw const half[k]).cast()
            } else {
                (&raw const single[k]).cast()
            }
        };
        let blas = call.device.cublas_handle();
        // SAFETY: the addresses are those of tensors whose shapes, formats and layouts were checked and whose storages are
        // locked and ordered in the stream of the handle; the factors live until the call returns.
        unsafe {
            gemm_strided_batched_ex(
                *blas.handle(),
                sizes.operations.0,
                sizes.operations.1,
                sizes.n,
                sizes.m,
                sizes.k,
                factors(0),
                self.rhs.address as *const c_void,
                format,
                sizes.right_len,
                self.rhs.step as i64,
                self.lhs.address as *const c_void,
                format,
                sizes.left_len,
                self.lhs.step as i64,
                factors(1),
                self.out as *mut c_void,
                format,
                sizes.n,
                (self.m * self.n) as i64,
                sizes.batch,
                compute,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
            )
        }
    }

    fn double(&self, call: &Call<'_>, sizes: Sizes) -> std::result::Result<(), CublasError> {
        let blas = call.device.cublas_handle();
        // SAFETY: as in `mixed`.
        unsafe {
            dgemm_strided_batched(
                *blas.handle(),
                sizes.operations.0,
                sizes.operations.1,
                sizes.n,
                sizes.m,
                sizes.k,
                &raw const self.alpha,
                self.rhs.address as *const f64,
                sizes.right_len,
                self.rhs.step as i64,
                self.lhs.address as *const f64,
                sizes.left_len,
                self.lhs.step as i64,
                &raw const self.beta,
                self.out as *mut f64,
                sizes.n,
                (self.m * self.n) as i64,
                sizes.batch,
            )
        }
    }
}

/// Sizes as cuBLAS takes them.
#[derive(Clone, Copy)]
struct Sizes {
    m: i32,
    n: i32,
    k: i32,
    right_len: i32,
    left_len: i32,
    batch: i32,
    operations: (Operation, Operation),
}

impl Matrices {
    /// From one row to the next, or from one column to the next of a matrix that lies column by column. A stride
    /// does not count along a dimension of one.
    fn leading(&self, rows: usize, columns: usize) -> Option<(usize, Operation)> {
        let (row, column) = (self.row_stride, self.column_stride);
        if (column == 1 || columns == 1) && (row == columns || rows == 1) {
            Some((columns, Operation::CUBLAS_OP_N))
        } else if (column == rows || columns == 1) && (row == 1 || rows == 1) {
            Some((rows, Operation::CUBLAS_OP_T))
        } else {
            None
        }
    }
}
