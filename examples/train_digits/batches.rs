//! Which images a step sees: the seeded split into train and test, the seeded order of each
//! epoch, and the gathering of a batch into tensors.

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::digits::{Digits, PIXELS, SIDE};

/// Indices into [`Digits`], every image in exactly one of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) train: Vec<usize>,
    pub(crate) test: Vec<usize>,
}

impl Split {
    /// Shuffles `0..images` and keeps the first four fifths for training.
    pub(crate) fn new(images: usize, seed: u64) -> Result<Self> {
        let mut train: Vec<usize> = (0..images).collect();
        train.shuffle(&mut StdRng::seed_from_u64(seed));
        let test = train.split_off(images * 4 / 5);
        ensure!(
            !train.is_empty() && !test.is_empty(),
            "{images} images are too few to split into train and test"
        );
        Ok(Self { train, test })
    }
}

/// Images and labels of one step, gathered into buffers that are reused from step to step.
#[derive(Debug, Default)]
pub(crate) struct BatchBuffer {
    pixels: Vec<f32>,
    labels: Vec<u32>,
}

/// The tensors of one step.
pub(crate) struct Batch {
    /// `(batch, 1, 8, 8)`.
    pub(crate) images: Tensor,
    /// `(batch,)`.
    pub(crate) labels: Tensor,
}

impl BatchBuffer {
    /// Room for `batch` images. Filling it must not grow it: growth inside a pool scope would
    /// leave a buffer that outlives the step in the pool.
    pub(crate) fn with_capacity(batch: usize) -> Self {
        Self { pixels: Vec::with_capacity(batch * PIXELS), labels: Vec::with_capacity(batch) }
    }

    /// Gathers the images at `indices`.
    pub(crate) fn gather(&mut self, digits: &Digits, indices: &[usize]) -> candle_core::Result<Batch> {
        self.pixels.clear();
        self.labels.clear();
        for &index in indices {
            self.pixels.extend_from_slice(digits.image(index));
            self.labels.push(digits.labels[index]);
        }
        let shape = (indices.len(), 1, SIDE, SIDE);
        Ok(Batch {
            images: Tensor::from_slice(&self.pixels, shape, &Device::Cpu)?,
            labels: Tensor::from_slice(&self.labels, indices.len(), &Device::Cpu)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_covers_everything_once() {
        let split = Split::new(1797, 1).unwrap();
        assert_eq!((split.train.len(), split.test.len()), (1437, 360));
        let mut all = [split.train, split.test].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1797).collect::<Vec<_>>());
    }

    #[test]
    fn a_split_follows_its_seed() {
        assert_eq!(Split::new(50, 7).unwrap(), Split::new(50, 7).unwrap());
        assert_ne!(Split::new(50, 7).unwrap(), Split::new(50, 8).unwrap());
        assert!(Split::new(1, 7).is_err());
    }

    #[test]
    fn a_batch_holds_the_images_asked_for() {
        let digits = Digits { pixels: (0..3 * PIXELS).map(|i| i as f32).collect(), labels: vec![5, 6, 7] };
        let batch = BatchBuffer::default().gather(&digits, &[2, 0]).unwrap();
        assert_eq!(batch.images.dims(), [2, 1, SIDE, SIDE]);
        assert_eq!(batch.labels.to_vec1::<u32>().unwrap(), [7, 5]);
        let pixels: Vec<f32> = batch.images.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(&pixels[..PIXELS], digits.image(2));
        assert_eq!(&pixels[PIXELS..], digits.image(0));
    }
}
