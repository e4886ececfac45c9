//! One workload's reports over all rounds, and the numbers drawn from them.

use crate::allocator::Allocator;
use crate::report::WorkerReport;
use crate::statistics::{median, paired_ratio};
use serde::Serialize;

/// The reports of one round, by [`Allocator::index`].
pub type Round = [WorkerReport; Allocator::ALL.len()];

/// The reports of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The workload's name.
    pub workload: String,
    /// Whether its steps all allocate the same sizes.
    pub fixed_shape: bool,
    /// One entry a round; never empty.
    pub rounds: Vec<Round>,
}

impl Outcome {
    /// The median over rounds of the median step time, in milliseconds.
    pub fn step_ms(&self, allocator: Allocator) -> f64 {
        median(&self.each_round(allocator, |report| report.median_step_ns)) / 1e6
    }

    /// How many times as long `peer` takes as the pool: the median of the ratios of equal turns,
    /// which ran right after one another.
    pub fn ratio(&self, peer: Allocator) -> f64 {
        paired_ratio(&self.turns(peer), &self.turns(Allocator::Pool))
    }

    /// The times of all turns of all rounds.
    fn turns(&self, allocator: Allocator) -> Vec<f64> {
        self.rounds.iter().flat_map(|round| round[allocator.index()].turn_ns.iter().copied()).collect()
    }

    /// The peer with the lowest [`Outcome::ratio`], and that ratio.
    pub fn best_peer(&self) -> (Allocator, f64) {
        Allocator::PEERS
            .map(|peer| (peer, self.ratio(peer)))
            .into_iter()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((Allocator::Glibc, f64::NAN))
    }

    /// The median over rounds of the median page faults of a step.
    pub fn step_faults(&self, allocator: Allocator) -> f64 {
        median(&self.each_round(allocator, |report| report.median_step_faults))
    }

    /// The most times that a pool went to the system in the measured steps of a round.
    pub fn pool_system_calls(&self) -> Option<f64> {
        let reports = self.rounds.iter().filter_map(|round| round[Allocator::Pool.index()].pool);
        reports.map(|report| report.system_calls as f64).max_by(f64::total_cmp)
    }

    /// The median over rounds of the peak resident memory, in MiB.
    pub fn peak_resident_mib(&self, allocator: Allocator) -> f64 {
        median(&self.each_round(allocator, |report| report.peak_resident_kib as f64)) / 1024.0
    }

    /// Whether every run of every allocator computed the same bits.
    pub fn checksums_agree(&self) -> bool {
        let mut sums = self.rounds.iter().flatten().map(|report| &report.checksum);
        let first = sums.next();
        sums.all(|sum| Some(sum) == first)
    }

    fn each_round(&self, allocator: Allocator, value: fn(&WorkerReport) -> f64) -> Vec<f64> {
        let reports = self.rounds.iter().map(|round| &round[allocator.index()]);
        reports.map(value).collect()
    }
}

#[cfg(test)]
pub(super) mod fixture {
    //! Made-up outcomes for the tests of this module's neighbours.

    use super::Outcome;
    use crate::allocator::Allocator;
    use crate::report::WorkerReport;

    /// One round with these step times in milliseconds, no faults and 100 MiB each.
    pub(in crate::compare) fn outcome(workload: &str, step_ms: [f64; 4]) -> Outcome {
        let round = Allocator::ALL.map(|allocator| {
            let step_ns = step_ms[allocator.index()] * 1e6;
            WorkerReport {
                workload: workload.to_owned(),
                allocator,
                steps: 1,
                warmup: 1,
                median_step_ns: step_ns,
                p10_step_ns: step_ns,
                p90_step_ns: step_ns,
                mean_step_ns: step_ns,
                turn_ns: vec![step_ns],
                median_step_faults: 0.0,
                total_faults: 0,
                peak_resident_kib: 100 * 1024,
                checksum: "00".to_owned(),
                pool: None,
            }
        });
        Outcome { workload: workload.to_owned(), fixed_shape: true, rounds: vec![round] }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::outcome;
    use crate::allocator::Allocator;

    #[test]
    fn ratios_say_how_much_longer_a_peer_takes() {
        let outcome = outcome("x", [30.0, 12.0, 15.0, 10.0]);
        assert_eq!(outcome.step_ms(Allocator::Glibc), 30.0);
        assert_eq!(outcome.ratio(Allocator::Glibc), 3.0);
        assert_eq!(outcome.best_peer(), (Allocator::Mimalloc, 1.2));
        assert_eq!(outcome.peak_resident_mib(Allocator::Pool), 100.0);
    }

    #[test]
    fn the_ratio_is_paired_turn_by_turn() {
        let mut rounds = outcome("x", [20.0, 20.0, 20.0, 10.0]);
        rounds.rounds.extend(outcome("x", [90.0, 90.0, 90.0, 30.0]).rounds);
        rounds.rounds.extend(outcome("x", [20.0, 20.0, 20.0, 10.0]).rounds);
        assert_eq!(rounds.ratio(Allocator::Glibc), 2.0);
    }

    #[test]
    fn one_differing_checksum_is_seen() {
        let mut outcome = outcome("x", [1.0; 4]);
        assert!(outcome.checksums_agree());
        outcome.rounds[0][3].checksum = "01".to_owned();
        assert!(!outcome.checksums_agree());
    }
}
