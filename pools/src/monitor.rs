//! Watching pools: a line in the log now and then, a warning where memory is cut up, and what can be done about it.
//!
//! The monitor is a thread of its own, started by whoever wants one and stopped when its handle is dropped. None of its
//! allocations are a pool's. What it logs goes through [`tracing`], so it is silent in a program that has no subscriber.

mod figures;
mod metrics;
mod remedy;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::figures::Seen;
use self::remedy::{Futile, Job, Remedies};
use crate::error::PoolError;
use crate::os;
use crate::scope::without_pools;
use crate::thread_state::inside;

pub(crate) use figures::lock_for_fork as lock_figures_for_fork;
pub use metrics::{metrics, write_prometheus};
pub(crate) use remedy::{leave_to_parent, lock_for_fork as lock_jobs_for_fork, step_ends};

/// Five minutes: what pools are like changes slowly, and logs are kept.
const USUAL_INTERVAL: Duration = Duration::from_secs(300);
/// A tenth of the memory.
const USUAL_THRESHOLD: f64 = 0.10;

/// Options of a [`Monitor`], all with defaults.
#[derive(Debug, Clone)]
#[must_use = "a monitor watches when `start` is called"]
pub struct MonitorBuilder {
    interval: Duration,
    threshold: f64,
    remedies: Remedies,
}

impl MonitorBuilder {
    /// The time between two looks; 300 s by default.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The share, between 0 and 1, of a pool's memory that may be free but split before there is a warning; 0.1 by
    /// default.
    ///
    /// It is [`Stats::split_share`](crate::Stats::split_share), inactive split / reserved: of all free memory only
    /// those bytes are stuck, as they share a page, or a segment, with a live block. Whole free pages are not counted:
    /// they can go back or go where they are needed, so that the largest free block, which external fragmentation is
    /// about, says little of what can be served.
    pub fn fragmentation_threshold(mut self, share: f64) -> Self {
        self.threshold = share;
        self
    }

    /// Has free memory given back by pools above the threshold: with policy `pages` free pages then go where the next
    /// requests need them. In a program that calls [`mark_step`](crate::mark_step) this is done there, at the end
    /// of the next step; in others on the monitor's thread, at once. See [`MemPool::trim`](crate::MemPool::trim):
    /// for a pool of a device, work that is queued is waited for.
    pub fn trims(mut self) -> Self {
        self.remedies.trims = true;
        self
    }

    /// Has the buffers of pools above the threshold moved together, at the end of the next step: those of
    /// [sets](crate::BufferSet) that allow it without being asked
    /// ([`CompactionOptions::on_oom`](crate::CompactionOptions::on_oom)), and on a device belong to the own
    /// stream of the thread that calls [`mark_step`](crate::mark_step). Without that call nothing moves.
    pub fn compacts(mut self) -> Self {
        self.remedies.compacts = true;
        self
    }

    /// Starts the monitor, which takes a first look after the first interval.
    ///
    /// # Errors
    /// [`PoolError::Option`] for an interval of 0, [`PoolError::Share`] for a threshold that is not between 0 and
    /// 1, [`PoolError::Monitor`] when the system gives no thread.
    pub fn start(self) -> Result<Monitor, PoolError> {
        if self.interval.is_zero() {
            return Err(PoolError::Option { option: "interval", value: 0, rule: "some time is needed" });
        }
        if !(0.0..=1.0).contains(&self.threshold) {
            let value = self.threshold.to_string();
            return Err(PoolError::Share { option: "fragmentation threshold", value, rule: "from 0 to 1" });
        }
        without_pools(|| {
            let shared = Arc::new(Shared::default());
            let watch = Watch {
                options: self,
                shared: Arc::clone(&shared),
                futile: Arc::new(Futile::default()),
                boundaries: remedy::boundaries(),
            };
            let thread = std::thread::Builder::new().name("mempool-monitor".to_owned());
            let thread = thread.spawn(move || without_pools(|| watch.run()));
            let thread = thread.map_err(|error| PoolError::Monitor { kind: error.kind() })?;
            Ok(Monitor { shared, thread: Some(thread), process: std::process::id() })
        })
    }
}

/// A thread that watches all pools of the process until this is dropped.
///
/// At each interval it logs [one line](crate::PoolStats::line) for each pool at level `INFO`, target
/// `mempool_pools::monitor`, and a warning for each whose memory is cut up above the
/// [threshold](MonitorBuilder::fragmentation_threshold). If it was asked to it then does something about it, and not
/// again while that gains nothing and the pool's figures stay the same.
///
/// Looking never waits for a pool: where its lock is held, the figures are those seen last, and the line says so.
/// What the program's `tracing` subscriber allocates for the lines is no pool's; if it panics the monitor goes on. In
/// a forked child there is no such thread, and dropping the handle does nothing.
///
/// ```
/// use std::time::Duration;
///
/// use mempool_pools::Monitor;
///
/// let monitor = Monitor::builder().interval(Duration::from_secs(60)).trims().start()?;
/// drop(monitor); // at once, without waiting for the minute
/// # Ok::<(), mempool_pools::PoolError>(())
/// ```
#[derive(Debug)]
#[must_use = "the monitor ends when it is dropped"]
pub struct Monitor {
    shared: Arc<Shared>,
    /// Always there until the drop.
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Monitor {
    /// Options of a monitor, all with defaults.
    pub fn builder() -> MonitorBuilder {
        MonitorBuilder { interval: USUAL_INTERVAL, threshold: USUAL_THRESHOLD, remedies: Remedies::default() }
    }

    /// A monitor that logs and warns, and does nothing else.
    ///
    /// # Errors
    /// As [`MonitorBuilder::start`].
    pub fn start(interval: Duration) -> Result<Self, PoolError> {
        Self::builder().interval(interval).start()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // In a forked child there is no such thread, and the lock may be as it was held by it then.
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            std::mem::forget(thread);
            return;
        }
        let mut state = self.shared.lock();
        state.stops = true;
        self.shared.wake.notify_all();
        let acts = state.acts;
        drop(state);
        // While it gives memory back it may wait for the driver; it ends after that.
        if !acts && thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stops: bool,
    /// The thread does more than looking.
    acts: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long; `false` when the monitor is to stop.
    fn wait(&self, interval: Duration) -> bool {
        let waited = self.wake.wait_timeout_while(self.lock(), interval, |state| !state.stops);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.stops
    }

    /// Notes whether the thread does more than looking; `false` when it is to stop instead.
    fn set_acts(&self, acts: bool) -> bool {
        let mut state = self.lock();
        state.acts = acts && !state.stops;
        !state.stops
    }
}

/// What the thread has.
struct Watch {
    options: MonitorBuilder,
    shared: Arc<Shared>,
    futile: Arc<Futile>,
    /// Steps that had ended at the last look.
    boundaries: u64,
}

impl Watch {
    fn run(mut self) {
        while self.shared.wait(self.options.interval) {
            // A subscriber is the program's code. A panic has been told of when it began.
            if catch_unwind(AssertUnwindSafe(|| self.look())).is_err() {
                os::report(format_args!("the monitor goes on after a panic in the program's log"));
            }
        }
    }

    fn look(&mut self) {
        let boundaries = remedy::boundaries();
        let marks_steps = std::mem::replace(&mut self.boundaries, boundaries) != boundaries;
        let pools = inside(figures::look);
        let keys: Vec<_> = pools.iter().map(|seen| remedy::key(seen.place, &seen.stats)).collect();
        self.futile.keep_only(|key| keys.contains(key));
        for seen in pools {
            log(&seen);
            let share = seen.stats.split_share();
            if share <= self.options.threshold {
                continue;
            }
            let name = seen.stats.name.as_str();
            let bytes = seen.stats.inactive_split.current;
            tracing::warn!(
                pool = name,
                split_bytes = bytes,
                "pool {name}: {:.1}% of its memory, {bytes} bytes, is free but split",
                100.0 * share
            );
            self.act(seen, marks_steps);
        }
    }

    /// Does what was asked for, now or at the end of the next step.
    fn act(&self, seen: Seen, marks_steps: bool) {
        let remedies = self.options.remedies;
        // Where a pool's lock is held, what is known of it is old, and giving back would wait.
        if remedies == Remedies::default() || !seen.age.is_zero() || self.futile.has(seen.place, &seen.stats)
        {
            return;
        }
        let Seen { place, stats, .. } = seen;
        let name = stats.name.clone();
        let job = Job { place, stats, remedies, futile: Arc::clone(&self.futile) };
        if marks_steps {
            inside(|| remedy::at_next_boundary(job));
        } else if remedies.trims && self.shared.set_acts(true) {
            let gained = inside(|| job.run(false));
            self.shared.set_acts(false);
            tracing::info!(
                pool = name.as_str(),
                gained_bytes = gained,
                "pool {name}: {gained} bytes went back"
            );
        }
    }
}

fn log(seen: &Seen) {
    let stats = &seen.stats;
    let late = if seen.age.is_zero() {
        String::new()
    } else {
        format!(" ({:.1} s ago; it is in use)", seen.age.as_secs_f64())
    };
    tracing::info!(
        pool = stats.name.as_str(),
        allocated_bytes = stats.allocated.current,
        reserved_bytes = stats.reserved.current,
        reserved_peak_bytes = stats.reserved.peak,
        "{}{late}",
        stats.line()
    );
}
