//! What a change of the view means for connections that are already judged, and lookups in a view.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ambit_model::Text;
use ambit_model::names::{NetworkAddress, PolicyName, ServiceName, WorkloadName};
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::{Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_model::workload::{GatewayAddress, GatewayDestination, Workload};
use proptest::prelude::*;

fn server() -> Workload {
    let mut server = Workload::named("Kubernetes//Pod/app/server", "app", "server");
    server.addresses = vec!["10.0.0.1".parse().expect("an address")].into();
    server
}

fn policy(name: &str) -> Policy {
    Policy {
        key: PolicyName::new("app", name),
        scope: PolicyScope::Namespace,
        action: Action::Deny,
        rules: Vec::new(),
        dry_run: false,
        is_of_waypoints: false,
    }
}

fn gateway() -> GatewayAddress {
    let name = ServiceName::new("app", "waypoint.app.svc.cluster.local");
    GatewayAddress { destination: GatewayDestination::Hostname(name), hbone_mtls_port: 15008 }
}

fn behind_a_waypoint() -> Workload {
    let mut server = server();
    server.waypoint = Some(gateway().into());
    server
}

#[test]
fn only_what_concerns_authorization_changes_its_version() {
    let mut view = View::default();
    view.apply(Change::Workload(server()));
    let mut check = |change: Change, concerns: bool| {
        let before = view.authorization_version();
        view.apply(change.clone());
        assert_eq!(view.authorization_version() != before, concerns, "{change:?}");
    };
    check(Change::Workload(Workload::named("Kubernetes//Pod/app/new", "app", "new")), false);
    check(Change::Workload(Workload { healthy: false, ..server() }), false);
    check(Change::Service(Service::named("app", "web.app.svc.cluster.local")), false);
    check(Change::RemoveAddress("Kubernetes//Pod/app/new".into()), false);
    check(Change::Policy(policy("p")), true);
    check(Change::RemovePolicy(PolicyName::new("app", "p")), true);
    check(Change::RemovePolicy(PolicyName::new("app", "unknown")), false);
    let mut selected = server();
    selected.policies = vec![PolicyName::new("app", "p")];
    check(Change::Workload(selected.clone()), true);
    check(Change::Workload(selected), false);
    check(Change::Workload(behind_a_waypoint()), true);
    let mut service = Service::named("app", "web.app.svc.cluster.local");
    service.waypoint = Some(gateway());
    check(Change::Service(service.clone()), true);
    check(Change::Service(service), false);
}

#[test]
fn a_waypoint_stands_before_those_that_name_it() {
    let mut waypoint = Workload::named("Kubernetes//Pod/app/waypoint-1", "app", "waypoint-1");
    let name = ServiceName::new("app", "waypoint.app.svc.cluster.local");
    waypoint.serve(name, Vec::new());
    let mut view = View::default();
    let ip = server().addresses[0];
    view.apply(Change::Workload(server()));
    assert!(!view.is_waypoint_of(&waypoint, ip));
    view.apply(Change::Workload(behind_a_waypoint()));
    assert!(view.is_waypoint_of(&waypoint, ip));
    assert!(!view.is_waypoint_of(&server(), ip));
}

#[test]
fn nobody_elses_entry_makes_a_workload_a_waypoint() {
    let mut pod = Workload::named("Kubernetes//Pod/app/server", "app", "server");
    let name = ServiceName::new("app", "waypoint.app.svc.cluster.local");
    pod.serve(name.clone(), Vec::new());
    let (named, refused) = (gateway().destination, GatewayDestination::Refused(name.hostname));
    let check = |namespace: &str, ip: &str, destination: &GatewayDestination, expected: bool| {
        let ip: IpAddr = ip.parse().expect("an address");
        let waypoint = GatewayAddress { destination: destination.clone(), hbone_mtls_port: 15008 };
        let mut service = Service::named(namespace, "elsewhere.example");
        let address = NetworkAddress::new("", ip);
        service.addresses = vec![VirtualAddress { address, prefix_len: None }];
        service.waypoint = Some(waypoint.clone());
        let mut entry = Workload::named("entry", namespace, "entry");
        entry.addresses = vec![ip].into();
        entry.waypoint = Some(waypoint.into());
        for change in [Change::Service(service), Change::Workload(entry)] {
            let mut view = View::default();
            view.apply(change.clone());
            assert_eq!(view.is_waypoint_of(&pod, ip), expected, "{change:?}");
        }
    };
    check("app", "10.96.0.9", &named, true);
    check("app", "10.96.0.9", &refused, false);
    check("evil", "10.96.0.9", &named, false);
    for own in ["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "169.254.169.254", "fe80::1"] {
        check("app", own, &named, false);
        check("evil", own, &named, false);
    }
}

/// A small world, so that workloads meet: uid, name, network, addresses, host network, service.
type Drawn = (u8, u8, bool, Vec<u8>, bool, bool);

fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn drawn(index: usize, (uid, name, is_remote, ips, host_network, serves): &Drawn) -> Workload {
    let mut workload = Workload::named(format!("uid-{uid}"), "app", format!("pod-{name}"));
    workload.network = if *is_remote { "remote" } else { "" }.into();
    workload.addresses = ips.iter().map(|ip| address(*ip)).collect::<Vec<_>>().into();
    workload.host_network = *host_network;
    // Distinguishes one state of a workload from another.
    workload.node = Text::from(format!("node-{index}"));
    if *serves {
        workload.serve(ServiceName::new("app", "web.app"), Vec::new());
    }
    workload
}

#[test]
fn an_entry_with_the_name_of_a_pod_does_not_take_its_place() {
    let pod = Workload { node: "node-1".into(), ..server() };
    for cluster in ["A", "Kubernetes", "Z"] {
        let uid = format!("{cluster}/networking.istio.io/WorkloadEntry/app/server");
        let entry = Workload::named(uid, "app", "server");
        for both in [[&pod, &entry], [&entry, &pod]] {
            let mut view = View::default();
            both.into_iter().for_each(|it| view.apply(Change::Workload(it.clone())));
            let found = view.workload_named(&WorkloadName::new("app", "server"));
            assert_eq!(found.map(|it| &*it.uid), Some(&*pod.uid));
        }
    }
}

#[test]
fn a_service_is_found_by_what_it_is_now() {
    let named = |host: &str, ip: u8| {
        let mut service = Service::named("app", host);
        let address = NetworkAddress::new("", address(ip));
        service.addresses = vec![VirtualAddress { address, prefix_len: None }];
        service
    };
    let mut view = View::default();
    let at = |view: &View, ip: u8| {
        view.service_at(&"".into(), address(ip), "app").map(|it| it.key.hostname.to_string())
    };
    view.apply(Change::Service(named("web", 1)));
    view.apply(Change::Service(named("api", 1)));
    view.apply(Change::Service(named("web", 2)));
    assert_eq!([at(&view, 1), at(&view, 2)], [Some("api".into()), Some("web".into())]);
    assert_eq!(view.services().count(), 2);
    view.apply(Change::RemoveAddress("app/web".into()));
    assert_eq!([at(&view, 1), at(&view, 2)], [Some("api".into()), None]);
    assert!(view.service_by_hostname("web", "app").is_none());
    assert!(view.service_by_hostname("api", "app").is_some());
    assert!(view.service(&ServiceName::new("app", "web")).is_none());
}

#[test]
fn of_two_services_with_one_block_every_view_takes_the_same() {
    let services = ["api", "web"].map(|host| {
        let mut service = Service::named("app", host);
        let address = NetworkAddress::new("", address(0));
        service.addresses = vec![VirtualAddress { address, prefix_len: Some(24) }];
        service
    });
    let [one, other] = services;
    for both in [[&one, &other], [&other, &one]] {
        let mut view = View::default();
        both.into_iter().for_each(|it| view.apply(Change::Service(it.clone())));
        let found = view.service_at(&"".into(), address(7), "app");
        assert_eq!(found.map(|it| &*it.key.hostname), Some("api"));
    }
}

proptest! {
    #[test]
    fn what_is_found_is_what_a_search_of_all_finds(
        changes in proptest::collection::vec(
            (any::<bool>(), (0_u8..5, 0_u8..4, any::<bool>(),
                proptest::collection::vec(0_u8..4, 0..3), any::<bool>(), any::<bool>())),
            0..40,
        ),
    ) {
        let mut view = View::default();
        let mut all = BTreeMap::<Text, Workload>::new();
        for (index, (is_removal, it)) in changes.iter().enumerate() {
            let workload = drawn(index, it);
            if *is_removal {
                all.remove(&workload.uid);
                view.apply(Change::RemoveAddress(workload.uid));
            } else {
                all.insert(workload.uid.clone(), workload.clone());
                view.apply(Change::Workload(workload));
            }
            prop_assert_eq!(view.workloads().count(), all.len());
            for (uid, workload) in &all {
                prop_assert_eq!(view.workload(uid).map(|it| &**it), Some(workload));
            }
            for network in ["", "remote"].map(Text::from) {
                for ip in (0..4).map(address) {
                    let is_there = |it: &&Workload| {
                        !it.host_network && it.network == network && it.addresses.contains(&ip)
                    };
                    let found = view.workload_at(&network, ip).map(|it| &**it);
                    prop_assert_eq!(found, all.values().find(is_there));
                }
            }
            for name in (0..4).map(|it| format!("pod-{it}")) {
                let found = view.workload_named(&WorkloadName::new("app", &*name));
                let first = all.values().find(|it| *it.name == *name);
                prop_assert_eq!(found.map(|it| &**it), first);
            }
            let serving = all.values().filter(|it| !it.services.is_empty());
            let endpoints = view.endpoints(&ServiceName::new("app", "web.app"));
            let found = endpoints.into_iter().flat_map(|it| it.iter()).map(|it| &**it);
            prop_assert!(found.eq(serving));
        }
    }
}
