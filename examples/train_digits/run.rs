//! One training run, advanced a step at a time: its state, its step and what it produced.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use candle_core::D;
use candle_mempool::{MemPool, mark_step, without_pools};
use candle_nn::{AdamW, Module, Optimizer, loss::cross_entropy};
use mempool_examples::BitDigest;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::batches::{BatchBuffer, Split};
use crate::digits::Digits;
use crate::model::Cnn;

/// What a run depends on. Two runs with equal settings give equal results, pooled or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) epochs: usize,
    pub(crate) batch: usize,
    pub(crate) seed: u64,
    pub(crate) lr: f64,
}

/// What a run produced.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Loss of the last training step.
    pub(crate) train_loss: f32,
    /// Mean loss over the test images.
    pub(crate) test_loss: f32,
    /// Test images recognised.
    pub(crate) correct: usize,
    /// Test images in all.
    pub(crate) tested: usize,
    /// Over every weight after the last step.
    pub(crate) weights: BitDigest,
    /// Forward, loss, backward and optimizer, one entry a step.
    pub(crate) step_times: Vec<Duration>,
}

impl Outcome {
    /// Share of the test images recognised.
    pub(crate) fn accuracy(&self) -> f64 {
        self.correct as f64 / self.tested as f64
    }
}

/// Where the tensors of a step are allocated.
#[derive(Clone, Copy)]
pub(crate) enum Memory<'a> {
    /// The allocator the program would use without this crate.
    System,
    Pool(&'a MemPool),
}

impl Memory<'_> {
    /// Runs one step, whose tensors must all be gone when `body` returns.
    fn step<R>(self, body: impl FnOnce() -> R) -> R {
        match self {
            Self::System => without_pools(body),
            Self::Pool(pool) => {
                let result = pool.with(body);
                mark_step();
                result
            }
        }
    }
}

/// A network in training.
pub(crate) struct Run<'a> {
    digits: &'a Digits,
    settings: Settings,
    memory: Memory<'a>,
    split: Split,
    model: Cnn,
    optimizer: AdamW,
    buffer: BatchBuffer,
    /// The training images in the order of this epoch.
    order: Vec<usize>,
    rng: StdRng,
    train_loss: f32,
    step_times: Vec<Duration>,
}

impl<'a> Run<'a> {
    /// An untrained network. Weights and optimizer state live as long as the run, so they are
    /// made here, outside the pool.
    pub(crate) fn new(digits: &'a Digits, settings: Settings, memory: Memory<'a>) -> Result<Self> {
        let split = Split::new(digits.len(), settings.seed)?;
        let model = Cnn::new(settings.seed)?;
        let steps = settings.epochs * split.train.len().div_ceil(settings.batch);
        Ok(Self {
            digits,
            settings,
            memory,
            optimizer: AdamW::new_lr(model.vars(), settings.lr)?,
            model,
            buffer: BatchBuffer::with_capacity(settings.batch.min(digits.len())),
            order: split.train.clone(),
            split,
            // The split took the seed itself; a stream of its own keeps the shuffles unrelated.
            rng: StdRng::seed_from_u64(!settings.seed),
            train_loss: f32::NAN,
            step_times: Vec::with_capacity(steps),
        })
    }

    /// Steps from the first to the last of the run.
    pub(crate) fn steps(&self) -> usize {
        self.settings.epochs * self.steps_per_epoch()
    }

    fn steps_per_epoch(&self) -> usize {
        self.split.train.len().div_ceil(self.settings.batch)
    }

    /// Trains on the next batch, and returns its loss.
    pub(crate) fn step(&mut self) -> Result<f32> {
        let done = self.step_times.len();
        let (epoch, step) = (done / self.steps_per_epoch(), done % self.steps_per_epoch());
        if step == 0 {
            self.order.shuffle(&mut self.rng);
        }
        let from = step * self.settings.batch;
        let to = (from + self.settings.batch).min(self.order.len());
        let indices = &self.order[from..to];

        let (model, optimizer, buffer) = (&self.model, &mut self.optimizer, &mut self.buffer);
        let start = Instant::now();
        self.train_loss = self
            .memory
            .step(|| train_step(model, optimizer, buffer, self.digits, indices))
            .with_context(|| format!("epoch {}, step {}", epoch + 1, step + 1))?;
        self.step_times.push(start.elapsed());
        Ok(self.train_loss)
    }

    /// Tests the network as trained so far.
    pub(crate) fn finish(mut self) -> Result<Outcome> {
        let mut correct = 0;
        let mut loss_sum = 0.0;
        for indices in self.split.test.chunks(self.settings.batch) {
            let (right, loss) = self
                .memory
                .step(|| test_step(&self.model, &mut self.buffer, self.digits, indices))
                .context("testing")?;
            correct += right;
            loss_sum += loss * indices.len() as f32;
        }
        let mut weights = BitDigest::new();
        for (_, values) in self.model.weights()? {
            weights.update(&values);
        }
        Ok(Outcome {
            train_loss: self.train_loss,
            test_loss: loss_sum / self.split.test.len() as f32,
            correct,
            tested: self.split.test.len(),
            weights,
            step_times: self.step_times,
        })
    }
}

/// Only the loss leaves: every tensor of the step is dropped before its pool scope ends.
fn train_step(
    model: &Cnn,
    optimizer: &mut AdamW,
    buffer: &mut BatchBuffer,
    digits: &Digits,
    indices: &[usize],
) -> candle_core::Result<f32> {
    let batch = buffer.gather(digits, indices)?;
    let loss = cross_entropy(&model.forward(&batch.images)?, &batch.labels)?;
    optimizer.backward_step(&loss)?;
    loss.to_scalar()
}

/// Counts the images recognised, and gives the mean loss.
fn test_step(
    model: &Cnn,
    buffer: &mut BatchBuffer,
    digits: &Digits,
    indices: &[usize],
) -> candle_core::Result<(usize, f32)> {
    let batch = buffer.gather(digits, indices)?;
    let scores = model.forward(&batch.images)?;
    let loss = cross_entropy(&scores, &batch.labels)?.to_scalar()?;
    let hits = scores.argmax(D::Minus1)?.eq(&batch.labels)?;
    let hits = hits.to_vec1::<u8>()?;
    Ok((hits.into_iter().filter(|&hit| hit == 1).count(), loss))
}
