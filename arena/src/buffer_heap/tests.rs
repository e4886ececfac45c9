//! Heaps against a model that knows what each buffer holds.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::{Arena, Pages, PagesOptions, SimulatedUpstream};

const HEAP: HeapId = HeapId(1);
const GRANULE: usize = 64;

/// Heaps over a memory of bytes, whose blocks lie one after the other with gaps.
struct Model {
    heaps: BufferHeaps,
    memory: Vec<u8>,
    next_block: usize,
    /// What each buffer holds, and whether it is somebody's.
    known: HashMap<BufferId, (Vec<u8>, Option<usize>)>,
    next_value: u8,
}

impl Model {
    fn new(options: HeapOptions) -> Self {
        let mut heaps = BufferHeaps::default();
        heaps.add_heap(HEAP, options);
        Self { heaps, memory: vec![0; 1 << 20], next_block: GRANULE, known: HashMap::new(), next_value: 0 }
    }

    fn with_block(bytes: usize) -> Self {
        let mut model = Self::new(options());
        model.add_block(bytes);
        model
    }

    fn add_block(&mut self, bytes: usize) {
        assert!(self.heaps.add_block(HEAP, AddressRange::new(self.next_block, bytes)));
        self.next_block += bytes + GRANULE;
    }

    fn add(&mut self, bytes: usize) -> BufferId {
        let placed = self.heaps.place(HEAP, bytes).unwrap_or_else(|| {
            let (wanted, _) = self.heaps.wanted_block(HEAP, bytes).unwrap();
            self.add_block(wanted);
            self.heaps.place(HEAP, bytes).unwrap()
        });
        self.next_value = self.next_value.wrapping_add(1);
        let contents: Vec<u8> = (0..bytes).map(|k| self.next_value ^ (k / GRANULE) as u8).collect();
        let addr = self.heaps.addr(HEAP, placed).unwrap();
        self.memory[addr..addr + bytes].copy_from_slice(&contents);
        self.known.insert(placed, (contents, None));
        self.take(placed);
        self.free(placed);
        placed
    }

    fn take(&mut self, id: BufferId) -> usize {
        let len = self.known[&id].0.len();
        let addr = self.heaps.take(HEAP, id, len).unwrap();
        self.known.get_mut(&id).unwrap().1 = Some(addr);
        addr
    }

    fn free(&mut self, id: BufferId) {
        let addr = self.known.get_mut(&id).unwrap().1.take().unwrap();
        assert!(matches!(self.heaps.free(addr), Freed::Kept { .. }));
    }

    fn remove(&mut self, id: BufferId) {
        self.heaps.remove_buffer(HEAP, id);
        self.known.remove(&id);
    }

    fn compact(&mut self, effort: Effort) -> Compaction {
        let memory = &mut self.memory;
        let (done, _) = self.heaps.compact(HEAP, effort, &mut |from, to, bytes| {
            assert!(from.abs_diff(to) >= bytes, "copied ranges do not overlap");
            memory.copy_within(from..from + bytes, to);
            true
        });
        self.check();
        done
    }

    fn addr(&self, id: BufferId) -> usize {
        self.heaps.addr(HEAP, id).unwrap()
    }

    fn check(&self) {
        self.heaps.validate().unwrap();
        for (&id, (contents, held_at)) in &self.known {
            let addr = self.addr(id);
            assert_eq!(&self.memory[addr..addr + contents.len()], contents, "buffer {id:?}");
            assert!(held_at.is_none_or(|held_at| held_at == addr), "a held buffer moved");
        }
    }
}

fn options() -> HeapOptions {
    HeapOptions { granule_bytes: GRANULE, every: 1, old_every: 100, old_after: 8, on_oom: false }
}

const ALL: Effort =
    Effort { budget_bytes: usize::MAX, all: true, counts: true, recordings: false, held_too: false };
const STEP: Effort = Effort { all: false, ..ALL };

#[test]
fn buffers_slide_into_what_removed_ones_left() {
    let mut model = Model::with_block(4096);
    let ids = [512, 1024, 512, 1024, 256].map(|bytes| model.add(bytes));
    model.remove(ids[0]);
    model.remove(ids[2]);
    assert_eq!(model.heaps.stats(HEAP).hole_bytes, 1024);
    let done = model.compact(ALL);
    assert_eq!((done.moved, done.held), (3, 0));
    assert_eq!(model.heaps.stats(HEAP).fragmentation(), 0.0);
    assert_eq!(ids.map(|id| model.heaps.addr(HEAP, id)), [None, Some(64), None, Some(1088), Some(2112)]);
    assert_eq!(model.compact(ALL), Compaction::default(), "nothing is left to do");
}

#[test]
fn what_somebody_has_stays_and_others_move_around_it() {
    let mut model = Model::with_block(4096);
    let ids = [512, 512, 512, 512].map(|bytes| model.add(bytes));
    let held = model.take(ids[1]);
    model.remove(ids[0]);
    let done = model.compact(ALL);
    assert_eq!((done.moved, done.held), (2, 1));
    assert_eq!(model.addr(ids[1]), held);
    assert_eq!(model.addr(ids[2]), GRANULE, "it went in front of the held one");
    assert_eq!(model.addr(ids[3]), held + 512);
    // A buffer that is removed while somebody has it stays until it is freed, also with room in front of it.
    model.remove(ids[1]);
    model.remove(ids[2]);
    let before = model.addr(ids[3]);
    model.compact(ALL);
    assert_eq!(model.heaps.live_bytes(held), Some(512));
    assert!(model.addr(ids[3]) < before, "another one takes the room");
    let first = model.addr(ids[3]);
    model.remove(ids[3]);
    assert_eq!((first, model.compact(ALL).held), (GRANULE, 1));
    assert_eq!(model.heaps.live_bytes(held), Some(512));
    assert_eq!(model.heaps.free(held), Freed::Kept { bytes: 512 });
    assert_eq!(model.heaps.free(held), Freed::Unknown);
}

#[test]
fn a_slide_that_is_not_worth_its_copy_is_left() {
    let mut model = Model::with_block(1 << 17);
    let (small, large) = (model.add(GRANULE), model.add(GRANULE * 1000));
    let last = model.add(GRANULE);
    model.remove(small);
    assert_eq!(model.compact(ALL).moved, 1, "the last one fits where the first was");
    assert_eq!((model.addr(last), model.addr(large)), (GRANULE, 2 * GRANULE));
    model.remove(last);
    assert_eq!(model.compact(ALL).moved, 0);
    assert!(model.heaps.stats(HEAP).fragmentation() < 1.0 / 64.0);
}

#[test]
fn small_blocks_become_empty_and_go_back() {
    let mut model = Model::new(options());
    model.add_block(4096);
    let first = model.add(4096);
    model.add_block(512);
    let second = model.add(512);
    assert_eq!(model.heaps.kept_count(), 2);
    model.remove(first);
    let done = model.compact(ALL);
    assert_eq!((done.moved, done.released_bytes), (1, 512));
    assert_eq!(model.addr(second), GRANULE);
    assert_eq!(model.heaps.kept_count(), 1);
    assert_eq!(model.heaps.take_unused_blocks(), []);
    assert_eq!(model.heaps.used_parts(), [AddressRange::new(GRANULE, 512)]);
    model.heaps.resize_block(AddressRange::new(GRANULE, 1024));
    assert_eq!((model.heaps.stats(HEAP).block_bytes, model.heaps.used_parts().len()), (1024, 1));
    model.check();
}

#[test]
fn old_buffers_move_when_it_is_their_turn() {
    let mut model = Model::new(HeapOptions { every: 2, old_every: 10, old_after: 5, ..options() });
    model.add_block(8192);
    let first = model.add(512);
    let old = model.add(512);
    for _ in 0..6 {
        assert_eq!(model.compact(STEP), Compaction::default());
    }
    let young = model.add(1024);
    model.remove(first);
    // The seventh: nobody's turn.
    let done = model.compact(STEP);
    assert_eq!((done.moved, done.not_due), (0, 1), "the young one does not fit into the hole as it is");
    // The eighth: the young one's, which has nowhere to go while the old one stays.
    assert_eq!(model.compact(STEP).moved, 0);
    assert_eq!(model.compact(STEP).moved, 0);
    // The tenth is everybody's.
    assert_eq!(model.compact(STEP).moved, 2);
    assert_eq!((model.addr(old), model.addr(young)), (GRANULE, GRANULE + 512));
}

#[test]
fn a_budget_is_kept_and_what_fits_still_moves() {
    let mut model = Model::with_block(1 << 14);
    let ids = [1024, 2048, 512].map(|bytes| model.add(bytes));
    model.remove(ids[0]);
    let done = model.compact(Effort { budget_bytes: 1000, ..ALL });
    assert_eq!((done.moved, done.moved_bytes, done.over_budget), (1, 512, 1));
    assert_eq!(done.smallest_over_budget, Some(2048));
    assert_eq!(model.addr(ids[2]), GRANULE);
}

#[test]
fn what_was_held_while_something_was_recorded_stays_until_that_is_gone() {
    let mut model = Model::with_block(4096);
    let ids = [512, 512, 512].map(|bytes| model.add(bytes));
    model.remove(ids[0]);
    let at = |count, recording| Moment { count, recording };
    // Taken before a capture, freed after it; taken and freed in one; both before.
    model.heaps.set_now(at(3, false));
    model.take(ids[1]);
    model.take(ids[2]);
    model.free(ids[2]);
    model.heaps.set_now(at(4, false));
    model.free(ids[1]);
    let done = model.compact(Effort { recordings: true, ..ALL });
    assert_eq!((done.moved, done.recorded), (1, 1), "only the one that nobody had then moves");
    let again = model.add(512);
    model.heaps.set_now(at(5, true));
    model.take(again);
    model.free(again);
    model.heaps.set_now(at(5, false));
    model.remove(ids[2]);
    assert_eq!(model.compact(Effort { recordings: true, ..ALL }).recorded, 2);
    // Taking it anew changes nothing: the recording still knows the address.
    model.take(again);
    model.free(again);
    assert_eq!(model.compact(Effort { recordings: true, ..ALL }).recorded, 2);
    assert_eq!(model.compact(ALL).moved, 2);
    // It is forgotten then.
    let more = model.add(512);
    model.remove(ids[1]);
    assert_eq!(model.compact(Effort { recordings: true, ..ALL }).recorded, 0);
    assert!(model.addr(more) < 1024 + GRANULE);
}

#[test]
fn a_copy_that_is_refused_ends_the_compaction_and_loses_nothing() {
    let mut model = Model::with_block(4096);
    let ids = [512, 512, 512].map(|bytes| model.add(bytes));
    model.remove(ids[0]);
    let (done, released) = model.heaps.compact(HEAP, ALL, &mut |_, _, _| false);
    assert_eq!((done.moved, released), (0, vec![]));
    model.check();
    assert_eq!(model.compact(ALL).moved, 2);
}

#[test]
fn a_copy_that_fails_in_the_middle_is_told_and_what_was_held_counts_as_lost() {
    let mut model = Model::with_block(8192);
    let (small, large) = (model.add(256), model.add(2048));
    model.remove(small);
    for (fails_at, lost) in [(0, 0), (3, 1)] {
        let mut copies = 0;
        let (done, _) = model.heaps.compact(HEAP, ALL, &mut |_, _, _| {
            copies += 1;
            copies <= fails_at
        });
        assert_eq!((done.moved, done.lost), (0, lost));
        assert_eq!(model.heaps.has_lost_contents(HEAP, large), lost == 1);
    }
    // Whoever has it next writes it anew.
    model.take(large);
    model.free(large);
    assert!(!model.heaps.has_lost_contents(HEAP, large));
}

#[test]
fn a_buffer_that_nobody_had_moves_without_a_copy() {
    let mut model = Model::with_block(8192);
    let first = model.add(512);
    let unused = model.heaps.place(HEAP, 2048).unwrap();
    model.remove(first);
    let (done, _) =
        model.heaps.compact(HEAP, Effort { budget_bytes: 0, ..ALL }, &mut |_, _, _| unreachable!());
    assert_eq!((done.moved, done.moved_bytes), (1, 0));
    assert_eq!(model.heaps.addr(HEAP, unused), Some(GRANULE));
}

#[test]
fn compactions_that_memory_forced_age_nobody() {
    let mut model = Model::with_block(8192);
    let (first, second) = (model.add(512), model.add(512));
    for _ in 0..20 {
        model.compact(Effort { counts: false, ..ALL });
    }
    model.remove(first);
    assert_eq!(model.compact(STEP).moved, 1, "it is young");
    assert_eq!(model.addr(second), GRANULE);
}

#[test]
fn a_heap_that_is_gone_keeps_what_somebody_has() {
    let mut model = Model::with_block(4096);
    let ids = [512, 512].map(|bytes| model.add(bytes));
    let held = model.take(ids[1]);
    assert_eq!(model.heaps.remove_heap(HEAP), []);
    assert!(!model.heaps.has(HEAP));
    assert_eq!((model.heaps.live_bytes(held), model.heaps.live_count()), (Some(512), 1));
    assert_eq!(model.heaps.free(held), Freed::Last { bytes: 512, slab: GRANULE });
    assert!(model.heaps.is_empty());
}

#[test]
fn a_planted_fault_that_moves_held_buffers_is_noticed() {
    let mut model = Model::with_block(4096);
    let ids = [512, 512].map(|bytes| model.add(bytes));
    let held = model.take(ids[1]);
    model.remove(ids[0]);
    let memory = &mut model.memory;
    model.heaps.compact(HEAP, Effort { held_too: true, ..ALL }, &mut |from, to, bytes| {
        memory.copy_within(from..from + bytes, to);
        true
    });
    assert_ne!(model.addr(ids[1]), held);
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.check()));
    assert!(checked.is_err(), "the model sees it");
}

#[test]
fn a_heap_that_found_no_memory_is_not_kept() {
    let upstream = SimulatedUpstream::builder().capacity_bytes(4 << 20).build();
    let mut arena = Arena::new(Pages::new(PagesOptions::default()).unwrap(), upstream);
    for _ in 0..3 {
        assert!(arena.add_moving_buffer(HEAP, options(), 64 << 20).is_err());
        assert!(!arena.has_heaps());
        assert!(arena.reserve_heap(HEAP, options(), 64 << 20).is_err());
        assert!(!arena.has_heaps());
    }
    let buffer = arena.add_moving_buffer(HEAP, options(), 1 << 20).unwrap();
    assert!(arena.add_moving_buffer(HEAP, options(), 64 << 20).is_err());
    assert!(arena.is_free_moving_buffer(HEAP, buffer), "what is there stays");
    arena.remove_heap(HEAP);
    assert_eq!(arena.stats().blocks.current, 0);
    arena.validate().unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    Add(usize),
    Remove(usize),
    Take(usize),
    Free(usize),
    Compact { budget: usize, all: bool },
    GiveBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_usize..3000).prop_map(Step::Add),
        3 => any::<usize>().prop_map(Step::Remove),
        2 => any::<usize>().prop_map(Step::Take),
        2 => any::<usize>().prop_map(Step::Free),
        2 => (prop_oneof![0_usize..5000, Just(usize::MAX)], any::<bool>())
            .prop_map(|(budget, all)| Step::Compact { budget, all }),
        1 => Just(Step::GiveBack),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    #[test]
    fn contents_survive_any_program(steps in steps(), old_after in 0_u32..4, old_every in 1_u32..5) {
        let mut model = Model::new(HeapOptions { old_after, old_every, ..options() });
        let pick = |ids: Vec<BufferId>, k: usize| ids.get(k % ids.len().max(1)).copied();
        for step in steps {
            let with = |model: &Model, held: Option<bool>| {
                let mut ids: Vec<BufferId> = model.known.iter()
                    .filter(|(_, (_, at))| held.is_none_or(|held| held == at.is_some()))
                    .map(|(&id, _)| id)
                    .collect();
                ids.sort();
                ids
            };
            match step {
                Step::Add(bytes) => {
                    model.add(bytes);
                }
                Step::Remove(k) => {
                    if let Some(id) = pick(with(&model, Some(false)), k) {
                        model.remove(id);
                    }
                }
                Step::Take(k) => {
                    if let Some(id) = pick(with(&model, Some(false)), k) {
                        model.take(id);
                    }
                }
                Step::Free(k) => {
                    if let Some(id) = pick(with(&model, Some(true)), k) {
                        model.free(id);
                    }
                }
                Step::Compact { budget, all } => {
                    let before = model.heaps.stats(HEAP);
                    let done = model.compact(Effort { budget_bytes: budget, all, ..ALL });
                    let after = model.heaps.stats(HEAP);
                    prop_assert!(done.moved_bytes <= budget);
                    prop_assert_eq!(before.buffer_bytes, after.buffer_bytes);
                    let nothing_held = with(&model, Some(true)).is_empty();
                    if all && budget == usize::MAX && nothing_held {
                        prop_assert!(after.fragmentation() <= 1.0 / 64.0, "{after:?}");
                        prop_assert_eq!(model.compact(ALL).moved, 0, "a second time has nothing to do");
                    }
                }
                Step::GiveBack => {
                    model.heaps.take_unused_blocks();
                    for used in model.heaps.used_parts() {
                        model.heaps.resize_block(used);
                    }
                }
            }
            model.check();
        }
    }
}
