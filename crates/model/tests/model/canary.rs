//! Connections of a service with two waypoints.

use std::collections::BTreeMap;

use ambit_model::names::ServiceName;
use ambit_model::plan::{Delivery, Flow, Plan, Refusal};
use ambit_model::view::View;
use ambit_model::workload::{GatewayAddress, GatewayDestination, Tunnel, Workload};

use crate::plan::{Fake, addr, client, ip, port, service, view};

fn gateway(name: &str) -> GatewayAddress {
    let destination = GatewayDestination::Hostname(ServiceName::new("app", name));
    GatewayAddress { destination, hbone_mtls_port: 15008 }
}

fn pod(of: &str, last: u8) -> Workload {
    let mut pod = Workload::named(of, "app", of);
    pod.addresses = vec![ip(&format!("10.0.1.{last}"))].into();
    pod.tunnel = Tunnel::Hbone;
    pod.serve(ServiceName::new("app", of), vec![port(15008, 15008)]);
    pod
}

/// A mesh in which `app/one` is the waypoint, with these shares, and these waypoints have pods.
fn mesh(shares: &[(&str, u32)], running: &[&str]) -> View {
    let fronted = service(|it| {
        it.waypoint = Some(gateway("one"));
        it.weighted_waypoints = shares.iter().map(|(name, n)| (gateway(name), *n)).collect();
    });
    let pods = running.iter().enumerate();
    let pods = pods.map(|(at, name)| pod(name, u8::try_from(at).expect("few"))).collect();
    let mut view = view(Some(fronted), pods);
    for name in ["one", "two"] {
        let mut own = ambit_model::service::Service::named("app", name);
        own.ports = vec![port(15008, 15008)];
        view.apply(ambit_model::view::Change::Service(own));
    }
    view
}

/// How many of 4,000 connections go to which waypoint; the empty name counts refusals.
fn drawn(view: &View) -> BTreeMap<String, u32> {
    let (source, mut around) = (client(), Fake::default());
    let destination = addr("10.96.0.1:80");
    let flow = Flow { source: &source, source_ip: ip("10.0.9.9"), destination };
    let mut counts = BTreeMap::new();
    for _ in 0..4000 {
        let name = match view.plan(&flow, &mut around) {
            Plan::Waypoint { waypoint, .. } => waypoint.workload.name.to_string(),
            Plan::Refuse(Refusal::WaypointMissing { .. }) => String::new(),
            other => panic!("{other:?}"),
        };
        *counts.entry(name).or_default() += 1;
    }
    counts
}

#[test]
fn new_connections_are_split_by_their_shares() {
    let both = ["one", "two"];
    let counts = drawn(&mesh(&[("one", 90), ("two", 10)], &both));
    assert!((300..500).contains(&counts["two"]) && counts.len() == 2, "{counts:?}");
    let only = |name: &str| BTreeMap::from([(name.to_owned(), 4000)]);
    assert_eq!(drawn(&mesh(&[("one", 100), ("two", 0)], &both)), only("one"));
    assert_eq!(drawn(&mesh(&[("one", 0), ("two", 100)], &both)), only("two"));
    assert_eq!(drawn(&mesh(&[], &both)), only("one"));
}

#[test]
fn the_share_of_a_waypoint_without_pods_goes_to_one_that_has_a_share_too() {
    let only = |name: &str| BTreeMap::from([(name.to_owned(), 4000)]);
    let shared = [("one", 90), ("two", 10)];
    assert_eq!(drawn(&mesh(&shared, &["one"])), only("one"));
    assert_eq!(drawn(&mesh(&shared, &["two"])), only("two"));
    assert_eq!(drawn(&mesh(&shared, &[])), only(""));
    // One without a share does not judge in place of the one that has all.
    assert_eq!(drawn(&mesh(&[("one", 0), ("two", 100)], &["one"])), only(""));
    assert_eq!(drawn(&mesh(&[("one", 100), ("two", 0)], &["two"])), only(""));
}

#[test]
fn another_waypoint_goes_through_the_service_s_own() {
    let (source, mut around) = (client(), Fake::default());
    let destination = addr("10.96.9.9:8080");
    let flow = Flow { source: &source, source_ip: ip("10.0.9.9"), destination };
    let view = mesh(&[], &["one"]);
    let destination = addr("10.96.0.1:80");
    let fronted = view.service_at(&source.network, destination.ip(), "app").expect("a service");
    let mut through = |own: &str, view: &View| {
        let own = ServiceName::new("app", own);
        view.deliver_through(&flow, (fronted, 80), &own, &mut around)
    };
    assert!(through("one", &view).is_none(), "it stands before the service itself");
    match through("other", &view) {
        Some(Ok(Delivery::Tunnel(target))) => {
            assert_eq!((target.address, &*target.workload.name), (destination, "one"));
            assert_eq!(target.hbone, addr("10.0.1.0:15008"));
        }
        other => panic!("{other:?}"),
    }
    let missing = through("other", &mesh(&[], &[]));
    assert!(matches!(missing, Some(Err(Refusal::WaypointMissing { .. }))), "{missing:?}");
}
