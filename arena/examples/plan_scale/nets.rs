//! Buffers as large programs have them: the example measures on them, and the planner's tests share them.

use super::Buffer;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// A net that is trained, with any sizes from 4 bytes to 64 MiB. A layer has nine buffers or so: weights, outputs
/// that wait for its way back, some that live for a moment, and one that a layer further on adds.
pub fn trained_net(layers: u64, seed: u64) -> Vec<Buffer> {
    let mut random = StdRng::seed_from_u64(seed);
    let end = 8 * layers;
    let mut buffers = Vec::new();
    for layer in 0..layers {
        let (there, back) = (4 * layer, end - 4 * layer);
        let mut size = || 2.0_f64.powf(random.random_range(2.0..26.0)) as usize;
        buffers.push(Buffer::new(0, end, size()));
        buffers.push(Buffer::new(there, back, size()));
        buffers.push(Buffer::new(there + 1, back - 1, size()));
        for at in 0..3 {
            buffers.push(Buffer::new(there + at, there + at + 2, size()));
            buffers.push(Buffer::new(back - 3 + at, back - 1 + at, size()));
        }
        let skip = 1 + 4 * random.random_range(0..20);
        buffers.push(Buffer::new(there, (there + skip).min(back), 1 << 20));
    }
    buffers
}

/// A decoder that is trained: blocks of few widths with residuals, an MLP four times as wide, gradients of the
/// outputs that live for a moment and gradients of the weights that live until the end. Twelve buffers a block.
pub fn trained_decoder(blocks: u64, seed: u64) -> Vec<Buffer> {
    let mut random = StdRng::seed_from_u64(seed);
    let end = 16 * blocks;
    let widths: Vec<usize> =
        (0..8).map(|_| (1 << random.random_range(14..20)) * random.random_range(1..4)).collect();
    let mut buffers = Vec::new();
    for block in 0..blocks {
        let wide = widths[(block * 8 / blocks) as usize];
        let (there, back) = (8 * block, end - 8 * block);
        let mut push = |lower, upper, size| buffers.push(Buffer::new(lower, upper, size));
        push(there, back, wide);
        push(there + 1, back - 2, 4 * wide);
        push(there + 2, back - 3, wide / 64 + 16 * random.random_range(0..64));
        push(there, there + 8, wide);
        push(there + 1, there + 3, 4 * wide);
        push(there + 2, there + 5, 4 * wide);
        push(there + 3, there + 4, random.random_range(1..wide));
        push(back - 8, back, wide);
        push(back - 7, back - 5, 4 * wide);
        push(back - 6, back - 3, 4 * wide);
        push(back - 4, back - 2, wide);
        push(back - 3, end, wide / 2);
    }
    buffers
}

/// Lifetimes between any two times, and any sizes up to 1 MiB: half of all live at the fullest time.
pub fn random_lifetimes(count: u64, seed: u64) -> Vec<Buffer> {
    let mut random = StdRng::seed_from_u64(seed);
    let buffer = |_| {
        let (one, other) = (random.random_range(0..count), random.random_range(0..count));
        Buffer::new(one.min(other), one.max(other) + 1, random.random_range(1..1 << 20))
    };
    (0..count).map(buffer).collect()
}

/// Lifetimes that are mostly short, and sometimes as long as all: no section is much fuller than others.
pub fn short_lifetimes(count: u64, seed: u64) -> Vec<Buffer> {
    let mut random = StdRng::seed_from_u64(seed);
    let buffer = |_| {
        let lower = random.random_range(0..count);
        let length = random.random_range(0.0..1.0_f64).powf(-1.0 / 0.7) as u64 % count;
        Buffer::new(lower, lower + 1 + length, 2.0_f64.powf(random.random_range(0.0..20.0)) as usize)
    };
    (0..count).map(buffer).collect()
}
