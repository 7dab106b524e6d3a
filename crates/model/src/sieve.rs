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

/// Most clues of one policy. One with more is read each time.
const CLUES_MAX: usize = 256;

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
    pub(crate) fn matching<'a>(
        &'a self,
        namespace: Option<&'a str>,
        clues: &[Clue<'_>],
    ) -> impl Iterator<Item = &'a Arc<Policy>> + use<'a> {
        let hashes = clues.iter().map(|clue| self.hasher.hash_one((namespace, clue)));
        // In order by clue. Others may have the same hash.
        let of_clues = hashes.map(|hash| self.by_clue.get(hash));
        let of_clues = of_clues.map(|all| all.filter(move |it| scope_of(it) == Some(namespace)));
        let mut of_clues: Vec<_> = of_clues.map(Iterator::peekable).collect();
        std::iter::from_fn(move || {
            let firsts = of_clues.iter_mut().filter_map(|all| all.peek().copied());
            let next = firsts.min_by_key(|policy| &policy.key)?;
            for all in &mut of_clues {
                let _same = all.next_if(|it| it.key == next.key);
            }
            Some(next)
        })
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

/// Of each rule what a connection must have one of. Of very many values none is kept: a change of
/// one would cost as much as all.
fn clues_of(policy: &Policy) -> Vec<Clue<'_>> {
    let all = policy.rules.iter().flat_map(|rule| {
        let clauses = rule.clauses.iter().filter(|clause| !clause.matches.is_empty());
        let best = clauses.filter_map(clues_of_clause).min_by_key(|(width, _)| *width);
        best.map_or_else(|| vec![Clue::Anything], |(_, clues)| clues)
    });
    let mut seen = HashSet::new();
    let clues: Vec<_> = all.filter(|clue| seen.insert(*clue)).take(CLUES_MAX + 1).collect();
    if clues.len() > CLUES_MAX { vec![Clue::Anything] } else { clues }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Rule;

    fn policy(name: &str, principals: usize) -> Arc<Policy> {
        let one = |number| TextMatch::Exact(format!("{name}-{number}").into());
        let one = Match { principals: (0..principals).map(one).collect(), ..Match::default() };
        let also = Match { destination_ports: [80].into(), ..Match::default() };
        let rule = |one| Rule { clauses: vec![Clause { matches: vec![one] }] };
        Arc::new(Policy {
            key: PolicyName::new("app", name),
            scope: PolicyScope::Namespace,
            action: Action::Allow,
            rules: vec![rule(one), rule(also)],
            dry_run: false,
            is_of_waypoints: false,
        })
    }

    #[test]
    fn what_has_many_values_is_found_by_all_and_what_goes_leaves_nothing() {
        let mut sieve = Sieve::default();
        let all = [("few", 3), ("many", 100_000), ("none", 0)].map(|(name, n)| policy(name, n));
        all.iter().for_each(|policy| sieve.add(policy));
        let found = |sieve: &Sieve, clue| -> Vec<String> {
            let all = sieve.matching(Some("app"), &[Clue::Anything, clue]);
            all.map(|policy| policy.key.name.to_string()).collect()
        };
        assert_eq!(found(&sieve, Clue::Principal("few-2")), ["few", "many"]);
        assert_eq!(found(&sieve, Clue::Principal("nobody")), ["many"]);
        assert_eq!(found(&sieve, Clue::Port(80)), ["few", "many", "none"]);
        assert!(sieve.by_clue.iter().count() < 10, "{}", sieve.by_clue.iter().count());
        // Again, as one does who applies it twice.
        all.iter().for_each(|policy| sieve.add(policy));
        all.iter().for_each(|policy| sieve.remove(policy));
        assert_eq!((sieve.by_clue.iter().count(), sieve.allows.len()), (0, 0));
    }
}
