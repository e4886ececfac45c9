//! How much a compaction may move: copies take at most a part of the time, both measured.
//!
//! The time of a step is that between two calls, on the host by its clock. On a device it is the device's own, by
//! events that are recorded in the stream and looked at in later calls, so the host never waits; what is known
//! is a few steps old.
//!
//! Each step earns its share of time. What is not spent is saved for some steps, and for as long as it takes if a buffer waits
//! whose copy takes longer.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use mempool_arena::Compaction;

use super::CompactionStats;
use crate::device::{DeviceState, Event, Stream};

/// Time is saved for so many steps.
const SAVED_STEPS: f64 = 20.0;
/// How fast copies are taken to be before one was measured, in bytes a second: slower than they are.
const HOST_SPEED: f64 = 2e9;
const DEVICE_SPEED: f64 = 100e9;
/// Copies of fewer bytes say nothing about speed.
const LEAST_MEASURED_BYTES: usize = 256 << 10;
/// Measurements that are waited for; older ones are given up.
const MOST_OPEN: usize = 64;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Pace {
    clock: Clock,
    share: f64,
    /// Seconds that copies may take now; negative after those that took longer than expected.
    credit: f64,
    /// Bytes a second.
    speed: f64,
    /// Seconds of a step, about: those of the last ones count more.
    step: f64,
    /// Bytes of the smallest buffer that waits for time.
    waiting_bytes: usize,
    stats: CompactionStats,
}

#[derive(Debug)]
enum Clock {
    Host { last: Option<Instant> },
    Device(DeviceClock),
}

/// Calls of a device whose times are still to be known.
struct DeviceClock {
    device: &'static DeviceState,
    stream: Stream,
    open: VecDeque<Measure>,
    spare: Vec<Event>,
}

/// A call on a device.
#[derive(Debug, Clone, Copy)]
struct Measure {
    start: Event,
    /// Of those that moved: the end, how much, and the seconds that this was expected to take.
    copies: Option<(Event, usize, f64)>,
}

impl fmt::Debug for DeviceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceClock").field("open", &self.open.len()).finish_non_exhaustive()
    }
}

impl Pace {
    pub(super) fn of_host() -> Self {
        Self::new(Clock::Host { last: None }, HOST_SPEED)
    }

    pub(super) fn of_device(device: &'static DeviceState, stream: Stream) -> Self {
        let clock = DeviceClock { device, stream, open: VecDeque::new(), spare: Vec::new() };
        Self::new(Clock::Device(clock), DEVICE_SPEED)
    }

    fn new(clock: Clock, speed: f64) -> Self {
        Self {
            clock,
            share: 0.0,
            credit: 0.0,
            speed,
            step: 0.0,
            waiting_bytes: 0,
            stats: CompactionStats::default(),
        }
    }

    pub(super) fn stats(&self) -> CompactionStats {
        self.stats
    }

    /// Bytes that may be copied now.
    pub(super) fn budget_bytes(&self) -> usize {
        (self.credit.max(0.0) * self.speed) as usize
    }

    /// A call begins. On a device its context is current.
    pub(super) fn begin(&mut self, share: f64) {
        self.share = share;
        match &mut self.clock {
            Clock::Host { last } => {
                let now = Instant::now();
                let step = last.replace(now).map(|last| now - last);
                step.into_iter().for_each(|step| self.earn(step));
            }
            Clock::Device(clock) => {
                let known = clock.look();
                clock.begin();
                for Known { step, copies } in known {
                    step.into_iter().for_each(|step| self.earn(step));
                    if let Some((bytes, expected, took)) = copies {
                        self.credit += expected;
                        self.spend(bytes, took);
                    }
                }
            }
        }
    }

    /// The call has done this.
    pub(super) fn end(&mut self, done: &Compaction) {
        self.stats.compactions += 1;
        self.stats.moved += done.moved as u64;
        self.stats.moved_bytes += done.moved_bytes as u64;
        self.waiting_bytes = done.smallest_over_budget.unwrap_or(0);
        if done.moved == 0 {
            return;
        }
        let expected = done.moved_bytes as f64 / self.speed;
        match &mut self.clock {
            Clock::Host { last } => {
                let took = last.map_or(Duration::ZERO, |start| start.elapsed());
                self.spend(done.moved_bytes, took);
            }
            Clock::Device(clock) => {
                clock.end(done.moved_bytes, expected);
                self.credit -= expected;
            }
        }
    }

    /// A step took so long.
    fn earn(&mut self, step: Duration) {
        self.stats.span += step;
        let seconds = step.as_secs_f64();
        self.step = if self.step == 0.0 { seconds } else { self.step + (seconds - self.step) / SAVED_STEPS };
        // As much as a buffer takes that waits for it, however long that is.
        let waiting = self.waiting_bytes as f64 / self.speed;
        let most = (SAVED_STEPS * self.step * self.share).max(1.1 * waiting);
        self.credit = (self.credit + seconds * self.share).min(most);
    }

    /// Copies took so long.
    fn spend(&mut self, bytes: usize, took: Duration) {
        self.stats.time += took;
        self.credit -= took.as_secs_f64();
        if bytes >= LEAST_MEASURED_BYTES && !took.is_zero() {
            self.speed = (self.speed + bytes as f64 / took.as_secs_f64()) / 2.0;
        }
    }
}

/// What became known of a call: the time since the one before it, and of its copies bytes, expected seconds and time.
struct Known {
    step: Option<Duration>,
    copies: Option<(usize, f64, Duration)>,
}

impl DeviceClock {
    fn event(&mut self) -> Option<Event> {
        let driver = &self.device.platform.driver;
        let event = self.spare.pop().or_else(|| driver.create_timed_event().ok())?;
        if driver.record_event(event, self.stream).is_ok() {
            return Some(event);
        }
        self.spare.push(event);
        None
    }

    fn begin(&mut self) {
        if let Some(start) = self.event() {
            self.open.push_back(Measure { start, copies: None });
        }
    }

    fn end(&mut self, bytes: usize, expected: f64) {
        let event = self.event();
        if let (Some(last), Some(end)) = (self.open.back_mut(), event) {
            last.copies = Some((end, bytes, expected));
        }
    }

    /// Calls whose own times and those up to the next are known by now, the first first. They are forgotten.
    fn look(&mut self) -> Vec<Known> {
        let driver = &self.device.platform.driver;
        let mut known = Vec::new();
        while let [first, second, ..] = self.open.make_contiguous() {
            let (first, second) = (*first, *second);
            let step = driver.elapsed(first.start, second.start);
            let copies = first
                .copies
                .map(|(end, bytes, expected)| (driver.elapsed(first.start, end), bytes, expected));
            let done =
                matches!(step, Ok(Some(_))) && copies.is_none_or(|(took, ..)| matches!(took, Ok(Some(_))));
            if !done && self.open.len() <= MOST_OPEN && step.is_ok() {
                break;
            }
            self.open.pop_front();
            self.spare.push(first.start);
            self.spare.extend(first.copies.map(|(end, ..)| end));
            known.push(Known {
                step: step.ok().flatten(),
                copies: copies.and_then(|(took, bytes, expected)| Some((bytes, expected, took.ok()??))),
            });
        }
        known
    }
}

impl Drop for DeviceClock {
    fn drop(&mut self) {
        let open = std::mem::take(&mut self.open);
        let events = open.into_iter().flat_map(|one| [Some(one.start), one.copies.map(|(end, ..)| end)]);
        let events: Vec<Event> = events.flatten().chain(std::mem::take(&mut self.spare)).collect();
        self.device.with_context(|| {
            for event in events {
                // There is nobody to tell if it cannot be ended.
                let _ = self.device.platform.driver.destroy_event(event);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pace whose steps so far took `step`, and that spends a twentieth.
    fn pace(step: Duration, steps: u32) -> Pace {
        let mut pace = Pace::of_host();
        pace.share = 0.05;
        (0..steps).for_each(|_| pace.earn(step));
        pace
    }

    fn is_about(pace: &Pace, seconds: f64) -> bool {
        let bytes = seconds * HOST_SPEED;
        (pace.budget_bytes() as f64 - bytes).abs() < 0.01 * bytes
    }

    #[test]
    fn a_step_earns_its_share_and_twenty_are_saved() {
        let step = Duration::from_millis(10);
        assert!(is_about(&pace(step, 1), 0.0005));
        assert!(is_about(&pace(step, 8), 0.004));
        assert!(is_about(&pace(step, 100), 0.01));
    }

    #[test]
    fn one_short_step_leaves_what_was_saved() {
        let mut pace = pace(Duration::from_millis(10), 20);
        pace.earn(Duration::from_micros(10));
        assert!(pace.budget_bytes() as f64 > 0.009 * HOST_SPEED, "{pace:?}");
    }

    #[test]
    fn time_is_saved_for_a_buffer_that_waits_for_more() {
        let mut pace = pace(Duration::from_millis(10), 20);
        let waiting = (0.1 * HOST_SPEED) as usize;
        let done = Compaction::default();
        for _ in 0..300 {
            pace.end(&done);
            pace.waiting_bytes = waiting;
            pace.earn(Duration::from_millis(10));
        }
        assert!(pace.budget_bytes() >= waiting, "{pace:?}");
        pace.spend(waiting, Duration::from_millis(100));
        assert!(pace.budget_bytes() < waiting / 5, "{pace:?}");
    }
}
