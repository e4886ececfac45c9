//! The network: two convolutions, a max pool and two linear layers, about 38,000 weights.

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Linear, Module, VarBuilder, VarMap, conv2d, linear};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::digits::{CLASSES, SIDE};

const CHANNELS: (usize, usize) = (16, 32);
const HIDDEN: usize = 64;

/// The layers, and the variables behind them.
pub(crate) struct Cnn {
    vars: VarMap,
    conv1: Conv2d,
    conv2: Conv2d,
    hidden: Linear,
    out: Linear,
}

impl Cnn {
    /// A network whose weights are drawn from `seed`.
    pub(crate) fn new(seed: u64) -> Result<Self> {
        let mut vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
        let same_size = Conv2dConfig { padding: 1, ..Default::default() };
        let pooled = (SIDE / 2) * (SIDE / 2) * CHANNELS.1;
        let conv1 = conv2d(1, CHANNELS.0, 3, same_size, vb.pp("conv1"))?;
        let conv2 = conv2d(CHANNELS.0, CHANNELS.1, 3, same_size, vb.pp("conv2"))?;
        let hidden = linear(pooled, HIDDEN, vb.pp("hidden"))?;
        let out = linear(HIDDEN, CLASSES, vb.pp("out"))?;
        seed_weights(&mut vars, seed).context("drawing the initial weights")?;
        Ok(Self { vars, conv1, conv2, hidden, out })
    }

    /// The variables an optimizer trains.
    pub(crate) fn vars(&self) -> Vec<candle_core::Var> {
        self.vars.all_vars()
    }

    /// Every weight, by name in alphabetical order.
    pub(crate) fn weights(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let mut weights = Vec::new();
        for (name, var) in sorted_vars(&self.vars) {
            weights.push((name, var.flatten_all()?.to_vec1()?));
        }
        Ok(weights)
    }
}

impl Module for Cnn {
    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let x = self.conv1.forward(images)?.relu()?;
        let x = self.conv2.forward(&x)?.relu()?;
        let x = x.max_pool2d(2)?.flatten_from(1)?;
        let x = self.hidden.forward(&x)?.relu()?;
        self.out.forward(&x)
    }
}

/// A map hands out its entries in an order that changes from run to run; seeding needs one order.
fn sorted_vars(vars: &VarMap) -> Vec<(String, candle_core::Var)> {
    let mut named: Vec<_> = vars
        .data()
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .iter()
        .map(|(name, var)| (name.clone(), var.clone()))
        .collect();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    named
}

/// Replaces the weights candle drew: its CPU generator cannot be seeded, so two runs would start
/// from different points. Weights follow He's uniform rule for ReLU, biases start at zero.
fn seed_weights(vars: &mut VarMap, seed: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    for (name, var) in sorted_vars(vars) {
        let shape = var.shape().clone();
        let fan_in: usize = shape.dims().iter().skip(1).product();
        let values: Vec<f32> = if shape.rank() > 1 {
            let bound = (6.0 / fan_in as f32).sqrt();
            let draw = |_| rng.random_range(-bound..bound);
            (0..shape.elem_count()).map(draw).collect()
        } else {
            vec![0.0; shape.elem_count()]
        };
        vars.set_one(&name, Tensor::from_vec(values, shape, &Device::Cpu)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_the_seed() {
        let weights = |seed| Cnn::new(seed).unwrap().weights().unwrap();
        assert_eq!(weights(1), weights(1));
        assert_ne!(weights(1), weights(2));
    }

    #[test]
    fn one_score_for_each_digit() {
        let images = Tensor::zeros((3, 1, SIDE, SIDE), DType::F32, &Device::Cpu).unwrap();
        let scores = Cnn::new(1).unwrap().forward(&images).unwrap();
        assert_eq!(scores.dims(), [3, CLASSES]);
    }
}
