//! What to do, from what was found.
//!
//! First the policy: by what is reserved where memory may be short, else by time. Then what goes beyond a policy: growing
//! buffers taken once, steps planned, memory taken in advance, or no pool at all.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::apart::Apart;
use super::predict::{DEFAULT, Prediction, SAME_SIZE, TORCH};
use super::text::{Bytes, Micros};
use super::thresholds::{
    FEW_REPEATS, FEW_REQUESTS, MEMORY_MARGIN, MEMORY_OF_DEVICE, MUCH_STUCK, NEGLIGIBLE_OF_DURATION,
    NEGLIGIBLE_US, NEGLIGIBLE_US_PER_REQUEST, NO_POOL_OF_DEVICE, ROOMY, STEPS_REPEAT, TIME_MARGIN,
};
use super::{Advice, AdviceOptions, Evidence, Finding, Kind, Repeats, Unknown};

/// What to do about memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strategy {
    /// Nothing: memory is plenty and allocations take no time that matters.
    NoPool,
    /// A pool around the step, with the policy.
    Pool,
    /// A pool whose step is planned: each request finds its place by position.
    StepPlan,
    /// A pool that takes its memory in advance: sizes do not come again, so what was freed seldom fits.
    Preallocate,
    /// Buffers of their last size for what grows, and a pool for the rest.
    PreallocateGrowing,
    /// Buffers that grow in a few large steps instead of many small ones, and a pool for the rest.
    GrowInSteps,
}

/// By what a policy is better than another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// What is reserved at most, in bytes.
    PeakReserved,
    /// What mapping and bookkeeping take, in microseconds.
    Time,
}

impl Measure {
    /// A prediction's figure.
    #[must_use]
    pub fn of(self, prediction: &Prediction) -> f64 {
        match self {
            Self::PeakReserved => prediction.peak_reserved_bytes as f64,
            Self::Time => prediction.time_us(),
        }
    }

    pub(super) fn describe(self, value: f64) -> String {
        match self {
            Self::PeakReserved => Bytes(value as usize).to_string(),
            Self::Time => Micros(value).to_string(),
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PeakReserved => "what is reserved at most",
            Self::Time => "mapping and bookkeeping",
        })
    }
}

/// What to do and how to ask for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// What to do.
    pub strategy: Strategy,
    /// The policy and its options, as [`Conf`](crate::Conf) reads them; `None` without a pool.
    pub conf: Option<String>,
    /// The environment variable that makes it so, `MEMPOOL_CONF=...`.
    pub environment: Option<String>,
    /// The call that makes it so.
    pub builder: Option<String>,
    /// The size that a pool of fixed size needs, in bytes: it holds a run whose sizes are 5% larger, too. `None` where
    /// it is not known.
    pub pool_bytes: Option<usize>,
}

impl Recommendation {
    pub(super) fn undecided() -> Self {
        Self { strategy: Strategy::NoPool, conf: None, environment: None, builder: None, pool_bytes: None }
    }

    /// A strategy with a policy.
    pub(super) fn new(strategy: Strategy, conf: &str, pool_bytes: Option<usize>) -> Self {
        let size_mb = pool_bytes.map(|bytes| bytes >> 20);
        let fixed_mb = size_mb.filter(|_| strategy == Strategy::Preallocate);
        let environment = match fixed_mb {
            Some(mb) => format!("MEMPOOL_CONF={conf},fixed_size_mb:{mb}"),
            None => format!("MEMPOOL_CONF={conf}"),
        };
        let size = fixed_mb.map_or_else(String::new, |mb| format!(".fixed_size({mb} << 20)"));
        let conf_call = if conf == DEFAULT { String::new() } else { format!(".conf(\"{conf}\")?") };
        let pool = format!("let pool = MemPool::builder(&device){conf_call}{size}.build()?;");
        let builder = match strategy {
            Strategy::NoPool => return Self::undecided(),
            Strategy::Pool | Strategy::Preallocate => format!("{pool} pool.with(|| ...)"),
            Strategy::StepPlan => format!("{pool} let mut step = pool.step(); step.run(|| ...)"),
            Strategy::GrowInSteps => format!(
                "{pool} let cache = Tensor::zeros(with_room_for_a_quarter_more, dtype, &device)?; \
                 cache.slice_set(&new, dim, len)?"
            ),
            Strategy::PreallocateGrowing => {
                format!("{pool} let mut cache = pool.buffer_up_to(last_shape, dtype)?; cache.write(|| ...)")
            }
        };
        Self {
            strategy,
            conf: Some(conf.to_owned()),
            environment: Some(environment),
            builder: Some(builder),
            pool_bytes,
        }
    }
}

/// A policy, and how it compares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The policy and its options.
    pub conf: String,
    /// By what.
    pub measure: Measure,
    /// Its figure.
    pub value: f64,
    /// The policy that is best by that.
    pub best_conf: String,
    /// Its figure.
    pub best_value: f64,
    /// What is no more than this above the best is taken to be as good.
    pub margin: f64,
}

/// The policy for a run, out of those that were replayed, in the order of preference. There is one at least that is not
/// for comparison.
pub(super) fn choose(predictions: &[Prediction], requests: u64, options: &AdviceOptions) -> Choice {
    let mut usable: Vec<&Prediction> =
        predictions.iter().filter(|policy| !policy.is_for_comparison).collect();
    if usable.iter().any(|policy| policy.completes) {
        usable.retain(|policy| policy.completes);
    }
    let roomy = |policy: &Prediction| {
        options.device_bytes.is_some_and(|bytes| policy.peak_reserved_bytes as f64 <= ROOMY * bytes as f64)
    };
    let is_roomy = usable.iter().any(|policy| policy.conf == DEFAULT && roomy(policy));
    let least = |measure: Measure, of: &[&Prediction]| {
        of.iter().map(|policy| measure.of(policy)).min_by(f64::total_cmp).unwrap_or(0.0)
    };
    let least_bytes = least(Measure::PeakReserved, &usable);
    let of_device = options.device_bytes.map_or(0.0, |bytes| MEMORY_OF_DEVICE * bytes as f64);
    let memory_margin = (MEMORY_MARGIN * least_bytes).max(of_device);
    let as_small = |policy: &Prediction| policy.peak_reserved_bytes as f64 <= least_bytes + memory_margin;
    usable.retain(|policy| if is_roomy { roomy(policy) } else { as_small(policy) });
    let least_us = least(Measure::Time, &usable);
    let of_run =
        options.duration.map_or(NEGLIGIBLE_US, |run| NEGLIGIBLE_OF_DURATION * run.as_micros() as f64);
    let time_margin = (TIME_MARGIN * least_us).max(of_run).max(NEGLIGIBLE_US_PER_REQUEST * requests as f64);
    let chosen = usable.iter().find(|policy| policy.time_us() <= least_us + time_margin);
    let chosen = chosen.or(usable.first()).expect("policies are replayed that are not for comparison");
    let (measure, best_value, margin) = if is_roomy {
        (Measure::Time, least_us, time_margin)
    } else {
        (Measure::PeakReserved, least_bytes, memory_margin)
    };
    // The chosen one first: it may be as good as the best.
    let best = std::iter::once(chosen).chain(&usable).find(|policy| measure.of(policy) <= best_value);
    Choice {
        conf: chosen.conf.clone(),
        measure,
        value: measure.of(chosen),
        best_conf: best.unwrap_or(chosen).conf.clone(),
        best_value,
        margin,
    }
}

/// Fills in what to do and why.
pub(super) fn decide(
    advice: &mut Advice,
    choice: Choice,
    apart: Option<Apart>,
    pool_bytes: Option<usize>,
    options: &AdviceOptions,
) {
    let mut findings = Vec::new();
    let chosen = advice.predictions.iter().find(|policy| policy.conf == choice.conf);
    let chosen = chosen.expect("what is chosen was replayed").clone();
    let peak = chosen.peak_requested_bytes;
    let too_large = options.device_bytes.filter(|&bytes| peak > bytes);
    if let Some(device_bytes) = too_large {
        findings.push(Finding::TooLarge { peak_requested_bytes: peak, device_bytes });
    }
    let no_pool = no_pool(advice, peak, options);
    let is_worth = |reserved_bytes: usize| is_worth(reserved_bytes, &advice.predictions, &choice, options);
    let grows = growing(advice, &chosen, is_worth);
    let steps = steps(advice, &chosen, is_worth);
    let scattered = scattered(advice, pool_bytes);
    let strategy = if no_pool.is_some() {
        Strategy::NoPool
    } else if matches!(grows, Some(Finding::Growing { is_rejected: false, .. })) {
        Strategy::PreallocateGrowing
    } else if matches!(grows, Some(Finding::Growing { is_rejected_in_parts: Some(false), .. })) {
        Strategy::GrowInSteps
    } else if matches!(steps, Some(Finding::StepsRepeat { .. })) {
        Strategy::StepPlan
    } else if scattered.is_some() && pool_bytes.is_some() {
        Strategy::Preallocate
    } else {
        Strategy::Pool
    };
    let needs_no_pool = no_pool.is_some();
    findings.extend(no_pool);
    findings.extend(grows);
    findings.extend(steps);
    findings.extend(scattered);
    let repeats = advice.repeats.filter(|repeats| !has_few_repeats(repeats));
    if let Some(repeats) = repeats {
        let (same_size, same_size_bytes) = (repeats.same_size, repeats.same_size_bytes);
        findings.push(Finding::Repeating { same_size, same_size_bytes, hit_rate: chosen.hit_rate });
    }
    findings.extend(stuck(advice, apart));
    let Choice { conf, measure, value, best_conf, best_value, margin } = choice;
    let is_default = conf == DEFAULT;
    advice.recommendation = Recommendation::new(strategy, &conf, pool_bytes);
    if !needs_no_pool {
        if let (Some(unpooled_us), Some(duration)) = (advice.unpooled_us, options.duration) {
            let pooled_us = chosen.time_us();
            findings.push(Finding::PoolSavesTime { unpooled_us, pooled_us, duration });
        }
        findings.push(Finding::Chosen { conf, measure, value, best_conf, best_value, margin });
        if is_default {
            findings.push(Finding::IsDefault);
        }
    }
    advice.findings = findings;
    advice.unknown.extend(unknown(advice, options));
}

fn no_pool(advice: &Advice, peak_requested_bytes: usize, options: &AdviceOptions) -> Option<Finding> {
    let (device_bytes, duration) = (options.device_bytes?, options.duration?);
    let unpooled_us = advice.unpooled_us?;
    let is_small = peak_requested_bytes as f64 <= NO_POOL_OF_DEVICE * device_bytes as f64;
    let is_quick = unpooled_us <= NEGLIGIBLE_OF_DURATION * duration.as_micros() as f64;
    (is_small && is_quick).then_some(Finding::NoPoolNeeded {
        peak_requested_bytes,
        device_bytes,
        unpooled_us,
        duration,
    })
}

/// Whether something that saves time may reserve so much at most, where the policy alone reserves what it does.
pub(super) fn is_worth(
    reserved_bytes: usize,
    predictions: &[Prediction],
    choice: &Choice,
    options: &AdviceOptions,
) -> bool {
    let chosen = predictions.iter().find(|policy| policy.conf == choice.conf);
    let chosen_bytes = chosen.map_or(0, |policy| policy.peak_reserved_bytes);
    let most = match (choice.measure, options.device_bytes) {
        (Measure::Time, Some(device_bytes)) => ROOMY * device_bytes as f64,
        _ => (choice.best_value + choice.margin).max(chosen_bytes as f64),
    };
    reserved_bytes as f64 <= most
}

fn growing(advice: &Advice, chosen: &Prediction, is_worth: impl Fn(usize) -> bool) -> Option<Finding> {
    let (growth, once) = advice.growth.zip(advice.grown_once.as_ref())?;
    let once_reserved_bytes = once.peak_reserved_bytes;
    Some(Finding::Growing {
        live_buffers: growth.live_buffers,
        largest_bytes: growth.largest_bytes,
        final_bytes: growth.final_bytes,
        share: growth.share,
        once_reserved_bytes,
        reserved_bytes: chosen.peak_reserved_bytes,
        is_rejected: !is_worth(once_reserved_bytes),
        parts_reserved_bytes: advice.grown_in_parts.as_ref().map(|parts| parts.peak_reserved_bytes),
        is_rejected_in_parts: advice
            .grown_in_parts
            .as_ref()
            .map(|parts| !is_worth(parts.peak_reserved_bytes)),
    })
}

/// What steps tell: that they repeat, if planning them is worth its memory, or that they do not.
fn steps(advice: &Advice, chosen: &Prediction, is_worth: impl Fn(usize) -> bool) -> Option<Finding> {
    let steps = advice.repeats?.steps?;
    let (exact, same_position) = (steps.exact, steps.same_position);
    let differ = Finding::StepsDiffer { steps: steps.steps, exact, same_position };
    let Some(planned) = advice.planned_steps.filter(|planned| planned.plans > 0) else { return Some(differ) };
    if exact <= STEPS_REPEAT {
        return Some(differ);
    }
    let planned_reserved_bytes = planned.peak_reserved_bytes;
    let reserved_bytes = chosen.peak_reserved_bytes;
    if !is_worth(planned_reserved_bytes) {
        return Some(Finding::StepPlanTooLarge { exact, planned_reserved_bytes, reserved_bytes });
    }
    Some(Finding::StepsRepeat {
        steps: steps.steps,
        exact,
        planned: planned.planned,
        planned_reserved_bytes,
        reserved_bytes,
    })
}

fn has_few_repeats(repeats: &Repeats) -> bool {
    repeats.same_size < FEW_REPEATS && repeats.same_size_bytes < FEW_REPEATS
}

fn scattered(advice: &Advice, pool_bytes: Option<usize>) -> Option<Finding> {
    let repeats = advice.repeats?;
    let cached = advice.predictions.iter().find(|policy| policy.conf == SAME_SIZE)?;
    (has_few_repeats(&repeats) && advice.sizes.requests >= FEW_REQUESTS).then_some(Finding::Scattered {
        same_size: repeats.same_size,
        distinct: advice.sizes.distinct.unwrap_or(0),
        effective: advice.sizes.effective.unwrap_or(0.0),
        cached_bytes: cached.peak_reserved_bytes,
        plan_bytes: advice.offline_plan.map(|plan| plan.peak_bytes),
        fixed_bytes: pool_bytes,
    })
}

/// What small blocks in large segments cost with PyTorch's policy, and what was tried against it.
fn stuck(advice: &Advice, apart: Option<Apart>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let torch = advice.predictions.iter().find(|policy| policy.conf == TORCH);
    let Some(torch) = torch else { return findings };
    let together_bytes = torch.peak_reserved_bytes;
    if let Some(stuck) = advice.stuck.filter(|stuck| stuck.share() >= MUCH_STUCK) {
        findings.push(Finding::StuckSegments {
            segments: stuck.segments,
            free_bytes: stuck.free_bytes,
            reserved_bytes: stuck.reserved_bytes,
            largest_segment_bytes: stuck.largest_segment_bytes,
            largest_survivor_bytes: stuck.largest_survivor_bytes,
        });
        findings.extend(apart.map(|apart| Finding::Apart {
            min_bytes: apart.min_bytes,
            reserved_bytes: apart.reserved_bytes,
            together_bytes,
        }));
    }
    let tried = advice.predictions.iter().filter(|policy| policy.conf.contains("max_split_size_mb"));
    findings.extend(tried.map(|policy| Finding::MaxSplit {
        conf: policy.conf.clone(),
        reserved_bytes: policy.peak_reserved_bytes,
        without_bytes: together_bytes,
        stuck_segment_bytes: advice.stuck.map_or(0, |stuck| stuck.largest_segment_bytes),
        is_needed: policy.completes && !torch.completes,
        is_rejected: match (policy.completes, torch.completes) {
            (true, false) => false,
            (false, true) => true,
            _ => policy.peak_reserved_bytes > together_bytes,
        },
    }));
    findings
}

fn unknown(advice: &Advice, options: &AdviceOptions) -> Vec<Unknown> {
    let mut unknown = Vec::new();
    if options.device_bytes.is_none() {
        unknown.push(Unknown::DeviceMemory);
    }
    if options.duration.is_none() {
        unknown.push(Unknown::Duration);
    }
    if let Evidence::Run { events, replayed, .. } = advice.evidence {
        if advice.repeats.is_some_and(|repeats| repeats.steps.is_none()) {
            unknown.push(Unknown::Steps);
        }
        if advice.sizes.requests < FEW_REQUESTS {
            unknown.push(Unknown::Habits { requests: advice.sizes.requests });
        }
        if replayed < events {
            unknown.push(Unknown::Rest { events: events - replayed });
        }
        if advice.offline_plan.is_none() {
            unknown.push(Unknown::OfflinePlan);
        }
        if options.kind == Kind::Host {
            unknown.push(Unknown::HostCosts);
        }
    }
    unknown
}
