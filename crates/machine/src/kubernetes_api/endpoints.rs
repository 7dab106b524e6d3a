//! Endpoints and EndpointSlices: the pods behind each service.
//!
//! A machine has neither: its nodes compute where a service leads from services and pods, and here
//! the same is written as Kubernetes' objects.

use std::net::IpAddr;

use ambit_net::nftables::Protocol;
use ambit_words::labels;
use serde_json::{Value, json};

use crate::node::services::{Endpoint, ServiceView, views};
use crate::objects::{Kind, ObjectRef};
use crate::state::Objects;

fn services(objects: &Objects) -> Vec<ServiceView> {
    let Objects { store, reported, .. } = objects;
    views(store.of_plural("services"), store.of_plural("pods"), reported)
}

/// The Endpoints of every service.
pub(super) fn endpoints(objects: &Objects) -> Vec<Value> {
    services(objects).iter().map(|it| dated(objects, it, of_service(it))).collect()
}

/// What is made of a service is as old as it.
fn dated(objects: &Objects, service: &ServiceView, mut made: Value) -> Value {
    let object = ObjectRef::new(Kind::Service, Some(&service.namespace), &service.name);
    let stored = objects.store.object(&object);
    if let Some(created) = stored.and_then(|it| it.pointer("/metadata/creationTimestamp")) {
        made["metadata"]["creationTimestamp"] = created.clone();
    }
    made
}

/// Whether a service has addresses of a family.
fn has_family(objects: &Objects, service: &ServiceView, family: &str) -> bool {
    let object = ObjectRef::new(Kind::Service, Some(&service.namespace), &service.name);
    let stored = objects.store.object(&object);
    let families = stored.and_then(|it| it.pointer("/spec/ipFamilies")).and_then(Value::as_array);
    families.is_none_or(|it| it.iter().any(|one| one == family))
}

/// The EndpointSlices of every service, one for each of its families that its endpoints have.
pub(super) fn slices(objects: &Objects) -> Vec<Value> {
    let mut slices = Vec::new();
    for service in services(objects) {
        for (family, is_v6) in [("IPv4", false), ("IPv6", true)] {
            if has_family(objects, &service, family)
                && let Some(made) = slice(&service, family, is_v6)
            {
                slices.push(dated(objects, &service, made));
            }
        }
    }
    slices
}

fn of_service(service: &ServiceView) -> Value {
    let addresses = |is_ready: bool| -> Vec<Value> {
        let these = service.endpoints.iter().filter(|it| it.ready == is_ready);
        let address = |it: &Endpoint| {
            let ip = it.addresses.iter().find(|it| it.is_ipv4()).or(it.addresses.first());
            ip.map(|ip| json!({"ip": ip, "nodeName": it.node}))
        };
        these.filter_map(address).collect()
    };
    let (ready, not_ready) = (addresses(true), addresses(false));
    let mut subset = json!({"ports": ports(service)});
    for (field, list) in [("addresses", &ready), ("notReadyAddresses", &not_ready)] {
        if !list.is_empty() {
            subset[field] = json!(list);
        }
    }
    let is_empty = ready.is_empty() && not_ready.is_empty();
    json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": service.name, "namespace": service.namespace},
        "subsets": if is_empty { Vec::new() } else { vec![subset] },
    })
}

fn slice(service: &ServiceView, family: &str, is_v6: bool) -> Option<Value> {
    let endpoint = |it: &Endpoint| {
        let of_family = |ip: &&IpAddr| ip.is_ipv6() == is_v6;
        let addresses: Vec<&IpAddr> = it.addresses.iter().filter(of_family).collect();
        (!addresses.is_empty()).then(|| {
            json!({
                "addresses": addresses,
                "conditions": {"ready": it.ready, "serving": it.ready, "terminating": false},
                "hostname": it.hostname,
                "nodeName": it.node,
            })
        })
    };
    let endpoints: Vec<Value> = service.endpoints.iter().filter_map(endpoint).collect();
    (!endpoints.is_empty()).then(|| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", service.name, family.to_lowercase()),
                "namespace": service.namespace,
                "labels": {labels::SERVICE_NAME: service.name},
            },
            "addressType": family,
            "endpoints": endpoints,
            "ports": ports(service),
        })
    })
}

/// The ports behind a service. One that pods name differently is the first pod's.
fn ports(service: &ServiceView) -> Vec<Value> {
    let port = |(at, it): (usize, &crate::PortView)| {
        let mut behind = service.endpoints.iter().filter_map(|it| it.ports.get(at).copied()?);
        let protocol = if it.protocol == Protocol::Udp { "UDP" } else { "TCP" };
        json!({"name": it.name, "port": behind.next().unwrap_or(it.port), "protocol": protocol})
    };
    service.ports.iter().enumerate().map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortView;

    fn service(endpoints: Vec<Endpoint>) -> ServiceView {
        let (name, protocol) = ("http".to_owned(), Protocol::Tcp);
        ServiceView {
            namespace: "app".to_owned(),
            name: "web".to_owned(),
            addresses: Vec::new(),
            ports: vec![PortView { name, protocol, port: 80, application_protocol: None }],
            endpoints,
            client_affinity: false,
            local_only: false,
        }
    }

    fn endpoint(addresses: &[&str], ready: bool) -> Endpoint {
        Endpoint {
            hostname: None,
            addresses: addresses.iter().map(|it| it.parse().expect("an address")).collect(),
            node: "node-1".to_owned(),
            ready,
            ports: vec![Some(8080)],
        }
    }

    #[test]
    fn ready_and_other_endpoints_are_apart() {
        let both =
            service(vec![endpoint(&["10.0.0.1", "fd00::1"], true), endpoint(&["10.0.0.2"], false)]);
        let expected = json!([{
            "addresses": [{"ip": "10.0.0.1", "nodeName": "node-1"}],
            "notReadyAddresses": [{"ip": "10.0.0.2", "nodeName": "node-1"}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }]);
        assert_eq!(of_service(&both)["subsets"], expected);
        assert_eq!(of_service(&service(Vec::new()))["subsets"], json!([]));
    }

    #[test]
    fn each_family_has_a_slice() {
        let both = service(vec![endpoint(&["10.0.0.1", "fd00::1"], true)]);
        let v6 = slice(&both, "IPv6", true).expect("it has endpoints");
        assert_eq!(v6["metadata"]["name"], "web-ipv6");
        assert_eq!(v6["metadata"]["labels"][labels::SERVICE_NAME], "web");
        assert_eq!(v6["endpoints"][0]["addresses"], json!(["fd00::1"]));
        assert_eq!(v6["ports"][0]["port"], 8080);
        let v4 = service(vec![endpoint(&["10.0.0.1"], false)]);
        assert_eq!(slice(&v4, "IPv6", true), None);
        let v4 = slice(&v4, "IPv4", false).expect("it has endpoints");
        assert_eq!(v4["endpoints"][0]["conditions"]["ready"], false);
    }
}
