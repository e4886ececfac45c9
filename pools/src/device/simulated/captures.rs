//! Simulated captures and graphs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::clock::Clock;
use super::state::State;
use super::{Access, Violation, error};
use crate::device::driver::{CaptureId, CaptureState, DriverError, DriverResult, Stream};

/// What a capture forbids on other threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    /// Unsafe calls are forbidden on every thread.
    Global,
    /// Unsafe calls are forbidden on the thread that began the capture.
    ThreadLocal,
}

/// A captured graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Graph(pub(crate) u64);

/// Recorded work.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    stream: u64,
    number: u64,
    clock: Clock,
    accesses: Vec<Access>,
}

#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: CaptureId,
    mode: CaptureMode,
    thread: u64,
    pub(crate) valid: bool,
    origin: u64,
    /// Streams that take part.
    streams: BTreeSet<u64>,
    nodes: Vec<Node>,
    tokens: Vec<Arc<AtomicBool>>,
}

#[derive(Debug)]
pub(crate) struct GraphState {
    nodes: Vec<Node>,
    tokens: Vec<Arc<AtomicBool>>,
}

impl State {
    pub(crate) fn begin_capture(&mut self, stream: Stream, mode: CaptureMode) -> DriverResult<()> {
        const CALL: &str = "begin_capture";
        let id = self.resolve(CALL, stream)?;
        if stream == Stream::LEGACY || stream == Stream::LEGACY_ALIAS || self.streams[&id].capture.is_some() {
            return Err(error(CALL, DriverError::CAPTURE_UNSUPPORTED));
        }
        let capture = self.next_number();
        self.captures.insert(
            capture,
            Capture {
                id: CaptureId(capture),
                mode,
                thread: super::state::thread_number(),
                valid: true,
                origin: id,
                streams: BTreeSet::from([id]),
                nodes: Vec::new(),
                tokens: Vec::new(),
            },
        );
        let state = self.streams.get_mut(&id).expect("resolved");
        state.capture = Some(capture);
        state.capture_clock = Clock::default();
        state.capture_number = 0;
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: Stream) -> DriverResult<Graph> {
        const CALL: &str = "end_capture";
        let id = self.resolve(CALL, stream)?;
        let number = self.streams[&id].capture.ok_or(error(CALL, DriverError::CAPTURE_UNSUPPORTED))?;
        if self.captures[&number].origin != id {
            return Err(error(CALL, DriverError::CAPTURE_UNSUPPORTED));
        }
        let capture = self.captures.remove(&number).expect("a stream's capture exists");
        for taking_part in &capture.streams {
            if let Some(state) = self.streams.get_mut(taking_part) {
                state.capture = None;
            }
        }
        if !capture.valid {
            capture.tokens.iter().for_each(|token| token.store(true, Ordering::Release));
            return Err(error(CALL, 901));
        }
        self.graphs.insert(number, GraphState { nodes: capture.nodes, tokens: capture.tokens });
        Ok(Graph(number))
    }

    /// Lets `stream` take part in the capture that an event comes from.
    pub(crate) fn join_capture(&mut self, stream: u64, capture: u64, clock: &Clock) {
        let state = self.streams.get_mut(&stream).expect("resolved");
        if state.capture.is_none() {
            state.capture = Some(capture);
            state.capture_clock = Clock::default();
            state.capture_number = 0;
        }
        state.capture_clock.join(clock);
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.streams.insert(stream);
        }
    }

    /// Records work into the graph.
    pub(crate) fn record_node(&mut self, stream: u64, capture: u64, accesses: &[Access]) -> DriverResult<()> {
        if !self.captures[&capture].valid {
            return Err(error("launch", 901));
        }
        let state = self.streams.get_mut(&stream).expect("resolved");
        state.capture_number += 1;
        let number = state.capture_number;
        state.capture_clock.set(stream, number);
        let node = Node { stream, number, clock: state.capture_clock.clone(), accesses: accesses.to_vec() };
        let capture = self.captures.get_mut(&capture).expect("a stream's capture exists");
        // Branches of a graph run side by side: what is not ordered within it races at each launch.
        let mut races = Vec::new();
        for earlier in &capture.nodes {
            if node.clock.get(earlier.stream) >= earlier.number {
                continue;
            }
            for (one, other) in
                earlier.accesses.iter().flat_map(|a| node.accesses.iter().map(move |b| (a, b)))
            {
                let overlaps = one.addr < other.addr + other.bytes && other.addr < one.addr + one.bytes;
                if overlaps && (one.writes || other.writes) {
                    let addr = one.addr.max(other.addr);
                    races.push(if one.allocation == other.allocation {
                        Violation::ProgramRace { addr, allocation: one.allocation }
                    } else {
                        Violation::Race { addr, earlier: one.allocation, later: other.allocation }
                    });
                }
            }
        }
        capture.nodes.push(node);
        self.violations.extend(races);
        Ok(())
    }

    pub(crate) fn launch_graph(&mut self, graph: Graph, stream: Stream) -> DriverResult<()> {
        let nodes = self.graphs.get(&graph.0).ok_or(error("launch_graph", 400))?.nodes.clone();
        let accesses: Vec<Access> = nodes.iter().flat_map(|node| node.accesses.iter().copied()).collect();
        for access in &accesses {
            if let Some((addr, allocation)) = self.foreign_owner(access, &accesses) {
                self.violations.push(Violation::GraphMemoryReused { addr, allocation });
            }
        }
        self.launch_as(stream, &accesses, false)
    }

    pub(crate) fn destroy_graph(&mut self, graph: Graph) {
        if let Some(ended) = self.graphs.remove(&graph.0) {
            ended.tokens.iter().for_each(|token| token.store(true, Ordering::Release));
        }
    }

    pub(crate) fn capture_state(&self, stream: u64) -> CaptureState {
        match self.streams[&stream].capture.map(|capture| &self.captures[&capture]) {
            None => CaptureState::None,
            Some(capture) if capture.valid => CaptureState::Active(capture.id),
            Some(_) => CaptureState::Invalidated,
        }
    }

    pub(crate) fn add_token(&mut self, stream: Stream, token: Arc<AtomicBool>) -> DriverResult<()> {
        const CALL: &str = "when_graph_ends";
        let id = self.resolve(CALL, stream)?;
        let number = self.streams[&id].capture.ok_or(error(CALL, DriverError::CAPTURE_UNSUPPORTED))?;
        self.captures.get_mut(&number).expect("a stream's capture exists").tokens.push(token);
        Ok(())
    }

    /// A call that captures forbid: those that are broken by it become invalid.
    pub(crate) fn forbidden_in_capture(&mut self, call: &'static str) -> DriverResult<()> {
        let thread = super::state::thread_number();
        if super::state::is_allowed() {
            return Ok(());
        }
        let mut broken = false;
        for capture in self.captures.values_mut() {
            if capture.mode == CaptureMode::Global || capture.thread == thread {
                capture.valid = false;
                broken = true;
            }
        }
        if broken { Err(error(call, DriverError::CAPTURE_UNSUPPORTED)) } else { Ok(()) }
    }

    /// A call that no capture of the context survives, whatever its mode.
    pub(crate) fn break_captures(&mut self, call: &'static str, stream: Option<u64>) -> DriverResult<()> {
        let mut broken = false;
        for capture in self.captures.values_mut() {
            if stream.is_none_or(|stream| capture.streams.contains(&stream)) {
                capture.valid = false;
                broken = true;
            }
        }
        if broken { Err(error(call, DriverError::CAPTURE_UNSUPPORTED)) } else { Ok(()) }
    }
}
