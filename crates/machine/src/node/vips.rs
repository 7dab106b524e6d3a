//! Service addresses of one node, for traffic that the mesh does not carry, like kube-proxy in a
//! cluster.
//!
//! A pod sends to a service's address through its node, where connection tracking sees both
//! directions: pods reach one another through routing, never through the bridge alone. A service
//! without a ready endpoint refuses connections.

use std::net::{IpAddr, SocketAddr};

use ambit_net::nftables::{
    Chain, Family, Hook, Priority, Protocol, Rule, ServiceKey, Set, Table, Verdict,
};
use ipnet::IpNet;

use super::services::{Endpoint, ServiceView};

/// The name of this program's tables.
pub(crate) const TABLE: &str = "ambit-services";
const SERVICES: &str = "services";
/// Most endpoints that one port of a service is spread over; further ones get nothing.
const BACKENDS_MAX: usize = 400;

/// The tables of a node, one per family, whole.
pub(crate) fn tables(services: &[ServiceView], node: &str) -> [Table; 2] {
    [table(services, node, Family::Ip), table(services, node, Family::Ip6)]
}

fn table(services: &[ServiceView], node: &str, family: Family) -> Table {
    let ipv6 = family == Family::Ip6;
    let mut verdicts = Vec::new();
    let mut chains = Vec::new();
    let mut hairpins: Vec<IpAddr> = Vec::new();
    for service in services {
        let Some(ip) = service.addresses.iter().copied().find(|ip| ip.is_ipv6() == ipv6) else {
            continue;
        };
        for (index, port) in service.ports.iter().enumerate() {
            let backends = backends(service, index, node, ipv6);
            if backends.is_empty() {
                continue;
            }
            hairpins.extend(backends.iter().map(SocketAddr::ip));
            let chain = format!("service-{}", chains.len());
            let comment = format!("{}/{}:{}", service.namespace, service.name, port.port);
            let rule = Rule::new(&comment[..comment.len().min(100)]);
            let rule = if service.client_affinity {
                rule.destination_nat_by_source(&backends)
            } else {
                rule.destination_nat(&backends)
            };
            verdicts.push((
                ServiceKey { ip, protocol: port.protocol, port: port.port },
                Verdict::Goto(chain.clone()),
            ));
            chains.push(Chain::regular(&chain).rule(rule));
        }
    }
    hairpins.sort();
    hairpins.dedup();
    Table::new(family, TABLE)
        .set(Set::services(SERVICES, ipv6, verdicts))
        .chains(chains)
        .chains(base_chains(ipv6, &hairpins))
}

fn base_chains(ipv6: bool, hairpins: &[IpAddr]) -> Vec<Chain> {
    let lookup = || {
        let rule = Rule::new("to an endpoint of the service");
        if ipv6 { rule.service_verdict_ipv6(SERVICES) } else { rule.service_verdict_ipv4(SERVICES) }
    };
    let network = IpNet::new(
        crate::addresses::service(0).both()[usize::from(ipv6)],
        if ipv6 { 112 } else { 16 },
    )
    .expect("the prefix lengths of the service networks are valid");
    // What still goes to a service address here was not translated: no such port, or nobody behind
    // it.
    let refuse = || {
        let rule = |comment| Rule::new(comment).destination(network).to_other_address();
        [
            rule("no endpoint: reset").protocol(Protocol::Tcp).reject_with_reset(),
            rule("no endpoint: unreachable").reject(),
        ]
    };
    let masquerade = hairpins.iter().map(|ip| {
        Rule::new("to itself through a service")
            .source(IpNet::from(*ip))
            .destination(IpNet::from(*ip))
            .masquerade()
    });
    vec![
        Chain::nat("prerouting", Hook::Prerouting, Priority::DESTINATION_NAT).rule(lookup()),
        Chain::nat("output", Hook::Output, Priority::DESTINATION_NAT).rule(lookup()),
        Chain::nat("postrouting", Hook::Postrouting, Priority::SOURCE_NAT).rules(masquerade),
        Chain::filter("refuse-forwarded", Hook::Prerouting, Priority::FILTER).rules(refuse()),
        Chain::filter("refuse-own", Hook::Output, Priority::FILTER).rules(refuse()),
    ]
}

/// Where the pods of a node find those behind a port of a service, in one family.
pub(crate) fn backends(
    service: &ServiceView,
    port: usize,
    node: &str,
    ipv6: bool,
) -> Vec<SocketAddr> {
    let usable =
        |endpoint: &&Endpoint| endpoint.ready && (!service.local_only || endpoint.node == node);
    let address = |endpoint: &Endpoint| {
        let ip = endpoint.addresses.iter().copied().find(|ip| ip.is_ipv6() == ipv6)?;
        Some(SocketAddr::new(ip, endpoint.ports.get(port).copied().flatten()?))
    };
    let mut backends: Vec<SocketAddr> =
        service.endpoints.iter().filter(usable).filter_map(address).collect();
    // In a stable order, so that affinity by source address survives what does not concern it.
    backends.sort();
    backends.truncate(BACKENDS_MAX);
    backends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::services::PortView;

    fn service(local_only: bool) -> ServiceView {
        let endpoint = |last: u8, node: &str, ready| Endpoint {
            hostname: None,
            addresses: vec![
                IpAddr::from([10, 244, 1, last]),
                format!("fd00:10:244:1::{last}").parse().unwrap(),
            ],
            node: node.to_owned(),
            ready,
            ports: vec![Some(8080), None],
        };
        ServiceView {
            namespace: "n".into(),
            name: "s".into(),
            addresses: vec!["10.96.1.0".parse().unwrap()],
            ports: vec![
                PortView {
                    name: "a".into(),
                    protocol: Protocol::Tcp,
                    port: 80,
                    application_protocol: None,
                },
                PortView {
                    name: "b".into(),
                    protocol: Protocol::Udp,
                    port: 81,
                    application_protocol: None,
                },
            ],
            endpoints: vec![
                endpoint(3, "node-2", true),
                endpoint(2, "node-1", true),
                endpoint(4, "node-1", false),
            ],
            client_affinity: false,
            local_only,
        }
    }

    #[test]
    fn backends_are_ready_endpoints_with_the_port() {
        let text = |backends: Vec<SocketAddr>| {
            backends.iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        };
        let all = backends(&service(false), 0, "node-1", false);
        assert_eq!(text(all), ["10.244.1.2:8080", "10.244.1.3:8080"]);
        let local = backends(&service(true), 0, "node-1", true);
        assert_eq!(text(local), ["[fd00:10:244:1::2]:8080"]);
        assert!(backends(&service(false), 1, "node-1", false).is_empty());
    }
}
