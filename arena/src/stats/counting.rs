//! How placements count. Each figure and its part of a class are changed together, here and nowhere else.

use std::hint::select_unpredictable;

use super::{ClassStats, SizeClass, Stats, bucket_of};

impl Stats {
    #[inline]
    fn class_mut(&mut self, class: SizeClass) -> &mut ClassStats {
        // Programs mix both, so a branch would be foreseen wrongly half of the time.
        select_unpredictable(class == SizeClass::Small, &mut self.small, &mut self.large)
    }

    /// Counts a block of `allocated` bytes, made for a request of `requested`.
    #[inline]
    pub(crate) fn count_allocation(
        &mut self,
        class: SizeClass,
        requested: usize,
        allocated: usize,
        hit: bool,
    ) {
        self.requested.increase(requested);
        self.allocated.increase(allocated);
        self.blocks.increase(1);
        let of_class = self.class_mut(class);
        of_class.requested.increase(requested);
        of_class.allocated.increase(allocated);
        of_class.blocks.increase(1);
        let bucket = &mut self.buckets[bucket_of(requested)];
        if hit {
            self.hits += 1;
            bucket.hits += 1;
        } else {
            self.misses += 1;
            bucket.misses += 1;
        }
    }

    /// Counts a request that is served from what was placed already, by a step's plan.
    #[inline]
    pub(crate) fn count_planned(&mut self, requested: usize) {
        self.hits += 1;
        self.buckets[bucket_of(requested)].hits += 1;
    }

    /// Counts a request as one that had to map pages, after it was counted as a hit.
    pub(crate) fn recount_as_miss(&mut self, requested: usize) {
        self.hits -= 1;
        self.misses += 1;
        let bucket = &mut self.buckets[bucket_of(requested)];
        bucket.hits -= 1;
        bucket.misses += 1;
    }

    /// Counts the end of a block.
    #[inline]
    pub(crate) fn count_free(&mut self, class: SizeClass, requested: usize, allocated: usize) {
        self.requested.decrease(requested);
        self.allocated.decrease(allocated);
        self.blocks.decrease(1);
        let of_class = self.class_mut(class);
        of_class.requested.decrease(requested);
        of_class.allocated.decrease(allocated);
        of_class.blocks.decrease(1);
    }

    /// Counts a block that changed its size in place.
    pub(crate) fn count_resize(
        &mut self,
        class: SizeClass,
        requested: (usize, usize),
        allocated: (usize, usize),
    ) {
        self.requested.change(requested);
        self.allocated.change(allocated);
        let of_class = self.class_mut(class);
        of_class.requested.change(requested);
        of_class.allocated.change(allocated);
    }

    /// Counts bytes that were mapped.
    pub(crate) fn count_mapped(&mut self, class: SizeClass, bytes: usize) {
        self.reserved.increase(bytes);
        self.class_mut(class).reserved.increase(bytes);
    }

    /// Counts bytes that are mapped no more.
    pub(crate) fn count_unmapped(&mut self, class: SizeClass, bytes: usize) {
        self.reserved.decrease(bytes);
        self.class_mut(class).reserved.decrease(bytes);
    }

    /// Counts a range that was reserved.
    pub(crate) fn count_segment(&mut self, class: SizeClass) {
        self.segments.increase(1);
        self.class_mut(class).segments.increase(1);
    }

    /// Counts a range that went back.
    pub(crate) fn count_segment_end(&mut self, class: SizeClass) {
        self.segments.decrease(1);
        self.class_mut(class).segments.decrease(1);
    }

    /// Counts a free block of which so many bytes share a page with a live one; none if it is 0.
    #[inline]
    pub(crate) fn count_split(&mut self, class: SizeClass, bytes: usize) {
        if bytes > 0 {
            self.inactive_split.increase(bytes);
            self.inactive_split_blocks.increase(1);
            let of_class = self.class_mut(class);
            of_class.inactive_split.increase(bytes);
            of_class.inactive_split_blocks.increase(1);
        }
    }

    /// Undoes [`count_split`](Self::count_split).
    #[inline]
    pub(crate) fn count_split_end(&mut self, class: SizeClass, bytes: usize) {
        if bytes > 0 {
            self.inactive_split.decrease(bytes);
            self.inactive_split_blocks.decrease(1);
            let of_class = self.class_mut(class);
            of_class.inactive_split.decrease(bytes);
            of_class.inactive_split_blocks.decrease(1);
        }
    }

    /// Counts that free parts on pages with live blocks were so many blocks and bytes, and are so many now.
    pub(crate) fn change_split(&mut self, class: SizeClass, blocks: (usize, usize), bytes: (usize, usize)) {
        self.inactive_split_blocks.change(blocks);
        self.inactive_split.change(bytes);
        let of_class = self.class_mut(class);
        of_class.inactive_split_blocks.change(blocks);
        of_class.inactive_split.change(bytes);
    }

    /// Makes the figures of requests those of `before`: blocks that came since have ended, and nobody had
    /// asked for them. What is mapped stays as it is.
    pub(crate) fn put_requests_back(&mut self, before: Self) {
        debug_assert_eq!(self.blocks.current, before.blocks.current, "such blocks have ended");
        (self.requested, self.allocated, self.blocks) = (before.requested, before.allocated, before.blocks);
        self.oversize_blocks = before.oversize_blocks;
        for (now, before) in [(&mut self.small, &before.small), (&mut self.large, &before.large)] {
            (now.requested, now.allocated, now.blocks) = (before.requested, before.allocated, before.blocks);
        }
        for (stat, before) in [
            (&mut self.inactive_split, before.inactive_split),
            (&mut self.inactive_split_blocks, before.inactive_split_blocks),
            (&mut self.small.inactive_split, before.small.inactive_split),
            (&mut self.small.inactive_split_blocks, before.small.inactive_split_blocks),
            (&mut self.large.inactive_split, before.large.inactive_split),
            (&mut self.large.inactive_split_blocks, before.large.inactive_split_blocks),
        ] {
            stat.peak = before.peak.max(stat.current);
        }
        (self.hits, self.misses, self.failures) = (before.hits, before.misses, before.failures);
        self.buckets = before.buckets;
    }
}
