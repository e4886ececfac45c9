//! The ways in which the service has its memory.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_mempool::{Buffer, CapturedStep, MemPool, PoolStats, StepPlan, StepPlanStats, without_pools};

use crate::model::Model;

/// How memory is had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stock,
    Pool,
    Plan,
    Buffers,
    Captured,
}

impl Kind {
    /// Those that there are on this device.
    pub(crate) fn of(device: &Device) -> Vec<Self> {
        let mut kinds = vec![Self::Stock, Self::Pool, Self::Plan, Self::Buffers];
        kinds.extend(device.is_cuda().then_some(Self::Captured));
        kinds
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock candle",
            Self::Pool => "pool",
            Self::Plan => "step plan",
            Self::Buffers => "plan + buffer",
            Self::Captured => "captured",
        }
    }
}

/// A device with a stream of its own, whose steps can be captured.
#[cfg(feature = "cuda")]
#[allow(unsafe_code)] // event tracking
pub(crate) fn untracked_device() -> Result<Device> {
    let device = Device::new_cuda_with_stream(0)?;
    // SAFETY: all tensors of this program are used on this one stream.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok(device)
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn untracked_device() -> Result<Device> {
    Ok(Device::Cpu)
}

/// What a way has come to since measuring began.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Blocks that the pool placed.
    pub(crate) searches: Option<u64>,
    /// Blocks that a plan placed.
    pub(crate) planned: Option<u64>,
    pub(crate) map_calls: Option<u64>,
    pub(crate) reserved_bytes: Option<usize>,
}

enum Way<'a> {
    Stock,
    Pool,
    Plan(StepPlan),
    Buffers(StepPlan, Buffer),
    Captured { ids: Tensor, step: CapturedStep<'a, Tensor> },
}

/// The service, with its memory had in one way.
pub(crate) struct Service<'a> {
    kind: Kind,
    way: Way<'a>,
    model: &'a Model,
    device: &'a Device,
    shape: (usize, usize),
    /// Token types: all zero.
    types: Tensor,
    pool: MemPool,
    before: Option<(PoolStats, StepPlanStats)>,
}

impl<'a> Service<'a> {
    pub(crate) fn new(
        kind: Kind,
        model: &'a Model,
        device: &'a Device,
        batch: usize,
        tokens: usize,
    ) -> Result<Self> {
        let shape = (batch, tokens);
        let pool = MemPool::builder(device).name(kind.name()).build()?;
        let types = Tensor::zeros(shape, DType::U32, device)?;
        let way = match kind {
            Kind::Stock => Way::Stock,
            Kind::Pool => Way::Pool,
            Kind::Plan => Way::Plan(pool.step()),
            Kind::Buffers => {
                let embeddings = pool.buffer((batch, Model::WIDTH), DType::F32)?;
                Way::Buffers(pool.step(), embeddings)
            }
            Kind::Captured => {
                let ids = Tensor::zeros(shape, DType::U32, device)?;
                let (input, types) = (ids.clone(), types.clone());
                let step = CapturedStep::capture(&pool, device, move || model.embed(&input, &types))?;
                Way::Captured { ids, step }
            }
        };
        Ok(Self { kind, way, model, device, shape, types, pool, before: None })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The embeddings of a batch, one sequence after the other.
    pub(crate) fn answer(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let (model, device, shape, types) = (self.model, self.device, self.shape, &self.types);
        let input = || Tensor::from_slice(ids, shape, device);
        let embed = || model.embed(&input()?, types);
        let values = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let values = match &mut self.way {
            Way::Stock => without_pools(|| values(&embed()?)),
            Way::Pool => self.pool.with(|| values(&embed()?)),
            Way::Plan(step) => step.run(|| values(&embed()?)),
            Way::Buffers(step, embeddings) => {
                // The result lies outside of the plan, in a place of its own.
                let result = step.run(|| embeddings.write(embed))?;
                values(&result)
            }
            Way::Captured { ids, step } => {
                step.write(ids, &self.pool.with(input)?)?;
                step.replay()?;
                values(step.output())
            }
        };
        Ok(values?)
    }

    /// What came before does not count.
    pub(crate) fn begin_measuring(&mut self) {
        self.before = Some((self.pool.stats(), self.plan_stats()));
    }

    fn plan_stats(&self) -> StepPlanStats {
        match &self.way {
            Way::Plan(step) | Way::Buffers(step, _) => step.stats(),
            Way::Stock | Way::Pool | Way::Captured { .. } => StepPlanStats::default(),
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        let (Some((pool, plan)), true) = (&self.before, self.kind != Kind::Stock) else {
            return Figures::default();
        };
        let now = self.pool.stats();
        Figures {
            searches: Some(now.blocks.total_allocated - pool.blocks.total_allocated),
            planned: Some(self.plan_stats().planned - plan.planned),
            map_calls: Some(now.map_calls - pool.map_calls),
            reserved_bytes: Some(now.reserved.current),
        }
    }
}
