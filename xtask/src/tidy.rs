//! Holds the house style and prints its scoreboard.
//!
//! Every rule is checked on the syntax tree, on lines or on the dependency graph. Every exception
//! is in [`exceptions`] with its reason. An exception that is no longer needed also fails the run.

mod crates;
mod documents;
mod exceptions;
mod graph;
mod lines;
mod modules;
mod sole_users;
mod source;
mod words;

use anyhow::{Result, bail};

use source::SourceFile;

const MAX_FUNCTION_LINES: usize = 70;
const MAX_FILE_LINES: usize = 800;
const MAX_COLUMNS: usize = 100;
const MIN_DOC_LINES_PER_100: usize = 20;
const MIN_PRIVATE_PERCENT: usize = 50;
const MAX_DUPLICATE_PERCENT: f64 = 6.0;
/// Crates whose documentation density is held.
const DOCUMENTED_CRATES: [&str; 4] = ["model", "wire", "tls", "net"];
/// Module names that say nothing.
const EMPTY_NAMES: [&str; 5] = ["util", "utils", "helpers", "common", "manager"];

/// Runs every check; fails with the list of all that is wrong.
pub(crate) fn run() -> Result<()> {
    let files = source::all()?;
    let mut wrong = Vec::new();
    let mut used = Vec::new();
    for file in &files {
        check_file(file, &mut wrong, &mut used);
    }
    for (key, _) in exceptions::LONG {
        if !used.contains(key) {
            wrong.push(format!("{key}: listed as an exception but within the bounds; remove it"));
        }
    }
    check_documentation(&files, &mut wrong);
    check_privacy(&files, &mut wrong);
    check_duplicates(&files, &mut wrong);
    words::check(&files, &mut wrong);
    sole_users::check(&files, &mut wrong);
    documents::check(&mut wrong)?;
    let imports = graph::check(&mut wrong)?;
    crates::check(&files, &imports, &mut wrong)?;
    if wrong.is_empty() {
        return Ok(());
    }
    for line in &wrong {
        eprintln!("tidy: {line}");
    }
    bail!("{} places are not tidy", wrong.len())
}

fn check_file(file: &SourceFile, wrong: &mut Vec<String>, used: &mut Vec<&'static str>) {
    let path = &file.path;
    if !file.text.starts_with("//!") {
        wrong.push(format!("{path}: open the file with //! and say what it is"));
    }
    let lines = file.lines_before_tests();
    if lines > MAX_FILE_LINES && !exceptions::allows(path, used) {
        wrong.push(format!("{path}: {lines} lines before tests; at most {MAX_FILE_LINES}"));
    }
    for function in &file.functions {
        let key = format!("{path}::{}", function.name);
        if function.lines > MAX_FUNCTION_LINES && !exceptions::allows(&key, used) {
            wrong.push(format!("{key}: {} lines; at most {MAX_FUNCTION_LINES}", function.lines));
        }
        if function.name.starts_with("get_") && !function.implements {
            wrong.push(format!("{key}: name it without get_"));
        }
    }
    wrong.extend(misnamed(path));
    if file.uses_unsafe && !path.starts_with("crates/net/src/sys") {
        wrong.push(format!("{path}: unsafe belongs in crates/net/src/sys"));
    }
    lines::check(file, MAX_COLUMNS, wrong);
}

/// Why a file must not have this name.
fn misnamed(path: &str) -> Option<String> {
    let stem = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    match stem {
        "mod" => Some(format!("{path}: lay modules out as x.rs beside x/")),
        _ if EMPTY_NAMES.contains(&stem) => {
            Some(format!("{path}: a file named {stem} says nothing about what it holds"))
        }
        _ => None,
    }
}

fn check_documentation(files: &[SourceFile], wrong: &mut Vec<String>) {
    for name in DOCUMENTED_CRATES {
        let of_crate = files.iter().filter(|f| f.krate() == name && f.is_library());
        let (docs, code) = of_crate.fold((0, 0), |(d, c), f| (d + f.doc_lines, c + f.code_lines));
        let density = docs * 100 / code.max(1);
        println!(
            "{name}: {density} doc lines per 100 code lines (at least {MIN_DOC_LINES_PER_100})"
        );
        if density < MIN_DOC_LINES_PER_100 {
            wrong.push(format!("crates/{name}: {density} doc lines per 100 code lines"));
        }
    }
}

fn check_privacy(files: &[SourceFile], wrong: &mut Vec<String>) {
    // A word that is not public would not be there.
    let library = files.iter().filter(|f| f.is_library() && f.krate() != words::HOME);
    let (open, narrow) = library.fold((0, 0), |(o, n), f| (o + f.pub_items, n + f.narrow_items));
    let percent = narrow * 100 / (open + narrow).max(1);
    println!("private: {percent} % of items with a pub are narrower than pub");
    if percent < MIN_PRIVATE_PERCENT {
        wrong.push(format!("{percent} % of pub items are pub(crate) or narrower; want 50 %"));
    }
}

fn check_duplicates(files: &[SourceFile], wrong: &mut Vec<String>) {
    let (percent, places) = lines::duplicates(files);
    println!("duplicated 8-line blocks: {percent:.1} % of code lines (below 6 %)");
    if percent >= MAX_DUPLICATE_PERCENT {
        let shown = places.iter().take(10).cloned().collect::<Vec<_>>().join("; ");
        wrong.push(format!("{percent:.1} % of code lines are duplicated, for example {shown}"));
    }
}

#[cfg(test)]
mod tests {
    use super::misnamed;

    #[test]
    fn a_file_is_named_after_what_it_holds() {
        assert!(misnamed("crates/net/src/hbone/mod.rs").is_some());
        assert!(misnamed("crates/net/src/util.rs").is_some());
        assert!(misnamed("crates/net/src/hbone.rs").is_none());
        assert!(misnamed("crates/net/src/modes.rs").is_none());
    }
}
