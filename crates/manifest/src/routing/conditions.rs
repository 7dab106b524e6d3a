//! What is reported about a route.

use super::Routing;
use super::problem::{Problem, Reason};
use crate::policy::StatusCondition;

/// What becomes of what a route was meant for and cannot do.
#[derive(Clone, Copy)]
struct Words {
    /// Of what a rule that is lost matches.
    lost: &'static str,
    /// Of the share of a backend that cannot be used.
    share: &'static str,
}

const OF_REQUESTS: Words = Words {
    lost: "requests that they match are answered with 500",
    share: "their share of requests is answered with 500",
};
const OF_CONNECTIONS: Words = Words {
    lost: "connections that they match are refused",
    share: "their share of connections is refused",
};

/// The conditions of a route as one that its parent takes: `Accepted`, `ResolvedRefs`, and
/// `PartiallyInvalid` where some of its rules hold and others do not.
pub fn conditions(routing: &Routing) -> Vec<StatusCondition> {
    let (problems, rules) = (&routing.problems[..], routing.rule_count());
    let words = if routing.connections.is_empty() { OF_REQUESTS } else { OF_CONNECTIONS };
    let mut conditions = vec![accepted(problems, rules, words), resolved(problems, words)];
    let lost = lost(problems);
    if !lost.is_empty() && lost.len() < rules {
        let numbers: Vec<String> = lost.iter().map(ToString::to_string).collect();
        conditions.push(StatusCondition {
            kind: "PartiallyInvalid",
            status: "True",
            reason: first(problems, false).unwrap_or(Reason::UnsupportedValue).word(),
            message: format!(
                "Dropped Rule {}: {}: {}",
                numbers.join(", "),
                words.lost,
                said(problems, false)
            ),
        });
    }
    conditions
}

/// The condition of a route whose parent does not exist, or has no such port or listener.
pub fn without_parent(message: String) -> StatusCondition {
    not_accepted("NoMatchingParent", message)
}

/// The condition of a route that its parent does not take.
pub fn not_accepted(reason: &'static str, message: String) -> StatusCondition {
    StatusCondition { kind: "Accepted", status: "False", reason, message }
}

fn accepted(problems: &[Problem], rules: usize, words: Words) -> StatusCondition {
    let kind = "Accepted";
    match first(problems, false) {
        Some(reason) if lost(problems).len() >= rules => StatusCondition {
            kind,
            status: "False",
            reason: reason.word(),
            message: format!(
                "no rule can be honoured, and {}: {}",
                words.lost,
                said(problems, false)
            ),
        },
        _ => StatusCondition {
            kind,
            status: "True",
            reason: "Accepted",
            message: "the route is in force".to_owned(),
        },
    }
}

fn resolved(problems: &[Problem], words: Words) -> StatusCondition {
    let kind = "ResolvedRefs";
    match first(problems, true) {
        Some(reason) => StatusCondition {
            kind,
            status: "False",
            reason: reason.word(),
            message: format!("{}: {}", words.share, said(problems, true)),
        },
        None => StatusCondition {
            kind,
            status: "True",
            reason: "ResolvedRefs",
            message: "every backend exists".to_owned(),
        },
    }
}

/// The indexes of rules that cannot be honoured, ascending.
fn lost(problems: &[Problem]) -> Vec<usize> {
    let mut lost: Vec<usize> = problems.iter().filter_map(|problem| problem.rule).collect();
    lost.sort_unstable();
    lost.dedup();
    lost
}

fn first(problems: &[Problem], is_of_reference: bool) -> Option<Reason> {
    let mut reasons = problems.iter().map(|problem| problem.reason);
    reasons.find(|reason| reason.is_of_reference() == is_of_reference)
}

/// All problems of references, or all others, as one sentence.
fn said(problems: &[Problem], is_of_reference: bool) -> String {
    let of = problems.iter().filter(|it| it.reason.is_of_reference() == is_of_reference);
    let mut said: Vec<String> = of.map(|it| format!("{}: {}", it.at.as_str(), it.what)).collect();
    // What makes the whole route unusable is a problem of each rule.
    said.dedup();
    said.join("; ")
}
