//! The rules of one port of a service or gateway, compiled for look-up.
//!
//! A table is of one group of routes; the caller chooses the group. Routes of different
//! groups never answer the same request: for clients of a namespace its consumer routes replace the
//! producer's (GEP-1426), and where HTTPRoutes and GRPCRoutes meet at a port, only the GRPCRoutes
//! count. This table does not know of that: it ranks all that it gets.
//!
//! [`RouteTable::find`] returns the same rule as trying every match in order of precedence, without
//! trying most of them and without allocation: exact paths and prefixes are found by hash, only
//! regular expressions and matches without case are tried one by one.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::http::head::RequestHead;
use crate::http::matching::{Match, PathMatch};
use crate::http::precedence::Place;
use crate::http::rule::Rule;

/// Indexes of entries, ascending, by a text of the path.
type ByText = FxHashMap<Box<str>, Vec<u32>>;

/// The rules of one port, in order of precedence.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    entries: Vec<Entry>,
    /// By the whole path; indexes of `entries`, ascending.
    exact: ByText,
    /// By the length of prefixes, then by the prefix.
    prefixes: Vec<(usize, ByText)>,
    /// Everything else.
    rest: Vec<u32>,
}

/// One match of one rule.
#[derive(Clone, Debug)]
struct Entry {
    rule: Arc<Rule>,
    /// `None` for a rule without a match.
    index: Option<usize>,
}

impl Entry {
    fn wanted(&self) -> Option<&Match> {
        self.index.map(|index| &self.rule.matches[index])
    }
}

/// The rule that answers a request.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The rule.
    pub rule: &'a Arc<Rule>,
    /// The match that the request satisfies; `None` for a rule without one.
    pub matched: Option<&'a Match>,
}

impl Found<'_> {
    /// How much of the path has matched, for changes of it.
    pub fn prefix_len(&self) -> Option<usize> {
        match self.matched.and_then(|it| it.path.as_ref()) {
            Some(path) => path.prefix_len(),
            // Without one, as with the prefix `/`.
            None => Some(1),
        }
    }
}

impl RouteTable {
    /// Compiles rules of any number of routes, in any order.
    pub fn new(rules: impl IntoIterator<Item = Arc<Rule>>) -> Self {
        let everything = Match::default();
        let mut placed = Vec::new();
        for rule in rules {
            if rule.matches.is_empty() {
                let place = Place::of(&rule.origin, &everything, 0);
                placed.push((place, Entry { rule: rule.clone(), index: None }));
            }
            for (index, wanted) in rule.matches.iter().enumerate() {
                let place = Place::of(&rule.origin, wanted, index);
                placed.push((place, Entry { rule: rule.clone(), index: Some(index) }));
            }
        }
        placed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let entries = placed.into_iter().map(|(_, entry)| entry).collect();
        let mut table = Self { entries, ..Self::default() };
        table.index();
        table
    }

    /// Fills what is looked up from the entries.
    fn index(&mut self) {
        for (at, entry) in self.entries.iter().enumerate() {
            let at = u32::try_from(at).expect("a table has fewer than 2^32 matches");
            let prefix = match entry.wanted().and_then(|it| it.path.as_ref()) {
                Some(PathMatch::Exact(text)) => {
                    self.exact.entry((&**text).into()).or_default().push(at);
                    continue;
                }
                Some(PathMatch::Segments(text)) if &**text == "/" => "/",
                Some(PathMatch::Segments(text) | PathMatch::Prefix(text)) => text,
                _ => {
                    self.rest.push(at);
                    continue;
                }
            };
            let place = self.prefixes.binary_search_by_key(&prefix.len(), |(len, _)| *len);
            let place = place.unwrap_or_else(|place| {
                self.prefixes.insert(place, (prefix.len(), ByText::default()));
                place
            });
            self.prefixes[place].1.entry(prefix.into()).or_default().push(at);
        }
    }

    /// The first match, in order of precedence, that the request satisfies.
    pub fn find(&self, head: &RequestHead<'_>) -> Option<Found<'_>> {
        let mut best = None;
        if let Some(list) = self.exact.get(head.path) {
            self.improve(&mut best, list, |it| it.matches_beside_path(head));
        }
        for (len, by_text) in &self.prefixes {
            // No prefix is longer than the path, and none ends inside a character.
            let Some(start) = head.path.get(..*len) else {
                if *len > head.path.len() { break } else { continue }
            };
            if let Some(list) = by_text.get(start) {
                self.improve(&mut best, list, |it| it.matches(head));
            }
        }
        self.improve(&mut best, &self.rest, |it| it.matches(head));
        let entry = &self.entries[best? as usize];
        Some(Found { rule: &entry.rule, matched: entry.wanted() })
    }

    /// Puts the first of `list` that holds in place of `best`, if it comes before it.
    fn improve(&self, best: &mut Option<u32>, list: &[u32], holds: impl Fn(&Match) -> bool) {
        let before = list.iter().take_while(|at| best.is_none_or(|best| **at < best));
        let mut before = before.copied();
        let found = before.find(|at| self.entries[*at as usize].wanted().is_none_or(&holds));
        *best = found.or(*best);
    }

    /// Every match with its rule, in order of precedence.
    pub fn iter(&self) -> impl Iterator<Item = Found<'_>> {
        self.entries.iter().map(|it| Found { rule: &it.rule, matched: it.wanted() })
    }

    /// Whether there is no rule at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Text;
    use crate::http::head::{Client, NamedValues};
    use crate::http::matching::{NamedMatch, Pattern, ValueMatch};
    use crate::http::rule::{
        Action, Faults, HeaderChanges, Origin, PathChange, RouteKind, Timeouts,
    };

    fn rule(kind: RouteKind, created: i64, name: &str, index: u32, matches: Vec<Match>) -> Rule {
        Rule {
            origin: Origin {
                kind,
                namespace: "app".into(),
                name: name.into(),
                created_unix_s: created,
                index,
                rule_name: None,
            },
            matches,
            action: Action::Respond { status: 200, body: "".into() },
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            mirrors: Vec::new(),
            cors: None,
            faults: Faults::default(),
            timeouts: Timeouts::default(),
            retry: None,
            session: None,
        }
    }

    fn path(path: PathMatch) -> Match {
        Match { path: Some(path), ..Match::default() }
    }

    fn header(name: &str) -> NamedMatch {
        NamedMatch { name: name.into(), value: ValueMatch::Present, is_inverted: false }
    }

    fn ask<'a>(
        path: &'a str,
        fields: &'a [(String, String)],
    ) -> impl FnOnce(&RouteTable) -> Option<Text> {
        move |table| {
            let fields = NamedValues(fields);
            let head = RequestHead {
                method: "GET",
                scheme: "http",
                host: "web",
                port: None,
                path,
                query: "q=1",
                fields: &fields,
                client: Client::default(),
            };
            let found = table.find(&head);
            let tried = table.iter().find(|it| it.matched.is_none_or(|it| it.matches(&head)));
            let name = |it: Found<'_>| it.rule.origin.name.clone();
            assert_eq!(found.map(name), tried.map(name), "{path}: looked up, and tried in turn");
            assert_eq!(found.map(|it| it.matched), tried.map(|it| it.matched), "{path}");
            found.map(name)
        }
    }

    /// Rules of their own routes, named by their place; which of them answers.
    fn check(rules: Vec<(RouteKind, i64, Vec<Match>)>, requests: &[(&str, Option<usize>)]) {
        let rules = rules.into_iter().enumerate().map(|(at, (kind, created, matches))| {
            Arc::new(rule(kind, created, &at.to_string(), 0, matches))
        });
        let table = RouteTable::new(rules);
        for (path, expected) in requests {
            let expected = expected.map(|at| Text::from(at.to_string()));
            assert_eq!(ask(path, &[])(&table), expected, "{path}");
        }
    }

    #[test]
    fn what_asks_for_more_comes_first() {
        use PathMatch::{Exact, Prefix, Regex, Segments};
        use RouteKind::HttpRoute;
        let method = |path| Match {
            path: Some(path),
            method: Some(ValueMatch::Exact("GET".into())),
            ..Match::default()
        };
        check(
            vec![
                (HttpRoute, 1, vec![path(Segments("/".into()))]),
                (HttpRoute, 2, vec![path(Segments("/a".into()))]),
                (HttpRoute, 2, vec![path(Exact("/a/b".into()))]),
                (HttpRoute, 3, vec![method(Segments("/a".into()))]),
                (HttpRoute, 1, vec![path(Segments("/a/b".into()))]),
                (HttpRoute, 1, vec![path(Regex(Pattern::new("/[xy].*").unwrap()))]),
                (HttpRoute, 1, vec![path(Prefix("/yes".into()))]),
            ],
            &[
                ("/", Some(0)),
                ("/a", Some(3)),
                ("/a/b", Some(2)),
                ("/a/b/c", Some(4)),
                ("/a/c", Some(3)),
                ("/x", Some(5)),
                ("/yes/no", Some(6)),
                ("/y", Some(5)),
                ("*", None),
            ],
        );
    }

    #[test]
    fn a_slash_comes_behind_expressions_only_if_it_matches_everything() {
        use PathMatch::{Regex, Segments};
        use RouteKind::{GrpcRoute, HttpRoute};
        let regex = || vec![path(Regex(Pattern::new("/.*").unwrap()))];
        let slash = || path(Segments("/".into()));
        let get = || Some(ValueMatch::Exact("GET".into()));
        let parameters = || vec![header("q")];
        for (asks_more, expected) in [
            (slash(), 1),
            (Match { method: get(), ..slash() }, 0),
            (Match { parameters: parameters(), ..slash() }, 0),
            (Match { method: get(), ..Match::default() }, 0),
        ] {
            check(
                vec![(HttpRoute, 1, vec![asks_more]), (HttpRoute, 1, regex())],
                &[("/a", Some(expected))],
            );
        }
        // A GRPCRoute that names no method.
        let any_method = Match { parameters: parameters(), ..Match::default() };
        check(vec![(GrpcRoute, 1, vec![any_method]), (GrpcRoute, 1, regex())], &[("/a", Some(1))]);
    }

    #[test]
    fn names_are_compared_as_one_text_then_kinds() {
        let first = |rules: [(RouteKind, &str, &str, u32); 2]| {
            let rules = rules.map(|(kind, namespace, name, index)| {
                let mut rule = rule(kind, 1, name, index, Vec::new());
                rule.origin.namespace = namespace.into();
                Arc::new(rule)
            });
            let table = RouteTable::new(rules);
            let origin = &table.iter().next().unwrap().rule.origin;
            (origin.kind, origin.namespace.clone(), origin.index)
        };
        use RouteKind::{GrpcRoute, HttpRoute};
        // `-` comes before `/`.
        let names = [(HttpRoute, "a", "x", 0), (HttpRoute, "a-b", "x", 0)];
        assert_eq!(first(names), (HttpRoute, "a-b".into(), 0));
        // Rules of two routes do not mix.
        let kinds = [(GrpcRoute, "a", "x", 0), (HttpRoute, "a", "x", 1)];
        assert_eq!(first(kinds), (HttpRoute, "a".into(), 1));
    }

    #[test]
    fn without_a_path_the_prefix_is_the_slash() {
        let rule = Arc::new(rule(RouteKind::VirtualService, 1, "a", 0, Vec::new()));
        let slash = path(PathMatch::Prefix("/".into()));
        for matched in [None, Some(&Match::default()), Some(&slash)] {
            let prefix_len = Found { rule: &rule, matched }.prefix_len();
            for (change, expected) in [
                (PathChange::Prefix("/new/".into()), "/new/a/b"),
                (PathChange::Segments("/new".into()), "/new/a/b"),
            ] {
                assert_eq!(change.apply("/a/b", prefix_len), expected, "{matched:?} {change:?}");
            }
        }
    }

    #[test]
    fn among_equals_the_older_route_comes_first_then_its_name() {
        use RouteKind::{GrpcRoute, HttpRoute, VirtualService};
        let a = || vec![path(PathMatch::Segments("/a".into()))];
        check(vec![(HttpRoute, 2, a()), (GrpcRoute, 1, a())], &[("/a", Some(1))]);
        check(vec![(HttpRoute, 1, a()), (HttpRoute, 1, a())], &[("/a", Some(0))]);
        // A VirtualService is asked in its own order, and after all others.
        let exact = || vec![path(PathMatch::Exact("/a".into()))];
        check(
            vec![
                (VirtualService, 1, a()),
                (VirtualService, 1, exact()),
                (VirtualService, 1, Vec::new()),
            ],
            &[("/a", Some(0)), ("/b", Some(2))],
        );
        check(vec![(VirtualService, 1, exact()), (HttpRoute, 9, a())], &[("/a", Some(1))]);
    }

    fn paths() -> impl Strategy<Value = String> {
        proptest::collection::vec(prop_oneof!["a", "b", "ab", ""], 0..4)
            .prop_map(|segments| format!("/{}", segments.join("/")))
    }

    fn matches() -> impl Strategy<Value = Match> {
        let kinds = (paths(), 0..7usize).prop_map(|(text, kind)| {
            let text = if text.len() > 1 { text.trim_end_matches('/') } else { &*text };
            let text = Text::from(if text.is_empty() { "/" } else { text });
            Some(match kind {
                0 => PathMatch::Exact(text),
                1 => PathMatch::Prefix(text),
                2 => PathMatch::ExactNoCase(text),
                3 => PathMatch::PrefixNoCase(text),
                4 => PathMatch::Regex(Pattern::new(&format!("{text}.?")).unwrap()),
                5 => return None,
                _ => PathMatch::Segments(text),
            })
        });
        let names = proptest::collection::vec(prop_oneof!["x", "y"], 0..2);
        let parameters = proptest::collection::vec(prop_oneof!["q", "r"], 0..2);
        (kinds, names, parameters).prop_map(|(path, names, parameters)| Match {
            path,
            headers: names.iter().map(|name| header(name)).collect(),
            parameters: parameters.iter().map(|name| header(name)).collect(),
            ..Match::default()
        })
    }

    proptest! {
        #[test]
        fn look_up_is_trying_in_turn(
            rules in proptest::collection::vec(
                (0..3i64, 0..3u32, proptest::collection::vec(matches(), 0..4)), 0..12),
            requests in proptest::collection::vec((paths(), any::<bool>()), 1..8),
        ) {
            let rules = rules.into_iter().enumerate().map(|(at, (created, kind, matches))| {
                let kind = [RouteKind::HttpRoute, RouteKind::GrpcRoute, RouteKind::VirtualService]
                    [kind as usize];
                Arc::new(rule(kind, created, &at.to_string(), 0, matches))
            });
            let table = RouteTable::new(rules);
            for (path, has_header) in requests {
                let fields = [("x".to_owned(), "1".to_owned())];
                ask(&path, if has_header { &fields } else { &[] })(&table);
            }
        }
    }
}
