//! What grows from step to step: blocks that live on, and buffers that are allocated anew a little longer.

use std::collections::{HashMap, HashSet};

use super::fragmentation::finding;
use super::view::{View, sorted, total};
use super::words::{count, size};
use super::{Cause, Finding, Severity, Site};
use crate::snapshot::{Action, Block, TraceEntry};

/// Blocks that a place has to have left behind. Fewer may be chance.
const LEAST_BLOCKS: usize = 5;
/// Share of the time since the history began within which one of them has to follow the other, from the beginning to now. What is
/// made once is there at the beginning only, and a window of the last things only at the end.
const LONGEST_PAUSE: f64 = 0.3;
/// Steps that the history has to tell of, or parts of its time in which something has to be freed: a program that only allocates
/// is being made ready.
const LEAST_STEPS: u64 = 5;
const PARTS_WITH_FREES: usize = 7;
/// Share of what is live that has to have grown, to be a problem. Less may be what a program writes down.
const PROBLEM_SHARE: f64 = 0.05;

/// When a block was allocated, on a scale on which steps are long if there are any.
fn moment(view: &View<'_>, block: &Block) -> Option<u64> {
    let owner = block.owner.as_ref().filter(|owner| !owner.is_older)?;
    Some(if view.has_steps() { owner.step.into() } else { owner.time_us })
}

fn moment_of_entry(view: &View<'_>, entry: &TraceEntry) -> u64 {
    if view.has_steps() { entry.step.into() } else { entry.time_us }
}

/// The time that a history tells of: steps, or microseconds.
fn span(view: &View<'_>, live: &[(&Block, u64)]) -> Option<(u64, u64)> {
    let of_trace = view.trace.iter().map(|entry| moment_of_entry(view, entry));
    let moments = || live.iter().map(|(_, at)| *at).chain(of_trace.clone());
    let began = match (view.has_steps(), view.history_began_us()) {
        // Steps are counted from there.
        (true, Some(_)) => 0,
        (false, Some(began)) => began,
        (_, None) => moments().min()?,
    };
    Some((began, moments().max()?))
}

/// Whether something is freed all the time.
fn frees_all_the_time(view: &View<'_>, (first, last): (u64, u64)) -> bool {
    const PARTS: u64 = 10;
    let freed = view.trace.iter().filter(|entry| entry.action == Action::FreeRequested);
    let part = |entry: &&TraceEntry| entry.time_us.saturating_sub(first) * PARTS / (last - first).max(1);
    freed.map(part).collect::<HashSet<u64>>().len() >= PARTS_WITH_FREES
}

/// Whether blocks came one after the other from the beginning to now.
fn came_steadily(mut moments: Vec<u64>, (first, last): (u64, u64)) -> bool {
    moments.sort_unstable();
    let longest = (last - first) as f64 * LONGEST_PAUSE;
    let mut before = first;
    moments.len() >= LEAST_BLOCKS
        && moments.into_iter().chain([last]).all(|at| {
            let pause = at.saturating_sub(before);
            before = at;
            pause as f64 <= longest
        })
}

/// What places leave behind in step after step.
pub(super) fn grows_each_step(view: &View<'_>) -> Option<Finding> {
    let live: Vec<(&Block, u64)> =
        view.live().filter_map(|block| moment(view, block).map(|at| (block, at))).collect();
    let span = span(view, &live)?;
    let tells =
        if view.has_steps() { span.1 - span.0 >= LEAST_STEPS } else { frees_all_the_time(view, span) };
    if !tells {
        return None;
    }
    let mut places: HashMap<String, Vec<(&Block, u64)>> = HashMap::new();
    for &(block, at) in &live {
        places.entry(view.site(block)).or_default().push((block, at));
    }
    places.retain(|_, blocks| came_steadily(blocks.iter().map(|(_, at)| *at).collect(), span));
    let grown: Vec<(&Block, u64)> = places.values().flatten().copied().collect();
    let steps: HashSet<u64> = grown.iter().map(|(_, at)| *at).collect();
    let mut kinds: HashMap<(&String, usize), usize> = HashMap::new();
    for (site, blocks) in &places {
        blocks.iter().for_each(|(block, _)| *kinds.entry((site, block.requested_size)).or_default() += 1);
    }
    // Of lengths that are never the same each is there once.
    let kinds = kinds.values().filter(|&&count| count >= LEAST_BLOCKS).count();
    let site = |(name, blocks): (&String, &Vec<(&Block, u64)>)| Site {
        name: name.clone(),
        blocks: blocks.len(),
        bytes: total(blocks.iter().map(|(block, _)| block.size)),
    };
    let sites = sorted(places.iter().map(site).collect());
    let bytes = total(sites.iter().map(|site| site.bytes));
    let largest = sites.first()?;
    let mut text = format!(
        "{} ({}) live on that were allocated one after the other since the history began: {} from `{}`",
        count(grown.len(), "block"),
        size(bytes),
        count(largest.blocks, "block"),
        largest.name,
    );
    if view.has_steps() {
        text += &format!(", {} more with each of {} steps", size(bytes / steps.len().max(1)), steps.len());
    }
    if sites.len() > 1 {
        text += &format!(", and from {} more", count(sites.len() - 1, "place"));
    }
    // A graph keeps what each of its operations made: blocks of several places or sizes, as many of each.
    let advice = if kinds >= 3 {
        "blocks of so many kinds at once are what a graph keeps alive: push a detached tensor or a number \
         (detach(), to_scalar()) where a loss or a state is collected"
    } else {
        "a collection grows there, or a tensor is never dropped: empty it, or keep what is needed of it"
    };
    let is_much = bytes as f64 >= PROBLEM_SHARE * view.active as f64;
    let severity = if is_much { Severity::Problem } else { Severity::Notice };
    Some(finding(view, Cause::GrowsEachStep, severity, bytes, sites, text, advice))
}

/// Different sizes that a place has to have asked for, each larger than the one before.
const LEAST_SIZES: usize = 8;
/// How much larger the last has to be than the first.
const LEAST_GROWTH: f64 = 1.2;
/// Share of its requests that are no smaller than the one before: layers ask for the same one after the other.
const RISING_SHARE: f64 = 0.9;

/// What a place asked for.
#[derive(Default)]
struct Requests {
    sizes: Vec<usize>,
    at_once: usize,
    /// How many of them were live at once, at most.
    most_at_once: usize,
}

/// What each place that has a name asked for: without one each size would be a place of its own.
fn requests_by_site(view: &View<'_>) -> HashMap<String, Requests> {
    let mut requests: HashMap<String, Requests> = HashMap::new();
    let mut owners: HashMap<usize, String> = HashMap::new();
    for entry in &view.trace {
        let addr = entry.addr.unwrap_or(0);
        match entry.action {
            Action::Alloc if entry.stack.is_some() || !entry.user_metadata.is_empty() => {
                let site = view.site_of_entry(entry);
                let of = requests.entry(site.clone()).or_default();
                of.sizes.push(entry.size);
                of.at_once += 1;
                of.most_at_once = of.most_at_once.max(of.at_once);
                owners.insert(addr, site);
            }
            Action::FreeRequested => {
                if let Some(of) = owners.remove(&addr).and_then(|site| requests.get_mut(&site)) {
                    of.at_once -= 1;
                }
            }
            _ => {}
        }
    }
    requests
}

/// A buffer that is allocated anew, a little longer each time, as a cache of keys and values that grows by `cat`.
pub(super) fn growing_buffer(view: &View<'_>) -> Option<Finding> {
    let requests = requests_by_site(view);
    let grows = |Requests { sizes, most_at_once, .. }: &Requests| {
        let rising = sizes.windows(2).filter(|pair| pair[0] <= pair[1]).count();
        let different: HashSet<usize> = sizes.iter().copied().collect();
        different.len() >= LEAST_SIZES
            && rising as f64 >= RISING_SHARE * (sizes.len() - 1) as f64
            && sizes[sizes.len() - 1] as f64 >= LEAST_GROWTH * sizes[0] as f64
            // Of a buffer that replaces another one, two are there at once.
            && most_at_once * LEAST_SIZES / 2 <= sizes.len()
    };
    let growing = requests.into_iter().filter(|(_, requests)| grows(requests));
    let growing = growing.map(|(name, requests)| (name, requests.sizes));
    let (name, sizes) = growing.max_by_key(|(name, sizes)| (total(sizes.iter().copied()), name.clone()))?;
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    let copied = total(sizes.iter().copied());
    let text = format!(
        "`{name}` asked {} times for a buffer that grew from {} to {}, {} in all: each time a new one is \
         allocated beside the old one, and the old one leaves a hole that the next does not fit into",
        sizes.len(),
        size(first),
        size(last),
        size(copied),
    );
    let advice = "allocate it once with room for its longest (a Buffer, candle_nn's kv_cache with a capacity, or \
                  slice_set into a tensor made beforehand), and write into it";
    let severity =
        if last as f64 >= 0.05 * view.reserved as f64 { Severity::Problem } else { Severity::Notice };
    let site = Site { name, blocks: sizes.len(), bytes: copied };
    Some(finding(view, Cause::GrowingBuffer, severity, last, vec![site], text, advice))
}
