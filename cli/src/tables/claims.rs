//! What the usual advice promises, and what a measurement makes of it.
//!
//! Guides to memory pools promise that fragmentation falls from one share to another. They seldom say of what:
//! here both are shares of what was reserved at most, as everywhere in this project.

/// A promise for a kind of load, and the recorded run that is one.
pub(super) struct Claim {
    /// The load.
    pub(super) load: &'static str,
    /// The trace's name.
    pub(super) trace: &'static str,
    /// Fragmentation before and after, in percent.
    pub(super) before: f64,
    pub(super) after: f64,
}

/// The promises for the three kinds of load.
pub(super) const CLAIMS: [Claim; 3] = [
    Claim { load: "training a small model", trace: "resnet50_train", before: 18.0, after: 3.0 },
    Claim { load: "inference of a large model", trace: "llama_generate", before: 12.0, after: 2.0 },
    Claim { load: "mixed", trace: "mixed_load", before: 25.0, after: 5.0 },
];

/// The run for which guides promise figures step by step.
pub(super) const BUILD_UP_TRACE: &str = "resnet50_train";
/// With preallocation, then reuse, then moving, in percent.
pub(super) const BUILD_UP: [f64; 3] = [15.0, 8.0, 3.0];

impl Claim {
    /// What a measurement says, in words; all in percent. `torch` is what one has without a pool.
    pub(super) fn verdict(&self, torch: f64, best_fit: f64, moving: f64) -> String {
        let start = if torch > self.before { "more" } else { "less" };
        let end = match self.after {
            after if best_fit <= after => "reached without moving",
            after if moving <= after => "reached with moving only",
            _ => "not reached",
        };
        format!("`torch` wastes {start} than claimed; the end is {end}")
    }
}
