//! Numbers that are the same in every run, for weights and inputs.

use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// `shape` filled with numbers between -`scale` and `scale` that `seed` decides.
pub(crate) fn tensor(seed: u64, shape: impl Into<Shape>, scale: f32) -> Result<Tensor> {
    let shape = shape.into();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f32> = (0..shape.elem_count())
        .map(|_| {
            // xorshift64: a period and a spread that are ample for test data.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            scale * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect();
    Tensor::from_vec(values, shape, &crate::device())
}

/// Token ids below `vocabulary`.
pub(crate) fn ids(shape: (usize, usize), vocabulary: usize) -> Result<Tensor> {
    let ids = (0..shape.0 * shape.1).map(|k| (k * 7919 % vocabulary) as u32);
    Tensor::from_iter(ids, &crate::device())?.reshape(shape)
}

struct Seeded;

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, _: &Device) -> Result<Tensor> {
        let seed = name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        // A `Var`, so that gradients reach it.
        Ok(Var::from_tensor(&tensor(seed, shape, 0.2)?.to_dtype(dtype)?)?.into_inner())
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("no shape for {name}")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// A builder whose every weight is decided by its name.
pub(crate) fn builder(dtype: DType) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Seeded), dtype, crate::device())
}
