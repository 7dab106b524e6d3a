//! Crate by crate: what it imports, how large it is, and where its files use one another in a
//! circle.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::exceptions;
use super::modules::{self, Edges};
use super::source::SourceFile;

/// Prints a row for each crate and finds circles that are not listed.
pub(super) fn check(
    files: &[SourceFile],
    imports: &BTreeMap<String, Vec<String>>,
    wrong: &mut Vec<String>,
) -> Result<()> {
    println!(
        "{:10} {:>5} {:>6} {:>7}  {:38} {:34} imports",
        "crate", "files", "lines", "circles", "longest file", "longest function"
    );
    let mut sources: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.contains("src/")) {
        sources.entry(file.krate()).or_default().push(file);
    }
    let mut found = BTreeMap::new();
    for (krate, files) in sources.iter().filter(|(krate, _)| **krate != "fuzz") {
        let (names, edges) = read(files).with_context(|| format!("read {krate}"))?;
        let circles = modules::circles(&edges);
        for circle in &circles {
            let paths: Vec<&str> = circle.iter().map(|file| names[file]).collect();
            let first = paths.first().copied().unwrap_or_default().to_owned();
            found.insert(first, (paths.len(), described(&paths, circle, &edges)));
        }
        print_row(krate, files, circles.len(), imports);
    }
    wrong.extend(unlisted(&found, exceptions::CIRCLES));
    Ok(())
}

/// What is wrong with the circles that were found: the number of files and a description by the
/// first file of each.
fn unlisted(
    found: &BTreeMap<String, (usize, String)>,
    listed: &[(&str, usize, &str)],
) -> Vec<String> {
    let is_listed = |first: &str, files: usize| {
        listed.iter().any(|(name, number, _)| *name == first && *number == files)
    };
    let new = found.iter().filter(|(first, (files, _))| !is_listed(first, *files));
    let new = new.map(|(_, (files, described))| format!("a circle of {files} files: {described}"));
    let gone = listed
        .iter()
        .filter(|(first, number, _)| found.get(*first).is_none_or(|(files, _)| files != number));
    let gone = gone.map(|(first, number, _)| {
        format!("{first}: no circle of {number} files begins here, but one is listed; remove it")
    });
    new.chain(gone).collect()
}

/// Full paths by names below the sources, and who uses whom.
fn read<'a>(files: &[&'a SourceFile]) -> Result<(BTreeMap<String, &'a str>, Edges)> {
    let below = |file: &&'a SourceFile| file.path.split_once("src/").map(|(_, name)| name);
    let named = || files.iter().filter_map(|file| Some((below(file)?, *file)));
    let sources: Vec<(&str, &str)> = named().map(|(name, file)| (name, &*file.text)).collect();
    let names = named().map(|(name, file)| (name.to_owned(), &*file.path)).collect();
    Ok((names, modules::edges(&sources)?))
}

/// The circle, and for what each of its files uses another.
fn described(paths: &[&str], circle: &[String], edges: &Edges) -> String {
    let within =
        edges.iter().filter(|((one, other), _)| circle.contains(one) && circle.contains(other));
    let uses: Vec<String> =
        within.map(|((one, other), name)| format!("{one} takes {name} from {other}")).collect();
    format!("{}; break it, or list it with a reason: {}", paths.join(", "), uses.join("; "))
}

fn print_row(
    krate: &str,
    files: &[&SourceFile],
    circles: usize,
    imports: &BTreeMap<String, Vec<String>>,
) {
    let lines: usize = files.iter().map(|file| file.text.lines().count()).sum();
    let longest = files.iter().max_by_key(|file| file.lines_before_tests());
    let file = longest.map_or_else(String::new, |file| {
        let name = file.path.split_once("src/").map_or(&*file.path, |(_, name)| name);
        format!("{name} ({})", file.lines_before_tests())
    });
    let functions = files.iter().flat_map(|file| &file.functions);
    let function = functions.max_by_key(|function| function.lines);
    let function = function.map_or_else(String::new, |it| format!("{} ({})", it.name, it.lines));
    let imported = imports.get(krate).map(|it| it.join(" ")).unwrap_or_default();
    println!(
        "{krate:10} {:5} {lines:6} {circles:7}  {file:38} {function:34} {imported}",
        files.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_listed_as_it_is() {
        let found = BTreeMap::from([("a.rs".to_owned(), (2, "a.rs, b.rs".to_owned()))]);
        assert!(unlisted(&found, &[("a.rs", 2, "")]).is_empty());
        assert_eq!(unlisted(&found, &[]).len(), 1);
        assert_eq!(unlisted(&found, &[("a.rs", 3, "")]).len(), 2, "it grew");
        assert_eq!(unlisted(&BTreeMap::new(), &[("a.rs", 2, "")]).len(), 1, "it is gone");
    }
}
