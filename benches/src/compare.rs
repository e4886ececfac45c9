//! The comparison: start the workers, put their reports together, render and judge them.

pub mod launch;
pub mod outcome;
pub mod table;
pub mod targets;
pub mod views;
