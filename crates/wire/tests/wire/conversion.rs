//! Messages to model and back: nothing is lost, nothing panics, wrong fields are named, and a
//! policy that cannot be read never allows more than it would if it could be read.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ambit_model::authorize::{Decision, Source};
use ambit_model::identity::Identity;
use ambit_model::policy::{Action, Policy};
use ambit_model::service::Service;
use ambit_model::view::{Change, View};
use ambit_model::workload::{GatewayAddress, GatewayDestination, Tunnel, Workload, WorkloadKind};
use ambit_wire::convert::{ConvertError, policy};
use ambit_wire::proto::istio::{security, workload as proto};
use proptest::prelude::*;
use prost::Message;

use crate::strategies;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn workloads_survive(workload in strategies::workload()) {
        let bytes = proto::Workload::from(&workload).encode_to_vec();
        let back = Workload::try_from(proto::Workload::decode(&*bytes).unwrap());
        prop_assert_eq!(back, Ok(workload));
    }

    #[test]
    fn services_survive(service in strategies::service()) {
        let bytes = proto::Service::from(&service).encode_to_vec();
        let back = Service::try_from(proto::Service::decode(&*bytes).unwrap());
        prop_assert_eq!(back, Ok(service));
    }

    #[test]
    fn policies_survive(policy in strategies::policy()) {
        let bytes = security::Authorization::from(&policy).encode_to_vec();
        let reading = policy::read(&bytes).unwrap();
        prop_assert_eq!(reading.unreadable, Vec::<String>::new());
        prop_assert_eq!(reading.policy, policy);
    }

    #[test]
    fn nothing_panics(bytes: Vec<u8>) {
        let _ = policy::read(&bytes);
        let _ = proto::Workload::decode(&*bytes).map(Workload::try_from);
        let _ = proto::Service::decode(&*bytes).map(Service::try_from);
    }

    /// Flips bits in valid messages: these get past the decoder far more often than noise does.
    #[test]
    fn damage_never_panics(
        policy in strategies::policy(),
        workload in strategies::workload(),
        at: prop::sample::Index,
        bit in 0..8_u8,
    ) {
        let mut bytes = security::Authorization::from(&policy).encode_to_vec();
        let index = at.index(bytes.len());
        bytes[index] ^= 1 << bit;
        let _ = policy::read(&bytes);
        let mut bytes = proto::Workload::from(&workload).encode_to_vec();
        let index = at.index(bytes.len());
        bytes[index] ^= 1 << bit;
        let _ = proto::Workload::decode(&*bytes).map(Workload::try_from);
    }
}

#[test]
fn any_is_googles_on_the_wire() {
    let (type_url, value) = ("t".to_owned(), vec![1, 2, 3]);
    let theirs = prost_types::Any { type_url: type_url.clone(), value: value.clone() };
    let ours = ambit_wire::proto::Any { type_url, value: value.into() };
    assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
}

#[test]
fn elided_fields_have_their_meaning() {
    let message = proto::Workload { uid: "u".into(), ..Default::default() };
    let workload = Workload::try_from(message).unwrap();
    let mut expected = Workload::named("u", "", "");
    expected.kind = WorkloadKind::Deployment;
    assert_eq!(workload, expected);
    assert_eq!(workload.identity(), Identity::new("cluster.local", "", "default"));
    assert_eq!((workload.capacity, workload.healthy), (1, true));
    let message = proto::Workload::from(&workload);
    assert_eq!((message.trust_domain, message.service_account), (String::new(), String::new()));
    assert_eq!((message.capacity, message.locality), (None, None));
    assert_eq!(message.extensions, [], "others see no extension");
}

fn workload_error(change: impl FnOnce(&mut proto::Workload)) -> ConvertError {
    let mut message = proto::Workload { uid: "u".into(), ..Default::default() };
    change(&mut message);
    Workload::try_from(message).unwrap_err()
}

fn service_error(change: impl FnOnce(&mut proto::Service)) -> ConvertError {
    let mut message = proto::Service { hostname: "h".into(), ..Default::default() };
    change(&mut message);
    Service::try_from(message).unwrap_err()
}

fn port(service_port: u32, target_port: u32) -> proto::Port {
    proto::Port { service_port, target_port, app_protocol: 0 }
}

#[test]
fn wrong_workload_fields_are_named() {
    let check = |change: fn(&mut proto::Workload), expected: &str| {
        assert_eq!(workload_error(change).to_string(), expected);
    };
    check(|it| it.uid.clear(), "field uid: is missing");
    check(
        |it| it.addresses = vec![vec![1, 2, 3, 4].into(), vec![1, 2, 3].into()],
        "field addresses[1].address: an address has 4 or 16 bytes, this one has 3",
    );
    check(|it| it.tunnel_protocol = 7, "field tunnel_protocol: enum value 7 is unknown");
    check(|it| it.network_mode = 2, "field network_mode: enum value 2 is unknown");
    check(
        |it| it.authorization_policies = vec!["p".into()],
        "field authorization_policies[0].name: \"p\" is not of the form namespace/name",
    );
    check(
        |it| drop(it.services.insert("a".into(), proto::PortList::default())),
        "field services[\"a\"]: \"a\" is not of the form namespace/name",
    );
    check(
        |it| {
            let ports = vec![port(80, 80), port(80, 65_536)];
            it.services.insert("a/b".into(), proto::PortList { ports });
        },
        "field services[\"a/b\"].ports[1].target_port: 65536 is not a port",
    );
    check(
        |it| it.application_tunnel = Some(proto::ApplicationTunnel { protocol: 2, port: 0 }),
        "field application_tunnel.protocol: enum value 2 is unknown",
    );
    check(
        |it| it.waypoint = Some(proto::GatewayAddress::default()),
        "field waypoint.destination: is missing",
    );
    check(
        |it| {
            let address =
                proto::NetworkAddress { address: vec![1; 4].into(), ..Default::default() };
            let destination = Some(proto::gateway_address::Destination::Address(address));
            it.network_gateway = Some(proto::GatewayAddress { destination, hbone_mtls_port: 0 });
        },
        "field network_gateway.hbone_mtls_port: is missing",
    );
}

#[test]
fn wrong_service_fields_are_named() {
    let check = |change: fn(&mut proto::Service), expected: &str| {
        assert_eq!(service_error(change).to_string(), expected);
    };
    check(|it| it.hostname.clear(), "field hostname: is missing");
    check(
        |it| {
            let address = vec![10, 0, 0, 0].into();
            it.addresses.push(proto::NetworkAddress {
                address,
                length: Some(33),
                ..Default::default()
            });
        },
        "field addresses[0].length: prefix length 33 exceeds the address's 32 bits",
    );
    check(|it| it.ports.push(port(70_000, 0)), "field ports[0].service_port: 70000 is not a port");
    check(
        |it| {
            it.load_balancing =
                Some(proto::LoadBalancing { routing_preference: vec![1, 9], ..Default::default() });
        },
        "field load_balancing.routing_preference[1].scope: enum value 9 is unknown",
    );
    check(
        |it| it.load_balancing = Some(proto::LoadBalancing { mode: 4, ..Default::default() }),
        "field load_balancing.mode: enum value 4 is unknown",
    );
    check(
        |it| it.weighted_waypoints.push(proto::WeightedWaypoint::default()),
        "field weighted_waypoints[0].destination: is missing",
    );
    check(
        |it| {
            let name = ambit_wire::convert::CLIENT_AFFINITY_EXTENSION.into();
            it.extensions.push(proto::Extension { name, config: None });
        },
        "field extensions[\"ambit.client-affinity-seconds\"].config: is missing",
    );
    check(
        |it| {
            let name = ambit_wire::convert::ENTRANCE_EXTENSION.into();
            let config = Some(ambit_wire::proto::Any {
                type_url: "type.googleapis.com/google.protobuf.StringValue".into(),
                value: "ingress".to_owned().encode_to_vec().into(),
            });
            it.extensions.push(proto::Extension { name, config });
        },
        "field extensions[\"ambit.entrance\"].config: \"ingress\" is not of the form \
         namespace/name",
    );
}

#[test]
fn values_that_cannot_widen_anything_are_forward_compatible() {
    let message = proto::Workload {
        uid: "u".into(),
        workload_type: 99,
        status: 99,
        tunnel_protocol: proto::TunnelProtocol::Hbone.into(),
        ..Default::default()
    };
    let workload = Workload::try_from(message).unwrap();
    assert_eq!(workload.kind, WorkloadKind::Deployment);
    assert_eq!((workload.healthy, workload.tunnel), (false, Tunnel::Hbone));
    let message = proto::Service { hostname: "h".into(), visibility: 9, ..Default::default() };
    assert!(Service::try_from(message).unwrap().namespace_only);
}

#[test]
fn policies_that_cannot_be_attached_are_refused() {
    let check = |name: &str, scope, expected: &str| {
        let message = security::Authorization { name: name.into(), scope, ..Default::default() };
        let error = policy::read(&message.encode_to_vec()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check("", 0, "field name: is missing");
    check("p", 3, "field scope: enum value 3 is unknown");
    assert!(policy::read(&[0xff]).unwrap_err().to_string().starts_with("field message: cannot be"));
}

/// One policy for the whole mesh, and one client.
fn allows(policy: Policy, source: &Source, destination: SocketAddr) -> bool {
    let workload = Workload::named("u", "server", "s");
    let mut view = View::default();
    view.apply(Change::Policy(policy));
    let judgement = view.authorize(&workload, source, destination);
    matches!(judgement.decision, Decision::Allow(_))
}

fn message(action: Action, it: security::Match) -> security::Authorization {
    let clauses = vec![security::Clause { matches: vec![it] }];
    security::Authorization {
        name: "p".into(),
        action: if action == Action::Allow { 0 } else { 1 },
        rules: vec![security::Rule { clauses }],
        ..Default::default()
    }
}

#[test]
fn unreadable_conditions_get_their_strictest_reading() {
    let source = Source::new(Some(Identity::new("t", "client", "c")), [10, 0, 0, 1].into());
    let destination = SocketAddr::from(([10, 0, 0, 2], 80));
    let namespace = |name: &str| security::StringMatch {
        match_type: Some(security::string_match::MatchType::Exact(name.into())),
    };
    let unset = || security::StringMatch { match_type: None };
    let check = |it: security::Match, allow: bool, deny: bool| {
        for (action, expected) in [(Action::Allow, allow), (Action::Deny, deny)] {
            let reading = policy::read(&message(action, it.clone()).encode_to_vec()).unwrap();
            assert_eq!(reading.unreadable.len(), 1, "{it:?}");
            let got = allows(reading.policy, &source, destination);
            assert_eq!(got, expected, "{action:?} {it:?}");
        }
    };
    // What it would allow as ALLOW and as DENY; a value beside the unreadable one still counts.
    check(security::Match { namespaces: vec![unset()], ..Default::default() }, false, false);
    let beside = vec![unset(), namespace("client")];
    check(security::Match { namespaces: beside, ..Default::default() }, true, false);
    check(security::Match { not_namespaces: vec![unset()], ..Default::default() }, false, false);
    let beside = vec![unset(), namespace("client")];
    check(security::Match { not_namespaces: beside, ..Default::default() }, false, true);
    let beside = vec![unset(), namespace("other")];
    check(security::Match { not_namespaces: beside, ..Default::default() }, false, false);
    let other = vec![namespace("other")];
    let and =
        security::Match { namespaces: other, principals: vec![unset()], ..Default::default() };
    check(and, false, true);
    let address = security::Address { address: vec![1, 2, 3].into(), length: 8 };
    check(security::Match { source_ips: vec![address], ..Default::default() }, false, false);
    let address = security::Address { address: vec![0; 4].into(), length: 33 };
    check(security::Match { not_source_ips: vec![address], ..Default::default() }, false, false);
    let ports = vec![65_536];
    check(security::Match { destination_ports: ports, ..Default::default() }, false, false);
    let extensions = vec![proto::Extension::default()];
    let extended =
        security::Match { namespaces: vec![namespace("client")], extensions, ..Default::default() };
    check(extended, false, false);
}

#[test]
fn an_ipv4_block_is_one_of_ipv4_however_it_is_written() {
    let destination = SocketAddr::from(([10, 0, 0, 2], 80));
    let source = |ip: [u8; 4]| Source::new(None, ip.into());
    let mapped = |last: [u8; 4], length: u32| {
        let address = Ipv4Addr::from(last).to_ipv6_mapped().octets().to_vec();
        security::Address { address: address.into(), length }
    };
    // What it denies of 10.1.2.3 and of 11.1.2.3.
    let check = |block: security::Address, denies: [bool; 2], unreadable: usize| {
        let it = security::Match { source_ips: vec![block.clone()], ..Default::default() };
        let reading = policy::read(&message(Action::Deny, it).encode_to_vec()).unwrap();
        assert_eq!(reading.unreadable.len(), unreadable, "{block:?}");
        for (ip, denied) in [[10, 1, 2, 3], [11, 1, 2, 3]].into_iter().zip(denies) {
            let got = allows(reading.policy.clone(), &source(ip), destination);
            assert_eq!(got, !denied, "{block:?} {ip:?}");
        }
    };
    check(mapped([10, 1, 2, 3], 128), [true, false], 0);
    check(mapped([10, 0, 0, 0], 104), [true, false], 0);
    check(mapped([0; 4], 96), [true, true], 0);
    // Strictest: a block of both families denies everybody.
    check(mapped([10, 1, 2, 3], 95), [true, true], 1);
    check(security::Address { address: vec![0; 16].into(), length: 64 }, [true, true], 1);
    check(security::Address { address: vec![0; 16].into(), length: 0 }, [false, false], 0);
}

#[test]
fn a_refused_waypoint_stays_refused_on_its_way() {
    let mut service = Service::named("shop", "web.shop.svc.cluster.local");
    let destination = GatewayDestination::Refused("wp.infra.svc.cluster.local".into());
    service.waypoint = Some(GatewayAddress { destination, hbone_mtls_port: 15008 });
    let message = proto::Service::from(&service);
    let Some(sent) = message.waypoint.as_ref().and_then(|it| it.destination.as_ref()) else {
        panic!("the waypoint is sent")
    };
    let proto::gateway_address::Destination::Hostname(name) = sent else { panic!("{sent:?}") };
    assert_eq!(name.namespace, "", "no proxy finds a service in no namespace");
    assert_eq!(Service::try_from(message).unwrap(), service);
}

#[test]
fn fields_of_newer_versions_are_not_overlooked() {
    let source = Source::new(None, [10, 0, 0, 1].into());
    let destination = SocketAddr::from(([10, 0, 0, 2], 80));
    for (action, number) in [(Action::Allow, 0), (Action::Deny, 1)] {
        let ports = security::Match { destination_ports: vec![80], ..Default::default() };
        let known = message(action, ports);
        let allowed = |bytes: &[u8]| {
            let reading = policy::read(bytes).unwrap();
            (allows(reading.policy, &source, destination), reading.unreadable.len())
        };
        assert_eq!(allowed(&known.encode_to_vec()), (action == Action::Allow, 0));
        // The same match with a field 14 that this version does not know.
        let mut inner = known.rules[0].clauses[0].matches[0].encode_to_vec();
        inner.extend([14 << 3, 1]);
        let nested = |field: u8, inner: &[u8]| {
            let mut outer = vec![field << 3 | 2, u8::try_from(inner.len()).unwrap()];
            outer.extend(inner);
            outer
        };
        let mut bytes = nested(5, &nested(1, &nested(2, &inner)));
        bytes.extend([1 << 3 | 2, 1, b'p', 4 << 3, number]);
        assert_eq!(allowed(&bytes), (false, 1), "{action:?}");
    }
}

#[test]
fn an_unknown_action_denies() {
    let mut message = message(Action::Allow, security::Match::default());
    message.action = 2;
    let reading = policy::read(&message.encode_to_vec()).unwrap();
    assert_eq!(reading.unreadable, ["action: enum value 2 is unknown"]);
    let source = Source::new(None, IpAddr::from([1, 1, 1, 1]));
    assert!(!allows(reading.policy, &source, ([1, 1, 1, 2], 1).into()));
}

fn string_match() -> impl Strategy<Value = security::StringMatch> {
    use security::string_match::MatchType;
    let match_type = prop_oneof![
        "[ab]".prop_map(MatchType::Exact),
        "[ab]".prop_map(MatchType::Prefix),
        "[ab]".prop_map(MatchType::Suffix),
        Just(MatchType::Presence(())),
    ];
    match_type.prop_map(|it| security::StringMatch { match_type: Some(it) })
}

/// Values of one condition as they were meant, and as they arrive: some cannot be read.
fn condition() -> impl Strategy<Value = [Vec<security::StringMatch>; 2]> {
    let value = (string_match(), prop::bool::weighted(0.3));
    prop::collection::vec(value, 0..3).prop_map(|values| {
        let meant = values.iter().map(|(meant, _)| meant.clone()).collect();
        let arrived = values.into_iter().map(|(meant, damaged)| match damaged {
            true => security::StringMatch::default(),
            false => meant,
        });
        [meant, arrived.collect()]
    })
}

/// Clauses as they were meant, and as they arrive.
fn clauses() -> impl Strategy<Value = [Vec<security::Clause>; 2]> {
    let one_match = (condition(), condition(), condition()).prop_map(|conditions| {
        [0, 1].map(|side| security::Match {
            namespaces: conditions.0[side].clone(),
            not_namespaces: conditions.1[side].clone(),
            not_principals: conditions.2[side].clone(),
            ..Default::default()
        })
    });
    let clause = prop::collection::vec(one_match, 0..3).prop_map(|matches| {
        [0, 1].map(|side| security::Clause {
            matches: matches.iter().map(|it| it[side].clone()).collect(),
        })
    });
    prop::collection::vec(clause, 0..3)
        .prop_map(|clauses| [0, 1].map(|side| clauses.iter().map(|it| it[side].clone()).collect()))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 2000,
        ..ProptestConfig::default()
    })]

    /// Whatever the unreadable values were meant to say, the reading lets in no more than that.
    #[test]
    fn a_reading_never_fails_open(
        clauses in clauses(),
        deny: bool,
        identity in prop::option::of("[ab]"),
    ) {
        let [meant, arrived] = clauses.map(|clauses| {
            let message = security::Authorization {
                name: "p".into(),
                action: deny.into(),
                rules: vec![security::Rule { clauses }],
                ..Default::default()
            };
            policy::read(&message.encode_to_vec()).unwrap()
        });
        prop_assert!(meant.unreadable.is_empty());
        let identity = identity.map(|it| Identity::new(it.as_str(), it.as_str(), it.as_str()));
        let source = Source::new(identity, [10, 0, 0, 1].into());
        let destination = ([10, 0, 0, 2], 80).into();
        if allows(arrived.policy, &source, destination) {
            prop_assert!(allows(meant.policy, &source, destination));
        }
    }
}
