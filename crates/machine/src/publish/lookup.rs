//! Where a published port leads now, from the registry.
//!
//! Connections go to the address of the service, and the node's packet filter finds a pod for each.
//! It asks once for what it takes for one exchange, and a session of datagrams lives on where its
//! pod has gone. So for datagrams the pods are found here, by the packet filter's rules.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use serde_json::Value;

use super::datagrams::Endpoints;
use super::{Destination, Published};
use crate::node::services::{ServiceView, views};
use crate::node::vips::backends;
use crate::objects::ObjectRef;
use crate::state::{Machine, Objects};

/// The address to which connections go.
pub(super) fn address(machine: &Machine, to: &Published) -> anyhow::Result<SocketAddr> {
    let objects = machine.objects();
    let (object, value) = named(&objects, to)?;
    if to.to == Destination::Gateway {
        return Ok(SocketAddr::new(of_gateway(&object, value)?, to.port));
    }
    let view = view(&objects, &object, value)?;
    let at = port(&view, to)?;
    if let Some(address) = view.addresses.first() {
        return Ok(SocketAddr::new(*address, to.port));
    }
    let mut ready = view.endpoints.iter().filter(|it| it.ready);
    ready.find_map(|it| it.at(at)).with_context(|| format!("no pod of {object} is ready"))
}

/// The pods to which datagrams go. A Gateway has a service of its own.
pub(super) fn endpoints(machine: &Machine, to: &Published) -> anyhow::Result<Endpoints> {
    let node = &machine.record.nodes[0];
    let objects = machine.objects();
    let (object, value) = named(&objects, to)?;
    if to.to == Destination::Service {
        return behind(&view(&objects, &object, value)?, to, node);
    }
    let address = of_gateway(&object, value)?;
    let is_its = |it: &(&ObjectRef, &Value)| {
        let all = it.1.pointer("/spec/clusterIPs").and_then(Value::as_array);
        let mut all = all.into_iter().flatten().filter_map(Value::as_str);
        all.any(|it| it.parse() == Ok(address))
    };
    let service = objects.store.of_plural("services").find(is_its);
    let (service, value) = service.with_context(|| format!("{object} has no service yet"))?;
    behind(&view(&objects, service, value)?, to, node)
}

/// What a port names.
fn named<'a>(objects: &'a Objects, to: &Published) -> anyhow::Result<(ObjectRef, &'a Value)> {
    let object = ObjectRef::new(to.to.kind(), Some(&to.namespace), &to.name);
    let value = objects.store.object(&object);
    let value = value.with_context(|| format!("there is no {object}"))?;
    Ok((object, value))
}

fn of_gateway(object: &ObjectRef, gateway: &Value) -> anyhow::Result<IpAddr> {
    let all = gateway.pointer("/status/addresses").and_then(Value::as_array);
    let mut all = all.into_iter().flatten().filter_map(|it| it["value"].as_str());
    let first = all.find_map(|it| it.parse::<IpAddr>().ok());
    first.with_context(|| format!("{object} has no address yet"))
}

/// A service with the pods that it selects; no other is read.
fn view(objects: &Objects, object: &ObjectRef, service: &Value) -> anyhow::Result<ServiceView> {
    let namespace = object.namespace.as_deref();
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    let is_selected = |pod: &Value| {
        let label = |key: &str| pod.get("metadata")?.get("labels")?.get(key);
        selector.is_some_and(|all| all.iter().all(|(key, value)| label(key) == Some(value)))
    };
    let near = objects.store.of_plural("pods");
    let near =
        near.filter(|(it, value)| it.namespace.as_deref() == namespace && is_selected(value));
    let found = views([(object, service)].into_iter(), near, &objects.reported);
    found.into_iter().next().with_context(|| format!("{object} cannot be read"))
}

fn port(view: &ServiceView, to: &Published) -> anyhow::Result<usize> {
    view.port(to.transport.protocol(), to.port).map_err(anyhow::Error::msg)
}

/// The pods behind a service's port, as its own addresses lead to them from this node.
fn behind(view: &ServiceView, to: &Published, node: &str) -> anyhow::Result<Endpoints> {
    let at = port(view, to)?;
    let of = |ipv6: bool| {
        let is_such = |it: &IpAddr| it.is_ipv6() == ipv6;
        let has = view.addresses.is_empty() || view.addresses.iter().any(is_such);
        if has { backends(view, at, node, ipv6) } else { Vec::new() }
    };
    let first_is_v6 = view.addresses.first().is_some_and(IpAddr::is_ipv6);
    let (first, other) = (of(first_is_v6), of(!first_is_v6));
    let all = if first.is_empty() { other } else { first };
    Ok(Endpoints { all, is_sticky: view.client_affinity })
}

#[cfg(test)]
mod tests {
    use ambit_net::nftables::Protocol;

    use super::*;
    use crate::node::services::{Endpoint, PortView};

    #[test]
    fn datagrams_go_to_the_pods_that_are_ready() {
        let endpoint = |last: u8, ready| Endpoint {
            hostname: None,
            addresses: vec![
                IpAddr::from([10, 244, 1, last]),
                format!("fd00:10:244:1::{last}").parse().unwrap(),
            ],
            node: "node-1".to_owned(),
            ready,
            ports: vec![Some(8080), Some(5353)],
        };
        let port = |protocol, port| PortView {
            name: String::new(),
            protocol,
            port,
            application_protocol: None,
        };
        let view = |addresses: &[&str]| ServiceView {
            namespace: "shop".to_owned(),
            name: "dns".to_owned(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            ports: vec![port(Protocol::Tcp, 53), port(Protocol::Udp, 53)],
            endpoints: vec![endpoint(3, true), endpoint(2, false), endpoint(1, true)],
            client_affinity: true,
            local_only: false,
        };
        let check = |addresses: &[&str], publish: &str, expected: Result<&[&str], &str>| {
            let found = behind(&view(addresses), &publish.parse().unwrap(), "node-1");
            let found = found.map(|it| {
                assert!(it.is_sticky);
                it.all.iter().map(SocketAddr::to_string).collect::<Vec<_>>()
            });
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{found:?}"),
            }
        };
        let (v4, v6) = ("10.96.0.9", "fd00:10:96::9");
        let in_v4 = Ok(&["10.244.1.1:5353", "10.244.1.3:5353"][..]);
        let in_v6 = Ok(&["[fd00:10:244:1::1]:5353", "[fd00:10:244:1::3]:5353"][..]);
        check(&[v4, v6], "53/udp=shop/dns:53", in_v4);
        check(&[v6, v4], "53/udp=shop/dns:53", in_v6);
        check(&[v6], "53/udp=shop/dns:53", in_v6);
        check(&[], "53/udp=shop/dns:53", in_v4);
        check(&[v4], "53/udp=shop/dns:54", Err("has no UDP port 54"));
    }
}
