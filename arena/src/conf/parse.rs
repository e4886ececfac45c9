//! Options by name.
//!
//! The syntax is PyTorch's: keys and values with a colon between, and commas between the pairs.
//! Values are numbers, `True`, `False`, names, or lists in brackets.

use std::str::FromStr;

use super::{Conf, ConfError};
use crate::placement::pages::Mode;

impl FromStr for Conf {
    type Err = ConfError;

    fn from_str(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        for pair in Self::pairs(text) {
            let (key, value) = pair?;
            conf.set(key, value)?;
        }
        Ok(conf)
    }
}

impl Conf {
    /// All keys.
    pub const KEYS: [&'static str; 13] = [
        "policy",
        "mode",
        "separate_lifetimes",
        "allow_growth",
        "expandable_segments",
        "max_split_size_mb",
        "roundup_power2_divisions",
        "garbage_collection_threshold",
        "large_segment_size_mb",
        "small_limit_mb",
        "medium_limit_mb",
        "max_cached_mb",
        "slack_percent",
    ];

    /// The keys of `text` with their values: for those who have keys of their own beside these.
    ///
    /// Each is an [`ConfError::NotAPair`] where something has no colon.
    pub fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), ConfError>> {
        let mut depth = 0_usize;
        // A comma inside brackets does not end a pair.
        let parts = text.split(move |letter: char| {
            match letter {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            letter == ',' && depth == 0
        });
        parts.map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) =
                pair.split_once(':').ok_or_else(|| ConfError::NotAPair { pair: pair.to_owned() })?;
            Ok((key.trim(), value.trim()))
        })
    }

    /// Gives an option a value.
    ///
    /// # Errors
    /// [`ConfError::UnknownKey`], [`ConfError::Value`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfError> {
        let Some(key) = Self::KEYS.into_iter().find(|known| *known == key) else {
            return Err(ConfError::UnknownKey { key: key.to_owned(), known: Self::KEYS.to_vec() });
        };
        let wrong = |expected| ConfError::Value { key, value: value.to_owned(), expected };
        let flag = || parse_flag(value).ok_or_else(|| wrong("True or False"));
        match key {
            "policy" => self.policy = Some(value.parse()?),
            "mode" => {
                self.mode = Some(match value {
                    "moving" => Mode::Moving,
                    "on_pressure" => Mode::OnPressure,
                    _ => return Err(wrong("moving or on_pressure")),
                });
            }
            "separate_lifetimes" => self.separate_lifetimes = Some(flag()?),
            "allow_growth" => self.allow_growth = Some(flag()?),
            "expandable_segments" => self.expandable_segments = Some(flag()?),
            "max_split_size_mb" => {
                let bytes = parse_mebibytes(value).filter(|&bytes| bytes >= 20 << 20);
                self.max_split_bytes = Some(bytes.ok_or_else(|| wrong("a number from 20"))?);
            }
            "large_segment_size_mb" => {
                let bytes = parse_mebibytes(value).filter(|&bytes| bytes > 0 && bytes % (2 << 20) == 0);
                self.large_segment_bytes = Some(bytes.ok_or_else(|| wrong("an even number from 2"))?);
            }
            "small_limit_mb" | "medium_limit_mb" | "max_cached_mb" => {
                let bytes = Some(parse_mebibytes(value).ok_or_else(|| wrong("a number of MiB"))?);
                match key {
                    "small_limit_mb" => self.small_limit_bytes = bytes,
                    "medium_limit_mb" => self.medium_limit_bytes = bytes,
                    _ => self.max_cached_bytes = bytes,
                }
            }
            "slack_percent" => {
                self.slack_percent = Some(match value {
                    "off" => None,
                    number => Some(number.parse().map_err(|_| wrong("a number of percent, or off"))?),
                });
            }
            "garbage_collection_threshold" => {
                let share = value.parse().ok().filter(|&share: &f64| share > 0.0 && share < 1.0);
                let share = share.ok_or_else(|| wrong("a number between 0 and 1"))?;
                self.garbage_collection_threshold = Some(share);
            }
            "roundup_power2_divisions" => {
                let divisions = parse_divisions(value);
                let expected = "a power of two, or a list such as [64:8,256:2,>:1] by MiB";
                self.roundup_power2_divisions = Some(divisions.ok_or_else(|| wrong(expected))?);
            }
            _ => unreachable!("every known key is set"),
        }
        Ok(())
    }
}

/// `True` or `False`, as options spell them; `None` for anything else.
#[must_use]
pub fn parse_flag(value: &str) -> Option<bool> {
    match value {
        "True" | "true" => Some(true),
        "False" | "false" => Some(false),
        _ => None,
    }
}

/// A number of MiB, in bytes; `None` for anything else, and for more bytes than can be counted.
#[must_use]
pub fn parse_mebibytes(value: &str) -> Option<usize> {
    value.parse().ok().filter(|&mib: &usize| mib <= usize::MAX >> 20).map(|mib| mib << 20)
}

/// Rounding divisions: one number for all sizes, or a list of `MiB:number` with `>` for the rest.
fn parse_divisions(value: &str) -> Option<[u32; 16]> {
    let number = |text: &str| text.trim().parse().ok().filter(|&n: &u32| n == 0 || n.is_power_of_two());
    let Some(list) = value.strip_prefix('[') else { return Some([number(value)?; 16]) };
    let mut divisions = [0; 16];
    let mut next = 0;
    for pair in list.strip_suffix(']')?.split(',') {
        let (size, n) = pair.split_once(':')?;
        let n = number(n)?;
        let end = match size.trim() {
            ">" => divisions.len(),
            mib => {
                let mib: usize = mib.parse().ok().filter(|&mib: &usize| mib.is_power_of_two())?;
                (mib.trailing_zeros() as usize + 1).min(divisions.len())
            }
        };
        divisions.get_mut(next..end)?.fill(n);
        next = end;
    }
    Some(divisions)
}
