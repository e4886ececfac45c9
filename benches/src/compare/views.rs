//! The tables of a comparison: time, memory, the pool's own numbers, and the checks.

use super::outcome::Outcome;
use super::table::render;
use super::targets::{Check, geomean_against_glibc};
use crate::allocator::Allocator;
use crate::statistics::median;

const MIB: f64 = (1u64 << 20) as f64;

/// Step times of each allocator and the pool's ratios, with the geometric mean below.
pub fn time(outcomes: &[Outcome]) -> String {
    let header =
        ["workload (step ms)", "glibc", "mimalloc", "jemalloc", "pool", "glibc/pool", "best peer/pool"];
    let rows: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            let (best, ratio) = outcome.best_peer();
            let mut row = vec![outcome.workload.clone()];
            row.extend(Allocator::ALL.map(|a| format!("{:.2}", outcome.step_ms(a))));
            row.push(format!("{:.2}x", outcome.ratio(Allocator::Glibc)));
            row.push(format!("{ratio:.2}x {}", best.name()));
            row
        })
        .collect();
    let geomean = geomean_against_glibc(outcomes);
    format!("{}\ngeometric mean of glibc/pool: {geomean:.2}x\n", render(&header, &rows))
}

/// Page faults of a step and peak resident memory of each allocator.
pub fn memory(outcomes: &[Outcome]) -> String {
    let header = [
        "workload",
        "faults glibc",
        "mimalloc",
        "jemalloc",
        "pool",
        "MiB glibc",
        "mimalloc",
        "jemalloc",
        "pool",
    ];
    let rows: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            let mut row = vec![outcome.workload.clone()];
            row.extend(Allocator::ALL.map(|a| format!("{:.0}", outcome.step_faults(a))));
            row.extend(Allocator::ALL.map(|a| format!("{:.0}", outcome.peak_resident_mib(a))));
            row
        })
        .collect();
    render(&header, &rows)
}

/// What the pool says of itself: medians over rounds.
pub fn pool(outcomes: &[Outcome]) -> String {
    let header = ["workload (pool)", "hits", "misses", "requested MiB", "allocated MiB", "reserved MiB"];
    let rows: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            let reports = || {
                let of_pool = |round: &super::outcome::Round| round[Allocator::Pool.index()].pool;
                outcome.rounds.iter().filter_map(of_pool)
            };
            let count = |values: Vec<u64>| {
                format!("{:.0}", median(&values.iter().map(|v| *v as f64).collect::<Vec<_>>()))
            };
            let mib = |values: Vec<usize>| {
                let values: Vec<_> = values.iter().map(|bytes| *bytes as f64 / MIB).collect();
                format!("{:.1}", median(&values))
            };
            vec![
                outcome.workload.clone(),
                count(reports().map(|report| report.hits).collect()),
                count(reports().map(|report| report.misses).collect()),
                mib(reports().map(|report| report.requested_peak).collect()),
                mib(reports().map(|report| report.allocated_peak).collect()),
                mib(reports().map(|report| report.reserved_peak).collect()),
            ]
        })
        .collect();
    render(&header, &rows)
}

/// The checks against their targets.
pub fn checks(checks: &[Check]) -> String {
    let rows: Vec<_> = checks
        .iter()
        .map(|check| {
            let measured = check.measured.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"));
            let (what, target) = (check.what.clone(), check.target.to_string());
            vec![what, measured, target, check.verdict().to_owned()]
        })
        .collect();
    render(&["check", "measured", "target", "verdict"], &rows)
}

#[cfg(test)]
mod tests {
    use super::super::outcome::fixture::outcome;
    use super::super::targets;

    #[test]
    fn the_tables_hold_the_numbers() {
        let outcomes = [outcome("transformer", [30.0, 12.0, 15.0, 10.0])];
        let time = super::time(&outcomes);
        assert!(time.contains("3.00x"), "{time}");
        assert!(time.contains("1.20x mimalloc"), "{time}");
        assert!(super::memory(&outcomes).contains("100"));
        assert!(super::pool(&outcomes).contains("transformer"));
        let checks = super::checks(&targets::check(&outcomes));
        assert!(checks.contains("at least 1.15"), "{checks}");
        assert!(checks.contains("not run"), "{checks}");
    }
}
