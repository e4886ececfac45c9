//! One suite of behaviours and random programs, run on every placement policy.

mod behaviours;
mod model;
mod programs;

use mempool_arena::{Arena, Buddy, BuddyOptions, Pages, PagesOptions, Placement, SimulatedUpstream};

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
        whole_ranges: false,
    };
    Box::new(Pages::new(options).unwrap())
}

fn buddy(limit_bytes: Option<usize>) -> Box<dyn Placement> {
    let options = BuddyOptions { granule_bytes: 256, limit_bytes, range_bytes: 1 << 20 };
    Box::new(Buddy::new(options).unwrap())
}

fn arena(make: MakePlacement, limit_bytes: Option<usize>) -> Arena<SimulatedUpstream> {
    let upstream = SimulatedUpstream::builder().page_bytes(PAGE_BYTES).build();
    Arena::from_boxed(make(limit_bytes), upstream)
}

/// Instantiates every behaviour and the random programs for a policy.
macro_rules! suite {
    ($($policy:ident),*) => {$(
        mod $policy {
            $crate::behaviours::instantiate!($crate::$policy);
            $crate::programs::instantiate!($crate::$policy);
        }
    )*};
}

suite!(pages, buddy);
