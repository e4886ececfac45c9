//! The device that a recorded run is replayed on.

use super::Replay;
use crate::conf::{Conf, ConfError, Setting};
use crate::cost::CostModel;
use crate::policy::Policy;
use crate::upstream::simulated::SimulatedUpstream;

/// A device of addresses only, with the units of CUDA's unless other ones are set.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayDevice {
    /// The unit of what can be mapped, in bytes. 2 MiB.
    pub page_bytes: usize,
    /// Sizes are rounded to this many bytes. 512, as CUDA's own calls do, twice.
    pub granule_bytes: usize,
    /// Its memory, in bytes; `None` for no end.
    pub capacity_bytes: Option<usize>,
    /// Queued work uses a freed block until so many operations later.
    pub lag: u64,
    /// What mapping takes.
    pub costs: CostModel,
}

impl Default for ReplayDevice {
    fn default() -> Self {
        Self {
            page_bytes: 2 << 20,
            granule_bytes: 512,
            capacity_bytes: None,
            lag: 0,
            costs: CostModel::default(),
        }
    }
}

impl ReplayDevice {
    /// What pools on the device are made for.
    #[must_use]
    pub fn setting(&self) -> Setting {
        /// Address space of a range: policies that have one range for each kind of request never need a second.
        const RANGE_BYTES: usize = 1 << (if usize::BITS == 64 { 38 } else { 26 });
        Setting { granule_bytes: self.granule_bytes, range_bytes: RANGE_BYTES, ..Setting::default() }
    }

    /// The device's memory for a policy, of which nothing is taken yet.
    #[must_use]
    pub fn upstream(&self, policy: Policy) -> SimulatedUpstream {
        SimulatedUpstream::builder()
            .page_bytes(self.page_bytes)
            .capacity_bytes(self.capacity_bytes.unwrap_or(usize::MAX))
            .handles(policy != Policy::Buddy)
            .falling_addresses(true)
            .costs(self.costs.clone())
            .lag(self.lag)
            .build()
    }

    /// A replay of nothing yet, with this policy and its options.
    ///
    /// # Errors
    /// [`ConfError`] for options that make no sense.
    pub fn replay<'a>(&self, conf: &'a Conf) -> Result<Replay<'a>, ConfError> {
        let setting = self.setting();
        // Options that make no sense are found before the first allocation.
        conf.placement(setting)?;
        let make = move || match conf.placement(setting) {
            Ok(placement) => Ok(placement),
            Err(ConfError::Refused(error)) => Err(error),
            Err(other) => unreachable!("checked above: {other}"),
        };
        Ok(Replay::new(self.upstream(conf.policy()), make))
    }
}
