//! Labels and what they select, indexed both ways.
//!
//! [`Members`] answers "what does this selector select", [`Selectors`] answers "which selectors
//! select this". Both visit only entries that share a label, so one changed object does not cost a
//! walk over a namespace. Neither may know what it indexes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use ambit_model::Text;

/// Labels of an object, or those that a selector wants.
pub(crate) type Labels = BTreeMap<String, String>;

/// Whether an object with `labels` is selected; an empty selector selects all.
pub(crate) fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Objects by namespace and label.
#[derive(Debug)]
pub(crate) struct Members<K> {
    namespaces: HashMap<Text, NamespaceMembers<K>>,
}

#[derive(Debug)]
struct NamespaceMembers<K> {
    labels: BTreeMap<K, Arc<Labels>>,
    by_label: HashMap<(String, String), BTreeSet<K>>,
}

impl<K> Default for Members<K> {
    fn default() -> Self {
        Self { namespaces: HashMap::new() }
    }
}

impl<K: Ord + Clone> Members<K> {
    /// Adds `key`, or replaces its labels.
    pub(crate) fn insert(&mut self, namespace: &Text, key: K, labels: Arc<Labels>) {
        self.remove(namespace, &key);
        let members = self.namespaces.entry(namespace.clone()).or_insert_with(|| {
            NamespaceMembers { labels: BTreeMap::new(), by_label: HashMap::new() }
        });
        for label in labels.iter() {
            let label = (label.0.clone(), label.1.clone());
            members.by_label.entry(label).or_default().insert(key.clone());
        }
        members.labels.insert(key, labels);
    }

    /// Removes `key`.
    pub(crate) fn remove(&mut self, namespace: &Text, key: &K) {
        let Some(members) = self.namespaces.get_mut(namespace) else { return };
        let Some(labels) = members.labels.remove(key) else { return };
        for label in labels.iter() {
            let label = (label.0.clone(), label.1.clone());
            if let Some(set) = members.by_label.get_mut(&label) {
                set.remove(key);
                if set.is_empty() {
                    members.by_label.remove(&label);
                }
            }
        }
        if members.labels.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// The members of `namespace` that `selector` selects, in order.
    pub(crate) fn select(&self, namespace: &str, selector: &Labels) -> Vec<K> {
        let Some(members) = self.namespaces.get(namespace) else { return Vec::new() };
        let mut smallest: Option<&BTreeSet<K>> = None;
        for (key, value) in selector {
            let Some(set) = members.by_label.get(&(key.clone(), value.clone())) else {
                return Vec::new();
            };
            if smallest.is_none_or(|known| set.len() < known.len()) {
                smallest = Some(set);
            }
        }
        match smallest {
            None => members.labels.keys().cloned().collect(),
            Some(set) => {
                let selected = |key: &&K| selects(selector, &members.labels[*key]);
                set.iter().filter(selected).cloned().collect()
            }
        }
    }

    /// The members of all namespaces that `selector` selects.
    pub(crate) fn select_everywhere(&self, selector: &Labels) -> Vec<K> {
        self.namespaces.keys().flat_map(|namespace| self.select(namespace, selector)).collect()
    }
}

/// Selectors by namespace and one label that they want.
#[derive(Debug)]
pub(crate) struct Selectors<K> {
    by_label: HashMap<(Text, String, String), BTreeMap<K, Arc<Labels>>>,
    all: HashMap<K, (Text, Arc<Labels>)>,
}

impl<K> Default for Selectors<K> {
    fn default() -> Self {
        Self { by_label: HashMap::new(), all: HashMap::new() }
    }
}

impl<K: Ord + Clone + Hash> Selectors<K> {
    /// Adds the selector of `key`, or replaces it. An empty selector selects nothing here: its
    /// owner handles its meaning (nothing for a Service, everything for a policy).
    pub(crate) fn insert(&mut self, namespace: &Text, key: K, selector: Arc<Labels>) {
        self.remove(&key);
        if let Some(slot) = slot(namespace, &selector) {
            self.by_label.entry(slot).or_default().insert(key.clone(), selector.clone());
            self.all.insert(key, (namespace.clone(), selector));
        }
    }

    /// Removes the selector of `key`.
    pub(crate) fn remove(&mut self, key: &K) {
        let Some((namespace, selector)) = self.all.remove(key) else { return };
        let Some(slot) = slot(&namespace, &selector) else { return };
        if let Some(owners) = self.by_label.get_mut(&slot) {
            owners.remove(key);
            if owners.is_empty() {
                self.by_label.remove(&slot);
            }
        }
    }

    /// The owners of selectors in `namespace` that select `labels`, in order.
    pub(crate) fn selecting(&self, namespace: &Text, labels: &Labels) -> BTreeSet<K> {
        let mut owners = BTreeSet::new();
        for (key, value) in labels {
            let slot = (namespace.clone(), key.clone(), value.clone());
            for (owner, selector) in self.by_label.get(&slot).into_iter().flatten() {
                if selects(selector, labels) {
                    owners.insert(owner.clone());
                }
            }
        }
        owners
    }
}

/// Any label of the selector would do; the last is seldom a common one such as
/// `app.kubernetes.io/part-of`.
fn slot(namespace: &Text, selector: &Labels) -> Option<(Text, String, String)> {
    let (key, value) = selector.last_key_value()?;
    Some((namespace.clone(), key.clone(), value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Arc<Labels> {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        Arc::new(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn members_are_selected_by_all_labels() {
        let namespace: Text = "shop".into();
        let mut members = Members::default();
        for (key, text) in [(1, "app=web,v=1"), (2, "app=web,v=2"), (3, "app=db"), (4, "")] {
            members.insert(&namespace, key, labels(text));
        }
        let select = |members: &Members<i32>, text| members.select("shop", &labels(text));
        assert_eq!(select(&members, "app=web"), [1, 2]);
        assert_eq!(select(&members, "app=web,v=2"), [2]);
        assert_eq!(select(&members, "app=db,v=2"), [0; 0]);
        assert_eq!(select(&members, ""), [1, 2, 3, 4]);
        members.insert(&namespace, 2, labels("app=db"));
        members.remove(&namespace, &1);
        assert_eq!(select(&members, "app=web"), [0; 0]);
        assert_eq!(select(&members, "app=db"), [2, 3]);
        assert_eq!(members.select("other", &labels("")), [0; 0]);
        assert_eq!(members.select_everywhere(&labels("app=db")), [2, 3]);
    }

    #[test]
    fn selectors_are_found_by_the_labels_they_select() {
        let namespace: Text = "shop".into();
        let mut selectors = Selectors::default();
        for (key, text) in [(1, "app=web"), (2, "app=web,v=2"), (3, "")] {
            selectors.insert(&namespace, key, labels(text));
        }
        let selecting = |selectors: &Selectors<i32>, text| {
            selectors.selecting(&namespace, &labels(text)).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(selecting(&selectors, "app=web,v=2,x=y"), [1, 2]);
        assert_eq!(selecting(&selectors, "app=web"), [1]);
        selectors.insert(&namespace, 1, labels("app=db"));
        selectors.remove(&2);
        assert_eq!(selecting(&selectors, "app=web,v=2"), [0; 0]);
        assert_eq!(selecting(&selectors, "app=db"), [1]);
    }
}
