//! The ports of a service that nodes have: `nodePort`, of the types NodePort and LoadBalancer.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::ObjectRef;
use super::admit::ApplyError;
use super::store::Draft;

/// Those that there are, as in Kubernetes.
const RANGE: RangeInclusive<u64> = 30_000..=32_767;

/// A port of a service: its protocol and its number.
type Port = (String, u64);

impl Draft<'_> {
    /// Gives the ports of a service their node ports, where its type wants some: those that are
    /// asked for, those that it has, or free ones.
    pub(super) fn assign_node_ports(
        &self,
        object: &ObjectRef,
        spec: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), ApplyError> {
        let others = self.iter().filter(|(it, _)| it.plural == "services" && *it != object);
        assign(object, spec, old, others.map(|(_, value)| value))
    }
}

fn assign<'a>(
    object: &ObjectRef,
    spec: &mut Value,
    old: Option<&Value>,
    others: impl Iterator<Item = &'a Value>,
) -> Result<(), ApplyError> {
    let refused = |field: &str, what, remedy| ApplyError::Refused {
        object: Box::new(object.clone()),
        field: field.to_owned(),
        what,
        remedy,
    };
    let has_some = matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer"));
    let is_left_out = spec["allocateLoadBalancerNodePorts"] == false;
    if has_some && spec["clusterIP"] == "None" {
        let remedy = "leave spec.clusterIP out, or write type ClusterIP";
        return Err(refused("spec.clusterIP", "a headless service has no node ports", remedy));
    }
    let mut taken: BTreeSet<Port> = others.flat_map(ports).filter_map(of_node).collect();
    let mut wanting = Vec::new();
    let all = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for (index, port) in all.enumerate() {
        let field = format!("spec.ports[{index}].nodePort");
        match of_node(port) {
            // It is what the service had when it was of another type.
            Some(asked) if !has_some && had(old, port) == Some(asked.1) => {
                port.as_object_mut().map(|port| port.remove("nodePort"));
            }
            Some(_) if !has_some => {
                let remedy = "write spec.type NodePort, or leave it out";
                return Err(refused(&field, "a service of type ClusterIP has none", remedy));
            }
            Some((_, number)) if !RANGE.contains(&number) => {
                let remedy = "choose one of those, or leave it out to be given one";
                return Err(refused(&field, "node ports are 30000 to 32767", remedy));
            }
            Some(asked) if !taken.insert(asked.clone()) => {
                let remedy = "choose another, or leave it out to be given one";
                return Err(refused(&field, "another port of a service has it", remedy));
            }
            None if has_some && !is_left_out => wanting.push((field, port)),
            _ => {}
        }
    }
    for (field, port) in wanting {
        let protocol = protocol(port);
        let begin = begin(object, port);
        let mut all =
            had(old, port).into_iter().chain(begin..=*RANGE.end()).chain(*RANGE.start()..begin);
        let number = all.find(|number| !taken.contains(&(protocol.clone(), *number)));
        let number = number.ok_or_else(|| {
            refused(&field, "no node port is left", "delete services that are not needed")
        })?;
        taken.insert((protocol, number));
        port["nodePort"] = json!(number);
    }
    Ok(())
}

fn ports(service: &Value) -> impl Iterator<Item = &Value> {
    service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten()
}

/// The node port that a port had.
fn had(old: Option<&Value>, port: &Value) -> Option<u64> {
    let had = old.into_iter().flat_map(ports).find(|it| of_service(it) == of_service(port));
    had.and_then(of_node).map(|(_, number)| number)
}

fn protocol(port: &Value) -> String {
    port["protocol"].as_str().unwrap_or("TCP").to_owned()
}

fn of_node(port: &Value) -> Option<Port> {
    let number = port["nodePort"].as_u64().filter(|number| *number != 0)?;
    Some((protocol(port), number))
}

fn of_service(port: &Value) -> Option<Port> {
    Some((protocol(port), port["port"].as_u64()?))
}

/// Where the search for a free one begins. Each service has a place of its own, so that two
/// machines of one host are seldom in each other's way.
fn begin(object: &ObjectRef, port: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&object.namespace, &object.name, of_service(port)).hash(&mut hasher);
    RANGE.start() + hasher.finish() % (RANGE.end() - RANGE.start() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Kind;

    fn assigned(
        spec: Value,
        old: Option<&Value>,
        others: &[Value],
    ) -> Result<Vec<Option<u64>>, String> {
        let object = ObjectRef::new(Kind::Service, Some("shop"), "web");
        let mut spec = spec;
        let done = assign(&object, &mut spec, old, others.iter());
        done.map_err(|error| error.to_string())?;
        let all = spec["ports"].as_array().expect("ports").iter();
        Ok(all.map(|it| it["nodePort"].as_u64()).collect())
    }

    #[test]
    fn a_port_keeps_its_node_port() {
        let spec = json!({"type": "NodePort", "ports": [{"port": 80}, {"port": 81}]});
        let first = assigned(spec.clone(), None, &[]).expect("there is room");
        assert!(first.iter().all(|it| it.is_some_and(|it| RANGE.contains(&it))), "{first:?}");
        assert_ne!(first[0], first[1]);
        let old = json!({"spec": {"ports": [{"port": 81, "nodePort": 31_000}]}});
        let again = assigned(spec.clone(), Some(&old), &[]).expect("there is room");
        assert_eq!((again[0], again[1]), (first[0], Some(31_000)));
        // Another service has it since.
        let other = json!({"spec": {"ports": [{"port": 1, "nodePort": 31_000}]}});
        let moved = assigned(spec.clone(), Some(&old), std::slice::from_ref(&other));
        assert_ne!(moved.expect("there is room")[1], Some(31_000));
        // UDP has ports of its own.
        let mut other = other;
        other["spec"]["ports"][0]["protocol"] = json!("UDP");
        assert_eq!(assigned(spec, Some(&old), &[other]).expect("there is room")[1], Some(31_000));
    }

    #[test]
    fn who_wants_none_gets_none() {
        let ports = json!([{"port": 80}]);
        for spec in [
            json!({"type": "ClusterIP", "ports": ports}),
            json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": ports}),
        ] {
            assert_eq!(assigned(spec.clone(), None, &[]), Ok(vec![None]), "{spec}");
        }
        let spec = json!({"type": "LoadBalancer", "ports": ports});
        assert!(assigned(spec, None, &[]).expect("there is room")[0].is_some());
    }

    #[test]
    fn another_type_gives_them_back() {
        let had = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 31_000}]});
        let mut spec = had.clone();
        spec["type"] = json!("ClusterIP");
        let old = json!({ "spec": had });
        assert_eq!(assigned(spec.clone(), Some(&old), &[]), Ok(vec![None]));
        spec["ports"][0]["nodePort"] = json!(31_001);
        assert!(assigned(spec, Some(&old), &[]).is_err(), "it is asked for");
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        let check = |spec: Value, part: &str| {
            let other = json!({"spec": {"ports": [{"port": 1, "nodePort": 30_001}]}});
            let error = assigned(spec, None, &[other]).expect_err(part);
            assert!(
                error.starts_with("Service shop/web: spec.") && error.contains(part),
                "{error}"
            );
        };
        let with =
            |port: u64| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
        check(with(80), "30000 to 32767");
        check(with(30_001), "another port");
        check(json!({"ports": [{"port": 80, "nodePort": 30_000}]}), "of type ClusterIP has none");
        check(json!({"type": "NodePort", "clusterIP": "None", "ports": []}), "headless");
        let twice = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_000},
            {"port": 2, "nodePort": 30_000}]});
        check(twice, "another port");
    }

    #[test]
    fn all_of_them_can_be_had() {
        let service = |number| json!({"spec": {"ports": [{"port": 1, "nodePort": number}]}});
        let others: Vec<Value> = RANGE.skip(1).map(service).collect();
        let spec = json!({"type": "NodePort", "ports": [{"port": 80}]});
        assert_eq!(assigned(spec.clone(), None, &others), Ok(vec![Some(30_000)]));
        let all: Vec<Value> = RANGE.map(service).collect();
        let error = assigned(spec, None, &all).expect_err("none is left");
        assert!(error.contains("no node port is left"), "{error}");
    }
}
