//! What changes of a view mean for connections that are already judged.

use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::Service;
use ambit_model::view::{Change, View};
use ambit_model::workload::{GatewayAddress, GatewayDestination, Workload};

fn server() -> Workload {
    let mut server = Workload::named("Kubernetes//Pod/app/server", "app", "server");
    server.addresses = vec!["10.0.0.1".parse().expect("an address")];
    server
}

fn policy(name: &str) -> Policy {
    Policy {
        key: PolicyName::new("app", name),
        scope: PolicyScope::Namespace,
        action: Action::Deny,
        rules: Vec::new(),
        dry_run: false,
    }
}

fn gateway() -> GatewayAddress {
    let name = ServiceName::new("app", "waypoint.app.svc.cluster.local");
    GatewayAddress { destination: GatewayDestination::Hostname(name), hbone_mtls_port: 15008 }
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
    let selected = Workload { policies: vec![PolicyName::new("app", "p")], ..server() };
    check(Change::Workload(selected.clone()), true);
    check(Change::Workload(selected), false);
    check(Change::Workload(Workload { waypoint: Some(gateway().into()), ..server() }), true);
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
    view.apply(Change::Workload(Workload { waypoint: Some(gateway().into()), ..server() }));
    assert!(view.is_waypoint_of(&waypoint, ip));
    assert!(!view.is_waypoint_of(&server(), ip));
}
