//! The simulated machine as pools see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::state::{self, State};
use super::{Access, Simulator, error};
use crate::device::driver::{CaptureState, Context, Driver, DriverResult, Event, Physical, Stream, StreamId};

/// The driver of a [`Simulator`].
#[derive(Debug)]
pub struct SimulatedDriver {
    simulator: Simulator,
}

impl SimulatedDriver {
    pub(crate) fn new(simulator: Simulator) -> Self {
        Self { simulator }
    }

    fn with<R>(&self, call: &'static str, f: impl FnOnce(&mut State) -> DriverResult<R>) -> DriverResult<R> {
        let mut state = self.simulator.lock();
        state.call(call)?;
        f(&mut state)
    }
}

impl Driver for SimulatedDriver {
    fn current_context(&self) -> Option<Context> {
        state::current()
    }

    fn set_current_context(&self, context: Option<Context>) -> DriverResult<()> {
        state::set_current(context);
        Ok(())
    }

    fn device_of(&self, context: Context) -> Option<u32> {
        self.simulator.lock().device_of(context)
    }

    fn retain_primary_context(&self, ordinal: u32) -> DriverResult<Context> {
        self.simulator.lock().context_of(ordinal).ok_or(error("retain_primary_context", 101))
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.simulator.lock().synchronize_context()
    }

    fn stream_id(&self, stream: Stream) -> DriverResult<StreamId> {
        self.with("stream_id", |state| {
            let id = state.resolve("stream_id", stream)?;
            if state.streams[&id].capture.is_some() {
                state.break_captures("stream_id", Some(id))?;
            }
            Ok(StreamId(id))
        })
    }

    fn stream_context(&self, stream: Stream) -> DriverResult<Context> {
        self.with("stream_context", |state| {
            let id = state.resolve("stream_context", stream)?;
            Ok(state.context_of_stream(id))
        })
    }

    fn capture_state(&self, stream: Stream) -> DriverResult<CaptureState> {
        self.with("capture_state", |state| {
            let id = state.resolve("capture_state", stream)?;
            Ok(state.capture_state(id))
        })
    }

    fn when_graph_ends(&self, stream: Stream, token: Arc<AtomicBool>) -> DriverResult<()> {
        let added = self.with("when_graph_ends", |state| state.add_token(stream, Arc::clone(&token)));
        if added.is_err() {
            // As the driver does it: nobody keeps the object that carries the token.
            token.store(true, Ordering::Release);
        }
        added
    }

    fn relax_captures(&self) -> Option<u32> {
        Some(u32::from(state::allow(true)))
    }

    fn restore_captures(&self, mode: u32) {
        state::allow(mode != 0);
    }

    fn create_event(&self) -> DriverResult<Event> {
        self.with("create_event", |state| Ok(state.create_event()))
    }

    fn create_timed_event(&self) -> DriverResult<Event> {
        self.create_event()
    }

    fn elapsed(&self, start: Event, end: Event) -> DriverResult<Option<Duration>> {
        self.with("elapsed", |state| state.elapsed(start, end))
    }

    fn destroy_event(&self, event: Event) -> DriverResult<()> {
        self.with("destroy_event", |state| state.destroy_event(event))
    }

    fn record_event(&self, event: Event, stream: Stream) -> DriverResult<()> {
        self.with("record_event", |state| state.record_event(event, stream))
    }

    fn event_done(&self, event: Event) -> DriverResult<bool> {
        self.with("event_done", |state| state.event_done(event))
    }

    fn wait_for_event(&self, event: Event) -> DriverResult<()> {
        self.with("wait_for_event", |state| state.wait_for_event(event))
    }

    fn stream_wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        self.with("stream_wait", |state| state.wait_event(stream, event))
    }

    fn page_bytes(&self, _: u32) -> Option<usize> {
        self.simulator.lock().page_bytes
    }

    fn can_access(&self, _: u32, _: u32) -> bool {
        true
    }

    fn reserve(&self, bytes: usize) -> DriverResult<usize> {
        self.simulator.lock().reserve(bytes)
    }

    fn create(&self, ordinal: u32, bytes: usize) -> DriverResult<Physical> {
        self.simulator.lock().create(ordinal, bytes)
    }

    fn release(&self, physical: Physical) -> DriverResult<()> {
        self.simulator.lock().release(physical)
    }

    fn map(&self, addr: usize, bytes: usize, physical: Physical) -> DriverResult<()> {
        self.simulator.lock().map(addr, bytes, physical)
    }

    fn set_access(&self, addr: usize, bytes: usize, _: &[u32]) -> DriverResult<()> {
        self.simulator.lock().set_access(addr, bytes)
    }

    fn unmap(&self, addr: usize, bytes: usize) -> DriverResult<()> {
        self.simulator.lock().unmap(addr, bytes)
    }

    fn allocate_segment(&self, bytes: usize) -> DriverResult<usize> {
        self.simulator.lock().allocate_segment(bytes)
    }

    fn free_segment(&self, addr: usize) -> DriverResult<()> {
        self.simulator.lock().free_segment(addr)
    }

    fn memory_info(&self) -> DriverResult<(usize, usize)> {
        self.with("memory_info", |state| state.current_memory_info())
    }

    fn copy(&self, from: usize, to: usize, bytes: usize, stream: Stream) -> DriverResult<()> {
        self.with("copy", |state| {
            state.launch(stream, &[Access::read(from, bytes, 0), Access::write(to, bytes, 0)])?;
            state.copy_contents(from, to, bytes);
            Ok(())
        })
    }

    fn fill(&self, addr: usize, bytes: usize, value: u8, stream: Stream) -> DriverResult<()> {
        self.with("fill", |state| {
            state.launch(stream, &[Access::write(addr, bytes, 0)])?;
            state.set_contents(addr, bytes, value);
            Ok(())
        })
    }

    fn read(&self, addr: usize, into: &mut [u8], stream: Stream) -> DriverResult<()> {
        self.with("read", |state| {
            state.launch(stream, &[Access::read(addr, into.len(), 0)])?;
            state.synchronize_stream(stream)?;
            state.contents(addr, into);
            Ok(())
        })
    }
}
