//! A copy of the API server's objects of one kind, updated by a watch and by single look-ups.
//!
//! While the watch starts over, the copy stays unchanged: nothing vanishes in between. An object
//! that is older than the known one is ignored, whichever way it arrives. It never asks the server
//! itself.

use std::collections::BTreeMap;

/// An object as of some version.
#[derive(Debug, Clone)]
pub(super) struct Versioned<V> {
    /// `metadata.resourceVersion`, which orders the versions of an object.
    pub(super) version: Option<u64>,
    pub(super) value: V,
}

impl<V> Versioned<V> {
    /// Wraps the text of `metadata.resourceVersion`; one that is no number orders nothing.
    pub(super) fn new(version: Option<&str>, value: V) -> Self {
        Self { version: version.and_then(|version| version.parse().ok()), value }
    }

    fn is_older(&self, than: &Self) -> bool {
        self.version.zip(than.version).is_some_and(|(this, that)| this < that)
    }
}

/// The copy.
#[derive(Debug)]
pub(super) struct Mirror<K, V> {
    current: BTreeMap<K, Versioned<V>>,
    /// What a list that is under way has brought so far.
    listing: Option<BTreeMap<K, Versioned<V>>>,
    /// What was looked up while a list is under way: it may be older or newer than the list.
    looked_up: Vec<K>,
    /// Whether a list has ended yet.
    listed: bool,
}

impl<K: Ord + Clone, V> Mirror<K, V> {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self { current: BTreeMap::new(), listing: None, looked_up: Vec::new(), listed: false }
    }

    /// Whether everything that is there is known.
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.current.get(key).map(|known| &known.value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.current.iter().map(|(key, known)| (key, &known.value))
    }

    /// The watch starts, or starts over.
    pub(super) fn list(&mut self) {
        self.listing = Some(BTreeMap::new());
        self.looked_up.clear();
    }

    /// The list has this.
    pub(super) fn list_one(&mut self, key: K, found: Versioned<V>) {
        if let Some(listing) = &mut self.listing {
            listing.insert(key, found);
        }
    }

    /// The list is complete. Returns the objects that it lacks and a look-up had found: the caller
    /// has to look them up again.
    pub(super) fn end_list(&mut self) -> Vec<K> {
        let Some(mut listing) = self.listing.take() else { return Vec::new() };
        let mut uncertain = Vec::new();
        for key in std::mem::take(&mut self.looked_up) {
            let Some(known) = self.current.remove(&key) else { continue };
            match listing.get(&key) {
                Some(listed) if !listed.is_older(&known) => {}
                Some(_) => drop(listing.insert(key, known)),
                None => {
                    uncertain.push(key.clone());
                    listing.insert(key, known);
                }
            }
        }
        self.current = listing;
        self.listed = true;
        uncertain
    }

    /// The watch reports a new or changed object.
    pub(super) fn apply(&mut self, key: K, found: Versioned<V>) {
        if self.current.get(&key).is_none_or(|known| !found.is_older(known)) {
            self.current.insert(key, found);
        }
    }

    /// A look-up found the object.
    pub(super) fn look_up(&mut self, key: K, found: Versioned<V>) {
        if self.listing.is_some() {
            self.looked_up.push(key.clone());
        }
        self.apply(key, found);
    }

    /// The watch reports that the object was deleted, at this version.
    pub(super) fn delete(&mut self, key: &K, last: &Versioned<V>) {
        if self.current.get(key).is_some_and(|known| !last.is_older(known)) {
            self.current.remove(key);
        }
    }

    /// A look-up found that this is not there any more.
    pub(super) fn forget(&mut self, key: &K) {
        self.current.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to the copy.
    enum Step {
        List,
        Listed(&'static str, u64),
        End(&'static [&'static str]),
        Apply(&'static str, u64),
        LookUp(&'static str, u64),
        Delete(&'static str, u64),
    }
    use Step::{Apply, Delete, End, List, Listed, LookUp};

    /// After each step, the copy.
    fn check(script: &[(Step, &[(&str, u64)])]) {
        let mut mirror = Mirror::new();
        let at = |version: u64| Versioned::new(Some(&version.to_string()), version);
        for (index, (step, expected)) in script.iter().enumerate() {
            match *step {
                List => mirror.list(),
                Listed(key, version) => mirror.list_one(key, at(version)),
                End(uncertain) => assert_eq!(mirror.end_list(), uncertain, "step {index}"),
                Apply(key, version) => mirror.apply(key, at(version)),
                LookUp(key, version) => mirror.look_up(key, at(version)),
                Delete(key, version) => mirror.delete(&key, &at(version)),
            }
            let found: Vec<_> = mirror.iter().map(|(key, version)| (*key, *version)).collect();
            assert_eq!(found, *expected, "step {index}");
        }
    }

    #[test]
    fn a_watch_that_starts_over_lets_nothing_vanish_before_its_end() {
        check(&[
            (List, &[]),
            (Listed("a", 1), &[]),
            (Listed("b", 2), &[]),
            (End(&[]), &[("a", 1), ("b", 2)]),
            (List, &[("a", 1), ("b", 2)]),
            (Listed("b", 5), &[("a", 1), ("b", 2)]),
            (List, &[("a", 1), ("b", 2)]),
            (Listed("b", 6), &[("a", 1), ("b", 2)]),
            (End(&[]), &[("b", 6)]),
        ]);
    }

    #[test]
    fn the_newest_version_counts_whichever_way_it_comes() {
        check(&[
            (List, &[]),
            (End(&[]), &[]),
            (LookUp("a", 9), &[("a", 9)]),
            (Apply("a", 7), &[("a", 9)]),
            (Delete("a", 8), &[("a", 9)]),
            (Apply("a", 10), &[("a", 10)]),
            (Delete("a", 11), &[]),
        ]);
    }

    #[test]
    fn what_was_looked_up_during_a_list_is_looked_up_again() {
        check(&[
            (List, &[]),
            (LookUp("a", 3), &[("a", 3)]),
            (LookUp("b", 4), &[("a", 3), ("b", 4)]),
            (LookUp("c", 5), &[("a", 3), ("b", 4), ("c", 5)]),
            (Listed("b", 2), &[("a", 3), ("b", 4), ("c", 5)]),
            (Listed("c", 6), &[("a", 3), ("b", 4), ("c", 5)]),
            (End(&["a"]), &[("a", 3), ("b", 4), ("c", 6)]),
        ]);
    }
}
