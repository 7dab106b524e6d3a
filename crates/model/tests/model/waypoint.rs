//! What a waypoint decides beside policies: what it needs to know, and which endpoint takes a
//! request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::choice::{By, RequestFlow};
use ambit_model::http::authorizer::{Authorizer, Check};
use ambit_model::http::nearness::{Distribution, Failover, Nearness, Place};
use ambit_model::http::policy::{Action, RequestPolicy};
use ambit_model::http::rule::{
    self, Backend, Destination, Faults, Fraction, HeaderChanges, Mirror, Origin, Rewrite,
    RouteKind, Rule, Timeouts,
};
use ambit_model::http::service::{RouteGroup, Routes, ServiceHttp, Subset};
use ambit_model::http::warmup::WARM;
use ambit_model::identity::Identity;
use ambit_model::names::{NetworkAddress, PolicyName, ServiceName};
use ambit_model::plan::{Delivery, Refusal};
use ambit_model::service::{Mode, Scope, Service};
use ambit_model::view::{Change, View};
use ambit_model::workload::{GatewayAddress, GatewayDestination, Tunnel, Workload};

use crate::plan::{Fake, HOST, addr, client, endpoint, ip, locality, port, service, view};

fn name() -> ServiceName {
    ServiceName::new("app", HOST)
}

/// The service's endpoint for a request, and how it is reached.
fn choose(
    view: &View,
    around: &mut Fake,
    change: impl FnOnce(&mut RequestFlow<'_>),
) -> Result<Delivery, Refusal> {
    let source = client();
    let service = view.service(&name()).expect("it is there");
    let mut flow = RequestFlow {
        source: &source,
        destination: addr("10.96.0.1:80"),
        service,
        port: 80,
        host: None,
        subset: None,
        by: By::Load,
        is_avoided: &|_| false,
        nearness: &Nearness::OfService,
        warmth: &|_| WARM,
    };
    change(&mut flow);
    view.choose_for_request(&flow, around)
}

/// The uid of the endpoint.
fn chosen(view: &View, around: &mut Fake, change: impl FnOnce(&mut RequestFlow<'_>)) -> String {
    match choose(view, around, change) {
        Ok(Delivery::Tunnel(target)) => target.workload.uid.to_string(),
        other => panic!("{other:?}"),
    }
}

/// How often each endpoint is chosen in 4,000 requests.
fn spread(
    view: &View,
    around: &mut Fake,
    change: impl Fn(&mut RequestFlow<'_>),
) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for _ in 0..4000 {
        *counts.entry(chosen(view, around, &change)).or_default() += 1;
    }
    counts
}

fn three() -> View {
    view(Some(service(|_| {})), (1..=3).map(|n| endpoint(n, |_| {})).collect())
}

#[test]
fn an_endpoint_is_reached_as_its_workload_says() {
    let of = |change: fn(&mut Workload)| {
        let view = view(Some(service(|_| {})), vec![endpoint(1, change)]);
        choose(&view, &mut Fake::default(), |_| {})
    };
    match of(|_| {}).unwrap() {
        Delivery::Tunnel(target) => {
            assert_eq!(target.address, addr("10.0.0.1:8080"));
            assert_eq!(target.hbone, addr("10.0.0.1:15008"));
            assert_eq!(target.identities, [Identity::new("cluster.local", "app", "default")]);
            assert_eq!(target.service.map(|it| it.key.clone()), Some(name()));
        }
        other => panic!("{other:?}"),
    }
    // Its own waypoint is the one that asks.
    let waypoint = of(|it| {
        let destination = GatewayDestination::Hostname(ServiceName::new("app", "waypoint"));
        it.waypoint = Some(Arc::new(GatewayAddress { destination, hbone_mtls_port: 15008 }));
    });
    assert!(matches!(waypoint, Ok(Delivery::Tunnel(_))), "{waypoint:?}");
    match of(|it| it.tunnel = Tunnel::None).unwrap() {
        Delivery::Direct(direct) => assert_eq!(direct.address, addr("10.0.0.1:8080")),
        other => panic!("{other:?}"),
    }
    let nowhere = of(|it| it.addresses = vec![ip("127.0.0.1")].into());
    assert_eq!(nowhere, Err(Refusal::NoWorkloadAddress(addr("127.0.0.1:8080"))));
    assert_eq!(of(|it| it.healthy = false), Err(Refusal::NoEndpoint(name())));
    let no_address = of(|it| it.addresses = Vec::new().into());
    assert_eq!(no_address, Err(Refusal::NoAddress("server-1".into())));
    // Where the engine runs in the node proxy, its own pods need no tunnel.
    let view = view(Some(service(|_| {})), vec![endpoint(1, |_| {})]);
    let mut around = Fake::default();
    let identity = Identity::new("cluster.local", "app", "default");
    around.enrolled.insert(ip("10.0.0.1"), identity);
    let local = choose(&view, &mut around, |_| {});
    assert!(matches!(local, Ok(Delivery::Local(_))), "{local:?}");
    assert_eq!(
        choose(&view, &mut Fake::default(), |it| it.port = 81),
        Err(Refusal::NoPort(name(), 81))
    );
}

#[test]
fn load_chance_turn_and_hash_decide() {
    let view = three();
    let mut around = Fake::default();
    for by in [By::Load, By::Chance] {
        let counts = spread(&view, &mut around, |it| it.by = by);
        assert!(counts.values().all(|count| (1200..1470).contains(count)), "{by:?} {counts:?}");
    }
    around.open.insert("server-1".into(), 9);
    let counts = spread(&view, &mut around, |_| {});
    assert!(counts["server-1"] < 600, "{counts:?}");
    let turns: Vec<_> =
        (0..4).map(|turn| chosen(&view, &mut around, |it| it.by = By::Turn(turn))).collect();
    assert_eq!(turns, ["server-1", "server-2", "server-3", "server-1"]);
    let by_hash = |view: &View, around: &mut Fake| -> Vec<String> {
        (0..600).map(|hash| chosen(view, around, |it| it.by = By::Hash(hash))).collect()
    };
    let before = by_hash(&view, &mut around);
    assert_eq!(before, by_hash(&view, &mut Fake::default()), "nothing else decides");
    for n in 1..=3 {
        let count = before.iter().filter(|it| **it == format!("server-{n}")).count();
        assert!((150..250).contains(&count), "server-{n}: {count}");
    }
    around.aside.push("server-2".into());
    for (before, after) in before.iter().zip(by_hash(&view, &mut around)) {
        assert!(*before == after || *before == "server-2", "{before} moved to {after}");
    }
}

#[test]
fn turns_go_by_weight() {
    let weight = |n: u8| endpoint(n, |it| it.capacity = u32::from(n));
    let view = view(Some(service(|_| {})), vec![weight(1), weight(2), weight(3)]);
    let turn = |turn| chosen(&view, &mut Fake::default(), |it| it.by = By::Turn(turn));
    let mut counts = BTreeMap::new();
    (6..12).for_each(|it| *counts.entry(turn(it)).or_insert(0) += 1);
    let expected = [1, 2, 3].map(|n| (format!("server-{n}"), n));
    assert_eq!(counts, BTreeMap::from(expected));
}

#[test]
fn what_is_avoided_is_passed_over_while_there_are_others() {
    let view = three();
    let bys = [By::Load, By::Chance, By::Turn(1), By::Hash(7)];
    for by in bys {
        for _ in 0..50 {
            let chosen = chosen(&view, &mut Fake::default(), |it| {
                (it.by, it.is_avoided) = (by, &|uid: &str| uid != "server-3");
            });
            assert_eq!(chosen, "server-3", "{by:?}");
        }
        let all = choose(&view, &mut Fake::default(), |it| {
            (it.by, it.is_avoided) = (by, &|_: &str| true);
        });
        assert!(matches!(all, Ok(Delivery::Tunnel(_))), "{by:?} {all:?}");
    }
}

#[test]
fn a_near_endpoint_goes_before_a_far_one_whatever_decides() {
    let near = |n: u8, zone: &str| {
        let zone = locality("r1", zone);
        endpoint(n, |it| it.locality = zone)
    };
    let service = service(|it| {
        it.load_balancing.mode = Mode::Failover;
        it.load_balancing.routing_preference = vec![Scope::Region, Scope::Zone];
    });
    let view = view(Some(service), vec![near(1, "z2"), near(2, "z1"), near(3, "z2")]);
    for by in [By::Load, By::Chance, By::Turn(0), By::Hash(1)] {
        assert_eq!(chosen(&view, &mut Fake::default(), |it| it.by = by), "server-2", "{by:?}");
        let far = chosen(&view, &mut Fake::default(), |it| {
            (it.by, it.is_avoided) = (by, &|uid: &str| uid == "server-2");
        });
        assert_ne!(far, "server-2", "{by:?}");
    }
}

#[test]
fn a_subset_is_a_part_of_the_endpoints() {
    let mut view = three();
    let mut http = ServiceHttp::named(name());
    let subset = |uids: &[&str]| Subset::new(uids.iter().map(|it| Text::from(*it)), None);
    for (name, uids) in [
        ("v1", &["server-2"][..]),
        ("v2", &["server-3", "gone", "server-1"]),
        ("v3", &["gone"]),
        ("v4", &[]),
        ("v5", &["elsewhere"]),
    ] {
        http.subsets.insert(name.into(), subset(uids));
    }
    view.apply(Change::HttpService(Arc::new(http)));
    let mut elsewhere = Workload::named("elsewhere", "app", "elsewhere");
    elsewhere.addresses = vec![ip("10.0.0.9")].into();
    view.apply(Change::Workload(elsewhere));
    for by in [By::Load, By::Chance, By::Turn(5), By::Hash(7)] {
        let of = |subset: &'static str| {
            choose(&view, &mut Fake::default(), |it| (it.by, it.subset) = (by, Some(subset)))
        };
        let one = of("v1");
        let Ok(Delivery::Tunnel(target)) = one else { panic!("{one:?}") };
        assert_eq!(&*target.workload.uid, "server-2", "{by:?}");
        for none in ["v3", "v4", "v5"] {
            assert_eq!(of(none), Err(Refusal::NoEndpoint(name())), "{by:?} {none}");
        }
        assert_eq!(of("v9"), Err(Refusal::NoSubset(name(), "v9".into())), "{by:?}");
    }
    let counts = spread(&view, &mut Fake::default(), |it| it.subset = Some("v2"));
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!(counts.values().all(|count| (1800..2200).contains(count)), "{counts:?}");
}

#[test]
fn a_service_that_makes_no_choice_is_sent_where_the_request_was() {
    let passthrough = service(|it| it.load_balancing.mode = Mode::Passthrough);
    let view = view(Some(passthrough), vec![endpoint(1, |_| {})]);
    let at = |destination: &str, port| {
        choose(&view, &mut Fake::default(), |it| {
            (it.destination, it.port) = (addr(destination), port);
        })
    };
    match at("10.96.0.1:80", 80).unwrap() {
        Delivery::Direct(direct) => assert_eq!(direct.address, addr("10.96.0.1:80")),
        other => panic!("{other:?}"),
    }
    // The route leads here from another service.
    assert_eq!(at("10.96.0.2:80", 80), Err(Refusal::NoEndpoint(name())));
    assert_eq!(at("10.96.0.1:80", 81), Err(Refusal::NoEndpoint(name())));
    let loopback = at("127.0.0.1:80", 80);
    assert_eq!(loopback, Err(Refusal::NoWorkloadAddress(addr("127.0.0.1:80"))));
}

fn gateway(destination: GatewayDestination) -> GatewayAddress {
    GatewayAddress { destination, hbone_mtls_port: 15008 }
}

fn at(address: &str) -> GatewayDestination {
    GatewayDestination::Address(NetworkAddress::new("", ip(address)))
}

/// A rule that forwards to one service and copies to another.
fn forwarding(to: &str, copy: &str) -> Arc<Rule> {
    let destination = |host: &str| Destination::Service {
        name: ServiceName::new("app", host),
        port: 80,
        subset: None,
    };
    let backend = Backend {
        weight: 1,
        destination: destination(to),
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
    };
    let nothing = Backend { destination: Destination::Invalid("x".into()), ..backend.clone() };
    Arc::new(Rule {
        origin: Origin {
            kind: RouteKind::HttpRoute,
            namespace: "app".into(),
            name: "route".into(),
            created_unix_s: 0,
            index: 0,
            rule_name: None,
        },
        matches: Vec::new(),
        action: rule::Action::Forward {
            backends: vec![backend, nothing],
            rewrite: Rewrite::default(),
        },
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
        mirrors: vec![Mirror { destination: destination(copy), fraction: Fraction::ALL }],
        cors: None,
        faults: Faults::default(),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
    })
}

/// A service whose routes lead to these, and that these policies are for.
fn routed(host: &str, policies: &[&str], to: &str, copy: &str) -> ServiceHttp {
    let mut service = ServiceHttp::named(ServiceName::new("app", host));
    service.policies = policies.iter().map(|it| PolicyName::new("app", *it)).collect();
    let rules = vec![forwarding(to, copy)];
    let group = RouteGroup { client_namespace: Some("shop".into()), port: None, rules };
    service.routes = Routes::new(vec![group]);
    service
}

#[test]
fn a_waypoint_needs_what_its_policies_ask() {
    let own = ServiceName::new("app", "waypoint.app");
    let asked = ServiceName::new("app", "authz.app");
    let destination = Destination::Service { name: asked.clone(), port: 9000, subset: None };
    let mut http = ServiceHttp::named(own.clone());
    let authorizer = Authorizer { destination, check: Check::default() };
    http.authorizers.insert("authz".into(), Arc::new(authorizer));
    http.authorizers.insert("gone".into(), Arc::new(Authorizer::missing("it is not there")));
    let mut view = View::default();
    let change = Change::HttpService(Arc::new(http.clone()));
    assert!(view.changes_needs_of_waypoint(&own, &change));
    view.apply(change);
    assert_eq!(view.needed_by_waypoint(&own).services, BTreeSet::from([own.clone(), asked]));
    let version = view.authorization_version();
    http.authorizers.clear();
    let change = Change::HttpService(Arc::new(http));
    assert!(view.changes_needs_of_waypoint(&own, &change));
    view.apply(change);
    assert!(view.authorization_version() > version, "what is behind an upgrade is judged again");
}

#[test]
fn only_what_may_change_its_needs_makes_a_waypoint_ask_again() {
    let own = ServiceName::new("app", "waypoint.app");
    let fronted = |waypoint: Option<&str>| {
        let mut service = Service::named("app", "web");
        service.waypoint = waypoint
            .map(|host| gateway(GatewayDestination::Hostname(ServiceName::new("app", host))));
        service
    };
    let pod = |uid: &str, of: &ServiceName| {
        let mut pod = Workload::named(uid, "app", uid);
        pod.serve(of.clone(), Vec::new());
        pod
    };
    let http = |policies: &[&str], to: &str| {
        Change::HttpService(Arc::new(routed("web", policies, to, "copies")))
    };
    let other = ServiceName::new("app", "other");
    let mut view = View::default();
    view.apply(Change::Service(fronted(Some("waypoint.app"))));
    view.apply(Change::Workload(pod("waypoint-1", &own)));
    view.apply(Change::Workload(pod("other-1", &other)));
    view.apply(http(&["a"], "v1"));
    let renamed = Service { name: "x".into(), ..fronted(Some("waypoint.app")) };
    for (change, expected) in [
        (Change::Service(renamed), false),
        (Change::Service(fronted(None)), true),
        (Change::Service(Service::named("app", "new")), false),
        (Change::Service(Service::named("app", "waypoint.app")), true),
        (Change::Workload(pod("other-1", &other)), false),
        (Change::Workload(pod("waypoint-1", &other)), true),
        (Change::Workload(pod("waypoint-2", &own)), true),
        (Change::RemoveAddress("other-1".into()), false),
        (Change::RemoveAddress("waypoint-1".into()), true),
        (Change::RemoveAddress("app/web".into()), true),
        (http(&["a"], "v1"), false),
        (http(&["a", "b"], "v1"), true),
        (http(&["a"], "v2"), true),
        (Change::HttpService(Arc::new(ServiceHttp::named(other.clone()))), true),
        (Change::RemoveHttpService(other.clone()), true),
        (Change::RemoveRequestPolicy(PolicyName::new("app", "a")), false),
    ] {
        assert_eq!(view.changes_needs_of_waypoint(&own, &change), expected, "{change:?}");
    }
}

#[test]
fn a_waypoint_needs_what_it_fronts_and_what_that_names() {
    let own = ServiceName::new("app", "waypoint.app");
    let hostname = |name: &str| GatewayDestination::Hostname(ServiceName::new("app", name));
    let mut view = View::default();
    let mut of = |host: &str, change: &dyn Fn(&mut Service)| {
        let mut service = Service::named("app", host);
        change(&mut service);
        view.apply(Change::Service(service));
    };
    of("waypoint.app", &|it| {
        let address = NetworkAddress::new("", ip("10.96.0.9"));
        it.addresses = vec![ambit_model::service::VirtualAddress { address, prefix_len: None }];
    });
    of("by-name", &|it| it.waypoint = Some(gateway(hostname("waypoint.app"))));
    of("by-address", &|it| it.waypoint = Some(gateway(at("10.96.0.9"))));
    of("by-pod", &|it| it.waypoint = Some(gateway(at("10.0.0.1"))));
    of("canary", &|it| {
        it.waypoint = Some(gateway(hostname("other")));
        it.weighted_waypoints = vec![(gateway(hostname("waypoint.app")), 10)];
    });
    of("others", &|it| it.waypoint = Some(gateway(hostname("other"))));
    of("refused", &|it| {
        it.waypoint = Some(gateway(GatewayDestination::Refused("waypoint.app".into())));
    });
    of("nobodys", &|_| {});
    let mut pod = Workload::named("waypoint-1", "app", "waypoint-1");
    pod.addresses = vec![ip("10.0.0.1")].into();
    pod.serve(own.clone(), vec![port(15008, 15008)]);
    view.apply(Change::Workload(pod));
    let names = |view: &View| {
        let needed = view.needed_by_waypoint(&own);
        let services: Vec<_> = needed.services.iter().map(|it| it.hostname.to_string()).collect();
        let policies: Vec<_> = needed.policies.iter().map(|it| it.name.to_string()).collect();
        (services.join(" "), policies.join(" "))
    };
    let fronted = "by-address by-name by-pod canary";
    assert_eq!(names(&view), (format!("{fronted} waypoint.app"), String::new()));
    let mut http = |host: &str, policies: &[&str], to: &str, copy: &str| {
        view.apply(Change::HttpService(Arc::new(routed(host, policies, to, copy))));
    };
    http("by-name", &["a", "b"], "v1", "copies");
    http("waypoint.app", &["b", "c"], "by-name", "by-name");
    // Where its routes lead, other routes mean nothing. Policies there judge clients' own routes.
    http("v1", &["d"], "v2", "v2");
    let expected = format!("{fronted} copies v1 waypoint.app");
    assert_eq!(names(&view), (expected, "a b c d".to_owned()));
}

#[test]
fn one_change_leaves_the_rest_as_it_is() {
    let mut view = View::default();
    let [a, b] = ["a", "b"].map(|name| ServiceName::new("app", name));
    assert!(view.http_service(&a).is_none());
    for name in [&a, &b] {
        view.apply(Change::HttpService(Arc::new(ServiceHttp::named(name.clone()))));
    }
    let key = PolicyName::new("app", "p");
    let mut changed = ServiceHttp::named(a.clone());
    changed.policies = vec![key.clone()];
    let changed = Arc::new(changed);
    let mut version = view.authorization_version();
    let mut apply = |view: &mut View, change: Change, changes_judgement: bool| {
        view.apply(change);
        let new = view.authorization_version();
        assert_eq!(new != version, changes_judgement);
        version = new;
    };
    let before = view.clone();
    apply(&mut view, Change::HttpService(changed.clone()), true);
    apply(&mut view, Change::HttpService(changed.clone()), false);
    let is_same = |name| {
        let [now, then] = [&view, &before].map(|view| view.http_service(name).unwrap());
        Arc::ptr_eq(now, then)
    };
    assert_eq!((is_same(&a), is_same(&b)), (false, true));
    let policies = |view: &View| {
        let found = view.request_policies_of(&changed);
        found.map(|it| it.map(|it| it.is_dry_run).map_err(Clone::clone)).collect::<Vec<_>>()
    };
    assert_eq!(policies(&view), [Err(key.clone())]);
    let (action, rules) = (Action::Deny, Vec::new());
    let policy =
        RequestPolicy { key: key.clone(), action, is_dry_run: true, rules, condition: None };
    apply(&mut view, Change::RequestPolicy(Arc::new(policy)), true);
    assert_eq!(policies(&view), [Ok(true)]);
    apply(&mut view, Change::RemoveRequestPolicy(key.clone()), true);
    apply(&mut view, Change::RemoveRequestPolicy(key.clone()), false);
    assert_eq!(policies(&view), [Err(key)]);
    apply(&mut view, Change::RemoveHttpService(a.clone()), true);
    apply(&mut view, Change::RemoveHttpService(a.clone()), false);
    assert!(view.http_service(&a).is_none() && view.http_service(&b).is_some());
}

/// Two endpoints in the client's zone, one in another zone, one in another region.
fn spread_out() -> View {
    let at = |n: u8, region: &'static str, zone: &'static str| {
        endpoint(n, move |it| it.locality = locality(region, zone))
    };
    let endpoints =
        vec![at(1, "r1", "z1"), at(2, "r1", "z1"), at(3, "r1", "z2"), at(4, "r2", "z3")];
    view(Some(service(|_| {})), endpoints)
}

/// How many of a thousand requests each endpoint gets, to tens.
fn shares<'a>(
    view: &'a View,
    around: &mut Fake,
    client: &'a Workload,
    change: impl Fn(&mut RequestFlow<'a>),
) -> Vec<u32> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let service = view.service(&name()).expect("it is there");
    for _ in 0..10_000 {
        let mut flow = RequestFlow {
            source: client,
            destination: addr("10.96.0.1:80"),
            service,
            port: 80,
            host: None,
            subset: None,
            by: By::Load,
            is_avoided: &|_| false,
            nearness: &Nearness::OfService,
            warmth: &|_| WARM,
        };
        change(&mut flow);
        let Ok(Delivery::Tunnel(target)) = view.choose_for_request(&flow, around) else {
            panic!("no endpoint");
        };
        *counts.entry(target.workload.uid.to_string()).or_default() += 1;
    }
    let uids = (1..=4).map(|n| format!("server-{n}"));
    uids.map(|uid| (counts.get(&uid).copied().unwrap_or_default() + 50) / 100).collect()
}

fn near_client() -> Workload {
    Workload { locality: locality("r1", "z1"), ..client() }
}

#[test]
fn the_near_get_everything_until_too_few_are_left() {
    let (view, client) = (spread_out(), near_client());
    let failover = Nearness::Failover(Failover::default());
    let of = |avoided: &[&str], by: By| {
        let is_avoided = |uid: &str| avoided.contains(&uid);
        shares(&view, &mut Fake::default(), &client, |flow| {
            (flow.nearness, flow.by) = (&failover, by);
            flow.is_avoided = &is_avoided;
        })
    };
    for (avoided, expected) in [
        (&[][..], [50, 50, 0, 0]),
        // Half of them carry 70 %.
        (&["server-1"], [0, 70, 30, 0]),
        (&["server-1", "server-2"], [0, 0, 100, 0]),
        (&["server-1", "server-2", "server-3"], [0, 0, 0, 100]),
    ] {
        let found = of(avoided, By::Chance);
        let is_near = found.iter().zip(expected).all(|(is, should)| is.abs_diff(should) <= 3);
        assert!(is_near, "{avoided:?}: {found:?}, expected {expected:?}");
    }
    // A hash stays where it is.
    let hashed = of(&["server-1"], By::Hash(7));
    assert_eq!(hashed.iter().filter(|it| **it == 100).count(), 1, "{hashed:?}");
}

#[test]
fn the_services_own_preference_holds_unless_a_rule_says_otherwise() {
    let client = near_client();
    let endpoints = |zones: [(&'static str, &'static str); 2]| {
        zones
            .into_iter()
            .zip(1..)
            .map(|((region, zone), n)| endpoint(n, move |it| it.locality = locality(region, zone)))
    };
    let of = |mode: Mode, nearness: &Nearness| {
        let service = service(|it| {
            it.load_balancing.mode = mode;
            it.load_balancing.routing_preference = vec![Scope::Region];
        });
        let view = view(Some(service), endpoints([("r1", "z1"), ("r1", "z2")]).collect());
        shares(&view, &mut Fake::default(), &client, |flow| {
            (flow.nearness, flow.by) = (nearness, By::Chance);
        })[0]
    };
    let place = Nearness::OfServiceElsePlace;
    for (mode, nearness, expected) in [
        (Mode::Unspecified, &Nearness::OfService, 50),
        (Mode::Unspecified, &place, 100),
        // To the service both are alike.
        (Mode::Failover, &place, 50),
        (Mode::Failover, &Nearness::Failover(Failover::default()), 100),
        (Mode::Failover, &Nearness::Ignored, 50),
    ] {
        let found = of(mode, nearness);
        assert!(found.abs_diff(expected) <= 3, "{mode:?} {nearness:?}: {found}");
    }
}

#[test]
fn shares_by_hand_are_of_the_clients_place() {
    let (view, client) = (spread_out(), near_client());
    let place = |region: &str, zone: Option<&str>| Place {
        region: Some(region.into()),
        zone: zone.map(Text::from),
        subzone: None,
    };
    let to = vec![(place("r1", Some("z1")), 60), (place("r2", None), 40)];
    let of = |from: Place| {
        let distribution = Nearness::Distribute(vec![Distribution { from, to: to.clone() }]);
        shares(&view, &mut Fake::default(), &client, |flow| {
            (flow.nearness, flow.by) = (&distribution, By::Chance);
        })
    };
    for (from, expected) in
        [(place("r1", None), [30, 30, 0, 40]), (place("r2", None), [25, 25, 25, 25])]
    {
        let found = of(from.clone());
        let is_near = found.iter().zip(expected).all(|(is, should)| is.abs_diff(should) <= 3);
        assert!(is_near, "{from:?}: {found:?}");
    }
}

#[test]
fn another_region_takes_over_by_name() {
    let at =
        |n: u8, region: &'static str| endpoint(n, move |it| it.locality = locality(region, "z"));
    let view = view(Some(service(|_| {})), vec![at(1, "r2"), at(2, "r3")]);
    let regions = vec![("r1".into(), "r3".into())];
    let failover = Nearness::Failover(Failover { regions, ..Failover::default() });
    let client = near_client();
    let found = shares(&view, &mut Fake::default(), &client, |flow| flow.nearness = &failover);
    assert_eq!(found[..2], [0, 100]);
}

#[test]
fn a_new_endpoint_gets_less() {
    let (view, client) = (three(), client());
    for by in [By::Chance, By::Load, By::Turn(7)] {
        let found = shares(&view, &mut Fake::default(), &client, |flow| {
            flow.by = by;
            flow.warmth = &|uid| if uid == "server-1" { 100 } else { WARM };
        });
        assert!(found[0] <= 6, "{by:?}: {found:?}");
    }
    let of = |n: u64| {
        shares(&view, &mut Fake::default(), &client, |flow| {
            flow.by = By::Hash(n);
            flow.warmth = &|uid| if uid == "server-1" { 1 } else { WARM };
        })
    };
    assert!((0..64).any(|n| of(n)[0] == 100), "a hash does not ask how warm it is");
}
