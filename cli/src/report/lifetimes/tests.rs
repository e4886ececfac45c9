//! Histories against a model that goes forwards and remembers each moment.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::report::data::Mapping;
use crate::report::figures::Figures;

const GRANULE: usize = 512;
/// The one segment of most tests.
const WHOLE: Range<usize> = 0..8192;
/// Units of one granule in a page, and pages there are.
const PAGE_UNITS: usize = 8;
const PAGES: usize = 12;

fn origin(time_us: u64) -> Origin {
    Origin { label: 0, stack: NONE, thread: 0, step: 0, position: 0, time_us, is_older: false }
}

fn event(kind: Kind, address: usize, bytes: usize) -> Event {
    Event { kind, address, bytes, owner: 0, origin: origin(1) }
}

fn device(segments: impl IntoIterator<Item = Range<usize>>, blocks: Vec<Held>, events: Vec<Event>) -> Device {
    let mapping = |range: Range<usize>| Mapping { range, owner: 0, is_expandable: true };
    Device {
        name: "host".to_owned(),
        granule_bytes: GRANULE,
        segments: segments.into_iter().map(mapping).collect(),
        blocks,
        events,
        pools: Vec::new(),
    }
}

fn held(start: usize, bytes: usize, hold: Hold) -> Held {
    Held { range: start..start + bytes, requested_bytes: bytes, hold, origin: None }
}

/// Blocks of a moment as their ranges, with whether they wait for queued work.
fn at(lifetimes: &Lifetimes, moment: u32) -> Vec<(Range<usize>, bool)> {
    lifetimes
        .blocks
        .iter()
        .filter(|block| !block.is_kept && block.begin <= moment && moment < block.end)
        .map(|block| (block.range.clone(), block.freed <= moment))
        .collect()
}

#[test]
fn a_block_is_there_from_its_allocation_until_nothing_uses_it() {
    let events = vec![
        event(Kind::Allocated, 0, 1000),
        event(Kind::FreeRequested, 0, 1000),
        event(Kind::FreeCompleted, 0, 1000),
    ];
    let lifetimes = Lifetimes::of(&device([WHOLE], Vec::new(), events));
    assert_eq!([0, 3].map(|moment| at(&lifetimes, moment)), [vec![], vec![]]);
    assert_eq!(at(&lifetimes, 1), [(0..1024, false)]);
    assert_eq!(at(&lifetimes, 2), [(0..1024, true)]);
    assert_eq!(lifetimes.blocks_of_events, [0, 0, 0]);
    assert_eq!(lifetimes.blocks[0].origin, Some(origin(1)));
}

#[test]
fn what_is_older_than_the_history_is_there_from_its_first_moment() {
    let events = vec![event(Kind::FreeRequested, 512, 512), event(Kind::FreeCompleted, 512, 512)];
    let blocks =
        vec![held(1024, 512, Hold::Live), held(2048, 512, Hold::Pending), held(4096, 512, Hold::Kept)];
    let lifetimes = Lifetimes::of(&device([WHOLE], blocks, events));
    assert_eq!(at(&lifetimes, 0), [(512..1024, false), (1024..1536, false), (2048..2560, true)]);
    assert_eq!(at(&lifetimes, 2), [(1024..1536, false), (2048..2560, true)]);
    assert_eq!(lifetimes.blocks.iter().filter(|block| block.is_kept).count(), 1);
    // What is kept is not free: one block of 512 bytes lies before it and ends.
    let figures = Figures::of(&lifetimes, 2);
    assert_eq!(figures.free, [8192 - 4 * 512, 8192 - 4 * 512, 8192 - 3 * 512]);
    assert_eq!(figures.largest_free, [3584, 3584, 3584]);
}

#[test]
fn a_free_that_was_not_completed_leaves_a_block_that_waits() {
    let events = vec![event(Kind::Allocated, 0, 512), event(Kind::FreeRequested, 0, 512)];
    let lifetimes = Lifetimes::of(&device([WHOLE], vec![held(0, 512, Hold::Pending)], events));
    assert_eq!(at(&lifetimes, 1), [(0..512, false)]);
    assert_eq!(at(&lifetimes, 2), [(0..512, true)]);
}

#[test]
fn a_free_alone_ends_a_block() {
    let events = vec![event(Kind::Allocated, 0, 512), event(Kind::FreeRequested, 0, 512)];
    let lifetimes = Lifetimes::of(&device([WHOLE], Vec::new(), events));
    assert_eq!(at(&lifetimes, 1), [(0..512, false)]);
    assert_eq!(at(&lifetimes, 2), []);
}

#[test]
fn events_that_contradict_others_are_left_out_and_counted() {
    let events = vec![
        // Two blocks at one place, the allocation of what is not there, and a free of nothing.
        event(Kind::FreeCompleted, 256, 512),
        event(Kind::Allocated, 4096, 512),
        event(Kind::FreeCompleted, 1024, 0),
    ];
    let lifetimes = Lifetimes::of(&device([WHOLE], vec![held(0, 512, Hold::Live)], events));
    assert_eq!(lifetimes.contradictions, 3);
    assert_eq!(
        (0..4).map(|moment| at(&lifetimes, moment)).collect::<Vec<_>>(),
        vec![vec![(0..512, false)]; 4]
    );
    assert_eq!(lifetimes.blocks_of_events, [NONE; 3]);
}

#[test]
fn blocks_that_were_placed_closer_than_their_rounded_sizes_do_not_overlap() {
    let events = vec![event(Kind::FreeCompleted, 256, 256), event(Kind::FreeCompleted, 0, 200)];
    let lifetimes = Lifetimes::of(&device([WHOLE], Vec::new(), events));
    assert_eq!(lifetimes.contradictions, 0);
    assert_eq!(at(&lifetimes, 0), [(0..256, true), (256..768, true)]);
}

#[test]
fn memory_that_the_snapshot_has_no_more_is_there_for_what_lay_in_it() {
    let events = vec![event(Kind::FreeCompleted, 1 << 20, 512), event(Kind::Unmapped, 2 << 20, 4096)];
    let lifetimes = Lifetimes::of(&device([WHOLE], Vec::new(), events));
    let figures = Figures::of(&lifetimes, 2);
    assert_eq!(figures.reserved, [8192 + 512 + 4096, 8192 + 4096, 8192]);
    assert_eq!(figures.free, [8192 + 4096, 8192 + 4096, 8192]);
}

#[test]
fn segments_that_touch_are_one_only_where_they_grow() {
    for (is_expandable, largest) in [(true, 8192), (false, 4096)] {
        let mut device = device([0..4096, 4096..8192], Vec::new(), Vec::new());
        device.segments.iter_mut().for_each(|segment| segment.is_expandable = is_expandable);
        assert_eq!(Figures::of(&Lifetimes::of(&device), 0).largest_free, [largest]);
    }
}

/// What the model knows of a moment.
#[derive(Debug, Clone, Default)]
struct Moment {
    /// By first unit: units, bytes, and whether it waits.
    blocks: BTreeMap<usize, (usize, usize, bool)>,
    pages: [bool; PAGES],
}

impl Moment {
    fn is_free(&self, units: Range<usize>) -> bool {
        units.clone().all(|unit| self.pages.get(unit / PAGE_UNITS) == Some(&true))
            && self.blocks.iter().all(|(&start, &(len, ..))| start + len <= units.start || units.end <= start)
    }

    /// Takes a step that a number stands for, and says what happened.
    fn advance(&mut self, choice: u64) -> Option<Event> {
        let (what, number) = (choice % 8, (choice / 8) as usize);
        let page = number % PAGES;
        let page_range = (page * PAGE_UNITS * GRANULE, PAGE_UNITS * GRANULE);
        match what {
            0 if !self.pages[page] => {
                self.pages[page] = true;
                Some(event(Kind::PageMapped, page_range.0, page_range.1))
            }
            1 if self.is_free(page * PAGE_UNITS..(page + 1) * PAGE_UNITS) => {
                self.pages[page] = false;
                Some(event(Kind::PageUnmapped, page_range.0, page_range.1))
            }
            2..=4 => {
                let len = 1 + number % 11;
                let bytes = len * GRANULE - number % GRANULE;
                let start = (0..PAGES * PAGE_UNITS).find(|&unit| self.is_free(unit..unit + len))?;
                self.blocks.insert(start, (len, bytes, false));
                Some(event(Kind::Allocated, start * GRANULE, bytes))
            }
            5 | 6 => {
                let at = number % self.blocks.len().max(1);
                let (&start, block) = self.blocks.iter_mut().nth(at)?;
                let bytes = block.1;
                let kind = if block.2 { Kind::FreeCompleted } else { Kind::FreeRequested };
                if block.2 {
                    self.blocks.remove(&start);
                } else {
                    block.2 = true;
                }
                Some(event(kind, start * GRANULE, bytes))
            }
            7 => Some(event(Kind::OutOfMemory, 0, number)),
            _ => None,
        }
    }

    fn blocks(&self) -> Vec<(Range<usize>, bool)> {
        let range = |start: usize, len: usize| start * GRANULE..(start + len) * GRANULE;
        self.blocks.iter().map(|(&start, &(len, _, waits))| (range(start, len), waits)).collect()
    }

    /// Bytes that are reserved, free, and free in the largest range.
    fn figures(&self) -> (usize, usize, usize) {
        let (mut free, mut run, mut largest) = (0, 0, 0);
        for unit in 0..PAGES * PAGE_UNITS {
            let is_free = self.is_free(unit..unit + 1);
            run = if is_free { run + GRANULE } else { 0 };
            free += if is_free { GRANULE } else { 0 };
            largest = largest.max(run);
        }
        (self.pages.iter().filter(|&&is_mapped| is_mapped).count() * PAGE_UNITS * GRANULE, free, largest)
    }
}

proptest! {
    #[test]
    fn the_end_of_any_history_tells_what_was_there_at_each_of_its_moments(
        choices in prop::collection::vec(any::<u64>(), 1..120),
        skipped in 0..100_usize,
    ) {
        let mut now = Moment::default();
        let (mut moments, mut events) = (vec![now.clone()], Vec::new());
        for choice in choices {
            if let Some(event) = now.advance(choice) {
                events.push(event);
                moments.push(now.clone());
            }
        }
        let skipped = skipped.min(events.len());
        let (moments, events) = (&moments[skipped..], events.split_off(skipped));
        let blocks = now.blocks.iter().map(|(&start, &(len, bytes, waits))| Held {
            range: start * GRANULE..(start + len) * GRANULE,
            requested_bytes: bytes,
            hold: if waits { Hold::Pending } else { Hold::Live },
            origin: None,
        });
        let pages = (0..PAGES).filter(|&page| now.pages[page]);
        let segments: Vec<Range<usize>> =
            pages.map(|page| page * PAGE_UNITS * GRANULE..(page + 1) * PAGE_UNITS * GRANULE).collect();
        let count = events.len();
        let lifetimes = Lifetimes::of(&device(segments, blocks.collect(), events));
        prop_assert_eq!(lifetimes.contradictions, 0);
        let figures = Figures::of(&lifetimes, count);
        for (moment, expected) in moments.iter().enumerate() {
            prop_assert_eq!(at(&lifetimes, moment as u32), expected.blocks(), "moment {}", moment);
            let found = (figures.reserved[moment], figures.free[moment], figures.largest_free[moment]);
            prop_assert_eq!(found, expected.figures(), "moment {}", moment);
        }
    }

    #[test]
    fn histories_that_contradict_themselves_leave_blocks_that_do_not_overlap(
        choices in prop::collection::vec((0..8_u8, 0..40_usize, 0..5000_usize, any::<bool>()), 1..60),
        held_at in prop::collection::vec((0..40_usize, 0..2000_usize, 0..3_u8), 0..6),
    ) {
        const KINDS: [Kind; 8] = [
            Kind::Allocated, Kind::FreeRequested, Kind::FreeCompleted, Kind::OutOfMemory, Kind::Mapped, Kind::Unmapped,
            Kind::PageMapped, Kind::PageUnmapped,
        ];
        let events = choices.iter().map(|&(kind, place, bytes, is_huge)| {
            let bytes = if is_huge && bytes % 7 == 0 { usize::MAX - bytes } else { bytes };
            event(KINDS[usize::from(kind)], place * 256, bytes)
        });
        // Those of a snapshot lie one behind the other.
        let mut end = 0;
        let blocks = held_at.iter().map(|&(gap, bytes, hold)| {
            let start = end + gap * 128;
            end = start + bytes;
            held(start, bytes, [Hold::Live, Hold::Pending, Hold::Kept][usize::from(hold)])
        });
        let device = device([0..4096, 4096..20_000], blocks.collect(), events.collect());
        let lifetimes = Lifetimes::of(&device);
        let figures = Figures::of(&lifetimes, device.events.len());
        for moment in 0..=device.events.len() {
            let blocks = at(&lifetimes, moment as u32);
            prop_assert!(blocks.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start), "{blocks:?}");
            prop_assert!(figures.largest_free[moment] <= figures.free[moment]);
            prop_assert!(figures.free[moment] <= figures.reserved[moment]);
        }
    }
}
