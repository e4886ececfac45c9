//! Inputs that are the same in every process: tensors and labels from fixed seeds.
//!
//! candle's own random tensors on the CPU take no seed, so none of them is used here.

use anyhow::Result;
use candle_core::{Device, Shape, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Uniform f32 values in `low..high`.
pub(super) fn uniform(
    seed: u64,
    shape: impl Into<Shape>,
    low: f32,
    high: f32,
) -> candle_core::Result<Tensor> {
    let shape = shape.into();
    let mut rng = StdRng::seed_from_u64(seed);
    let values: Vec<f32> = (0..shape.elem_count()).map(|_| rng.random_range(low..high)).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// Uniform u32 values in `0..bound`, such as class labels or token ids.
pub(super) fn integers(seed: u64, shape: impl Into<Shape>, bound: u32) -> Result<Tensor> {
    let shape = shape.into();
    let mut rng = StdRng::seed_from_u64(seed);
    let values: Vec<u32> = (0..shape.elem_count()).map(|_| rng.random_range(0..bound)).collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}
