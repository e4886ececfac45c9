//! A growing pool under batches that grow.

use candle_core::{DType, Tensor};
use candle_mempool::MemPool;

use crate::weights::tensor;

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn batches_that_double_grow_the_pool_and_move_nothing() {
    let _alone = crate::alone();
    const MIB: usize = 1 << 20;
    for factor in [1.5, 2.0] {
        let conf = format!("initial_size_mb:8,growth_factor:{factor},headroom_percent:10");
        let pool = MemPool::builder(&crate::device()).conf(&conf).unwrap().build().unwrap();
        assert_eq!(pool.stats().reserved.current, 8 * MIB);
        let weights = [tensor(1, (1024, 1024), 0.05).unwrap(), tensor(2, (1024, 1024), 0.05).unwrap()];
        let forward = |batch: usize| -> candle_core::Result<Tensor> {
            let x = tensor(batch as u64, (batch * 16, 1024), 1.0)?;
            x.matmul(&weights[0])?.gelu()?.matmul(&weights[1])
        };
        let mut kept: Vec<(Tensor, Vec<u32>)> = Vec::new();
        let mut reserved = pool.stats().reserved.current;
        for batch in [32, 64, 128] {
            let expected = bits(&forward(batch).unwrap());
            let result = pool.with(|| forward(batch)).unwrap();
            assert_eq!(bits(&result), expected);
            kept.push((result, expected));
            let (stats, now) = (pool.stats(), pool.stats().reserved.current);
            assert!(now == reserved || now as f64 >= reserved as f64 * factor * 0.99, "{reserved} to {now}");
            reserved = now;
            // The same batch again finds its memory there.
            drop(pool.with(|| forward(batch)).unwrap());
            drop(pool.with(|| forward(batch)).unwrap());
            assert!(pool.stats().growths <= stats.growths + 1);
            kept.iter().for_each(|(kept, expected)| assert_eq!(&bits(kept), expected));
        }
        let stats = pool.stats();
        assert!((2..=6).contains(&stats.growths), "{} growths with {factor}", stats.growths);
        assert_eq!(kept[0].0.dtype(), DType::F32);
        pool.validate().unwrap();
    }
}
