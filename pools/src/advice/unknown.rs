//! What advice could not know.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What could not be known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "unknown", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unknown {
    /// How much memory there is.
    DeviceMemory,
    /// How long the run took.
    Duration,
    /// Where steps end.
    Steps,
    /// What the program does all the time: so few requests may be chance.
    Habits {
        /// Requests.
        requests: u64,
    },
    /// What happened before and after the part that was replayed.
    Rest {
        /// Events that were not.
        events: u64,
    },
    /// When what was allocated and freed: no policy was replayed.
    Lifetimes,
    /// What happened before the history's first entry.
    Earlier {
        /// Entries that are no longer kept.
        dropped: u64,
    },
    /// What happened before the first entry.
    Before {
        /// Blocks that were live already.
        blocks: u64,
    },
    /// Which sizes there were within a bucket.
    SizesInBuckets,
    /// What an offline plan needs: there are too many buffers for one, or none.
    OfflinePlan,
    /// What mapping takes on the host: the model is a device's.
    HostCosts,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeviceMemory => f.write_str("how much memory there is: it was taken to be short"),
            Self::Duration => {
                f.write_str("how long the run took: whether allocations matter beside it was not judged")
            }
            Self::Steps => f.write_str(
                "where steps end (fewer than two are marked; `mark_step()` does): whether they repeat was not judged",
            ),
            Self::Habits { requests } => {
                write!(f, "what of it comes again: {requests} requests are too few to tell")
            }
            Self::Rest { events } => {
                write!(f, "{events} events outside the window around the peak: they were not replayed")
            }
            Self::Lifetimes => {
                f.write_str("what was allocated and freed when: no policy was replayed, nothing planned")
            }
            Self::Earlier { dropped } => {
                write!(f, "what happened before: {dropped} older entries of the history are gone")
            }
            Self::Before { blocks } => {
                write!(f, "what happened before the first entry, when {blocks} blocks were live already")
            }
            Self::SizesInBuckets => f.write_str("which sizes there were: only powers of two are counted"),
            Self::OfflinePlan => f.write_str("what an offline plan needs: there are too many buffers"),
            Self::HostCosts => f.write_str("what mapping takes on this host: times are by the model of a device"),
        }
    }
}
