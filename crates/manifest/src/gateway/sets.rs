//! ListenerSet of the Gateway API: listeners that are added to a Gateway of another author.
//!
//! A Gateway says whose sets it takes ([`GatewaySpec::takes_sets_of`](super::GatewaySpec)). Its own
//! listeners come first, then those of the oldest set: [`listeners`](super::listeners) judges them
//! in this order. Nothing here may take a set that its Gateway does not take.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::Listener;
use crate::istio::IstioObject;
use crate::routes::GROUP;

/// gateway.networking.k8s.io ListenerSet.
pub type ListenerSet = IstioObject<ListenerSetSpec>;

/// Listeners, and the Gateway to which they are added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSetSpec {
    /// The Gateway.
    pub parent_ref: ParentGateway,
    /// Where it listens as well.
    pub listeners: Vec<Listener>,
}

/// Names a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentGateway {
    /// Its API group; the Gateway API's when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its kind; `Gateway` when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// Its namespace; the set's own when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl ParentGateway {
    /// Whether it is a Gateway, which is all that a set can be added to.
    pub(crate) fn is_gateway(&self) -> bool {
        self.group.as_deref().unwrap_or(GROUP) == GROUP
            && self.kind.as_deref().unwrap_or("Gateway") == "Gateway"
    }
}

impl IstioObject<ListenerSetSpec> {
    /// Its namespace and name.
    pub fn namespaced_name(&self) -> (&str, &str) {
        let (namespace, name) = (&self.metadata.namespace, &self.metadata.name);
        (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
    }

    /// The namespace and the name of its Gateway.
    pub fn gateway(&self) -> Option<(&str, &str)> {
        let parent = &self.spec.parent_ref;
        let namespace = parent.namespace.as_deref().unwrap_or(self.namespaced_name().0);
        parent.is_gateway().then_some((namespace, parent.name.as_str()))
    }

    /// Which of two sets of a Gateway comes first: the older one, then the one whose namespace and
    /// name do.
    pub fn order(&self, other: &Self) -> Ordering {
        let age = self.metadata.creation_timestamp.cmp(&other.metadata.creation_timestamp);
        age.then_with(|| self.namespaced_name().cmp(&other.namespaced_name()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::super::GatewaySpec;
    use super::*;

    fn set(namespace: &str, name: &str, created: Value, parent: Value) -> ListenerSet {
        let set = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": namespace, "name": name, "creationTimestamp": created},
            "spec": {"parentRef": parent,
                "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]},
        });
        serde_json::from_value(set).expect("a ListenerSet")
    }

    #[test]
    fn a_set_names_a_gateway() {
        let check = |parent: Value, expected: Option<(&str, &str)>| {
            let set = set("shop", "own", Value::Null, parent.clone());
            assert_eq!(set.gateway(), expected, "{parent}");
        };
        check(json!({"name": "edge"}), Some(("shop", "edge")));
        check(json!({"name": "edge", "namespace": "infra"}), Some(("infra", "edge")));
        check(json!({"name": "edge", "group": GROUP, "kind": "Gateway"}), Some(("shop", "edge")));
        check(json!({"name": "edge", "kind": "ListenerSet"}), None);
        check(json!({"name": "edge", "group": "networking.istio.io"}), None);
    }

    #[test]
    fn the_older_set_comes_first_then_namespace_and_name() {
        let check = |sets: &[(&str, &str, u8)], expected: &[&str]| {
            let one = |(namespace, name, second): &(&str, &str, u8)| {
                let created = json!(format!("2026-01-01T00:00:0{second}Z"));
                set(namespace, name, created, json!({"name": "edge"}))
            };
            let mut all: Vec<ListenerSet> = sets.iter().map(one).collect();
            all.sort_by(ListenerSet::order);
            let names = all.iter().map(|it| it.namespaced_name().1);
            assert!(names.eq(expected.iter().copied()), "{sets:?}");
        };
        check(&[("a", "new", 2), ("b", "old", 1)], &["old", "new"]);
        check(&[("b", "a", 1), ("a", "b", 1)], &["b", "a"]);
        check(&[("a", "two", 1), ("a", "one", 1)], &["one", "two"]);
    }

    #[test]
    fn a_gateway_says_whose_sets_it_takes() {
        let check = |allowed: Value, expected: [bool; 3]| {
            let spec = json!({"gatewayClassName": "ambit", "allowedListeners": allowed});
            let spec: GatewaySpec = serde_json::from_value(spec).expect("a Gateway");
            let labels = BTreeMap::from([("allowed".to_owned(), "ns".to_owned())]);
            let none = BTreeMap::new();
            let takes = [("infra", &none), ("shop", &labels), ("bank", &none)]
                .map(|(namespace, labels)| spec.takes_sets_of("infra", namespace, labels));
            assert_eq!(takes, expected, "{allowed}");
        };
        let from = |from: &str| json!({"namespaces": {"from": from}});
        check(Value::Null, [false; 3]);
        check(json!({}), [false; 3]);
        check(json!({"namespaces": {}}), [false; 3]);
        check(from("None"), [false; 3]);
        check(from("Same"), [true, false, false]);
        check(from("All"), [true; 3]);
        check(from("Selector"), [false; 3]);
        let selector = json!({"matchLabels": {"allowed": "ns"}});
        let selected = json!({"namespaces": {"from": "Selector", "selector": selector}});
        check(selected, [false, true, false]);
        check(from("Wrong"), [false; 3]);
    }
}
