//! `transformer`: the forward pass of four transformer blocks, as candle-transformers has them.
//!
//! Its `Llama`, unmodified: batch 4, 256 tokens, width 512, 8 heads, a gated MLP of 1,376 (8/3 of
//! the width, as in Llama), no key-value cache. The head works on the last token of each row only,
//! so nearly all of a step is the four blocks.

use super::{Workload, seeded, weights};
use crate::checksum;
use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::llama::{Cache, Config, Llama};

const BATCH: usize = 4;
const TOKENS: usize = 256;
const VOCABULARY: usize = 4000;
const INPUTS: usize = 4;

pub(super) struct Transformer {
    model: Llama,
    cache: Cache,
    inputs: Vec<Tensor>,
}

impl Transformer {
    pub(super) fn new() -> Result<Self> {
        let config = Config {
            hidden_size: 512,
            intermediate_size: 1376,
            vocab_size: VOCABULARY,
            num_hidden_layers: 4,
            num_attention_heads: 8,
            num_key_value_heads: 8,
            max_position_embeddings: TOKENS,
            ..Config::config_7b_v2(false)
        };
        let inputs =
            (0..INPUTS as u64).map(|seed| seeded::integers(seed, (BATCH, TOKENS), VOCABULARY as u32));
        Ok(Self {
            model: Llama::load(weights::frozen(), &config)?,
            cache: Cache::new(false, DType::F32, &config, &Device::Cpu)?,
            inputs: inputs.collect::<Result<_>>()?,
        })
    }
}

impl Workload for Transformer {
    fn step(&mut self, step: usize) -> Result<u64> {
        checksum::of(&self.model.forward(&self.inputs[step % INPUTS], 0, &mut self.cache)?)
    }
}
