//! What an arena's users have, where blocks were freed that queued work still uses.
//!
//! For its placement such a block is live, and for its user it is gone. So what is the users' is what the
//! placement says less what waits, and the peaks of the difference have to be followed by themselves from the
//! first block on that waits; until then they are the placement's.

use mempool_arena::{LiveBlock, SizeClass, Stats};

use crate::stats::Figures;

/// Figures of blocks, of all or of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    requested: usize,
    allocated: usize,
    blocks: usize,
}

impl Sums {
    fn combine(&mut self, other: Self, with: impl Fn(usize, usize) -> usize) {
        self.requested = with(self.requested, other.requested);
        self.allocated = with(self.allocated, other.allocated);
        self.blocks = with(self.blocks, other.blocks);
    }

    fn of(block: LiveBlock) -> Self {
        Self { requested: block.requested_bytes, allocated: block.allocated_bytes, blocks: 1 }
    }
}

/// All, small and large.
type Parts = [Sums; 3];

const ALL: usize = 0;

fn index(class: SizeClass) -> usize {
    match class {
        SizeClass::Small => 1,
        SizeClass::Large => 2,
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    now: Parts,
    /// What waited when totals were reset last.
    at_reset: Parts,
    /// The most that users had; `None` while nothing has waited.
    peaks: Option<Box<Parts>>,
}

impl Waiting {
    /// A block begins to wait.
    pub(crate) fn begin(&mut self, placement: &Stats, class: SizeClass, block: LiveBlock) {
        if self.peaks.is_none() {
            self.peaks = Some(Box::new(figures(placement, |stat| stat.peak)));
        }
        for part in [ALL, index(class)] {
            self.now[part].combine(Sums::of(block), |now, more| now + more);
        }
    }

    /// A block is about to be free for its placement too.
    pub(crate) fn end(&mut self, class: SizeClass, block: LiveBlock) {
        for part in [ALL, index(class)] {
            self.now[part].combine(Sums::of(block), |now, less| now - less);
        }
    }

    /// Bytes that blocks take which wait.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.now[ALL].allocated
    }

    /// Follows the peaks after an allocation.
    #[inline]
    pub(crate) fn note_allocation(&mut self, placement: &Stats) {
        if let Some(peaks) = &mut self.peaks {
            Self::follow(peaks, &self.now, placement);
        }
    }

    #[cold]
    fn follow(peaks: &mut Parts, waiting: &Parts, placement: &Stats) {
        let current = figures(placement, |stat| stat.current);
        for (part, peak) in peaks.iter_mut().enumerate() {
            let mut users = current[part];
            users.combine(waiting[part], |now, waits| now - waits);
            peak.combine(users, usize::max);
        }
    }

    /// The peaks are what users have now. The placement's are reset, too.
    pub(crate) fn reset_peaks(&mut self, placement: &Stats) {
        if let Some(peaks) = &mut self.peaks {
            **peaks = Parts::default();
            Self::follow(peaks, &self.now, placement);
        }
    }

    /// The placement's totals are reset.
    pub(crate) fn reset_accumulated(&mut self) {
        self.at_reset = self.now;
    }

    /// The arena's figures: what is the users', and what is in use.
    pub(crate) fn figures(&self, placement: &Stats) -> Figures {
        let mut figures = Figures::of(placement);
        let Some(peaks) = &self.peaks else { return figures };
        let stats = &mut figures.placement;
        for (part, stats) in [
            [&mut stats.requested, &mut stats.allocated, &mut stats.blocks],
            [&mut stats.small.requested, &mut stats.small.allocated, &mut stats.small.blocks],
            [&mut stats.large.requested, &mut stats.large.allocated, &mut stats.large.blocks],
        ]
        .into_iter()
        .enumerate()
        {
            let numbers = |sums: Sums| [sums.requested, sums.allocated, sums.blocks];
            let of_part = numbers(self.now[part]).into_iter().zip(numbers(self.at_reset[part]));
            let of_part = of_part.zip(numbers(peaks[part]));
            for (stat, ((now, at_reset), peak)) in stats.into_iter().zip(of_part) {
                stat.current -= now;
                stat.at_reset -= at_reset;
                stat.peak = peak.max(stat.current);
            }
        }
        figures
    }
}

fn figures(placement: &Stats, of: impl Fn(&mempool_arena::Stat) -> usize) -> Parts {
    let (small, large) = (&placement.small, &placement.large);
    [
        (&placement.requested, &placement.allocated, &placement.blocks),
        (&small.requested, &small.allocated, &small.blocks),
        (&large.requested, &large.allocated, &large.blocks),
    ]
    .map(|(requested, allocated, blocks)| Sums {
        requested: of(requested),
        allocated: of(allocated),
        blocks: of(blocks),
    })
}
