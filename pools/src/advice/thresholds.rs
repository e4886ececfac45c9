//! The numbers that decide, each with its reason.

/// Policies that reserve no more than this above the least are taken to need the same: the next run differs from the
/// recorded one by as much (a [pool's size](mempool_arena::Sizing) is made for runs whose sizes are 5% larger).
pub(super) const MEMORY_MARGIN: f64 = 0.05;
/// Of the device's memory: what is less does not decide whether something fits.
pub(super) const MEMORY_OF_DEVICE: f64 = 0.01;
/// Policies that take no more time than this above the least are taken to be as fast: the bookkeeping is measured, and
/// on a machine that does other things it is uncertain by a quarter.
pub(super) const TIME_MARGIN: f64 = 0.25;
/// Of the run's duration: time that nobody notices. Runs of the same program differ by more.
pub(super) const NEGLIGIBLE_OF_DURATION: f64 = 0.01;
/// Time for each request that nobody notices, in microseconds, where the duration is not known: a tenth of what it takes
/// to queue the kernel that fills the block.
pub(super) const NEGLIGIBLE_US_PER_REQUEST: f64 = 0.5;
/// Time that nobody notices in all, in microseconds, where the duration is not known: a hundredth of a second's run, and
/// nobody records shorter ones.
pub(super) const NEGLIGIBLE_US: f64 = 10_000.0;
/// Of the device's memory: a run that takes less leaves room for another of its size, so memory is not short and time
/// decides.
pub(super) const ROOMY: f64 = 0.5;
/// Of the device's memory: below this even ten times the run would fit, whatever a pool does about fragmentation.
pub(super) const NO_POOL_OF_DEVICE: f64 = 0.1;
/// Where fewer requests come again in their size than this, more memory that a cache of equal sizes keeps waits for nothing
/// than serves again.
pub(super) const FEW_REPEATS: f64 = 0.5;
/// Where more steps than this ask for the same as one before, most of the run is served by a plan.
pub(super) const STEPS_REPEAT: f64 = 0.5;
/// Of all bytes asked for: where copies of growing buffers take more, making them anew is what the program does with
/// memory, and each copy needs old and new at once.
pub(super) const MUCH_GROWTH: f64 = 0.25;
/// Steps in which a buffer grows where its last size from the start is too much: each copy is of a quarter, a half and three
/// quarters, one and a half times the last size in all, and an eighth of it is unused on the way.
pub(super) const GROWTH_PARTS: usize = 4;
/// Of what is reserved: where more than this is stuck, it is more than a pool's margin (10% to 20%) makes up for.
pub(super) const MUCH_STUCK: f64 = 0.1;
/// Of requests: a cache that serves fewer maps memory as often as not.
pub(super) const FEW_HITS: f64 = 0.5;
/// Of what is reserved: what counters tell to be unused at the peak, from which on another policy is worth a trial. Below
/// it a pool's margin is as much.
pub(super) const MUCH_FRAGMENTATION: f64 = 0.15;
/// Requests, below which what repeats and what each policy needs is chance: histories with fewer are not replayed.
pub const FEW_REQUESTS: u64 = 100;
