//! Options of a pool by name: `policy:pages,mode:moving,limit_mb:512`.
//!
//! Those of placements are [`Conf`]'s, with its syntax; those here are the pool's own.

use std::str::FromStr;

use mempool_arena::{Conf, ConfError, Policy, parse_flag, parse_mebibytes};

use crate::sizing::{PoolSize, USUAL_HEADROOM, check_growth_factor, check_headroom};

/// Options of a pool, as far as they were given. Sizes are bytes.
///
/// ```
/// use mempool_pools::{Policy, PoolOptions};
///
/// let options: PoolOptions = "policy:torch,max_split_size_mb:256,limit_mb:4096".parse()?;
/// assert_eq!(options.placement.policy(), Policy::Torch);
/// assert_eq!(options.limit_bytes, Some(4 << 30));
/// let error = "polcy:torch".parse::<PoolOptions>().unwrap_err().to_string();
/// assert!(error.contains("policy") && error.contains("limit_mb"));
/// # Ok::<(), mempool_pools::ConfError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The policy and its options. `garbage_collection_threshold` is the pool's own unless the policy is
    /// `torch`, see [`MemPoolBuilder`](crate::MemPoolBuilder::garbage_collection_threshold).
    pub placement: Conf,
    /// `no_split`: each block has pages of its own.
    pub no_split: Option<bool>,
    /// `limit_mb` or `hard_limit_mb`.
    pub limit_bytes: Option<usize>,
    /// Whether it was `hard_limit_mb`.
    pub hard_limit: bool,
    /// `min_bytes`: smaller requests go to the default pool.
    pub min_bytes: Option<usize>,
    /// `use_on_oom`, of devices.
    pub use_on_oom: Option<bool>,
    /// `guard`, of devices.
    pub guard: Option<bool>,
    /// `release_threshold_mb`, of devices.
    pub release_threshold_bytes: Option<usize>,
    /// `fixed_size_mb`, a number or `all`, or `initial_size_mb`: what the pool has from the start. See
    /// [`MemPoolBuilder::fixed_size`](crate::MemPoolBuilder::fixed_size).
    pub size: Option<PoolSize>,
    /// `growth_factor`: the pool becomes so many times as large when it grows.
    pub growth_factor: Option<f64>,
    /// `headroom_percent`: the share that is left to others where memory is taken in advance. Here 10% is 0.1.
    pub headroom_share: Option<f64>,
}

impl FromStr for PoolOptions {
    type Err = ConfError;

    fn from_str(text: &str) -> Result<Self, ConfError> {
        let mut options = Self::default();
        for pair in Conf::pairs(text) {
            let (key, value) = pair?;
            options.set(key, value)?;
        }
        Ok(options)
    }
}

impl PoolOptions {
    /// The keys of pools, beside those of [`Conf::KEYS`].
    pub const KEYS: [&'static str; 11] = [
        "no_split",
        "limit_mb",
        "hard_limit_mb",
        "min_bytes",
        "use_on_oom",
        "guard",
        "release_threshold_mb",
        "fixed_size_mb",
        "initial_size_mb",
        "growth_factor",
        "headroom_percent",
    ];

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfError> {
        let Some(key) = Self::KEYS.into_iter().find(|known| *known == key) else {
            return self.placement.set(key, value).map_err(|error| match error {
                ConfError::UnknownKey { key, known } => {
                    ConfError::UnknownKey { key, known: known.into_iter().chain(Self::KEYS).collect() }
                }
                other => other,
            });
        };
        let wrong = |expected| ConfError::Value { key, value: value.to_owned(), expected };
        let flag = || parse_flag(value).ok_or_else(|| wrong("True or False")).map(Some);
        let mebibytes = |least: usize, expected| {
            let bytes = parse_mebibytes(value).filter(|&bytes| bytes >= least << 20);
            bytes.ok_or_else(|| wrong(expected)).map(Some)
        };
        match key {
            "no_split" => self.no_split = flag()?,
            "use_on_oom" => self.use_on_oom = flag()?,
            "guard" => self.guard = flag()?,
            "limit_mb" | "hard_limit_mb" => {
                // Nothing is had in less than a page.
                self.limit_bytes = mebibytes(2, "a number of MiB from 2")?;
                self.hard_limit = key == "hard_limit_mb";
            }
            "release_threshold_mb" => self.release_threshold_bytes = mebibytes(0, "a number of MiB")?,
            "fixed_size_mb" if value == "all" => self.size = Some(PoolSize::AllButHeadroom),
            "fixed_size_mb" => {
                self.size = mebibytes(2, "a number of MiB from 2, or all")?.map(PoolSize::Fixed);
            }
            "initial_size_mb" => {
                self.size = mebibytes(2, "a number of MiB from 2")?.map(PoolSize::Initial);
            }
            "growth_factor" => {
                let factor = number(value).filter(|&factor| check_growth_factor(factor).is_ok());
                self.growth_factor = Some(factor.ok_or_else(|| wrong("a number from 1 to 16"))?);
            }
            "headroom_percent" => {
                let share = number(value).map(|percent| percent / 100.0);
                let share = share.filter(|&share| check_headroom(share).is_ok());
                self.headroom_share = Some(share.ok_or_else(|| wrong("a number from 0 to 50"))?);
            }
            "min_bytes" => {
                let bytes = value.parse().map_err(|_| wrong("a number of bytes"))?;
                self.min_bytes = Some(bytes);
            }
            _ => unreachable!("every known key is set"),
        }
        Ok(())
    }

    /// These options, and those of `usual` where none was given here.
    #[must_use]
    pub fn or(self, usual: Self) -> Self {
        let limited = self.limit_bytes.is_some();
        Self {
            placement: self.placement.or(usual.placement),
            no_split: self.no_split.or(usual.no_split),
            limit_bytes: self.limit_bytes.or(usual.limit_bytes),
            hard_limit: if limited { self.hard_limit } else { usual.hard_limit },
            min_bytes: self.min_bytes.or(usual.min_bytes),
            use_on_oom: self.use_on_oom.or(usual.use_on_oom),
            guard: self.guard.or(usual.guard),
            release_threshold_bytes: self.release_threshold_bytes.or(usual.release_threshold_bytes),
            size: self.size.or(usual.size),
            growth_factor: self.growth_factor.or(usual.growth_factor),
            headroom_share: self.headroom_share.or(usual.headroom_share),
        }
    }

    /// Only what says how much memory a pool takes in advance.
    pub(crate) fn only_sizes(&self) -> Self {
        let Self { size, growth_factor, headroom_share, .. } = *self;
        Self { size, growth_factor, headroom_share, ..Self::default() }
    }

    /// The first option here by which memory is taken in advance.
    fn size_key(&self) -> Option<&'static str> {
        self.size.map(PoolSize::key).or(self.growth_factor.map(|_| "growth_factor"))
    }

    /// The policy that these options name, if they do.
    fn named_policy(&self) -> Option<Policy> {
        let Conf { policy, expandable_segments, .. } = self.placement;
        (policy.is_some() || expandable_segments.is_some()).then(|| self.placement.policy())
    }

    /// The first option here that `policy` does not have. Any pool can have a threshold.
    fn foreign_key(&self, policy: Policy) -> Option<&'static str> {
        let mut keys = self.placement.given_keys().filter(|&key| key != THRESHOLD);
        let foreign = keys.find(|&key| !policy.has_option(key));
        // What these took in advance would serve nothing.
        let serves = !matches!(policy, Policy::Simple | Policy::None);
        let foreign = foreign.or(self.size_key().filter(|_| !serves));
        foreign.or((self.no_split == Some(true) && !policy.has_no_split()).then_some("no_split"))
    }

    /// What a pool gets for which these options were chosen, in a process with options `around`, where
    /// `usual` is the policy if nobody names one. What `around` says applies as far as the pool's policy
    /// has it; its policy, if `may_be` and what was chosen here let it. Sizes count only if they were chosen
    /// here: memory that is taken once for each pool is not what a process was meant to take.
    ///
    /// # Errors
    /// [`ConfError::NotOfPolicy`] and [`ConfError::NotWithNoSplit`] for an option that was chosen here.
    pub(crate) fn resolve(
        &self,
        around: &Self,
        usual: Policy,
        may_be: impl FnOnce(Policy) -> bool,
    ) -> Result<Resolved, ConfError> {
        let policy = self.named_policy().unwrap_or_else(|| {
            let named = around.named_policy().unwrap_or(usual);
            if may_be(named) && self.foreign_key(named).is_none() { named } else { usual }
        });
        if let Some(key) = self.foreign_key(policy) {
            return Err(ConfError::NotOfPolicy { key, policy });
        }
        let no_split = self.no_split.or(around.no_split.filter(|_| policy.has_no_split())).unwrap_or(false);
        if let Some(key) = self.size_key().filter(|_| no_split) {
            return Err(ConfError::NotWithNoSplit { key });
        }
        let chosen = self.placement.clone();
        // Beside `no_split`, options of placements mean nothing: those chosen are refused by `Conf`.
        let mut placement =
            if no_split { chosen } else { chosen.or(around.placement.clone()) }.only_of(policy);
        (placement.policy, placement.expandable_segments) = (Some(policy), None);
        let threshold =
            self.placement.garbage_collection_threshold.or(around.placement.garbage_collection_threshold);
        let of_placement = has_threshold(policy);
        placement.garbage_collection_threshold = threshold.filter(|_| of_placement);
        let Self { limit_bytes, hard_limit, min_bytes, use_on_oom, guard, release_threshold_bytes, .. } =
            self.clone().or(around.clone());
        Ok(Resolved {
            placement,
            no_split,
            limit_bytes,
            hard_limit,
            min_bytes: min_bytes.unwrap_or(0),
            use_on_oom: use_on_oom.unwrap_or(false),
            guard: guard.unwrap_or(false),
            garbage_collection_threshold: threshold.filter(|_| !of_placement),
            release_threshold_bytes,
            size: self.size,
            growth_factor: self.growth_factor,
            headroom_share: self.headroom_share.unwrap_or(USUAL_HEADROOM),
        })
    }
}

fn number(value: &str) -> Option<f64> {
    value.parse().ok()
}

/// An option of some placements, and of the pool where its placement does not have it.
pub(crate) const THRESHOLD: &str = "garbage_collection_threshold";

/// Whether the threshold is the placement's. PyTorch collects nothing in expandable segments, so there it
/// is the pool's too.
pub(crate) fn has_threshold(policy: Policy) -> bool {
    policy == Policy::Torch
}

/// All options of a pool.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    /// Names a policy, and has no option that the policy lacks.
    pub(crate) placement: Conf,
    pub(crate) no_split: bool,
    pub(crate) limit_bytes: Option<usize>,
    pub(crate) hard_limit: bool,
    pub(crate) min_bytes: usize,
    pub(crate) use_on_oom: bool,
    pub(crate) guard: bool,
    pub(crate) garbage_collection_threshold: Option<f64>,
    pub(crate) release_threshold_bytes: Option<usize>,
    pub(crate) size: Option<PoolSize>,
    pub(crate) growth_factor: Option<f64>,
    pub(crate) headroom_share: f64,
}

#[cfg(test)]
mod tests;
