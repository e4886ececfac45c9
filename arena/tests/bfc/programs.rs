//! Random programs: every block lies where TensorFlow's algorithm places it.

use mempool_arena::{Arena, Bfc, BfcOptions, Request, SimulatedUpstream};
use proptest::prelude::*;

use crate::model::Model;

const PAGE_BYTES: usize = 1 << 16;
const MAX_FRAGMENTATION_BYTES: usize = 3 * PAGE_BYTES;

#[derive(Debug, Clone)]
enum Step {
    Allocate { bytes: usize, align: usize },
    Free(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        4 => prop::sample::select(vec![0, 1, 256, 4096, 40_000, 65_536, 100_000, 262_144]),
        3 => 1..3_000_usize,
        2 => 1..300_000_usize,
        1 => 1..3_000_000_usize,
    ];
    // Up to a page, to which regions are aligned.
    let align = prop_oneof![4 => Just(1), 1 => (0..=16_u32).prop_map(|shift| 1 << shift)];
    prop_oneof![
        5 => (bytes, align).prop_map(|(bytes, align)| Step::Allocate { bytes, align }),
        4 => any::<prop::sample::Index>().prop_map(Step::Free),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn every_block_lies_where_tensorflow_places_it(
        steps in prop::collection::vec(step(), 1..300),
        falling in any::<bool>(),
    ) {
        let upstream = || SimulatedUpstream::builder().page_bytes(PAGE_BYTES).falling_addresses(falling).build();
        let options = BfcOptions {
            initial_region_bytes: PAGE_BYTES,
            max_internal_fragmentation_bytes: MAX_FRAGMENTATION_BYTES,
            ..BfcOptions::default()
        };
        let mut arena = Arena::new(Bfc::new(options).unwrap(), upstream());
        let mut model = Model::new(upstream(), PAGE_BYTES, MAX_FRAGMENTATION_BYTES);
        let mut live = Vec::new();
        for step in steps {
            match step {
                Step::Allocate { bytes, align } => {
                    let placed = arena.allocate(Request::new(bytes).aligned_to(align)).unwrap();
                    prop_assert_eq!((placed.addr, placed.allocated_bytes), model.allocate(bytes, align));
                    live.push(placed.addr);
                }
                Step::Free(at) if !live.is_empty() => {
                    let addr = live.swap_remove(at.index(live.len()));
                    arena.free(addr).unwrap();
                    model.free(addr);
                }
                Step::Free(_) => {}
            }
            arena.validate().unwrap();
        }
    }
}
