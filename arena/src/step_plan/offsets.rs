//! Places for buffers whose lifetimes are known.

/// A buffer that is alive from `lower` to before `upper`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    pub(super) lower: u32,
    pub(super) upper: u32,
    pub(super) len: usize,
}

/// Offsets of buffers, and the highest end.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) offsets: Vec<usize>,
    pub(super) peak_bytes: usize,
}

/// The most that is alive at once.
pub(super) fn max_live_bytes(buffers: &[Buffer]) -> usize {
    let mut changes: Vec<(u32, bool, usize)> = Vec::with_capacity(2 * buffers.len());
    for buffer in buffers {
        changes.push((buffer.upper, false, buffer.len));
        changes.push((buffer.lower, true, buffer.len));
    }
    // Ends before beginnings.
    changes.sort_unstable();
    let (mut live, mut most) = (0_usize, 0);
    for (_, begins, len) in changes {
        live = if begins { live + len } else { live - len };
        most = most.max(live);
    }
    most
}

/// Places the largest first, each as low as what is placed already permits.
pub(super) fn place(buffers: &[Buffer], _granule_bytes: usize) -> Placed {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(buffers[at].len), buffers[at].lower));
    let mut offsets = vec![0; buffers.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut peak_bytes = 0;
    for at in order {
        let buffer = buffers[at];
        let mut offset = 0;
        for &other in &placed {
            let beside = &buffers[other];
            if beside.lower >= buffer.upper || buffer.lower >= beside.upper {
                continue;
            }
            if offsets[other] >= offset + buffer.len {
                break;
            }
            offset = offset.max(offsets[other] + beside.len);
        }
        offsets[at] = offset;
        peak_bytes = peak_bytes.max(offset + buffer.len);
        let rank = placed.partition_point(|&other| offsets[other] <= offset);
        placed.insert(rank, at);
    }
    Placed { offsets, peak_bytes }
}
