//! Advice from less than a run: from what lies where, and from a pool's counters.
//!
//! Neither tells when what was allocated, so nothing can be replayed, and both say so.

use mempool_arena::{Stats, bucket_of};

use super::decide::{Recommendation, Strategy};
use super::predict::{DEFAULT, MOVING};
use super::sizes::{SizeBucket, Sizes};
use super::stuck::Stuck;
use super::thresholds::{FEW_HITS, FEW_REQUESTS, MUCH_FRAGMENTATION, MUCH_STUCK};
use super::{Advice, AdviceError, AdviceOptions, Evidence, Finding, Unknown};

/// What lay where at one moment: segments, each with the blocks in it that are not free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// The segments, in any order.
    pub segments: Vec<LayoutSegment>,
}

/// A segment of a [`Layout`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayoutSegment {
    /// Its bytes.
    pub bytes: usize,
    /// Whether its pages are mapped one by one, so that free ones can go elsewhere.
    pub maps_pages: bool,
    /// The blocks in it that are not free: bytes requested, and bytes taken.
    pub used: Vec<(usize, usize)>,
}

/// Advice from what lies where. `allocations` are those that a history has, too few to replay.
///
/// # Errors
/// [`AdviceError::Empty`] where nothing is reserved.
pub fn advise_on_layout(
    layout: &Layout,
    allocations: u64,
    options: &AdviceOptions,
) -> Result<Advice, AdviceError> {
    let (mut reserved, mut requested, mut blocks) = (0, 0, 0);
    let mut buckets = [SizeBucket::default(); usize::BITS as usize];
    let mut stuck = Stuck::default();
    for LayoutSegment { bytes: segment_bytes, maps_pages, used } in &layout.segments {
        reserved += segment_bytes;
        for &(requested_bytes, _) in used {
            requested += requested_bytes;
            blocks += 1;
            let bucket = &mut buckets[bucket_of(requested_bytes)];
            bucket.requests += 1;
            bucket.bytes = Some(bucket.bytes.unwrap_or(0) + requested_bytes as u64);
        }
        // What is free on pages of its own is not lost: it goes where it is needed.
        if !maps_pages {
            stuck.look_at(*segment_bytes, used.iter().map(|&(_, taken_bytes)| taken_bytes));
        }
    }
    if reserved == 0 {
        return Err(AdviceError::Empty);
    }
    stuck.reserved_bytes = reserved;
    let stuck = (stuck.segments > 0).then_some(stuck);
    let fragmentation = 1.0 - requested.min(reserved) as f64 / reserved as f64;
    let mut findings = Vec::new();
    let conf = match stuck.filter(|stuck| stuck.share() >= MUCH_STUCK) {
        Some(stuck) => {
            findings.push(Finding::StuckSegments {
                segments: stuck.segments,
                free_bytes: stuck.free_bytes,
                reserved_bytes: reserved,
                largest_segment_bytes: stuck.largest_segment_bytes,
                largest_survivor_bytes: stuck.largest_survivor_bytes,
            });
            MOVING
        }
        None if fragmentation > MUCH_FRAGMENTATION => {
            findings.push(Finding::Fragmented { fragmentation });
            DEFAULT
        }
        None => {
            findings.push(Finding::Fine { fragmentation, hit_rate: None });
            DEFAULT
        }
    };
    let evidence = Evidence::Layout { segments: layout.segments.len() as u64, blocks, allocations };
    let sizes = Sizes {
        buckets: numbered(buckets),
        requests: blocks,
        peak_requested_bytes: requested,
        ..Sizes::default()
    };
    let mut advice = less(evidence, sizes, conf, Strategy::Pool, findings, options);
    advice.stuck = stuck;
    Ok(advice)
}

/// Advice from a pool's counters.
///
/// # Errors
/// [`AdviceError::Empty`] where nothing was asked for.
pub fn advise_on_stats(stats: &Stats, options: &AdviceOptions) -> Result<Advice, AdviceError> {
    let mut buckets = [SizeBucket::default(); usize::BITS as usize];
    for (bucket, counted) in buckets.iter_mut().zip(stats.buckets.iter()) {
        bucket.requests = counted.hits + counted.misses;
    }
    let requests = stats.hits + stats.misses;
    if requests == 0 {
        return Err(AdviceError::Empty);
    }
    let (hit_rate, fragmentation) = (stats.hit_rate(), stats.run_fragmentation());
    let mut findings = Vec::new();
    let is_much = requests >= FEW_REQUESTS;
    if hit_rate < FEW_HITS && is_much {
        findings.push(Finding::FewHits { hit_rate });
    }
    let mut conf = DEFAULT;
    if fragmentation > MUCH_FRAGMENTATION && is_much {
        findings.push(Finding::Fragmented { fragmentation });
        conf = MOVING;
    }
    if findings.is_empty() {
        findings.push(Finding::Fine { fragmentation, hit_rate: Some(hit_rate) });
    }
    let strategy = match hit_rate < FEW_HITS && is_much {
        true => Strategy::Preallocate,
        false => Strategy::Pool,
    };
    let sizes = Sizes {
        buckets: numbered(buckets),
        requests,
        peak_requested_bytes: stats.requested.peak,
        ..Sizes::default()
    };
    let mut advice = less(Evidence::Counters { requests }, sizes, conf, strategy, findings, options);
    advice.unknown.push(Unknown::SizesInBuckets);
    Ok(advice)
}

fn numbered(buckets: [SizeBucket; usize::BITS as usize]) -> Vec<SizeBucket> {
    let numbered = (0..).zip(buckets).map(|(number, bucket)| SizeBucket { bucket: number, ..bucket });
    numbered.filter(|bucket| bucket.requests > 0).collect()
}

/// Advice without replays.
fn less(
    evidence: Evidence,
    sizes: Sizes,
    conf: &str,
    strategy: Strategy,
    findings: Vec<Finding>,
    options: &AdviceOptions,
) -> Advice {
    let mut unknown = vec![Unknown::Lifetimes];
    if options.device_bytes.is_none() {
        unknown.push(Unknown::DeviceMemory);
    }
    let mut findings = findings;
    if let Some(device_bytes) = options.device_bytes.filter(|&bytes| sizes.peak_requested_bytes > bytes) {
        findings
            .insert(0, Finding::TooLarge { peak_requested_bytes: sizes.peak_requested_bytes, device_bytes });
    }
    if conf == DEFAULT {
        findings.push(Finding::IsDefault);
    }
    // What was live, and the margin that sizes from runs have.
    let margin = mempool_arena::Margin::default().share();
    let pool_bytes = (sizes.peak_requested_bytes as f64 * (1.0 + margin)) as usize;
    let pool_bytes = (strategy == Strategy::Preallocate).then(|| pool_bytes.next_multiple_of(2 << 20));
    Advice {
        evidence,
        recommendation: Recommendation::new(strategy, conf, pool_bytes),
        findings,
        unknown,
        sizes,
        repeats: None,
        growth: None,
        grown_once: None,
        grown_in_parts: None,
        stuck: None,
        predictions: Vec::new(),
        planned_steps: None,
        offline_plan: None,
        preallocated_bytes: None,
        unpooled_us: None,
    }
}
