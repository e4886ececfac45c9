//! Operations that write their result into a tensor that is there already.
//!
//! A tensor goes from what was asked for ([`request`]: shapes and formats) by way of what could go wrong ([`check`])
//! and the locks on the storages ([`locks`]) to the device's code ([`cpu`], [`cuda`]).

mod check;
mod cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
#[cfg(not(all(feature = "cuda", target_os = "linux")))]
#[path = "out/no_cuda.rs"]
mod cuda;
mod locks;
mod op;
mod optimizer;
mod request;

use candle_core::Tensor;
use candle_core::shape::{Dim, Dims};

use self::op::{Binary, Conv, Op, Unary};
use crate::error::Result;

pub use self::optimizer::{AdamW, AdamWParams, Sgd};

/// Operations that write their result into a tensor that is there already, without a temporary of its size.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_mempool::TensorOut;
///
/// # fn main() -> candle_core::Result<()> {
/// let device = Device::Cpu;
/// let x = Tensor::rand(0_f32, 1., (4, 16), &device)?;
/// let weight = Tensor::rand(0_f32, 1., (16, 8), &device)?;
/// let bias = Tensor::rand(0_f32, 1., 8, &device)?;
///
/// let y = Tensor::zeros((4, 8), DType::F32, &device)?; // allocated once, for all steps
/// x.matmul_out(&weight, &y)?;
/// y.add_out(&bias, &y)?; // in place: the output is a source
/// y.relu_out(&y)?;
/// let expected = x.matmul(&weight)?.broadcast_add(&bias)?.relu()?;
/// assert_eq!(y.to_vec2::<f32>()?, expected.to_vec2::<f32>()?);
/// # Ok(())
/// # }
/// ```
///
/// The result has the bits of candle's own operation of the same name. Sources broadcast where candle's `broadcast_`
/// operations do.
///
/// # The output
/// has the result's shape, format and device, and a place of its own for each element. Elementwise operations write it
/// wherever it lies (on CUDA: contiguous), the others want it contiguous. It may be a view of a larger tensor. Whoever
/// else holds a tensor of that storage sees the new numbers.
///
/// It may be exactly a source of an elementwise operation, and of `softmax_last_dim_out`, `rms_norm_out`
/// and `layer_norm_out` exactly the first source. It may lie in a source's storage, before or after all of
/// the source. What else shares memory with a source is refused.
///
/// # Gradients
/// An output that tracks gradients is refused, and so is such a source: candle would not know of the operation, and
/// gradients would be lost. `tensor.detach()` is the same memory without tracking.
///
/// # Threads
/// An operation locks all its storages while it runs (on CUDA: while it is queued), and holds none for longer than a moment
/// while it waits for another. A thread that keeps a guard of `storage_and_layout` must not start an operation on that
/// tensor. Operations on the same tensors from several threads wait for each other and never in a circle, also together with
/// candle's own. (Some of candle's own can make a circle among themselves: two `slice_set` or `Var::set` with
/// swapped tensors, and in-place operations beside those that read the same tensors in another order.)
///
/// # Errors
/// See [`Error`](crate::Error): the variants with an `op`. All but [`Failed`](crate::Error::Failed) and, on CUDA,
/// a missing kernel are found before anything is written; on CUDA indices are not looked at beforehand, and one
/// beyond the end stops the kernel, as in candle.
pub trait TensorOut: AsRef<Tensor> {
    /// `self rhs` into `out`: matrices `(.., m, k)` and `(.., k, n)`, whose leading dimensions broadcast.
    ///
    /// On CPU products of `bf16` are computed in `f32`, as candle does, with scratch for one pair of matrices and its
    /// product.
    fn matmul_out(&self, rhs: &Tensor, out: &Tensor) -> Result<()> {
        request::matmul(self.as_ref(), rhs, 1.0, 0.0, out)
    }

    /// `alpha self rhs + beta out` into `out`, which is not read when `beta` is zero.
    fn matmul_scaled_out(&self, rhs: &Tensor, out: &Tensor, alpha: f64, beta: f64) -> Result<()> {
        request::matmul(self.as_ref(), rhs, alpha, beta, out)
    }

    /// `self + rhs` into `out`.
    fn add_out(&self, rhs: &Tensor, out: &Tensor) -> Result<()> {
        request::binary(Binary::Add, self.as_ref(), rhs, out)
    }

    /// `self - rhs` into `out`.
    fn sub_out(&self, rhs: &Tensor, out: &Tensor) -> Result<()> {
        request::binary(Binary::Sub, self.as_ref(), rhs, out)
    }

    /// `self * rhs` into `out`.
    fn mul_out(&self, rhs: &Tensor, out: &Tensor) -> Result<()> {
        request::binary(Binary::Mul, self.as_ref(), rhs, out)
    }

    /// `self / rhs` into `out`.
    fn div_out(&self, rhs: &Tensor, out: &Tensor) -> Result<()> {
        request::binary(Binary::Div, self.as_ref(), rhs, out)
    }

    /// The greater of each pair into `out`.
    fn maximum_out(&self, rhs: &Tensor, out: &Tensor) -> Result<()> {
        request::binary(Binary::Maximum, self.as_ref(), rhs, out)
    }

    /// The lesser of each pair into `out`.
    fn minimum_out(&self, rhs: &Tensor, out: &Tensor) -> Result<()> {
        request::binary(Binary::Minimum, self.as_ref(), rhs, out)
    }

    /// The exponential.
    fn exp_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Exp, self.as_ref(), out)
    }

    /// The natural logarithm.
    fn log_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Log, self.as_ref(), out)
    }

    /// The square root.
    fn sqrt_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Sqrt, self.as_ref(), out)
    }

    /// The square.
    fn sqr_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Sqr, self.as_ref(), out)
    }

    /// The absolute value.
    fn abs_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Abs, self.as_ref(), out)
    }

    /// The negative.
    fn neg_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Neg, self.as_ref(), out)
    }

    /// The reciprocal.
    fn recip_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Recip, self.as_ref(), out)
    }

    /// The sine.
    fn sin_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Sin, self.as_ref(), out)
    }

    /// The cosine.
    fn cos_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Cos, self.as_ref(), out)
    }

    /// The hyperbolic tangent.
    fn tanh_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Tanh, self.as_ref(), out)
    }

    /// The greater of each number and zero.
    fn relu_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Relu, self.as_ref(), out)
    }

    /// GELU, approximated with `tanh`.
    fn gelu_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Gelu, self.as_ref(), out)
    }

    /// GELU, with the error function.
    fn gelu_erf_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::GeluErf, self.as_ref(), out)
    }

    /// `x / (1 + exp(-x))`.
    fn silu_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Silu, self.as_ref(), out)
    }

    /// `1 / (1 + exp(-x))`, as `candle_nn::ops::sigmoid`.
    fn sigmoid_out(&self, out: &Tensor) -> Result<()> {
        request::unary(Unary::Sigmoid, self.as_ref(), out)
    }

    /// `self * mul + add`, both rounded to the tensor's format.
    fn affine_out(&self, mul: f64, add: f64, out: &Tensor) -> Result<()> {
        request::of_one(&Op::Affine { mul, add }, self.as_ref(), out)
    }

    /// Each number, at least `min` and at most `max`.
    fn clamp_out(&self, min: f64, max: f64, out: &Tensor) -> Result<()> {
        request::of_one(&Op::Clamp { min, max }, self.as_ref(), out)
    }

    /// Each number to the power `exponent`.
    fn powf_out(&self, exponent: f64, out: &Tensor) -> Result<()> {
        request::of_one(&Op::Powf(exponent), self.as_ref(), out)
    }

    /// The same numbers in `out`'s format.
    fn to_dtype_out(&self, out: &Tensor) -> Result<()> {
        request::cast("to_dtype_out", self.as_ref(), out.dtype(), out)
    }

    /// The same numbers, from any strides to any.
    fn copy_out(&self, out: &Tensor) -> Result<()> {
        request::cast("copy_out", self.as_ref(), self.as_ref().dtype(), out)
    }

    /// Writes `value` everywhere into this tensor, which is the output here.
    fn fill_in_place(&self, value: f64) -> Result<()> {
        request::fill(value, self.as_ref())
    }

    /// Numbers of `on_true` where this tensor (of `u8`, `u32` or `i64`) is not zero, of `on_false` where it is.
    fn where_cond_out(&self, on_true: &Tensor, on_false: &Tensor, out: &Tensor) -> Result<()> {
        request::where_cond(self.as_ref(), on_true, on_false, out)
    }

    /// Sums over `dims`. `out` has the shape of `Tensor::sum` or of `Tensor::sum_keepdim`.
    fn sum_out<S: Dims>(&self, dims: S, out: &Tensor) -> Result<()>
    where
        Self: Sized,
    {
        request::sum(self.as_ref(), dims, false, out)
    }

    /// Means over `dims`. `out` has the shape of `Tensor::mean` or of `Tensor::mean_keepdim`.
    fn mean_out<S: Dims>(&self, dims: S, out: &Tensor) -> Result<()>
    where
        Self: Sized,
    {
        request::sum(self.as_ref(), dims, true, out)
    }

    /// The greatest along `dim`. `out` has the shape of `Tensor::max` or of `Tensor::max_keepdim`.
    fn max_out<S: Dim>(&self, dim: S, out: &Tensor) -> Result<()>
    where
        Self: Sized,
    {
        request::extreme(self.as_ref(), dim, true, out)
    }

    /// The least along `dim`. `out` has the shape of `Tensor::min` or of `Tensor::min_keepdim`.
    fn min_out<S: Dim>(&self, dim: S, out: &Tensor) -> Result<()>
    where
        Self: Sized,
    {
        request::extreme(self.as_ref(), dim, false, out)
    }

    /// Softmax over the last dimension, as `candle_nn::ops::softmax_last_dim`. The source is contiguous.
    fn softmax_last_dim_out(&self, out: &Tensor) -> Result<()> {
        request::softmax(self.as_ref(), out)
    }

    /// RMS norm over the last dimension, as `candle_nn::ops::rms_norm`, which has none for `f64`. Sources are contiguous.
    fn rms_norm_out(&self, weight: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        request::norm(&Op::RmsNorm { eps }, self.as_ref(), &[weight], out)
    }

    /// Layer norm over the last dimension, as `candle_nn::ops::layer_norm`, which has none for `f64`. Sources are
    /// contiguous.
    fn layer_norm_out(&self, weight: &Tensor, bias: &Tensor, eps: f32, out: &Tensor) -> Result<()> {
        request::norm(&Op::LayerNorm { eps }, self.as_ref(), &[weight, bias], out)
    }

    /// Rotary embedding of `(batch, heads, steps, size)`, as `candle_nn::rotary_emb::rope`: `cos` and `sin` are of
    /// `(steps, size / 2)` or `(batch, steps, size / 2)`. Sources are contiguous.
    fn rope_out(&self, cos: &Tensor, sin: &Tensor, out: &Tensor) -> Result<()> {
        request::rope(self.as_ref(), cos, sin, out)
    }

    /// Slices along `dim` by index, as `Tensor::index_select`. This tensor is contiguous, the indices (`u8`, `u32`
    /// or `i64`) have one dimension.
    fn index_select_out<S: Dim>(&self, indexes: &Tensor, dim: S, out: &Tensor) -> Result<()>
    where
        Self: Sized,
    {
        request::index_select(self.as_ref(), indexes, dim, out)
    }

    /// Rows of this table `(rows, size)` by index, as `Tensor::embedding`.
    fn embedding_out(&self, ids: &Tensor, out: &Tensor) -> Result<()> {
        request::index_select(self.as_ref(), ids, 0, out)
    }

    /// Numbers by index along `dim`, as `Tensor::gather`. Sources are contiguous.
    fn gather_out<S: Dim>(&self, indexes: &Tensor, dim: S, out: &Tensor) -> Result<()>
    where
        Self: Sized,
    {
        request::gather(self.as_ref(), indexes, dim, out)
    }

    /// Convolution of `(batch, in, length)` with `(out, in / groups, size)`. Scratch of limited size on CPU, for the
    /// patches and the result on CUDA, as candle's own.
    fn conv1d_out(&self, kernel: &Tensor, params: ConvParams, out: &Tensor) -> Result<()> {
        let conv = params.conv();
        request::conv(&Op::Conv1d(conv.clone()), &conv, params.groups, self.as_ref(), kernel, out)
    }

    /// Convolution of `(batch, in, height, width)` with `(out, in / groups, height, width)`. Scratch as in
    /// [`conv1d_out`](Self::conv1d_out). On CPU there is none for `bf16`, as in candle.
    fn conv2d_out(&self, kernel: &Tensor, params: ConvParams, out: &Tensor) -> Result<()> {
        let conv = params.conv();
        request::conv(&Op::Conv2d(conv.clone()), &conv, params.groups, self.as_ref(), kernel, out)
    }
}

impl TensorOut for Tensor {}

/// `sources` one after the other along `dim` into `out`, as `Tensor::cat`.
///
/// # Errors
/// See [`TensorOut`]. Other threads can see the output while parts of it are written.
pub fn cat_out<S: Dim>(sources: &[&Tensor], dim: S, out: &Tensor) -> Result<()> {
    request::cat(sources, dim, out)
}

/// Parameters of a convolution, the same in each dimension of space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvParams {
    /// Zeros around the input.
    pub padding: usize,
    /// Input numbers from one patch to the next.
    pub stride: usize,
    /// Input numbers from one of a patch to the next.
    pub dilation: usize,
    /// Groups of channels that are convolved each for itself.
    pub groups: usize,
}

impl Default for ConvParams {
    fn default() -> Self {
        Self { padding: 0, stride: 1, dilation: 1, groups: 1 }
    }
}

impl ConvParams {
    fn conv(self) -> Conv {
        Conv { padding: self.padding, stride: self.stride, dilation: self.dilation }
    }
}
