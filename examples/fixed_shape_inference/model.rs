//! A sentence encoder with made-up weights, and requests for it.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const VOCABULARY: usize = 30_522;

/// BERT in the shape of all-MiniLM-L6-v2, and the mean over tokens.
pub(crate) struct Model {
    bert: BertModel,
}

impl Model {
    pub(crate) const WIDTH: usize = 384;

    pub(crate) fn new(device: &Device) -> Result<Self> {
        let config = Config {
            vocab_size: VOCABULARY,
            hidden_size: Self::WIDTH,
            num_hidden_layers: 6,
            intermediate_size: 4 * Self::WIDTH,
            ..Config::default()
        };
        let weights = VarMap::new();
        let builder = VarBuilder::from_varmap(&weights, DType::F32, device);
        // The first call makes the weights, the second reads them: as constants, without a graph behind them.
        BertModel::load(builder, &config)?;
        let variables = weights.data().lock().expect("nobody panicked");
        let constants =
            variables.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
        let builder = VarBuilder::from_tensors(constants, DType::F32, device);
        Ok(Self { bert: BertModel::load(builder, &config)? })
    }

    /// Embeddings `(batch, width)` of token ids `(batch, tokens)`.
    pub(crate) fn embed(&self, ids: &Tensor, types: &Tensor) -> Result<Tensor> {
        self.bert.forward(ids, types, None)?.mean(1)
    }
}

/// Token ids of as many requests as one likes, the same in every run.
pub(crate) struct Requests {
    batch: usize,
    tokens: usize,
}

impl Requests {
    pub(crate) fn new(batch: usize, tokens: usize) -> Self {
        Self { batch, tokens }
    }

    pub(crate) fn get(&self, number: usize) -> Vec<u32> {
        let mut rng = StdRng::seed_from_u64(number as u64);
        (0..self.batch * self.tokens).map(|_| rng.random_range(0..VOCABULARY as u32)).collect()
    }
}
