//! Rotary embeddings, as `candle_nn::rotary_emb::rope` computes them.

use candle_core::CpuStorage;
use rayon::prelude::*;

use super::elem::FloatElem;
use super::operands::{Beside, Output};
use crate::error::Result;
use crate::out::check::Operand;

/// Numbers of shape `(batch, heads, steps, 2 half)`, cosines and sines of `(steps, half)` or
/// `(batch, steps, half)`. All contiguous.
pub(super) fn run<T: FloatElem>(
    op: &'static str,
    mut out: Output<'_, T>,
    beside: &Beside<'_, T>,
    sources: &[Operand<'_, CpuStorage>],
) -> Result<()> {
    let (heads, steps, dim) = (out.layout.dims()[1], out.layout.dims()[2], out.layout.dims()[3]);
    let of_batch = sources[1].layout.dims().len() == 3 && sources[2].layout.dims().len() == 3;
    let (cos, sin) = (beside.apart(op, &sources[1])?, beside.apart(op, &sources[2])?);
    let contiguous = "was checked to be contiguous";
    let (cos, sin) = (cos.contiguous().expect(contiguous), sin.contiguous().expect(contiguous));
    let out = out.contiguous().expect(contiguous);
    let half = dim / 2;
    let rotate = |(head, numbers): (usize, &mut [T])| {
        let start = if of_batch { head / heads * steps * half } else { 0 };
        for (step, numbers) in numbers.chunks_exact_mut(dim).enumerate() {
            let (firsts, seconds) = numbers.split_at_mut(half);
            for (k, (first, second)) in firsts.iter_mut().zip(seconds).enumerate() {
                let (cos, sin) = (cos[start + step * half + k], sin[start + step * half + k]);
                let (x, y) = (*first, *second);
                *first = x * cos - y * sin;
                *second = x * sin + y * cos;
            }
        }
    };
    let source = beside.apart(op, &sources[0])?.contiguous().expect(contiguous).par_chunks_exact(steps * dim);
    out.par_chunks_exact_mut(steps * dim).zip(source).enumerate().for_each(|(head, (numbers, source))| {
        numbers.copy_from_slice(source);
        rotate((head, numbers));
    });
    Ok(())
}
