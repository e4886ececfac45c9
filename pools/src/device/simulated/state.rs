//! The simulated machine's state.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::captures::{Capture, GraphState};
use super::clock::Clock;
use super::memory::{Mapping, PhysicalMemory, Shadow, User};
use super::{Access, Counters, SimulatorBuilder, Violation, error};
use crate::device::driver::{Context, DriverError, DriverResult, Event, Physical, Stream};

/// Identities that are unique over all machines of the process.
static NEXT: AtomicU64 = AtomicU64::new(1000);

thread_local! {
    static CURRENT: Cell<Option<Context>> = const { Cell::new(None) };
    static ALLOWED: Cell<bool> = const { Cell::new(false) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn current() -> Option<Context> {
    CURRENT.with(Cell::get)
}

pub(crate) fn set_current(context: Option<Context>) {
    CURRENT.with(|current| current.set(context));
}

/// Whether the thread makes calls that captures forbid.
pub(crate) fn is_allowed() -> bool {
    ALLOWED.with(Cell::get)
}

pub(crate) fn allow(allow: bool) -> bool {
    ALLOWED.with(|allowed| allowed.replace(allow))
}

/// Tells threads apart.
pub(crate) fn thread_number() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

#[derive(Debug, Default)]
pub(crate) struct StreamState {
    context: usize,
    /// Waits for the legacy stream, and it for this one.
    blocking: bool,
    legacy: bool,
    /// What the next work comes after.
    clock: Clock,
    /// The order of each piece of work, by its number minus one.
    work: Vec<Clock>,
    done: u64,
    pub(crate) capture: Option<u64>,
    pub(crate) capture_clock: Clock,
    pub(crate) capture_number: u64,
}

#[derive(Debug, Default, Clone)]
struct EventState {
    clock: Clock,
    capture: Option<u64>,
    /// How long all work takes that was queued before.
    time: Duration,
}

#[derive(Debug)]
struct DeviceMemory {
    context: Context,
    used_bytes: usize,
    foreign_bytes: usize,
    legacy: u64,
}

/// How long work takes, beside what it touches, and how fast it touches that.
const LAUNCH_TIME: Duration = Duration::from_micros(2);
const BYTES_PER_NANOSECOND: u64 = 1000;

#[derive(Debug)]
pub(crate) struct State {
    /// How long all work takes that was queued.
    time: Duration,
    random: u64,
    capacity_bytes: usize,
    pub(crate) page_bytes: Option<usize>,
    devices: Vec<DeviceMemory>,
    pub(crate) streams: BTreeMap<u64, StreamState>,
    handles: HashMap<usize, u64>,
    /// Handles of destroyed streams, which new ones get, the last one first.
    free_handles: Vec<usize>,
    next_handle: usize,
    per_thread: HashMap<(u64, usize), u64>,
    events: HashMap<usize, EventState>,
    next_event: usize,
    next_address: usize,
    pub(crate) physical: HashMap<u64, PhysicalMemory>,
    pub(crate) mappings: BTreeMap<usize, Mapping>,
    segments: BTreeMap<usize, (usize, u32, Shadow)>,
    owners: BTreeMap<usize, (usize, u64)>,
    /// Bytes that were filled or poked, in runs of one value.
    contents: BTreeMap<usize, (usize, u8)>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) graphs: BTreeMap<u64, GraphState>,
    failures: Vec<(&'static str, u64, u32)>,
    pub(crate) counters: Counters,
    pub(crate) violations: Vec<Violation>,
}

impl State {
    pub(crate) fn new(options: &SimulatorBuilder) -> Self {
        let mut state = Self {
            time: Duration::ZERO,
            random: options.seed,
            capacity_bytes: options.capacity_bytes,
            page_bytes: options.page_bytes,
            devices: Vec::new(),
            streams: BTreeMap::new(),
            handles: HashMap::new(),
            free_handles: Vec::new(),
            next_handle: 0x1000,
            per_thread: HashMap::new(),
            events: HashMap::new(),
            next_event: 1,
            next_address: 1 << 40,
            physical: HashMap::new(),
            mappings: BTreeMap::new(),
            segments: BTreeMap::new(),
            owners: BTreeMap::new(),
            contents: BTreeMap::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            failures: Vec::new(),
            counters: Counters::new(),
            violations: Vec::new(),
        };
        for _ in 0..options.devices {
            let context = Context(state.next_number() as usize);
            let legacy = state.add_stream(context.0, true);
            state.streams.get_mut(&legacy).expect("added").legacy = true;
            state.devices.push(DeviceMemory { context, used_bytes: 0, foreign_bytes: 0, legacy });
        }
        state
    }

    pub(crate) fn next_number(&self) -> u64 {
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// A number below `below` (splitmix64).
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Counts a call, and fails it if a test asked for that.
    pub(crate) fn call(&mut self, name: &'static str) -> DriverResult<()> {
        let count = self.counters.entry(name).or_default();
        *count += 1;
        let count = *count;
        let due = self.failures.iter().position(|&(call, number, _)| call == name && number == count);
        match due {
            Some(at) => Err(error(name, self.failures.swap_remove(at).2)),
            None => Ok(()),
        }
    }

    pub(crate) fn fail(&mut self, call: &'static str, number: u64, code: u32) {
        let made = self.counters.get(call).copied().unwrap_or(0);
        self.failures.push((call, made + number, code));
    }

    pub(crate) fn clear_failures(&mut self) {
        self.failures.clear();
    }

    pub(crate) fn context_of(&self, ordinal: u32) -> Option<Context> {
        self.devices.get(ordinal as usize).map(|device| device.context)
    }

    pub(crate) fn device_of(&self, context: Context) -> Option<u32> {
        self.devices.iter().position(|device| device.context == context).map(|ordinal| ordinal as u32)
    }

    fn current_device(&self, call: &'static str) -> DriverResult<u32> {
        current().and_then(|context| self.device_of(context)).ok_or(error(call, DriverError::INVALID_CONTEXT))
    }

    fn add_stream(&mut self, context: usize, blocking: bool) -> u64 {
        let id = self.next_number();
        self.streams.insert(id, StreamState { context, blocking, ..StreamState::default() });
        id
    }

    /// The identity behind a handle.
    pub(crate) fn resolve(&mut self, call: &'static str, stream: Stream) -> DriverResult<u64> {
        if !stream.is_default() {
            return self.handles.get(&stream.0).copied().ok_or(error(call, 400));
        }
        let ordinal = self.current_device(call)?;
        let device = &self.devices[ordinal as usize];
        if stream != Stream::PER_THREAD {
            return Ok(device.legacy);
        }
        let context = device.context.0;
        let key = (thread_number(), context);
        if let Some(&id) = self.per_thread.get(&key) {
            return Ok(id);
        }
        let id = self.add_stream(context, true);
        self.per_thread.insert(key, id);
        Ok(id)
    }

    pub(crate) fn context_of_stream(&self, id: u64) -> Context {
        Context(self.streams[&id].context)
    }

    pub(crate) fn create_stream(&mut self, blocking: bool) -> DriverResult<Stream> {
        let ordinal = self.current_device("create_stream")?;
        let context = self.devices[ordinal as usize].context.0;
        let id = self.add_stream(context, blocking);
        let handle = self.free_handles.pop().unwrap_or_else(|| {
            self.next_handle += 16;
            self.next_handle
        });
        self.handles.insert(handle, id);
        Ok(Stream(handle))
    }

    pub(crate) fn destroy_stream(&mut self, stream: Stream) -> DriverResult<()> {
        let id = self.handles.remove(&stream.0).ok_or(error("destroy_stream", 400))?;
        self.free_handles.push(stream.0);
        if let Some(capture) = self.streams[&id].capture
            && let Some(capture) = self.captures.get_mut(&capture)
        {
            capture.valid = false;
        }
        Ok(())
    }

    /// What the next work of `stream` comes after.
    fn next_clock(&self, stream: u64) -> Clock {
        let state = &self.streams[&stream];
        let mut clock = state.clock.clone();
        for (&other, behind) in &self.streams {
            let joined = other != stream
                && behind.context == state.context
                && ((state.legacy && behind.blocking) || (state.blocking && behind.legacy));
            if joined {
                clock.join(&behind.clock);
            }
        }
        clock
    }

    pub(crate) fn launch(&mut self, stream: Stream, accesses: &[Access]) -> DriverResult<()> {
        let id = self.resolve("launch", stream)?;
        match self.streams[&id].capture {
            Some(capture) => self.record_node(id, capture, accesses),
            None => self.launch_as(stream, accesses, true),
        }
    }

    /// Queues work. `own` work touches only what its allocations have.
    pub(crate) fn launch_as(&mut self, stream: Stream, accesses: &[Access], own: bool) -> DriverResult<()> {
        let id = self.resolve("launch", stream)?;
        let number = self.streams[&id].work.len() as u64 + 1;
        let mut clock = self.next_clock(id);
        clock.set(id, number);
        let state = self.streams.get_mut(&id).expect("resolved");
        state.clock = clock.clone();
        state.work.push(clock.clone());
        let bytes: usize = accesses.iter().map(|access| access.bytes).sum();
        self.time += LAUNCH_TIME + Duration::from_nanos(bytes as u64 / BYTES_PER_NANOSECOND);
        for access in accesses {
            self.touch(id, number, &clock, access, own);
        }
        Ok(())
    }

    fn touch(&mut self, stream: u64, number: u64, clock: &Clock, access: &Access, own: bool) {
        let end = access.addr + access.bytes;
        let mut user =
            User { stream, number, allocation: access.allocation, writes: access.writes, mapping: 0 };
        let done: BTreeMap<u64, u64> = self.streams.iter().map(|(&id, state)| (id, state.done)).collect();
        let is_done = |other: &User| done[&other.stream] >= other.number;
        let mut found = Vec::new();
        let mut check = |addr: usize, other: &User| {
            let same_work = (other.stream, other.number) == (stream, number);
            if same_work || clock.get(other.stream) >= other.number {
                return;
            }
            let later = access.allocation;
            found.push(if other.allocation == later && own {
                Violation::ProgramRace { addr, allocation: later }
            } else {
                Violation::Race { addr, earlier: other.allocation, later }
            });
        };
        let mut at = access.addr;
        while at < end {
            if let Some((&start, &mapping)) = self.mappings.range(..=at).next_back()
                && at < start + mapping.bytes
                && mapping.accessible
            {
                let stop = end.min(start + mapping.bytes);
                let memory = self.physical.get_mut(&mapping.physical.0).expect("mapped memory exists");
                user.mapping = start;
                memory.shadow.touch(at - start, stop - start, &user, is_done, |offset, other| {
                    check(start + offset, other);
                });
                at = stop;
            } else if let Some((&start, (bytes, _, shadow))) = self.segments.range_mut(..=at).next_back()
                && at < start + *bytes
            {
                let stop = end.min(start + *bytes);
                shadow.touch(at, stop, &user, is_done, &mut check);
                at = stop;
            } else {
                self.violations.push(Violation::Unmapped { addr: at, allocation: access.allocation });
                return;
            }
        }
        self.violations.extend(found.into_iter().take(1));
    }

    /// Does a piece of queued work of `stream` if everything before it is done.
    fn step(&mut self, stream: u64) -> bool {
        let state = &self.streams[&stream];
        let Some(clock) = state.work.get(state.done as usize) else { return false };
        let ready =
            clock.iter().all(|(other, number)| other == stream || self.streams[&other].done >= number);
        if ready {
            self.streams.get_mut(&stream).expect("it exists").done += 1;
        }
        ready
    }

    /// Does some queued work, or none.
    pub(crate) fn progress(&mut self) {
        // Mostly nothing: work that is long under way is what faults come to light by.
        let count = self.random(12).saturating_sub(9);
        self.advance(count as usize);
    }

    pub(crate) fn advance(&mut self, count: usize) {
        for _ in 0..count {
            let waiting: Vec<u64> = self
                .streams
                .iter()
                .filter(|(_, state)| (state.done as usize) < state.work.len())
                .map(|(&id, _)| id)
                .collect();
            if waiting.is_empty() {
                return;
            }
            let first = self.random(waiting.len() as u64) as usize;
            let mut order = waiting[first..].iter().chain(&waiting[..first]).copied();
            // Clocks have no cycles, so some stream can go on.
            order.find(|&stream| self.step(stream));
        }
    }

    /// Does everything that comes before `clock`, and that.
    fn complete(&mut self, clock: &Clock) {
        for (stream, number) in clock.iter() {
            while self.streams[&stream].done < number {
                let next = self.streams[&stream].work[self.streams[&stream].done as usize].clone();
                let mut before = Clock::default();
                next.iter()
                    .filter(|&(other, _)| other != stream)
                    .for_each(|(other, at)| before.set(other, at));
                self.complete(&before);
                self.step(stream);
            }
        }
    }

    fn is_complete(&self, clock: &Clock) -> bool {
        clock.iter().all(|(stream, number)| self.streams[&stream].done >= number)
    }

    pub(crate) fn finish_all(&mut self) {
        let all: Vec<Clock> = self.streams.values().map(|state| state.clock.clone()).collect();
        all.iter().for_each(|clock| self.complete(clock));
    }

    pub(crate) fn synchronize_context(&mut self) -> DriverResult<()> {
        const CALL: &str = "synchronize";
        self.call(CALL)?;
        let ordinal = self.current_device(CALL)?;
        self.break_captures(CALL, None)?;
        let context = self.devices[ordinal as usize].context.0;
        let of_context = self.streams.values().filter(|state| state.context == context);
        let clocks: Vec<Clock> = of_context.map(|state| state.clock.clone()).collect();
        clocks.iter().for_each(|clock| self.complete(clock));
        Ok(())
    }

    pub(crate) fn synchronize_stream(&mut self, stream: Stream) -> DriverResult<()> {
        let id = self.resolve("synchronize_stream", stream)?;
        if self.streams[&id].capture.is_some() {
            return self.break_captures("synchronize_stream", Some(id));
        }
        let clock = self.streams[&id].clock.clone();
        self.complete(&clock);
        Ok(())
    }

    pub(crate) fn create_event(&mut self) -> Event {
        self.next_event += 1;
        self.events.insert(self.next_event, EventState::default());
        Event(self.next_event)
    }

    pub(crate) fn destroy_event(&mut self, event: Event) -> DriverResult<()> {
        self.events.remove(&event.0).map(drop).ok_or(error("destroy_event", 400))
    }

    pub(crate) fn event_count(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn record_event(&mut self, event: Event, stream: Stream) -> DriverResult<()> {
        let id = self.resolve("record_event", stream)?;
        let state = &self.streams[&id];
        let recorded = match state.capture {
            Some(capture) => {
                EventState { clock: state.capture_clock.clone(), capture: Some(capture), time: self.time }
            }
            None => EventState { clock: self.next_clock(id), capture: None, time: self.time },
        };
        let known = self.events.get_mut(&event.0).ok_or(error("record_event", 400))?;
        *known = recorded;
        Ok(())
    }

    pub(crate) fn event_done(&mut self, event: Event) -> DriverResult<bool> {
        self.forbidden_in_capture("event_done")?;
        self.progress();
        let state = self.events.get(&event.0).ok_or(error("event_done", 400))?;
        Ok(state.capture.is_none() && self.is_complete(&state.clock))
    }

    /// As if all streams worked one after the other.
    pub(crate) fn elapsed(&mut self, start: Event, end: Event) -> DriverResult<Option<Duration>> {
        self.forbidden_in_capture("elapsed")?;
        let find = |event: Event| self.events.get(&event.0).ok_or(error("elapsed", 400));
        let (start, end) = (find(start)?, find(end)?);
        let done = [start, end].iter().all(|event| event.capture.is_none() && self.is_complete(&event.clock));
        Ok(done.then(|| end.time.saturating_sub(start.time)))
    }

    pub(crate) fn wait_for_event(&mut self, event: Event) -> DriverResult<()> {
        self.forbidden_in_capture("wait_for_event")?;
        let clock = self.events.get(&event.0).ok_or(error("wait_for_event", 400))?.clock.clone();
        self.complete(&clock);
        Ok(())
    }

    pub(crate) fn wait_event(&mut self, stream: Stream, event: Event) -> DriverResult<()> {
        const CALL: &str = "stream_wait";
        let id = self.resolve(CALL, stream)?;
        let state = self.events.get(&event.0).ok_or(error(CALL, 400))?.clone();
        match (self.streams[&id].capture, state.capture) {
            (None, None) => {
                self.streams.get_mut(&id).expect("resolved").clock.join(&state.clock);
                Ok(())
            }
            (_, Some(capture)) if self.captures.contains_key(&capture) => {
                self.join_capture(id, capture, &state.clock);
                Ok(())
            }
            // An event from outside cannot be waited for inside, nor one of a capture that is over.
            _ => {
                self.break_captures(CALL, Some(id))?;
                Err(error(CALL, 905))
            }
        }
    }

    pub(crate) fn note_allocation(&mut self, addr: usize, bytes: usize, allocation: u64) {
        if let Some((&start, &(len, live))) = self.owners.range(..addr + bytes).next_back()
            && start + len > addr
        {
            self.violations.push(Violation::Overlap { addr, live, new: allocation });
        }
        self.owners.insert(addr, (bytes, allocation));
    }

    pub(crate) fn note_free(&mut self, addr: usize) {
        self.owners.remove(&addr);
    }

    /// A live allocation on the bytes of `access` that is none of those in `known`.
    pub(crate) fn foreign_owner(&self, access: &Access, known: &[Access]) -> Option<(usize, u64)> {
        let end = access.addr + access.bytes;
        let before = self.owners.range(..=access.addr).next_back();
        let inside = self.owners.range(access.addr + 1..end);
        before
            .into_iter()
            .chain(inside)
            .filter(|&(&start, &(bytes, _))| start < end && access.addr < start + bytes)
            .find(|(_, (_, owner))| !known.iter().any(|access| access.allocation == *owner))
            .map(|(&start, &(_, owner))| (start.max(access.addr), owner))
    }

    // Contents: only what pools fill and what tests poke is kept. It is there at once, whatever is
    // queued before; the order of work is checked as for all work.

    pub(crate) fn set_contents(&mut self, addr: usize, bytes: usize, value: u8) {
        let end = addr + bytes;
        let overlapping: Vec<(usize, usize, u8)> = self
            .contents
            .range(..end)
            .filter(|&(&start, &(len, _))| start + len > addr)
            .map(|(&start, &(len, value))| (start, start + len, value))
            .collect();
        for (start, stop, old) in overlapping {
            self.contents.remove(&start);
            if start < addr {
                self.contents.insert(start, (addr - start, old));
            }
            if stop > end {
                self.contents.insert(end, (stop - end, old));
            }
        }
        self.contents.insert(addr, (bytes, value));
    }

    pub(crate) fn contents(&self, addr: usize, into: &mut [u8]) {
        into.fill(0);
        let end = addr + into.len();
        let runs = self.contents.range(..end).filter(|(start, (len, _))| **start + len > addr);
        for (&start, &(len, value)) in runs {
            into[start.max(addr) - addr..(start + len).min(end) - addr].fill(value);
        }
    }

    pub(crate) fn copy_contents(&mut self, from: usize, to: usize, bytes: usize) {
        let end = from + bytes;
        let runs = self.contents.range(..end).filter(|(start, (len, _))| **start + len > from);
        let runs: Vec<(usize, usize, u8)> =
            runs.map(|(&start, &(len, value))| (start.max(from), (start + len).min(end), value)).collect();
        self.set_contents(to, bytes, 0);
        for (start, stop, value) in runs {
            self.set_contents(to + (start - from), stop - start, value);
        }
    }

    // Memory.

    pub(crate) fn memory_info(&self, ordinal: u32) -> (usize, usize) {
        let device = &self.devices[ordinal as usize];
        let used = device.used_bytes + device.foreign_bytes;
        (self.capacity_bytes.saturating_sub(used), self.capacity_bytes)
    }

    pub(crate) fn current_memory_info(&self) -> DriverResult<(usize, usize)> {
        Ok(self.memory_info(self.current_device("memory_info")?))
    }

    pub(crate) fn set_foreign_bytes(&mut self, ordinal: u32, bytes: usize) {
        self.devices[ordinal as usize].foreign_bytes = bytes;
    }

    fn take_memory(&mut self, call: &'static str, ordinal: u32, bytes: usize) -> DriverResult<()> {
        if self.memory_info(ordinal).0 < bytes {
            return Err(error(call, DriverError::OUT_OF_MEMORY));
        }
        self.devices[ordinal as usize].used_bytes += bytes;
        Ok(())
    }

    pub(crate) fn reserve(&mut self, bytes: usize) -> DriverResult<usize> {
        self.call("reserve")?;
        let start = self.next_address;
        if bytes > 1 << 45 || start + bytes > 1 << 47 {
            return Err(error("reserve", DriverError::OUT_OF_MEMORY));
        }
        self.next_address += bytes.next_multiple_of(2 << 20) + (2 << 20);
        Ok(start)
    }

    pub(crate) fn create(&mut self, ordinal: u32, bytes: usize) -> DriverResult<Physical> {
        self.call("create")?;
        self.take_memory("create", ordinal, bytes)?;
        let id = self.next_number();
        let memory =
            PhysicalMemory { ordinal, bytes, shadow: Shadow::default(), mappings: 0, released: false };
        self.physical.insert(id, memory);
        Ok(Physical(id))
    }

    pub(crate) fn release(&mut self, physical: Physical) -> DriverResult<()> {
        self.call("release")?;
        let memory = self.physical.get_mut(&physical.0).ok_or(error("release", 1))?;
        memory.released = true;
        self.end_if_unused(physical);
        Ok(())
    }

    fn end_if_unused(&mut self, physical: Physical) {
        if self.physical[&physical.0].mappings == 0 && self.physical[&physical.0].released {
            let memory = self.physical.remove(&physical.0).expect("looked up");
            self.devices[memory.ordinal as usize].used_bytes -= memory.bytes;
        }
    }

    pub(crate) fn map(&mut self, addr: usize, bytes: usize, physical: Physical) -> DriverResult<()> {
        self.call("map")?;
        let memory = self.physical.get(&physical.0).ok_or(error("map", 1))?;
        let before = self.mappings.range(..addr + bytes).next_back();
        let overlaps = before.is_some_and(|(&start, mapping)| start + mapping.bytes > addr);
        if memory.bytes != bytes || overlaps {
            return Err(error("map", 1));
        }
        self.physical.get_mut(&physical.0).expect("looked up").mappings += 1;
        self.mappings.insert(addr, Mapping { bytes, physical, accessible: false });
        Ok(())
    }

    pub(crate) fn set_access(&mut self, addr: usize, bytes: usize) -> DriverResult<()> {
        self.call("set_access")?;
        let mut at = addr;
        while at < addr + bytes {
            let mapping = self.mappings.get_mut(&at).ok_or(error("set_access", 1))?;
            mapping.accessible = true;
            at += mapping.bytes;
        }
        Ok(())
    }

    pub(crate) fn unmap(&mut self, addr: usize, bytes: usize) -> DriverResult<()> {
        self.call("unmap")?;
        let mut at = addr;
        while at < addr + bytes {
            let mapping = *self.mappings.get(&at).ok_or(error("unmap", 1))?;
            if at + mapping.bytes > addr + bytes {
                return Err(error("unmap", 1));
            }
            // Work that uses the memory where else it is mapped goes on.
            let done = |user: &User| user.mapping != at || self.streams[&user.stream].done >= user.number;
            if let Some((offset, user)) = self.physical[&mapping.physical.0].shadow.first_user(done) {
                let violation = Violation::UnmappedInUse { addr: at + offset, allocation: user.allocation };
                self.violations.push(violation);
            }
            self.mappings.remove(&at);
            self.physical.get_mut(&mapping.physical.0).expect("mapped memory exists").mappings -= 1;
            self.end_if_unused(mapping.physical);
            at += mapping.bytes;
        }
        Ok(())
    }

    pub(crate) fn allocate_segment(&mut self, bytes: usize) -> DriverResult<usize> {
        const CALL: &str = "allocate_segment";
        self.call(CALL)?;
        self.forbidden_in_capture(CALL)?;
        let ordinal = self.current_device(CALL)?;
        self.take_memory(CALL, ordinal, bytes)?;
        let start = self.next_address;
        self.next_address += bytes.next_multiple_of(2 << 20) + (2 << 20);
        self.segments.insert(start, (bytes, ordinal, Shadow::default()));
        Ok(start)
    }

    pub(crate) fn free_segment(&mut self, addr: usize) -> DriverResult<()> {
        const CALL: &str = "free_segment";
        self.call(CALL)?;
        self.forbidden_in_capture(CALL)?;
        let (bytes, ordinal, _) = self.segments.remove(&addr).ok_or(error(CALL, 1))?;
        self.finish_all();
        self.devices[ordinal as usize].used_bytes -= bytes;
        Ok(())
    }
}
