//! The model's two questions, and the cost of a change, in a mesh of 100,000 pods behind 1,000
//! services, with 10,000 policies.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ambit_model::authorize::{Decision, Source};
use ambit_model::choice::Surroundings;
use ambit_model::identity::Identity;
use ambit_model::names::{NetworkAddress, PolicyName, ServiceName};
use ambit_model::plan::{Flow, Plan};
use ambit_model::policy::{Action, Clause, Match, Policy, PolicyScope, Rule, TextMatch};
use ambit_model::service::{Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_model::workload::{AppProtocol, PortMapping, Tunnel, Workload};
use criterion::Criterion;

const WORKLOADS: u32 = 100_000;
const SERVICES: u32 = 1_000;
const POLICIES: u32 = 10_000;
const PORT: PortMapping =
    PortMapping { service_port: 80, target_port: 8080, app_protocol: AppProtocol::Tcp };

/// A proxy that serves nobody else and has no connection open.
struct Alone {
    state: u64,
}

impl Surroundings for Alone {
    fn enrolled_identity(&self, _ip: IpAddr) -> Option<&Identity> {
        None
    }

    fn may_join(&self) -> bool {
        true
    }

    fn open_connections(&self, _uid: &str) -> u32 {
        0
    }

    fn is_set_aside(&self, _uid: &str) -> bool {
        false
    }

    /// A linear congruence: cheap, and the same in every run.
    fn random_below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % bound
    }
}

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut view = mesh();
    plan(criterion, &view);
    apply(criterion, &view);
    for number in 0..POLICIES {
        view.apply(Change::Policy(policy(number, 1, &namespace(number % SERVICES))));
    }
    authorize(criterion, "10,000 policies, 10 of them the workload's", &view, &namespace(7));
    let before = resident_bytes();
    for number in 0..POLICIES {
        view.apply(Change::Policy(policy(number, 10, "all")));
    }
    println!("10,000 policies of 10 rules hold {} MB", (resident_bytes() - before) / 1_000_000);
    authorize(criterion, "10,000 policies of the workload, of 10 rules", &view, "all");
}

fn plan(criterion: &mut Criterion, view: &View) {
    let (client, around) = (workload(1), &mut Alone { state: 1 });
    let to_service = SocketAddr::new(service_ip(7), 80);
    let to_pod = SocketAddr::new(pod_ip(7), 8080);
    for (name, destination) in [("a service of 100 pods", to_service), ("a pod", to_pod)] {
        let flow = Flow { source: &client, source_ip: pod_ip(1), destination };
        assert!(matches!(view.plan(&flow, around), Plan::Tunnel(_)));
        criterion.bench_function(&format!("plan/{name}"), |bencher| {
            bencher.iter(|| view.plan(black_box(&flow), around));
        });
    }
}

/// As a proxy does: the change is made in a copy, while others continue to read.
fn apply(criterion: &mut Criterion, view: &View) {
    let mut changed = workload(7);
    changed.healthy = false;
    criterion.bench_function("apply/one of 100,000 workloads", |bencher| {
        bencher.iter(|| {
            let mut next = view.clone();
            next.apply(Change::Workload(changed.clone()));
            next
        });
    });
}

/// The last of the workload's policies is the one that allows.
fn authorize(criterion: &mut Criterion, name: &str, view: &View, namespace: &str) {
    let workload = Workload::named("uid", namespace, "server");
    let last = view.policies_of(&workload).last().unwrap().unwrap();
    let account = account_of(&last.key.name);
    let identity = Identity::new("cluster.local", "client", account);
    let source = Source::new(Some(identity), pod_ip(1));
    let to = SocketAddr::new(pod_ip(7), 8080);
    let judgement = view.authorize(&workload, &source, to);
    assert!(matches!(judgement.decision, Decision::Allow(Some(_))));
    criterion.bench_function(&format!("authorize/{name}"), |bencher| {
        bencher.iter(|| view.authorize(&workload, black_box(&source), to));
    });
}

/// The memory of this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn mesh() -> View {
    let mut view = View::default();
    for number in 0..SERVICES {
        view.apply(Change::Service(service(number)));
    }
    for number in 0..WORKLOADS {
        view.apply(Change::Workload(workload(number)));
    }
    view
}

fn namespace(number: u32) -> String {
    format!("ns-{number}")
}

fn service(number: u32) -> Service {
    let mut service = Service::named(namespace(number), hostname(number));
    let address = NetworkAddress::new("", service_ip(number));
    service.addresses = vec![VirtualAddress { address, prefix_len: None }];
    service.ports = vec![PORT];
    service
}

fn workload(number: u32) -> Workload {
    let of = number % SERVICES;
    let name = format!("server-{number}");
    let uid = format!("Kubernetes//Pod/ns-{of}/{name}");
    let mut workload = Workload::named(uid, namespace(of), name);
    workload.addresses = vec![pod_ip(number)].into();
    workload.node = format!("node-{}", number % 100).into();
    workload.tunnel = Tunnel::Hbone;
    workload.serve(ServiceName::new(namespace(of), hostname(of)), vec![PORT]);
    workload
}

fn hostname(number: u32) -> String {
    format!("server.ns-{number}.svc.cluster.local")
}

fn pod_ip(number: u32) -> IpAddr {
    (Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + number)).into()
}

fn service_ip(number: u32) -> IpAddr {
    (Ipv4Addr::from_bits(Ipv4Addr::new(172, 16, 0, 1).to_bits() + number)).into()
}

/// Allows so many accounts, of which the last has the policy's name.
fn policy(number: u32, rules: u32, namespace: &str) -> Policy {
    let name = format!("policy-{number}");
    let accounts = (1..rules).map(|rule| format!("account-{rule}-of-{name}"));
    let rules = accounts.chain([account_of(&name)]).map(|account| {
        let principal = format!("cluster.local/ns/client/sa/{account}");
        let principals = [TextMatch::Exact(principal.into())].into();
        Rule { clauses: vec![Clause { matches: vec![Match { principals, ..Match::default() }] }] }
    });
    Policy {
        key: PolicyName::new(namespace, &*name),
        scope: PolicyScope::Namespace,
        action: Action::Allow,
        rules: rules.collect(),
        dry_run: false,
        is_of_waypoints: false,
    }
}

fn account_of(policy: &str) -> String {
    format!("account-of-{policy}")
}
