//! Advice on a device's pool.

use mempool_pools::advice::{AdviceOptions, Evidence};
use mempool_pools::device::Stream;
use mempool_pools::{HistoryOptions, record_history, stop_history};

use crate::history::alone;
use crate::support::{MIB, Machine};

const OWN: Stream = Stream::PER_THREAD;

#[test]
fn a_devices_history_is_replayed_with_its_memory_as_the_limit() {
    let _alone = alone();
    let machine = Machine::small(64);
    record_history(HistoryOptions::default()).unwrap();
    let pool = machine.device.pool_builder().build().unwrap();
    for step in 0..60 {
        let one = pool.with(|| machine.allocate((1 + step % 5) * MIB, OWN));
        let other = pool.with(|| machine.allocate(3 * MIB, OWN));
        one.free(OWN);
        other.free(OWN);
    }
    let advice = pool.advise(&AdviceOptions::default()).unwrap();
    stop_history();
    let Evidence::Run { allocations: 120, .. } = advice.evidence else { panic!("{advice}") };
    assert_eq!(advice.sizes.peak_requested_bytes, 8 * MIB);
    // The policies that double their regions or round to powers of two fit as well.
    let pages = advice.predictions.iter().find(|policy| policy.conf == "policy:segments");
    assert!(pages.is_some_and(|policy| policy.completes), "{advice}");
    machine.check();
}
