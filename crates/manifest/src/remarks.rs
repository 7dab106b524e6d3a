//! What of an Istio resource of layer 7 is wrong, or is not honoured.
//!
//! Both are said where the object is written: `apply` refuses what is wrong and warns of the rest,
//! and in a cluster a condition of the object lists them.

use std::time::Duration;

use ambit_words::durations::parse_duration;

use crate::{FieldPath, ObjectIssues};

/// One thing that is wrong, or is not honoured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Whether the object is wrong; otherwise a field is right, and has no effect.
    pub is_wrong: bool,
    /// The field.
    pub at: FieldPath,
    /// What is wrong, and what happens instead.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// Collects remarks on one object.
#[derive(Debug, Default)]
pub(crate) struct Remarks(pub(crate) Vec<Remark>);

impl Remarks {
    /// A value that is wrong.
    pub(crate) fn wrong(
        &mut self,
        at: &FieldPath,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (what, remedy) = (what.into(), remedy.into());
        self.0.push(Remark { is_wrong: true, at: at.clone(), what, remedy });
    }

    /// A field without effect, if it is there.
    pub(crate) fn unhonoured(
        &mut self,
        is_there: bool,
        at: &FieldPath,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if is_there {
            let (what, remedy) = (what.into(), remedy.into());
            self.0.push(Remark { is_wrong: false, at: at.clone(), what, remedy });
        }
    }

    /// A duration as Istio writes it.
    pub(crate) fn duration(&mut self, text: Option<&str>, at: &FieldPath) -> Option<Duration> {
        let text = text?;
        let parsed = parse_duration(text);
        if parsed.is_err() {
            let what = format!("`{text}` is not a duration");
            self.wrong(at, what, "write for example 500ms, 90s or 1h30m");
        }
        parsed.ok()
    }

    /// A number that is not below zero.
    pub(crate) fn number(&mut self, number: Option<i64>, at: &FieldPath) -> Option<u32> {
        let number = number?;
        let converted = u32::try_from(number);
        if converted.is_err() {
            self.wrong(at, format!("{number} is out of range"), "use 0 to 4294967295");
        }
        converted.ok()
    }
}

/// Reports remarks on an object that is applied.
pub(crate) fn report(remarks: &[Remark], issues: &mut ObjectIssues) {
    for Remark { is_wrong, at, what, remedy } in remarks {
        match is_wrong {
            true => issues.error(at, what, remedy),
            false => issues.warn(at, what, remedy),
        }
    }
}
