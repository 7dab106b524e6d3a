//! A word of a protocol is defined once: no two crates define constants of the same value, and no
//! file writes out a key that `crates/words` has.
//!
//! It sees only constants of one text or one port: no arrays, tuples or computed values, and no
//! texts that are not constants, except keys of `crates/words`.
//!
//! What two crates write and read alike must change in both. Values that are equal by coincidence
//! are listed in [`exceptions::COINCIDENCES`]. Tests write words out: they are the other side.

use std::collections::{BTreeMap, BTreeSet};

use super::exceptions;
use super::source::{Constant, SourceFile};

/// Where words of several crates are.
pub(super) const HOME: &str = "words";
/// Numbers of sixteen bits from here on are ports.
const PORT_MIN: u64 = 1024;

pub(super) fn check(files: &[SourceFile], wrong: &mut Vec<String>) {
    let shipped: Vec<&SourceFile> = files.iter().filter(|it| is_shipped(it)).collect();
    let mut defined: BTreeMap<String, Vec<(&SourceFile, &str)>> = BTreeMap::new();
    for file in &shipped {
        for constant in &file.constants {
            if let Some(value) = word(constant) {
                defined.entry(value).or_default().push((file, &constant.name));
            }
        }
    }
    let mut repeated = BTreeSet::new();
    for (value, places) in &defined {
        let (first, name) = places[0];
        let other = places.iter().find(|(file, _)| file.krate() != first.krate());
        if let Some((file, as_well)) = other {
            repeated.insert(value.as_str());
            if !exceptions::COINCIDENCES.iter().any(|(it, _)| it == value) {
                wrong.push(format!(
                    "{}: {as_well} is {value}, and so is {name} of {}; define it once, in \
                     crates/words if neither crate may import the other",
                    file.path, first.path
                ));
            }
        }
    }
    for (value, _) in exceptions::COINCIDENCES.iter().filter(|(it, _)| !repeated.contains(it)) {
        wrong.push(format!("{value}: listed, but no two crates define it; remove it"));
    }
    let keys = defined.iter().filter(|(value, places)| {
        value.contains('/') && places.iter().any(|(file, _)| file.krate() == HOME)
    });
    let keys: Vec<&String> = keys.map(|(value, _)| value).collect();
    for file in shipped.iter().filter(|it| it.krate() != HOME) {
        for (line, text) in file.text.lines().take(file.lines_before_tests()).enumerate() {
            if let Some(key) = keys.iter().find(|it| text.contains(it.as_str())) {
                let (path, line) = (&file.path, line + 1);
                wrong.push(format!("{path}:{line}: {key} is a constant of crates/words; use it"));
            }
        }
    }
}

/// Whether the file is part of what ships, and not the tests of a module in a file of their own.
fn is_shipped(file: &SourceFile) -> bool {
    let mut parts = file.path.trim_end_matches(".rs").split('/');
    file.is_library() && !parts.any(|part| part.ends_with("tests"))
}

/// The value as it is written, if it is a word: a text, or a port.
fn word(constant: &Constant) -> Option<String> {
    match &constant.value {
        syn::Lit::Str(text) if !text.value().is_empty() => Some(format!("{:?}", text.value())),
        syn::Lit::Int(number) if constant.type_name == "u16" => {
            let value: u64 = number.base10_parse().ok()?;
            let is_port = value >= PORT_MIN || constant.name.ends_with("PORT");
            is_port.then(|| value.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::parsed;

    #[test]
    fn a_word_of_two_crates_is_found_and_one_of_one_crate_is_not() {
        let check = |texts: &[(&str, &str)], expected: &[&str]| {
            let files: Vec<SourceFile> = texts
                .iter()
                .map(|(path, text)| parsed(path, (*text).to_owned()).expect("it parses"))
                .collect();
            let mut wrong = Vec::new();
            super::check(&files, &mut wrong);
            wrong.retain(|it| !it.contains(": listed, but"));
            assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
            for (found, part) in wrong.iter().zip(expected) {
                assert!(found.contains(part), "{found}");
            }
        };
        let label = "const A: &str = \"x.io/y\";\n";
        let (one, other) = ("crates/a/src/lib.rs", "crates/b/src/lib.rs");
        check(&[(one, label), (other, label)], &["crates/b/src/lib.rs: A is \"x.io/y\""]);
        check(&[(one, label), ("crates/a/src/b.rs", label)], &[]);
        check(&[(one, label), ("crates/b/src/tests.rs", label)], &[]);
        check(&[(one, label), ("crates/b/tests/b.rs", label)], &[]);
        let in_tests = format!("#[cfg(test)]\nmod tests {{\n    {label}}}\n");
        check(&[(one, label), (other, &in_tests)], &[]);
        let port = "pub const HBONE: u16 = 15_008;\n";
        let same = "impl X { const P: u16 = 15008; }\n";
        check(&[(one, port), (other, same)], &["P is 15008"]);
        check(&[(one, "const A: u16 = 1;\n"), (other, "const A: u16 = 1;\n")], &[]);
        check(&[(one, "const A: u16 = 53;\n"), (other, "const PORT: u16 = 53;\n")], &[]);
        let home = ("crates/words/src/labels.rs", label);
        check(&[home, (one, "fn f() { json!({\"x.io/y\": 1}); }\n")], &["lib.rs:1: \"x.io/y\" is"]);
    }
}
