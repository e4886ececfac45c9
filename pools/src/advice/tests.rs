use std::time::Duration;

use mempool_arena::trace::Event;
use mempool_arena::{Conf, Margin, ReplayDevice, ReplayError, Sizing};
use proptest::prelude::*;

use super::{Strategy, *};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A run that is put together call by call.
#[derive(Default)]
struct Run {
    events: Vec<Event>,
    next: u64,
    steps: u64,
}

impl Run {
    fn allocate(&mut self, size_bytes: usize) -> u64 {
        self.next += 1;
        self.events.push(Event::Allocate { id: self.next, size_bytes, stream: 0 });
        self.next
    }

    fn free(&mut self, id: u64) {
        self.events.push(Event::Free { id });
    }

    fn end_step(&mut self) {
        self.events.push(Event::StepEnd { step: self.steps });
        self.steps += 1;
    }
}

/// Numbers that look random and are the same each time.
fn numbers(seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    })
}

/// Twelve steps of the same forty tensors, each alive while the next three are made, beside weights.
fn repeated_step() -> Vec<Event> {
    let mut run = Run::default();
    run.allocate(200 * MIB);
    for _ in 0..12 {
        let mut live = Vec::new();
        for layer in 0..40 {
            live.push(run.allocate((layer % 7 + 1) * 3 * MIB));
            if live.len() > 3 {
                run.free(live.remove(0));
            }
        }
        live.into_iter().for_each(|id| run.free(id));
        run.end_step();
    }
    run.events
}

/// Two thousand tensors, no two of one size, that live for random times.
fn scattered_sizes() -> Vec<Event> {
    let mut run = Run::default();
    let mut live = Vec::new();
    let mut random = numbers(1);
    for at in 0..2000 {
        live.push(run.allocate(MIB + random.next().unwrap() % 60 * MIB + 512 * at));
        if live.len() > 24 {
            let at = random.next().unwrap() % live.len();
            run.free(live.swap_remove(at));
        }
    }
    run.events
}

/// Twelve large blocks are replaced by a small one that stays and a smaller one that does not; then large ones are asked
/// for again.
fn survivors_in_large_blocks() -> Vec<Event> {
    let mut run = Run::default();
    let large: Vec<u64> = (0..12).map(|_| run.allocate(200 * MIB)).collect();
    let mut held = Vec::new();
    for id in large {
        run.free(id);
        run.allocate(12 * MIB);
        held.push(run.allocate(188 * MIB));
    }
    held.into_iter().for_each(|id| run.free(id));
    for _ in 0..12 {
        run.allocate(200 * MIB);
    }
    run.events
}

/// Eight caches that `cat` makes longer by a token each time, sixty times, beside work of a few sizes.
fn growing_caches() -> Vec<Event> {
    let mut run = Run::default();
    let mut caches: Vec<u64> = (0..8).map(|_| run.allocate(2 * MIB)).collect();
    for token in 1..=60 {
        for cache in &mut caches {
            let work = run.allocate(3 * MIB / 2);
            let longer = run.allocate(2 * MIB + token * 64 * 1024);
            run.free(std::mem::replace(cache, longer));
            run.free(work);
        }
        run.end_step();
    }
    run.events
}

/// A small model: a hundred requests of a few kilobytes to two megabytes.
fn small_model() -> Vec<Event> {
    let mut run = Run::default();
    for at in 0..10_usize {
        let ids: Vec<u64> = (0..10).map(|layer| run.allocate((layer + 1) * 100_000 + at * 1000)).collect();
        ids.into_iter().for_each(|id| run.free(id));
        run.end_step();
    }
    run.events
}

fn advice(events: &[Event], options: &AdviceOptions) -> Advice {
    advise(events, options, |_| {}).unwrap()
}

fn usual(events: &[Event]) -> Advice {
    advice(events, &AdviceOptions::default())
}

/// Replays the run under a policy, apart from what gave the advice.
fn replayed(events: &[Event], conf: &str, capacity_bytes: Option<usize>) -> Option<(usize, f64)> {
    let device = ReplayDevice { capacity_bytes, ..ReplayDevice::default() };
    let conf: Conf = conf.parse().unwrap();
    let mut replay = device.replay(&conf).unwrap();
    for &event in events {
        match replay.apply(event) {
            Ok(()) => {}
            Err(ReplayError::Refused { .. }) => return None,
            Err(other) => panic!("{other}"),
        }
    }
    Some((replay.totals().reserved.peak, replay.upstream().mapping_us()))
}

/// What is advised is the best by the measure it names, or as good within the margin it names.
fn is_as_good_as_it_says(events: &[Event], options: &AdviceOptions) {
    let advice = advice(events, options);
    let Some(Finding::Chosen { conf, measure, margin, best_value, value, .. }) =
        advice.findings.iter().find(|finding| matches!(finding, Finding::Chosen { .. }))
    else {
        assert_eq!(advice.recommendation.strategy, Strategy::NoPool);
        return;
    };
    assert_eq!(advice.recommendation.conf.as_ref(), Some(conf));
    assert!(*value <= best_value + margin, "{conf}: {value}, {best_value}, {margin}");
    let capacity = options.device_bytes;
    let usual = ["pages", "pages,mode:moving", "buckets", "expandable", "segments", "torch", "bfc", "buddy"];
    let others: Vec<(String, (usize, f64))> = usual
        .iter()
        .map(|policy| format!("policy:{policy}"))
        .filter_map(|conf| replayed(events, &conf, capacity).map(|figures| (conf, figures)))
        .collect();
    match measure {
        Measure::PeakReserved => {
            let own = replayed(events, conf, capacity).expect("what is advised completes").0;
            assert_eq!(own as f64, *value);
            let (best, (least, _)) = others.iter().min_by_key(|(_, (reserved, _))| *reserved).unwrap();
            let allowed = 0.05_f64.mul_add(*least as f64, *least as f64);
            let allowed = allowed.max(*least as f64 + 0.01 * capacity.unwrap_or(0) as f64);
            assert!(own as f64 <= allowed, "{conf} reserves {own}, {best} {least}");
        }
        Measure::Time => {
            let device = capacity.expect("time decides where memory is known to be plenty") as f64;
            let (reserved, mapping_us) = replayed(events, conf, capacity).unwrap();
            assert!(reserved as f64 <= 0.5 * device);
            // Bookkeeping is measured anew each time; mapping alone is below what the margin allows for both.
            assert!(mapping_us <= best_value + margin);
        }
    }
}

#[test]
fn a_step_that_repeats_is_planned() {
    let advice = usual(&repeated_step());
    assert_eq!(advice.recommendation.strategy, Strategy::StepPlan, "{advice}");
    let steps = advice.repeats.unwrap().steps.unwrap();
    // The weights are allocated in the first step, so the second is of a shape of its own.
    assert_eq!((steps.steps, steps.exact), (12, 10.0 / 11.0));
    assert!(steps.same_position > 0.9);
    let planned = advice.planned_steps.unwrap();
    assert!(planned.planned > 0.7, "{planned:?}");
    let builder = advice.recommendation.builder.unwrap();
    assert!(builder.contains("pool.step()"), "{builder}");
}

#[test]
fn for_sizes_that_never_come_again_memory_is_taken_in_advance() {
    let events = scattered_sizes();
    let advice = usual(&events);
    assert_eq!(advice.recommendation.strategy, Strategy::Preallocate, "{advice}");
    let Some(Finding::Scattered { same_size, plan_bytes, fixed_bytes, cached_bytes, .. }) =
        advice.findings.iter().find(|finding| matches!(finding, Finding::Scattered { .. }))
    else {
        panic!("{advice}")
    };
    assert_eq!(*same_size, 0.0);
    // A cache of equal sizes would keep everything; a plan needs little more than what lives.
    assert!(*cached_bytes > 3 * plan_bytes.unwrap(), "{advice}");
    let fixed_bytes = fixed_bytes.unwrap();
    let conf: Conf = advice.recommendation.conf.as_ref().unwrap().parse().unwrap();
    assert!(Sizing::new(conf, Margin::default()).completes_on(&events, fixed_bytes).unwrap());
    let environment = advice.recommendation.environment.unwrap();
    assert!(environment.ends_with(&format!("fixed_size_mb:{}", fixed_bytes >> 20)), "{environment}");
}

#[test]
fn a_small_model_on_a_large_device_needs_no_pool() {
    let events = small_model();
    let options = AdviceOptions {
        device_bytes: Some(80 * GIB),
        duration: Some(Duration::from_secs(60)),
        ..AdviceOptions::default()
    };
    let plenty = advice(&events, &options);
    assert_eq!(plenty.recommendation.strategy, Strategy::NoPool);
    assert_eq!(plenty.recommendation.conf, None);
    assert!(matches!(plenty.findings[0], Finding::NoPoolNeeded { .. }), "{plenty}");
    // Where allocations are a part of the run, where memory is short, and where one of both is not known, it is not said.
    for other in [
        AdviceOptions { duration: Some(Duration::from_millis(300)), ..options.clone() },
        AdviceOptions { device_bytes: Some(16 * MIB), ..options.clone() },
        AdviceOptions { duration: None, ..options.clone() },
        AdviceOptions { device_bytes: None, ..options.clone() },
    ] {
        let advice = advice(&events, &other);
        assert_ne!(advice.recommendation.strategy, Strategy::NoPool, "{advice}");
        let unknown = [
            other.duration.is_none().then_some(Unknown::Duration),
            other.device_bytes.is_none().then_some(Unknown::DeviceMemory),
        ];
        unknown.into_iter().flatten().for_each(|unknown| assert!(advice.unknown.contains(&unknown)));
    }
}

#[test]
fn small_survivors_in_large_segments_are_found_and_advised_against() {
    let events = survivors_in_large_blocks();
    let advice = usual(&events);
    let Some(Finding::StuckSegments { largest_survivor_bytes, free_bytes, reserved_bytes, .. }) =
        advice.findings.iter().find(|finding| matches!(finding, Finding::StuckSegments { .. }))
    else {
        panic!("{advice}")
    };
    assert!(*largest_survivor_bytes == 12 * MIB && *free_bytes > reserved_bytes / 3, "{advice}");
    let conf = advice.recommendation.conf.as_ref().unwrap();
    let (own, _) = replayed(&events, conf, None).unwrap();
    let (torch, _) = replayed(&events, "policy:torch", None).unwrap();
    assert!(
        ["policy:pages,mode:moving", "policy:buckets"].contains(&&**conf) && 5 * own < 3 * torch,
        "{advice}"
    );
    let (moving, _) = replayed(&events, "policy:pages,mode:moving", None).unwrap();
    assert!(5 * moving < 3 * torch);
    // Or the small ones have a pool of their own.
    let apart = advice.findings.iter().find_map(|finding| match finding {
        Finding::Apart { reserved_bytes, together_bytes, .. } => Some((*reserved_bytes, *together_bytes)),
        _ => None,
    });
    let (apart, together) = apart.unwrap();
    assert!(5 * apart < 3 * together && together == torch, "{apart} {together}");
}

#[test]
fn a_max_split_size_that_makes_more_be_reserved_is_rejected() {
    // A survivor keeps a large segment; then come large blocks of falling size, each of which has room for the next.
    let mut run = Run::default();
    let large = run.allocate(256 * MIB);
    run.free(large);
    run.allocate(12 * MIB);
    for step in 0..9 {
        let id = run.allocate((400 - 30 * step) * MIB);
        run.free(id);
    }
    let advice = usual(&run.events);
    let torch = advice.predictions.iter().find(|policy| policy.conf == "policy:torch").unwrap();
    let mut tried = 0;
    for finding in &advice.findings {
        let Finding::MaxSplit { conf, reserved_bytes, is_rejected, stuck_segment_bytes, .. } = finding else {
            continue;
        };
        tried += 1;
        let below_mb: usize = conf.rsplit(':').next().unwrap().parse().unwrap();
        assert!(below_mb << 20 < *stuck_segment_bytes, "{conf}");
        assert_eq!(replayed(&run.events, conf, None).unwrap().0, *reserved_bytes);
        assert_eq!(*is_rejected, *reserved_bytes > torch.peak_reserved_bytes, "{finding}");
        if *is_rejected {
            assert_ne!(advice.recommendation.conf.as_ref(), Some(conf));
        }
    }
    assert_eq!(tried, 2, "{advice}");
    let rejected = |finding: &Finding| matches!(finding, Finding::MaxSplit { is_rejected: true, .. });
    assert!(advice.findings.iter().any(rejected), "{advice}");
}

#[test]
fn caches_that_grow_by_being_made_anew_are_taken_once() {
    let events = growing_caches();
    let advice = usual(&events);
    assert_eq!(advice.recommendation.strategy, Strategy::PreallocateGrowing, "{advice}");
    let growth = advice.growth.unwrap();
    let last_bytes = 2 * MIB + 60 * 64 * 1024;
    assert_eq!((growth.buffers, growth.live_buffers), (8, 8));
    assert_eq!((growth.largest_bytes, growth.final_bytes), (last_bytes, 8 * last_bytes));
    assert!(growth.share > 0.7, "{growth:?}");
    let once = advice.grown_once.unwrap();
    // Work goes on beside them, and nothing lives twice.
    assert_eq!(once.peak_requested_bytes, 8 * last_bytes + 3 * MIB / 2);
}

#[test]
fn caches_grow_in_steps_where_most_is_needed_before_they_are_large() {
    // A prefill beside short caches needs most; caches of their last size beside it would need more.
    let mut run = Run::default();
    let mut caches: Vec<u64> = (0..8).map(|_| run.allocate(16 * MIB)).collect();
    let prefill: Vec<u64> = (0..4).map(|_| run.allocate(60 * MIB)).collect();
    prefill.into_iter().for_each(|id| run.free(id));
    let size_of = |token: usize| 16 * MIB + token * 40 * 1024;
    for token in 1..=100 {
        for cache in &mut caches {
            let longer = run.allocate(size_of(token));
            run.free(std::mem::replace(cache, longer));
        }
    }
    let advice = usual(&run.events);
    assert_eq!(advice.recommendation.strategy, Strategy::GrowInSteps, "{advice}");
    let (once, parts) = (advice.grown_once.unwrap(), advice.grown_in_parts.unwrap());
    assert_eq!(once.peak_requested_bytes, 240 * MIB + 8 * size_of(100));
    // 101 blocks each, a quarter of which are 25.
    assert_eq!(parts.peak_requested_bytes, 240 * MIB + 8 * size_of(24));
}

#[test]
fn sizes_that_rise_and_fall_are_no_growth() {
    for events in [repeated_step(), scattered_sizes(), survivors_in_large_blocks(), small_model()] {
        let share = usual(&events).growth.map_or(0.0, |growth| growth.share);
        assert!(share < 0.05, "{share}");
    }
}

#[test]
fn what_is_advised_is_as_good_as_it_says() {
    for events in
        [repeated_step(), scattered_sizes(), survivors_in_large_blocks(), growing_caches(), small_model()]
    {
        let peak = usual(&events).sizes.peak_requested_bytes;
        for device_bytes in [None, Some(100 * peak), Some(peak + peak / 10 + 8 * MIB)] {
            for duration in [None, Some(Duration::from_secs(1))] {
                is_as_good_as_it_says(
                    &events,
                    &AdviceOptions { device_bytes, duration, ..AdviceOptions::default() },
                );
            }
        }
    }
}

#[test]
fn more_than_the_device_has_is_told_first() {
    let options = AdviceOptions { device_bytes: Some(100 * MIB), ..AdviceOptions::default() };
    let advice = advice(&repeated_step(), &options);
    assert!(
        matches!(advice.findings[0], Finding::TooLarge { device_bytes, .. } if device_bytes == 100 * MIB)
    );
    assert!(advice.predictions.iter().all(|policy| !policy.completes));
}

#[test]
fn a_long_trace_is_replayed_around_its_peak_with_what_lived_before() {
    let mut run = Run::default();
    let weights = run.allocate(50 * MIB);
    for step in 0..200 {
        // Most lives at the end.
        let id = run.allocate((10 + step) * MIB);
        run.free(id);
    }
    let whole = usual(&run.events);
    let part = advise_on_part(&run.events, 100, &AdviceOptions::default(), |_| {}).unwrap();
    assert_eq!(part.sizes.peak_requested_bytes, whole.sizes.peak_requested_bytes);
    assert_eq!(part.sizes.requests, 51, "50 steps, and the weights from before: {part}");
    assert!(part.unknown.contains(&Unknown::Rest { events: 301 }), "{part}");
    assert!(part.to_string().contains("100 of 401 events"), "{part}");
    assert_eq!(weights, 1);
}

#[test]
fn traces_that_make_no_sense_are_refused() {
    let allocate = |id| Event::Allocate { id, size_bytes: 5, stream: 0 };
    let refused = |events: &[Event]| advise(events, &AdviceOptions::default(), |_| {}).unwrap_err();
    assert_eq!(refused(&[]), AdviceError::Empty);
    let twice = refused(&[allocate(1), allocate(1)]);
    assert_eq!(twice, AdviceError::Replay(ReplayError::LiveAlready { event: 2, id: 1 }));
    let unknown = refused(&[allocate(1), Event::Free { id: 2 }]);
    assert_eq!(unknown, AdviceError::Replay(ReplayError::NotLive { event: 2, id: 2 }));
}

#[test]
fn advice_goes_through_json_unchanged() {
    for events in [repeated_step(), scattered_sizes(), survivors_in_large_blocks(), growing_caches()] {
        let advice = usual(&events);
        let text = serde_json::to_string(&advice).unwrap();
        let read: Advice = serde_json::from_str(&text).unwrap();
        // The last digit of a share may change.
        assert_eq!((read.to_string(), read.unknown), (advice.to_string(), advice.unknown));
        assert_eq!((read.recommendation, read.evidence), (advice.recommendation, advice.evidence));
    }
}

#[test]
fn all_parts_are_told_of_before_they_are_done() {
    let mut told = Vec::new();
    let advice = advise(&repeated_step(), &AdviceOptions::default(), |progress| {
        told.push((progress.doing.to_owned(), progress.done, progress.of));
    });
    let policies = advice.unwrap().predictions.len();
    assert_eq!(told.len(), policies + 5);
    assert!(told.iter().zip(0..).all(|((_, done, of), at)| *done == at && *of == told.len() as u64));
}

#[test]
fn what_lies_where_tells_of_segments_that_small_blocks_keep() {
    let segment = |bytes: usize, maps_pages: bool, used: usize| LayoutSegment {
        bytes,
        maps_pages,
        used: vec![(used, used)],
    };
    let stuck = segment(512 * MIB, false, 2 * MIB);
    let full = segment(64 * MIB, false, 64 * MIB);
    let layout = Layout { segments: vec![stuck, full.clone()] };
    let advice = advise_on_layout(&layout, 3, &AdviceOptions::default()).unwrap();
    assert_eq!(advice.recommendation.conf.as_deref(), Some("policy:pages,mode:moving"));
    assert_eq!(advice.stuck.unwrap().free_bytes, 510 * MIB);
    assert!(advice.unknown.contains(&Unknown::Lifetimes) && advice.to_string().contains("too few to replay"));
    // Where pages are mapped one by one, nothing is stuck.
    let paged = Layout { segments: vec![segment(512 * MIB, true, 500 * MIB), full] };
    let advice = advise_on_layout(&paged, 0, &AdviceOptions::default()).unwrap();
    assert_eq!((advice.stuck, advice.recommendation.conf.as_deref()), (None, Some("policy:pages")));
    assert!(matches!(advice.findings[0], Finding::Fine { .. }));
    let nothing = advise_on_layout(&Layout::default(), 0, &AdviceOptions::default());
    assert_eq!(nothing, Err(AdviceError::Empty));
}

#[test]
fn counters_tell_hits_and_what_was_never_asked_for() {
    let mut stats = mempool_arena::Stats { hits: 10, misses: 990, ..mempool_arena::Stats::default() };
    stats.buckets[20].misses = 990;
    stats.buckets[20].hits = 10;
    stats.requested.increase(60 * MIB);
    stats.reserved.increase(64 * MIB);
    let few = advise_on_stats(&stats, &AdviceOptions::default()).unwrap();
    assert_eq!(few.recommendation.strategy, Strategy::Preallocate);
    // What was live and 15%, in whole pages.
    assert_eq!(few.recommendation.pool_bytes, Some(70 * MIB));
    assert_eq!(few.sizes.buckets[0].requests, 1000);
    assert_eq!((few.sizes.distinct, few.sizes.buckets[0].bytes), (None, None));
    (stats.hits, stats.misses) = (990, 10);
    stats.reserved.increase(100 * MIB);
    let fragmented = advise_on_stats(&stats, &AdviceOptions::default()).unwrap();
    assert_eq!(fragmented.recommendation.conf.as_deref(), Some("policy:pages,mode:moving"));
    assert!(fragmented.unknown.contains(&Unknown::SizesInBuckets));
    let unused = advise_on_stats(&mempool_arena::Stats::default(), &AdviceOptions::default());
    assert_eq!(unused, Err(AdviceError::Empty));
}

#[test]
fn what_lies_where_another_block_was_ended_it_unseen() {
    let at = |is_allocation, addr, size_bytes| Happening {
        is_allocation,
        addr,
        size_bytes,
        stream: 3,
        step: 0,
        time_us: 0,
    };
    let entries = [at(true, 10, 100), at(true, 10, 200), at(false, 77, 0)];
    let window = Window::new(entries, [(10, 200, 3), (50, 30, 3)]);
    let expected = [
        Event::Allocate { id: 3, size_bytes: 30, stream: 3 },
        Event::Allocate { id: 1, size_bytes: 100, stream: 3 },
        Event::Free { id: 1 },
        Event::Allocate { id: 2, size_bytes: 200, stream: 3 },
    ];
    assert_eq!(window.events, expected);
    assert_eq!((window.allocations, window.older_blocks, window.duration), (2, 1, None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_run_does_advice_is_as_good_as_it_says(
        steps in prop::collection::vec(prop::collection::vec((1_usize..200 * MIB, 0_usize..6, 0_u64..2), 1..12), 1..10),
        device in prop::option::of(0.5_f64..20.0),
    ) {
        let mut run = Run::default();
        let mut live: Vec<u64> = Vec::new();
        for step in steps {
            for (size_bytes, ends, stream) in step {
                let id = run.allocate(size_bytes);
                if let Some(Event::Allocate { stream: of, .. }) = run.events.last_mut() {
                    *of = stream;
                }
                live.push(id);
                for _ in 0..ends.min(live.len()) {
                    let at = size_bytes % live.len();
                    let id = live.swap_remove(at);
                    run.free(id);
                }
            }
            run.end_step();
        }
        let peak = Sizes::of(&run.events).peak_requested_bytes;
        let device_bytes = device.map(|factor| (peak as f64 * factor) as usize).filter(|&bytes| bytes >= peak + peak / 2 + 100 * MIB);
        let options = AdviceOptions { device_bytes, ..AdviceOptions::default() };
        is_as_good_as_it_says(&run.events, &options);
    }
}
