//! A BERT of the size of all-MiniLM-L6-v2 with random weights, as candle-transformers has it.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config};

const BATCH: usize = 4;
const TOKENS: usize = 96;

pub(crate) struct Bert {
    model: BertModel,
    ids: Tensor,
    types: Tensor,
}

impl Bert {
    pub(crate) fn new() -> Result<Self> {
        let device = Device::Cpu;
        let config =
            Config { hidden_size: 384, num_hidden_layers: 6, intermediate_size: 1536, ..Config::default() };
        let weights = VarMap::new();
        let builder = VarBuilder::from_varmap(&weights, DType::F32, &device);
        let ids = (0..(BATCH * TOKENS) as u32).map(|k| k * 7919 % config.vocab_size as u32);
        let ids = Tensor::from_iter(ids, &device)?.reshape((BATCH, TOKENS))?;
        Ok(Self { model: BertModel::load(builder, &config)?, types: ids.zeros_like()?, ids })
    }

    /// One forward pass; a number that depends on all of it.
    pub(crate) fn step(&mut self) -> Result<f32> {
        self.model.forward(&self.ids, &self.types, None)?.mean_all()?.to_scalar()
    }
}
