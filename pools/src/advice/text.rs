//! Advice as people read it.

use std::fmt;

use super::{Advice, Evidence, Strategy};

/// Bytes in the largest unit that leaves a whole number before the point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes(pub(super) usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let text = match self.0.checked_ilog2().unwrap_or(0) / 10 {
            0 => format!("{} B", self.0),
            1 => format!("{:.1} KiB", bytes / 1024.0),
            2 => format!("{:.1} MiB", bytes / 1_048_576.0),
            3 => format!("{:.2} GiB", bytes / 1_073_741_824.0),
            _ => format!("{:.2} TiB", bytes / 1_099_511_627_776.0),
        };
        f.pad(&text)
    }
}

/// A share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Percent(pub(super) f64);

impl Percent {
    pub(super) fn of(part: usize, whole: usize) -> Self {
        Self(super::repeats::share(part as u64, whole as u64))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.0;
        // What is little is not nothing.
        let digits = if percent > 0.0 && percent < 1.0 { 2 } else { 1 };
        f.pad(&format!("{percent:.digits$}%"))
    }
}

/// Microseconds in a unit that suits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Micros(pub(super) f64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0;
        let text = if us < 1e3 {
            format!("{us:.1} us")
        } else if us < 1e6 {
            format!("{:.2} ms", us / 1e3)
        } else {
            format!("{:.2} s", us / 1e6)
        };
        f.pad(&text)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { events, replayed, allocations } if replayed < events => {
                write!(f, "{replayed} of {events} events around the peak, with {allocations} allocations")
            }
            Self::Run { events, allocations, .. } => {
                write!(f, "{events} events, with {allocations} allocations")
            }
            Self::Layout { segments, blocks, allocations } => write!(
                f,
                "{blocks} blocks in {segments} segments at one moment; {allocations} allocations before it are too few \
                 to replay"
            ),
            Self::Counters { requests } => write!(f, "the counters of {requests} requests"),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPool => "no pool",
            Self::Pool => "a pool",
            Self::StepPlan => "a pool with a planned step",
            Self::Preallocate => "a pool that takes its memory in advance",
            Self::GrowInSteps => "buffers that grow in a few large steps, and a pool for the rest",
            Self::PreallocateGrowing => "buffers of their last size for what grows, and a pool for the rest",
        })
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recommendation = &self.recommendation;
        writeln!(f, "Advice: {}", recommendation.strategy)?;
        if let Some(environment) = &recommendation.environment {
            writeln!(f, "  {environment}")?;
        }
        if let Some(builder) = &recommendation.builder {
            writeln!(f, "  {builder}")?;
        }
        if let Some(bytes) = recommendation.pool_bytes {
            writeln!(
                f,
                "  size of the pool, if it is to be fixed: {} (fixed_size_mb:{})",
                Bytes(bytes),
                bytes >> 20
            )?;
        }
        writeln!(f, "Based on {}.", self.evidence)?;
        writeln!(f, "\nWhy:")?;
        for finding in &self.findings {
            writeln!(f, "  * {finding}")?;
        }
        if !self.unknown.is_empty() {
            writeln!(f, "\nNot known:")?;
            for unknown in &self.unknown {
                writeln!(f, "  * {unknown}")?;
            }
        }
        self.write_sizes(f)?;
        self.write_predictions(f)
    }
}

impl Advice {
    fn write_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\nSizes: {} requests", self.sizes.requests)?;
        if let (Some(distinct), Some(effective)) = (self.sizes.distinct, self.sizes.effective) {
            write!(f, " of {distinct} sizes, as scattered as {effective:.0} equally frequent ones")?;
        }
        writeln!(f, "; {} live at most", Bytes(self.sizes.peak_requested_bytes))?;
        writeln!(
            f,
            "  {:>10} {:>10} {:>11} {:>12} {:>12}",
            "from", "requests", "bytes", "live at peak", "bytes"
        )?;
        let number = |figure: Option<u64>| figure.map_or_else(|| "?".to_owned(), |figure| figure.to_string());
        let bytes = |figure: Option<u64>| {
            figure.map_or_else(|| "?".to_owned(), |figure| Bytes(figure as usize).to_string())
        };
        for bucket in &self.sizes.buckets {
            writeln!(
                f,
                "  {:>10} {:>10} {:>11} {:>12} {:>12}",
                Bytes(1 << bucket.bucket),
                bucket.requests,
                bytes(bucket.bytes),
                number(bucket.live_at_peak),
                bytes(bucket.live_at_peak_bytes),
            )?;
        }
        Ok(())
    }

    fn write_predictions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.predictions.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nBy replay:")?;
        writeln!(
            f,
            "  {:<36} {:>7} {:>11} {:>7} {:>8} {:>8} {:>10} {:>11}",
            "policy", "hits", "reserved", "unused", "maps", "moved", "mapping", "bookkeeping"
        )?;
        for policy in &self.predictions {
            let note = match (policy.completes, policy.is_for_comparison) {
                (false, _) => "  does not complete on the device",
                (true, true) => "  to compare with",
                (true, false) => "",
            };
            writeln!(
                f,
                "  {:<36} {:>7} {:>11} {:>7} {:>8} {:>8} {:>10} {:>11}{note}",
                policy.conf,
                Percent(policy.hit_rate),
                Bytes(policy.peak_reserved_bytes),
                Percent(policy.fragmentation),
                policy.map_calls,
                policy.moved_pages,
                Micros(policy.mapping_us),
                Micros(policy.bookkeeping_us),
            )?;
        }
        if let Some(planned) = &self.planned_steps {
            writeln!(
                f,
                "  planned steps: {} of the requests and {} of the steps as planned, {} reserved, {} maps",
                Percent(planned.planned),
                Percent(planned.whole_steps),
                Bytes(planned.peak_reserved_bytes),
                planned.map_calls,
            )?;
        }
        if let Some(plan) = &self.offline_plan {
            writeln!(
                f,
                "  an offline plan of the part that needs most ({} buffers): {}, where {} are live",
                plan.buffers,
                Bytes(plan.peak_bytes),
                Bytes(plan.live_bytes),
            )?;
        }
        if let Some(bytes) = self.preallocated_bytes {
            writeln!(f, "  each tensor of a step with memory of its own: {}", Bytes(bytes))?;
        }
        Ok(())
    }
}
