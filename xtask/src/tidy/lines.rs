//! Checks on lines: their width, unfinished work, and duplicated blocks.

use std::collections::HashMap;

use super::source::SourceFile;

/// How many equal lines in a row make a duplicate.
const BLOCK: usize = 8;

/// Width, and marks of unfinished work without a reason.
pub(super) fn check(file: &SourceFile, columns: usize, wrong: &mut Vec<String>) {
    for (number, line) in file.text.lines().enumerate() {
        let place = format!("{}:{}", file.path, number + 1);
        let width = line.chars().count();
        if width > columns {
            wrong.push(format!("{place}: {width} columns; at most {columns}"));
        }
        let mark = ["TO", "DO"].concat();
        if let Some(at) = line.find(&mark)
            && !line[at..].starts_with(&format!("{mark}("))
        {
            wrong.push(format!("{place}: {mark} without a reason; write {mark}(reason)"));
        }
    }
}

/// The share of code lines that lie in a block standing elsewhere too, and where.
pub(super) fn duplicates(files: &[SourceFile]) -> (f64, Vec<String>) {
    let mut blocks: HashMap<String, Vec<(usize, usize)>> = HashMap::new();
    let codes: Vec<Vec<(usize, &str)>> = files.iter().map(code).collect();
    for (index, lines) in codes.iter().enumerate() {
        for start in 0..lines.len().saturating_sub(BLOCK - 1) {
            let text: Vec<&str> = lines[start..start + BLOCK].iter().map(|(_, l)| *l).collect();
            blocks.entry(text.join("\n")).or_default().push((index, start));
        }
    }
    let mut marked: Vec<Vec<bool>> = codes.iter().map(|lines| vec![false; lines.len()]).collect();
    let mut places = Vec::new();
    for standing in blocks.values().filter(|standing| standing.len() > 1) {
        for (index, start) in standing {
            marked[*index][*start..start + BLOCK].fill(true);
        }
        let name = |(index, start): &(usize, usize)| {
            format!("{}:{}", files[*index].path, codes[*index][*start].0)
        };
        places.push(standing.iter().map(name).collect::<Vec<_>>().join(" = "));
    }
    places.sort();
    let total: usize = codes.iter().map(Vec::len).sum();
    let repeated: usize = marked.iter().flatten().filter(|repeated| **repeated).count();
    (repeated as f64 * 100.0 / total.max(1) as f64, places)
}

/// The lines that carry code: no blanks, comments, imports or lone punctuation.
fn code(file: &SourceFile) -> Vec<(usize, &str)> {
    let numbered = file.text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    numbered
        .filter(|(_, line)| {
            line.chars().any(char::is_alphanumeric)
                && !line.starts_with("//")
                && !line.starts_with("use ")
        })
        .collect()
}
