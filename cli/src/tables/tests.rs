use super::*;
use crate::trace;

/// Steps in which a large block comes and goes and a small one stays.
fn steps(name_of_first: u64, bytes: usize) -> Vec<Event> {
    let mut text = "op,id,bytes,stream\n".to_owned();
    for step in 0..40 {
        let id = name_of_first + 2 * step;
        text += &format!("a,{id},{bytes},0\nf,{id},,\na,{},1600000,0\ns,{step},,\n", id + 1);
    }
    trace::parse(text.as_bytes()).unwrap().events
}

fn measured(traces: &[(&str, Vec<Event>)], more: Vec<Row>) -> Tables {
    let mut tables = Tables::new(more);
    for (name, events) in traces {
        let column = Column::measure(name, events, tables.rows(), true, |_| {}, |_| {}).unwrap();
        tables.push(column);
    }
    tables
}

/// The cells behind the first one, in the line that begins with `first`, of the table under `title`.
fn cells(text: &str, title: &str, first: &str) -> Vec<String> {
    let table = &text[text.find(title).unwrap_or_else(|| panic!("no table {title:?} in {text}"))..];
    let line = table.lines().find(|line| line.starts_with(&format!("| {first} |"))).unwrap();
    line.trim_matches('|').split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn the_figures_are_those_of_a_replay() {
    let traces = [("one", steps(0, 30 << 20)), ("other", steps(100, 5 << 20))];
    let more = vec![Row::parse("policy:buckets,slack_percent:off").unwrap()];
    let tables = measured(&traces, more);
    let text = tables.to_string();
    for (at, row) in tables.rows().iter().enumerate() {
        let (mut fragmentation, mut hits, mut maps) = (Vec::new(), Vec::new(), Vec::new());
        for (column, (name, events)) in tables.columns.iter().zip(&traces) {
            let options = Options { conf: row.conf.clone(), min_capacity: true, ..Options::default() };
            let mut expected = replay::replay(name, events, &options, |_| {}).unwrap();
            fragmentation.push(100.0 * expected.fragmentation);
            hits.push(100.0 * expected.hit_rate);
            maps.push(expected.map_calls);
            let report = &column.reports[at];
            assert!(report.ns_per_op > 0.0);
            // Times are never the same twice.
            (expected.ns_per_op, expected.ns_p999, expected.ns_max) =
                (report.ns_per_op, report.ns_p999, report.ns_max);
            assert_eq!(*report, expected);
        }
        let shown = |title| cells(&text, title, &row.label);
        let number = |cell: &String| cell.trim_end_matches('%').parse::<f64>().unwrap();
        for (title, expected) in [("Fragmentation", fragmentation), ("Hit rate", hits)] {
            for (cell, expected) in shown(title).iter().zip(expected) {
                assert!(
                    (number(cell) - expected).abs() <= 0.0501,
                    "{title} {}: {cell}, {expected}",
                    row.label
                );
            }
        }
        for (cell, expected) in shown("Map calls").iter().zip(maps) {
            assert!(cell.starts_with(&format!("{expected} (")), "{cell}");
        }
        assert_eq!(shown("Bookkeeping").len(), 2);
        assert!(shown("Smallest device").iter().all(|cell| number(cell) >= 1.0));
    }
}

#[test]
fn the_build_up_goes_from_memory_for_each_tensor_to_moving() {
    let tables = measured(&[("one", steps(0, 30 << 20))], Vec::new());
    let column = &tables.columns[0];
    // 39 survivors of earlier steps, rounded, the large block, and the survivor of the last step.
    let needed = 40 * 1_600_000_usize.next_multiple_of(512) + (30 << 20);
    assert_eq!(column.preallocated_bytes, needed.next_multiple_of(2 << 20));
    let steps = tables.build_up(column);
    assert_eq!(steps[0].reserved_bytes, column.preallocated_bytes);
    for (step, row) in steps[1..].iter().zip([SAME_SIZE, BEST_FIT, MOVING]) {
        let report = tables.report(column, row);
        assert_eq!(
            (step.reserved_bytes, step.fragmentation),
            (report.peak_reserved_bytes, report.fragmentation)
        );
    }
    let [shown] = cells(&tables.to_string(), "Step by step", "preallocation").try_into().unwrap();
    assert!(shown.starts_with(&format!("{} (", column.preallocated_bytes >> 20)), "{shown}");
}

#[test]
fn the_usual_advice_stands_beside_the_runs_that_it_speaks_of() {
    let events = steps(0, 30 << 20);
    let text = measured(&[("another", events.clone())], Vec::new()).to_string();
    assert!(!text.contains("usual advice"), "{text}");
    let tables = measured(&[("mixed_load", events)], Vec::new());
    let text = tables.to_string();
    let shown = cells(&text, "usual advice", "mixed");
    assert_eq!(shown[..2], ["25% -> 5%", "mixed_load"]);
    assert_eq!(shown[2..3], cells(&text, "Fragmentation", "torch")[..]);
    assert_eq!(shown[3..4], cells(&text, "Fragmentation", "pages")[..]);
    assert_eq!(shown[4..5], cells(&text, "Fragmentation", "pages, mode:moving")[..]);
    assert!(!text.contains("ResNet-50"));
}

#[test]
fn a_claim_holds_when_its_end_is_reached() {
    let [_, _, claim] = claims::CLAIMS;
    assert_eq!(
        claim.verdict(38.8, 4.9, 1.0),
        "`torch` wastes more than claimed; the end is reached without moving"
    );
    assert_eq!(
        claim.verdict(20.0, 5.1, 1.0),
        "`torch` wastes less than claimed; the end is reached with moving only"
    );
    assert_eq!(claim.verdict(38.8, 5.2, 5.1), "`torch` wastes more than claimed; the end is not reached");
}

#[test]
fn a_row_with_options_of_another_policy_is_refused() {
    assert_eq!(Row::parse("policy:pages, mode:moving").unwrap().label, "pages, mode:moving");
    for wrong in ["policy:buddy,mode:moving", "policy:fast", "slack"] {
        assert!(Row::parse(wrong).is_err(), "{wrong}");
    }
}
