//! Whether a plan is one: looked at without anything of what made it.

use std::collections::BTreeMap;

use super::alignment;
use super::error::PlanError;
use super::{Buffer, Plan};

/// Checks that offsets are aligned, that buffers which live at one time share no byte, and that the plan's peak is
/// the highest end. Takes `O(n log n)`.
///
/// # Errors
/// What is wrong with the buffers or the plan.
pub fn verify(buffers: &[Buffer], granule_bytes: usize, plan: &Plan) -> Result<(), PlanError> {
    let (offset_count, buffer_count) = (plan.offsets.len(), buffers.len());
    if offset_count != buffer_count {
        return Err(PlanError::Count { offset_count, buffer_count });
    }
    let mut highest = 0;
    let mut events = Vec::with_capacity(2 * buffers.len());
    for (index, (buffer, &offset_bytes)) in buffers.iter().zip(&plan.offsets).enumerate() {
        let &Buffer { lower, upper, size_bytes, .. } = buffer;
        if lower >= upper {
            return Err(PlanError::Lifetime { index, lower, upper });
        }
        let align_bytes = alignment(index, buffer, granule_bytes)?;
        if offset_bytes % align_bytes != 0 {
            return Err(PlanError::Misaligned { index, offset_bytes, align_bytes });
        }
        let end = offset_bytes
            .checked_add(size_bytes)
            .ok_or(PlanError::TooLarge { count: index + 1, most_bytes: usize::MAX })?;
        // What has no bytes is nowhere.
        if size_bytes > 0 {
            highest = highest.max(end);
            // At one time deaths come first: lifetimes are half-open.
            events.push((lower, true, index));
            events.push((upper, false, index));
        }
    }
    events.sort_unstable();
    // The live buffers by offset. As long as they share no byte, only neighbours can.
    let mut live: BTreeMap<usize, usize> = BTreeMap::new();
    for (_, born, index) in events {
        let offset = plan.offsets[index];
        if !born {
            live.remove(&offset);
            continue;
        }
        let before = live.range(..=offset).next_back();
        if let Some((&start, &first)) = before
            && start + buffers[first].size_bytes > offset
        {
            return Err(PlanError::Overlap { first, second: index });
        }
        let after = live.range(offset..).next();
        if let Some((&start, &first)) = after
            && offset + buffers[index].size_bytes > start
        {
            return Err(PlanError::Overlap { first, second: index });
        }
        live.insert(offset, index);
    }
    if highest != plan.peak_bytes {
        return Err(PlanError::Peak { end_bytes: highest, peak_bytes: plan.peak_bytes });
    }
    Ok(())
}
