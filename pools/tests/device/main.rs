//! Pools of device memory.

mod support;

mod advice;
mod basics;
mod buffer_sets;
mod buffers;
mod edges;
mod expected;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod gpu;
mod guards;
mod history;
mod moving;
mod moving_program;
mod program;
mod pytorch;
mod random;
#[path = "../recorded.rs"]
mod recorded;
mod recording;
mod shortage;
mod sizing;
mod statistics;
mod steps;

#[path = "../memory_viz.rs"]
mod memory_viz;
#[path = "../recount.rs"]
mod recount;
mod world;
