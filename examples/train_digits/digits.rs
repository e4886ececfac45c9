//! The handwritten digits: the gzipped CSV that is compiled in, and its parser.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;

/// Width and height of an image.
pub(crate) const SIDE: usize = 8;
/// Pixels in an image.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// The digits 0 to 9.
pub(crate) const CLASSES: usize = 10;
/// Each pixel counts the inked cells of a 4x4 block, so 16 is the largest value.
const MAX_INK: u8 = 16;

const DATA: &[u8] = include_bytes!("digits.csv.gz");
const IMAGES: usize = 1797;

/// Images scaled to 0..=1, row by row and back to back, and the digit each shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digits {
    pub(crate) pixels: Vec<f32>,
    pub(crate) labels: Vec<u32>,
}

impl Digits {
    /// The set that is compiled in.
    pub(crate) fn bundled() -> Result<Self> {
        let mut text = String::new();
        GzDecoder::new(DATA).read_to_string(&mut text).context("unpacking the bundled digits.csv.gz")?;
        let digits = Self::parse(&text).context("reading the bundled digits.csv.gz")?;
        ensure!(
            digits.len() == IMAGES,
            "the bundled digits.csv.gz holds {} images, expected {IMAGES}",
            digits.len()
        );
        Ok(digits)
    }

    /// Reads lines of 64 pixels (0 to 16) and a label (0 to 9), separated by commas.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut digits = Self::default();
        for (index, line) in text.lines().enumerate() {
            digits.push_line(line).with_context(|| format!("line {}", index + 1))?;
        }
        Ok(digits)
    }

    fn push_line(&mut self, line: &str) -> Result<()> {
        let mut fields = 0;
        let mut label = None;
        for field in line.split(',') {
            let value: u8 = field
                .trim()
                .parse()
                .with_context(|| format!("field {} is {field:?}, not a number", fields + 1))?;
            match fields {
                0..PIXELS if value <= MAX_INK => {
                    self.pixels.push(f32::from(value) / f32::from(MAX_INK));
                }
                0..PIXELS => bail!("pixel {} is {value}, above {MAX_INK}", fields + 1),
                PIXELS => label = Some(u32::from(value)),
                _ => {}
            }
            fields += 1;
        }
        ensure!(fields == PIXELS + 1, "{fields} fields, expected {} pixels and a label", PIXELS);
        let label = label.context("no label")?;
        ensure!((label as usize) < CLASSES, "label {label} is not a digit from 0 to 9");
        self.labels.push(label);
        Ok(())
    }

    /// How many images there are.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The pixels of image `index`.
    pub(crate) fn image(&self, index: usize) -> &[f32] {
        &self.pixels[index * PIXELS..(index + 1) * PIXELS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pixel: u32, label: u32) -> String {
        let mut fields = vec![pixel.to_string(); PIXELS];
        fields.push(label.to_string());
        fields.join(",")
    }

    #[test]
    fn the_bundled_set_is_whole_and_holds_every_digit() {
        let digits = Digits::bundled().unwrap();
        assert_eq!(digits.len(), IMAGES);
        assert_eq!(digits.pixels.len(), IMAGES * PIXELS);
        for class in 0..CLASSES as u32 {
            let count = digits.labels.iter().filter(|&&l| l == class).count();
            assert!((170..190).contains(&count), "{count} images of {class}");
        }
    }

    #[test]
    fn pixels_are_scaled_to_one() {
        let digits = Digits::parse(&format!("{}\n{}\n", line(16, 3), line(4, 9))).unwrap();
        assert_eq!(digits.labels, [3, 9]);
        assert!(digits.image(0).iter().all(|&p| p == 1.0));
        assert!(digits.image(1).iter().all(|&p| p == 0.25));
    }

    #[test]
    fn errors_name_the_line_and_the_fault() {
        let error = |text: &str| format!("{:#}", Digits::parse(text).unwrap_err());
        let short = format!("{}\n1,2,3", line(0, 0));
        assert!(error(&short).contains("line 2: 3 fields"), "{}", error(&short));
        assert!(error(&line(17, 0)).contains("pixel 1 is 17"));
        assert!(error(&line(0, 10)).contains("label 10"));
        assert!(error("x").contains("field 1 is \"x\""));
        let long = format!("{},1", line(0, 0));
        assert!(error(&long).contains("66 fields"));
    }
}
