//! What is printed after training, and the checks that decide the exit status.

use anyhow::{Result, ensure};
use mempool_examples::median_ms;

use crate::run::Outcome;

/// One column for each run, headed by its name. Everything but the step time depends only on the settings.
pub(crate) fn print(names: &[&str], outcomes: &[Outcome]) {
    let cells = |label: &str, cell: &dyn Fn(&Outcome) -> String| {
        print!("{label:16}");
        for outcome in outcomes {
            print!("  {:>24}", cell(outcome));
        }
        println!();
    };
    print!("{:16}", "");
    for name in names {
        print!("  {name:>24}");
    }
    println!();
    cells("test accuracy", &|o| format!("{}/{} = {:.4} %", o.correct, o.tested, 100.0 * o.accuracy()));
    cells("test loss", &|o| with_bits(o.test_loss));
    cells("last train loss", &|o| with_bits(o.train_loss));
    cells("weights digest", &|o| o.weights.to_string());
    cells("steps", &|o| o.step_times.len().to_string());
    cells("median step", &|o| format!("{:.3} ms", median_ms(&o.step_times)));
}

/// The shortest decimal that reads back as the same value, and its bits.
fn with_bits(value: f32) -> String {
    format!("{value:e} {:08x}", value.to_bits())
}

/// Fails unless the two runs are the same in every bit.
pub(crate) fn check_same(off: &Outcome, on: &Outcome) -> Result<()> {
    ensure!(
        off.correct == on.correct && off.tested == on.tested,
        "accuracy differs: {}/{} without the pool, {}/{} with it",
        off.correct,
        off.tested,
        on.correct,
        on.tested
    );
    for (what, a, b) in
        [("test loss", off.test_loss, on.test_loss), ("last train loss", off.train_loss, on.train_loss)]
    {
        ensure!(
            a.to_bits() == b.to_bits(),
            "{what} differs: {} without the pool, {} with it",
            with_bits(a),
            with_bits(b)
        );
    }
    ensure!(
        off.weights == on.weights,
        "weights differ: digest {} without the pool, {} with it",
        off.weights,
        on.weights
    );
    Ok(())
}

/// Fails when fewer of the test images than `least` (a share, 0 to 1) were recognised.
pub(crate) fn check_accuracy(outcome: &Outcome, least: f64) -> Result<()> {
    ensure!(
        outcome.accuracy() >= least,
        "test accuracy is {:.2} % ({} of {}), below the {:.2} % asked for",
        100.0 * outcome.accuracy(),
        outcome.correct,
        outcome.tested,
        100.0 * least
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mempool_examples::BitDigest;

    fn outcome() -> Outcome {
        Outcome {
            train_loss: 0.5,
            test_loss: 0.25,
            correct: 97,
            tested: 100,
            weights: BitDigest::new(),
            step_times: Vec::new(),
        }
    }

    #[test]
    fn one_bit_of_loss_is_a_difference() {
        let mut other = outcome();
        assert!(check_same(&outcome(), &other).is_ok());
        other.test_loss = f32::from_bits(other.test_loss.to_bits() + 1);
        let error = check_same(&outcome(), &other).unwrap_err().to_string();
        assert!(error.contains("test loss differs"), "{error}");
    }

    #[test]
    fn weights_and_accuracy_are_compared() {
        let mut other = outcome();
        other.weights.update(&[1.0]);
        assert!(check_same(&outcome(), &other).is_err());
        let mut other = outcome();
        other.correct = 96;
        assert!(check_same(&outcome(), &other).is_err());
    }

    #[test]
    fn accuracy_at_the_limit_passes() {
        assert!(check_accuracy(&outcome(), 0.97).is_ok());
        let error = check_accuracy(&outcome(), 0.98).unwrap_err().to_string();
        assert!(error.contains("97.00 % (97 of 100)"), "{error}");
    }
}
