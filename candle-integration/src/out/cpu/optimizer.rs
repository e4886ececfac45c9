//! One step of AdamW in one pass over its tensors, each number computed as `candle_nn`'s chain of tensors does.

use candle_core::{CpuStorage, Layout, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;

use super::elem::FloatElem;
use crate::error::{Error, Result};
use crate::out::op::{AdamWStep, Op};

/// Numbers that a thread takes at once.
const SHARE: usize = 16 * 1024;

/// Updates variable, first and second moment with a gradient. All are contiguous and have the same shape.
pub(in crate::out) fn adamw(
    op: &Op,
    step: &AdamWStep,
    written: [(&mut CpuStorage, &Layout); 3],
    gradient: (&CpuStorage, &Layout),
) -> Result<()> {
    let [(theta, theta_layout), (m, m_layout), (v, v_layout)] = written;
    let layouts = [theta_layout, m_layout, v_layout, gradient.1];
    match (theta, m, v, gradient.0) {
        (CpuStorage::F32(theta), CpuStorage::F32(m), CpuStorage::F32(v), CpuStorage::F32(g)) => {
            update::<f32>(step, layouts, [theta, m, v], g);
        }
        (CpuStorage::F64(theta), CpuStorage::F64(m), CpuStorage::F64(v), CpuStorage::F64(g)) => {
            update::<f64>(step, layouts, [theta, m, v], g);
        }
        (CpuStorage::F16(theta), CpuStorage::F16(m), CpuStorage::F16(v), CpuStorage::F16(g)) => {
            update::<f16>(step, layouts, [theta, m, v], g);
        }
        (CpuStorage::BF16(theta), CpuStorage::BF16(m), CpuStorage::BF16(v), CpuStorage::BF16(g)) => {
            update::<bf16>(step, layouts, [theta, m, v], g);
        }
        (_, _, _, gradient) => {
            use candle_core::backend::BackendStorage;
            return Err(Error::UnsupportedDType { op: op.name(), dtype: gradient.dtype() });
        }
    }
    Ok(())
}

fn update<T: FloatElem>(
    step: &AdamWStep,
    [theta_layout, m_layout, v_layout, g_layout]: [&Layout; 4],
    [theta, m, v]: [&mut [T]; 3],
    g: &[T],
) {
    let range = |layout: &Layout| {
        let (start, end) = layout.contiguous_offsets().expect("was checked to be contiguous");
        start..end
    };
    let factors = Factors::<T>::of(step);
    let theta = theta[range(theta_layout)].par_chunks_mut(SHARE);
    let m = m[range(m_layout)].par_chunks_mut(SHARE);
    let v = v[range(v_layout)].par_chunks_mut(SHARE);
    let g = g[range(g_layout)].par_chunks(SHARE);
    theta.zip(m).zip(v).zip(g).for_each(|(((theta, m), v), g)| {
        for (((theta, m), v), &g) in theta.iter_mut().zip(m).zip(v).zip(g) {
            factors.update(theta, m, v, g);
        }
    });
}

/// The factors in the tensors' format, to which candle rounds each of them.
struct Factors<T> {
    beta1: T,
    rest1: T,
    beta2: T,
    rest2: T,
    scale_m: T,
    scale_v: T,
    kept: T,
    eps: T,
    lr: T,
    zero: T,
}

impl<T: FloatElem> Factors<T> {
    fn of(step: &AdamWStep) -> Self {
        let of = <T as WithDType>::from_f64;
        Self {
            beta1: of(step.beta1),
            rest1: of(1.0 - step.beta1),
            beta2: of(step.beta2),
            rest2: of(1.0 - step.beta2),
            scale_m: of(step.scale_m),
            scale_v: of(step.scale_v),
            kept: of(step.kept),
            eps: of(step.eps),
            lr: of(step.lr),
            zero: of(0.0),
        }
    }

    /// A tensor times a number is `x * number + 0` in candle, which makes a zero of a negative zero.
    fn times(&self, x: T, factor: T) -> T {
        x * factor + self.zero
    }

    fn update(&self, theta: &mut T, m: &mut T, v: &mut T, g: T) {
        *m = self.times(*m, self.beta1) + self.times(g, self.rest1);
        *v = self.times(*v, self.beta2) + self.times(g * g, self.rest2);
        let (mean, square) = (self.times(*m, self.scale_m), self.times(*v, self.scale_v));
        let adjusted = mean / (num_traits::Float::sqrt(square) * T::one() + self.eps);
        *theta = self.times(*theta, self.kept) - self.times(adjusted, self.lr);
    }
}
