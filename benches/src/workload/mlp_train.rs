//! `mlp_train`: one training step of a 784-1024-1024-10 MLP with AdamW, batch 256.

use super::{Workload, seeded, weights};
use crate::checksum::{self, Checksum};
use anyhow::Result;
use candle_core::{Tensor, Var};
use candle_nn::loss::cross_entropy;
use candle_nn::{AdamW, Linear, Module, Optimizer, linear};

const BATCH: usize = 256;
const INPUT: usize = 784;
const HIDDEN: usize = 1024;
const CLASSES: usize = 10;
const BATCHES: usize = 4;

pub(super) struct MlpTrain {
    layers: [Linear; 3],
    first_weight: Var,
    optimizer: AdamW,
    batches: Vec<(Tensor, Tensor)>,
}

impl MlpTrain {
    pub(super) fn new() -> Result<Self> {
        let (builder, trainable) = weights::trainable();
        let layers = [
            linear(INPUT, HIDDEN, builder.pp("first"))?,
            linear(HIDDEN, HIDDEN, builder.pp("second"))?,
            linear(HIDDEN, CLASSES, builder.pp("third"))?,
        ];
        let batches = (0..BATCHES as u64).map(|seed| {
            let images = seeded::uniform(seed, (BATCH, INPUT), 0.0, 1.0)?;
            Ok((images, seeded::integers(seed, BATCH, CLASSES as u32)?))
        });
        let vars = trainable.vars();
        Ok(Self {
            layers,
            first_weight: vars[0].clone(),
            optimizer: AdamW::new_lr(vars, 1e-3)?,
            batches: batches.collect::<Result<_>>()?,
        })
    }
}

impl Workload for MlpTrain {
    fn step(&mut self, step: usize) -> Result<u64> {
        let (images, labels) = &self.batches[step % BATCHES];
        let [first, second, third] = &self.layers;
        let hidden = first.forward(images)?.relu()?;
        let hidden = second.forward(&hidden)?.relu()?;
        let loss = cross_entropy(&third.forward(&hidden)?, labels)?;
        self.optimizer.backward_step(&loss)?;

        // The loss shows the forward pass, a weight the backward pass and the update.
        let mut sum = Checksum::default();
        sum.fold(checksum::of(&loss)?);
        sum.fold(checksum::of(&self.first_weight)?);
        Ok(sum.bits())
    }
}
