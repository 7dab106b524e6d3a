//! Columns for a terminal: as wide as their widest cell, two spaces apart.

use std::fmt::Write;

/// Lays out rows below a header. Trailing spaces are left away.
pub(crate) fn format(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let header = header.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
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
    fn columns_line_up_and_empty_cells_show() {
        let rows = vec![vec!["a".into(), "longer".into()], vec![String::new(), "b".into()]];
        assert_eq!(super::format(&["ONE", "TWO"], &rows), "ONE  TWO\na    longer\n-    b\n");
    }
}
