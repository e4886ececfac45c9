//! Layers, attention, convolutions, losses, backward passes and optimizers: computed without
//! pools and inside one, twice, so that the second time runs on used memory. Every bit must agree.

use candle_core::{D, DType, Result, Tensor, Var};
use candle_mempool::{MemPool, Policy, without_pools};
use candle_nn::{
    AdamW, Conv2dConfig, Module, Optimizer, VarMap, batch_norm, conv2d, layer_norm, linear, loss, ops,
    rms_norm,
};
use candle_transformers::models::{bert, llama};

use crate::weights::{builder, ids, tensor};

/// The bits of some tensors.
fn bits(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    let bits = |tensor: &Tensor| {
        let values = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    tensors.iter().map(bits).collect()
}

/// Runs `f` without pools and in a pool of each policy, in each number format, and compares all
/// that it returns.
fn agrees(f: impl Fn(DType) -> Result<Vec<Tensor>>) {
    for &dtype in crate::DTYPES {
        agrees_in(dtype, &f);
    }
}

fn agrees_in(dtype: DType, f: impl Fn(DType) -> Result<Vec<Tensor>>) {
    let _alone = crate::alone();
    let expected = without_pools(|| bits(&f(dtype).unwrap()).unwrap());
    // Models are not made for 16 bits without scaling: what overflows has to overflow in pools too.
    if dtype == DType::F32 {
        assert!(expected.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
    }
    let possible = |policy: &Policy| *policy != Policy::Segments || crate::device().is_cuda();
    let policies = Policy::ALL.into_iter().filter(possible).map(|policy| format!("policy:{policy}"));
    let others = ["policy:pages,mode:moving", "policy:pages,no_split:True"].map(str::to_owned);
    for conf in policies.chain(others) {
        let pool = MemPool::builder(&crate::device()).conf(&conf).unwrap().build().unwrap();
        for round in 0..3 {
            let tensors = pool.with(|| f(dtype).unwrap());
            assert!(pool.stats().requested.current > 0, "the results lie in the pool");
            assert_eq!(bits(&tensors).unwrap(), expected, "{dtype:?}, {conf}, round {round}");
        }
        pool.validate().unwrap();
    }
    // As a step that is recorded, then planned, with all results of earlier runs alive.
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut step = pool.step();
    let mut kept = Vec::new();
    for round in 0..5 {
        kept.push(step.run(|| f(dtype).unwrap()));
        for tensors in &kept {
            assert_eq!(bits(tensors).unwrap(), expected, "{dtype:?}, planned, round {round}");
        }
        pool.validate().unwrap();
    }
    assert!(step.stats().installed > 0, "{:?}", step.stats());
}

#[test]
fn layers_agree() {
    agrees(|dtype| {
        let x = tensor(1, (8, 64, 96), 1.0)?.to_dtype(dtype)?;
        let vb = builder(dtype);
        let hidden = linear(96, 256, vb.pp("up"))?.forward(&x)?;
        let hidden = layer_norm(256, 1e-5, vb.pp("norm"))?.forward(&hidden.gelu_erf()?)?;
        let hidden = rms_norm(256, 1e-5, vb.pp("rms"))?.forward(&hidden.silu()?)?;
        let out = linear(256, 96, vb.pp("down"))?.forward(&hidden)?;
        Ok(vec![(&x + &out)?, out.sum(1)?, out.max(D::Minus1)?, out.transpose(1, 2)?.contiguous()?])
    });
}

#[test]
fn attention_agrees() {
    agrees(|dtype| {
        let q = tensor(2, (2, 8, 64, 32), 1.0)?.to_dtype(dtype)?;
        let k = tensor(3, (2, 8, 64, 32), 1.0)?.to_dtype(dtype)?;
        let v = tensor(4, (2, 8, 64, 32), 1.0)?.to_dtype(dtype)?;
        let scores = (q.matmul(&k.t()?)? / 32_f64.sqrt())?;
        let mask = Tensor::tril2(64, DType::U8, &crate::device())?.broadcast_as(scores.shape())?;
        let masked = mask.where_cond(&scores, &scores.affine(0.0, -1e4)?)?;
        let composed = ops::softmax(&masked, D::Minus1)?.matmul(&v)?;
        let fused = ops::softmax_last_dim(&masked)?.matmul(&v)?;
        Ok(vec![composed, fused, Tensor::cat(&[&k, &v], 2)?])
    });
}

#[test]
fn convolutions_agree() {
    agrees(|dtype| {
        let x = tensor(5, (4, 3, 32, 32), 1.0)?.to_dtype(dtype)?;
        let vb = builder(dtype);
        let config = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
        let hidden = conv2d(3, 16, 3, config, vb.pp("conv"))?.forward(&x)?;
        let hidden = batch_norm(16, 1e-5, vb.pp("bn"))?.forward_t_eval(&hidden)?;
        let pooled = hidden.relu()?.max_pool2d(2)?;
        let up = pooled.upsample_nearest2d(32, 32)?;
        Ok(vec![pooled.avg_pool2d(4)?, up])
    });
}

/// Batch normalisation in evaluation mode, as a method.
trait ForwardEval {
    fn forward_t_eval(&self, x: &Tensor) -> Result<Tensor>;
}

impl ForwardEval for candle_nn::BatchNorm {
    fn forward_t_eval(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ModuleT::forward_t(self, x, false)
    }
}

#[test]
fn losses_and_gradients_agree() {
    agrees(|dtype| {
        let weight = Var::from_tensor(&tensor(6, (10, 256), 0.3)?.to_dtype(dtype)?)?;
        let bias = Var::from_tensor(&tensor(7, 10, 0.3)?.to_dtype(dtype)?)?;
        let x = tensor(8, (128, 256), 1.0)?.to_dtype(dtype)?;
        let labels = Tensor::from_iter((0..128_u32).map(|k| k % 10), &crate::device())?;
        let logits = x.matmul(&weight.t()?)?.broadcast_add(&bias)?;
        let entropy = loss::cross_entropy(&logits, &labels)?;
        let squared = loss::mse(&logits, &logits.zeros_like()?)?;
        let gradients = (&entropy + &squared)?.backward()?;
        let gradient = |var: &Var| gradients.get(var).cloned().expect("a gradient");
        Ok(vec![entropy, squared, gradient(&weight), gradient(&bias)])
    });
}

#[test]
fn training_with_adamw_agrees() {
    agrees(|dtype| {
        let variables = VarMap::new();
        let vb = candle_nn::VarBuilder::from_varmap(&variables, dtype, &crate::device());
        let (first, second) = (linear(64, 512, vb.pp("a"))?, linear(512, 10, vb.pp("b"))?);
        let mut named: Vec<(String, Var)> =
            variables.data().lock().unwrap().iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        for (at, (_, var)) in named.iter().enumerate() {
            var.set(&tensor(20 + at as u64, var.shape(), 0.2)?.to_dtype(dtype)?)?;
        }
        let vars: Vec<Var> = named.into_iter().map(|(_, var)| var).collect();
        let mut optimizer = AdamW::new_lr(vars.clone(), 1e-3)?;
        let labels = Tensor::from_iter((0..96_u32).map(|k| k % 10), &crate::device())?;
        let mut losses = Vec::new();
        for step in 0..6 {
            let x = tensor(40 + step, (96, 64), 1.0)?.to_dtype(dtype)?;
            let logits = second.forward(&first.forward(&x)?.relu()?)?;
            let loss = loss::cross_entropy(&logits, &labels)?;
            optimizer.backward_step(&loss)?;
            losses.push(loss.detach());
        }
        losses.extend(vars.iter().map(|var| var.as_tensor().copy()).collect::<Result<Vec<_>>>()?);
        Ok(losses)
    });
}

#[test]
fn an_unmodified_bert_agrees() {
    agrees(|dtype| {
        let config = bert::Config {
            vocab_size: 300,
            hidden_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 256,
            ..bert::Config::default()
        };
        let model = bert::BertModel::load(builder(dtype), &config)?;
        let ids = ids((4, 48), config.vocab_size)?;
        Ok(vec![model.forward(&ids, &ids.zeros_like()?, None)?])
    });
}

#[test]
fn an_unmodified_llama_agrees_while_its_cache_grows() {
    agrees(|dtype| {
        let config = llama::Config {
            hidden_size: 64,
            intermediate_size: 176,
            vocab_size: 200,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            max_position_embeddings: 128,
            ..llama::Config::config_7b_v2(false)
        };
        let model = llama::Llama::load(builder(dtype), &config)?;
        let mut cache = llama::Cache::new(true, dtype, &config, &crate::device())?;
        let prompt = ids((1, 32), config.vocab_size)?;
        let mut logits = vec![model.forward(&prompt, 0, &mut cache)?];
        for position in 32..40 {
            logits.push(model.forward(&ids((1, 1), config.vocab_size)?, position, &mut cache)?);
        }
        Ok(logits)
    });
}

#[test]
fn half_precision_agrees() {
    agrees(|_| {
        let mut results = Vec::new();
        for dtype in [DType::F16, DType::BF16] {
            let a = tensor(9, (64, 128), 1.0)?.to_dtype(dtype)?;
            let b = tensor(10, (128, 256), 1.0)?.to_dtype(dtype)?;
            results.push(a.matmul(&b)?);
            results.push((&a * 0.5)?.relu()?);
        }
        Ok(results)
    });
}

#[test]
fn quantized_products_agree() {
    use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
    agrees(|_| {
        let weight = QTensor::quantize(&tensor(11, (256, 512), 1.0)?, GgmlDType::Q4K)?;
        let x = tensor(12, (16, 512), 1.0)?;
        Ok(vec![QMatMul::from_qtensor(weight)?.forward(&x)?])
    });
}
