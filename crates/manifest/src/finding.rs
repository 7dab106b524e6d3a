//! What is wrong (or doubtful) with an input: file, line, object, field, problem, remedy.
//!
//! Errors and warnings have one form, because the same person reads both at the same moment. A
//! finding must never exist without a remedy: a rule whose remedy nobody can name is not
//! understood.

use std::fmt;

use ambit_model::printable::printable;
use serde::Serialize;

/// Where an object was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Location {
    /// The path as the user gave it, or `<stdin>`.
    pub file: String,
    /// The line, counted from 1; 0 when the whole file is meant.
    pub line: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// One problem at one place of the input.
///
/// Reads `file:line: Kind ns/name: field: what is wrong; remedy`; parts that do not apply are left
/// out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file and line the problem is at.
    pub location: Location,
    /// The object as `Kind namespace/name`, empty when the text is not an object.
    pub object: String,
    /// The path of the field, empty when the whole object is meant.
    pub field: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names and values are anybody's: they may not write to a terminal what is not here.
        write!(f, "{}: ", printable(&self.location.to_string()))?;
        for part in [&self.object, &self.field] {
            if !part.is_empty() {
                write!(f, "{}: ", printable(part))?;
            }
        }
        write!(f, "{}; {}", printable(&self.what), printable(&self.remedy))
    }
}

/// All that is wrong with an input. Nothing of it may be applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Errors(pub Vec<Finding>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// A field's path inside its object, as in `spec.ports[0].name`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// The path given as text.
    pub fn at(path: &str) -> Self {
        Self(path.to_owned())
    }

    /// The field `name` below this one.
    pub fn field(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// The element `index` of this list.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A problem of one object, before the object's place in the input is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Issue {
    /// The field.
    pub(crate) path: Path,
    /// What is wrong.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) remedy: String,
}

/// Collects what validation finds in one object.
#[derive(Debug, Default)]
pub struct Issues {
    /// Problems that forbid using the object.
    pub(crate) errors: Vec<Issue>,
    /// Doubts that the user should know of.
    pub(crate) warnings: Vec<Issue>,
}

impl Issues {
    /// Records an error at `path`.
    pub fn error(&mut self, path: &Path, what: impl Into<String>, remedy: impl Into<String>) {
        self.errors.push(Issue { path: path.clone(), what: what.into(), remedy: remedy.into() });
    }

    /// Records a warning at `path`.
    pub fn warn(&mut self, path: &Path, what: impl Into<String>, remedy: impl Into<String>) {
        self.warnings.push(Issue { path: path.clone(), what: what.into(), remedy: remedy.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_part_of_a_line_is_shown_as_such() {
        let finding = Finding {
            location: Location { file: "a\u{7}.yaml".to_owned(), line: 3 },
            object: "Pod default/\u{1b}[31mred".to_owned(),
            field: "metadata.labels.a\nb".to_owned(),
            what: "the name `\u{1b}[31mred\nerror: forged` is none".to_owned(),
            remedy: "rename \u{202e}it".to_owned(),
        };
        let said = "a\\u{7}.yaml:3: Pod default/\\u{1b}[31mred: metadata.labels.a\\u{a}b: the name \
                    `\\u{1b}[31mred\\u{a}error: forged` is none; rename \\u{202e}it";
        assert_eq!(finding.to_string(), said);
    }
}
