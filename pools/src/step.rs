//! Steps that repeat themselves, planned.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use mempool_arena::{AddressRange, PlanJob, SolvedPlan, StepId, StepOptions, StepPlanStats};

use crate::pool::{MemPool, Place};
use crate::scope::{self, Target};
use crate::thread_state::inside;

/// Plans that are kept unless another number is set.
const USUAL_PLANS: u32 = 4;
/// Places of the host's plans are multiples of a cache line.
pub(crate) const HOST_GRANULE_BYTES: usize = 64;
/// Places of a device's plans are multiples of this, which is what its allocations are aligned to.
pub(crate) const DEVICE_GRANULE_BYTES: usize = 512;

/// A step as threads and pools know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepNumber {
    id: NonZeroU64,
    max_plans: u32,
}

impl StepNumber {
    fn take() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { id: id.expect("nobody makes 2^64 steps"), max_plans: USUAL_PLANS }
    }

    #[inline]
    pub(crate) fn id(self) -> StepId {
        StepId(self.id.get())
    }

    pub(crate) fn options(self, granule_bytes: usize) -> StepOptions {
        StepOptions { granule_bytes, max_plans: self.max_plans as usize }
    }
}

/// A step of a program, which is served by a plan once it repeats itself.
///
/// The first runs record what is allocated from the pool. When two runs agree, each allocation that ends within
/// the step gets its place in one block, the slab, and later runs find their places by position: no search, no
/// system call, and the same addresses every time. What differs from the plan is served by the pool, and
/// counted. See [`MemPool::step`].
///
/// ```
/// # use mempool_pools::{MemPool, PoolAllocator};
/// # #[global_allocator]
/// # static ALLOC: PoolAllocator = PoolAllocator::new();
/// # fn main() -> Result<(), mempool_pools::PoolError> {
/// let pool = MemPool::new()?;
/// let mut step = pool.step();
/// for _ in 0..5 {
///     let sum: f32 = step.run(|| {
///         let one = vec![1.0_f32; 1 << 20];
///         let two: Vec<f32> = one.iter().map(|x| x * 2.0).collect();
///         two.iter().sum()
///     });
///     assert!(sum > 2e6);
/// }
/// let stats = step.stats();
/// assert_eq!((stats.recorded, stats.planned, stats.planned_runs), (4, 6, 3));
/// assert_eq!(stats.slab_bytes, 8 << 20);
/// # Ok(())
/// # }
/// ```
///
/// * **What is planned** is what the thread that calls [`run`](Self::run) allocates from the pool. Work on other
///   threads and in scopes inside goes where it would without a plan.
/// * **Memory is never handed out twice.** What is allocated in a step may be kept for as long as one likes: its
///   place is not used again before it is dropped. What outlives the step in both runs is placed outside of the
///   slab, in a block that this allocation gets again once it is free.
/// * **A step may alternate** between some shapes: [`max_plans`](Self::max_plans) plans are kept, in one slab.
/// * **On a device** each stream that the step allocates in has a plan of its own. A place that was freed on
///   another stream is not used again before that stream's work is done.
/// * A step that is dropped gives its memory back, the slab once nothing in it is alive. `trim` on the pool gives
///   back what no run is using; then the step is planned anew.
#[derive(Debug)]
pub struct StepPlan {
    pool: MemPool,
    step: StepNumber,
}

impl StepPlan {
    pub(crate) fn new(pool: MemPool) -> Self {
        let plan = Self { pool, step: StepNumber::take() };
        plan.add();
        plan
    }

    /// Keeps so many plans, at least one; 4 by default. To be called before the first run.
    #[must_use]
    pub fn max_plans(mut self, count: u32) -> Self {
        self.remove();
        self.step.max_plans = count.max(1);
        self.add();
        self
    }

    /// The pool that serves what is not planned, and holds the slab.
    #[must_use]
    pub fn pool(&self) -> &MemPool {
        &self.pool
    }

    /// Runs the step: `f` with this thread's allocations going to the pool, where they are planned to go. Returns
    /// what `f` returns. The run ends however `f` ends.
    pub fn run<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.begin();
        let _run = Run { plan: self };
        let _scope = scope::enter(Target::Step(self.pool.clone(), self.step));
        f()
    }

    /// What its runs came to, on all streams together.
    #[must_use]
    pub fn stats(&self) -> StepPlanStats {
        let id = self.step.id();
        match self.pool.place() {
            Place::Host(slot) => {
                slot.with_arena(self.pool.id(), |arena| arena.step_stats(id)).flatten().unwrap_or_default()
            }
            Place::Device(slot) => inside(|| {
                let mut sum = StepPlanStats::default();
                slot.for_each_arena(|core| {
                    if let Some(stats) = core.arena.step_stats(id) {
                        sum.add(&stats);
                    }
                });
                sum
            }),
        }
    }

    fn add(&self) {
        if let Place::Host(slot) = self.pool.place() {
            let options = self.step.options(HOST_GRANULE_BYTES);
            slot.with_arena(self.pool.id(), |arena| arena.add_step(self.step.id(), options));
        }
    }

    fn remove(&self) {
        let id = self.step.id();
        match self.pool.place() {
            Place::Host(slot) => {
                slot.with_arena(self.pool.id(), |arena| arena.remove_step(id));
            }
            Place::Device(slot) => inside(|| slot.for_each_arena(|core| core.arena.remove_step(id))),
        }
    }

    fn begin(&self) {
        let id = self.step.id();
        match self.pool.place() {
            Place::Host(slot) => {
                slot.with_arena(self.pool.id(), |arena| arena.begin_step(id));
            }
            Place::Device(slot) => inside(|| slot.for_each_arena(|core| core.arena.begin_step(id))),
        }
    }

    /// Ends a run, and makes plans where it agreed with an earlier one. Nothing is locked while they are made.
    fn end(&self, is_whole: bool) {
        let id = self.step.id();
        match self.pool.place() {
            Place::Host(slot) => {
                let job = slot.with_arena(self.pool.id(), |arena| arena.end_step(id)).flatten();
                if let Some(solved) = job.filter(|_| is_whole).and_then(solve) {
                    slot.with_arena(self.pool.id(), |arena| {
                        let slab = arena.wanted_slab(&solved).map(|request| {
                            arena
                                .allocate(request)
                                .map(|block| AddressRange::new(block.addr, request.size_bytes))
                        });
                        // Without memory for it the step goes on as it is.
                        if let Ok(slab) = slab.transpose() {
                            arena.install_plan(solved, slab);
                        }
                    });
                }
            }
            Place::Device(slot) => inside(|| slot.end_step(id, is_whole)),
        }
    }
}

/// Finds the places of a plan. The caller holds no lock.
pub(crate) fn solve(job: PlanJob) -> Option<SolvedPlan> {
    inside(|| job.solve())
}

impl Drop for StepPlan {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A run in progress.
struct Run<'a> {
    plan: &'a StepPlan,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // A run that unwinds is nothing to plan for.
        self.plan.end(!std::thread::panicking());
    }
}
