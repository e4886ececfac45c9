//! The sentence encoder: tokenizer, BERT weights, and the pooling that turns token states into
//! one unit vector for each sentence.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use tokenizers::{Tokenizer, TruncationParams};

use crate::pack::Packed;

/// The model was trained on sequences of up to this many tokens; more make its vectors worse.
const TRAINED_TOKENS: usize = 256;
const FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

/// A loaded model.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    model: BertModel,
    width: usize,
    pad_id: u32,
}

impl Encoder {
    /// Loads the three model files in `dir`.
    pub(crate) fn load(dir: &Path) -> Result<Self> {
        if let Some(missing) = FILES.iter().find(|file| !dir.join(file).is_file()) {
            bail!(
                "no {missing} in {dir}; to download the model run: examples/embed/fetch-model.sh {dir}",
                dir = dir.display()
            );
        }
        let read = |file: &str| {
            let path = dir.join(file);
            std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let config: Config = serde_json::from_slice(&read("config.json")?)
            .context("config.json does not describe a BERT model")?;
        let mut tokenizer = Tokenizer::from_bytes(read("tokenizer.json")?)
            .map_err(|error| anyhow!("tokenizer.json: {error}"))?;
        let truncation = TruncationParams {
            max_length: config.max_position_embeddings.min(TRAINED_TOKENS),
            ..Default::default()
        };
        // tokenizer.json pads everything to 128; batches are padded to their longest instead.
        tokenizer
            .with_padding(None)
            .with_truncation(Some(truncation))
            .map_err(|error| anyhow!("setting the longest sequence: {error}"))?;
        // Read, not mapped: mapping is unsafe, since the file may change under the map.
        let weights = read("model.safetensors")?;
        let vb = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)
            .context("model.safetensors")?;
        let model = BertModel::load(vb, &config).context("model.safetensors")?;
        Ok(Self {
            tokenizer,
            model,
            width: config.hidden_size,
            pad_id: u32::try_from(config.pad_token_id).context("pad_token_id in config.json")?,
        })
    }

    /// Values in an embedding.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The id that fills a row after its last token.
    pub(crate) fn pad_id(&self) -> u32 {
        self.pad_id
    }

    /// The token ids of `text`, and whether it was too long and lost its end.
    pub(crate) fn tokenize(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        let encoding = self.tokenizer.encode(text, true).map_err(|error| anyhow!("tokenizing: {error}"))?;
        let truncated = !encoding.get_overflowing().is_empty();
        Ok((encoding.get_ids().to_vec(), truncated))
    }

    /// One unit vector of [`Self::width`] values for each row of `batch`, appended to `out`.
    pub(crate) fn embed(&self, batch: &Packed<'_>, out: &mut Vec<f32>) -> candle_core::Result<()> {
        let shape = (batch.shape.rows, batch.shape.longest);
        let ids = Tensor::from_slice(batch.ids, shape, &Device::Cpu)?;
        let mask = Tensor::from_slice(batch.mask, shape, &Device::Cpu)?;
        // All tokens belong to the first of the two texts a BERT input can hold.
        let token_types = ids.zeros_like()?;
        let states = self.model.forward(&ids, &token_types, Some(&mask))?;

        let mask = mask.to_dtype(DType::F32)?.unsqueeze(2)?;
        let mean = states.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?;
        let norm = mean.sqr()?.sum_keepdim(1)?.sqrt()?;
        let unit = mean.broadcast_div(&norm)?;
        out.extend_from_slice(&unit.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }
}
