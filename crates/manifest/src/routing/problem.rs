//! What of a route cannot be honoured, where, and why.

use crate::FieldPath;

/// Why something of a route cannot be honoured, in the words of the Gateway API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A value that is wrong, or that Ambit does not know.
    UnsupportedValue,
    /// Filters that exclude one another.
    IncompatibleFilters,
    /// A backend that does not exist.
    BackendNotFound,
    /// A backend of a kind that cannot be one.
    InvalidKind,
    /// A backend of another namespace, which does not let the route refer to it.
    RefNotPermitted,
}

impl Reason {
    /// The reason as conditions write it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::UnsupportedValue => "UnsupportedValue",
            Self::IncompatibleFilters => "IncompatibleFilters",
            Self::BackendNotFound => "BackendNotFound",
            Self::InvalidKind => "InvalidKind",
            Self::RefNotPermitted => "RefNotPermitted",
        }
    }

    /// Whether it is about what a reference names, and not about the route by itself.
    pub(crate) fn is_of_reference(self) -> bool {
        matches!(self, Self::BackendNotFound | Self::InvalidKind | Self::RefNotPermitted)
    }
}

/// Something of a route that cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Why.
    pub(crate) reason: Reason,
    /// The field.
    pub at: FieldPath,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// The index of the rule that it makes unusable. A backend that does not exist, or may not be
    /// used, spoils its own share of a rule and no more.
    pub rule: Option<usize>,
}

impl Problem {
    /// Whether it spoils the copies of a mirror, and no request.
    pub fn is_of_copies(&self) -> bool {
        self.rule.is_none() && self.at.as_str().contains(".requestMirror.")
    }
}

/// Collects what is wrong with one part of a route.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// What was found.
    pub(super) found: Vec<Problem>,
}

impl Problems {
    /// Notes a problem at `at`.
    pub(super) fn add(
        &mut self,
        reason: Reason,
        at: &FieldPath,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (what, remedy) = (what.into(), remedy.into());
        self.found.push(Problem { reason, at: at.clone(), what, remedy, rule: None });
    }

    /// Notes a value that is wrong or not known.
    pub(super) fn unsupported(
        &mut self,
        at: &FieldPath,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Reason::UnsupportedValue, at, what, remedy);
    }

    /// What was found in the rule with this index.
    pub(super) fn of_rule(self, index: usize) -> impl Iterator<Item = Problem> {
        self.found.into_iter().map(move |problem| {
            let rule = (!problem.reason.is_of_reference()).then_some(index);
            Problem { rule, ..problem }
        })
    }
}
