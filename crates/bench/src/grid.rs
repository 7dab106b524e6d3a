//! A table for a terminal: columns as wide as their widest cell, in as many blocks as a maximum
//! width needs.

use std::fmt::Write;

/// Widest line of everything that is printed.
pub(crate) const WIDTH_MAX: usize = 120;
/// Between two columns.
const GAP: usize = 2;

/// Rows of cells below a header. The first column names the row, and comes again in each block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grid {
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    pub(crate) fn new(header: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Each line with its end; empty cells are dashes.
    pub(crate) fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain(self.header.get(column)).map(|it| it.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut text = String::new();
        let mut from = 1;
        loop {
            let mut to = from;
            let mut total = widths.first().copied().unwrap_or_default();
            while to < widths.len() && (to == from || total + GAP + widths[to] <= WIDTH_MAX) {
                total += GAP + widths[to];
                to += 1;
            }
            if from > 1 {
                text.push('\n');
            }
            let columns: Vec<usize> = std::iter::once(0).chain(from..to).collect();
            self.block(&mut text, &columns, &widths);
            from = to;
            if from >= widths.len() {
                return text;
            }
        }
    }

    fn block(&self, text: &mut String, columns: &[usize], widths: &[usize]) {
        for row in std::iter::once(&self.header).chain(&self.rows) {
            let mut line = String::new();
            for column in columns {
                let cell = row.get(*column).map_or("", String::as_str);
                let cell = if cell.is_empty() { "-" } else { cell };
                let width = widths[*column] + GAP;
                // Writing to a String cannot fail.
                let _ = write!(line, "{cell:<width$}");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
}

/// Text in lines of at most the width, the first after `first`, the others after `others`.
pub(crate) fn wrapped(text: &str, first: &str, others: &str) -> String {
    let mut lines = String::new();
    let mut line = first.to_owned();
    let mut is_begun = false;
    for word in text.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > WIDTH_MAX {
            lines += &line;
            lines.push('\n');
            line = others.to_owned();
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line += word;
        is_begun = true;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_cells_show() {
        let mut grid = Grid::new(["ONE", "TWO"]);
        grid.rows.push(vec!["a".into(), "longer".into()]);
        grid.rows.push(vec![String::new(), "b".into()]);
        assert_eq!(grid.text(), "ONE  TWO\na    longer\n-    b\n");
    }

    #[test]
    fn what_does_not_fit_comes_below() {
        let wide = "x".repeat(60);
        let mut grid = Grid::new(["MODE", "A", "B", "C"]);
        grid.rows.push(vec!["none".into(), wide.clone(), "b".into(), wide.clone()]);
        let text = grid.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[3].starts_with("MODE  C") && lines[4].starts_with("none  x"), "{text}");
        assert!(lines.iter().all(|it| it.chars().count() <= WIDTH_MAX));
    }

    #[test]
    fn words_are_wrapped() {
        let text = wrapped(&"word ".repeat(50), "* ", "  ");
        assert!(text.lines().all(|it| it.chars().count() <= WIDTH_MAX), "{text}");
        assert!(text.lines().skip(1).all(|it| it.starts_with("  word")), "{text}");
    }
}
