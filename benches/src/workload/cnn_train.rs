//! `cnn_train`: one training step of a small CNN on 1x28x28 images with AdamW, batch 32.
//!
//! Two 5x5 convolutions (16 and 32 channels), each with relu and 2x2 max pooling, then one linear
//! layer.

use super::{Workload, seeded, weights};
use crate::checksum::{self, Checksum};
use anyhow::Result;
use candle_core::{Tensor, Var};
use candle_nn::loss::cross_entropy;
use candle_nn::{AdamW, Conv2d, Conv2dConfig, Linear, Module, Optimizer, conv2d, linear};

const BATCH: usize = 32;
const SIDE: usize = 28;
const CLASSES: usize = 10;
const CHANNELS: [usize; 2] = [16, 32];
const BATCHES: usize = 4;

pub(super) struct CnnTrain {
    convolutions: [Conv2d; 2],
    classifier: Linear,
    first_weight: Var,
    optimizer: AdamW,
    batches: Vec<(Tensor, Tensor)>,
}

impl CnnTrain {
    pub(super) fn new() -> Result<Self> {
        let (builder, trainable) = weights::trainable();
        let config = Conv2dConfig { padding: 2, ..Conv2dConfig::default() };
        let convolutions = [
            conv2d(1, CHANNELS[0], 5, config, builder.pp("first"))?,
            conv2d(CHANNELS[0], CHANNELS[1], 5, config, builder.pp("second"))?,
        ];
        let features = CHANNELS[1] * (SIDE / 4) * (SIDE / 4);
        let classifier = linear(features, CLASSES, builder.pp("classifier"))?;
        let batches = (0..BATCHES as u64).map(|seed| {
            let images = seeded::uniform(seed, (BATCH, 1, SIDE, SIDE), 0.0, 1.0)?;
            Ok((images, seeded::integers(seed, BATCH, CLASSES as u32)?))
        });
        let vars = trainable.vars();
        Ok(Self {
            convolutions,
            classifier,
            first_weight: vars[0].clone(),
            optimizer: AdamW::new_lr(vars, 1e-3)?,
            batches: batches.collect::<Result<_>>()?,
        })
    }
}

impl Workload for CnnTrain {
    fn step(&mut self, step: usize) -> Result<u64> {
        let (images, labels) = &self.batches[step % BATCHES];
        let mut hidden = images.clone();
        for convolution in &self.convolutions {
            hidden = convolution.forward(&hidden)?.relu()?.max_pool2d(2)?;
        }
        let loss = cross_entropy(&self.classifier.forward(&hidden.flatten_from(1)?)?, labels)?;
        self.optimizer.backward_step(&loss)?;

        // The loss shows the forward pass, a weight the backward pass and the update.
        let mut sum = Checksum::default();
        sum.fold(checksum::of(&loss)?);
        sum.fold(checksum::of(&self.first_weight)?);
        Ok(sum.bits())
    }
}
