//! The order among rules of several routes.
//!
//! Matches of HTTPRoutes and GRPCRoutes are ordered by how specific they are, as in the Gateway
//! API: an exact path, the longest prefix, a method, more fields, more parameters; then the older
//! route, the route's `NAMESPACE/NAME` as one text, its kind, the rule's place. The specification
//! leaves regular expressions open: as in Istio they come after every prefix, but before a match of
//! every path: `/` without a method, fields or parameters, and a GRPCRoute's without a method.
//! Rules of VirtualServices keep the order in which they are written, and come after those of the
//! Gateway API.

use std::cmp::Reverse;

use crate::http::matching::{Match, PathMatch};
use crate::http::rule::{Origin, RouteKind};

/// The place of one match among all of a port; less comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    is_ordered_by_hand: bool,
    asks_for: Reverse<AsksFor>,
    created_unix_s: i64,
    /// `NAMESPACE/NAME`: compared by bytes, so that `a-b/x` comes before `a/x`.
    route: String,
    kind: RouteKind,
    rule: u32,
    index: usize,
}

/// How much a match asks for; more is greater.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct AsksFor {
    path: PathRank,
    has_method: bool,
    headers: usize,
    parameters: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum PathRank {
    #[default]
    Any,
    Regex(usize),
    Prefix(usize),
    Exact(usize),
}

impl Place {
    /// The place of the match with this index of a rule that is written at `origin`.
    pub(super) fn of(origin: &Origin, wanted: &Match, index: usize) -> Self {
        let is_ordered_by_hand = origin.kind == RouteKind::VirtualService;
        let asks_for = match origin.kind {
            RouteKind::VirtualService => AsksFor::default(),
            kind => AsksFor::of(kind, wanted),
        };
        Self {
            is_ordered_by_hand,
            asks_for: Reverse(asks_for),
            created_unix_s: origin.created_unix_s,
            route: format!("{}/{}", origin.namespace, origin.name),
            kind: origin.kind,
            rule: origin.index,
            index,
        }
    }
}

impl AsksFor {
    fn of(kind: RouteKind, wanted: &Match) -> Self {
        let asks_nothing_else =
            wanted.method.is_none() && wanted.headers.is_empty() && wanted.parameters.is_empty();
        let path = match wanted.path.as_ref().map(PathRank::of) {
            // `/` is what an HTTPRoute means if it names no path; a GRPCRoute names no method.
            None if kind == RouteKind::HttpRoute => PathRank::Prefix(1),
            None => PathRank::Any,
            Some(rank) => rank,
        };
        let is_catch_all = asks_nothing_else && matches!(path, PathRank::Prefix(0 | 1));
        Self {
            path: if is_catch_all { PathRank::Any } else { path },
            has_method: wanted.method.is_some(),
            headers: wanted.headers.len(),
            parameters: wanted.parameters.len(),
        }
    }
}

impl PathRank {
    fn of(path: &PathMatch) -> Self {
        match path {
            PathMatch::Exact(text) | PathMatch::ExactNoCase(text) => Self::Exact(text.len()),
            PathMatch::Segments(text) | PathMatch::Prefix(text) | PathMatch::PrefixNoCase(text) => {
                Self::Prefix(text.len())
            }
            PathMatch::Regex(pattern) => Self::Regex(pattern.source().len()),
        }
    }
}
