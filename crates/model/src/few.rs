//! Indexes whose keys nearly always lead to one thing: workloads by address, resources by alias.
//!
//! A set with one element takes a whole node of its tree, several hundred bytes for each of 100,000
//! workloads. So one element is kept inline. Persistent like the maps it lives in, and never empty.

use std::borrow::Borrow;

use imbl::{OrdMap, OrdSet};

/// The values of one key: nearly always one, for which a set would take too much memory.
#[derive(Clone, Debug)]
pub enum Few<T: Ord> {
    /// Only this.
    One(T),
    /// At least two; boxed, because few are and all would take the room.
    More(Box<OrdSet<T>>),
}

impl<T: Clone + Ord> Few<T> {
    /// The least of them.
    pub fn first(&self) -> &T {
        match self {
            Self::One(one) => one,
            Self::More(all) => all.get_min().expect("it holds at least two"),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::More(all) => all.len(),
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, more) = match self {
            Self::One(one) => (Some(one), None),
            Self::More(all) => (None, Some(&**all)),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    fn add(&mut self, value: T) {
        match self {
            Self::One(one) if *one == value => {}
            Self::One(one) => {
                let both: OrdSet<T> = [one.clone(), value].into_iter().collect();
                *self = Self::More(Box::new(both));
            }
            Self::More(all) => drop(all.insert(value)),
        }
    }

    /// Removes `value` unless it is the last; answers whether it is.
    fn is_last(&mut self, value: &T) -> bool {
        match self {
            Self::One(one) => one == value,
            Self::More(all) => {
                all.remove(value);
                let last = all.get_min().filter(|_| all.len() == 1).cloned();
                if let Some(last) = last {
                    *self = Self::One(last);
                }
                false
            }
        }
    }
}

/// Adds `value` to the values of `key`.
pub fn add<K, T>(map: &mut OrdMap<K, Few<T>>, key: K, value: T)
where
    K: Clone + Ord,
    T: Clone + Ord,
{
    // Looked up first: a mutable look-up copies the path, even if the key is missing.
    if !map.contains_key(&key) {
        drop(map.insert(key, Few::One(value)));
    } else if let Some(few) = map.get_mut(&key) {
        few.add(value);
    }
}

/// Removes `value` from the values of `key`, and the key with the last of them.
pub fn remove<K, Q, T>(map: &mut OrdMap<K, Few<T>>, key: &Q, value: &T)
where
    K: Clone + Ord + Borrow<Q>,
    Q: Ord + ?Sized,
    T: Clone + Ord,
{
    if map.get_mut(key).is_some_and(|few| few.is_last(value)) {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_found_until_it_is_removed() {
        let mut map: OrdMap<&str, Few<u8>> = OrdMap::new();
        let found = |map: &OrdMap<&str, Few<u8>>| {
            map.get("k").map(|few| (few.iter().copied().collect::<Vec<_>>(), *few.first()))
        };
        for (value, expected) in [(2, vec![2]), (2, vec![2]), (1, vec![1, 2]), (3, vec![1, 2, 3])] {
            add(&mut map, "k", value);
            assert_eq!(found(&map), Some((expected.clone(), expected[0])));
        }
        for (value, expected) in [(9, vec![1, 2, 3]), (1, vec![2, 3]), (3, vec![2]), (3, vec![2])] {
            remove(&mut map, "k", &value);
            assert_eq!(found(&map), Some((expected.clone(), expected[0])));
        }
        assert!(matches!(map["k"], Few::One(2)));
        remove(&mut map, "k", &2);
        assert!(map.is_empty());
    }
}
