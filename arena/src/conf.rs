//! Policies and their options by name: `policy:torch,max_split_size_mb:256`.
//!
//! The syntax is PyTorch's: keys and values with a colon between, and commas between the pairs.
//! Values are numbers, `True`, `False`, names, or lists in brackets.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::error::ArenaError;
use crate::placement::Placement;
use crate::placement::bfc::{Bfc, BfcOptions};
use crate::placement::buckets::{Buckets, BucketsOptions};
use crate::placement::buddy::{Buddy, BuddyOptions};
use crate::placement::pages::{Mode, Pages, PagesOptions};
use crate::placement::torch::{Torch, TorchOptions};
use crate::placement::whole::{Reuse, Whole, WholeOptions};

/// A placement policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PolicyName {
    /// Best fit in virtual ranges whose pages are mapped where they are needed.
    #[default]
    Pages,
    /// Small, medium and large requests kept apart; what is unused for longest goes back first.
    Buckets,
    /// Blocks of powers of two, split in halves.
    Buddy,
    /// TensorFlow's: best fit with coalescing, in regions that double.
    Bfc,
    /// PyTorch's, with segments that are taken whole.
    Torch,
    /// PyTorch's, with expandable segments.
    Expandable,
    /// A freed block serves requests of its own size.
    Simple,
    /// Nothing serves twice.
    None,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Simple,
        Self::Buckets,
        Self::Buddy,
        Self::Bfc,
        Self::Torch,
        Self::Expandable,
        Self::Pages,
    ];

    /// As options spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Buckets => "buckets",
            Self::Buddy => "buddy",
            Self::Bfc => "bfc",
            Self::Torch => "torch",
            Self::Expandable => "expandable",
            Self::Simple => "simple",
            Self::None => "none",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = ConfError;

    fn from_str(name: &str) -> Result<Self, ConfError> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name).ok_or_else(|| ConfError::Value {
            key: "policy",
            value: name.to_owned(),
            expected: "one of none, simple, buckets, buddy, bfc, torch, expandable, pages",
        })
    }
}

/// Options that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfError {
    /// A key that nobody knows.
    #[error("unknown option {key:?}: the known ones are {}", KEYS.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// Something that is not a key and a value.
    #[error("{pair:?} is not a key and a value with a colon between")]
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
    #[error("policy {policy} has no option {key}")]
    NotOfPolicy {
        /// The key.
        key: &'static str,
        /// The policy.
        policy: PolicyName,
    },
    /// An option that the policy refuses.
    #[error(transparent)]
    Refused(#[from] ArenaError),
}

/// All keys.
const KEYS: [&str; 13] = [
    "policy",
    "mode",
    "separate_lifetimes",
    "allow_growth",
    "expandable_segments",
    "max_split_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "small_limit_mb",
    "medium_limit_mb",
    "max_cached_mb",
    "slack_percent",
];

/// Options by name, as they were given.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Conf {
    /// `policy`.
    pub policy: Option<PolicyName>,
    /// `mode`, of policy `pages`.
    pub mode: Option<Mode>,
    /// `separate_lifetimes`, of policy `pages`.
    pub separate_lifetimes: Option<bool>,
    /// `allow_growth`, of policy `bfc`: not all memory at once.
    pub allow_growth: Option<bool>,
    /// `expandable_segments`, of policy `torch`.
    pub expandable_segments: Option<bool>,
    /// `max_split_size_mb`, of policy `torch`: blocks of so many MiB and larger are not split.
    pub max_split_size_mb: Option<usize>,
    /// `roundup_power2_divisions`, of policy `torch`: for each power of two from 1 MiB.
    pub roundup_power2_divisions: Option<[u32; 16]>,
    /// `garbage_collection_threshold`, of policy `torch`.
    pub garbage_collection_threshold: Option<f64>,
    /// `large_segment_size_mb`, of policy `torch`.
    pub large_segment_size_mb: Option<usize>,
    /// `small_limit_mb`, of policy `buckets`: requests up to so many MiB are small.
    pub small_limit_mb: Option<usize>,
    /// `medium_limit_mb`, of policy `buckets`: larger requests up to so many MiB are medium.
    pub medium_limit_mb: Option<usize>,
    /// `max_cached_mb`, of policy `buckets`: unused segments are kept up to so many MiB.
    pub max_cached_mb: Option<usize>,
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
}

impl FromStr for Conf {
    type Err = ConfError;

    fn from_str(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        for pair in pairs(text) {
            let pair = pair.trim();
            if pair.is_empty() {
                continue;
            }
            let (key, value) =
                pair.split_once(':').ok_or_else(|| ConfError::NotAPair { pair: pair.to_owned() })?;
            conf.set(key.trim(), value.trim())?;
        }
        Ok(conf)
    }
}

/// The parts between commas that are not inside brackets.
fn pairs(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |letter: char| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

impl Conf {
    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfError> {
        let Some(key) = KEYS.into_iter().find(|known| *known == key) else {
            return Err(ConfError::UnknownKey { key: key.to_owned() });
        };
        let wrong = |expected| ConfError::Value { key, value: value.to_owned(), expected };
        let megabytes = || value.parse().ok().filter(|&mib: &usize| mib <= usize::MAX >> 20);
        match key {
            "policy" => self.policy = Some(value.parse()?),
            "mode" => {
                self.mode = Some(match value {
                    "moving" => Mode::Moving,
                    "on_pressure" => Mode::OnPressure,
                    _ => return Err(wrong("moving or on_pressure")),
                });
            }
            "separate_lifetimes" => {
                self.separate_lifetimes = Some(flag(value).ok_or_else(|| wrong("True or False"))?);
            }
            "allow_growth" => {
                self.allow_growth = Some(flag(value).ok_or_else(|| wrong("True or False"))?);
            }
            "expandable_segments" => {
                self.expandable_segments = Some(flag(value).ok_or_else(|| wrong("True or False"))?);
            }
            "max_split_size_mb" => {
                let mib = megabytes().filter(|&mib| mib >= 20);
                self.max_split_size_mb = Some(mib.ok_or_else(|| wrong("a number from 20"))?);
            }
            "large_segment_size_mb" => {
                let mib = megabytes().filter(|&mib| mib >= 2 && mib % 2 == 0);
                self.large_segment_size_mb = Some(mib.ok_or_else(|| wrong("an even number from 2"))?);
            }
            "small_limit_mb" | "medium_limit_mb" | "max_cached_mb" => {
                let mib = Some(megabytes().ok_or_else(|| wrong("a number of MiB"))?);
                match key {
                    "small_limit_mb" => self.small_limit_mb = mib,
                    "medium_limit_mb" => self.medium_limit_mb = mib,
                    _ => self.max_cached_mb = mib,
                }
            }
            "slack_percent" => {
                self.slack_percent = Some(match value {
                    "off" => None,
                    number => Some(number.parse().map_err(|_| wrong("a number of percent, or off"))?),
                });
            }
            "garbage_collection_threshold" => {
                let share = value.parse().ok().filter(|&share: &f64| share > 0.0 && share < 1.0);
                let share = share.ok_or_else(|| wrong("a number between 0 and 1"))?;
                self.garbage_collection_threshold = Some(share);
            }
            "roundup_power2_divisions" => {
                let divisions = divisions(value);
                let expected = "a power of two, or a list such as [64:8,256:2,>:1] by MiB";
                self.roundup_power2_divisions = Some(divisions.ok_or_else(|| wrong(expected))?);
            }
            _ => unreachable!("every known key is set"),
        }
        Ok(())
    }

    /// The same options of another policy.
    #[must_use]
    pub fn with_policy(self, policy: PolicyName) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// The policy asked for, or the default.
    #[must_use]
    pub fn policy(&self) -> PolicyName {
        match (self.policy.unwrap_or_default(), self.expandable_segments) {
            (PolicyName::Torch, Some(true)) => PolicyName::Expandable,
            (PolicyName::Expandable, Some(false)) => PolicyName::Torch,
            (policy, _) => policy,
        }
    }

    /// A placement with these options.
    ///
    /// # Errors
    /// [`ConfError::NotOfPolicy`], [`ConfError::Refused`].
    pub fn placement(&self, setting: Setting) -> Result<Box<dyn Placement>, ConfError> {
        let policy = self.policy();
        let Setting { granule_bytes, limit_bytes, range_bytes } = setting;
        let (pages, bfc) = (policy == PolicyName::Pages, policy == PolicyName::Bfc);
        let torch = matches!(policy, PolicyName::Torch | PolicyName::Expandable);
        let buckets = policy == PolicyName::Buckets;
        for (given, key, has_it) in [
            (self.mode.is_some(), "mode", pages),
            (self.separate_lifetimes.is_some(), "separate_lifetimes", pages),
            (self.allow_growth.is_some(), "allow_growth", bfc),
            (self.small_limit_mb.is_some(), "small_limit_mb", buckets),
            (self.medium_limit_mb.is_some(), "medium_limit_mb", buckets),
            (self.max_cached_mb.is_some(), "max_cached_mb", buckets),
            (self.slack_percent.is_some(), "slack_percent", buckets),
            (self.expandable_segments.is_some(), "expandable_segments", torch),
            (self.max_split_size_mb.is_some(), "max_split_size_mb", torch),
            (self.roundup_power2_divisions.is_some(), "roundup_power2_divisions", torch),
            (self.garbage_collection_threshold.is_some(), "garbage_collection_threshold", torch),
            (self.large_segment_size_mb.is_some(), "large_segment_size_mb", torch),
        ] {
            if given && !has_it {
                return Err(ConfError::NotOfPolicy { key, policy });
            }
        }
        let whole = |reuse| {
            let options =
                WholeOptions { granule_bytes, limit_bytes, range_bytes, reuse, ..WholeOptions::default() };
            Whole::new(options).map(|placement| Box::new(placement) as Box<dyn Placement>)
        };
        Ok(match policy {
            PolicyName::Pages => Box::new(Pages::new(PagesOptions {
                granule_bytes,
                limit_bytes,
                first_range_bytes: range_bytes,
                mode: self.mode.unwrap_or_default(),
                separate_lifetimes: self.separate_lifetimes.unwrap_or(self.mode == Some(Mode::Moving)),
                ..PagesOptions::default()
            })?),
            PolicyName::Buckets => {
                let usual = BucketsOptions::default();
                let bytes = |mib: usize| mib << 20;
                let small_limit_bytes = self.small_limit_mb.map_or(usual.small_limit_bytes, bytes);
                // Two small requests fill a segment, as by default.
                let small_segment_bytes = usual.small_segment_bytes.max(small_limit_bytes.saturating_mul(2));
                Box::new(Buckets::new(BucketsOptions {
                    granule_bytes,
                    small_limit_bytes,
                    medium_limit_bytes: self.medium_limit_mb.map_or(usual.medium_limit_bytes, bytes),
                    small_segment_bytes,
                    medium_segment_bytes: usual.medium_segment_bytes.max(small_segment_bytes),
                    limit_bytes,
                    max_cached_bytes: self.max_cached_mb.map(bytes),
                    slack_percent: self.slack_percent.unwrap_or(usual.slack_percent),
                    range_bytes,
                    ..usual
                })?)
            }
            PolicyName::Buddy => {
                Box::new(Buddy::new(BuddyOptions { granule_bytes, limit_bytes, range_bytes })?)
            }
            // Sizes are rounded as TensorFlow does.
            PolicyName::Bfc => {
                let usual = BfcOptions::default();
                let allow_growth = self.allow_growth.unwrap_or(usual.allow_growth);
                Box::new(Bfc::new(BfcOptions { limit_bytes, allow_growth, ..usual })?)
            }
            PolicyName::Torch | PolicyName::Expandable => {
                let usual = TorchOptions::default();
                Box::new(Torch::new(TorchOptions {
                    limit_bytes,
                    expandable_segments: policy == PolicyName::Expandable,
                    max_split_bytes: self.max_split_size_mb.map(|mib| mib << 20),
                    roundup_power2_divisions: self
                        .roundup_power2_divisions
                        .unwrap_or(usual.roundup_power2_divisions),
                    garbage_collection_threshold: self.garbage_collection_threshold,
                    large_segment_bytes: self
                        .large_segment_size_mb
                        .map_or(usual.large_segment_bytes, |mib| mib << 20),
                    ..usual
                })?)
            }
            PolicyName::Simple => whole(Reuse::SameSize)?,
            PolicyName::None => whole(Reuse::Never)?,
        })
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "True" | "true" => Some(true),
        "False" | "false" => Some(false),
        _ => None,
    }
}

/// Rounding divisions: one number for all sizes, or a list of `MiB:number` with `>` for the rest.
fn divisions(value: &str) -> Option<[u32; 16]> {
    let number = |text: &str| text.trim().parse().ok().filter(|&n: &u32| n == 0 || n.is_power_of_two());
    let Some(list) = value.strip_prefix('[') else { return Some([number(value)?; 16]) };
    let mut divisions = [0; 16];
    let mut next = 0;
    for pair in list.strip_suffix(']')?.split(',') {
        let (size, n) = pair.split_once(':')?;
        let n = number(n)?;
        let end = match size.trim() {
            ">" => divisions.len(),
            mib => {
                let mib: usize = mib.parse().ok().filter(|&mib: &usize| mib.is_power_of_two())?;
                (mib.trailing_zeros() as usize + 1).min(divisions.len())
            }
        };
        divisions.get_mut(next..end)?.fill(n);
        next = end;
    }
    Some(divisions)
}

#[cfg(test)]
mod tests;
