//! The program with candle's tensors in pools of a device.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_mempool::{MemPool, Policy};

use crate::limits;
use crate::steps::{Kind, Memory, State};

/// The pool that the program is in, and one more where survivors have theirs.
pub(crate) struct Tensors {
    device: Device,
    pools: Vec<MemPool>,
}

impl Tensors {
    pub(crate) fn new(device: &Device, policy: Policy, isolated: bool) -> Result<Self> {
        let (passing, survivors) = limits(isolated);
        let mut pools = Vec::new();
        for (name, limit) in [("program", Some(passing)), ("survivors", survivors)] {
            if let Some(limit) = limit {
                pools.push(MemPool::builder(device).name(name).policy(policy).limit(limit).build()?);
            }
        }
        Ok(Self { device: device.clone(), pools })
    }
}

impl Memory for Tensors {
    type Block = Tensor;

    /// Beyond its limit a pool of a GPU fails, and one of the host leaves the request to the system. Both
    /// count it, and here both are the end.
    fn allocate(&mut self, kind: Kind, bytes: usize) -> Result<Option<Tensor>> {
        let pool = if kind == Kind::Survivor { self.pools.last() } else { self.pools.first() };
        let pool = pool.expect("the program's pool is always there");
        let before = pool.stats().overflow_count;
        let made = pool.with(|| Tensor::zeros(bytes, DType::U8, &self.device));
        if pool.stats().overflow_count > before {
            return Ok(None);
        }
        Ok(Some(made?))
    }

    fn free(&mut self, tensor: Tensor) -> Result<()> {
        drop(tensor);
        Ok(())
    }

    fn state(&self) -> State {
        let mut state = State::default();
        for pool in &self.pools {
            let stats = pool.stats();
            state.reserved_bytes += stats.reserved.current;
            state.allocated_bytes += stats.allocated.current;
            state.largest_free_bytes = state.largest_free_bytes.max(stats.largest_free_bytes);
        }
        state
    }
}
