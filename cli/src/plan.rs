//! Planning offsets for what files tell: buffers with lifetimes, or the steps of recorded traces.

pub mod buffers;
/// Sorting traces by steps.
pub use mempool_pools::arena::trace::steps;

use std::time::Instant;

use mempool_pools::arena::plan::{Buffer, Plan, PlanError, Planner, verify};
use serde::Serialize;

/// What was planned. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the trace, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The step of the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// How many buffers there are.
    pub buffers: usize,
    /// The most that lives at one time.
    pub max_live_bytes: usize,
    /// The highest end.
    pub peak_bytes: usize,
    /// The second as a multiple of the first.
    pub ratio: f64,
    /// How long planning took.
    pub seconds: f64,
    /// Whether the plan fits the capacity; without one, it does.
    pub feasible: bool,
}

/// Plans, checks the plan with [`verify`], and reports.
///
/// # Errors
/// [`PlanError`] for buffers that cannot be planned.
pub fn plan(buffers: &[Buffer], planner: &Planner) -> Result<(Plan, Report), PlanError> {
    let start = Instant::now();
    let plan = planner.plan(buffers)?;
    let seconds = start.elapsed().as_secs_f64();
    verify(buffers, planner.granule_bytes, &plan)?;
    let report = Report {
        trace: None,
        step: None,
        buffers: buffers.len(),
        max_live_bytes: plan.max_live_bytes,
        peak_bytes: plan.peak_bytes,
        ratio: plan.ratio(),
        seconds,
        feasible: planner.capacity_bytes.is_none_or(|capacity| plan.peak_bytes <= capacity),
    };
    Ok((plan, report))
}
