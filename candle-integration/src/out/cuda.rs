//! Out-operations on CUDA devices, by candle's own kernels and cuBLAS.
//!
//! Everything is queued in the stream of the output's device, as candle does, while the storages are locked. The kernels
//! read a number, or a row of numbers, before they write it, so an output may be its source where
//! [`Op::may_replace`] says so. Rotary embeddings do not: their kernel reads a number again after it wrote it.

mod blas;
mod conv;
mod copy;
mod indexing;
mod launch;
mod memory;
mod rows;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::{CudaStorageSlice, kernels};
use candle_core::{CudaDevice, CudaStorage, DType, Layout};

use self::launch::{Arg, for_each};
use self::memory::{Place, View};
use super::check::{Operand, layout_error};
use super::op::{Binary, Op, Unary};
use crate::error::{Error, Result};

/// Carries out `op` on an output that is not empty.
pub(super) fn run(
    op: &Op,
    out: &mut CudaStorage,
    layout: &Layout,
    sources: &[Operand<'_, CudaStorage>],
) -> Result<()> {
    let device = out.device.clone();
    let stream = device.cuda_stream();
    let dtype = out.dtype();
    // candle comes here by way of an allocation, which does this: cuBLAS looks for the thread's context.
    let bound = stream.context().bind_to_thread();
    bound.map_err(|error| Error::Failed { op: op.name(), message: error.to_string() })?;
    let unsupported = |dtype| Error::UnsupportedDType { op: op.name(), dtype };
    let (place, _written) = memory::to_write(&mut out.slice, &stream).ok_or_else(|| unsupported(dtype))?;
    // Anybody can make a tensor of a storage that is too short for its shape.
    let view = |operand: &dyn Fn() -> String, place: Place, dtype, layout| {
        let held = place.holds(layout).then(|| View::new(place, dtype, layout));
        held.ok_or_else(|| layout_error(op.name(), operand(), "within its storage", layout))
    };
    let mut views = Vec::with_capacity(sources.len());
    // What makes other streams wait until this one has read, when it is dropped.
    let mut read = Vec::with_capacity(sources.len());
    for (index, source) in sources.iter().enumerate() {
        let (place, dtype) = match source.storage {
            Some(storage) => {
                let found = memory::to_read(&storage.slice, &stream);
                let (place, guard) = found.ok_or_else(|| unsupported(storage.dtype()))?;
                read.push(guard);
                (place, storage.dtype())
            }
            None => (place, dtype),
        };
        views.push(view(&|| format!("source {index}"), place, dtype, source.layout)?);
    }
    let out = view(&|| "the output".to_owned(), place, dtype, layout)?;
    Call { op, device: &device, out, sources: &views }.run()
}

/// An operation on tensors whose memory is known.
#[derive(Clone, Copy)]
struct Call<'a> {
    op: &'a Op,
    device: &'a CudaDevice,
    out: View<'a>,
    sources: &'a [View<'a>],
}

impl Call<'_> {
    fn run(self) -> Result<()> {
        match self.op {
            Op::Unary(unary) => self.of_one(unary_kernel(*unary), &kernels::UNARY, &[], &[]),
            Op::Powf(power) => {
                let power = self.number(*power)?;
                self.of_one("upowf", &kernels::UNARY, &[power], &[])
            }
            Op::Affine { mul, add } => {
                let factors = [self.number(*mul)?, self.number(*add)?];
                self.of_one("affine", &kernels::AFFINE, &[], &factors)
            }
            Op::Binary(binary) => self.of_two(*binary, self.sources[0], self.sources[1]),
            Op::Clamp { min, max } => self.clamp(*min, *max),
            Op::Cast(_) if self.sources[0].dtype == self.out.dtype => copy::run(self),
            Op::Cast(_) => self.cast(),
            Op::Fill(value) => self.fill(*value),
            Op::WhereCond => self.choose(),
            Op::Matmul(matmul) => blas::run(self, matmul),
            Op::Sum { dims, scale } => rows::sum(self, dims, *scale),
            Op::Extreme { dim, greatest } => rows::extreme(self, *dim, *greatest),
            Op::Softmax => rows::softmax(self),
            Op::RmsNorm { eps } => rows::norm(self, "rmsnorm", *eps),
            Op::LayerNorm { eps } => rows::norm(self, "layernorm", *eps),
            Op::Rope => rows::rope(self),
            Op::IndexSelect { dim } => indexing::select(self, *dim),
            Op::Gather { dim } => indexing::gather(self, *dim),
            Op::Conv1d(params) => conv::conv1d(self, params),
            Op::Conv2d(params) => conv::conv2d(self, params),
            Op::Descend { .. } | Op::AdamW(_) => Err(self.unsupported(self.out.dtype)),
        }
    }

    fn unsupported(&self, dtype: DType) -> Error {
        Error::UnsupportedDType { op: self.op.name(), dtype }
    }

    fn failed(&self, error: &impl std::fmt::Display) -> Error {
        Error::Failed { op: self.op.name(), message: error.to_string() }
    }

    /// A number in the output's format.
    fn number(&self, value: f64) -> Result<Arg> {
        Arg::number(self.out.dtype, value).ok_or_else(|| self.unsupported(self.out.dtype))
    }

    /// The name of a kernel for the output's format.
    fn kernel(&self, root: &str) -> String {
        format!("{root}_{}", self.out.dtype.as_str())
    }

    /// Most kernels write one number after the other.
    fn expect_contiguous_output(&self) -> Result<()> {
        if self.out.layout.is_contiguous() {
            return Ok(());
        }
        Err(layout_error(self.op.name(), "the output".to_owned(), "contiguous on CUDA", self.out.layout))
    }

    /// A kernel of one source with arguments before and after the tensors.
    fn of_one(&self, root: &str, module: &kernels::Module, before: &[Arg], after: &[Arg]) -> Result<()> {
        self.expect_contiguous_output()?;
        let source = &self.sources[0];
        let layout = self.params(source.layout)?;
        let head = [Arg::Count(source.len()), Arg::Count(source.rank()), layout];
        let tensors = [Arg::Address(source.address), Arg::Address(self.out.address)];
        let args: Vec<&Arg> = head.iter().chain(before).chain(&tensors).chain(after).collect();
        self.launch(&self.kernel(root), module, for_each(self, source.len())?, &args)
    }

    fn of_two(&self, binary: Binary, left: View<'_>, right: View<'_>) -> Result<()> {
        self.expect_contiguous_output()?;
        let layouts = if left.layout.is_contiguous() && right.layout.is_contiguous() {
            Arg::no_params()
        } else {
            self.params_of(&[left.layout.dims(), left.layout.stride(), right.layout.stride()])?
        };
        let args = [
            Arg::Count(left.len()),
            Arg::Count(left.rank()),
            layouts,
            Arg::Address(left.address),
            Arg::Address(right.address),
            Arg::Address(self.out.address),
        ];
        let kernel = self.kernel(binary_kernel(binary));
        self.launch_all(&kernel, &kernels::BINARY, for_each(self, left.len())?, &args)
    }

    /// candle's way: the greater of two, then the lesser of two, with a tensor of one number that is broadcast.
    fn clamp(&self, min: f64, max: f64) -> Result<()> {
        self.expect_contiguous_output()?;
        let everywhere = self.out.layout.stride().iter().map(|_| 0).collect();
        let everywhere = Layout::new(self.out.layout.shape().clone(), everywhere, 0);
        let dtype = self.out.dtype;
        let stream = self.device.cuda_stream();
        let scalar = |value| {
            let made = memory::one_number(self.device, dtype, value).map_err(|error| self.failed(&error))?;
            made.ok_or_else(|| self.unsupported(dtype))
        };
        let (least, greatest): (CudaStorageSlice, CudaStorageSlice) = (scalar(min)?, scalar(max)?);
        let unsupported = || self.unsupported(dtype);
        let (least, _read) = memory::to_read(&least, &stream).ok_or_else(unsupported)?;
        self.of_two(Binary::Maximum, self.sources[0], View::new(least, dtype, &everywhere))?;
        let (greatest, _read) = memory::to_read(&greatest, &stream).ok_or_else(unsupported)?;
        self.of_two(Binary::Minimum, self.out, View::new(greatest, dtype, &everywhere))
    }

    fn cast(&self) -> Result<()> {
        self.expect_contiguous_output()?;
        let source = &self.sources[0];
        let args = [
            Arg::Count(source.len()),
            Arg::Count(source.rank()),
            self.params(source.layout)?,
            Arg::Address(source.address),
            Arg::Address(self.out.address),
        ];
        let kernel = format!("cast_{}_{}", source.dtype.as_str(), self.out.dtype.as_str());
        self.launch_all(&kernel, &kernels::CAST, for_each(self, source.len())?, &args)
    }

    fn fill(&self, value: f64) -> Result<()> {
        let out = &self.out;
        let args = [
            Arg::Count(out.len()),
            Arg::Count(out.rank()),
            self.params(out.layout)?,
            self.number(value)?,
            Arg::Address(out.address),
        ];
        self.launch_all(&self.kernel("const_set"), &kernels::FILL, for_each(self, out.len())?, &args)
    }

    fn choose(&self) -> Result<()> {
        self.expect_contiguous_output()?;
        let [choice, yes, no] = self.sources else { unreachable!("a choice has three sources") };
        let strides = [choice.layout.dims(), choice.layout.stride(), yes.layout.stride(), no.layout.stride()];
        let args = [
            Arg::Count(choice.len()),
            Arg::Count(choice.rank()),
            self.params_of(&strides)?,
            Arg::Address(choice.address),
            Arg::Address(yes.address),
            Arg::Address(no.address),
            Arg::Address(self.out.address),
        ];
        let kernel = self.kernel(&format!("where_{}", choice.dtype.as_str()));
        self.launch_all(&kernel, &kernels::TERNARY, for_each(self, choice.len())?, &args)
    }
}

fn unary_kernel(unary: Unary) -> &'static str {
    match unary {
        Unary::Exp => "uexp",
        Unary::Log => "ulog",
        Unary::Sqrt => "usqrt",
        Unary::Sqr => "usqr",
        Unary::Abs => "uabs",
        Unary::Neg => "uneg",
        Unary::Recip => "urecip",
        Unary::Sin => "usin",
        Unary::Cos => "ucos",
        Unary::Tanh => "utanh",
        Unary::Relu => "urelu",
        Unary::Gelu => "ugelu",
        Unary::GeluErf => "ugelu_erf",
        Unary::Silu => "usilu",
        Unary::Sigmoid => "usigmoid",
    }
}

fn binary_kernel(binary: Binary) -> &'static str {
    match binary {
        Binary::Add => "badd",
        Binary::Sub => "bsub",
        Binary::Mul => "bmul",
        Binary::Div => "bdiv",
        Binary::Maximum => "bmaximum",
        Binary::Minimum => "bminimum",
    }
}
