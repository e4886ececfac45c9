//! Pools that are larger than what they serve, or smaller.

use super::fragmentation::finding;
use super::view::{PAGE_BYTES, View, total};
use super::words::{count, size};
use super::{Cause, Finding, Severity};
use crate::snapshot::{Action, BlockState};

/// What a pool gets beyond what was needed: sizes of other runs differ a little.
const MARGIN: f64 = 1.05;
/// A pool is too large when it has this much more than what it should have: what grew step by step to a peak that was cut up has
/// up to a half more.
const TOO_LARGE: f64 = 1.5;

/// Steps after which a pool that is not used up will not be.
const LEAST_STEPS: u32 = 3;

/// A size in whole pages, with a margin.
fn right_size(needed: usize) -> usize {
    let more = (needed as f64 * MARGIN) as usize;
    more.checked_next_multiple_of(PAGE_BYTES).unwrap_or(more)
}

/// As an option of `MEMPOOL_CONF` has it.
fn in_mb(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// A pool that has more than ever was used, by its own figures.
pub(super) fn pool_too_large(view: &View<'_>, is_split: bool) -> Option<Finding> {
    let used = view.pool.stats.as_ref()?.active.peak;
    // A pool that was hardly used yet may need all of it later.
    let severity = if view.last_step >= LEAST_STEPS { Severity::Problem } else { Severity::Notice };
    let right = right_size(used);
    let over = view.reserved.saturating_sub(right);
    if is_split || over < PAGE_BYTES * 4 || (view.reserved as f64) < TOO_LARGE * right as f64 {
        return None;
    }
    let text = format!(
        "{} are reserved, and {} were in use at most since peaks were last reset",
        size(view.reserved),
        size(used),
    );
    let advice = format!(
        "take {} from the start (fixed_size_mb:{1}, or initial_size_mb:{1})",
        size(right),
        in_mb(right)
    );
    Some(finding(view, Cause::PoolTooLarge, severity, over, Vec::new(), text, &advice))
}

/// A pool whose limit requests ran into.
pub(super) fn pool_too_small(view: &View<'_>, is_split: bool) -> Option<Finding> {
    let limit = view.pool.limit_bytes?;
    let stats = view.pool.stats.as_ref();
    let overflows = stats.map_or(0, |stats| usize::try_from(stats.overflow_count).unwrap_or(usize::MAX));
    let refused = view.refused().count().max(overflows);
    // What split memory cannot serve is told of as that.
    let fits = view.refused().last().is_some_and(|entry| entry.size <= view.free());
    if refused == 0 || (is_split && fits) {
        return None;
    }
    let peak = stats.map_or(view.active, |stats| stats.active.peak);
    let needed = needed_at_once(view).map_or(limit, |needed| needed.max(peak));
    let mut text = format!(
        "{} found no memory below its limit of {}, {} of which were in use",
        count(refused, "request"),
        size(limit),
        size(peak),
    );
    let sites = view.refused().last().map(|entry| super::Site {
        name: view.site_of_entry(entry),
        blocks: refused,
        bytes: entry.size,
    });
    if let Some(site) = &sites {
        text += &format!("; the last one was of {}, from `{}`", size(site.bytes), site.name);
    }
    let right = right_size(needed);
    let advice = if needed > limit {
        format!("give it {} (limit_mb:{})", size(right), in_mb(right))
    } else {
        "raise its limit; a history (record_history) would tell to how much".to_owned()
    };
    let bytes = right.saturating_sub(limit);
    let sites = sites.into_iter().collect();
    Some(finding(view, Cause::PoolTooSmall, Severity::Problem, bytes, sites, text, &advice))
}

/// The most that would have been in use at once had each refused request been served, by the trace: followed back from what
/// is in use now.
fn needed_at_once(view: &View<'_>) -> Option<usize> {
    let used = view.segments.iter().flat_map(|segment| &segment.blocks);
    let used = used.filter(|block| block.state != BlockState::Inactive);
    let mut live = total(used.map(|block| block.requested_size));
    let mut needed = None;
    // Requests that came one after the other with nothing freed between them would all have been live.
    let mut refused_together = 0_usize;
    for entry in view.trace.iter().rev() {
        match entry.action {
            Action::Alloc => live = live.saturating_sub(entry.size),
            Action::FreeCompleted => {
                live = live.saturating_add(entry.size);
                refused_together = 0;
            }
            Action::Oom => {
                refused_together = entry.size.saturating_add(refused_together);
                needed = needed.max(Some(live.saturating_add(refused_together)));
            }
            _ => {}
        }
    }
    needed
}
