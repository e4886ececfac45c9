//! Memory that is live: no fragmentation.

use super::fragmentation::finding;
use super::view::{View, total};
use super::words::{percent, sites, size};
use super::{Cause, Finding, Severity, Site};
use crate::snapshot::Block;

/// Share of what is in use that one block has to have, to be named for itself.
const LARGE_SHARE: f64 = 0.2;

/// A large block that the step in progress allocated early and still has.
pub(super) fn held_tensors(view: &View<'_>) -> Option<Finding> {
    if !view.has_steps() {
        return None;
    }
    let step = view.last_step;
    let position = |block: &Block| {
        let owner = block.owner.as_ref().filter(|owner| owner.step == step && !owner.is_older);
        owner.map(|owner| owner.position)
    };
    let of_trace = view.trace.iter().filter(|entry| entry.step == step).map(|entry| entry.position);
    let now = view.live().filter_map(position).chain(of_trace).max()?;
    let is_held = |block: &&Block| {
        let early = position(block).is_some_and(|at| u64::from(at) * 2 <= u64::from(now) && at < now);
        early && block.size as f64 >= LARGE_SHARE * view.active as f64
    };
    let sites = view.largest_sites(view.live().filter(is_held));
    let first = sites.first()?;
    let bytes = total(sites.iter().map(|site| site.bytes));
    let text = format!(
        "{} of what is live ({} of {}) was allocated early in this step, in `{}`, and is held still",
        percent(bytes, view.active),
        size(bytes),
        size(view.active),
        first.name,
    );
    let advice = "if nothing reads it any more, drop it: a variable that another one of its name shadows keeps its tensor \
                  to the end of the block";
    let severity = if view.has_failed() { Severity::Problem } else { Severity::Notice };
    Some(finding(view, Cause::HeldTensors, severity, bytes, sites, text, advice))
}

/// Share of reserved memory that has to be in use for it to be needed.
const NEEDED_SHARE: f64 = 0.8;

/// Live tensors take what is reserved.
pub(super) fn live_tensors(view: &View<'_>, has_problem: bool) -> Option<Finding> {
    if view.reserved == 0 || (view.active as f64) < NEEDED_SHARE * view.reserved as f64 {
        return None;
    }
    let largest: Vec<Site> = view.largest_sites(view.live());
    let mut text = format!(
        "{} of reserved memory ({} of {}) is in use: this is no fragmentation",
        percent(view.active, view.reserved),
        size(view.active),
        size(view.reserved),
    );
    if view.kept() > 0 {
        text += &format!("; planned steps and sets of buffers keep {} of it", size(view.kept()));
    }
    if !largest.is_empty() {
        text += &format!("; the largest part are {}", sites(&largest, 3));
    }
    let refused = view.refused().last();
    if let Some(entry) = refused {
        text += &format!("; {} more were asked for", size(entry.size));
    }
    let severity = if refused.is_some() && !has_problem { Severity::Problem } else { Severity::Fine };
    let all =
        |entry: &crate::snapshot::TraceEntry| view.reserved.saturating_add(entry.device_free.unwrap_or(0));
    let advice = if refused.is_some_and(|entry| entry.size > all(entry)) {
        "that one request is for more than there is at all: look at where its size comes from"
    } else if severity == Severity::Problem {
        "hold less at once: smaller batches, shorter sequences, checkpointing, or drop what is no longer read"
    } else {
        ""
    };
    Some(finding(view, Cause::LiveTensors, severity, view.active, largest, text, advice))
}
