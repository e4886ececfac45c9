//! RMM's `random_allocations` on the simulated upstream: what the bookkeeping of a step costs
//! when 1,000, 10,000 and 100,000 blocks are live.
//!
//! The program of RMM's benchmark: 2 N steps; each draws a size of 1 byte to 1 MiB and allocates
//! it when nothing is live, or with probability 0.73 while fewer than N allocations were made
//! and the live bytes stay under 16,000 MiB; else it frees a random live block.

use std::time::Instant;

use mempool_arena::{Arena, Buddy, BuddyOptions, Pages, PagesOptions, Placement, Request, SimulatedUpstream};
use mempool_benches::statistics::median;

const MAX_BYTES: u64 = 1 << 20;
const CAP_BYTES: usize = 16_000 << 20;
const ROUNDS: usize = 9;

/// A linear congruential generator (the constants are those of MMIX): the draws must cost little
/// beside what is measured.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}

/// Nanoseconds a step, and the placement as the run left it.
fn run<P: Placement>(placement: P, count: usize) -> (f64, Arena<SimulatedUpstream, P>) {
    let mut arena = Arena::new(placement, SimulatedUpstream::builder().build());
    let mut draws = Draws(count as u64);
    let mut live: Vec<(usize, usize)> = Vec::with_capacity(count);
    let (mut live_bytes, mut allocations) = (0, 0);
    let start = Instant::now();
    for _ in 0..2 * count {
        let size = 1 + draws.below(MAX_BYTES) as usize;
        let wanted = draws.below(100) < 73 && allocations < count && live_bytes + size < CAP_BYTES;
        if live.is_empty() || wanted {
            let placed = arena.allocate(Request::new(size)).expect("the simulated upstream has no end");
            live.push((placed.addr, size));
            live_bytes += size;
            allocations += 1;
        } else {
            let (addr, size) = live.swap_remove(draws.below(count as u64) as usize % live.len());
            arena.free(addr).expect("the block is live");
            live_bytes -= size;
        }
    }
    (start.elapsed().as_nanos() as f64 / (2 * count) as f64, arena)
}

/// The same draws without an arena, to be taken off.
fn baseline(count: usize) -> f64 {
    let mut draws = Draws(count as u64);
    let start = Instant::now();
    for _ in 0..2 * count {
        std::hint::black_box((draws.below(MAX_BYTES), draws.below(100)));
    }
    start.elapsed().as_nanos() as f64 / (2 * count) as f64
}

fn main() -> Result<(), mempool_arena::ArenaError> {
    println!(
        "{:<8} {:>8} {:>9} {:>11} {:>14} {:>14}",
        "policy", "N", "ns/step", "x N=1,000", "probes/search", "fragmentation"
    );
    let mut first = [0.0; 2];
    for count in [1_000, 10_000, 100_000] {
        let mut times = [Vec::new(), Vec::new()];
        let (mut probes, mut fragmentation) = (0.0, [0.0; 2]);
        for _ in 0..ROUNDS {
            let overhead = baseline(count);
            // Short runs are repeated, so that a time slice lost to others does not decide.
            for _ in 0..(10_000 / count).max(1) {
                let (ns, arena) = run(Pages::new(PagesOptions::default())?, count);
                times[0].push(ns - overhead);
                probes =
                    arena.placement().index_probes() as f64 / arena.stats().blocks.total_allocated as f64;
                fragmentation[0] = arena.stats().run_fragmentation();
            }
            let (ns, arena) = run(Buddy::new(BuddyOptions::default())?, count);
            times[1].push(ns - overhead);
            fragmentation[1] = arena.stats().run_fragmentation();
        }
        for (policy, name) in ["pages", "buddy"].into_iter().enumerate() {
            let ns = median(&times[policy]);
            if count == 1_000 {
                first[policy] = ns;
            }
            let probes = if policy == 0 { format!("{probes:.2}") } else { "-".to_owned() };
            println!(
                "{name:<8} {count:>8} {ns:>9.1} {:>11.2} {probes:>14} {:>13.1}%",
                ns / first[policy],
                100.0 * fragmentation[policy]
            );
        }
    }
    Ok(())
}
