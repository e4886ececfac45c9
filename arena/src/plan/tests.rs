use std::time::Duration;

use proptest::prelude::*;

use super::*;

mod limits;
#[path = "../../examples/plan_scale/nets.rs"]
mod nets;
mod strategies;

const LONG: Duration = Duration::from_secs(20);

fn optimal() -> Planner {
    Planner { budget: LONG, tolerance: 0.0, ..Planner::default() }
}

/// The lowest peak, by trying every order: any placement can be pushed down, and then listing its buffers by offset
/// gives an order that places them as low or lower.
fn lowest_peak(buffers: &[Buffer], granule: usize) -> usize {
    fn place(
        buffers: &[Buffer],
        granule: usize,
        placed: &mut Vec<(usize, usize)>,
        peak: usize,
        best: &mut usize,
    ) {
        if peak >= *best {
            return;
        }
        if placed.len() == buffers.len() {
            *best = peak;
            return;
        }
        for (index, buffer) in buffers.iter().enumerate() {
            if placed.iter().any(|&(other, _)| other == index) {
                continue;
            }
            let meets = |&&(other, _): &&(usize, usize)| {
                let other: &Buffer = &buffers[other];
                other.lower < buffer.upper && buffer.lower < other.upper
            };
            let tops = placed.iter().filter(meets).map(|&(other, offset)| offset + buffers[other].size_bytes);
            let align = lcm(buffer.align_bytes, granule).unwrap();
            let offset = tops.max().unwrap_or(0).next_multiple_of(align);
            placed.push((index, offset));
            place(buffers, granule, placed, peak.max(offset + buffer.size_bytes), best);
            placed.pop();
        }
    }
    let with_bytes: Vec<Buffer> = buffers.iter().copied().filter(|buffer| buffer.size_bytes > 0).collect();
    let mut best = usize::MAX;
    place(&with_bytes, granule, &mut Vec::new(), 0, &mut best);
    best
}

fn buffer(times: u64, sizes: usize, aligns: usize) -> impl Strategy<Value = Buffer> {
    (0..times, 1..=times, 0..=sizes, 1..=aligns).prop_map(|(lower, length, size_bytes, align_bytes)| Buffer {
        lower,
        upper: lower + length,
        size_bytes,
        align_bytes,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn tiny_problems_are_planned_as_low_as_can_be(buffers in prop::collection::vec(buffer(6, 12, 1), 0..7)) {
        let plan = optimal().plan(&buffers).unwrap();
        prop_assert_eq!(verify(&buffers, 1, &plan), Ok(()));
        prop_assert_eq!(plan.peak_bytes, lowest_peak(&buffers, 1));
    }

    #[test]
    fn alignments_are_kept_and_cost_as_little_as_can_be(
        buffers in prop::collection::vec(buffer(6, 9, 6), 0..6),
        granule in 1..4_usize,
    ) {
        let plan = Planner { granule_bytes: granule, ..optimal() }.plan(&buffers).unwrap();
        prop_assert_eq!(verify(&buffers, granule, &plan), Ok(()));
        prop_assert_eq!(plan.peak_bytes, lowest_peak(&buffers, granule));
    }

    #[test]
    fn plans_hold_what_lives_and_are_the_same_each_time(
        buffers in prop::collection::vec(buffer(60, 1 << 20, 4), 0..200),
        granule in 1..1000_usize,
    ) {
        let planner = Planner { granule_bytes: granule, ..Planner::default() };
        let plan = planner.plan(&buffers).unwrap();
        prop_assert_eq!(verify(&buffers, granule, &plan), Ok(()));
        prop_assert!(plan.peak_bytes >= plan.max_live_bytes);
        prop_assert!(plan.ratio() >= 1.0);
        prop_assert_eq!(planner.plan(&buffers).unwrap(), plan);
    }

    #[test]
    fn a_placement_that_there_is_is_found(seed in any::<u64>(), count in 1..120_usize) {
        let (buffers, capacity) = full(seed, count);
        let planner = Planner { capacity_bytes: Some(capacity), budget: LONG, ..Planner::default() };
        let plan = planner.plan(&buffers).unwrap();
        prop_assert_eq!(verify(&buffers, 1, &plan), Ok(()));
        prop_assert!(plan.peak_bytes <= capacity, "{} > {}", plan.peak_bytes, capacity);
    }
}

/// Buffers that fill a rectangle of time and bytes to the last: it is cut in two until there are so many.
fn full(seed: u64, count: usize) -> (Vec<Buffer>, usize) {
    const SIDE: usize = 1 << 10;
    let mut random = random::Random::new(seed);
    let mut parts = vec![(0, SIDE, 0, SIDE)];
    for _ in 0..4 * count {
        if parts.len() >= count {
            break;
        }
        let at = random.below(parts.len());
        let (lower, upper, bottom, top) = parts[at];
        let (long, high) = (upper - lower, top - bottom);
        if random.below(long + high) < long {
            if long > 1 {
                let cut = lower + 1 + random.below(long - 1);
                parts[at] = (lower, cut, bottom, top);
                parts.push((cut, upper, bottom, top));
            }
        } else if high > 1 {
            let cut = bottom + 1 + random.below(high - 1);
            parts[at] = (lower, upper, bottom, cut);
            parts.push((lower, upper, cut, top));
        }
    }
    let buffer = |&(lower, upper, bottom, top): &(usize, usize, usize, usize)| {
        Buffer::new(lower as u64, upper as u64, top - bottom)
    };
    (parts.iter().map(buffer).collect(), SIDE)
}

#[test]
fn deep_nets_need_little_more_than_what_lives() {
    for layers in [1, 10, 300, 2_300] {
        let buffers = nets::trained_net(layers, layers);
        let plan = Planner::default().plan(&buffers).unwrap();
        assert_eq!(verify(&buffers, 1, &plan), Ok(()));
        assert!(plan.ratio() <= 1.01, "{layers}: {}", plan.ratio());
    }
    for blocks in [1, 2, 40, 1_700] {
        let buffers = nets::trained_decoder(blocks, blocks);
        let plan = Planner::default().plan(&buffers).unwrap();
        assert_eq!(verify(&buffers, 1, &plan), Ok(()));
        assert!(plan.ratio() <= 1.01, "{blocks}: {}", plan.ratio());
    }
}

#[test]
fn nothing_needs_nothing() {
    let plan = optimal().plan(&[]).unwrap();
    assert_eq!(plan, Plan::default());
    assert_eq!(plan.ratio(), 1.0);
    let empty = [Buffer::new(0, 1, 0), Buffer::new(0, 2, 0)];
    assert_eq!(optimal().plan(&empty).unwrap().peak_bytes, 0);
}

#[test]
fn what_cannot_be_planned_is_an_error_that_names_the_buffer() {
    let planner = Planner::default();
    let fine = Buffer::new(0, 1, 1);
    for (lower, upper) in [(1, 1), (2, 1)] {
        let buffers = [fine, Buffer::new(lower, upper, 0)];
        assert_eq!(planner.plan(&buffers), Err(PlanError::Lifetime { index: 1, lower, upper }));
    }
    let aligned = |align_bytes| [fine, Buffer { align_bytes, ..fine }];
    for align_bytes in [0, usize::MAX] {
        let planner = Planner { granule_bytes: 2, ..Planner::default() };
        let expected = PlanError::Alignment { index: 1, align_bytes, granule_bytes: 2 };
        assert_eq!(planner.plan(&aligned(align_bytes)), Err(expected));
    }
    assert!(Planner { granule_bytes: 0, ..Planner::default() }.plan(&[fine]).is_err());
    assert!(matches!(planner.plan(&aligned(usize::MAX)), Err(PlanError::TooLarge { count: 2, .. })));
    for size_bytes in [usize::MAX, usize::MAX / 4] {
        let buffers = [Buffer::new(0, 1, size_bytes), Buffer::new(1, 2, size_bytes)];
        assert!(matches!(planner.plan(&buffers), Err(PlanError::TooLarge { .. })), "{size_bytes}");
    }
}

#[test]
fn a_capacity_that_is_too_small_is_told_and_soon() {
    // Each section holds 4, and still 5 are needed.
    let buffers = [(0, 2, 2), (2, 4, 2), (1, 3, 1), (0, 1, 1), (0, 4, 1), (3, 4, 1)]
        .map(|(lower, upper, size)| Buffer::new(lower, upper, size));
    let least = lowest_peak(&buffers, 1);
    let planner = Planner { capacity_bytes: Some(least - 1), budget: LONG, ..Planner::default() };
    let start = std::time::Instant::now();
    assert_eq!(planner.plan(&buffers).unwrap().peak_bytes, least);
    assert!(start.elapsed() < LONG / 2, "the proof ends the search");
}

#[test]
fn sizes_beyond_31_bits_are_searched_in_larger_units() {
    let (mut buffers, side) = full(3, 20);
    let scale = (1 << 40) + 1;
    for buffer in &mut buffers {
        buffer.size_bytes *= scale;
    }
    // One byte more than a multiple of anything.
    buffers.push(Buffer::new(2000, 2001, 1));
    let capacity = side * scale + side * scale / 1000;
    let planner = Planner { capacity_bytes: Some(capacity), budget: LONG, ..Planner::default() };
    let plan = planner.plan(&buffers).unwrap();
    assert_eq!(verify(&buffers, 1, &plan), Ok(()));
    assert!(plan.peak_bytes <= capacity);
}

#[test]
fn wrong_plans_are_found_out() {
    let buffers = [Buffer::new(0, 2, 4), Buffer::new(1, 3, 4), Buffer::new(2, 4, 4)];
    let plan = |offsets: [usize; 3], peak_bytes| Plan {
        offsets: offsets.to_vec(),
        peak_bytes,
        max_live_bytes: 8,
        ..Plan::default()
    };
    assert_eq!(verify(&buffers, 4, &plan([0, 4, 0], 8)), Ok(()));
    for offsets in [[0, 3, 0], [4, 1, 4], [0, 0, 4], [2, 4, 0]] {
        let found = verify(&buffers, 1, &plan(offsets, 8));
        assert!(matches!(found, Err(PlanError::Overlap { .. })), "{offsets:?}: {found:?}");
    }
    let found = verify(&buffers, 4, &plan([0, 6, 0], 10));
    assert_eq!(found, Err(PlanError::Misaligned { index: 1, offset_bytes: 6, align_bytes: 4 }));
    assert_eq!(
        verify(&buffers, 1, &plan([0, 4, 0], 9)),
        Err(PlanError::Peak { end_bytes: 8, peak_bytes: 9 })
    );
    assert!(matches!(verify(&buffers[..2], 1, &plan([0, 4, 0], 8)), Err(PlanError::Count { .. })));
    assert!(matches!(verify(&buffers, 1, &plan([0, usize::MAX, 0], 8)), Err(PlanError::TooLarge { .. })));
}
