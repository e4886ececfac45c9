//! Plans large nets of random sizes and prints how near the plans come to what lives, and how long that takes.
//!
//! Nets are trained: each layer keeps outputs for its way back, has memory for the moment on both ways, parameters
//! that live from end to end, and hands something on to a layer further away. Sizes are random: a few that come
//! again and again, as in transformers; forty of any magnitude; or all different.

use std::time::Instant;

use mempool_arena::plan::{Buffer, PlanError, Planner, verify};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How sizes are drawn.
#[derive(Debug, Clone, Copy)]
enum Sizes {
    Few,
    Forty,
    All,
}

fn main() -> Result<(), PlanError> {
    println!("{:>7} {:>6} {:>9} {:>8}", "buffers", "sizes", "ratio", "seconds");
    for count in [3_000, 20_000, 60_000] {
        for sizes in [Sizes::Few, Sizes::Forty, Sizes::All] {
            let buffers = net(count, sizes, &mut StdRng::seed_from_u64(count as u64));
            let start = Instant::now();
            let plan = Planner::default().plan(&buffers)?;
            let seconds = start.elapsed().as_secs_f64();
            verify(&buffers, 1, &plan)?;
            let sizes = format!("{sizes:?}").to_lowercase();
            println!("{:>7} {sizes:>6} {:>9.5} {seconds:>8.3}", buffers.len(), plan.ratio());
        }
    }
    Ok(())
}

/// About so many buffers.
fn net(count: usize, sizes: Sizes, random: &mut StdRng) -> Vec<Buffer> {
    const FEW: [usize; 8] = [4 << 10, 16 << 10, 64 << 10, 1 << 20, 2_621_440, 10 << 20, 20 << 20, 40 << 20];
    let any = |random: &mut StdRng| 2.0_f64.powf(random.random_range(2.0..26.0)) as usize;
    let forty: Vec<usize> = (0..40).map(|_| any(random)).collect();
    let size = |random: &mut StdRng| match sizes {
        Sizes::Few => FEW[random.random_range(0..FEW.len())],
        Sizes::Forty => forty[random.random_range(0..forty.len())],
        Sizes::All => any(random),
    };
    let layers = count as u64 / 11;
    let end = 8 * layers;
    let mut buffers = Vec::new();
    for layer in 0..layers {
        let (there, back) = (4 * layer, end - 4 * layer);
        let mut add = |lower: u64, upper: u64, random: &mut StdRng| {
            buffers.push(Buffer::new(lower, upper.clamp(lower + 1, end.max(lower + 1)), size(random)));
        };
        let lower = if random.random_bool(0.3) { 0 } else { there };
        let upper = if random.random_bool(0.3) { end } else { back };
        add(lower, upper, random);
        for step in 0..2 {
            add(there + step, back - random.random_range(0..4), random);
        }
        for step in 0..3 {
            add(there + step, there + step + random.random_range(1..6), random);
        }
        for step in 0..5 {
            add(
                back.saturating_sub(6) + step,
                back.saturating_sub(6) + step + random.random_range(1..7),
                random,
            );
        }
        if random.random_bool(0.3) {
            add(there, there + random.random_range(5..400), random);
        }
    }
    buffers
}
