//! Arbitrary values of the model, for round trips.

pub(crate) mod http;

use std::net::IpAddr;
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::address::canonical_block;
use ambit_model::names::{NetworkAddress, PolicyName, ServiceName};
use ambit_model::policy::{
    Action, Clause, List, Match, Policy, PolicyScope, Rule, ServiceAccountMatch, TextMatch,
};
use ambit_model::service::{IpFamilies, LoadBalancing, Mode, Scope, Service, VirtualAddress};
use ambit_model::workload::{
    AppProtocol, ApplicationProtocol, ApplicationTunnel, GatewayAddress, GatewayDestination,
    Locality, PortMapping, Tunnel, Workload, WorkloadKind,
};
use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn text() -> impl Strategy<Value = Text> {
    "[a-z\u{e9}/.*-]{0,8}".prop_map(Text::from)
}

fn word() -> impl Strategy<Value = Text> {
    "[a-z]{1,8}".prop_map(Text::from)
}

fn service_name() -> impl Strategy<Value = ServiceName> {
    (word(), "[a-z]{1,6}\\.[a-z]{1,6}")
        .prop_map(|(namespace, host)| ServiceName::new(namespace, host))
}

fn policy_name() -> impl Strategy<Value = PolicyName> {
    (word(), word()).prop_map(|(namespace, name)| PolicyName::new(namespace, name))
}

/// An address in the one form that the model has for it.
fn ip() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_map(|ip| ip.to_canonical())
}

fn network_address() -> impl Strategy<Value = NetworkAddress> {
    (text(), ip()).prop_map(|(network, ip)| NetworkAddress::new(network, ip))
}

fn net() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), 0..=128_u8).prop_filter_map("holds IPv4 beside IPv6", |(ip, len)| {
        let block = IpNet::new(ip, if ip.is_ipv4() { len.min(32) } else { len }).unwrap();
        canonical_block(block)
    })
}

fn gateway() -> impl Strategy<Value = GatewayAddress> {
    let destination = prop_oneof![
        service_name().prop_map(GatewayDestination::Hostname),
        word().prop_map(GatewayDestination::Refused),
        network_address().prop_map(GatewayDestination::Address),
    ];
    (destination, 1_u16..)
        .prop_map(|(destination, hbone_mtls_port)| GatewayAddress { destination, hbone_mtls_port })
}

fn port() -> impl Strategy<Value = PortMapping> {
    use AppProtocol::{Grpc, Http2, Http11, Tcp, Tls, Unknown};
    let app_protocol = select(vec![Unknown, Http11, Http2, Grpc, Tcp, Tls]);
    (any::<u16>(), any::<u16>(), app_protocol).prop_map(
        |(service_port, target_port, app_protocol)| PortMapping {
            service_port,
            target_port,
            app_protocol,
        },
    )
}

fn application_tunnel() -> impl Strategy<Value = ApplicationTunnel> {
    let protocol = select(vec![ApplicationProtocol::None, ApplicationProtocol::Proxy]);
    (protocol, option::of(1_u16..))
        .prop_map(|(protocol, port)| ApplicationTunnel { protocol, port })
}

pub(crate) fn workload() -> impl Strategy<Value = Workload> {
    use WorkloadKind::{CronJob, Deployment, Job, Pod};
    let names = (word(), text(), text(), text(), text(), word(), word(), text());
    let places = (
        vec(ip(), 0..3),
        option::of(gateway()),
        option::of(gateway()),
        option::of(application_tunnel()),
        btree_map(service_name(), vec(port(), 0..3), 0..3),
        vec(policy_name(), 0..3),
    );
    let kinds = (
        select(vec![Tunnel::None, Tunnel::Hbone, Tunnel::LegacyIstioMtls]),
        select(vec![Deployment, CronJob, Pod, Job]),
        any::<[bool; 4]>(),
        any::<u32>(),
        (text(), text(), text()),
    );
    (names, places, kinds).prop_map(|(names, places, kinds)| {
        let mut it = Workload::named(names.0, names.1, names.2);
        (it.hostname, it.network) = (names.3.clone(), names.4.clone());
        (it.trust_domain, it.service_account) = (names.5, names.6);
        (it.node, it.canonical_name, it.canonical_revision) =
            (names.7.clone(), names.3, names.4.clone());
        (it.workload_name, it.cluster_id) = (names.4, names.7);
        (it.addresses, it.waypoint, it.network_gateway) =
            (places.0.into(), places.1.map(Arc::new), places.2.map(Arc::new));
        (it.application_tunnel, it.services, it.policies) = (places.3, places.4.into(), places.5);
        (it.tunnel, it.kind, it.capacity) = (kinds.0, kinds.1, kinds.3);
        [it.native_tunnel, it.healthy, it.host_network, it.registry_only] = kinds.2;
        let (region, zone, subzone) = kinds.4;
        it.locality = Arc::new(Locality { region, zone, subzone });
        it
    })
}

fn virtual_address() -> impl Strategy<Value = VirtualAddress> {
    prop_oneof![
        network_address().prop_map(|address| VirtualAddress { address, prefix_len: None }),
        (text(), net()).prop_map(|(network, block)| VirtualAddress {
            address: NetworkAddress::new(network, block.addr()),
            prefix_len: Some(block.prefix_len()),
        }),
    ]
}

fn load_balancing() -> impl Strategy<Value = LoadBalancing> {
    use Scope::{Cluster, Network, Node, Region, Subzone, Zone};
    let scope = select(vec![Region, Zone, Subzone, Node, Cluster, Network]);
    let mode = select(vec![Mode::Unspecified, Mode::Strict, Mode::Failover, Mode::Passthrough]);
    (vec(scope, 0..4), mode, any::<bool>(), option::of(any::<u32>())).prop_map(
        |(routing_preference, mode, allow_unhealthy, client_affinity_seconds)| LoadBalancing {
            routing_preference,
            mode,
            allow_unhealthy,
            client_affinity_seconds,
        },
    )
}

pub(crate) fn service() -> impl Strategy<Value = Service> {
    use IpFamilies::{Automatic, Dual, Ipv4Only, Ipv6Only};
    let weighted = vec((gateway(), any::<u32>()), 0..3);
    let places = (
        vec(virtual_address(), 0..3),
        vec(port(), 0..3),
        option::of(gateway()),
        weighted,
        vec(service_name(), 0..2),
    );
    let families = select(vec![Automatic, Ipv4Only, Ipv6Only, Dual]);
    let flags = any::<[bool; 3]>();
    let sans = vec(text(), 0..3);
    (text(), service_name(), places, load_balancing(), families, flags, sans).prop_map(
        |(name, key, places, load_balancing, ip_families, flags, subject_alt_names)| Service {
            name,
            key,
            addresses: places.0,
            ports: places.1,
            subject_alt_names,
            waypoint: places.2,
            weighted_waypoints: places.3,
            entrances: places.4,
            load_balancing,
            ip_families,
            canonical: flags[0],
            ingress_use_waypoint: flags[1],
            namespace_only: flags[2],
        },
    )
}

fn text_match() -> impl Strategy<Value = TextMatch> {
    prop_oneof![
        text().prop_map(TextMatch::Exact),
        text().prop_map(TextMatch::Prefix),
        text().prop_map(TextMatch::Suffix),
        Just(TextMatch::Presence),
    ]
}

fn account() -> impl Strategy<Value = ServiceAccountMatch> {
    (text(), text())
        .prop_map(|(namespace, service_account)| ServiceAccountMatch { namespace, service_account })
}

fn few<T: std::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = List<T>> {
    vec(one, 0..2).prop_map(List::from)
}

fn one_match() -> impl Strategy<Value = Match> {
    let words = || few(text_match());
    let nets = || few(net());
    let accounts = || few(account());
    let ports = || few(any::<u16>());
    (
        (words(), words(), words(), words()),
        (accounts(), accounts()),
        (nets(), nets(), nets(), nets()),
        (ports(), ports()),
    )
        .prop_map(|(words, accounts, nets, ports)| Match {
            namespaces: words.0,
            not_namespaces: words.1,
            principals: words.2,
            not_principals: words.3,
            service_accounts: accounts.0,
            not_service_accounts: accounts.1,
            source_ips: nets.0,
            not_source_ips: nets.1,
            destination_ips: nets.2,
            not_destination_ips: nets.3,
            destination_ports: ports.0,
            not_destination_ports: ports.1,
        })
}

pub(crate) fn policy() -> impl Strategy<Value = Policy> {
    let clause = vec(one_match(), 0..3).prop_map(|matches| Clause { matches });
    let rule = vec(clause, 0..3).prop_map(|clauses| Rule { clauses });
    let scope =
        select(vec![PolicyScope::Global, PolicyScope::Namespace, PolicyScope::WorkloadSelector]);
    let action = select(vec![Action::Allow, Action::Deny]);
    let flags = (any::<bool>(), any::<bool>());
    (policy_name(), scope, action, vec(rule, 0..3), flags).prop_map(
        |(key, scope, action, rules, (dry_run, is_of_waypoints))| Policy {
            key,
            scope,
            action,
            rules,
            dry_run,
            is_of_waypoints,
        },
    )
}
