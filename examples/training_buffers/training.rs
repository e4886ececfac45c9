//! A classifier of two hidden layers, and made-up examples.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Linear, Module, Optimizer, loss, ops};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const INPUTS: usize = 256;
const HIDDEN: usize = 512;
const CLASSES: usize = 10;

pub(crate) struct Training {
    layers: [Linear; 3],
    optimizer: AdamW,
    batch: usize,
    device: Device,
}

/// Numbers between -`scale` and `scale`, the same in every run.
fn numbers(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-scale..scale)).collect()
}

impl Training {
    pub(crate) fn new(batch: usize, device: &Device) -> Result<Self> {
        let mut vars = Vec::new();
        let mut layer = |seed, rows: usize, columns: usize| -> Result<Linear> {
            let scale = (1.0 / columns as f32).sqrt();
            let weight = Tensor::from_vec(numbers(seed, rows * columns, scale), (rows, columns), device)?;
            let (weight, bias) = (Var::from_tensor(&weight)?, Var::zeros(rows, DType::F32, device)?);
            vars.extend([weight.clone(), bias.clone()]);
            Ok(Linear::new(weight.into_inner(), Some(bias.into_inner())))
        };
        let layers = [layer(1, HIDDEN, INPUTS)?, layer(2, HIDDEN, HIDDEN)?, layer(3, CLASSES, HIDDEN)?];
        Ok(Self { layers, optimizer: AdamW::new_lr(vars, 1e-3)?, batch, device: device.clone() })
    }

    /// One step on the batch of this number; its loss.
    pub(crate) fn step(&mut self, number: usize) -> Result<f32> {
        let examples = numbers(100 + number as u64, self.batch * INPUTS, 1.0);
        // The class is the tenth of the inputs that is largest.
        let class = |example: &[f32]| {
            let tenth = example.chunks(INPUTS / CLASSES).take(CLASSES).map(|part| part.iter().sum::<f32>());
            let largest = tenth.enumerate().max_by(|one, other| one.1.total_cmp(&other.1));
            largest.map_or(0, |(class, _)| class as u32)
        };
        let classes: Vec<u32> = examples.chunks(INPUTS).map(class).collect();
        let x = Tensor::from_vec(examples, (self.batch, INPUTS), &self.device)?;
        let classes = Tensor::new(classes, &self.device)?;
        let [first, second, last] = &self.layers;
        let hidden = second.forward(&first.forward(&x)?.gelu()?)?.gelu()?;
        let loss = loss::nll(&ops::log_softmax(&last.forward(&hidden)?, D::Minus1)?, &classes)?;
        self.optimizer.backward_step(&loss)?;
        loss.to_scalar()
    }
}
