//! Which options were given, and what becomes of them where two sets of options meet.

use super::Conf;
use crate::placement::pages::Mode;
use crate::policy::Policy;

impl Conf {
    /// This policy with its usual options.
    #[must_use]
    pub fn of(policy: Policy) -> Self {
        Self { policy: Some(policy), ..Self::default() }
    }

    /// The same options of another policy.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Of policy `pages`: when free pages move to where pages are needed.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Of policy `pages`: whether large requests that are expected to live long are kept apart from
    /// others. By default with [`Mode::Moving`] only.
    #[must_use]
    pub fn separate_lifetimes(self, enabled: bool) -> Self {
        Self { separate_lifetimes: Some(enabled), ..self }
    }

    /// Of policy `bfc`: whether memory is taken as it is needed, and not all at once.
    #[must_use]
    pub fn allow_growth(self, enabled: bool) -> Self {
        Self { allow_growth: Some(enabled), ..self }
    }

    /// Of policies `torch` and `expandable`: blocks of so many bytes and larger are not split. At least
    /// 20 MiB.
    #[must_use]
    pub fn max_split_bytes(self, bytes: usize) -> Self {
        Self { max_split_bytes: Some(bytes), ..self }
    }

    /// Of policies `torch` and `expandable`: sizes are rounded to the next of so many steps between two
    /// powers of two, by the power of two from 1 MiB to 32 GiB; 0 and 1 for no rounding, else powers of two.
    #[must_use]
    pub fn roundup_power2_divisions(self, divisions: [u32; 16]) -> Self {
        Self { roundup_power2_divisions: Some(divisions), ..self }
    }

    /// Of policy `torch`: above this share of the limit, or of upstream's capacity,
    /// large segments go back that were free for long. Between 0 and 1.
    #[must_use]
    pub fn garbage_collection_threshold(self, share: f64) -> Self {
        Self { garbage_collection_threshold: Some(share), ..self }
    }

    /// Of policies `torch` and `expandable`: length of the segments that large requests are cut from.
    #[must_use]
    pub fn large_segment_bytes(self, bytes: usize) -> Self {
        Self { large_segment_bytes: Some(bytes), ..self }
    }

    /// Of policy `buckets`: requests up to so many bytes are small.
    #[must_use]
    pub fn small_limit_bytes(self, bytes: usize) -> Self {
        Self { small_limit_bytes: Some(bytes), ..self }
    }

    /// Of policy `buckets`: larger requests up to so many bytes are medium.
    #[must_use]
    pub fn medium_limit_bytes(self, bytes: usize) -> Self {
        Self { medium_limit_bytes: Some(bytes), ..self }
    }

    /// Of policy `buckets`: unused segments are kept up to so many bytes.
    #[must_use]
    pub fn max_cached_bytes(self, bytes: usize) -> Self {
        Self { max_cached_bytes: Some(bytes), ..self }
    }

    /// Of policy `buckets`: so many percent more may be mapped than blocks ever took at once before
    /// unused segments go back; `None` for no such bound.
    #[must_use]
    pub fn slack_percent(self, percent: Option<usize>) -> Self {
        Self { slack_percent: Some(percent), ..self }
    }

    /// The keys of the options that were given.
    pub fn given_keys(&self) -> impl Iterator<Item = &'static str> + use<> {
        let given = [
            self.policy.is_some(),
            self.mode.is_some(),
            self.separate_lifetimes.is_some(),
            self.allow_growth.is_some(),
            self.expandable_segments.is_some(),
            self.max_split_bytes.is_some(),
            self.roundup_power2_divisions.is_some(),
            self.garbage_collection_threshold.is_some(),
            self.large_segment_bytes.is_some(),
            self.small_limit_bytes.is_some(),
            self.medium_limit_bytes.is_some(),
            self.max_cached_bytes.is_some(),
            self.slack_percent.is_some(),
        ];
        Self::KEYS.into_iter().zip(given).filter(|&(_, given)| given).map(|(key, _)| key)
    }

    /// These options, and those of `usual` where none was given here.
    #[must_use]
    pub fn or(self, usual: Self) -> Self {
        // Which of PyTorch's two policies is meant is said by both keys, so they go together.
        let policy_here = self.policy.is_some();
        Self {
            policy: self.policy.or(usual.policy),
            mode: self.mode.or(usual.mode),
            separate_lifetimes: self.separate_lifetimes.or(usual.separate_lifetimes),
            allow_growth: self.allow_growth.or(usual.allow_growth),
            expandable_segments: self
                .expandable_segments
                .or(usual.expandable_segments.filter(|_| !policy_here)),
            max_split_bytes: self.max_split_bytes.or(usual.max_split_bytes),
            roundup_power2_divisions: self.roundup_power2_divisions.or(usual.roundup_power2_divisions),
            garbage_collection_threshold: self
                .garbage_collection_threshold
                .or(usual.garbage_collection_threshold),
            large_segment_bytes: self.large_segment_bytes.or(usual.large_segment_bytes),
            small_limit_bytes: self.small_limit_bytes.or(usual.small_limit_bytes),
            medium_limit_bytes: self.medium_limit_bytes.or(usual.medium_limit_bytes),
            max_cached_bytes: self.max_cached_bytes.or(usual.max_cached_bytes),
            slack_percent: self.slack_percent.or(usual.slack_percent),
        }
    }

    /// Those of the options that `policy` has.
    #[must_use]
    pub fn only_of(self, policy: Policy) -> Self {
        let has = |key| policy.has_option(key);
        Self {
            policy: self.policy,
            mode: self.mode.filter(|_| has("mode")),
            separate_lifetimes: self.separate_lifetimes.filter(|_| has("separate_lifetimes")),
            allow_growth: self.allow_growth.filter(|_| has("allow_growth")),
            expandable_segments: self.expandable_segments.filter(|_| has("expandable_segments")),
            max_split_bytes: self.max_split_bytes.filter(|_| has("max_split_size_mb")),
            roundup_power2_divisions: self
                .roundup_power2_divisions
                .filter(|_| has("roundup_power2_divisions")),
            garbage_collection_threshold: self
                .garbage_collection_threshold
                .filter(|_| has("garbage_collection_threshold")),
            large_segment_bytes: self.large_segment_bytes.filter(|_| has("large_segment_size_mb")),
            small_limit_bytes: self.small_limit_bytes.filter(|_| has("small_limit_mb")),
            medium_limit_bytes: self.medium_limit_bytes.filter(|_| has("medium_limit_mb")),
            max_cached_bytes: self.max_cached_bytes.filter(|_| has("max_cached_mb")),
            slack_percent: self.slack_percent.filter(|_| has("slack_percent")),
        }
    }
}
