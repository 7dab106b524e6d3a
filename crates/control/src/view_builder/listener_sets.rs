//! The ListenerSets of the registry, by the Gateways that they name.
//!
//! Whether a Gateway takes one is said elsewhere: it depends on the labels of namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::sets::ListenerSet;

/// All ListenerSets that name a Gateway.
#[derive(Debug, Default)]
pub(crate) struct ListenerSets {
    gateways: BTreeMap<ObjectName, ObjectName>,
    sets: BTreeMap<ObjectName, BTreeMap<ObjectName, Arc<ListenerSet>>>,
}

impl ListenerSets {
    /// Puts or removes a set; answers with the Gateways that it named and names, if it is news.
    pub(super) fn put(
        &mut self,
        name: &ObjectName,
        set: Option<Arc<ListenerSet>>,
    ) -> Vec<ObjectName> {
        let named = set.as_ref().and_then(|it| it.gateway());
        let gateway = named.map(|(namespace, name)| ObjectName::new(namespace, name));
        let before = self.gateways.get(name).cloned();
        let known = before.as_ref().and_then(|it| self.sets.get(it)?.get(name));
        if before == gateway && known == set.as_ref() {
            return Vec::new();
        }
        if let Some(before) = &before {
            self.gateways.remove(name);
            let of_gateway = self.sets.entry(before.clone()).or_default();
            of_gateway.remove(name);
            if of_gateway.is_empty() {
                self.sets.remove(before);
            }
        }
        if let (Some(gateway), Some(set)) = (&gateway, set) {
            self.gateways.insert(name.clone(), gateway.clone());
            self.sets.entry(gateway.clone()).or_default().insert(name.clone(), set);
        }
        before.into_iter().chain(gateway).collect()
    }

    /// The Gateway that a set names.
    pub(crate) fn gateway(&self, set: &ObjectName) -> Option<&ObjectName> {
        self.gateways.get(set)
    }

    /// The sets that name a Gateway.
    pub(crate) fn of(
        &self,
        gateway: &ObjectName,
    ) -> impl Iterator<Item = (&ObjectName, &Arc<ListenerSet>)> {
        self.sets.get(gateway).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_set_moves_from_one_gateway_to_another() {
        let mut sets = ListenerSets::default();
        let name = ObjectName::new("shop", "own");
        let mut check = |gateway: Option<&str>, news: &[&str], held: [usize; 2]| {
            let set = gateway.map(|gateway| {
                let set = json!({
                    "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
                    "metadata": {"namespace": "shop", "name": "own"},
                    "spec": {"parentRef": {"name": gateway}, "listeners": []},
                });
                Arc::new(serde_json::from_value(set).expect("a ListenerSet"))
            });
            let told = sets.put(&name, set);
            assert!(told.iter().map(|it| &*it.name).eq(news.iter().copied()), "{gateway:?}");
            let count = |gateway| sets.of(&ObjectName::new("shop", gateway)).count();
            assert_eq!(["one", "two"].map(count), held, "{gateway:?}");
            assert_eq!(sets.gateway(&name).map(|it| &*it.name), gateway);
        };
        check(Some("one"), &["one"], [1, 0]);
        check(Some("one"), &[], [1, 0]);
        check(Some("two"), &["one", "two"], [0, 1]);
        check(None, &["two"], [0, 0]);
        check(None, &[], [0, 0]);
    }
}
