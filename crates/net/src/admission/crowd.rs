//! One bounded set of connections, counted by their owners.
//!
//! Pure: it says which connection has to close, and closes nothing.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// How many connections of one kind there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// All together.
    pub total: usize,
    /// Of each source or owner.
    pub each: usize,
}

impl Bound {
    /// That of a port where there are none of the kind.
    pub const NONE: Self = Self { total: 0, each: 0 };
}

/// The order in which connections are closed, the greatest first: strangers before known sources,
/// then the source that has most, then the oldest.
type Rank<K> = (bool, usize, Reverse<u64>, K);

/// Connections of one kind, by owner. Their numbers grow with time.
#[derive(Debug)]
pub(super) struct Crowd<K> {
    bound: Bound,
    count: usize,
    owners: HashMap<K, Owned>,
    ranks: BTreeSet<Rank<K>>,
}

#[derive(Debug, Default)]
struct Owned {
    is_known: bool,
    numbers: BTreeSet<u64>,
}

impl<K: Clone + Eq + Hash + Ord> Crowd<K> {
    /// An empty crowd.
    pub(super) fn new(bound: Bound) -> Self {
        Self { bound, count: 0, owners: HashMap::new(), ranks: BTreeSet::new() }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds a connection. Answers which one has to go for it, already taken out.
    pub(super) fn add(&mut self, owner: &K, number: u64, is_known: bool) -> Option<(K, u64)> {
        self.count += 1;
        self.change(owner, |owned| {
            owned.is_known = is_known;
            owned.numbers.insert(number);
        });
        let of_owner = self.owners.get(owner).map_or(0, |owned| owned.numbers.len());
        let from = if of_owner > self.bound.each {
            owner.clone()
        } else if self.count > self.bound.total {
            self.ranks.last()?.3.clone()
        } else {
            return None;
        };
        let oldest = *self.owners.get(&from)?.numbers.first()?;
        self.remove(&from, oldest);
        Some((from, oldest))
    }

    /// Takes a connection out, if it is there.
    pub(super) fn remove(&mut self, owner: &K, number: u64) {
        let is_there = |owned: &Owned| owned.numbers.contains(&number);
        if self.owners.get(owner).is_some_and(is_there) {
            self.count -= 1;
            self.change(owner, |owned| {
                owned.numbers.remove(&number);
            });
        }
    }

    /// Keeps the rank in step with what it is made of.
    fn change(&mut self, owner: &K, change: impl FnOnce(&mut Owned)) {
        let owned = self.owners.entry(owner.clone()).or_default();
        if let Some(rank) = rank(owner, owned) {
            self.ranks.remove(&rank);
        }
        change(owned);
        match rank(owner, owned) {
            Some(rank) => drop(self.ranks.insert(rank)),
            None => drop(self.owners.remove(owner)),
        }
    }
}

fn rank<K: Clone>(owner: &K, owned: &Owned) -> Option<Rank<K>> {
    let oldest = *owned.numbers.first()?;
    Some((!owned.is_known, owned.numbers.len(), Reverse(oldest), owner.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds connections of these owners one after another; capitals are known. Answers who went.
    fn check(total: usize, each: usize, owners: &str, expected: &[u64]) {
        let mut crowd = Crowd::new(Bound { total, each });
        let mut went = Vec::new();
        for (number, owner) in (0..).zip(owners.chars()) {
            let gone = crowd.add(&owner, number, owner.is_uppercase());
            went.extend(gone.map(|(_, number)| number));
        }
        assert_eq!(went, expected, "{owners}");
        assert_eq!(crowd.count(), owners.len() - expected.len(), "{owners}");
        for (number, owner) in (0..).zip(owners.chars()) {
            crowd.remove(&owner, number);
            crowd.remove(&owner, number);
        }
        assert_eq!(crowd.count(), 0, "{owners}");
        assert!(crowd.owners.is_empty() && crowd.ranks.is_empty(), "{owners}: no trace");
    }

    #[test]
    fn whoever_has_most_loses_his_oldest() {
        check(4, 4, "aaab", &[]);
        check(4, 4, "aaabb", &[0]);
        check(4, 4, "baaaaaa", &[1, 2, 3]);
        check(4, 2, "aaaa", &[0, 1]);
        check(4, 2, "baaa", &[1]);
    }

    #[test]
    fn among_equals_the_oldest_goes() {
        check(3, 3, "abcde", &[0, 1]);
    }

    #[test]
    fn whoever_is_known_goes_last() {
        check(3, 3, "Aabcd", &[1, 2]);
        check(3, 3, "AAAb", &[3]);
        check(3, 2, "AAA", &[0]);
    }
}
