//! One layer of attention, and sessions with caches.

use candle_core::{DType, Device, Result, Tensor};
use candle_mempool::{BufferSet, MemPool};
use candle_nn::ops::softmax_last_dim;
use mempool_examples::BitDigest;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How large the service is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) sessions: usize,
    pub(crate) width: usize,
    pub(crate) longest: usize,
}

/// A session: its cache is the buffer of its name.
struct Session {
    name: String,
    length: usize,
    /// Tokens that it has.
    filled: usize,
    /// What it decoded last, `(1, width)`.
    token: Tensor,
}

/// See the module's text.
pub(crate) struct Service {
    sizes: Sizes,
    device: Device,
    pool: MemPool,
    pub(crate) caches: BufferSet,
    /// Query, key, value and output, each `(width, width)`.
    weights: [Tensor; 4],
    sessions: Vec<Session>,
    /// What ended sessions decoded last.
    ended: BitDigest,
    random: StdRng,
    /// Sessions that began.
    pub(crate) served: usize,
}

/// A matrix of small numbers, the same in every run.
fn matrix(seed: u64, rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let mut random = StdRng::seed_from_u64(seed);
    let scale = (3.0 / rows as f32).sqrt();
    let numbers: Vec<f32> = (0..rows * columns).map(|_| random.random_range(-scale..scale)).collect();
    Tensor::from_vec(numbers, (rows, columns), device)
}

impl Service {
    pub(crate) fn new(sizes: Sizes, pool: MemPool, caches: BufferSet, device: &Device) -> Result<Self> {
        let weight = |seed| matrix(seed, sizes.width, sizes.width, device);
        let mut service = Self {
            sizes,
            device: device.clone(),
            pool,
            caches,
            weights: [weight(1)?, weight(2)?, weight(3)?, weight(4)?],
            sessions: Vec::new(),
            ended: BitDigest::new(),
            random: StdRng::seed_from_u64(5),
            served: 0,
        };
        for _ in 0..sizes.sessions {
            service.begin_session()?;
        }
        Ok(service)
    }

    fn begin_session(&mut self) -> Result<()> {
        let Sizes { width, longest, .. } = self.sizes;
        self.served += 1;
        let name = format!("session {}", self.served);
        let length = self.random.random_range((longest / 16).max(1)..=longest);
        // Sessions begin in the middle, as if somebody had given them a text.
        let filled = self.random.random_range(0..length);
        self.caches.add(&name, (2, length, width), DType::F32)?;
        let device = &self.device;
        drop(self.caches.write(&name, || Tensor::zeros((2, length, width), DType::F32, device))?);
        let token = matrix(100 + self.served as u64, 1, width, device)?;
        self.sessions.push(Session { name, length, filled, token });
        Ok(())
    }

    /// Decodes a token for each session. Sessions that are full end, and others begin.
    pub(crate) fn step(&mut self) -> Result<()> {
        let [query, key, value, output] = &self.weights;
        for session in &mut self.sessions {
            let cache = self.caches.tensor(&session.name)?;
            session.token = self.pool.with(|| {
                let (token, at) = (&session.token, session.filled);
                let width = token.dim(1)?;
                let part = |k: usize| cache.narrow(0, k, 1)?.squeeze(0);
                let (keys, values) = (part(0)?, part(1)?);
                // Into the cache itself.
                let row = |weight: &Tensor| token.matmul(weight)?.reshape((1, 1, width));
                let both = Tensor::cat(&[row(key)?, row(value)?], 0)?;
                cache.slice_set(&both, 1, at)?;
                let (keys, values) = (keys.narrow(0, 0, at + 1)?, values.narrow(0, 0, at + 1)?);
                let scores = (token.matmul(query)?.matmul(&keys.t()?)? / (width as f64).sqrt())?;
                let found = softmax_last_dim(&scores)?.matmul(&values)?.matmul(output)?;
                (found + token)?.tanh()
            })?;
            session.filled += 1;
        }
        for at in (0..self.sessions.len()).rev() {
            if self.sessions[at].filled == self.sessions[at].length {
                let ended = self.sessions.remove(at);
                self.ended.update(&ended.token.flatten_all()?.to_vec1::<f32>()?);
                self.caches.remove(&ended.name)?;
                self.begin_session()?;
            }
        }
        Ok(())
    }

    /// A digest of everything that was decoded last.
    pub(crate) fn decoded(&self) -> Result<BitDigest> {
        let mut digest = self.ended;
        for session in &self.sessions {
            digest.update(&session.token.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_decode_the_same_wherever_their_caches_lie() {
        let sizes = Sizes { sessions: 5, width: 32, longest: 40 };
        let run = |moves: bool| {
            let pool = MemPool::new(&Device::Cpu).unwrap();
            let caches = BufferSet::new(&pool);
            let mut service = Service::new(sizes, pool, caches, &Device::Cpu).unwrap();
            for _ in 0..120 {
                service.step().unwrap();
                if moves {
                    service.caches.defrag_if(|_| true).unwrap();
                }
            }
            (service.decoded().unwrap(), service.served, service.caches.compaction_stats().moved)
        };
        let (left, moved) = (run(false), run(true));
        assert_eq!((left.0, left.1), (moved.0, moved.1));
        assert!(left.1 > 15 && moved.2 > 10, "{} sessions, {} moves", left.1, moved.2);
    }
}
