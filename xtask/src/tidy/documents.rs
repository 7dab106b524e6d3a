//! The documents' lines: their width, and how much a table's cell holds.
//!
//! A table's row cannot be broken, so it may be wider; its cells must be short instead, because a
//! table holds facts and not prose. Generated reports of measurements are not checked.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

/// Columns of a line.
const MAX_COLUMNS: usize = 120;
/// Characters of a cell as it is shown: two lines of a table's column.
const MAX_CELL: usize = 120;
/// Reports of runs, which programs wrote.
const RECORDS: &str = "bench/runs/";

/// Checks every document that git knows or would take up.
pub(super) fn check(wrong: &mut Vec<String>) -> Result<()> {
    let listing = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"])
        .output()
        .context("list the documents with git")?;
    let listing = String::from_utf8(listing.stdout).context("file names are UTF-8")?;
    let mut looked_at = 0;
    for path in listing.lines().filter(|path| !path.starts_with(RECORDS)) {
        let Ok(text) = fs::read_to_string(path) else { continue };
        looked_at += 1;
        wrong
            .extend(faults(&text).into_iter().map(|(line, what)| format!("{path}:{line}: {what}")));
    }
    println!("documents: {looked_at} looked at");
    Ok(())
}

/// Lines, counted from 1, and what is wrong with each.
fn faults(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let mut fault = |what: String| found.push((number + 1, what));
        is_code ^= line.trim_start().starts_with("```");
        if !is_code && line.starts_with('|') {
            for cell in cells(line) {
                let length = shown(&cell);
                if length > MAX_CELL {
                    fault(format!("a cell of {length} characters; at most {MAX_CELL}"));
                }
            }
            continue;
        }
        let width = line.chars().count();
        if width > MAX_COLUMNS && !is_link(line) {
            fault(format!("{width} columns; at most {MAX_COLUMNS}"));
        }
    }
    found
}

/// The cells between a row's bars; a bar in code or after a backslash does not count.
fn cells(row: &str) -> Vec<String> {
    let (mut cells, mut cell) = (Vec::new(), String::new());
    let (mut is_code, mut is_escaped) = (false, false);
    for letter in row.chars() {
        is_code ^= letter == '`';
        if letter == '|' && !is_code && !is_escaped {
            cells.push(std::mem::take(&mut cell));
        } else {
            cell.push(letter);
        }
        is_escaped = letter == '\\';
    }
    cells
}

/// How many characters of a text a reader sees: a link shows its words.
fn shown(text: &str) -> usize {
    let (mut count, mut rest) = (0, text.trim());
    while let Some((before, after)) = rest.split_once("](") {
        count += before.chars().filter(|letter| *letter != '[').count();
        rest = after.split_once(')').map_or("", |(_target, after)| after);
    }
    count + rest.chars().count()
}

/// Whether a line is one link, which cannot be broken.
fn is_link(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '*', '-', '!']).trim_end();
    line.starts_with('[') && line.ends_with(')') && line.matches("](").count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[usize]) {
        let lines: Vec<usize> = faults(text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn a_line_has_a_width() {
        check(&"a".repeat(120), &[]);
        check(&format!("one\n{}\n", "word ".repeat(25)), &[2]);
        check(&format!("```\n{}\n```\n", "out ".repeat(40)), &[2]);
        check(&format!("[a document](https://{}.org)", "a".repeat(120)), &[]);
        check(&format!("See [a document](https://{}.org).", "a".repeat(120)), &[1]);
    }

    #[test]
    fn a_cell_has_a_length() {
        let (cell, long) = ("a".repeat(120), "a".repeat(121));
        check(&format!("| {cell} | {cell} |"), &[]);
        check(&format!("| b |\n|---|\n| {long} |"), &[3]);
        check(&format!("| [b](https://{long}.org) |"), &[]);
        check(&format!("| `{}|{}` |", "a".repeat(60), "a".repeat(60)), &[1]);
        check(&format!("| {}\\|{} |", "a".repeat(60), "a".repeat(60)), &[1]);
    }
}
