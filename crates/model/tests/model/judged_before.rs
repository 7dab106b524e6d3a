//! What a waypoint has judged is not judged again at the endpoint, and nothing else is left out.

use std::sync::Arc;

use ambit_model::authorize::{Decision, Denial, Source};
use ambit_model::identity::Identity;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::{Action, Policy, PolicyScope};
use ambit_model::service::Service;
use ambit_model::view::{Change, View};
use ambit_model::workload::{GatewayAddress, GatewayDestination, Workload};

use PolicyScope::{Global, Namespace, WorkloadSelector};

/// A policy that allows nobody.
fn nobody(scope: PolicyScope, is_of_waypoints: bool) -> Policy {
    let key = PolicyName::new("app", "nobody");
    let (action, rules) = (Action::Allow, Vec::new());
    Policy { key, scope, action, rules, dry_run: false, is_of_waypoints }
}

fn gateway(namespace: &str, name: &str) -> GatewayAddress {
    let destination = GatewayDestination::Hostname(ServiceName::new(namespace, name));
    GatewayAddress { destination, hbone_mtls_port: 15008 }
}

fn waypoint(namespace: &str, name: &str) -> Workload {
    let mut pod = Workload::named(format!("{namespace}/{name}"), namespace, name);
    pod.service_account = name.into();
    pod.serve(ServiceName::new(namespace, name), Vec::new());
    pod
}

struct Case {
    name: &'static str,
    policy: Policy,
    /// The waypoint of the pod itself.
    own: Option<GatewayAddress>,
    /// Services of the pod, each with its namespace and its waypoint.
    services: Vec<(&'static str, Option<GatewayAddress>)>,
    /// Namespace and account of the peer.
    peer: Option<(&'static str, &'static str)>,
    expected: &'static str,
}

fn check(case: Case) {
    let mut view = View::default();
    view.apply(Change::Policy(case.policy.clone()));
    for (namespace, name) in [("app", "one"), ("app", "two"), ("infra", "shared")] {
        view.apply(Change::Workload(waypoint(namespace, name)));
    }
    let mut pod = Workload::named("pod", "app", "pod");
    pod.waypoint = case.own.map(Arc::new);
    if case.policy.scope == WorkloadSelector {
        pod.policies = vec![case.policy.key].into_iter().collect();
    }
    for (index, (namespace, waypoint)) in case.services.into_iter().enumerate() {
        let mut service = Service::named(namespace, format!("s{index}"));
        service.waypoint = waypoint;
        pod.serve(service.key.clone(), Vec::new());
        view.apply(Change::Service(service));
    }
    view.apply(Change::Workload(pod.clone()));
    let identity = |(namespace, account)| Identity::new("cluster.local", namespace, account);
    let source = Source::new(case.peer.map(identity), "10.0.0.1".parse().expect("an address"));
    let to = "10.0.0.2:8080".parse().expect("an address");
    let decided = match view.authorize(&pod, &source, to).decision {
        Decision::Allow(None) => "in",
        Decision::Deny(Denial::NotAllowed { .. }) => "judged",
        Decision::Deny(Denial::NotThroughWaypoint { .. }) => "around",
        other => panic!("{}: {other:?}", case.name),
    };
    assert_eq!(decided, case.expected, "{}", case.name);
}

fn case(name: &'static str, policy: Policy, expected: &'static str) -> Case {
    let services = vec![("app", Some(gateway("app", "one")))];
    Case { name, policy, own: None, services, peer: Some(("app", "one")), expected }
}

#[test]
fn what_a_waypoint_judged_is_not_judged_again() {
    check(case("namespace", nobody(Namespace, true), "in"));
    check(case("mesh", nobody(Global, true), "in"));
    let shared = vec![("app", Some(gateway("infra", "shared")))];
    let peer = Some(("infra", "shared"));
    let far = case("a waypoint elsewhere", nobody(Namespace, true), "in");
    check(Case { services: shared, peer, ..far });
}

#[test]
fn policies_of_the_pods_and_those_that_the_control_plane_does_not_vouch_for_keep_their_force() {
    check(case("selector", nobody(WorkloadSelector, true), "judged"));
    // Istio's waypoints ignore such policies, and its control plane says nothing of them.
    check(case("namespace, of Istio's", nobody(Namespace, false), "judged"));
    check(case("mesh, of Istio's", nobody(Global, false), "judged"));
}

#[test]
fn nobody_else_comes_in_by_a_waypoints_right() {
    let policy = || nobody(Namespace, true);
    for (name, peer) in [
        ("another waypoint", Some(("app", "two"))),
        ("its name in another namespace", Some(("infra", "one"))),
        ("a client", Some(("app", "client"))),
        ("plain text", None),
    ] {
        check(Case { peer, ..case(name, policy(), "around") });
    }
    // Of a pod without a waypoint, a waypoint is a client like all others.
    for peer in [Some(("app", "one")), None] {
        let without = case("no waypoint", policy(), "judged");
        check(Case { services: vec![("app", None)], peer, ..without });
    }
    // Of a pod of two services, either waypoint has judged for the namespace.
    let both = || vec![("app", Some(gateway("app", "one"))), ("app", Some(gateway("app", "two")))];
    check(Case { services: both(), ..case("two services", policy(), "in") });
}

#[test]
fn a_waypoint_of_another_namespace_has_not_judged_for_what_names_it_as_a_workload() {
    let shared = || Some(gateway("infra", "shared"));
    let peer = Some(("infra", "shared"));
    let of = |name, policy, expected| Case { own: shared(), peer, ..case(name, policy, expected) };
    check(Case { services: Vec::new(), ..of("its pod", nobody(Namespace, true), "judged") });
    check(Case { services: Vec::new(), ..of("its pod, mesh", nobody(Global, true), "in") });
    // It may have come to the pod or to the service.
    let services = vec![("app", shared())];
    check(Case { services, ..of("pod and service", nobody(Namespace, true), "judged") });
    let own = Some(gateway("app", "one"));
    let near = case("its own namespace's", nobody(Namespace, true), "in");
    check(Case { own, services: Vec::new(), ..near });
    // What a service of another namespace is for, its policies judge, and not the pod's.
    let services = vec![("other", shared())];
    let foreign = case("a service of another namespace", nobody(Namespace, true), "judged");
    check(Case { services, peer, ..foreign });
}

#[test]
fn a_gateway_comes_in_where_the_service_names_it_beside_its_waypoint() {
    let check = |name: &str, service: Service, policy: Policy, expected: &str| {
        let mut view = View::default();
        view.apply(Change::Policy(policy));
        view.apply(Change::Workload(waypoint("edge", "ingress")));
        let mut pod = Workload::named("pod", "app", "pod");
        pod.serve(service.key.clone(), Vec::new());
        view.apply(Change::Service(service));
        let identity = Identity::new("cluster.local", "edge", "ingress");
        let source = Source::new(Some(identity), "10.0.0.1".parse().expect("an address"));
        let to = "10.0.0.2:8080".parse().expect("an address");
        let decided = match view.authorize(&pod, &source, to).decision {
            Decision::Allow(None) => "in",
            Decision::Deny(Denial::NotAllowed { .. }) => "judged",
            Decision::Deny(Denial::NotThroughWaypoint { .. }) => "around",
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(decided, expected, "{name}");
    };
    let of = |namespace: &str, waypoint: Option<GatewayAddress>, entrances: &[&str]| {
        let mut service = Service::named(namespace, "web");
        service.waypoint = waypoint;
        service.entrances = entrances.iter().map(|name| ServiceName::new("edge", *name)).collect();
        service
    };
    let fronted = || Some(gateway("app", "one"));
    let policy = || nobody(Namespace, true);
    check("named", of("app", fronted(), &["ingress"]), policy(), "in");
    check("not named", of("app", fronted(), &[]), policy(), "around");
    check("another is named", of("app", fronted(), &["other"]), policy(), "around");
    check("no waypoint", of("app", None, &["ingress"]), policy(), "judged");
    check(
        "not vouched for",
        of("app", fronted(), &["ingress"]),
        nobody(Namespace, false),
        "judged",
    );
    check("another namespace's", of("other", fronted(), &["ingress"]), policy(), "judged");
}
