//! Memory that is taken before it is asked for.
//!
//! A policy maps pages for requests and for nothing else. So to take memory in advance is to place blocks and
//! to end them again: what they lay on stays mapped, joined, and free. The figures of requests are put back
//! to what they were, so that neither peaks nor hit rates tell of blocks that nobody asked for.

use crate::error::ArenaError;
use crate::placement::{Placed, Placement};
use crate::request::Request;
use crate::upstream::Upstream;

/// How a policy best takes memory in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartInAdvance {
    /// Bytes of the next block to ask for: all that is missing, or a first part of it.
    pub part_bytes: usize,
    /// Requests up to this size are served from memory of their own, which has to be taken by blocks of this
    /// size; 0 where all are served from the same.
    pub small_bytes: usize,
    /// Larger requests than this are served by no block that was taken for others.
    pub most_bytes: usize,
    /// Free memory goes where a request needs it. So more is needed only for what is larger than all that
    /// is free.
    pub moves: bool,
}

/// Part of what is taken for a start that is meant for small requests: one in so many, ...
const SMALL_PARTS: usize = 64;
/// ... and no more than this. The small tensors of a model are many, but few bytes.
const MOST_SMALL_BYTES: usize = 64 << 20;
/// When less is taken for a start, small requests get none of it in advance.
const PAGES_FOR_SMALL: usize = 8;

/// Maps `bytes`, rounded up to pages, for requests of all sizes.
///
/// # Errors
/// As [`Placement::allocate`]; what was mapped is given back.
pub(crate) fn take_for_a_start(
    placement: &mut dyn Placement,
    upstream: &mut dyn Upstream,
    bytes: usize,
    kept_bytes: usize,
) -> Result<(), ArenaError> {
    let page_bytes = upstream.page_bytes();
    let small_bytes = (bytes / SMALL_PARTS).min(MOST_SMALL_BYTES).next_multiple_of(page_bytes);
    let apart = placement.part_in_advance(bytes).is_some_and(|part| part.small_bytes > 0);
    let small_bytes = if apart && bytes >= PAGES_FOR_SMALL * page_bytes { small_bytes } else { 0 };
    take(placement, upstream, small_bytes, bytes, kept_bytes)
}

/// Serves a request. If nothing that is mapped can hold it, `growth_bytes` are taken in advance first, or,
/// where that is refused, what the request needs. So it is for requests that memory taken in advance serves;
/// others, small ones among them, take what they need.
///
/// # Errors
/// As [`Placement::allocate`].
pub(crate) fn allocate_growing(
    placement: &mut dyn Placement,
    upstream: &mut dyn Upstream,
    request: Request,
    growth_bytes: usize,
    kept_bytes: usize,
) -> Result<Placed, ArenaError> {
    if let Some(placed) = placement.allocate_mapped(request) {
        return Ok(placed);
    }
    let size_bytes = request.size_bytes;
    let grows = placement.part_in_advance(growth_bytes).is_some_and(|part| {
        let served = size_bytes > part.small_bytes && size_bytes <= part.most_bytes.min(part.part_bytes);
        served && !(part.moves && size_bytes <= placement.stats().free_bytes())
    });
    if !grows {
        return placement.allocate(request, upstream);
    }
    if take(placement, upstream, 0, growth_bytes, kept_bytes).is_ok() {
        placement.stats_mut().growths += 1;
    }
    let mut placed = placement.allocate(request, upstream)?;
    if placed.hit {
        // Its memory was mapped for it.
        placed.hit = false;
        placement.stats_mut().recount_as_miss(size_bytes);
    }
    Ok(placed)
}

/// Maps `bytes` more than are mapped, rounded up to pages, of which `small_bytes` are for small requests.
/// `kept_bytes` is what the placement keeps, see [`Placement::keep`].
fn take(
    placement: &mut dyn Placement,
    upstream: &mut dyn Upstream,
    small_bytes: usize,
    bytes: usize,
    kept_bytes: usize,
) -> Result<(), ArenaError> {
    let overflow = ArenaError::SizeOverflow { size_bytes: bytes, align_bytes: 1 };
    let bytes = bytes.checked_next_multiple_of(upstream.page_bytes()).ok_or(overflow)?;
    let before = placement.stats().clone();
    let start_bytes = before.reserved.current;
    let mut blocks = Vec::new();
    let small_end = start_bytes.saturating_add(small_bytes);
    let mut result = place_until(placement, upstream, small_end, |part| part.small_bytes, &mut blocks);
    if result.is_ok() {
        let end = start_bytes.saturating_add(bytes);
        result = place_until(placement, upstream, end, |part| part.part_bytes, &mut blocks);
    }
    // A policy that caches little would give back at once what was taken.
    placement.keep(usize::MAX);
    for addr in blocks {
        placement.free(addr, upstream).expect("it was placed just now");
    }
    placement.keep(kept_bytes);
    placement.settle();
    placement.stats_mut().put_requests_back(before);
    if result.is_err() {
        let taken = placement.stats().reserved.current.saturating_sub(start_bytes);
        placement.trim(upstream, taken);
    }
    result
}

/// Places blocks, of the size that `size_of` chooses, until so many bytes are mapped.
fn place_until(
    placement: &mut dyn Placement,
    upstream: &mut dyn Upstream,
    mapped_bytes: usize,
    size_of: impl Fn(PartInAdvance) -> usize,
    blocks: &mut Vec<usize>,
) -> Result<(), ArenaError> {
    // Free memory that serves the blocks ends at some time, and then each maps a page at least.
    while let Some(missing) = mapped_bytes.checked_sub(placement.stats().reserved.current)
        && missing > 0
    {
        let rule = "its memory serves only the sizes that it was taken for";
        let none = ArenaError::Option { option: "memory in advance", value: missing, rule };
        let part = placement.part_in_advance(missing).ok_or(none)?;
        blocks.push(placement.allocate(Request::new(size_of(part)), upstream)?.addr);
    }
    Ok(())
}
