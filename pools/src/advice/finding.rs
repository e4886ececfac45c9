//! Reasons, each with its figures.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::decide::Measure;
use super::text::{Bytes, Micros, Percent};
use super::thresholds::{
    FEW_HITS, FEW_REPEATS, GROWTH_PARTS, MUCH_FRAGMENTATION, MUCH_GROWTH, NEGLIGIBLE_OF_DURATION,
    NO_POOL_OF_DEVICE, STEPS_REPEAT,
};

/// Something that was found, and what follows from it. Sizes are bytes, times microseconds unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// More is live than the device has: no policy helps.
    TooLarge {
        /// The most that is live.
        peak_requested_bytes: usize,
        /// The device's memory.
        device_bytes: usize,
    },
    /// The run is small and allocations take no time that matters, also without a pool.
    NoPoolNeeded {
        /// The most that is live.
        peak_requested_bytes: usize,
        /// The device's memory.
        device_bytes: usize,
        /// What allocations take at most without a pool.
        unpooled_us: f64,
        /// The run's duration.
        duration: Duration,
    },
    /// Allocations would take time that matters without a pool.
    PoolSavesTime {
        /// At most, without one.
        unpooled_us: f64,
        /// With the policy that is advised.
        pooled_us: f64,
        /// The run's duration.
        duration: Duration,
    },
    /// Buffers grow by being made anew.
    Growing {
        /// Those that lived at once.
        live_buffers: u64,
        /// The last size of the largest.
        largest_bytes: usize,
        /// What all that lived at once need at their last size.
        final_bytes: usize,
        /// Share of all bytes asked for that were their copies.
        share: f64,
        /// What the run reserves at most with them taken once.
        once_reserved_bytes: usize,
        /// What it reserves at most as it is, with the same policy.
        reserved_bytes: usize,
        /// Taken once they need so much more memory that it is not advised.
        is_rejected: bool,
        /// What it reserves at most if they grow in four steps only; where once is rejected.
        parts_reserved_bytes: Option<usize>,
        /// So needs too much, too.
        is_rejected_in_parts: Option<bool>,
    },
    /// Steps ask for the same again.
    StepsRepeat {
        /// Steps.
        steps: u64,
        /// Share that asks for exactly what one before did.
        exact: f64,
        /// Share of all requests that a plan would have served.
        planned: f64,
        /// What that would have reserved at most.
        planned_reserved_bytes: usize,
        /// What the policy alone reserves at most.
        reserved_bytes: usize,
    },
    /// Steps ask for the same again, but planning them would need more memory than it is worth.
    StepPlanTooLarge {
        /// Share that asks for exactly what one before did.
        exact: f64,
        /// What planned steps would have reserved at most.
        planned_reserved_bytes: usize,
        /// What the policy alone reserves at most.
        reserved_bytes: usize,
    },
    /// Steps do not repeat exactly: they cannot be planned.
    StepsDiffer {
        /// Steps.
        steps: u64,
        /// Share that asks for exactly what one before did.
        exact: f64,
        /// Share of requests with the size of the one at their position in the step before.
        same_position: f64,
    },
    /// Sizes do not come again: a cache of equal sizes would not help.
    Scattered {
        /// Share of requests whose size was freed before.
        same_size: f64,
        /// Sizes that differ.
        distinct: u64,
        /// As many sizes asked for equally often would be as scattered.
        effective: f64,
        /// What such a cache would have reserved at most.
        cached_bytes: usize,
        /// What an offline plan needs.
        plan_bytes: Option<usize>,
        /// What memory taken in advance needs.
        fixed_bytes: Option<usize>,
    },
    /// Sizes come again: what is freed serves later requests.
    Repeating {
        /// Share of requests whose size was freed before.
        same_size: f64,
        /// The same as a share of bytes.
        same_size_bytes: f64,
        /// Share that the advised policy serves from what it has.
        hit_rate: f64,
    },
    /// Small blocks keep large segments.
    StuckSegments {
        /// Segments.
        segments: u64,
        /// What is free in them.
        free_bytes: usize,
        /// What is reserved in all.
        reserved_bytes: usize,
        /// The largest of them.
        largest_segment_bytes: usize,
        /// The largest block that keeps one.
        largest_survivor_bytes: usize,
    },
    /// Small requests in a pool of their own: what both pools would reserve at most.
    Apart {
        /// Smaller requests go elsewhere.
        min_bytes: usize,
        /// Both pools together, of PyTorch's policy.
        reserved_bytes: usize,
        /// One pool for all, of PyTorch's policy.
        together_bytes: usize,
    },
    /// A value of PyTorch's `max_split_size_mb` was tried.
    MaxSplit {
        /// The option.
        conf: String,
        /// What it reserves at most.
        reserved_bytes: usize,
        /// What is reserved without.
        without_bytes: usize,
        /// The largest segment that a small block keeps without: the option is to keep such blocks out of it.
        stuck_segment_bytes: usize,
        /// With the option the run completes on the device, and without it does not.
        is_needed: bool,
        /// It is not advised: more is reserved with it, or the run completes without and not with it.
        is_rejected: bool,
    },
    /// Why this policy.
    Chosen {
        /// The policy and its options.
        conf: String,
        /// By what.
        measure: Measure,
        /// Its measure.
        value: f64,
        /// The one that is best by that.
        best_conf: String,
        /// Its measure.
        best_value: f64,
        /// Policies whose measure is above the best by no more are taken to be as good.
        margin: f64,
    },
    /// The policy is the default: nothing needs to be set.
    IsDefault,
    /// Counters tell that most requests map memory.
    FewHits {
        /// Share of requests that were served from what was there.
        hit_rate: f64,
    },
    /// Counters tell that much of what was reserved was never live.
    Fragmented {
        /// 1 - peak requested / peak reserved, or 1 - requested / reserved at the moment.
        fragmentation: f64,
    },
    /// Counters tell of nothing that another policy would improve.
    Fine {
        /// As of [`Fragmented`](Self::Fragmented).
        fragmentation: f64,
        /// As of [`FewHits`](Self::FewHits), where it is known.
        hit_rate: Option<f64>,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { peak_requested_bytes, device_bytes } => write!(
                f,
                "{} are live at once and the device has {}: no policy helps, the run itself has to become smaller.",
                Bytes(*peak_requested_bytes),
                Bytes(*device_bytes),
            ),
            Self::NoPoolNeeded { peak_requested_bytes, device_bytes, unpooled_us, duration } => write!(
                f,
                "No pool is needed: {} live at once are {} of the device (less than {}), and allocations take {} at \
                 most without one, {} of {:.1} s (less than {}).",
                Bytes(*peak_requested_bytes),
                Percent::of(*peak_requested_bytes, *device_bytes),
                Percent(NO_POOL_OF_DEVICE),
                Micros(*unpooled_us),
                Percent(unpooled_us / 1e6 / duration.as_secs_f64()),
                duration.as_secs_f64(),
                Percent(NEGLIGIBLE_OF_DURATION),
            ),
            Self::PoolSavesTime { unpooled_us, pooled_us, duration } => write!(
                f,
                "If each request were mapped by itself, that would take {}, {} of {:.1} s; with this policy mapping and \
                 bookkeeping take {}.",
                Micros(*unpooled_us),
                Percent(unpooled_us / 1e6 / duration.as_secs_f64()),
                duration.as_secs_f64(),
                Micros(*pooled_us),
            ),
            Self::Growing {
                live_buffers,
                largest_bytes,
                final_bytes,
                share,
                once_reserved_bytes,
                reserved_bytes,
                is_rejected,
                parts_reserved_bytes,
                is_rejected_in_parts,
            } => {
                write!(
                    f,
                    "Buffers grow by being made anew, as a cache does by `cat`: {live_buffers} at once, up to {} each. \
                     Copies of them are {} of all bytes asked for (from {} on that is much). Taken once at their last \
                     size they need {} together and nothing is copied; the run then reserves {}, and {} as it is",
                    Bytes(*largest_bytes),
                    Percent(*share),
                    Percent(MUCH_GROWTH),
                    Bytes(*final_bytes),
                    Bytes(*once_reserved_bytes),
                    Bytes(*reserved_bytes),
                )?;
                f.write_str(if *is_rejected { ": too much more to be advised." } else { "." })?;
                if let Some(bytes) = parts_reserved_bytes {
                    write!(
                        f,
                        " Grown in {GROWTH_PARTS} steps, each with room for the next quarter, it reserves {}",
                        Bytes(*bytes),
                    )?;
                    let is_rejected = *is_rejected_in_parts == Some(true);
                    f.write_str(if is_rejected { ": too much as well." } else { ", and little is copied." })?;
                }
                Ok(())
            }
            Self::StepsRepeat { steps, exact, planned, planned_reserved_bytes, reserved_bytes } => write!(
                f,
                "{} of {steps} steps ask for exactly what one before did (more than {}): planned, {} of all requests \
                 would have found their place without a search, and {} would have been reserved at most, where the \
                 policy alone reserves {}.",
                Percent(*exact),
                Percent(STEPS_REPEAT),
                Percent(*planned),
                Bytes(*planned_reserved_bytes),
                Bytes(*reserved_bytes),
            ),
            Self::StepPlanTooLarge { exact, planned_reserved_bytes, reserved_bytes } => write!(
                f,
                "{} of the steps ask for exactly what one before did, but planned they would reserve {} at most, where \
                 the policy alone reserves {}: what does not go as planned needs memory beside the plan's.",
                Percent(*exact),
                Bytes(*planned_reserved_bytes),
                Bytes(*reserved_bytes),
            ),
            Self::StepsDiffer { steps, exact, same_position } => write!(
                f,
                "{} of {steps} steps ask for exactly what one before did, which is too few for planned steps (more \
                 than {}); {} of the requests have the size of the one at their place in the step before.",
                Percent(*exact),
                Percent(STEPS_REPEAT),
                Percent(*same_position),
            ),
            Self::Scattered { same_size, distinct, effective, cached_bytes, plan_bytes, fixed_bytes } => {
                write!(
                    f,
                    "A cache of equal sizes would not help: for {} of the requests a freed block of their size waits \
                     (less than {}). There are {distinct} sizes, as scattered as {effective:.0} asked for equally \
                     often. Such a cache would have reserved {}",
                    Percent(*same_size),
                    Percent(FEW_REPEATS),
                    Bytes(*cached_bytes),
                )?;
                if let Some(bytes) = plan_bytes {
                    write!(f, "; an offline plan of the part that needs most takes {}", Bytes(*bytes))?;
                }
                if let Some(bytes) = fixed_bytes {
                    write!(
                        f,
                        "; a pool that takes {} in advance serves all of it and maps nothing",
                        Bytes(*bytes)
                    )?;
                }
                f.write_str(".")
            }
            Self::Repeating { same_size, same_size_bytes, hit_rate } => write!(
                f,
                "For {} of the requests, and {} of the bytes, a freed block of their size waits: caching helps, and \
                 the policy serves {} of all requests from what it has.",
                Percent(*same_size),
                Percent(*same_size_bytes),
                Percent(*hit_rate),
            ),
            Self::StuckSegments {
                segments,
                free_bytes,
                reserved_bytes,
                largest_segment_bytes,
                largest_survivor_bytes,
            } => write!(
                f,
                "Small blocks keep large segments: {segments} segments of up to {} are less than half used, each kept by \
                 blocks of at most {}. {} of {} are free in them ({}) and serve no request of their size. Where \
                 pages move before more is mapped (mode:moving) such memory is not lost.",
                Bytes(*largest_segment_bytes),
                Bytes(*largest_survivor_bytes),
                Bytes(*free_bytes),
                Bytes(*reserved_bytes),
                Percent::of(*free_bytes, *reserved_bytes),
            ),
            Self::Apart { min_bytes, reserved_bytes, together_bytes } => write!(
                f,
                "With requests below {} in another pool (`min_bytes`), PyTorch's policy reserves {} in both together, \
                 instead of {}.",
                Bytes(*min_bytes),
                Bytes(*reserved_bytes),
                Bytes(*together_bytes),
            ),
            Self::MaxSplit {
                conf,
                reserved_bytes,
                without_bytes,
                stuck_segment_bytes,
                is_needed,
                is_rejected,
            } => {
                let verdict = match (is_needed, is_rejected) {
                    (true, _) => "makes the run complete on the device, which it does not without the option",
                    (false, true) if reserved_bytes > without_bytes => "is rejected: what is reserved rises",
                    (false, true) => "is rejected: the run completes on the device without the option only",
                    (false, false) => "is possible: what is reserved does not rise",
                };
                write!(
                    f,
                    "{conf}, below the {} that a small block keeps, {verdict}: {} reserved, instead of {}.",
                    Bytes(*stuck_segment_bytes),
                    Bytes(*reserved_bytes),
                    Bytes(*without_bytes),
                )
            }
            Self::Chosen { conf, measure, value, best_conf, best_value, margin } => {
                let tell = |value: f64| measure.describe(value);
                if conf == best_conf {
                    return write!(f, "{conf} is best by {measure}: {}.", tell(*value));
                }
                let rest = match measure {
                    Measure::PeakReserved => "and of those it is as quick as any",
                    Measure::Time => "and of those it is the first in the order of preference",
                };
                write!(
                    f,
                    "By {measure} {best_conf} is best with {}; {conf} has {}, which is as good (no more than {} above), \
                     {rest}.",
                    tell(*best_value),
                    tell(*value),
                    tell(*margin),
                )
            }
            Self::IsDefault => f.write_str("That is the default: nothing has to be set."),
            Self::FewHits { hit_rate } => write!(
                f,
                "{} of the requests were served from memory that was there (less than {}): caching does not help so \
                 far; memory taken in advance would.",
                Percent(*hit_rate),
                Percent(FEW_HITS),
            ),
            Self::Fragmented { fragmentation } => write!(
                f,
                "{} of what was reserved was not asked for (more than {}): where pages move it would serve.",
                Percent(*fragmentation),
                Percent(MUCH_FRAGMENTATION),
            ),
            Self::Fine { fragmentation, hit_rate } => {
                write!(
                    f,
                    "{} of what was reserved was not asked for (no more than {})",
                    Percent(*fragmentation),
                    Percent(MUCH_FRAGMENTATION),
                )?;
                if let Some(hit_rate) = hit_rate {
                    write!(f, ", and {} of the requests were hits", Percent(*hit_rate))?;
                }
                f.write_str(": nothing speaks for another policy.")
            }
        }
    }
}
