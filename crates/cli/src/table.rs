//! Columns for a terminal: as wide as their widest cell, two spaces apart. Cells hold names that
//! others chose, so control characters and line breaks in them are made harmless.

use std::fmt::Write;

use ambit_model::printable::printable;

/// Lays out rows below a header. Trailing spaces are left away.
pub(crate) fn format(header: &[&str], rows: &[Vec<String>]) -> String {
    let shown = |row: &Vec<String>| row.iter().map(|it| printable(it).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let header = header.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&header).chain(&rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let cell = if cell.is_empty() { "-" } else { cell };
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_foreign_name_commands_no_terminal() {
        let rows = vec![vec!["a\u{1b}[2J\n\u{9b}\u{202e}".into(), "b".into()]];
        let text = super::format(&["ONE", "TWO"], &rows);
        let expected = "ONE                            TWO\na\\u{1b}[2J\\u{a}\\u{9b}\\u{202e}  b\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn columns_line_up_and_empty_cells_show() {
        let rows = vec![vec!["a".into(), "longer".into()], vec![String::new(), "b".into()]];
        assert_eq!(super::format(&["ONE", "TWO"], &rows), "ONE  TWO\na    longer\n-    b\n");
    }
}
