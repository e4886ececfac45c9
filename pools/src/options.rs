//! Options of a pool by name: `policy:pages,mode:moving,limit_mb:512`.
//!
//! Those of placements are [`Conf`]'s, with its syntax; those here are the pool's own.

use std::str::FromStr;

use mempool_arena::{Conf, ConfError, Policy, parse_flag, parse_mebibytes};

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
    pub const KEYS: [&'static str; 7] =
        ["no_split", "limit_mb", "hard_limit_mb", "min_bytes", "use_on_oom", "guard", "release_threshold_mb"];

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
        }
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
        foreign.or((self.no_split == Some(true) && !policy.has_no_split()).then_some("no_split"))
    }

    /// What a pool gets for which these options were chosen, in a process with options `around`, where
    /// `usual` is the policy if nobody names one. What `around` says applies as far as the pool's policy
    /// has it; its policy, if `may_be` and what was chosen here let it.
    ///
    /// # Errors
    /// [`ConfError::NotOfPolicy`] for an option that was chosen here.
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
        })
    }
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
}

#[cfg(test)]
mod tests;
