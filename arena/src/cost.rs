//! What calls for virtual memory take on a device.

use serde::{Deserialize, Serialize};

/// The time of each call for a handle of one size, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandleCost {
    /// Bytes of the handle.
    pub bytes: u64,
    /// Making it.
    pub create_us: f64,
    /// Mapping it.
    pub map_us: f64,
    /// Giving the device access to it, once mapped.
    pub access_us: f64,
    /// Unmapping it.
    pub unmap_us: f64,
    /// Giving it up.
    pub release_us: f64,
}

/// What calls take, by the size of the handle they concern. Between two sizes of the table the time
/// is interpolated, below the smallest and above the largest it is theirs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// By growing size; at least one.
    pub handles: Vec<HandleCost>,
}

impl Default for CostModel {
    /// As measured on an NVIDIA H200 with CUDA 13.0.
    fn default() -> Self {
        let row = |mib: u64, [create_us, map_us, access_us, unmap_us, release_us]: [f64; 5]| HandleCost {
            bytes: mib << 20,
            create_us,
            map_us,
            access_us,
            unmap_us,
            release_us,
        };
        Self {
            handles: vec![
                row(2, [9.5, 1.3, 31.0, 17.0, 11.0]),
                row(20, [8.8, 0.7, 26.0, 17.0, 16.0]),
                row(64, [12.0, 0.7, 27.0, 16.0, 33.0]),
                row(512, [16.0, 0.8, 46.0, 22.0, 176.0]),
            ],
        }
    }
}

impl CostModel {
    /// The costs of a handle of `bytes`.
    ///
    /// # Panics
    /// When the table is empty.
    #[must_use]
    pub fn of(&self, bytes: usize) -> HandleCost {
        let bytes = bytes as u64;
        let after = self.handles.partition_point(|row| row.bytes < bytes);
        let (Some(above), Some(below)) =
            (self.handles.get(after), after.checked_sub(1).map(|at| &self.handles[at]))
        else {
            let nearest = self.handles.get(after).or(self.handles.last()).expect("a cost table has rows");
            return HandleCost { bytes, ..*nearest };
        };
        let share = (bytes - below.bytes) as f64 / (above.bytes - below.bytes) as f64;
        let between = |below: f64, above: f64| below + (above - below) * share;
        HandleCost {
            bytes,
            create_us: between(below.create_us, above.create_us),
            map_us: between(below.map_us, above.map_us),
            access_us: between(below.access_us, above.access_us),
            unmap_us: between(below.unmap_us, above.unmap_us),
            release_us: between(below.release_us, above.release_us),
        }
    }

    /// The model, if its table has rows of growing sizes and no negative time.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn checked(self) -> Result<Self, &'static str> {
        if self.handles.is_empty() {
            return Err("a cost table needs at least one row");
        }
        if self.handles.windows(2).any(|pair| pair[0].bytes >= pair[1].bytes) {
            return Err("the rows of a cost table have growing sizes");
        }
        let times =
            |row: &HandleCost| [row.create_us, row.map_us, row.access_us, row.unmap_us, row.release_us];
        if self.handles.iter().flat_map(times).any(|time| !(time.is_finite() && time >= 0.0)) {
            return Err("times are numbers of microseconds, not below zero");
        }
        Ok(self)
    }
}

impl HandleCost {
    /// New memory where there was none.
    #[must_use]
    pub fn mapping_us(&self) -> f64 {
        self.create_us + self.map_us + self.access_us
    }

    /// The end of memory.
    #[must_use]
    pub fn unmapping_us(&self) -> f64 {
        self.unmap_us + self.release_us
    }

    /// Memory that goes from one place to another.
    #[must_use]
    pub fn moving_us(&self) -> f64 {
        self.unmap_us + self.map_us + self.access_us
    }
}

#[cfg(test)]
mod tests {
    use super::CostModel;

    #[test]
    fn costs_between_two_rows_lie_between_theirs() {
        let model = CostModel::default();
        assert_eq!(model.of(2 << 20).create_us, 9.5);
        assert_eq!(model.of(1).mapping_us(), 9.5 + 1.3 + 31.0);
        let between = model.of(42 << 20);
        assert!((between.release_us - 24.5).abs() < 1e-9, "{between:?}");
        assert_eq!(model.of(4 << 30).moving_us(), 22.0 + 0.8 + 46.0);
    }

    #[test]
    fn a_table_that_makes_no_sense_is_refused() {
        let mut model = CostModel::default();
        model.handles.swap(0, 1);
        assert!(model.checked().is_err());
        assert!(CostModel { handles: Vec::new() }.checked().is_err());
        let mut model = CostModel::default();
        model.handles[0].map_us = f64::NAN;
        assert!(model.checked().is_err());
    }
}
