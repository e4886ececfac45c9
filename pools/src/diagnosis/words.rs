//! Figures in words.

use super::Site;

/// Bytes for people: three digits and a unit.
pub(super) fn size(bytes: usize) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { usize::from(value < 9.995) + 1 };
    let digits = digits.min(if value.fract().abs() < 0.005 { 0 } else { 2 });
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A share for people.
pub(super) fn percent(part: usize, whole: usize) -> String {
    let share = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    if share > 0.0 && share < 9.95 { format!("{share:.1}%") } else { format!("{share:.0}%") }
}

/// `1 block`, `2 blocks`.
pub(super) fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// The first of the sites, as a list.
pub(super) fn sites(sites: &[Site], most: usize) -> String {
    let named = sites.iter().take(most);
    let named: Vec<String> = named
        .map(|site| {
            format!("{} of {} in all from `{}`", count(site.blocks, "block"), size(site.bytes), site.name)
        })
        .collect();
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let mib = 1 << 20;
        for (bytes, expected) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (20 * mib + mib / 2, "20.5 MiB"),
            (412 * mib, "412 MiB"),
            (1000 * mib, "0.98 GiB"),
            (80 << 30, "80 GiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
        assert_eq!(
            (percent(1, 3), percent(1, 30), percent(0, 0)),
            ("33%".into(), "3.3%".into(), "0%".into())
        );
        assert_eq!((count(1, "block"), count(2, "block")), ("1 block".into(), "2 blocks".into()));
    }
}
