//! The workloads: what a step is, and the list of all of them with their step counts.

mod bert_changing;
mod chain_2mb;
mod chain_64mb;
mod cnn_train;
mod kv_cache;
mod long_lived;
mod mlp_train;
mod seeded;
mod transformer;
mod weights;

use anyhow::{Context, Result};

/// One workload, built and ready to step.
pub trait Workload {
    /// Runs step `step` to its end and returns a checksum of what it computed.
    ///
    /// The result depends on `step` and the steps before it alone, so that runs under different
    /// allocators can be compared bit for bit.
    fn step(&mut self, step: usize) -> Result<u64>;
}

/// How many steps a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Steps run first, unmeasured.
    pub warmup: usize,
    /// Steps measured.
    pub measured: usize,
    /// Steps after which another process has its turn: about a tenth of a second, long enough that
    /// caches left cold by the others do not count, short enough that the machine's speed is the
    /// same for all.
    pub turn: usize,
}

impl Steps {
    const fn new(warmup: usize, measured: usize, turn: usize) -> Self {
        Self { warmup, measured, turn }
    }
}

/// One entry of the list of workloads.
#[derive(Debug)]
pub struct Spec {
    /// The name on the command line and in tables.
    pub name: &'static str,
    /// Whether every step allocates the same sizes in the same order, so that nothing new should
    /// come from the system once it has warmed up.
    pub fixed_shape: bool,
    /// Step counts of a full run.
    pub full: Steps,
    /// Step counts under `--quick`.
    pub quick: Steps,
    build: fn() -> Result<Box<dyn Workload>>,
}

impl Spec {
    /// Makes the inputs and the model.
    pub fn build(&self) -> Result<Box<dyn Workload>> {
        (self.build)().with_context(|| format!("building {}", self.name))
    }
}

/// Every workload, in the order of the table.
///
/// Training warms up for 16 steps: memory moves in the first ones, until it is known that they repeat themselves.
/// The step counts give each process a few seconds: a comparison of five rounds of four allocators
/// then takes about nine minutes on two cores.
pub static ALL: [Spec; 7] = [
    // The chains keep blocks over a batch of steps: warm up and measure whole batches.
    Spec {
        name: "chain_64mb",
        fixed_shape: true,
        full: Steps::new(long_lived::BATCH, long_lived::BATCH, 1),
        quick: Steps::new(long_lived::BATCH, long_lived::BATCH, 1),
        build: || Ok(Box::new(chain_64mb::Chain64Mb::new()?)),
    },
    Spec {
        name: "chain_2mb",
        fixed_shape: true,
        full: Steps::new(2 * long_lived::BATCH, 24 * long_lived::BATCH, 4 * long_lived::BATCH),
        quick: Steps::new(2 * long_lived::BATCH, 12 * long_lived::BATCH, 4 * long_lived::BATCH),
        build: || Ok(Box::new(chain_2mb::Chain2Mb::new()?)),
    },
    Spec {
        name: "transformer",
        fixed_shape: true,
        full: Steps::new(4, 10, 1),
        quick: Steps::new(4, 4, 1),
        build: || Ok(Box::new(transformer::Transformer::new()?)),
    },
    Spec {
        name: "mlp_train",
        fixed_shape: true,
        full: Steps::new(16, 20, 2),
        quick: Steps::new(16, 10, 2),
        build: || Ok(Box::new(mlp_train::MlpTrain::new()?)),
    },
    Spec {
        name: "cnn_train",
        fixed_shape: true,
        full: Steps::new(16, 16, 2),
        quick: Steps::new(16, 8, 2),
        build: || Ok(Box::new(cnn_train::CnnTrain::new()?)),
    },
    Spec {
        name: "bert_changing",
        fixed_shape: false,
        full: Steps::new(6, 24, 1),
        quick: Steps::new(4, 12, 1),
        build: || Ok(Box::new(bert_changing::BertChanging::new()?)),
    },
    // One growth from 512 to 1024 tokens is a period of 512 steps. A full run warms up over one and
    // measures the next; a quick one warms up over the first half and measures the second.
    Spec {
        name: "kv_cache",
        fixed_shape: false,
        full: Steps::new(kv_cache::PERIOD, kv_cache::PERIOD, kv_cache::PERIOD / 8),
        quick: Steps::new(kv_cache::PERIOD / 2, kv_cache::PERIOD / 2, kv_cache::PERIOD / 8),
        build: || Ok(Box::new(kv_cache::KvCache::new()?)),
    },
];

/// The workload of that name.
pub fn find(name: &str) -> Result<&'static Spec> {
    ALL.iter().find(|spec| spec.name == name).with_context(|| {
        let known: Vec<_> = ALL.iter().map(|spec| spec.name).collect();
        format!("no workload {name:?}; there are: {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::{ALL, find};
    use crate::checksum::Checksum;

    #[test]
    fn names_are_unique_and_found() {
        for spec in &ALL {
            assert!(std::ptr::eq(find(spec.name).unwrap(), spec), "{}", spec.name);
        }
        let error = find("nothing").unwrap_err().to_string();
        assert!(error.contains("kv_cache"), "{error}");
    }

    #[test]
    fn two_runs_of_a_workload_agree() {
        // The 64 MB chain is left to the benchmark itself: it differs from the 2 MB one in size.
        for spec in ALL.iter().filter(|spec| spec.name != "chain_64mb") {
            let run = || {
                let mut workload = spec.build().unwrap();
                let mut sum = Checksum::default();
                for step in 0..2 {
                    sum.fold(workload.step(step).unwrap());
                }
                sum
            };
            assert_eq!(run(), run(), "{}", spec.name);
        }
    }
}
