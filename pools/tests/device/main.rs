//! Pools of device memory.

mod support;

mod basics;
mod program;
mod pytorch;
mod random;
mod world;
