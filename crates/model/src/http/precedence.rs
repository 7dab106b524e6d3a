//! The order among rules of several routes.
//!
//! Matches of HTTPRoutes and GRPCRoutes are ordered by how much they ask for, as the Gateway API
//! has it: an exact path, the longest prefix, a method, more fields, more parameters; then the
//! older route, the route's name, the rule's place. The specification leaves regular expressions
//! open: as in Istio they come after every prefix but `/`. Rules of VirtualServices keep the order
//! in which they are written, and come after those of the Gateway API.

use std::cmp::Reverse;

use crate::Text;
use crate::http::matching::{Match, PathMatch};
use crate::http::rule::{Origin, RouteKind};

/// The place of one match among all of a port; less comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    is_ordered_by_hand: bool,
    asks_for: Reverse<AsksFor>,
    created_unix_s: i64,
    route: (Text, Text),
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
        let asks_for = if is_ordered_by_hand { AsksFor::default() } else { AsksFor::of(wanted) };
        Self {
            is_ordered_by_hand,
            asks_for: Reverse(asks_for),
            created_unix_s: origin.created_unix_s,
            route: (origin.namespace.clone(), origin.name.clone()),
            rule: origin.index,
            index,
        }
    }
}

impl AsksFor {
    fn of(wanted: &Match) -> Self {
        Self {
            path: wanted.path.as_ref().map_or(PathRank::Any, PathRank::of),
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
                if text.len() > 1 {
                    Self::Prefix(text.len())
                } else {
                    Self::Any
                }
            }
            PathMatch::Regex(pattern) => Self::Regex(pattern.source().len()),
        }
    }
}
