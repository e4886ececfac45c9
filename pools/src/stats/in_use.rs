//! Blocks that are live, or freed and still used by queued work.

use mempool_arena::{SizeClass, Stat, Stats};
use serde::{Deserialize, Serialize};

/// Blocks that somebody has or that queued work still uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Their bytes, rounding included.
    pub bytes: Stat,
    /// Their number.
    pub blocks: Stat,
}

impl InUse {
    fn figures_mut(&mut self) -> [&mut Stat; 2] {
        [&mut self.bytes, &mut self.blocks]
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.bytes.add(&other.bytes);
        self.blocks.add(&other.blocks);
    }
}

/// The figures of arenas: what their placements say, and what is in use beside what is somebody's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    pub(crate) placement: Stats,
    pub(crate) active: InUse,
    pub(crate) active_small: InUse,
    pub(crate) active_large: InUse,
}

impl Figures {
    /// Those of a placement by itself, which knows of no queued work: what is allocated is in use.
    pub(crate) fn of(placement: &Stats) -> Self {
        let class = |class: SizeClass| {
            let of_class = placement.of_class(class);
            InUse { bytes: of_class.allocated, blocks: of_class.blocks }
        };
        Self {
            active: InUse { bytes: placement.allocated, blocks: placement.blocks },
            active_small: class(SizeClass::Small),
            active_large: class(SizeClass::Large),
            placement: placement.clone(),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.placement.add(&other.placement);
        self.active.add(&other.active);
        self.active_small.add(&other.active_small);
        self.active_large.add(&other.active_large);
    }

    /// Makes each peak at least that of `other`.
    pub(crate) fn raise_peaks(&mut self, other: &Self) {
        self.placement.raise_peaks(&other.placement);
        for (figure, other) in [
            (&mut self.active, &other.active),
            (&mut self.active_small, &other.active_small),
            (&mut self.active_large, &other.active_large),
        ] {
            figure.bytes.peak = figure.bytes.peak.max(other.bytes.peak);
            figure.blocks.peak = figure.blocks.peak.max(other.blocks.peak);
        }
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.placement.reset_peaks();
        self.for_each_active(Stat::reset_peak);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.placement.reset_accumulated();
        self.for_each_active(Stat::reset_totals);
    }

    fn for_each_active(&mut self, change: impl Fn(&mut Stat)) {
        for figure in [&mut self.active, &mut self.active_small, &mut self.active_large] {
            figure.figures_mut().into_iter().for_each(&change);
        }
    }
}
