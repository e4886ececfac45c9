//! How a pool places its blocks, and in what kind of memory.

use mempool_arena::{Conf, ConfError, Mode, Placement, Policy, Setting};

use crate::device::{DeviceState, Taking};
use crate::error::PoolError;
use crate::options::Resolved;
use crate::region;

/// Sizes on the host are rounded up to a cache line, and blocks aligned to one.
pub(crate) const GRANULE_BYTES: usize = 64;
/// Sizes on a device are rounded up to this, and blocks aligned to it: what CUDA's own allocation
/// calls guarantee, twice.
pub(crate) const DEVICE_GRANULE_BYTES: usize = 512;
/// On the host a page moves in a few microseconds, and a step that repeats itself soon moves none.
const HOST_MODE: Mode = Mode::Moving;
/// Most pools never need a second range of this length, and 16 TiB hold thousands of them.
const FIRST_RANGE_BYTES: usize = 1 << 30;
/// An expandable segment takes this share of the host's addresses: far more than a pool will need, and
/// there is room for a hundred such pools before segments become shorter.
const EXPANDABLE_SHARE: usize = 256;
/// The same of a device's addresses, where each stream that allocates has two.
const DEVICE_EXPANDABLE_SHARE: usize = 64;

/// How a pool's blocks are placed.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    conf: Conf,
    no_split: bool,
    /// The user said what the pool begins with or grows by.
    sized: bool,
    in_segments: bool,
}

impl Blocks {
    pub(crate) fn of(options: &Resolved) -> Self {
        Self {
            conf: options.placement.clone(),
            no_split: options.no_split,
            sized: options.size.is_some() || options.growth_factor.is_some(),
            in_segments: false,
        }
    }

    /// The same on a device: the originals of three policies take segments by the driver's own
    /// allocation, and where pages cannot be mapped every policy has to.
    ///
    /// # Errors
    /// [`PoolError::NeedsMapping`].
    pub(crate) fn on(self, device: &DeviceState) -> Result<Self, PoolError> {
        let (policy, maps) = (self.conf.policy(), device.page_bytes.is_some());
        if !maps && policy.needs_mapping() {
            return Err(PoolError::NeedsMapping { policy: policy.as_str(), ordinal: device.ordinal });
        }
        let in_segments = !maps || matches!(policy, Policy::Segments | Policy::Torch | Policy::Bfc);
        Ok(Self { in_segments, ..self })
    }

    /// Whether each block has pages of its own.
    pub(crate) fn own_pages(&self) -> bool {
        self.no_split
    }

    /// How memory is taken on a device.
    pub(crate) fn taking(&self) -> Taking {
        match self.conf.policy() {
            _ if self.in_segments => Taking::Segments,
            // What it gives up is not always what it mapped at once.
            Policy::Buddy => Taking::Pages,
            Policy::Pages if self.conf.mode == Some(Mode::Moving) && !self.no_split => Taking::MovingHandles,
            _ => Taking::Handles,
        }
    }

    /// A placement for the host's memory.
    pub(crate) fn for_host(&self, limit_bytes: Option<usize>) -> Result<Box<dyn Placement>, ConfError> {
        let (all, part) = (region::HOST.len(), region::HOST.part_bytes());
        let range_bytes = match self.conf.policy() {
            Policy::Expandable => all / EXPANDABLE_SHARE,
            // In a small region many short ranges serve better than one that takes it all.
            _ => FIRST_RANGE_BYTES.min(all / 64),
        };
        self.conf.placement(Setting {
            granule_bytes: GRANULE_BYTES,
            limit_bytes,
            range_bytes: range_bytes.max(part),
            // What was taken in advance is there to serve, and not to be given up for less.
            mode: if self.sized { Mode::OnPressure } else { HOST_MODE },
            ..self.setting()
        })
    }

    /// A placement for a device's memory. Limits are kept by the pool, over all its arenas.
    pub(crate) fn for_device(&self, device: &DeviceState) -> Result<Box<dyn Placement>, ConfError> {
        let (all, part) = (device.platform.region.len(), device.platform.region.part_bytes());
        let range_bytes = match self.conf.policy() {
            // PyTorch's are an eighth longer than the device's memory.
            Policy::Expandable => {
                let beyond = device.total_bytes.saturating_add(device.total_bytes / 8);
                beyond.min(all / DEVICE_EXPANDABLE_SHARE).max(part)
            }
            _ => part,
        };
        self.conf.placement(Setting { granule_bytes: DEVICE_GRANULE_BYTES, range_bytes, ..self.setting() })
    }

    fn setting(&self) -> Setting {
        Setting { whole_ranges: self.in_segments, no_split: self.no_split, ..Setting::default() }
    }
}
