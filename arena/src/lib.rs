//! Bookkeeping core of candle-mempool.
//!
//! This crate decides *where* a block of memory lies. It works on addresses and sizes
//! only: it never reads or writes the memory it hands out, knows no tensor library and
//! no driver, and contains no `unsafe`. Memory comes from an [`Upstream`], which reserves
//! virtual ranges and maps pages of them; a [`Placement`] cuts those ranges into blocks.
//!
//! ```
//! use mempool_arena::{Arena, PagesOptions, Pages, Request, SimulatedUpstream};
//!
//! let upstream = SimulatedUpstream::builder().capacity_bytes(1 << 30).build();
//! let mut arena = Arena::new(Pages::new(PagesOptions::default())?, upstream);
//!
//! let block = arena.allocate(Request::new(3 << 20))?;
//! assert!(!block.hit); // the first request has to map pages
//! arena.free(block.addr)?;
//! assert!(arena.allocate(Request::new(3 << 20))?.hit);
//! assert_eq!(arena.stats().requested.current, 3 << 20);
//! # Ok::<(), mempool_arena::ArenaError>(())
//! ```
//!
//! Nothing here is synchronised: every core takes `&mut self`, and whoever shares one owns
//! the lock.
#![forbid(unsafe_code)]

mod address_space;
mod arena;
mod block;
mod buddy_tree;
mod buffer_heap;
mod conf;
mod cost;
mod error;
mod free_run;
mod holes;
mod in_advance;
mod invariant;
mod layout;
mod lifetimes;
mod page_map;
mod parked;
mod placement;
pub mod plan;
mod policy;
mod range;
mod replay;
mod request;
mod size_index;
mod sizing;
mod stats;
mod step_arena;
mod step_plan;
pub mod trace;
mod upstream;

pub use arena::Arena;
pub use buddy_tree::BuddyTree;
pub use buffer_heap::{BufferHeaps, BufferId, Compaction, Effort, HeapId, HeapOptions, HeapStats, Moment};
pub use conf::{Conf, ConfError, Setting, parse_flag, parse_mebibytes};
pub use cost::{CostModel, HandleCost};
pub use error::{ArenaError, MapError, UpstreamError};
pub use holes::Holes;
pub use in_advance::PartInAdvance;
pub use invariant::Violation;
pub use layout::{LaidOut, MappedSegment, Usage, layout_of};
pub use placement::bfc::{Bfc, BfcOptions};
pub use placement::buckets::{Buckets, BucketsOptions};
pub use placement::buddy::{Buddy, BuddyOptions};
pub use placement::pages::{Mode, Pages, PagesOptions};
pub use placement::torch::{Torch, TorchOptions};
pub use placement::whole::{Reuse, Whole, WholeOptions};
pub use placement::{LiveBlock, Placed, Placement};
pub use policy::Policy;
pub use range::AddressRange;
pub use replay::{AtPeak, Replay, ReplayDevice, ReplayError, ReplayTimes, Totals, renumbered};
pub use request::Request;
pub use size_index::{FreeEntry, SizeIndex};
pub use sizing::{Margin, Size, Sizing, SizingError};
pub use stats::{BUCKET_COUNT, BucketStats, ClassStats, SizeClass, Stat, Stats, bucket_of};
pub use step_arena::{StepArena, StepArenaError};
pub use step_plan::{Freed, PlanJob, Served, SolvedPlan, StepId, StepOptions, StepPlanStats, StepPlans};
pub use upstream::Upstream;
pub use upstream::simulated::{SimulatedBuilder, SimulatedCounters, SimulatedUpstream};
