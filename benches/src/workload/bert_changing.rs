//! `bert_changing`: sentence embedding with BERT at a batch and length that change every step.
//!
//! candle-transformers' `BertModel` in the shape of all-MiniLM-L6-v2 (6 layers, width 384, 12
//! heads) with made-up weights. Batches of 1 to 8 and lengths of 16 to 128 come from a seeded
//! list, so that every process sees the same shapes in the same order and hardly any twice.

use super::{Workload, seeded, weights};
use crate::checksum;
use anyhow::Result;
use candle_core::Tensor;
use candle_transformers::models::bert::{BertModel, Config};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MAX_BATCH: usize = 8;
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=128;
const SHAPES: usize = 512;

pub(super) struct BertChanging {
    model: BertModel,
    ids: Tensor,
    types: Tensor,
    shapes: Vec<(usize, usize)>,
}

impl BertChanging {
    pub(super) fn new() -> Result<Self> {
        let config =
            Config { hidden_size: 384, num_hidden_layers: 6, intermediate_size: 1536, ..Config::default() };
        let ids = seeded::integers(7, (MAX_BATCH, *LENGTHS.end()), config.vocab_size as u32)?;
        Ok(Self {
            model: BertModel::load(weights::frozen(), &config)?,
            types: ids.zeros_like()?,
            ids,
            shapes: shapes(),
        })
    }
}

impl Workload for BertChanging {
    fn step(&mut self, step: usize) -> Result<u64> {
        let (batch, length) = self.shapes[step % self.shapes.len()];
        let cut = |whole: &Tensor| whole.narrow(0, 0, batch)?.narrow(1, 0, length)?.contiguous();
        let hidden = self.model.forward(&cut(&self.ids)?, &cut(&self.types)?, None)?;
        checksum::of(&hidden.mean(1)?)
    }
}

fn shapes() -> Vec<(usize, usize)> {
    let mut rng = StdRng::seed_from_u64(11);
    (0..SHAPES).map(|_| (rng.random_range(1..=MAX_BATCH), rng.random_range(LENGTHS))).collect()
}

#[cfg(test)]
mod tests {
    use super::{LENGTHS, MAX_BATCH, shapes};

    #[test]
    fn shapes_are_in_range_and_change() {
        let list = shapes();
        assert_eq!(list, shapes());
        assert!(list.iter().all(|(b, l)| (1..=MAX_BATCH).contains(b) && LENGTHS.contains(l)));
        let repeats = list.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(repeats < 5, "{repeats} steps repeat the shape before them");
    }
}
