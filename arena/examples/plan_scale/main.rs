//! What the offline planner needs for large problems, in memory and in time.
//!
//! ```text
//! cargo run --release -p mempool-arena --example plan_scale -- [SECONDS]
//! ```
//!
//! The argument is the budget of each plan, 5 seconds by default; 0 makes the quick plans alone.

mod nets;

use std::time::{Duration, Instant};

use mempool_arena::plan::{Buffer, PlanError, Planner, verify};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(5.0), |text| text.parse())?;
    let planner = Planner { budget: Duration::try_from_secs_f64(seconds)?, ..Planner::default() };
    println!("{:<18} {:>9} {:>9} {:>9} {:>8}", "buffers of", "count", "ratio", "seconds", "cut");
    for layers in [2_000, 6_000, 100_000] {
        measure("trained_net", &nets::trained_net(layers, 1), &planner)?;
    }
    for blocks in [1_700, 5_000, 80_000] {
        measure("trained_decoder", &nets::trained_decoder(blocks, 1), &planner)?;
    }
    for count in [20_000, 100_000, 1_000_000] {
        measure("random_lifetimes", &nets::random_lifetimes(count, 1), &planner)?;
        measure("short_lifetimes", &nets::short_lifetimes(count, 1), &planner)?;
    }
    Ok(())
}

fn measure(name: &str, buffers: &[Buffer], planner: &Planner) -> Result<(), PlanError> {
    let start = Instant::now();
    let plan = planner.plan(buffers)?;
    let seconds = start.elapsed().as_secs_f64();
    verify(buffers, planner.granule_bytes, &plan)?;
    let (count, ratio, cut) = (buffers.len(), plan.ratio(), format!("{:?}", plan.cut));
    println!("{name:<18} {count:>9} {ratio:>9.6} {seconds:>9.3} {cut:>8}");
    Ok(())
}
