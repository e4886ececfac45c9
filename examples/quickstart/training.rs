//! A training step of a small MLP: forward, loss, backward, AdamW.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, VarBuilder, VarMap, linear, loss::cross_entropy};

const BATCH: usize = 256;
const SIZES: [usize; 4] = [784, 1024, 1024, 10];

pub(crate) struct Training {
    layers: Vec<Linear>,
    optimizer: AdamW,
    images: Tensor,
    labels: Tensor,
}

impl Training {
    pub(crate) fn new() -> Result<Self> {
        let device = Device::Cpu;
        let weights = VarMap::new();
        let builder = VarBuilder::from_varmap(&weights, DType::F32, &device);
        let layers = SIZES
            .windows(2)
            .enumerate()
            .map(|(at, size)| linear(size[0], size[1], builder.pp(format!("layer{at}"))))
            .collect::<Result<_>>()?;
        Ok(Self {
            layers,
            // So small a rate that the numbers stay tame over any number of steps.
            optimizer: AdamW::new_lr(weights.all_vars(), 1e-5)?,
            images: Tensor::rand(0_f32, 1., (BATCH, SIZES[0]), &device)?,
            labels: Tensor::from_iter((0..BATCH as u32).map(|k| k % 10), &device)?,
        })
    }

    /// One step; its loss.
    pub(crate) fn step(&mut self) -> Result<f32> {
        let mut hidden = self.images.clone();
        for (at, layer) in self.layers.iter().enumerate() {
            hidden = layer.forward(&hidden)?;
            if at + 1 < self.layers.len() {
                hidden = hidden.relu()?;
            }
        }
        let loss = cross_entropy(&hidden, &self.labels)?;
        self.optimizer.backward_step(&loss)?;
        loss.to_scalar()
    }
}
