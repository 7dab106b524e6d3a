//! A request as a rule sends it on, which is what holds for a route of clients.

use std::borrow::Cow;

use ambit_model::http::head::{Fields, RequestHead};
use ambit_model::http::rule::{Action, HeaderChanges, Rule};

/// The path and the host that a rule makes of a request's.
pub(super) struct SentOn<'a> {
    pub(super) path: Cow<'a, str>,
    pub(super) host: Cow<'a, str>,
    /// Its fields.
    pub(super) fields: Changed<'a>,
}

impl<'a> SentOn<'a> {
    pub(super) fn new(head: &RequestHead<'a>, rule: &'a Rule, prefix_len: Option<usize>) -> Self {
        let changes = &rule.request_headers;
        let is_host = |name: &str| name.eq_ignore_ascii_case("host") || name == ":authority";
        let set = changes.set.iter().chain(&changes.add).find(|(name, _)| is_host(name));
        let rewrite = match &rule.action {
            Action::Forward { rewrite, .. } => Some(rewrite),
            Action::Redirect(_) | Action::Respond { .. } => None,
        };
        let path = rewrite.and_then(|it| it.path.as_ref());
        let host = set.map(|(_, host)| host).or(rewrite.and_then(|it| it.host.as_ref()));
        Self {
            path: path
                .map_or(Cow::Borrowed(head.path), |it| it.apply(head.path, prefix_len).into()),
            host: host.map_or(Cow::Borrowed(head.host), |it| it.to_ascii_lowercase().into()),
            fields: Changed { fields: head.fields, changes },
        }
    }
}

/// Fields with a rule's changes.
#[derive(Clone, Copy)]
pub(super) struct Changed<'a> {
    fields: &'a dyn Fields,
    changes: &'a HeaderChanges,
}

impl Changed<'_> {
    /// What the changes say of a field; `None` leaves it as it is.
    fn said(&self, name: &str) -> Option<Option<&str>> {
        let HeaderChanges { remove, set, add } = self.changes;
        let written = set.iter().chain(add).find(|(it, _)| it.eq_ignore_ascii_case(name));
        let is_removed = || remove.iter().any(|it| it.eq_ignore_ascii_case(name));
        written.map(|(_, value)| Some(&**value)).or_else(|| is_removed().then_some(None))
    }
}

impl Fields for Changed<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        match self.said(name) {
            Some(value) => value.map(|it| Cow::Borrowed(it.as_bytes())),
            None => self.fields.value(name),
        }
    }

    fn any(&self, name: &str, holds: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        match self.said(name) {
            Some(value) => value.is_some_and(|it| holds(it.as_bytes())),
            None => self.fields.any(name, holds),
        }
    }
}
