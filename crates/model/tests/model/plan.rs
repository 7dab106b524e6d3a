//! Plans and endpoint choice, by tables and by distribution.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ambit_model::choice::Surroundings;
use ambit_model::identity::Identity;
use ambit_model::names::{NetworkAddress, ServiceName, WorkloadName};
use ambit_model::plan::{Flow, Plan, Refusal};
use ambit_model::service::{Mode, Scope, Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_model::workload::{
    AppProtocol, GatewayAddress, GatewayDestination, Locality, PortMapping, Tunnel, Workload,
};

pub(crate) const HOST: &str = "server.app.svc.cluster.local";

pub(crate) fn locality(region: &str, zone: &str) -> Arc<Locality> {
    Arc::new(Locality { region: region.into(), zone: zone.into(), subzone: "".into() })
}

/// Surroundings as data: a counter for randomness, tables for the rest.
#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) enrolled: HashMap<IpAddr, Identity>,
    encrypts: bool,
    pub(crate) open: HashMap<String, u32>,
    pub(crate) aside: Vec<String>,
    state: u64,
}

impl Surroundings for Fake {
    fn enrolled_identity(&self, ip: IpAddr) -> Option<&Identity> {
        self.enrolled.get(&ip)
    }

    fn may_join(&self) -> bool {
        !self.encrypts
    }

    fn open_connections(&self, uid: &str) -> u32 {
        self.open.get(uid).copied().unwrap_or_default()
    }

    fn is_set_aside(&self, uid: &str) -> bool {
        self.aside.iter().any(|name| name == uid)
    }

    fn random_below(&mut self, bound: u64) -> u64 {
        // SplitMix64: enough for a distribution, the same in every run.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(crate) fn port(service_port: u16, target_port: u16) -> PortMapping {
    PortMapping { service_port, target_port, app_protocol: AppProtocol::Tcp }
}

pub(crate) fn endpoint(n: u8, change: impl FnOnce(&mut Workload)) -> Workload {
    let mut workload = Workload::named(format!("server-{n}"), "app", format!("server-{n}"));
    workload.addresses = vec![ip(&format!("10.0.0.{n}"))].into();
    workload.tunnel = Tunnel::Hbone;
    workload.serve(ServiceName::new("app", HOST), vec![port(80, 8080)]);
    change(&mut workload);
    workload
}

pub(crate) fn service(change: impl FnOnce(&mut Service)) -> Service {
    let mut service = Service::named("app", HOST);
    let address = NetworkAddress::new("", ip("10.96.0.1"));
    service.addresses = vec![VirtualAddress { address, prefix_len: None }];
    service.ports = vec![port(80, 0)];
    change(&mut service);
    service
}

pub(crate) fn client() -> Workload {
    let mut client = Workload::named("client", "app", "client");
    client.addresses = vec![ip("10.0.9.9")].into();
    client.node = "n1".into();
    client.locality = locality("r1", "z1");
    client
}

pub(crate) fn view(service: Option<Service>, endpoints: Vec<Workload>) -> View {
    let mut view = View::default();
    service.into_iter().for_each(|s| view.apply(Change::Service(s)));
    endpoints.into_iter().for_each(|w| view.apply(Change::Workload(w)));
    view
}

fn plan(view: &View, to: &str, around: &mut Fake) -> Plan {
    let source = client();
    let flow = Flow { source: &source, source_ip: ip("10.0.9.9"), destination: addr(to) };
    view.plan(&flow, around)
}

/// How often each endpoint is chosen in 4,000 plans.
fn spread(view: &View, around: &mut Fake) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for _ in 0..4000 {
        match plan(view, "10.96.0.1:80", around) {
            Plan::Tunnel(t) => *counts.entry(t.workload.uid.to_string()).or_default() += 1,
            other => panic!("{other:?}"),
        }
    }
    counts
}

#[test]
fn a_service_port_becomes_the_workloads_port() {
    let view = view(Some(service(|_| {})), vec![endpoint(1, |_| {})]);
    match plan(&view, "10.96.0.1:80", &mut Fake::default()) {
        Plan::Tunnel(target) => {
            assert_eq!(target.address, addr("10.0.0.1:8080"));
            assert_eq!(target.hbone, addr("10.0.0.1:15008"));
            assert_eq!(target.identities, [Identity::new("cluster.local", "app", "default")]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_reached_is_refused_with_the_reason() {
    let name = ServiceName::new("app", HOST);
    let check = |view: &View, to: &str, expected: Refusal| {
        assert_eq!(plan(view, to, &mut Fake::default()), Plan::Refuse(expected));
    };
    let none = view(Some(service(|_| {})), vec![]);
    check(&none, "10.96.0.1:80", Refusal::NoEndpoint(name.clone()));
    check(&none, "10.96.0.1:81", Refusal::NoPort(name.clone(), 81));
    let unready = view(Some(service(|_| {})), vec![endpoint(1, |w| w.healthy = false)]);
    check(&unready, "10.96.0.1:80", Refusal::NoEndpoint(name));
    let own_port = view(None, vec![endpoint(1, |_| {})]);
    check(&own_port, "10.0.0.1:15008", Refusal::ProxyPort(addr("10.0.0.1:15008")));
    for no_workloads in ["127.0.0.1", "127.8.8.8", "0.0.0.0", "::1", "::", "fe80::1", "224.0.0.1"] {
        for tunnel in [Tunnel::Hbone, Tunnel::None] {
            let led_astray = endpoint(1, |it| {
                (it.addresses, it.tunnel) = (vec![ip(no_workloads)].into(), tunnel);
            });
            let view = view(Some(service(|_| ())), vec![led_astray]);
            let address = SocketAddr::new(ip(no_workloads), 8080);
            check(&view, "10.96.0.1:80", Refusal::NoWorkloadAddress(address));
        }
    }
}

#[test]
fn a_missing_waypoint_is_refused_whatever_names_it() {
    let gateway = GatewayAddress {
        destination: GatewayDestination::Hostname(ServiceName::new("app", "wp.app.svc")),
        hbone_mtls_port: 15008,
    };
    let missing = |named_by: &str| {
        Plan::Refuse(Refusal::WaypointMissing {
            waypoint: "app/wp.app.svc".into(),
            named_by: named_by.into(),
        })
    };
    let by_service =
        view(Some(service(|s| s.waypoint = Some(gateway.clone()))), vec![endpoint(1, |_| {})]);
    let got = plan(&by_service, "10.96.0.1:80", &mut Fake::default());
    assert_eq!(got, missing("service app/server.app.svc.cluster.local"));
    let by_workload = view(None, vec![endpoint(1, |w| w.waypoint = Some(gateway.into()))]);
    let got = plan(&by_workload, "10.0.0.1:80", &mut Fake::default());
    assert_eq!(got, missing("workload app/server-1"));
}

#[test]
fn a_refused_waypoint_is_never_gone_around() {
    let gateway = GatewayAddress {
        destination: GatewayDestination::Refused("server.app.svc.cluster.local".into()),
        hbone_mtls_port: 15008,
    };
    // A Service of that name does not help, not even one with the port.
    let named = service(|it| {
        it.ports = vec![port(15008, 15008), port(80, 8080)];
        it.waypoint = Some(gateway.clone());
    });
    let view = view(Some(named), vec![endpoint(1, |_| {})]);
    let refused = Plan::Refuse(Refusal::WaypointRefused {
        waypoint: "server.app.svc.cluster.local".into(),
        named_by: "service app/server.app.svc.cluster.local".into(),
    });
    assert_eq!(plan(&view, "10.96.0.1:80", &mut Fake::default()), refused);
}

#[test]
fn what_is_the_clients_own_no_entry_takes_over() {
    for own in ["127.0.0.53:53", "127.0.0.2:80", "[::1]:80"] {
        let own = addr(own);
        let taken = service(|it| {
            let address = NetworkAddress::new("", own.ip());
            it.addresses = vec![VirtualAddress { address, prefix_len: None }];
            it.ports = vec![port(own.port(), 8080)];
        });
        let entry = endpoint(2, |it| it.addresses = vec![own.ip()].into());
        let view = view(Some(taken), vec![endpoint(1, |_| {}), entry]);
        match plan(&view, &own.to_string(), &mut Fake::default()) {
            Plan::Direct(direct) => {
                assert_eq!((direct.address, direct.workload), (own, None));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_same_node_is_local_only_when_view_and_agent_agree() {
    // An agent that has captured a pod is ahead of the view for a moment.
    for tunnel in [Tunnel::Hbone, Tunnel::None] {
        let view = view(None, vec![endpoint(1, |w| w.tunnel = tunnel)]);
        let enrolled_as = |account: &str, encrypts: bool| {
            let identity = Identity::new("cluster.local", "app", account);
            let enrolled = HashMap::from([(ip("10.0.0.1"), identity)]);
            plan(&view, "10.0.0.1:8080", &mut Fake { enrolled, encrypts, ..Fake::default() })
        };
        assert!(matches!(enrolled_as("default", false), Plan::Local(_)), "{tunnel:?}");
        assert!(matches!(enrolled_as("default", true), Plan::Tunnel(_)), "{tunnel:?}");
        assert!(matches!(enrolled_as("other", false), Plan::Tunnel(_)), "{tunnel:?}");
    }
}

#[test]
fn strangers_and_the_unmeshed_are_dialled_directly() {
    let view = view(None, vec![endpoint(1, |w| w.tunnel = Tunnel::None)]);
    let mut around = Fake::default();
    assert!(
        matches!(plan(&view, "10.0.0.1:80", &mut around), Plan::Direct(d) if d.workload.is_some())
    );
    assert!(
        matches!(plan(&view, "192.0.2.1:80", &mut around), Plan::Direct(d) if d.workload.is_none())
    );
}

#[test]
fn a_pods_address_is_its_own() {
    // What another namespace declares at the address, and where a connection to it goes.
    let pod = || {
        endpoint(1, |w| {
            w.node = "n2".into();
            w.services = Default::default();
        })
    };
    let declared = |namespace: &str, change: &dyn Fn(&mut Service)| {
        let mut service = Service::named(namespace, "taken.example");
        let address = NetworkAddress::new("", ip("10.0.0.1"));
        service.addresses = vec![VirtualAddress { address, prefix_len: None }];
        service.ports = vec![port(80, 0)];
        change(&mut service);
        service
    };
    let as_block = |s: &mut Service| {
        s.addresses[0].address.ip = ip("10.0.0.0");
        s.addresses[0].prefix_len = Some(24);
    };
    let passthrough = |s: &mut Service| s.load_balancing.mode = Mode::Passthrough;
    let elsewhere = |namespace: &str| {
        let mut workload = Workload::named("elsewhere", namespace, "elsewhere");
        workload.addresses = vec![ip("10.0.0.66")].into();
        let name = ServiceName::new(namespace, "taken.example");
        workload.serve(name, vec![port(80, 80)]);
        workload
    };
    let check = |service: Service, expected: &str| {
        let others = elsewhere(&service.key.namespace);
        let view = view(Some(service.clone()), vec![pod(), others]);
        let address = match plan(&view, "10.0.0.1:80", &mut Fake::default()) {
            Plan::Tunnel(target) => format!("tunnel {}", target.address),
            Plan::Direct(direct) => format!("direct {}", direct.address),
            other => format!("{other:?}"),
        };
        assert_eq!(address, expected, "{service:?}");
    };
    check(declared("evil", &|_| {}), "tunnel 10.0.0.1:80");
    check(declared("evil", &as_block), "tunnel 10.0.0.1:80");
    check(declared("evil", &passthrough), "tunnel 10.0.0.1:80");
    check(declared("app", &|_| {}), "direct 10.0.0.66:80");
    check(declared("app", &passthrough), "tunnel 10.0.0.1:80");
    check(declared("other", &|s| s.canonical = true), "direct 10.0.0.66:80");
}

#[test]
fn an_address_that_an_entry_lists_is_reached_as_the_pod_that_owns_it() {
    let listed = |w: &mut Workload| {
        w.uid = "server-1/entry".into();
        w.name = "entry".into();
        w.tunnel = Tunnel::None;
    };
    let pod = |tunnel| {
        endpoint(1, |w| {
            w.tunnel = tunnel;
            w.services = Default::default();
        })
    };
    let check = |tunnel, expected: &str| {
        let view = view(Some(service(|_| {})), vec![endpoint(1, listed), pod(tunnel)]);
        let got = match plan(&view, "10.96.0.1:80", &mut Fake::default()) {
            Plan::Tunnel(target) => format!("tunnel to {}", target.workload.name),
            Plan::Direct(direct) => format!("direct, {}", direct.workload.expect("known").name),
            other => format!("{other:?}"),
        };
        assert_eq!(got, expected);
    };
    check(Tunnel::Hbone, "tunnel to server-1");
    check(Tunnel::None, "direct, entry");
}

#[test]
fn equal_endpoints_share_equally() {
    let view = view(Some(service(|_| {})), (1..=4).map(|n| endpoint(n, |_| {})).collect());
    let counts = spread(&view, &mut Fake::default());
    assert_eq!(counts.len(), 4);
    assert!(counts.values().all(|n| (850..1150).contains(n)), "{counts:?}");
}

#[test]
fn capacity_is_weight() {
    let heavy = |w: &mut Workload| w.capacity = 3;
    let view = view(Some(service(|_| {})), vec![endpoint(1, |_| {}), endpoint(2, heavy)]);
    let counts = spread(&view, &mut Fake::default());
    assert!((2700..3800).contains(&counts["server-2"]), "{counts:?}");
}

#[test]
fn the_busier_of_two_is_avoided() {
    let view = view(Some(service(|_| {})), vec![endpoint(1, |_| {}), endpoint(2, |_| {})]);
    let open = HashMap::from([("server-1".to_owned(), 50)]);
    let counts = spread(&view, &mut Fake { open, ..Fake::default() });
    assert!((2850..3150).contains(&counts["server-2"]), "{counts:?}");
}

#[test]
fn an_endpoint_set_aside_is_used_only_when_alone() {
    let both = view(Some(service(|_| {})), vec![endpoint(1, |_| {}), endpoint(2, |_| {})]);
    let aside = || Fake { aside: vec!["server-1".into()], ..Fake::default() };
    assert_eq!(spread(&both, &mut aside()), BTreeMap::from([("server-2".into(), 4000)]));
    let alone = view(Some(service(|_| {})), vec![endpoint(1, |_| {})]);
    assert_eq!(spread(&alone, &mut aside()), BTreeMap::from([("server-1".into(), 4000)]));
}

#[test]
fn locality_is_a_preference_or_a_condition() {
    let near = |w: &mut Workload| {
        w.locality = locality("r1", "z1");
    };
    let preferring = |mode| {
        service(|s| {
            s.load_balancing.mode = mode;
            s.load_balancing.routing_preference = vec![Scope::Region, Scope::Zone];
        })
    };
    let mixed = || vec![endpoint(1, |_| {}), endpoint(2, near), endpoint(3, |_| {})];
    let only_near = BTreeMap::from([("server-2".to_owned(), 4000)]);
    let failover = view(Some(preferring(Mode::Failover)), mixed());
    assert_eq!(spread(&failover, &mut Fake::default()), only_near);
    let strict = view(Some(preferring(Mode::Strict)), mixed());
    assert_eq!(spread(&strict, &mut Fake::default()), only_near);
    let far = || vec![endpoint(1, |_| {}), endpoint(3, |_| {})];
    let failover = view(Some(preferring(Mode::Failover)), far());
    assert_eq!(spread(&failover, &mut Fake::default()).len(), 2);
    let strict = view(Some(preferring(Mode::Strict)), far());
    assert!(matches!(
        plan(&strict, "10.96.0.1:80", &mut Fake::default()),
        Plan::Refuse(Refusal::NoEndpoint(_))
    ));
}

#[test]
fn a_client_keeps_its_endpoint() {
    let sticky = service(|s| s.load_balancing.client_affinity_seconds = Some(10_800));
    let all = view(Some(sticky.clone()), (1..=4).map(|n| endpoint(n, |_| {})).collect());
    let counts = spread(&all, &mut Fake::default());
    assert_eq!(counts.len(), 1);
    let kept = counts.keys().next().expect("one").clone();
    let fewer = (1..=4).map(|n| endpoint(n, |_| {})).filter(|w| *w.uid == *kept || n_is_odd(w));
    let counts = spread(&view(Some(sticky), fewer.collect()), &mut Fake::default());
    assert_eq!(counts.keys().next(), Some(&kept));
}

fn n_is_odd(workload: &Workload) -> bool {
    workload.uid.ends_with(['1', '3'])
}

#[test]
fn a_change_replaces_every_trace_of_the_old() {
    let mut view = view(Some(service(|_| {})), vec![endpoint(1, |_| {}), endpoint(2, |_| {})]);
    view.apply(Change::Workload(endpoint(1, |w| w.addresses = vec![ip("10.0.0.7")].into())));
    assert!(view.workload_at(&"".into(), ip("10.0.0.1")).is_none());
    assert!(view.workload_at(&"".into(), ip("10.0.0.7")).is_some());
    view.apply(Change::RemoveAddress("server-1".into()));
    assert!(view.workload_named(&WorkloadName::new("app", "server-1")).is_none());
    let name = ServiceName::new("app", HOST);
    assert_eq!(view.endpoints(&name).map(|e| e.len()), Some(1));
    view.apply(Change::RemoveAddress(name.to_string().into()));
    assert!(view.service_at(&"".into(), ip("10.96.0.1"), "app").is_none());
}
