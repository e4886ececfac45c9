//! `kv_cache`: decoding with a key and value cache that grows by `Tensor::cat`.
//!
//! Four layers of 8 heads by 64. A step appends one token to the keys and to the values of each
//! layer and lets one query attend to all of them, so each step asks for eight blocks a little
//! larger than those of the step before: 1 MiB at 512 tokens, 2 MiB at 1024. There it starts again
//! from the 512 tokens of the prompt.

use super::{Workload, seeded};
use crate::checksum;
use anyhow::Result;
use candle_core::{D, IndexOp, Tensor};
use candle_nn::ops::softmax;

const LAYERS: usize = 4;
const HEADS: usize = 8;
const HEAD_WIDTH: usize = 64;
const PROMPT: usize = 512;
const FULL: usize = 1024;
const TOKENS: usize = 64;

/// Steps from the prompt to the full cache.
pub(super) const PERIOD: usize = FULL - PROMPT;

pub(super) struct KvCache {
    prompt: Vec<(Tensor, Tensor)>,
    cache: Vec<(Tensor, Tensor)>,
    /// Made-up projections of a token: queries, keys and values, by [`TOKENS`].
    tokens: [Tensor; 3],
}

impl KvCache {
    pub(super) fn new() -> Result<Self> {
        let prompt = (0..LAYERS as u64).map(|layer| {
            let shape = (1, HEADS, PROMPT, HEAD_WIDTH);
            Ok((
                seeded::uniform(2 * layer, shape, -1.0, 1.0)?,
                seeded::uniform(2 * layer + 1, shape, -1.0, 1.0)?,
            ))
        });
        let prompt = prompt.collect::<Result<Vec<_>>>()?;
        let token = |seed| seeded::uniform(seed, (TOKENS, 1, HEADS, 1, HEAD_WIDTH), -1.0, 1.0);
        Ok(Self { cache: prompt.clone(), prompt, tokens: [token(100)?, token(101)?, token(102)?] })
    }
}

impl Workload for KvCache {
    fn step(&mut self, step: usize) -> Result<u64> {
        if self.cache[0].0.dim(2)? == FULL {
            self.cache.clone_from(&self.prompt);
        }
        let [queries, keys, values] = &self.tokens;
        let mut hidden = queries.i(step % TOKENS)?;
        for (layer, (key, value)) in self.cache.iter_mut().enumerate() {
            let token = (step + 17 * layer) % TOKENS;
            *key = Tensor::cat(&[&*key, &keys.i(token)?], 2)?;
            *value = Tensor::cat(&[&*value, &values.i(token)?], 2)?;
            let scores = (hidden.matmul(&key.t()?)? * (1.0 / (HEAD_WIDTH as f64).sqrt()))?;
            hidden = (&hidden + softmax(&scores, D::Minus1)?.matmul(value)?)?;
        }
        checksum::of(&hidden)
    }
}
