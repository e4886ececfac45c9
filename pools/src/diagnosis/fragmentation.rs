//! Free memory that does not serve: between small blocks, in segments of other sizes, on pages that nothing uses.

use std::collections::{BTreeMap, HashSet};

use super::view::{Unit, View, sorted, total};
use super::words::{count, percent, size};
use super::{Cause, Finding, Severity, Site};
use crate::snapshot::{Action, TraceEntry};

/// Shares of reserved memory from which on something is worth a word, and is a problem. PyTorch's users look at
/// fragmentation from a tenth on; the allocators of the field lose 1% to 8% on steady programs.
const NOTICE: f64 = 0.05;
const PROBLEM: f64 = 0.1;
/// Less than this is a part of a page, and no share of it means anything; and of less than some pages nobody runs out.
const LEAST_BYTES: usize = 1 << 20;
const LEAST_PROBLEM_BYTES: usize = 8 << 20;

fn severity(view: &View<'_>, bytes: usize) -> Option<Severity> {
    let share = bytes as f64 / view.reserved.max(1) as f64;
    match share {
        _ if bytes < LEAST_BYTES => None,
        share if share >= PROBLEM && bytes >= LEAST_PROBLEM_BYTES => Some(Severity::Problem),
        share if share >= NOTICE => Some(Severity::Notice),
        _ => None,
    }
}

/// Free memory in units that live blocks hold.
pub(super) fn stuck_blocks(view: &View<'_>) -> Option<Finding> {
    // A block as large as what is free beside it holds little: that is rounding and the ends of segments.
    let pins = |unit: &&Unit<'_>| {
        unit.free_bytes > 0
            && unit.used.iter().map(|block| block.size.min(unit.bytes)).max() < Some(unit.free_bytes)
    };
    let pinned: Vec<&Unit<'_>> =
        view.units.iter().filter(|unit| !unit.used.is_empty()).filter(pins).collect();
    let bytes = total(pinned.iter().map(|unit| unit.free_bytes));
    let severity = severity(view, bytes)?;
    let mut sites: BTreeMap<String, (HashSet<usize>, usize)> = BTreeMap::new();
    for unit in &pinned {
        for block in &unit.used {
            let (blocks, held) = sites.entry(view.site(block)).or_default();
            blocks.insert(block.address);
            *held = held.saturating_add(unit.free_bytes / unit.used.len());
        }
    }
    let sites: Vec<Site> =
        sites.into_iter().map(|(name, (blocks, bytes))| Site { name, blocks: blocks.len(), bytes }).collect();
    let sites = sorted(sites);
    let blocks: HashSet<usize> =
        pinned.iter().flat_map(|unit| &unit.used).map(|block| block.address).collect();
    let unit = if view.segments.iter().any(|segment| segment.is_expandable) { "page" } else { "segment" };
    let mut text = format!(
        "{} of reserved memory ({} of {}) is free but split; the largest free block is {}; {} {} in {}",
        percent(bytes, view.reserved),
        size(bytes),
        size(view.reserved),
        size(view.largest_free),
        count(blocks.len(), "block"),
        if blocks.len() == 1 { "sits" } else { "sit" },
        count(pinned.len(), unit),
    );
    if let Some(first) = sites.first() {
        text += &format!(
            ", of which {} from `{}` {} {}",
            count(first.blocks, "block"),
            first.name,
            if first.blocks == 1 { "holds" } else { "hold" },
            size(first.bytes)
        );
    }
    text += &would_have_fitted(view);
    let advice = if unit == "page" {
        "put what lives long into a pool of its own, or let free pages move (mode:moving)"
    } else {
        "put what lives long into a pool of its own (or send small requests elsewhere with min_bytes), or use a \
         policy that maps pages (policy:pages; in PyTorch expandable_segments:True)"
    };
    Some(finding(view, Cause::StuckBlocks, severity, bytes, sites, text, advice))
}

/// What failed although as much was free.
fn would_have_fitted(view: &View<'_>) -> String {
    let last = view.refused().last();
    match last.filter(|entry| entry.size <= view.free()) {
        Some(entry) => format!(
            "; the request of {} that found no memory is less than the {} that are free",
            size(entry.size),
            size(view.free())
        ),
        None => String::new(),
    }
}

/// Segments that are wholly free, which were not used lately.
pub(super) fn idle_segments(view: &View<'_>) -> Option<Finding> {
    let free = view.units.iter().filter(|unit| unit.used.is_empty() && !unit.segment.is_expandable);
    let is_idle = |unit: &&Unit<'_>| view.is_at_peak || view.is_idle(unit.address, unit.bytes);
    let idle: Vec<&Unit<'_>> = free.filter(is_idle).collect();
    let bytes = view.never_needed(total(idle.iter().map(|unit| unit.bytes)));
    let mut severity = severity(view, bytes)?;
    if !view.has_trace() {
        // What is cached may be wanted in the next moment.
        severity = Severity::Notice;
    }
    let (least, most) =
        (idle.iter().map(|unit| unit.bytes).min()?, idle.iter().map(|unit| unit.bytes).max()?);
    let sizes = if least == most { size(most) } else { format!("{} to {}", size(least), size(most)) };
    let mut text = format!(
        "{} of reserved memory ({} of {}) lies in {} of {sizes} without any block",
        percent(bytes, view.reserved),
        size(bytes),
        size(view.reserved),
        count(idle.len(), "segment"),
    );
    let mut sites = Vec::new();
    if view.has_trace() {
        let lately = lately_asked(view);
        text += &if view.is_at_peak {
            " while nearly as much is live as ever".to_owned()
        } else {
            format!(" and that nothing was allocated in for the last half of {}", span(view))
        };
        if let Some(largest) = lately {
            text += &format!("; what is asked for now is {} at most", size(largest));
        }
        sites = who_used(view, &idle);
        if let Some(site) = sites.first() {
            text += &format!("; they were made for `{}`", site.name);
        }
    } else {
        text += "; without a history it is not known whether they will be used again";
    }
    text += &would_have_fitted(view);
    let advice = "give them back between phases (empty_cache, trim), or use a policy that maps pages, where free memory \
                  serves any size (policy:pages; in PyTorch expandable_segments:True)";
    Some(finding(view, Cause::IdleSegments, severity, bytes, sites, text, advice))
}

/// The largest request of the last quarter of the trace.
fn lately_asked(view: &View<'_>) -> Option<usize> {
    let recent = &view.trace[view.trace.len() - view.trace.len() / 4..];
    recent.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.size).max()
}

fn span(view: &View<'_>) -> String {
    format!("the {} entries of the history", view.trace.len())
}

/// Who allocated in the units when they were used.
fn who_used(view: &View<'_>, units: &[&Unit<'_>]) -> Vec<Site> {
    let mut ranges: Vec<(usize, usize)> = units.iter().map(|unit| (unit.address, unit.bytes)).collect();
    ranges.sort_unstable();
    let lies_in_one = |entry: &TraceEntry| {
        let addr = entry.addr.unwrap_or(0);
        let after = ranges.partition_point(|(start, _)| *start <= addr);
        after.checked_sub(1).is_some_and(|at| addr - ranges[at].0 < ranges[at].1)
    };
    let mut sites: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for entry in view.trace.iter().filter(|entry| entry.action == Action::Alloc && lies_in_one(entry)) {
        let (blocks, bytes) = sites.entry(view.site_of_entry(entry)).or_default();
        *blocks += 1;
        *bytes = bytes.saturating_add(entry.size);
    }
    sorted(sites.into_iter().map(|(name, (blocks, bytes))| Site { name, blocks, bytes }).collect())
}

/// Pages without any block, which were not used lately, or are not although nearly as much is live as ever.
pub(super) fn unused_pages(view: &View<'_>) -> Option<Finding> {
    let free = view.units.iter().filter(|unit| unit.used.is_empty() && unit.segment.is_expandable);
    let is_idle = |unit: &&Unit<'_>| view.is_at_peak || view.is_idle(unit.address, unit.bytes);
    let bytes = view.never_needed(total(free.filter(is_idle).map(|unit| unit.bytes)));
    let severity = if view.is_at_peak {
        severity(view, bytes)?
    } else {
        // Pages are there for peaks to come; a quarter is what a growth factor or a peak leaves behind.
        let is_much = bytes >= LEAST_BYTES && bytes as f64 >= 0.25 * view.reserved as f64;
        is_much.then_some(Severity::Notice)?
    };
    let when = match (view.is_at_peak, view.has_trace()) {
        (true, _) => ", while nearly as much is live as ever",
        (false, true) => "; nothing did for the last half of the history",
        (false, false) => "",
    };
    let text = format!(
        "{} of reserved memory ({} of {}) is mapped and nothing uses it{when}",
        percent(bytes, view.reserved),
        size(bytes),
        size(view.reserved),
    );
    let advice = if view.is_at_peak {
        "let free pages move to where memory is needed (mode:moving)"
    } else {
        "trim() gives it back, or a release threshold (release_threshold_mb) or a monitor does"
    };
    Some(finding(view, Cause::UnusedPages, severity, bytes, Vec::new(), text, advice))
}

/// Steps that a history has to tell of, for what each step does to be said.
const LEAST_STEPS: u32 = 6;

/// Memory that is taken from the device in most of the later steps.
pub(super) fn new_segments_each_step(view: &View<'_>) -> Option<Finding> {
    let first = view.trace.iter().map(|entry| entry.step).min()?;
    let steps = view.last_step.checked_sub(first).filter(|&steps| steps >= LEAST_STEPS)?;
    // The first steps of a program map what all later ones use.
    let from = first + steps / 2;
    let later = view.last_step - from;
    let takes = |entry: &&&TraceEntry| {
        matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap)
            && entry.step >= from
            && entry.step < view.last_step
    };
    let taken: Vec<&&TraceEntry> = view.trace.iter().filter(takes).collect();
    let in_steps: HashSet<u32> = taken.iter().map(|entry| entry.step).collect();
    if in_steps.len() * 2 < later as usize {
        return None;
    }
    let bytes = total(taken.iter().map(|entry| entry.size));
    let mut sites: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for entry in &taken {
        let (blocks, bytes) = sites.entry(view.site_of_entry(entry)).or_default();
        *blocks += 1;
        *bytes = bytes.saturating_add(entry.size);
    }
    let sites =
        sorted(sites.into_iter().map(|(name, (blocks, bytes))| Site { name, blocks, bytes }).collect());
    let text = format!(
        "memory was taken anew in {} of the last {later} steps, {} a step: what is cached does not serve them",
        in_steps.len(),
        size(bytes / later.max(1) as usize),
    );
    let advice = "shapes that change with each step want a policy that maps pages (policy:pages), or sizes that are rounded \
                  to a few (padding); shapes that repeat want a step plan";
    Some(finding(view, Cause::NewSegmentsEachStep, Severity::Problem, bytes, sites, text, advice))
}

pub(super) fn finding(
    view: &View<'_>,
    cause: Cause,
    severity: Severity,
    bytes: usize,
    sites: Vec<Site>,
    text: String,
    advice: &str,
) -> Finding {
    Finding { cause, severity, pool: view.name(), bytes, sites, text, advice: advice.to_owned() }
}
