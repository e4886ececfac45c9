//! Random programs on real memory: every live block keeps its pattern, on every policy, on
//! several pools and threads.

use mempool_pools::MemPool;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        pool: usize,
        len: usize,
        zeroed: bool,
    },
    Free(prop::sample::Index),
    Resize(prop::sample::Index, usize),
    Trim(usize),
    /// Drops the handle and makes a new pool in its place; the blocks stay.
    Replace(usize),
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => prop::sample::select(vec![16_384, 65_536, 1 << 20, 3 << 20, 5 << 20]),
        2 => 1..200_000_usize,
        1 => 1..6_000_000_usize,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..2_usize, len(), any::<bool>())
            .prop_map(|(pool, len, zeroed)| Step::Allocate { pool, len, zeroed }),
        6 => any::<prop::sample::Index>().prop_map(Step::Free),
        2 => (any::<prop::sample::Index>(), len()).prop_map(|(at, len)| Step::Resize(at, len)),
        1 => (0..2_usize).prop_map(Step::Trim),
        1 => (0..2_usize).prop_map(Step::Replace),
    ]
}

/// A block and the byte it is filled with. Only a page's first and last bytes are written, so
/// that a program of many megabytes runs in milliseconds.
pub(super) struct Pattern {
    bytes: Vec<u8>,
    tag: u8,
}

impl Pattern {
    pub(super) fn new(mut bytes: Vec<u8>, tag: u8) -> Self {
        Self::places(bytes.len()).for_each(|at| bytes[at] = tag);
        Self { bytes, tag }
    }

    fn places(len: usize) -> impl Iterator<Item = usize> {
        (0..len).step_by(4096).flat_map(move |at| [at, (at + 4095).min(len - 1)])
    }

    pub(super) fn check(&self) {
        Self::places(self.bytes.len()).for_each(|at| assert_eq!(self.bytes[at], self.tag));
    }
}

/// How a pool of the host can place its blocks: each policy, and what changes its course.
const KINDS: &[&str] = &[
    "policy:none",
    "policy:simple",
    "policy:buckets",
    "policy:buckets,small_limit_mb:2,medium_limit_mb:4,max_cached_mb:8,slack_percent:off",
    "policy:buddy",
    "policy:bfc",
    "policy:bfc,allow_growth:False,limit_mb:16",
    "policy:torch",
    "policy:torch,max_split_size_mb:20,large_segment_size_mb:2,garbage_collection_threshold:0.5,limit_mb:16",
    "policy:expandable",
    "policy:expandable,roundup_power2_divisions:4",
    "policy:pages",
    "policy:pages,mode:on_pressure",
    "policy:pages,separate_lifetimes:True",
    "policy:pages,no_split:True",
];

fn run(kind: &str, limit: Option<usize>, steps: &[Step]) {
    let make = || {
        let builder = MemPool::builder().conf(kind).unwrap();
        limit.into_iter().fold(builder, |builder, limit| builder.limit(limit)).build().unwrap()
    };
    let mut pools = [make(), make()];
    let mut live: Vec<Pattern> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let tag = number as u8 | 1;
        match *step {
            Step::Allocate { pool, len, zeroed } => {
                let bytes = pools[pool].with(|| if zeroed { vec![0; len] } else { vec![tag; len] });
                assert!(!zeroed || Pattern::places(len).all(|at| bytes[at] == 0));
                live.push(Pattern::new(bytes, tag));
            }
            Step::Free(at) if !live.is_empty() => {
                live.swap_remove(at.index(live.len())).check();
            }
            Step::Resize(at, len) if !live.is_empty() => {
                let at = at.index(live.len());
                let Pattern { mut bytes, tag: old } = live.swap_remove(at);
                let kept = bytes.len().min(len);
                bytes.resize(len, tag);
                bytes.shrink_to_fit();
                Pattern::places(kept).filter(|at| at % 4096 == 0).for_each(|at| assert_eq!(bytes[at], old));
                live.push(Pattern::new(bytes, tag));
            }
            Step::Free(_) | Step::Resize(..) => {}
            Step::Trim(pool) => {
                pools[pool].trim().unwrap();
            }
            Step::Replace(pool) => pools[pool] = make(),
        }
        live.iter().for_each(Pattern::check);
        pools.iter().for_each(|pool| pool.validate().unwrap());
    }
    drop(live);
    for pool in &pools {
        assert_eq!(pool.stats().requested.current, 0);
        pool.validate().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn live_blocks_keep_their_contents(
        kind in prop::sample::select(KINDS),
        limit in prop_oneof![Just(None), (2_usize << 20..20 << 20).prop_map(Some)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(kind, limit, &steps);
    }

    #[test]
    fn live_blocks_of_several_threads_keep_their_contents(
        programs in prop::collection::vec(
            (prop::sample::select(KINDS), prop::collection::vec(step(), 1..30)),
            4,
        ),
    ) {
        std::thread::scope(|threads| {
            for (kind, program) in &programs {
                threads.spawn(|| run(kind, None, program));
            }
        });
    }
}

#[test]
fn zeroed_blocks_are_zero_where_memory_moves_and_the_others_keep_what_they_hold() {
    let pool = MemPool::new().unwrap();
    let mut live: Vec<Pattern> = Vec::new();
    // Lengths that never repeat themselves: memory does not move for steps that do.
    let mut random = 1_u64;
    for at in 0..600_usize {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let len = 40_000 + (random >> 33) as usize % 5_000_000;
        let block = pool.with(|| vec![0_u8; len]);
        assert!(block.chunks(1 << 16).all(|chunk| chunk == &[0; 1 << 16][..chunk.len()]), "block {at}");
        let mut block = Pattern::new(block, at as u8 | 1);
        block.bytes.fill(block.tag);
        live.push(block);
        if live.len() > 12 {
            live.swap_remove(at * 104_729 % live.len()).check();
        }
    }
    live.iter().for_each(Pattern::check);
    let stats = pool.stats();
    assert!(stats.moved_bytes > 16 << 20, "{} bytes moved", stats.moved_bytes);
    pool.validate().unwrap();
}
