//! What grows from step to step: blocks that live on, and buffers that are allocated anew a little longer.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::fragmentation::finding;
use super::view::{View, sorted, total};
use super::words::{count, size};
use super::{Cause, Finding, Severity, Site};
use crate::snapshot::{Action, Block, TraceEntry};

/// Parts that time is cut into to see whether something comes again and again.
const PARTS: usize = 10;
/// Parts in which a place has to have left a block. The first ones are a program's start.
const LEAST_PARTS: usize = 7;

/// When a block was allocated, on a scale on which steps are long if there are any.
fn moment(view: &View<'_>, block: &Block) -> Option<u64> {
    let owner = block.owner.as_ref().filter(|owner| !owner.is_older)?;
    Some(if view.has_steps() { owner.step.into() } else { owner.time_us })
}

fn moment_of_entry(view: &View<'_>, entry: &TraceEntry) -> u64 {
    if view.has_steps() { entry.step.into() } else { entry.time_us }
}

/// What places leave behind in step after step.
pub(super) fn grows_each_step(view: &View<'_>) -> Option<Finding> {
    let live: Vec<(&Block, u64)> =
        view.live().filter_map(|block| moment(view, block).map(|at| (block, at))).collect();
    let of_trace = view.trace.iter().map(|entry| moment_of_entry(view, entry));
    let first = live.iter().map(|(_, at)| *at).chain(of_trace.clone()).min()?;
    let last = live.iter().map(|(_, at)| *at).chain(of_trace).max()?;
    let parts = PARTS.min(usize::try_from(last - first).unwrap_or(PARTS).saturating_add(1));
    if parts < PARTS / 2 {
        return None;
    }
    let part = |at: u64| ((at - first) as f64 / (last - first + 1) as f64 * parts as f64) as usize;
    // A place is told apart by the size too: what is kept for ever and what grows may come from one line.
    let mut places: HashMap<(String, usize), Vec<(&Block, u64)>> = HashMap::new();
    for &(block, at) in &live {
        places.entry((view.site(block), block.requested_size)).or_default().push((block, at));
    }
    let grows = |blocks: &Vec<(&Block, u64)>| {
        let in_parts: HashSet<usize> = blocks.iter().map(|(_, at)| part(*at)).collect();
        in_parts.len() * PARTS >= LEAST_PARTS * parts
    };
    let mut sites: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut steps: HashSet<u64> = HashSet::new();
    let mut sizes = 0;
    for ((site, _), blocks) in places.into_iter().filter(|(_, blocks)| grows(blocks)) {
        sizes += 1;
        steps.extend(blocks.iter().map(|(_, at)| *at));
        let (number, bytes) = sites.entry(site).or_default();
        *number += blocks.len();
        *bytes = bytes.saturating_add(total(blocks.iter().map(|(block, _)| block.size)));
    }
    let sites: Vec<Site> =
        sorted(sites.into_iter().map(|(name, (blocks, bytes))| Site { name, blocks, bytes }).collect());
    let bytes = total(sites.iter().map(|site| site.bytes));
    let number: usize = sites.iter().map(|site| site.blocks).sum();
    let largest = sites.first()?;
    let mut text = format!(
        "{} ({}) live on that were allocated over and over: {} from `{}`",
        count(number, "block"),
        size(bytes),
        count(largest.blocks, "block"),
        largest.name,
    );
    if view.has_steps() {
        let per_step = bytes / steps.len().max(1);
        text += &format!(", {} more with each of {} steps", size(per_step), steps.len());
    }
    // A graph keeps what each of its operations made: blocks of several places or sizes, as many of each.
    let advice = if sizes >= 3 {
        "blocks of so many kinds at once are what a graph keeps alive: push a detached tensor or a number \
         (detach(), to_scalar()) where a loss or a state is collected"
    } else {
        "a collection grows there, or a tensor is never dropped: empty it, or keep what is needed of it"
    };
    let text = if sites.len() > 1 {
        text + &format!(", and from {} more", count(sites.len() - 1, "place"))
    } else {
        text
    };
    Some(finding(view, Cause::GrowsEachStep, Severity::Problem, bytes, sites, text, advice))
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
