//! Out-operations in host memory, with candle's own functions, in candle's order of computing.

mod conv;
mod elem;
mod elementwise;
mod indexing;
mod matmul;
mod operands;
mod optimizer;
mod primitives;
mod reduce;
mod rope;
mod rows;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, WithDType};
use half::{bf16, f16};

use self::elem::{Elem, FloatElem, each};
use self::operands::{Beside, Output, Strided, split};
use super::check::Operand;
use super::op::Op;
use crate::error::{Error, Result};

pub(super) use self::optimizer::adamw;

/// Carries out `op` on an output that is not empty.
pub(super) fn run(
    op: &Op,
    out: &mut CpuStorage,
    layout: &Layout,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    let call = Call { op, layout, sources };
    match out {
        CpuStorage::F32(numbers) => call.float(numbers),
        CpuStorage::F64(numbers) => call.float(numbers),
        CpuStorage::F16(numbers) => call.float(numbers),
        CpuStorage::BF16(numbers) => call.float(numbers),
        CpuStorage::U8(numbers) => call.any(numbers),
        CpuStorage::U32(numbers) => call.any(numbers),
        CpuStorage::I64(numbers) => call.any(numbers),
        other => Err(Error::UnsupportedDType { op: op.name(), dtype: other.dtype() }),
    }
}

/// An operation on tensors whose output's format is known where its methods are called.
#[derive(Clone, Copy)]
struct Call<'a> {
    op: &'a Op,
    layout: &'a Layout,
    sources: &'a [Operand<'a, CpuStorage>],
}

impl<'a> Call<'a> {
    /// What needs fractions, or anything else.
    fn float<T: FloatElem>(self, numbers: &mut [T]) -> Result<()> {
        let (out, beside) = split(numbers, self.layout);
        let name = self.op.name();
        match self.op {
            Op::Powf(power) => {
                let power = <T as WithDType>::from_f64(*power);
                let source = beside.source(name, &self.sources[0])?;
                elementwise::unary(out, &source, &move |xs, ys| each(xs, ys, |x| x.powf(power)));
                Ok(())
            }
            Op::Matmul(matmul) => matmul::run(name, matmul, out, &beside, self.sources),
            Op::Softmax => rows::softmax(name, out, &beside, self.sources),
            Op::RmsNorm { eps } => rows::rms_norm(name, *eps, out, &beside, self.sources),
            Op::LayerNorm { eps } => rows::layer_norm(name, *eps, out, &beside, self.sources),
            Op::Rope => rope::run(name, out, &beside, self.sources),
            Op::Conv1d(conv) => conv::conv1d(name, conv, out, &beside, self.sources),
            Op::Conv2d(conv) => conv::conv2d(name, conv, out, &beside, self.sources),
            _ => self.of_all(out, &beside),
        }
    }

    /// What integers have too.
    fn any<T: Elem>(self, numbers: &mut [T]) -> Result<()> {
        let (out, beside) = split(numbers, self.layout);
        self.of_all(out, &beside)
    }

    fn of_all<'t, T: Elem>(self, out: Output<'t, T>, beside: &Beside<'t, T>) -> Result<()>
    where
        'a: 't,
    {
        let (name, sources) = (self.op.name(), self.sources);
        let unsupported = || Error::UnsupportedDType { op: name, dtype: T::DTYPE };
        match self.op {
            Op::Unary(unary) => {
                let f = T::unary(*unary).ok_or_else(unsupported)?;
                elementwise::unary(out, &beside.source(name, &sources[0])?, &f);
            }
            Op::Binary(binary) => {
                let (left, right) = (beside.source(name, &sources[0])?, beside.source(name, &sources[1])?);
                elementwise::binary(out, &left, &right, T::binary(*binary));
            }
            Op::Descend { factor } => {
                let (factor, zero) = (T::from_f64(*factor), T::from_f64(0.0));
                let (left, right) = (beside.source(name, &sources[0])?, beside.source(name, &sources[1])?);
                elementwise::binary(out, &left, &right, |xs: &[T], ys: &[T], out: &mut [T]| {
                    for ((&x, &y), to) in xs.iter().zip(ys).zip(out) {
                        *to = x - (y * factor + zero); // candle's product with a number
                    }
                });
            }
            Op::Affine { mul, add } => {
                let (mul, add) = (T::from_f64(*mul), T::from_f64(*add));
                let source = beside.source(name, &sources[0])?;
                elementwise::unary(out, &source, &move |xs, ys| each(xs, ys, |x| x * mul + add));
            }
            Op::Clamp { min, max } => {
                let (min, max) = (T::from_f64(*min), T::from_f64(*max));
                let source = beside.source(name, &sources[0])?;
                elementwise::unary(out, &source, &move |xs, ys| each(xs, ys, |x| clamp(x, min, max)));
            }
            Op::Cast(_) => return self.cast(out, beside),
            Op::Fill(value) => elementwise::fill(out, T::from_f64(*value)),
            Op::WhereCond => {
                let (choice, layout) = beside.ints(name, &sources[0])?;
                let (yes, no) = (beside.source(name, &sources[1])?, beside.source(name, &sources[2])?);
                elementwise::choose(out, (choice, &layout), &yes, &no);
            }
            Op::Sum { dims, scale } => {
                reduce::sum(out, &beside.apart(name, &sources[0])?, dims, *scale);
            }
            Op::Extreme { dim, greatest } => {
                reduce::extreme(out, &beside.apart(name, &sources[0])?, *dim, *greatest);
            }
            Op::IndexSelect { dim } => return indexing::select(name, out, beside, sources, *dim),
            Op::Gather { dim } => return indexing::gather(name, out, beside, sources, *dim),
            _ => return Err(unsupported()),
        }
        Ok(())
    }

    fn cast<'t, T: Elem>(self, out: Output<'t, T>, beside: &Beside<'t, T>) -> Result<()>
    where
        'a: 't,
    {
        let (name, source) = (self.op.name(), &self.sources[0]);
        let dtype = source.storage.map_or(T::DTYPE, BackendStorage::dtype);
        match dtype {
            dtype if dtype == T::DTYPE => {
                elementwise::unary(out, &beside.source(name, source)?, &|xs, ys| ys.copy_from_slice(xs));
                Ok(())
            }
            DType::F32 => cast_from::<f32, T>(name, out, source),
            DType::F64 => cast_from::<f64, T>(name, out, source),
            DType::F16 => cast_from::<f16, T>(name, out, source),
            DType::BF16 => cast_from::<bf16, T>(name, out, source),
            DType::U8 => cast_from::<u8, T>(name, out, source),
            DType::U32 => cast_from::<u32, T>(name, out, source),
            DType::I64 => cast_from::<i64, T>(name, out, source),
            dtype => Err(Error::UnsupportedDType { op: name, dtype }),
        }
    }
}

/// Converts numbers of another format, which lie in another storage.
fn cast_from<T, U>(op: &'static str, out: Output<'_, U>, source: &Operand<'_, CpuStorage>) -> Result<()>
where
    T: Elem,
    U: Elem,
{
    let numbers = source.storage.and_then(T::of).ok_or(Error::UnsupportedDType { op, dtype: T::DTYPE })?;
    let source = Strided { numbers, layout: source.layout.clone() };
    elementwise::convert(out, &source, &|xs: &[T], ys| each(xs, ys, U::convert));
    Ok(())
}

/// `maximum`, then `minimum`, as candle has them: what cannot be compared stays.
fn clamp<T: PartialOrd>(x: T, min: T, max: T) -> T {
    let x = if x < min { min } else { x };
    if x > max { max } else { x }
}
