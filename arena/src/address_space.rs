//! Virtual ranges from upstream, and which parts of them are used.
//!
//! A part that is no longer used serves again, so that addresses last as long as memory does. Where
//! ranges are memory, each part has a range of its own, which goes back with it.

use crate::error::UpstreamError;
use crate::holes::Holes;
use crate::invariant::Violation;
use crate::range::AddressRange;
use crate::stats::{SizeClass, Stats};
use crate::upstream::Upstream;

/// A used part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Its addresses, whole pages.
    pub(crate) range: AddressRange,
    /// What was reserved for it alone, where ranges are memory.
    own: Option<(AddressRange, SizeClass)>,
}

impl Place {
    /// The class of the range that was reserved for it alone, if there is one.
    pub(crate) fn own_class(self) -> Option<SizeClass> {
        self.own.map(|(_, class)| class)
    }
}

/// The ranges of one placement. How many there are is counted in the figures that each call is given: a range
/// of a place's own is of the place's class, and others, which hold places of both, are large.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    range_bytes: usize,
    whole_ranges: bool,
    holes: Holes,
}

impl AddressSpace {
    /// No range yet. Ranges will be of `range_bytes`, or one for each part with `whole_ranges`.
    pub(crate) fn new(range_bytes: usize, whole_ranges: bool) -> Self {
        Self { range_bytes, whole_ranges, holes: Holes::default() }
    }

    /// A place of `len` bytes, whole pages, aligned to `align`, for memory of this class. Nothing of it is mapped.
    ///
    /// # Errors
    /// Those of [`Upstream::reserve`].
    pub(crate) fn take(
        &mut self,
        len: usize,
        align: usize,
        class: SizeClass,
        upstream: &mut dyn Upstream,
        stats: &mut Stats,
    ) -> Result<Place, UpstreamError> {
        let page_bytes = upstream.page_bytes();
        let padded = len.saturating_add(align.saturating_sub(page_bytes));
        if self.whole_ranges {
            let own = upstream.reserve(padded)?;
            stats.count_segment(class);
            let start = own.start.next_multiple_of(align);
            return Ok(Place { range: AddressRange::new(start, len), own: Some((own, class)) });
        }
        if let Some(range) = self.holes.take(len, align) {
            return Ok(Place { range, own: None });
        }
        let wanted = self.range_bytes.next_multiple_of(page_bytes).max(padded);
        let range = upstream
            .reserve(wanted)
            .or_else(|error| if wanted > padded { upstream.reserve(padded) } else { Err(error) })?;
        stats.count_segment(SizeClass::Large);
        self.holes.add_range(range);
        let range = self.holes.take(len, align).expect("the new range holds it");
        Ok(Place { range, own: None })
    }

    /// Takes a place back of which nothing is mapped.
    pub(crate) fn give(&mut self, place: Place, upstream: &mut dyn Upstream, stats: &mut Stats) {
        let Some((own, class)) = place.own else {
            self.holes.give(place.range);
            return;
        };
        stats.count_segment_end(class);
        if upstream.release(own).is_err() {
            // It is tried again by `release_unused`, and holds places of both classes until then.
            stats.count_segment(SizeClass::Large);
            self.holes.add_range(own);
        }
    }

    /// Gives ranges back of which nothing is used. Those that upstream refuses stay until the next try.
    pub(crate) fn release_unused(&mut self, upstream: &mut dyn Upstream, stats: &mut Stats) {
        for range in self.holes.unused_ranges() {
            if upstream.release(range).is_ok() {
                self.holes.remove_range(range);
                stats.count_segment_end(SizeClass::Large);
            }
        }
    }

    /// Checks that the `used` places and the unused parts cover all ranges without gap or overlap, and
    /// returns how many ranges there are.
    ///
    /// # Errors
    /// The first place that is wrong.
    pub(crate) fn check(&self, used: impl Iterator<Item = Place>) -> Result<usize, Violation> {
        let (own, shared): (Vec<Place>, Vec<Place>) = used.partition(|place| place.own.is_some());
        let mut parts: Vec<AddressRange> = shared.into_iter().map(|place| place.range).collect();
        parts.extend(self.holes.iter());
        parts.sort();
        let mut parts = parts.into_iter().peekable();
        let mut count = own.len();
        for range in self.holes.ranges() {
            let mut end = range.start;
            while let Some(part) = parts.next_if(|part| range.contains(part.start)) {
                Violation::unless(part.start == end, || format!("{part} does not follow {end:#x}"))?;
                end = part.end();
            }
            Violation::unless(end == range.end(), || format!("parts of {range} end at {end:#x}"))?;
            count += 1;
        }
        let stray = parts.next();
        Violation::unless(stray.is_none(), || format!("{stray:?} lies in no range"))?;
        Ok(count)
    }
}
