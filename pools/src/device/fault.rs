//! Faults that can be planted, to show that the tests find them. None exists in a build without
//! the feature `planted-faults`.

/// What can be made wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// Streams are told apart by their handles.
    KeyByHandle = 1,
    /// A block is reused on its owner's stream without that stream waiting for the work that uses it.
    SkipEventWait = 2,
    /// A block is reused before the event behind it has happened.
    ReuseBeforeDone = 3,
    /// A free by another stream than the owner's does not wait for that other stream.
    ForgetFreeingStream = 4,
    /// A block serves other streams without waiting for its owner.
    ForgetOwner = 5,
    /// Declared uses on other streams are not waited for.
    ForgetDeclaredUses = 6,
    /// A block is freed into another pool than its own.
    FreeIntoWrongPool = 7,
    /// A request is served by the pool of the thread's last request.
    ServeFromWrongPool = 8,
    /// Pages are given back while work may still use them.
    UnmapInUse = 9,
    /// A stream's memory is handed on without waiting for the stream's last work.
    AdoptAtOnce = 10,
    /// What is freed in a capture is reused while the graph lives.
    ReuseGraphMemory = 11,
    /// What a thread remembers of a stream's handle outlives the stream.
    StaleStreams = 12,
    /// Buffers that somebody holds are moved.
    MoveHeldBuffers = 13,
    /// Buffers that a graph uses are moved.
    MoveGraphBuffers = 14,
}

#[cfg(feature = "planted-faults")]
impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::KeyByHandle,
        Self::SkipEventWait,
        Self::ReuseBeforeDone,
        Self::ForgetFreeingStream,
        Self::ForgetOwner,
        Self::ForgetDeclaredUses,
        Self::FreeIntoWrongPool,
        Self::ServeFromWrongPool,
        Self::UnmapInUse,
        Self::AdoptAtOnce,
        Self::ReuseGraphMemory,
        Self::StaleStreams,
        Self::MoveHeldBuffers,
        Self::MoveGraphBuffers,
    ];
}

#[cfg(feature = "planted-faults")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes the process wrong, from now on.
#[cfg(feature = "planted-faults")]
pub fn plant(fault: Fault) {
    PLANTED.store(fault as u8, std::sync::atomic::Ordering::SeqCst);
}

/// Whether the process is wrong in this way.
#[cfg(feature = "planted-faults")]
pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::SeqCst) == fault as u8
}

/// Whether the process is wrong in this way: it is not.
#[cfg(not(feature = "planted-faults"))]
#[inline]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
