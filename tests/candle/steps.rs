//! Planned steps of models: no search for memory, no mapping, and a slab that is no longer than needed.

use candle_core::{D, DType, Result, Tensor, Var};
use candle_mempool::{MemPool, StepPlan, StepPlanStats};
use candle_nn::{AdamW, Linear, Module, Optimizer, loss, ops};
use candle_transformers::models::bert;

use crate::weights::{builder, ids, tensor};

/// Runs the step until it is planned and as often again, and returns what the later runs came to.
fn settled(pool: &MemPool, step: &mut StepPlan, mut f: impl FnMut() -> Result<()>) -> StepPlanStats {
    for _ in 0..8 {
        step.run(&mut f).unwrap();
    }
    let (before, pool_before) = (step.stats(), pool.stats());
    for _ in 0..8 {
        step.run(&mut f).unwrap();
    }
    let (after, pool_after) = (step.stats(), pool.stats());
    assert_eq!(pool_after.map_calls, pool_before.map_calls, "nothing is mapped");
    // Whatever the pool itself would place is counted there.
    let placed = pool_after.blocks.total_allocated - pool_before.blocks.total_allocated;
    assert_eq!(placed, 0, "nothing is searched: {after:?}");
    assert_eq!(after.planned_runs - before.planned_runs, 8, "{after:?}");
    assert!(after.planned > before.planned);
    let over = after.slab_bytes as f64 / after.max_live_bytes as f64;
    assert!(over <= 1.01, "the slab is {over} of what is alive at once");
    pool.validate().unwrap();
    after
}

#[test]
fn a_planned_bert_searches_and_maps_nothing() {
    let _alone = crate::alone();
    let config = bert::Config {
        hidden_size: 128,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        intermediate_size: 512,
        vocab_size: 1000,
        ..bert::Config::default()
    };
    let model = bert::BertModel::load(builder(DType::F32), &config).unwrap();
    let ids = ids((4, 48), 1000).unwrap();
    let types = ids.zeros_like().unwrap();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut step = pool.step();
    let mut last = None;
    settled(&pool, &mut step, || {
        // The result is held until the next one is there.
        last = Some(model.forward(&ids, &types, None)?);
        Ok(())
    });
    drop(last);
}

/// Two layers, trained on one batch.
struct Mlp {
    layers: [Linear; 2],
    optimizer: AdamW,
    x: Tensor,
    targets: Tensor,
}

impl Mlp {
    fn new() -> Result<Self> {
        let var = |seed, shape: (usize, usize)| Var::from_tensor(&tensor(seed, shape, 0.1)?);
        let (up, down) = (var(1, (256, 128))?, var(2, (32, 256))?);
        let optimizer = AdamW::new_lr(vec![up.clone(), down.clone()], 1e-3)?;
        Ok(Self {
            layers: [Linear::new(up.into_inner(), None), Linear::new(down.into_inner(), None)],
            optimizer,
            x: tensor(3, (96, 128), 1.0)?,
            targets: ids((96, 1), 32)?.squeeze(1)?,
        })
    }

    fn step(&mut self) -> Result<()> {
        let logits = self.layers[1].forward(&self.layers[0].forward(&self.x)?.gelu()?)?;
        let loss = loss::nll(&ops::log_softmax(&logits, D::Minus1)?, &self.targets)?;
        self.optimizer.backward_step(&loss)
    }
}

#[test]
fn a_planned_training_step_searches_and_maps_nothing() {
    let _alone = crate::alone();
    let mut mlp = Mlp::new().unwrap();
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut step = pool.step();
    let stats = settled(&pool, &mut step, || mlp.step());
    assert!(stats.planned > 100, "{stats:?}");
}

#[test]
fn shapes_that_alternate_have_a_plan_each() {
    let _alone = crate::alone();
    let weight = tensor(1, (256, 256), 0.1).unwrap();
    let inputs = [tensor(2, (64, 256), 1.0).unwrap(), tensor(3, (96, 256), 1.0).unwrap()];
    let pool = MemPool::new(&crate::device()).unwrap();
    let mut step = pool.step();
    let mut forward = |x: &Tensor| step.run(|| x.matmul(&weight)?.gelu()?.matmul(&weight)?.sum_all());
    for _ in 0..8 {
        for x in &inputs {
            forward(x).unwrap();
        }
    }
    let stats = step.stats();
    assert_eq!(stats.plans, 2, "{stats:?}");
    assert!(stats.planned_runs >= 8, "{stats:?}");
}
