//! The indexes of a view: lookup by the hash of a name, an address or a hostname.
//!
//! A tree of hashes, not a hash map: the nodes of a persistent hash map have room for sixteen, and
//! with 50,000 workloads they hold two. A lookup may also find items with the same hash. Each item
//! holds its own name, so the caller compares.

use std::cmp::Ordering;
use std::sync::Arc;

use imbl::OrdMap;

use crate::Text;
use crate::few::{self, Few};
use crate::names::ServiceName;
use crate::service::Service;
use crate::workload::Workload;

/// What a view names uniquely.
pub(crate) trait Named {
    /// The kind of its name.
    type Name: Ord;

    /// Its name.
    fn unique_name(&self) -> &Self::Name;
}

impl Named for Workload {
    type Name = Text;

    fn unique_name(&self) -> &Text {
        &self.uid
    }
}

impl Named for Service {
    type Name = ServiceName;

    fn unique_name(&self) -> &ServiceName {
        &self.key
    }
}

/// Workloads or services by the hash of something.
#[derive(Clone, Debug)]
pub(crate) struct Index<T>(OrdMap<u64, Few<Member<T>>>)
where
    T: Named + Clone;

impl<T: Named + Clone> Default for Index<T> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

impl<T: Named + Clone> Index<T> {
    /// All with this hash, in the order of their names.
    pub(crate) fn get(&self, hash: u64) -> impl Iterator<Item = &Arc<T>> {
        self.0.get(&hash).into_iter().flat_map(Few::iter).map(|Member(it)| it)
    }

    /// Adds it, unless one of its name is there.
    pub(crate) fn add(&mut self, hash: u64, it: &Arc<T>) {
        few::add(&mut self.0, hash, Member(it.clone()));
    }

    /// Removes the one of this name.
    pub(crate) fn remove(&mut self, hash: u64, it: &Arc<T>) {
        few::remove(&mut self.0, &hash, &Member(it.clone()));
    }

    /// All, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.values().flat_map(Few::iter).map(|Member(it)| it)
    }
}

/// Known by its name.
#[derive(Clone, Debug)]
pub(crate) struct Member<T>(Arc<T>);

impl<T: Named> Member<T> {
    /// One that is known by its name.
    pub(crate) fn new(it: &Arc<T>) -> Self {
        Self(it.clone())
    }

    /// The name.
    pub(crate) fn name(&self) -> &T::Name {
        self.0.unique_name()
    }
}

impl<T: Named> PartialEq for Member<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: Named> Eq for Member<T> {}

impl<T: Named> Ord for Member<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.unique_name().cmp(other.0.unique_name())
    }
}

impl<T: Named> PartialOrd for Member<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_one_hash_are_apart() {
        let workload = |uid: &str| Arc::new(Workload::named(uid, "shop", "web"));
        let (one, two) = (workload("one"), workload("two"));
        let uids = |index: &Index<Workload>| -> Vec<String> {
            index.get(7).map(|it| it.uid.to_string()).collect()
        };
        let mut index = Index::default();
        index.add(7, &two);
        index.add(7, &one);
        index.add(7, &one);
        assert_eq!(uids(&index), ["one", "two"]);
        assert_eq!(index.iter().count(), 2);
        index.remove(7, &two);
        index.remove(8, &one);
        assert_eq!(uids(&index), ["one"]);
        index.remove(7, &one);
        assert_eq!(index.iter().count(), 0);
    }
}
