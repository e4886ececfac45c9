//! Policies with their options: by name, `policy:torch,max_split_size_mb:256`, or one by one.

mod given;
mod parse;

pub use parse::{parse_flag, parse_mebibytes};
use thiserror::Error;

use crate::error::ArenaError;
use crate::placement::bfc::{Bfc, BfcOptions};
use crate::placement::buckets::{Buckets, BucketsOptions};
use crate::placement::buddy::{Buddy, BuddyOptions};
use crate::placement::pages::{Mode, Pages, PagesOptions};
use crate::placement::torch::{Torch, TorchOptions};
use crate::placement::whole::{Reuse, Whole, WholeOptions};
use crate::placement::{DEFAULT_RANGE_BYTES, Placement};
use crate::policy::Policy;

/// Options that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfError {
    /// A key that nobody knows.
    #[error("unknown option {key:?}: the known ones are {}", known.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
        /// All keys there are.
        known: Vec<&'static str>,
    },
    /// Something that is not a key and a value.
    #[error("{pair:?} is not a key and a value with a colon between, such as policy:pages")]
    NotAPair {
        /// What was found.
        pair: String,
    },
    /// A value that the key does not have.
    #[error("{key}:{value} is not possible: {expected} is expected")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// An option that the policy does not have.
    #[error("policy {policy} has no option {key}: {}", options_of(*policy))]
    NotOfPolicy {
        /// The key.
        key: &'static str,
        /// The policy.
        policy: Policy,
    },
    /// An option that means nothing where blocks are never cut.
    #[error("{key} means nothing beside no_split: such blocks are never cut, and do not move")]
    NotWithNoSplit {
        /// The key.
        key: &'static str,
    },
    /// A policy that maps pages, where ranges are memory.
    #[error("policy {policy} maps pages, which is not possible here: use policy segments")]
    NeedsMapping {
        /// The policy.
        policy: Policy,
    },
    /// An option that the policy refuses.
    #[error(transparent)]
    Refused(#[from] ArenaError),
}

fn options_of(policy: Policy) -> String {
    let own = Conf::KEYS.into_iter().filter(|key| *key != "policy" && policy.has_option(key));
    let own: Vec<&str> = own.chain(policy.has_no_split().then_some("no_split")).collect();
    if own.is_empty() { "it has none of its own".to_owned() } else { format!("it has {}", own.join(", ")) }
}

/// A policy and its options, as far as they were given. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Conf {
    /// `policy`.
    pub policy: Option<Policy>,
    /// `mode`, of policy `pages`.
    pub mode: Option<Mode>,
    /// `separate_lifetimes`, of policy `pages`.
    pub separate_lifetimes: Option<bool>,
    /// `allow_growth`, of policy `bfc`: not all memory at once.
    pub allow_growth: Option<bool>,
    /// `expandable_segments`, of policy `torch`.
    pub expandable_segments: Option<bool>,
    /// `max_split_size_mb`, of policy `torch`: blocks of this size and larger are not split.
    pub max_split_bytes: Option<usize>,
    /// `roundup_power2_divisions`, of policy `torch`: for each power of two from 1 MiB.
    pub roundup_power2_divisions: Option<[u32; 16]>,
    /// `garbage_collection_threshold`, of policy `torch`.
    pub garbage_collection_threshold: Option<f64>,
    /// `large_segment_size_mb`, of policy `torch`.
    pub large_segment_bytes: Option<usize>,
    /// `small_limit_mb`, of policy `buckets`: requests up to this size are small.
    pub small_limit_bytes: Option<usize>,
    /// `medium_limit_mb`, of policy `buckets`: larger requests up to this size are medium.
    pub medium_limit_bytes: Option<usize>,
    /// `max_cached_mb`, of policy `buckets`: unused segments are kept up to so many bytes.
    pub max_cached_bytes: Option<usize>,
    /// `slack_percent`, of policy `buckets`: so much more may be mapped than blocks ever took at once
    /// before unused segments go back; `off` for no such bound.
    pub slack_percent: Option<Option<usize>>,
}

/// What a placement is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Sizes are rounded to this, where the policy does not say otherwise.
    pub granule_bytes: usize,
    /// Mapped bytes are kept at or below this.
    pub limit_bytes: Option<usize>,
    /// Length of a virtual range.
    pub range_bytes: usize,
    /// Upstream's ranges are memory: what is reserved is there, and goes back whole.
    pub whole_ranges: bool,
    /// Each block has pages of its own, and is never cut.
    pub no_split: bool,
    /// When free pages move, where the options do not say.
    pub mode: Mode,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            granule_bytes: 512,
            limit_bytes: None,
            range_bytes: DEFAULT_RANGE_BYTES,
            whole_ranges: false,
            no_split: false,
            mode: Mode::default(),
        }
    }
}

/// The usual length of a segment that is taken whole, as PyTorch has it.
const SEGMENT_BYTES: usize = 20 << 20;
/// What a block that is never cut may leave unused of the one that it was freed as.
const NO_SPLIT_WASTE_BYTES: usize = 20 << 20;

impl Conf {
    /// The policy asked for, or the default.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match (self.policy.unwrap_or_default(), self.expandable_segments) {
            (Policy::Torch, Some(true)) => Policy::Expandable,
            (Policy::Expandable, Some(false)) => Policy::Torch,
            (policy, _) => policy,
        }
    }

    /// `Ok` if the policy has all options that were given.
    ///
    /// # Errors
    /// [`ConfError::NotOfPolicy`].
    pub fn check_keys(&self) -> Result<(), ConfError> {
        let policy = self.policy();
        match self.given_keys().find(|key| !policy.has_option(key)) {
            Some(key) => Err(ConfError::NotOfPolicy { key, policy }),
            None => Ok(()),
        }
    }

    /// A placement with these options.
    ///
    /// # Errors
    /// [`ConfError::NotOfPolicy`], [`ConfError::NotWithNoSplit`], [`ConfError::NeedsMapping`],
    /// [`ConfError::Value`] for limits in the wrong order, [`ConfError::Refused`].
    pub fn placement(&self, setting: Setting) -> Result<Box<dyn Placement>, ConfError> {
        let policy = self.policy();
        self.check_keys()?;
        if setting.whole_ranges && policy.needs_mapping() {
            return Err(ConfError::NeedsMapping { policy });
        }
        if setting.no_split {
            return self.uncut(setting);
        }
        let Setting { granule_bytes, limit_bytes, range_bytes, whole_ranges, .. } = setting;
        let mode = self.mode.unwrap_or(setting.mode);
        Ok(match policy {
            Policy::Pages => Box::new(Pages::new(PagesOptions {
                granule_bytes,
                limit_bytes,
                first_range_bytes: range_bytes,
                mode,
                separate_lifetimes: self.separate_lifetimes.unwrap_or(mode == Mode::Moving),
                ..PagesOptions::default()
            })?),
            Policy::Segments => Box::new(Pages::new(PagesOptions {
                granule_bytes,
                limit_bytes,
                first_range_bytes: SEGMENT_BYTES,
                whole_ranges: true,
                ..PagesOptions::default()
            })?),
            Policy::Buckets => Box::new(Buckets::new(self.buckets(setting)?)?),
            Policy::Buddy => Box::new(Buddy::new(BuddyOptions { granule_bytes, limit_bytes, range_bytes })?),
            // Sizes are rounded as TensorFlow does, and each region has a range of its own.
            Policy::Bfc => {
                let usual = BfcOptions::default();
                let allow_growth = self.allow_growth.unwrap_or(usual.allow_growth);
                Box::new(Bfc::new(BfcOptions { limit_bytes, allow_growth, ..usual })?)
            }
            Policy::Torch | Policy::Expandable => Box::new(Torch::new(self.torch(setting))?),
            Policy::Simple | Policy::None => {
                let reuse = if policy == Policy::None { Reuse::Never } else { Reuse::SameSize };
                Box::new(Whole::new(WholeOptions {
                    granule_bytes,
                    limit_bytes,
                    range_bytes,
                    whole_ranges,
                    reuse,
                    ..WholeOptions::default()
                })?)
            }
        })
    }

    /// Blocks with pages of their own.
    fn uncut(&self, setting: Setting) -> Result<Box<dyn Placement>, ConfError> {
        let policy = self.policy();
        if !policy.has_no_split() {
            return Err(ConfError::NotOfPolicy { key: "no_split", policy });
        }
        if let Some(key) = self.given_keys().find(|&key| key != "policy") {
            return Err(ConfError::NotWithNoSplit { key });
        }
        Ok(Box::new(Whole::new(WholeOptions {
            granule_bytes: setting.granule_bytes,
            limit_bytes: setting.limit_bytes,
            range_bytes: setting.range_bytes,
            shared_limit_bytes: 0,
            whole_ranges: setting.whole_ranges || policy == Policy::Segments,
            reuse: Reuse::Larger { waste_bytes: NO_SPLIT_WASTE_BYTES },
        })?))
    }

    fn buckets(&self, setting: Setting) -> Result<BucketsOptions, ConfError> {
        let Setting { granule_bytes, limit_bytes, range_bytes, whole_ranges, .. } = setting;
        let usual = BucketsOptions::default();
        let small_limit_bytes = self.small_limit_bytes.unwrap_or(usual.small_limit_bytes);
        let medium_limit_bytes = self.medium_limit_bytes.unwrap_or(usual.medium_limit_bytes);
        if small_limit_bytes > medium_limit_bytes {
            let (key, bytes, expected) = match self.medium_limit_bytes {
                Some(bytes) => ("medium_limit_mb", bytes, "small_limit_mb or more"),
                None => ("small_limit_mb", small_limit_bytes, "medium_limit_mb, which is 100, or less"),
            };
            return Err(ConfError::Value { key, value: (bytes >> 20).to_string(), expected });
        }
        // Two small requests fill a segment, as by default.
        let small_segment_bytes = usual.small_segment_bytes.max(small_limit_bytes.saturating_mul(2));
        Ok(BucketsOptions {
            granule_bytes,
            small_limit_bytes,
            medium_limit_bytes,
            small_segment_bytes,
            medium_segment_bytes: usual.medium_segment_bytes.max(small_segment_bytes),
            limit_bytes,
            max_cached_bytes: self.max_cached_bytes,
            slack_percent: self.slack_percent.unwrap_or(usual.slack_percent),
            range_bytes,
            whole_ranges,
        })
    }

    fn torch(&self, setting: Setting) -> TorchOptions {
        let usual = TorchOptions::default();
        TorchOptions {
            limit_bytes: setting.limit_bytes,
            expandable_segments: self.policy() == Policy::Expandable,
            // Each segment has a range of its own otherwise.
            expandable_range_bytes: setting.range_bytes,
            max_split_bytes: self.max_split_bytes,
            roundup_power2_divisions: self.roundup_power2_divisions.unwrap_or(usual.roundup_power2_divisions),
            garbage_collection_threshold: self.garbage_collection_threshold,
            large_segment_bytes: self.large_segment_bytes.unwrap_or(usual.large_segment_bytes),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests;
