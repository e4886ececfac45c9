//! The targets the pool is held to, and the checks of a comparison against them.

use super::outcome::Outcome;
use crate::allocator::Allocator;
use crate::statistics::geometric_mean;
use crate::workload;
use serde::Serialize;
use std::fmt;

/// A bound on a measured value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The value must not be below this.
    AtLeast(f64),
    /// The value must not be above this.
    AtMost(f64),
}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(out, "at least {bound}"),
            Self::AtMost(bound) => write!(out, "at most {bound}"),
        }
    }
}

/// One measured value and its target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What was measured.
    pub what: String,
    /// The value; none where the workloads it needs were not run.
    pub measured: Option<f64>,
    /// Its bound.
    pub target: Target,
}

impl Check {
    /// Whether the target was measured and missed. NaN misses every target.
    pub fn missed(&self) -> bool {
        self.measured.is_some_and(|value| !match self.target {
            Target::AtLeast(bound) => value >= bound,
            Target::AtMost(bound) => value <= bound,
        })
    }

    /// The verdict in a word.
    pub fn verdict(&self) -> &'static str {
        match (self.measured, self.missed()) {
            (None, _) => "not run",
            (_, true) => "MISSED",
            (_, false) => "met",
        }
    }
}

/// The geometric mean of the ratios against glibc.
pub fn geomean_against_glibc(outcomes: &[Outcome]) -> f64 {
    let ratios: Vec<_> = outcomes.iter().map(|outcome| outcome.ratio(Allocator::Glibc)).collect();
    geometric_mean(&ratios)
}

/// Every check, those whose workloads were not run included.
pub fn check(outcomes: &[Outcome]) -> Vec<Check> {
    use Target::{AtLeast, AtMost};
    let find = |name: &str| outcomes.iter().find(|outcome| outcome.workload == name);
    let against_glibc = |name: &str| find(name).map(|outcome| outcome.ratio(Allocator::Glibc));
    // A mean over part of the workloads has no target.
    let geomean = (outcomes.len() == workload::ALL.len()).then(|| geomean_against_glibc(outcomes));
    let resident = find("bert_changing").map(|outcome| {
        let peak = |allocator| outcome.peak_resident_mib(allocator);
        peak(Allocator::Pool) / peak(Allocator::Glibc)
    });

    let mut checks = vec![
        Check::new("chain_64mb, times glibc", against_glibc("chain_64mb"), AtLeast(2.5)),
        Check::new("transformer, times glibc", against_glibc("transformer"), AtLeast(1.15)),
        Check::new("geometric mean, times glibc", geomean, AtLeast(1.35)),
        Check::worst("times glibc", outcomes, AtLeast(0.97), |outcome| Some(outcome.ratio(Allocator::Glibc))),
        Check::worst("times the best peer", outcomes, AtLeast(0.97), |outcome| Some(outcome.best_peer().1)),
        Check::worst("page faults a step, fixed shapes", outcomes, AtMost(5.0), |outcome| {
            outcome.fixed_shape.then(|| outcome.step_faults(Allocator::Pool))
        }),
        Check::worst("commits and returns by pools, fixed shapes", outcomes, AtMost(0.0), |outcome| {
            outcome.pool_system_calls().filter(|_| outcome.fixed_shape)
        }),
        Check::new("bert_changing, peak memory over glibc's", resident, AtMost(1.05)),
    ];
    let differing = outcomes.iter().filter(|outcome| !outcome.checksums_agree());
    let names: Vec<_> = differing.map(|outcome| outcome.workload.as_str()).collect();
    let what = match names.as_slice() {
        [] => "workloads with differing checksums".to_owned(),
        some => format!("workloads with differing checksums ({})", some.join(", ")),
    };
    checks.push(Check::new(&what, Some(names.len() as f64), AtMost(0.0)));
    checks
}

impl Check {
    fn new(what: &str, measured: Option<f64>, target: Target) -> Self {
        Self { what: what.to_owned(), measured, target }
    }

    /// The value farthest on the wrong side over all workloads that have one, with its name.
    fn worst(
        what: &str,
        outcomes: &[Outcome],
        target: Target,
        value: impl Fn(&Outcome) -> Option<f64>,
    ) -> Self {
        let badness = |value: f64| match target {
            Target::AtLeast(_) => -value,
            Target::AtMost(_) => value,
        };
        let values = outcomes.iter().filter_map(|outcome| Some((outcome, value(outcome)?)));
        let worst = values.max_by(|a, b| badness(a.1).total_cmp(&badness(b.1)));
        match worst {
            Some((outcome, value)) => {
                Self::new(&format!("worst {what} ({})", outcome.workload), Some(value), target)
            }
            None => Self::new(&format!("worst {what}"), None, target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{Outcome, fixture::outcome};
    use super::{Check, Target, check};
    use crate::allocator::Allocator;
    use crate::workload;

    /// All workloads with glibc at `glibc` times the pool and the other peers level with it.
    fn all(glibc: f64) -> Vec<Outcome> {
        let of = |spec: &workload::Spec| outcome(spec.name, [10.0 * glibc, 10.0, 10.0, 10.0]);
        workload::ALL.iter().map(of).collect()
    }

    fn missed(outcomes: &[Outcome]) -> Vec<String> {
        let checks = check(outcomes).into_iter().filter(Check::missed);
        checks.map(|check| check.what).collect()
    }

    #[test]
    fn a_fast_pool_meets_all() {
        assert_eq!(missed(&all(3.0)), [""; 0]);
    }

    #[test]
    fn a_level_pool_misses_the_speedups() {
        let names = missed(&all(1.0));
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(names[2].starts_with("geometric mean"), "{names:?}");
    }

    #[test]
    fn the_worst_workload_is_named() {
        let mut outcomes = all(3.0);
        outcomes[3] = outcome("mlp_train", [9.0, 30.0, 30.0, 10.0]);
        outcomes[4].rounds[0][Allocator::Pool.index()].median_step_faults = 6.0;
        outcomes[5].rounds[0][Allocator::Pool.index()].peak_resident_kib *= 2;
        outcomes[6].rounds[0][Allocator::Pool.index()].checksum = "01".to_owned();
        let names = missed(&outcomes);
        let expected = [
            "worst times glibc (mlp_train)",
            "worst times the best peer (mlp_train)",
            "worst page faults a step, fixed shapes (cnn_train)",
            "bert_changing, peak memory over glibc's",
            "workloads with differing checksums (kv_cache)",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn changing_shapes_may_fault() {
        let mut outcomes = all(3.0);
        outcomes[5].fixed_shape = false;
        outcomes[5].rounds[0][Allocator::Pool.index()].median_step_faults = 600.0;
        assert_eq!(missed(&outcomes), [""; 0]);
    }

    #[test]
    fn what_was_not_run_is_not_missed() {
        let checks = check(&all(3.0)[3..4]);
        assert_eq!(checks[0].verdict(), "not run");
        assert_eq!(checks[2].verdict(), "not run");
        assert_eq!(checks[3].verdict(), "met");
    }

    #[test]
    fn nan_misses() {
        assert!(Check::new("x", Some(f64::NAN), Target::AtMost(1.0)).missed());
        assert!(Check::new("x", Some(f64::NAN), Target::AtLeast(1.0)).missed());
        assert!(!Check::new("x", Some(1.0), Target::AtLeast(1.0)).missed());
    }
}
