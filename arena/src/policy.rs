//! The policies by name.

use std::fmt;
use std::str::FromStr;

use crate::conf::ConfError;

/// A placement policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Policy {
    /// Best fit in virtual ranges whose pages are mapped where they are needed.
    #[default]
    Pages,
    /// Best fit in segments that are taken and given back whole: for devices, and the default where a
    /// device's driver cannot manage virtual memory.
    Segments,
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
    /// A freed block serves requests of its own size only, once rounded: what a cache in front of a
    /// driver's calls does. For comparison.
    Simple,
    /// Nothing serves twice: each block's memory goes back when it is freed (on a device, once the device
    /// is idle). For comparison.
    None,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Simple,
        Self::Buckets,
        Self::Buddy,
        Self::Bfc,
        Self::Torch,
        Self::Expandable,
        Self::Segments,
        Self::Pages,
    ];

    /// As options spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Segments => "segments",
            Self::Buckets => "buckets",
            Self::Buddy => "buddy",
            Self::Bfc => "bfc",
            Self::Torch => "torch",
            Self::Expandable => "expandable",
            Self::Simple => "simple",
            Self::None => "none",
        }
    }

    /// Whether it maps and unmaps parts of a range, and so cannot work where ranges are memory.
    #[must_use]
    pub const fn needs_mapping(self) -> bool {
        matches!(self, Self::Pages | Self::Buddy | Self::Expandable)
    }

    /// Whether it can give each block pages of its own, which are never cut.
    #[must_use]
    pub const fn has_no_split(self) -> bool {
        matches!(self, Self::Pages | Self::Segments)
    }

    /// Whether the option of this name, as [`Conf`](crate::Conf) spells it, is one of this policy.
    #[must_use]
    pub fn has_option(self, key: &str) -> bool {
        match key {
            "policy" => true,
            "mode" | "separate_lifetimes" => self == Self::Pages,
            "allow_growth" => self == Self::Bfc,
            "small_limit_mb" | "medium_limit_mb" | "max_cached_mb" | "slack_percent" => self == Self::Buckets,
            "expandable_segments"
            | "max_split_size_mb"
            | "roundup_power2_divisions"
            | "garbage_collection_threshold"
            | "large_segment_size_mb" => matches!(self, Self::Torch | Self::Expandable),
            _ => false,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Policy {
    type Err = ConfError;

    fn from_str(name: &str) -> Result<Self, ConfError> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name).ok_or_else(|| ConfError::Value {
            key: "policy",
            value: name.to_owned(),
            expected: "one of none, simple, buckets, buddy, bfc, torch, expandable, segments, pages",
        })
    }
}
