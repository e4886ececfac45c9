//! Plain tables: aligned columns in Markdown, so that they read in a terminal and paste into one.

/// Renders a table. The first column is text and leans left, all others are numbers and lean right.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        // Markdown wants three dashes under each heading.
        widest.max(header[column].chars().count()).max(3)
    };
    let widths: Vec<_> = (0..header.len()).map(width).collect();

    let mut text = line(header.iter().copied(), &widths);
    text.push('|');
    for (column, width) in widths.iter().enumerate() {
        text.push_str(&match column {
            0 => format!(" {} |", "-".repeat(*width)),
            _ => format!(" {}: |", "-".repeat(width - 1)),
        });
    }
    text.push('\n');
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str), &widths));
    }
    text
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let mut text = String::from("|");
    for (column, (cell, width)) in cells.zip(widths).enumerate() {
        text.push_str(&match column {
            0 => format!(" {cell:<width$} |"),
            _ => format!(" {cell:>width$} |"),
        });
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::render;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["short".to_owned(), "1.0".to_owned()],
            vec!["much longer".to_owned(), "12345.0".to_owned()],
        ];
        let expected = "\
| workload    |      ms |
| ----------- | ------: |
| short       |     1.0 |
| much longer | 12345.0 |
";
        assert_eq!(render(&["workload", "ms"], &rows), expected);
    }

    #[test]
    fn a_table_without_rows_is_its_header() {
        assert_eq!(render(&["a", "b"], &[]), "| a   |   b |\n| --- | --: |\n");
    }
}
