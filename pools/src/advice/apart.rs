//! Small blocks in a pool of their own.

use mempool_arena::trace::Event;
use mempool_arena::{Conf, Policy, ReplayDevice};
use rustc_hash::FxHashMap;

use super::AdviceError;
use super::stuck::Stuck;
use super::thresholds::MUCH_STUCK;

/// What becomes of PyTorch's policy when the small blocks that keep large segments have a pool of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Apart {
    /// Smaller requests go elsewhere.
    pub(super) min_bytes: usize,
    /// What both pools reserve at most.
    pub(super) reserved_bytes: usize,
}

impl Apart {
    pub(super) fn of(
        stuck: Option<&Stuck>,
        events: &[Event],
        device: &ReplayDevice,
    ) -> Result<Option<Self>, AdviceError> {
        let Some(stuck) = stuck.filter(|stuck| stuck.share() >= MUCH_STUCK) else { return Ok(None) };
        let min_bytes = (stuck.largest_survivor_bytes + 1).next_power_of_two();
        let is_small: FxHashMap<u64, bool> = FxHashMap::default();
        let mut parts = [(Vec::new(), is_small.clone()), (Vec::new(), is_small)];
        for &event in events {
            match event {
                Event::Allocate { id, size_bytes, .. } => {
                    let (part, ids) = &mut parts[usize::from(size_bytes < min_bytes)];
                    ids.insert(id, true);
                    part.push(event);
                }
                Event::Free { id } => {
                    let at = usize::from(parts[1].1.contains_key(&id));
                    let (part, ids) = &mut parts[at];
                    ids.remove(&id);
                    part.push(event);
                }
                Event::FreeCompleted { .. } | Event::StepEnd { .. } => {}
            }
        }
        let conf = Conf::of(Policy::Torch);
        let device = ReplayDevice { capacity_bytes: None, ..device.clone() };
        let mut reserved_bytes = 0;
        for (part, _) in parts {
            let mut replay = device.replay(&conf)?;
            part.into_iter().try_for_each(|event| replay.apply(event))?;
            reserved_bytes += replay.totals().reserved.peak;
        }
        Ok(Some(Self { min_bytes, reserved_bytes }))
    }
}
