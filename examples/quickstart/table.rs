//! The table that the quickstart ends with.

use std::fmt::Write as _;

use mempool_examples::{human_bytes, median_ms};

use crate::compare::{Comparison, Side};

/// Two lines for each program: without and with its pool.
pub(crate) fn render(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    line(
        &mut text,
        ["program", "", "median step", "speed-up", "page faults", "peak reserved", "fragmentation", "hits"],
    );
    for Comparison { program, without, with, pool } in comparisons {
        let (before, after) = (median_ms(&without.times), median_ms(&with.times));
        let (step, faults) = (format!("{before:.2} ms"), faults_a_step(without));
        line(&mut text, [program, "no pool", &step, "", &faults, "", "", ""]);
        line(
            &mut text,
            [
                "",
                "pool",
                &format!("{after:.2} ms"),
                &format!("{:.2}x", before / after),
                &faults_a_step(with),
                &human_bytes(pool.reserved.peak),
                &format!("{:.1} %", 100.0 * pool.run_fragmentation()),
                &format!("{:.2} %", 100.0 * pool.hit_rate()),
            ],
        );
    }
    text.push_str(
        "\nPage faults: of the median step. Fragmentation: 1 - peak requested / peak reserved.\n\
         Hits: requests served from memory that the pool had already, warm-up included.\n",
    );
    text
}

fn line(text: &mut String, cells: [&str; 8]) {
    let [program, side, cells @ ..] = cells;
    // Writing to a string does not fail.
    let _ = write!(text, "{program:<14} {side:<8}");
    for cell in cells {
        let _ = write!(text, " {cell:>13}");
    }
    while text.ends_with(' ') {
        text.pop();
    }
    text.push('\n');
}

fn faults_a_step(side: &Side) -> String {
    let mut faults = side.faults.clone();
    faults.sort_unstable();
    faults.get(faults.len() / 2).map_or_else(|| "-".to_owned(), u64::to_string)
}

#[cfg(test)]
mod tests {
    use super::{faults_a_step, line};
    use crate::compare::Side;

    #[test]
    fn the_median_step_counts() {
        let side = Side { times: Vec::new(), faults: vec![900, 3, 5] };
        assert_eq!(faults_a_step(&side), "5");
        assert_eq!(faults_a_step(&Side::default()), "-");
    }

    #[test]
    fn lines_end_without_blanks() {
        let mut text = String::new();
        line(&mut text, ["a", "b", "c", "", "", "", "", ""]);
        assert!(text.ends_with("c\n"), "{text:?}");
    }
}
