//! Operations on each row along the last dimension, as `candle_nn::ops` computes them.
//!
//! A source's row is copied to its place in the output and then worked on there. So the output may be the source.

use candle_core::CpuStorage;
use rayon::prelude::*;

use super::elem::FloatElem;
use super::operands::{Beside, Output, Source};
use super::primitives;
use crate::error::{Error, Result};
use crate::out::check::Operand;

/// Row by row, each of its numbers over the sum of all of them, exponentials taken.
pub(super) fn softmax<T: FloatElem>(
    op: &'static str,
    out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    for_rows(out, &beside.source(op, &sources[0])?, |row| {
        let max = primitives::greatest(row);
        row.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum = primitives::sum(row);
        row.iter_mut().for_each(|x| *x /= sum);
    });
    Ok(())
}

/// Row by row, over the root of the mean square, times the weight.
pub(super) fn rms_norm<T: FloatElem>(
    op: &'static str,
    eps: f32,
    out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    single_or_half::<T>(op)?;
    let weight = vector(op, beside, &sources[1])?;
    for_rows(out, &beside.source(op, &sources[0])?, |row| {
        let squares = row.iter().map(|&x| Single::single(x) * Single::single(x)).sum::<f32>();
        let root = rounded::<T>((squares / row.len() as f32 + eps).sqrt());
        for (x, &weight) in row.iter_mut().zip(weight) {
            *x = *x / root * weight;
        }
    });
    Ok(())
}

/// Row by row, without the mean and over the root of the variance, times the weight, plus the bias.
pub(super) fn layer_norm<T: FloatElem>(
    op: &'static str,
    eps: f32,
    out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    single_or_half::<T>(op)?;
    let (weight, bias) = (vector(op, beside, &sources[1])?, vector(op, beside, &sources[2])?);
    for_rows(out, &beside.source(op, &sources[0])?, |row| {
        let (mut sum, mut squares) = (0_f32, 0_f32);
        for &x in &*row {
            let x = x.single();
            sum += x;
            squares += x * x;
        }
        let mean = sum / row.len() as f32;
        let variance = squares / row.len() as f32 - mean * mean;
        let inverse = (variance + eps).sqrt().recip();
        for (x, (weight, bias)) in row.iter_mut().zip(weight.iter().zip(bias)) {
            *x = rounded((x.single() - mean) * inverse * weight.single() + bias.single());
        }
    });
    Ok(())
}

/// `f` on each row of the output, which holds the source's row then.
fn for_rows<T: FloatElem>(
    mut out: Output<'_, T>,
    source: &Source<'_, T>,
    f: impl Fn(&mut [T]) + Send + Sync,
) {
    let len = out.layout.dims().last().copied().unwrap_or(1);
    let out = out.contiguous().expect("was checked to be contiguous");
    match source {
        Source::Replaced => out.par_chunks_exact_mut(len).for_each(f),
        Source::Apart(source) => {
            let source = source.contiguous().expect("was checked to be contiguous");
            let rows = out.par_chunks_exact_mut(len).zip(source.par_chunks_exact(len));
            rows.for_each(|(row, source)| {
                row.copy_from_slice(source);
                f(row);
            });
        }
    }
}

/// The numbers of a weight or bias.
fn vector<'a, T: FloatElem>(
    op: &'static str,
    beside: &Beside<'a, T>,
    operand: &Operand<'a, CpuStorage>,
) -> Result<&'a [T]> {
    Ok(beside.apart(op, operand)?.contiguous().expect("was checked to be contiguous"))
}

/// candle's norms compute in `f32` and do not take `f64`.
fn single_or_half<T: FloatElem>(op: &'static str) -> Result<()> {
    if size_of::<T>() <= size_of::<f32>() {
        Ok(())
    } else {
        Err(Error::UnsupportedDType { op, dtype: T::DTYPE })
    }
}

/// `x` in the format of the tensors.
fn rounded<T: FloatElem>(x: f32) -> T {
    T::from_f32(x).unwrap_or_else(T::nan)
}

/// A number of a tensor in the format of the computation.
trait Single {
    fn single(self) -> f32;
}

impl<T: FloatElem> Single for T {
    fn single(self) -> f32 {
        self.as_()
    }
}
