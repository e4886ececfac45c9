//! One suite of behaviours and random programs, run on every placement policy.

mod behaviours;
mod model;
mod programs;

use mempool_arena::{
    Arena, Bfc, BfcOptions, Buckets, BucketsOptions, Buddy, BuddyOptions, Mode, Pages, PagesOptions,
    Placement, Reuse, SimulatedUpstream, Torch, TorchOptions, Whole, WholeOptions,
};

/// Pages of the simulated upstream: small, so that random programs cross many of them.
const PAGE_BYTES: usize = 1 << 16;

/// How a policy under test is made: with its limit on reserved bytes, if any.
type MakePlacement = fn(Option<usize>) -> Box<dyn Placement>;

fn pages(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = PagesOptions {
        granule_bytes: 256,
        small_limit_bytes: 1 << 15,
        limit_bytes,
        first_range_bytes: 1 << 20,
        park_after_frees: 0,
        ..PagesOptions::default()
    };
    Box::new(Pages::new(options).unwrap())
}

/// Ranges are taken and given back whole.
fn segments(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = PagesOptions {
        granule_bytes: 256,
        small_limit_bytes: 1 << 15,
        limit_bytes,
        first_range_bytes: 2 * PAGE_BYTES,
        whole_ranges: true,
        ..PagesOptions::default()
    };
    Box::new(Pages::new(options).unwrap())
}

fn moving(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = PagesOptions {
        granule_bytes: 256,
        small_limit_bytes: 1 << 15,
        limit_bytes,
        first_range_bytes: 1 << 20,
        mode: Mode::Moving,
        separate_lifetimes: true,
        ..PagesOptions::default()
    };
    Box::new(Pages::new(options).unwrap())
}

fn buddy(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = BuddyOptions { granule_bytes: 256, limit_bytes, range_bytes: 1 << 20 };
    Box::new(Buddy::new(options).unwrap())
}

fn bfc(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = BfcOptions {
        limit_bytes,
        initial_region_bytes: PAGE_BYTES,
        max_internal_fragmentation_bytes: 2 * PAGE_BYTES,
        ..BfcOptions::default()
    };
    Box::new(Bfc::new(options).unwrap())
}

/// The published classes, up to 1 MiB and up to so many, at a 512th of their size.
fn buckets_up_to(medium_limit_mib: usize, limit_bytes: Option<usize>) -> BucketsOptions {
    BucketsOptions {
        granule_bytes: 256,
        small_limit_bytes: (1 << 20) / 512,
        medium_limit_bytes: (medium_limit_mib << 20) / 512,
        small_segment_bytes: PAGE_BYTES,
        medium_segment_bytes: 2 * PAGE_BYTES,
        limit_bytes,
        range_bytes: 1 << 20,
        ..BucketsOptions::default()
    }
}

fn buckets_100(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    Box::new(Buckets::new(buckets_up_to(100, limit_bytes)).unwrap())
}

fn buckets_256(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    Box::new(Buckets::new(buckets_up_to(256, limit_bytes)).unwrap())
}

/// What is unused is kept until memory is short.
fn buckets_keeping(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = BucketsOptions { slack_percent: None, ..buckets_up_to(100, limit_bytes) };
    Box::new(Buckets::new(options).unwrap())
}

fn buckets_capped(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options =
        BucketsOptions { max_cached_bytes: Some(3 * PAGE_BYTES), ..buckets_up_to(256, limit_bytes) };
    Box::new(Buckets::new(options).unwrap())
}

fn torch_with(limit_bytes: Option<usize>, expandable_segments: bool) -> Box<dyn Placement> {
    let options = TorchOptions {
        limit_bytes,
        small_bytes: 1 << 15,
        small_segment_bytes: PAGE_BYTES,
        // Pages are those of upstream: a part of one cannot be unmapped.
        large_segment_bytes: if expandable_segments { PAGE_BYTES } else { 2 * PAGE_BYTES },
        expandable_segments,
        expandable_range_bytes: 8 << 20,
        ..TorchOptions::default()
    };
    Box::new(Torch::new(options).unwrap())
}

fn torch(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    torch_with(limit_bytes, false)
}

fn expandable(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    torch_with(limit_bytes, true)
}

/// Segments that were free for long go back early.
fn torch_collecting(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = TorchOptions {
        limit_bytes,
        small_bytes: 1 << 15,
        small_segment_bytes: PAGE_BYTES,
        large_segment_bytes: 2 * PAGE_BYTES,
        garbage_collection_threshold: Some(0.3),
        ..TorchOptions::default()
    };
    Box::new(Torch::new(options).unwrap())
}

fn whole(limit_bytes: Option<usize>, reuse: Reuse, shared_limit_bytes: usize) -> Box<dyn Placement> {
    let options = WholeOptions {
        granule_bytes: 256,
        shared_limit_bytes,
        limit_bytes,
        range_bytes: 1 << 20,
        whole_ranges: false,
        reuse,
    };
    Box::new(Whole::new(options).unwrap())
}

fn none(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    whole(limit_bytes, Reuse::Never, 1 << 15)
}

fn simple(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    whole(limit_bytes, Reuse::SameSize, 1 << 15)
}

fn no_split(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    whole(limit_bytes, Reuse::Larger { waste_bytes: PAGE_BYTES }, 0)
}

/// Policies that are tested where memory is had in handles, too: by the name of the test's thread, which
/// is that of the test.
fn has_handles() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with("in_handles::"))
}

fn arena(make: MakePlacement, limit_bytes: Option<usize>) -> Arena<SimulatedUpstream> {
    let upstream = SimulatedUpstream::builder().page_bytes(PAGE_BYTES).handles(has_handles()).build();
    Arena::from_boxed(make(limit_bytes), upstream)
}

/// Instantiates the behaviours and the random programs for a policy.
macro_rules! suite {
    ($($policy:ident: $($kind:ident)*;)*) => {$(
        mod $policy {
            $crate::behaviours::instantiate!($crate::$policy);
            $($crate::behaviours::instantiate!($crate::$policy, $kind);)*
            $crate::programs::instantiate!($crate::$policy);
        }
    )*};
}

suite! {
    pages: keeping cutting pinning_little;
    moving: keeping cutting pinning_little;
    segments: ;
    buddy: keeping cutting pinning_little;
    buckets_100: keeping pinning_little;
    buckets_256: keeping pinning_little;
    buckets_keeping: keeping pinning_little;
    buckets_capped: pinning_little;
    none: pinning_little;
    simple: keeping pinning_little;
    no_split: keeping pinning_little;
    bfc: keeping;
    torch: pinning_little;
    torch_collecting: pinning_little;
    expandable: pinning_little;
}

/// The same where what one call maps can only be unmapped whole.
mod in_handles {
    suite! {
        pages: keeping pinning_little;
        moving: keeping pinning_little;
        segments: ;
        buckets_100: keeping pinning_little;
        buckets_256: keeping pinning_little;
        buckets_keeping: keeping pinning_little;
        buckets_capped: pinning_little;
        none: pinning_little;
        simple: keeping pinning_little;
        no_split: keeping pinning_little;
        bfc: keeping;
        torch: pinning_little;
        torch_collecting: pinning_little;
        expandable: pinning_little;
    }
}
