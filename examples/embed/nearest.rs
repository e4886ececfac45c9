//! Finding the pairs of sentences whose embeddings point most nearly the same way.

/// Two sentences, by index, and the cosine between their embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pair {
    pub(crate) first: usize,
    pub(crate) second: usize,
    pub(crate) cosine: f32,
}

/// The `top` pairs of highest cosine, nearest first. `embeddings` holds unit vectors of `width`
/// values back to back, so a dot product is the cosine.
pub(crate) fn nearest_pairs(embeddings: &[f32], width: usize, top: usize) -> Vec<Pair> {
    let vectors: Vec<&[f32]> = embeddings.chunks_exact(width).collect();
    let mut pairs = Vec::with_capacity(vectors.len() * vectors.len().saturating_sub(1) / 2);
    for (first, a) in vectors.iter().enumerate() {
        for (second, b) in vectors.iter().enumerate().skip(first + 1) {
            let cosine = a.iter().zip(*b).map(|(x, y)| x * y).sum();
            pairs.push(Pair { first, second, cosine });
        }
    }
    // A stable sort: pairs of equal cosine stay in the order of their lines.
    pairs.sort_by(|a, b| b.cosine.total_cmp(&a.cosine));
    pairs.truncate(top);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_come_first_and_ties_keep_line_order() {
        // Right, up, right again, and half way between.
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let embeddings = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, half, half];
        let pairs = nearest_pairs(&embeddings, 2, 10);
        let order: Vec<_> = pairs.iter().map(|p| (p.first, p.second)).collect();
        assert_eq!(order, [(0, 2), (0, 3), (1, 3), (2, 3), (0, 1), (1, 2)]);
        assert_eq!(pairs[0].cosine, 1.0);
        assert_eq!(pairs[5].cosine, 0.0);
    }

    #[test]
    fn top_limits_the_list() {
        assert_eq!(nearest_pairs(&[1.0, 2.0, 3.0], 1, 2).len(), 2);
        assert_eq!(nearest_pairs(&[1.0, 2.0, 3.0], 1, 0), []);
        assert_eq!(nearest_pairs(&[1.0], 1, 5), []);
    }
}
