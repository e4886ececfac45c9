//! Steps of a model that repeat themselves, planned.

use mempool_pools::StepPlanStats;

use crate::pool::MemPool;

/// A step of a program, a forward pass or a training step, which is served by a plan once it repeats itself:
/// no search for memory, no system or driver call, and the same addresses every time.
///
/// The rules of [`mempool_pools::StepPlan`] apply. On CPU requests below the allocator's threshold are not
/// planned; on CUDA all are.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use candle_mempool::{MemPool, PoolAllocator};
/// # #[global_allocator]
/// # static ALLOC: PoolAllocator = PoolAllocator::new();
/// # fn main() -> candle_core::Result<()> {
/// # let device = Device::Cpu;
/// # let x = Tensor::rand(0_f32, 1., (64, 512), &device)?;
/// # let weight = Tensor::rand(0_f32, 1., (512, 512), &device)?;
/// let pool = MemPool::new(&device)?;
/// let mut step = pool.step();
/// for _ in 0..10 {
///     let y = step.run(|| x.matmul(&weight)?.relu()?.matmul(&weight)?.sum_all())?;
///     assert!(y.to_scalar::<f32>()? > 0.0);
/// }
/// let stats = step.stats();
/// assert_eq!(stats.planned_runs, 8); // the first two were recorded
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StepPlan {
    plan: mempool_pools::StepPlan,
}

impl StepPlan {
    /// Keeps so many plans, for a step that alternates between some shapes; 4 by default, at least one. To be called
    /// before the first run.
    #[must_use]
    pub fn max_plans(self, count: u32) -> Self {
        Self { plan: self.plan.max_plans(count) }
    }

    /// Runs the step and returns what `f` returns, which may hold tensors of it for as long as one likes.
    pub fn run<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.plan.run(f)
    }

    /// What its runs came to.
    #[must_use]
    pub fn stats(&self) -> StepPlanStats {
        self.plan.stats()
    }
}

impl MemPool {
    /// A step that is planned once it repeats itself. See [`StepPlan`].
    #[must_use]
    pub fn step(&self) -> StepPlan {
        StepPlan { plan: self.pool.step() }
    }
}
