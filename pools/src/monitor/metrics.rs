//! Figures in the text format that Prometheus and its kin collect.

use std::fmt::{self, Display, Write};
use std::io;

use mempool_arena::SizeClass;

use super::figures::{self, Seen, SeenDevice};
use crate::pool::Place;
use crate::registry;
use crate::stats::PoolStats;
use crate::thread_state::inside;

/// The figures of all pools and devices of the process in Prometheus' text format, version 0.0.4, to be served with content type
/// `text/plain; version=0.0.4`.
///
/// Each pool has the labels `device` (`host` or the device's number), `pool` (its name) and `pool_id`; what is counted by
/// [class](SizeClass) has `class` too. Never waits for a pool: where one's lock is held, as while its memory is
/// short, what is counted without it (what a device's pool reserves, failed requests, retries) is as it is now,
/// and the rest as it was seen last, by this function or a [`Monitor`](crate::Monitor);
/// `mempool_pool_figures_age_seconds` says how long ago. Peaks are of the run, or since the last reset; so are
/// counters, which begin at 0 again then, as for a process that began anew.
#[must_use]
pub fn metrics() -> String {
    inside(|| {
        let mut text = String::new();
        let written = write_all(&mut text, &figures::look(), &figures::devices());
        debug_assert!(written.is_ok(), "a string takes all");
        text
    })
}

/// Writes [`metrics`] to `out`.
///
/// # Errors
/// Those of `out`.
pub fn write_prometheus(mut out: impl io::Write) -> io::Result<()> {
    out.write_all(metrics().as_bytes())
}

#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
}

/// A number as the format has it.
#[derive(Clone, Copy)]
enum Number {
    Whole(u64),
    Real(f64),
}

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number}"),
        }
    }
}

/// A figure of pools: its name without the prefix, what it is, and how it is read.
type OfPool = (&'static str, Kind, &'static str, fn(&PoolStats) -> Number);
/// A figure of devices.
type OfDevice = (&'static str, &'static str, fn(&SeenDevice) -> usize);
/// A figure that is there for small and for large segments.
type OfClass = (&'static str, &'static str, fn(&PoolStats, SizeClass) -> usize);

fn whole(bytes: usize) -> Number {
    Number::Whole(bytes as u64)
}

const OF_CLASSES: [OfClass; 7] = [
    ("requested_bytes", "Bytes that live blocks were asked for.", |stats, class| {
        stats.of_class(class).requested.current
    }),
    ("allocated_bytes", "Bytes of live blocks, rounding included.", |stats, class| {
        stats.of_class(class).allocated.current
    }),
    ("active_bytes", "Bytes of blocks that are live, or freed and used by queued work.", |stats, class| {
        match class {
            SizeClass::Small => stats.active_small.bytes.current,
            SizeClass::Large => stats.active_large.bytes.current,
        }
    }),
    ("reserved_bytes", "Bytes that the pool holds.", |stats, class| stats.of_class(class).reserved.current),
    ("inactive_split_bytes", "Free bytes on pages that also hold a live block.", |stats, class| {
        stats.of_class(class).inactive_split.current
    }),
    ("blocks", "Live blocks.", |stats, class| stats.of_class(class).blocks.current),
    ("segments", "Ranges reserved from upstream.", |stats, class| stats.of_class(class).segments.current),
];

const OF_POOLS: [OfPool; 19] = [
    ("allocated_peak_bytes", Kind::Gauge, "The most that live blocks took.", |s| whole(s.allocated.peak)),
    ("reserved_peak_bytes", Kind::Gauge, "The most that the pool held.", |s| whole(s.reserved.peak)),
    ("releasable_bytes", Kind::Gauge, "Free bytes that a trim gives back.", |s| whole(s.releasable_bytes)),
    ("largest_free_bytes", Kind::Gauge, "The largest request that needs no new page.", |s| {
        whole(s.largest_free_bytes)
    }),
    ("split_ratio", Kind::Gauge, "Share of reserved bytes that are free but split.", |s| {
        Number::Real(s.split_share())
    }),
    ("hits_total", Kind::Counter, "Requests served from memory that was mapped already.", |s| {
        Number::Whole(s.hits)
    }),
    ("misses_total", Kind::Counter, "Requests that had to map pages.", |s| Number::Whole(s.misses)),
    ("allocations_total", Kind::Counter, "Blocks that were placed.", |s| {
        Number::Whole(s.blocks.total_allocated)
    }),
    ("requested_bytes_total", Kind::Counter, "Bytes that were asked for.", |s| {
        Number::Whole(s.requested.total_allocated)
    }),
    ("map_calls_total", Kind::Counter, "Times that memory was mapped.", |s| Number::Whole(s.map_calls)),
    ("unmap_calls_total", Kind::Counter, "Times that memory was unmapped.", |s| Number::Whole(s.unmap_calls)),
    ("moved_bytes_total", Kind::Counter, "Bytes of pages that were moved to where they were needed.", |s| {
        Number::Whole(s.moved_bytes)
    }),
    ("mapping_seconds_total", Kind::Counter, "Time in calls that map, move and unmap memory.", |s| {
        Number::Real(s.mapping_time.as_secs_f64())
    }),
    ("bypassed_total", Kind::Counter, "Requests in the pool's scope that went elsewhere.", |s| {
        Number::Whole(s.bypassed_count)
    }),
    ("bypassed_bytes_total", Kind::Counter, "Their bytes.", |s| Number::Whole(s.bypassed_bytes)),
    ("overflow_total", Kind::Counter, "Requests that there was no memory for.", |s| {
        Number::Whole(s.overflow_count)
    }),
    ("out_of_memory_total", Kind::Counter, "Requests that failed.", |s| Number::Whole(s.out_of_memory_count)),
    ("retries_total", Kind::Counter, "Requests tried again after memory was given back.", |s| {
        Number::Whole(s.retries)
    }),
    ("synchronizations_total", Kind::Counter, "Times that the whole device was waited for.", |s| {
        Number::Whole(s.synchronizations)
    }),
];

fn write_all(out: &mut impl Write, pools: &[Seen], devices: &[SeenDevice]) -> fmt::Result {
    let labels: Vec<String> = pools.iter().map(pool_labels).collect();
    for (name, help, read) in OF_CLASSES {
        let name = format!("mempool_pool_{name}");
        head(out, &name, Kind::Gauge, help)?;
        for (seen, labels) in pools.iter().zip(&labels) {
            for (class, label) in [(SizeClass::Small, "small"), (SizeClass::Large, "large")] {
                writeln!(out, "{name}{{{labels},class=\"{label}\"}} {}", read(&seen.stats, class))?;
            }
        }
    }
    for (name, kind, help, read) in OF_POOLS {
        let name = format!("mempool_pool_{name}");
        head(out, &name, kind, help)?;
        for (seen, labels) in pools.iter().zip(&labels) {
            writeln!(out, "{name}{{{labels}}} {}", read(&seen.stats))?;
        }
    }
    let name = "mempool_pool_figures_age_seconds";
    head(out, name, Kind::Gauge, "Age of the pool's figures, which are old while it is in use.")?;
    for (seen, labels) in pools.iter().zip(&labels) {
        writeln!(out, "{name}{{{labels}}} {}", Number::Real(seen.age.as_secs_f64()))?;
    }
    let of_devices: [OfDevice; 3] = [
        ("mempool_device_reserved_bytes", "Bytes that all pools of the device hold.", |seen| {
            seen.reserved_bytes
        }),
        ("mempool_device_allowed_bytes", "Bytes that pools of the device may hold.", |seen| {
            seen.device.allowed_bytes()
        }),
        ("mempool_device_total_bytes", "Bytes of the device.", |seen| seen.device.total_bytes),
    ];
    for (name, help, read) in of_devices {
        head(out, name, Kind::Gauge, help)?;
        for seen in devices {
            let device = device_label(seen.platform, seen.device.ordinal);
            writeln!(out, "{name}{{device=\"{device}\"}} {}", read(seen))?;
        }
    }
    Ok(())
}

fn head(out: &mut impl Write, name: &str, kind: Kind, help: &str) -> fmt::Result {
    let kind = match kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
    };
    writeln!(out, "# HELP {name} {help}")?;
    writeln!(out, "# TYPE {name} {kind}")
}

/// A device's number; behind that of its driver, should there be several.
fn device_label(platform: usize, ordinal: u32) -> String {
    if platform == 0 { ordinal.to_string() } else { format!("{platform}:{ordinal}") }
}

fn pool_labels(seen: &Seen) -> String {
    let device = match seen.place {
        Place::Host(_) => "host".to_owned(),
        Place::Device(slot) => {
            let mut platforms = registry::platforms();
            let platform = platforms.position(|other| std::ptr::eq(other, slot.device.platform));
            device_label(platform.unwrap_or(usize::MAX), slot.device.ordinal)
        }
    };
    let stats = &seen.stats;
    format!("device=\"{device}\",pool=\"{}\",pool_id=\"{}\"", Escaped(&stats.name), stats.id)
}

/// The value of a label: backslash, quote and line feed are escaped.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_a_label_is_escaped() {
        assert_eq!(Escaped("a \"b\"\\c\nd \u{e9}").to_string(), "a \\\"b\\\"\\\\c\\nd \u{e9}");
    }
}
