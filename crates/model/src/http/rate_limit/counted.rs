//! Which limits count a request, and what tells its sender apart.
//!
//! A client may send a field in several lines, and an application may read any of them. So one of
//! them is enough for a condition. Where lines that differ should tell its sender apart, nobody
//! knows whom to count, and the request is refused: whoever wants to be somebody else for each
//! request would only have to add a line.

use super::{Attribute, Condition, RateLimit, RateLimitPolicy};
use crate::Text;
use crate::http::authorize::Asked;
use crate::http::head::Fields;
use crate::http::matching::NamedMatch;

impl RateLimitPolicy {
    /// The place of a limit that counts a request and cannot know whom, and the field that comes in
    /// lines that differ. Such a request must not pass. Limits that are not enforced refuse none.
    pub fn unclear(&self, asked: &Asked<'_>) -> Option<(usize, &Text)> {
        let enforced = self.limits.iter().enumerate().filter(|(_, limit)| !limit.is_shadow);
        let mut counting = enforced.filter(|(_, limit)| limit.is_about(asked));
        counting.find_map(|(index, limit)| {
            let mut fields = limit.distinct.iter().filter_map(|attribute| match attribute {
                Attribute::Header(name) => Some(name),
                _ => None,
            });
            let field = fields.find(|name| only(asked.head.fields, name).is_err())?;
            Some((index, field))
        })
    }
}

impl RateLimit {
    /// What tells the sender of this request apart, in the order of [`Self::distinct`]; `None` if
    /// the request does not count. What is [unclear](RateLimitPolicy::unclear) is refused before.
    pub fn counts(&self, asked: &Asked<'_>) -> Option<Vec<String>> {
        self.is_about(asked).then(|| self.distinct.iter().map(|it| it.value(asked)).collect())?
    }

    fn is_about(&self, asked: &Asked<'_>) -> bool {
        self.conditions.iter().all(|it| it.holds(asked))
    }
}

impl Condition {
    fn holds(&self, asked: &Asked<'_>) -> bool {
        let head = asked.head;
        match self {
            Self::Header(wanted) => may_hold(wanted, head.fields),
            Self::Path(wanted) => wanted.matches(head.path),
            Self::Method(any_of) => any_of.iter().any(|method| **method == *head.method),
            Self::Principal(wanted) => wanted.matches(asked.source.principal()),
            Self::Namespace(wanted) => wanted.matches(asked.source.namespace()),
            Self::Source(block) => block.contains(&asked.source.ip()),
            Self::Claim { keys, value } => asked
                .token
                .is_some_and(|token| token.any_claim(keys, &mut |claim| value.matches(claim))),
        }
    }
}

impl Attribute {
    fn value(&self, asked: &Asked<'_>) -> Option<String> {
        match self {
            Self::Header(name) => {
                let value = only(asked.head.fields, name).ok().flatten()?;
                Some(String::from_utf8_lossy(&value).into_owned())
            }
            Self::Principal => known(asked.source.principal()),
            Self::Namespace => known(asked.source.namespace()),
            Self::Source => Some(asked.source.ip().to_string()),
            Self::Claim(keys) => {
                let mut first = None;
                asked.token?.any_claim(keys, &mut |claim| {
                    first = Some(claim.to_owned());
                    true
                });
                first
            }
        }
    }
}

/// Whether a field is what is wanted in any reading: each line, and all of them joined.
fn may_hold(wanted: &NamedMatch, fields: &dyn Fields) -> bool {
    let is = |value: &[u8]| wanted.value.matches(value);
    if wanted.is_inverted {
        let is_there = fields.any(&wanted.name, &mut |_| true);
        return !is_there || fields.any(&wanted.name, &mut |line| !is(line));
    }
    fields.any(&wanted.name, &mut |line| is(line) || is(trimmed(line)))
        || fields.value(&wanted.name).is_some_and(|joined| is(&joined))
}

/// The lines of a field differ.
struct Differ;

/// The value of a field whose lines are all the same.
fn only(fields: &dyn Fields, name: &str) -> Result<Option<Vec<u8>>, Differ> {
    let mut only: Option<Vec<u8>> = None;
    let differ = fields.any(name, &mut |line| {
        let line = trimmed(line);
        match &only {
            Some(first) => *first != line,
            None => {
                only = Some(line.to_vec());
                false
            }
        }
    });
    if differ { Err(Differ) } else { Ok(only) }
}

/// A value without commas around it, which make empty members of a list (RFC 9110, 5.6.1).
fn trimmed(line: &[u8]) -> &[u8] {
    let is_value = |byte: &u8| !matches!(byte, b',' | b' ' | b'\t');
    let start = line.iter().position(is_value).unwrap_or(line.len());
    let end = line.iter().rposition(is_value).map_or(start, |last| last + 1);
    &line[start..end]
}

/// What is empty is not known.
fn known(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
