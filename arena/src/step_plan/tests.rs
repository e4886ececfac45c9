//! Steps against a model: what is alive is never handed out again, whatever a run does.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Freed, Served, StepId, StepOptions, StepPlans};
use crate::range::AddressRange;
use crate::request::Request;

const STEP: StepId = StepId(7);
const GRANULE: usize = 64;

/// Plans with a pool beneath that hands out new addresses, and everything that is alive.
struct Model {
    plans: StepPlans,
    next_addr: usize,
    /// Blocks of the pool, as it knows them.
    pool: BTreeMap<usize, usize>,
    /// What owners hold.
    live: BTreeMap<usize, usize>,
    by_pool: usize,
}

impl Model {
    fn new(max_plans: usize) -> Self {
        let mut plans = StepPlans::default();
        plans.add(STEP, StepOptions { granule_bytes: GRANULE, max_plans });
        Self { plans, next_addr: 1 << 20, pool: BTreeMap::new(), live: BTreeMap::new(), by_pool: 0 }
    }

    fn take(&mut self, len: usize, align: usize) -> usize {
        let addr = self.next_addr.next_multiple_of(align);
        self.next_addr = addr + len.next_multiple_of(GRANULE);
        self.pool.insert(addr, len);
        addr
    }

    fn allocate(&mut self, size: usize, zeroed: bool) -> usize {
        let addr = match self.plans.allocate(STEP, Request::new(size), zeroed) {
            Served::At(addr) => addr,
            Served::ByPool => {
                self.by_pool += 1;
                let addr = self.take(size, 1);
                self.plans.placed(STEP, addr, size);
                addr
            }
        };
        let range = AddressRange::new(addr, size);
        let before = self.live.range(..range.end()).next_back();
        if let Some((&start, &len)) = before {
            assert!(start + len <= addr, "{range} is handed out while {start:#x} + {len} is alive");
        }
        self.live.insert(addr, size);
        self.plans.validate().unwrap();
        addr
    }

    fn free(&mut self, addr: usize) {
        self.live.remove(&addr).expect("it is alive");
        match self.plans.free(addr) {
            Freed::ByPool => {
                self.pool.remove(&addr).expect("it is the pool's");
            }
            Freed::Kept { .. } => {}
            Freed::Last { slab, .. } => {
                self.pool.remove(&slab).expect("the slab is the pool's");
            }
            Freed::Unknown => panic!("{addr:#x} is alive"),
        }
    }

    fn begin(&mut self) {
        self.by_pool = 0;
        self.plans.begin(STEP);
    }

    /// Ends the run, and puts the plan to use if one is to be made. What the pool served.
    fn end(&mut self) -> usize {
        if let Some(job) = self.plans.end(STEP) {
            let solved = job.solve().expect("sizes are small");
            let block = self.plans.wanted_slab(&solved).map(|request| {
                let addr = self.take(request.size_bytes, request.align_bytes);
                AddressRange::new(addr, request.size_bytes)
            });
            let released = self.plans.install(solved, block);
            self.released(released);
        }
        self.plans.validate().unwrap();
        self.by_pool
    }

    fn released(&mut self, blocks: Vec<usize>) {
        for addr in blocks {
            assert!(!self.live.contains_key(&addr) || self.pool.contains_key(&addr));
            self.pool.remove(&addr).expect("it is the pool's");
        }
    }

    /// A run in which each request ends after so many more, or not at all; returns what is held.
    fn run(&mut self, requests: &[(usize, Option<usize>)]) -> (usize, Vec<usize>) {
        self.begin();
        let mut ends: Vec<(usize, usize)> = Vec::new();
        let mut held = Vec::new();
        for (at, &(size, lifetime)) in requests.iter().enumerate() {
            for &(_, addr) in ends.iter().filter(|&&(end, _)| end <= at) {
                self.free(addr);
            }
            ends.retain(|&(end, _)| end > at);
            let addr = self.allocate(size, false);
            match lifetime {
                Some(lifetime) => ends.push((at + lifetime, addr)),
                None => held.push(addr),
            }
        }
        ends.into_iter().for_each(|(_, addr)| self.free(addr));
        (self.end(), held)
    }

    fn stats(&self) -> super::StepPlanStats {
        self.plans.stats(STEP).unwrap()
    }
}

const CHAIN: [(usize, Option<usize>); 5] =
    [(1000, Some(2)), (2000, Some(1)), (3000, Some(2)), (1000, Some(1)), (500, Some(1))];

#[test]
fn the_third_run_of_a_step_asks_the_pool_for_nothing() {
    let mut model = Model::new(4);
    assert_eq!([model.run(&CHAIN).0, model.run(&CHAIN).0, model.run(&CHAIN).0], [5, 5, 0]);
    let stats = model.stats();
    assert_eq!((stats.runs, stats.planned_runs, stats.planned, stats.recorded), (3, 1, 5, 10));
    assert_eq!(stats.slab_bytes, stats.max_live_bytes);
    assert_eq!(stats.max_live_bytes, 3000_usize.next_multiple_of(64) + 1024);
    assert_eq!(model.plans.live_blocks().count(), 0);
}

#[test]
fn addresses_are_the_same_in_every_planned_run() {
    let mut model = Model::new(4);
    let addresses = |model: &mut Model| {
        model.begin();
        let one = model.allocate(100, false);
        let two = model.allocate(200, true);
        model.free(one);
        model.free(two);
        model.end();
        (one, two)
    };
    addresses(&mut model);
    addresses(&mut model);
    let third = addresses(&mut model);
    assert_eq!(third, addresses(&mut model));
}

#[test]
fn what_leaves_a_step_lies_outside_of_the_slab_and_its_block_serves_again() {
    let mut model = Model::new(4);
    let step = [(4096, Some(1)), (640, None), (4096, Some(1))];
    let mut held = Vec::new();
    let mut by_pool = Vec::new();
    for _ in 0..6 {
        let (count, new) = model.run(&step);
        by_pool.push(count);
        // The last result is held until the next one is there.
        for addr in std::mem::replace(&mut held, new) {
            model.free(addr);
        }
    }
    assert_eq!(by_pool, [3, 3, 1, 1, 0, 0]);
    let slab_bytes = model.stats().slab_bytes;
    assert_eq!(slab_bytes, 4096, "what leaves is not in it");
    assert_eq!(model.stats().own, 2);
}

#[test]
fn a_block_that_outlives_its_run_is_never_written_over() {
    let mut model = Model::new(4);
    for _ in 0..3 {
        model.run(&CHAIN);
    }
    // The third request is kept this time: it was to end within the step.
    let mut longer = CHAIN;
    longer[2].1 = None;
    // `Model::allocate` would notice.
    let (_, held) = model.run(&longer);
    let (by_pool, _) = model.run(&CHAIN);
    assert!(by_pool > 0);
    assert_eq!(model.stats().unexpected, 0);
    assert!(model.stats().late > 0);
    model.free(held[0]);
    assert_eq!(model.run(&CHAIN).0, 0);
}

#[test]
fn a_request_that_comes_to_leave_its_step_is_moved_out_of_the_slab() {
    let mut model = Model::new(4);
    for _ in 0..3 {
        model.run(&CHAIN);
    }
    let mut longer = CHAIN;
    longer[4].1 = None;
    let mut held: Vec<usize> = Vec::new();
    let mut by_pool = 0;
    for _ in 0..8 {
        let (count, new) = model.run(&longer);
        by_pool = count;
        for addr in std::mem::replace(&mut held, new) {
            model.free(addr);
        }
    }
    assert_eq!(by_pool, 0);
    assert!(model.stats().own > 0);
}

#[test]
fn steps_that_alternate_have_a_plan_each_and_one_slab() {
    let mut model = Model::new(2);
    let other = [(1000, Some(2)), (9000, Some(1)), (100, Some(1))];
    for _ in 0..3 {
        model.run(&CHAIN);
        model.run(&other);
    }
    let before = model.stats();
    for _ in 0..4 {
        assert_eq!((model.run(&CHAIN).0, model.run(&other).0), (0, 0));
    }
    let stats = model.stats();
    assert_eq!((stats.plans, stats.planned_runs - before.planned_runs), (2, 8));
    assert_eq!(stats.switches, before.switches, "the next plan is foreseen");
    assert_eq!(stats.slab_bytes, stats.max_live_bytes);
    // A third takes the place of the one that was not used for longest.
    let third = [(77, Some(1)), (78, Some(1))];
    for _ in 0..3 {
        model.run(&third);
    }
    assert_eq!(model.stats().plans, 2);
    assert_eq!(model.run(&third).0, 0);
}

#[test]
fn a_request_more_or_less_is_served_by_the_pool_and_the_rest_as_planned() {
    let mut model = Model::new(4);
    let chain = CHAIN.map(|(size, _)| (size, Some(1)));
    for _ in 0..3 {
        model.run(&chain);
    }
    let mut more = chain.to_vec();
    more.insert(2, (50_000, Some(1)));
    assert_eq!(model.run(&more).0, 1);
    let less: Vec<_> =
        chain.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, &request)| request).collect();
    assert_eq!(model.run(&less).0, 0);
    // Twice is a habit.
    assert_eq!(model.run(&more).0, 1);
    assert_eq!(model.run(&more).0, 0);
    assert_eq!(model.run(&chain).0, 0);
}

#[test]
fn a_step_that_ends_to_exist_leaves_what_is_alive() {
    let mut model = Model::new(4);
    for _ in 0..3 {
        model.run(&CHAIN);
    }
    let mut longer = CHAIN;
    longer[0].1 = None;
    let (_, held) = model.run(&longer);
    let released = model.plans.remove(STEP);
    assert!(released.is_empty());
    assert!(!model.plans.is_empty());
    assert!(model.plans.live_bytes(held[0]).is_some());
    model.free(held[0]);
    assert!(model.plans.is_empty());
    assert!(model.pool.is_empty(), "{:?}", model.pool);
}

#[test]
fn a_trim_gives_back_what_is_unused_and_the_step_is_planned_anew() {
    let mut model = Model::new(4);
    let step = [(4096, Some(1)), (640, None)];
    let mut held = Vec::new();
    for _ in 0..4 {
        let (_, new) = model.run(&step);
        std::mem::replace(&mut held, new).into_iter().for_each(|addr| model.free(addr));
    }
    let released = model.plans.trim(false);
    assert!(!released.is_empty());
    model.released(released);
    assert_eq!(model.pool.len(), 1, "the result that is held");
    model.free(held[0]);
    assert!(model.pool.is_empty());
    assert_eq!([0; 3].map(|_| model.run(&CHAIN).0), [5, 5, 0]);
}

#[test]
fn a_second_free_is_nobodys() {
    let mut model = Model::new(4);
    for _ in 0..3 {
        model.run(&CHAIN);
    }
    model.begin();
    let addr = model.allocate(1000, false);
    assert_eq!(model.plans.free(addr), Freed::Kept { bytes: 1024 });
    assert_eq!(model.plans.free(addr), Freed::Unknown);
    assert_eq!(model.plans.free(addr + 64), Freed::Unknown);
    assert_eq!(model.plans.free(12), Freed::ByPool);
}

/// What a random run does to the usual one.
#[derive(Debug, Clone)]
enum Change {
    Resize(prop::sample::Index, usize),
    Insert(prop::sample::Index, usize),
    Remove(prop::sample::Index),
    Live(prop::sample::Index, Option<usize>),
    Stop(prop::sample::Index),
}

fn changes() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), 1..5000_usize).prop_map(|(at, size)| Change::Resize(at, size)),
        (at(), 1..5000_usize).prop_map(|(at, size)| Change::Insert(at, size)),
        at().prop_map(Change::Remove),
        (at(), prop::option::of(1..12_usize)).prop_map(|(at, life)| Change::Live(at, life)),
        at().prop_map(Change::Stop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_a_run_does_nothing_alive_is_handed_out(
        usual in prop::collection::vec((1..4000_usize, prop::option::weighted(0.9, 1..12_usize)), 1..40),
        runs in prop::collection::vec((prop::collection::vec(changes(), 0..3), any::<bool>()), 4..24),
        trim_at in 0..30_usize,
    ) {
        let mut model = Model::new(2);
        let mut held: Vec<usize> = Vec::new();
        for (number, (changes, release)) in runs.into_iter().enumerate() {
            let mut requests = usual.clone();
            for change in changes {
                if requests.is_empty() { break; }
                match change {
                    Change::Resize(at, size) => { let at = at.index(requests.len()); requests[at].0 = size; }
                    Change::Insert(at, size) => requests.insert(at.index(requests.len() + 1), (size, Some(2))),
                    Change::Remove(at) => { requests.remove(at.index(requests.len())); }
                    Change::Live(at, life) => { let at = at.index(requests.len()); requests[at].1 = life; }
                    Change::Stop(at) => requests.truncate(at.index(requests.len())),
                }
            }
            let (_, new) = model.run(&requests);
            held.extend(new);
            if release {
                std::mem::take(&mut held).into_iter().for_each(|addr| model.free(addr));
            }
            if number == trim_at {
                let released = model.plans.trim(false);
                model.released(released);
            }
        }
        let released = model.plans.remove(STEP);
        model.released(released);
        held.into_iter().for_each(|addr| model.free(addr));
        prop_assert!(model.plans.is_empty());
        prop_assert!(model.pool.is_empty(), "left: {:?}", model.pool);
    }
}

#[test]
fn what_outlived_its_step_at_first_and_does_so_no_more_is_planned_into_the_slab() {
    let mut model = Model::new(4);
    let mut first = CHAIN;
    first.iter_mut().for_each(|(_, life)| *life = None);
    for _ in 0..2 {
        let (_, held) = model.run(&first);
        held.into_iter().for_each(|addr| model.free(addr));
    }
    assert_eq!(model.stats().slab_bytes, 0);
    for _ in 0..6 {
        model.run(&CHAIN);
    }
    assert_eq!(model.stats().slab_bytes, 4032);
    assert_eq!(model.run(&CHAIN).0, 0);
    assert_eq!(model.pool.len(), 1, "the slab, and no block for each position");
}

#[test]
fn the_later_of_two_ends_counts() {
    let mut model = Model::new(4);
    let step = |life| [(1000, Some(life)), (2000, Some(1)), (3000, Some(1))];
    for life in [1, 2] {
        model.run(&step(life));
    }
    assert_eq!((model.run(&step(2)).0, model.stats().late), (0, 0));
}

#[test]
fn nothing_follows_from_a_run_in_which_the_pool_had_no_memory() {
    let mut model = Model::new(4);
    for _ in 0..4 {
        model.begin();
        assert_eq!(model.plans.allocate(STEP, Request::new(100), false), Served::ByPool);
        // The pool refuses: it does not say where.
        let other = model.allocate(200, false);
        model.free(other);
        model.end();
    }
    assert_eq!(model.stats().installed, 0);
}

#[test]
fn one_long_alignment_does_not_lengthen_what_lies_beside() {
    let mut model = Model::new(4);
    for _ in 0..3 {
        model.begin();
        let aligned = Request::new(4096).aligned_to(1 << 20);
        let mut blocks: Vec<usize> = (0..50).map(|_| model.allocate(1000, false)).collect();
        match model.plans.allocate(STEP, aligned, false) {
            Served::At(addr) => {
                assert!(addr.is_multiple_of(1 << 20));
                assert!(matches!(model.plans.free(addr), Freed::Kept { .. }));
            }
            Served::ByPool => {
                let addr = model.take(4096, 1 << 20);
                model.plans.placed(STEP, addr, 4096);
                assert_eq!(model.plans.free(addr), Freed::ByPool);
                model.pool.remove(&addr);
            }
        }
        blocks.drain(..).for_each(|addr| model.free(addr));
        model.end();
    }
    let slab_bytes = model.stats().slab_bytes;
    assert!(slab_bytes < 200_000, "{slab_bytes}");
}

#[test]
fn a_result_that_is_dropped_in_the_next_run_outlives_its_own() {
    let mut model = Model::new(4);
    let mut held = None;
    let mut by_pool = 0;
    for _ in 0..12 {
        model.begin();
        let scratch = model.allocate(4096, false);
        let result = model.allocate(640, false);
        model.free(scratch);
        let last = model.allocate(100, false);
        model.free(last);
        if let Some(before) = held.replace(result) {
            model.free(before);
        }
        by_pool = model.end();
    }
    assert_eq!((by_pool, model.stats().installed), (0, 1));
}
