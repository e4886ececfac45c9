//! What can go wrong in the core, with the numbers a reader needs to act on it.

use thiserror::Error;

use crate::range::AddressRange;

/// Failure of an [`Upstream`](crate::Upstream) call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The memory behind the upstream is used up.
    #[error(
        "{requested_bytes} bytes were asked of upstream, {mapped_bytes} of {capacity_bytes} are mapped already"
    )]
    Exhausted {
        /// Bytes of the refused call.
        requested_bytes: usize,
        /// Bytes mapped before the call.
        mapped_bytes: usize,
        /// Bytes the upstream can map in all.
        capacity_bytes: usize,
    },
    /// No virtual range of this length is left.
    #[error("no virtual range of {requested_bytes} bytes is left")]
    AddressSpace {
        /// Bytes of the refused reservation.
        requested_bytes: usize,
    },
    /// The operating system or the driver refused the call.
    #[error("{call} of {bytes} bytes failed with error {code}")]
    Os {
        /// Name of the call.
        call: &'static str,
        /// Bytes it was called for.
        bytes: usize,
        /// The system's error number.
        code: i32,
    },
    /// The call contradicts what was mapped or reserved before.
    #[error("{what}: {range}")]
    Misuse {
        /// The rule broken.
        what: &'static str,
        /// The range of the call.
        range: AddressRange,
    },
    /// A failure that a test asked for.
    #[error("injected failure of {call} number {number}")]
    Injected {
        /// Name of the call.
        call: &'static str,
        /// Which call of this kind, counted from 1.
        number: u64,
    },
}

/// A map or unmap call that failed, perhaps after a part of it was done.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{source} ({completed_bytes} bytes were done before)")]
pub struct MapError {
    /// Bytes from the start of the range for which the call did take effect.
    pub completed_bytes: usize,
    /// Why the rest did not.
    pub source: UpstreamError,
}

/// Failure of an arena operation. Nothing that was allocated before is lost, and the arena
/// is usable afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The request, rounded and aligned, does not fit into the address space.
    #[error("a request of {size_bytes} bytes aligned to {align_bytes} overflows the address space")]
    SizeOverflow {
        /// Bytes requested.
        size_bytes: usize,
        /// Alignment requested.
        align_bytes: usize,
    },
    /// An alignment that is not a power of two.
    #[error("alignment {align_bytes} is not a power of two")]
    Alignment {
        /// The alignment.
        align_bytes: usize,
    },
    /// An option with a value the policy cannot work with.
    #[error("option {option} is {value}, but {rule}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The value given.
        value: usize,
        /// What it has to satisfy.
        rule: &'static str,
    },
    /// The pool's own limit, or upstream, has nothing left for this request.
    #[error(
        "out of memory: {requested_bytes} bytes requested; allocated {allocated_bytes}, reserved {reserved_bytes}, \
         limit {limit}, largest free block {largest_free_bytes}, free but unusable {inactive_split_bytes}{cause}",
        limit = limit_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string()),
        cause = source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default(),
    )]
    OutOfMemory {
        /// Bytes of the refused request.
        requested_bytes: usize,
        /// Bytes in live blocks.
        allocated_bytes: usize,
        /// Bytes mapped.
        reserved_bytes: usize,
        /// The pool's limit on mapped bytes.
        limit_bytes: Option<usize>,
        /// The largest request that could have been served.
        largest_free_bytes: usize,
        /// Free bytes that share a page with a live block.
        inactive_split_bytes: usize,
        /// What upstream answered, if it was asked.
        source: Option<UpstreamError>,
    },
    /// The address is not the start of a live block.
    #[error("address {addr:#x} is not the start of a live block")]
    UnknownAddress {
        /// The address.
        addr: usize,
    },
    /// The operation needs an arena without live blocks.
    #[error("{live_blocks} blocks with {allocated_bytes} bytes are still live")]
    StillLive {
        /// Number of live blocks.
        live_blocks: usize,
        /// Their bytes.
        allocated_bytes: usize,
    },
    /// Upstream refused to take everything back.
    #[error("upstream did not take everything back: {reserved_bytes} bytes are still mapped")]
    NotReleased {
        /// Bytes still mapped.
        reserved_bytes: usize,
    },
    /// Upstream refused a call that has nothing to do with running out.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}
