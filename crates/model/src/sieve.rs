//! Which policies can match a connection at all.
//!
//! A workload may have ten thousand policies, of which one matches. Of every rule a clue is kept:
//! values of which a connection must have one for the rule to hold. A decision looks up what it
//! has, and reads only those policies in full. What it finds may be too much, never too little.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::quality::RandomState;
use imbl::OrdMap;
use ipnet::IpNet;

use crate::Text;
use crate::few::{self, Few};
use crate::index::{Index, Member, Named};
use crate::names::PolicyName;
use crate::policy::{Action, Clause, Match, Policy, PolicyScope, TextMatch};

/// The policies of the mesh and of namespaces, by what a connection must have to match them. Those
/// that workloads name are not among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sieve {
    hasher: RandomState,
    by_clue: Index<Policy>,
    /// The policies that allow.
    allows: OrdMap<Kind, Few<Member<Policy>>>,
}

/// What a connection may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Clue<'a> {
    /// As every one has.
    Anything,
    /// Its source's principal.
    Principal(&'a str),
    /// The namespace and the name of its source's service account.
    Account(&'a str, &'a str),
    /// Its source's address.
    Ip(IpAddr),
    /// Its source's namespace, empty without an identity.
    Namespace(&'a str),
    /// The port that it goes to.
    Port(u16),
}

/// A kind of ALLOW policies, which hold for the same workloads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    /// The namespace for which they hold, if it is not the mesh.
    pub(crate) namespace: Option<Text>,
    /// They are on trial.
    pub(crate) dry_run: bool,
    /// Waypoints judge them too.
    pub(crate) is_of_waypoints: bool,
}

impl Named for Policy {
    type Name = PolicyName;

    fn unique_name(&self) -> &PolicyName {
        &self.key
    }
}

impl Sieve {
    /// Adds a policy that is not there.
    pub(crate) fn add(&mut self, policy: &Arc<Policy>) {
        let Some(namespace) = scope_of(policy) else { return };
        for clue in clues_of(policy) {
            self.by_clue.add(self.hasher.hash_one((namespace, clue)), policy);
        }
        if let Some(kind) = Kind::of(policy) {
            few::add(&mut self.allows, kind, Member::new(policy));
        }
    }

    /// Removes a policy that was added.
    pub(crate) fn remove(&mut self, policy: &Arc<Policy>) {
        let Some(namespace) = scope_of(policy) else { return };
        for clue in clues_of(policy) {
            self.by_clue.remove(self.hasher.hash_one((namespace, clue)), policy);
        }
        if let Some(kind) = Kind::of(policy) {
            few::remove(&mut self.allows, &kind, &Member::new(policy));
        }
    }

    /// All of the mesh's policies, or of this namespace's, that a connection with these clues can
    /// match, in the order of their names.
    pub(crate) fn matching(
        &self,
        namespace: Option<&str>,
        clues: &[Clue<'_>],
    ) -> Vec<&Arc<Policy>> {
        let hashes = clues.iter().map(|clue| self.hasher.hash_one((namespace, clue)));
        let found = hashes.flat_map(|hash| self.by_clue.get(hash));
        // Others may have the same hash.
        let mut all: Vec<_> = found.filter(|it| scope_of(it) == Some(namespace)).collect();
        all.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        all.dedup_by(|one, other| one.key == other.key);
        all
    }

    /// The first by name of these ALLOW policies, and how many there are.
    pub(crate) fn allows(&self, kind: &Kind) -> Option<(&PolicyName, usize)> {
        let few = self.allows.get(kind)?;
        Some((few.first().name(), few.count()))
    }
}

impl Kind {
    /// The kind of a policy that allows.
    fn of(policy: &Policy) -> Option<Self> {
        let Policy { dry_run, is_of_waypoints, .. } = *policy;
        let namespace = scope_of(policy)?.map(|_| policy.key.namespace.clone());
        let allows = policy.action == Action::Allow;
        allows.then_some(Self { namespace, dry_run, is_of_waypoints })
    }
}

/// The namespace for which it holds, if it is not the mesh. `None` if workloads name it.
fn scope_of(policy: &Policy) -> Option<Option<&str>> {
    match policy.scope {
        PolicyScope::Global => Some(None),
        PolicyScope::Namespace => Some(Some(&policy.key.namespace)),
        PolicyScope::WorkloadSelector => None,
    }
}

/// Of each rule what a connection must have one of.
fn clues_of(policy: &Policy) -> Vec<Clue<'_>> {
    let all = policy.rules.iter().flat_map(|rule| {
        let clauses = rule.clauses.iter().filter(|clause| !clause.matches.is_empty());
        let best = clauses.filter_map(clues_of_clause).min_by_key(|(width, _)| *width);
        best.map_or_else(|| vec![Clue::Anything], |(_, clues)| clues)
    });
    let mut seen = HashSet::new();
    all.filter(|clue| seen.insert(*clue)).collect()
}

/// What one of its matches needs, and how much that lets through, if every match needs something.
fn clues_of_clause(clause: &Clause) -> Option<(u8, Vec<Clue<'_>>)> {
    let (mut width, mut all) = (0, Vec::new());
    for one in &clause.matches {
        let (of_match, clues) = clues_of_match(one)?;
        width = width.max(of_match);
        all.extend(clues);
    }
    Some((width, all))
}

/// The narrowest field of a match that only exact values satisfy. One without fields matches
/// nothing, and so needs no clue to be found by.
fn clues_of_match(one: &Match) -> Option<(u8, Vec<Clue<'_>>)> {
    if *one == Match::default() {
        return Some((0, Vec::new()));
    }
    let accounts = one.service_accounts.iter();
    let accounts = accounts.map(|it| Some(Clue::Account(&it.namespace, &it.service_account)));
    let fields = [
        all(one.principals.iter().map(|it| exact(it).map(Clue::Principal))),
        all(accounts),
        all(one.source_ips.iter().map(|net| host(net).map(Clue::Ip))),
        all(one.namespaces.iter().map(|it| exact(it).map(Clue::Namespace))),
        all(one.destination_ports.iter().map(|port| Some(Clue::Port(*port)))),
    ];
    (0..).zip(fields).find_map(|(width, clues)| Some((width, clues?)))
}

/// All of them, if there is one and each is something.
fn all<'a>(clues: impl Iterator<Item = Option<Clue<'a>>>) -> Option<Vec<Clue<'a>>> {
    clues.collect::<Option<Vec<_>>>().filter(|clues| !clues.is_empty())
}

fn exact(text: &TextMatch) -> Option<&str> {
    match text {
        TextMatch::Exact(text) => Some(text),
        TextMatch::Prefix(_) | TextMatch::Suffix(_) | TextMatch::Presence => None,
    }
}

fn host(net: &IpNet) -> Option<IpAddr> {
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}
