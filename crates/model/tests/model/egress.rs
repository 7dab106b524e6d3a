//! What leaves the mesh: endpoints that are names, and clients that may reach only what is
//! declared.

use std::net::IpAddr;

use ambit_model::Text;
use ambit_model::choice::{By, RequestFlow};
use ambit_model::fence::{Condition, Said, covers};
use ambit_model::http::nearness::Nearness;
use ambit_model::http::warmup::WARM;
use ambit_model::names::{NetworkAddress, ServiceName};
use ambit_model::plan::{Delivery, Flow, Lookup, Plan};
use ambit_model::service::{Mode, Service, VirtualAddress};
use ambit_model::view::{Change, View};
use ambit_model::workload::{
    AppProtocol, GatewayAddress, GatewayDestination, PortMapping, Tunnel, Workload,
};

use crate::plan::{Fake, addr, client, endpoint, ip, service};

fn mapping(service_port: u16, app_protocol: AppProtocol) -> PortMapping {
    PortMapping { service_port, target_port: service_port, app_protocol }
}

/// What a ServiceEntry of `namespace` declares for a host.
fn entry(namespace: &str, host: &str, change: impl FnOnce(&mut Service)) -> Service {
    let mut service = Service::named(namespace, host);
    service.ports = vec![mapping(443, AppProtocol::Tls), mapping(80, AppProtocol::Http11)];
    service.load_balancing.mode = Mode::Passthrough;
    change(&mut service);
    service
}

fn at(text: &str) -> Vec<VirtualAddress> {
    vec![VirtualAddress { address: NetworkAddress::new("", ip(text)), prefix_len: None }]
}

fn waypoint() -> Option<GatewayAddress> {
    let destination = GatewayDestination::Hostname(ServiceName::new("app", "way.app"));
    Some(GatewayAddress { destination, hbone_mtls_port: 15008 })
}

/// An endpoint of `host`, found by name.
fn named(host: &str, hostname: &str) -> Workload {
    let mut workload = Workload::named(format!("entry/{host}"), "app", "entry");
    workload.hostname = hostname.into();
    workload.serve(ServiceName::new("app", host), vec![mapping(443, AppProtocol::Tls)]);
    workload
}

fn of(changes: impl IntoIterator<Item = Change>) -> View {
    let mut view = View::default();
    changes.into_iter().for_each(|change| view.apply(change));
    view
}

fn plan(view: &View, to: &str, is_fenced: bool) -> Plan {
    let mut source = client();
    source.registry_only = is_fenced;
    let flow = Flow { source: &source, source_ip: ip("10.0.9.9"), destination: addr(to) };
    view.plan(&flow, &mut Fake::default())
}

#[test]
fn an_endpoint_that_is_a_name_is_looked_up() {
    let host = "api.example.com";
    let service = entry("app", host, |it| {
        it.addresses = at("240.240.0.1");
        it.load_balancing.mode = Mode::Unspecified;
    });
    let view = |hostname: &str, change: fn(&mut Workload)| {
        let mut endpoint = named(host, hostname);
        change(&mut endpoint);
        of([Change::Service(service.clone()), Change::Workload(endpoint)])
    };
    match plan(&view("real.example.com", |_| {}), "240.240.0.1:443", false) {
        Plan::Lookup(Lookup { host, port, .. }) => {
            assert_eq!((&*host, port), ("real.example.com", 443));
        }
        other => panic!("{other:?}"),
    }
    let check = |view: View, expected: &str| match plan(&view, "240.240.0.1:443", false) {
        Plan::Refuse(refusal) => assert!(refusal.to_string().contains(expected), "{refusal}"),
        other => panic!("{other:?}"),
    };
    check(view("", |_| {}), "has no address");
    check(view("real.example.com", |it| it.tunnel = Tunnel::Hbone), "has no address");
    check(view("*.example.com", |_| {}), "asks for no host");
}

#[test]
fn behind_a_wildcard_the_client_says_the_host() {
    let wildcard = "*.example.com";
    let service = entry("app", wildcard, |it| it.load_balancing.mode = Mode::Unspecified);
    let view = of([Change::Service(service), Change::Workload(named(wildcard, wildcard))]);
    let source = client();
    let check = |host: Option<&str>, expected: Result<&str, &str>| {
        let flow = RequestFlow {
            source: &source,
            destination: addr("240.240.0.1:443"),
            service: view.service(&ServiceName::new("app", wildcard)).expect("it is there"),
            port: 443,
            host,
            subset: None,
            by: By::Load,
            is_avoided: &|_| false,
            nearness: &Nearness::OfService,
            warmth: &|_| WARM,
        };
        match (view.choose_for_request(&flow, &mut Fake::default()), expected) {
            (Ok(Delivery::Lookup(lookup)), Ok(expected)) => assert_eq!(&*lookup.host, expected),
            (Err(refusal), Err(expected)) => {
                assert!(refusal.to_string().contains(expected), "{refusal}");
            }
            (other, _) => panic!("{host:?}: {other:?}"),
        }
    };
    check(Some("a.example.com"), Ok("a.example.com"));
    check(Some("A.b.EXAMPLE.com"), Ok("a.b.example.com"));
    check(Some("example.com"), Err("asks for example.com, which is no host of"));
    check(Some("a.example.com.evil.example"), Err("which is no host of"));
    check(Some("127.0.0.1"), Err("which is no host of"));
    check(None, Err("asks for no host"));
}

#[test]
fn a_wildcard_covers_names_below_it() {
    let check = |host: &str, name: &str, expected: bool| {
        assert_eq!(covers(host, name), expected, "{host} {name}");
    };
    check("a.example", "a.example", true);
    check("a.example", "A.EXAMPLE", true);
    check("a.example", "b.a.example", false);
    check("*.example", "a.example", true);
    check("*.example", "b.a.example", true);
    check("*.example", ".example", false);
    check("*.example", "example", false);
    check("*.example", "aexample", false);
    check("*.example", "\u{e9}example", false);
    check("*", "a.example", false);
}

#[test]
fn a_name_outside_does_not_lead_inside() {
    let vm = |last: u8, change: fn(&mut Workload)| {
        let mut workload = Workload::named(format!("vm-{last}"), "app", "vm");
        workload.addresses = vec![ip(&format!("192.0.2.{last}"))].into();
        change(&mut workload);
        Change::Workload(workload)
    };
    let view = of([
        Change::Service(service(|it| it.canonical = true)),
        Change::Service(entry("other", "taken.example", |it| it.addresses = at("192.0.2.7"))),
        Change::Workload(endpoint(1, |it| it.node = "n2".into())),
        vm(1, |it| it.tunnel = Tunnel::Hbone),
        vm(2, |_| {}),
    ]);
    let lookup = |service: &Service| Lookup {
        host: "api.example.com".into(),
        port: 443,
        workload: named("api.example.com", "api.example.com").into(),
        service: service.clone().into(),
    };
    let own = entry("app", "api.example.com", |_| {});
    let check = |found: &[&str], expected: Result<&[&str], &str>| {
        let found: Vec<IpAddr> = found.iter().map(|it| ip(it)).collect();
        let like = ip("10.0.9.9");
        match (lookup(&own).admitted(&view, &Text::from(""), &found, like), expected) {
            (Ok(admitted), Ok(expected)) => {
                let admitted: Vec<String> = admitted.iter().map(|it| it.ip().to_string()).collect();
                assert_eq!(admitted, expected);
            }
            (Err(refusal), Err(expected)) => {
                assert!(refusal.to_string().contains(expected), "{refusal}");
            }
            (other, _) => panic!("{found:?}: {other:?}"),
        }
    };
    check(&["198.51.100.1", "198.51.100.2"], Ok(&["198.51.100.1", "198.51.100.2"]));
    check(&["2001:db8::1", "198.51.100.1"], Ok(&["198.51.100.1", "2001:db8::1"]));
    check(&["192.0.2.7", "192.0.2.2"], Ok(&["192.0.2.7", "192.0.2.2"]));
    check(&["127.0.0.1", "198.51.100.1"], Ok(&["198.51.100.1"]));
    for (inside, why) in [
        ("127.0.0.1", "means the client itself"),
        ("0.0.0.0", "means the client itself"),
        ("::1", "means the client itself"),
        ("::ffff:127.0.0.1", "means the client itself"),
        ("169.254.169.254", "is on the node's own link"),
        ("fe80::1", "is on the node's own link"),
        ("224.0.0.1", "is not the address of one server"),
        ("255.255.255.255", "is not the address of one server"),
        ("240.240.3.4", "is a service's"),
        ("2001:2::5", "is a service's"),
        ("10.96.0.1", "is a service's"),
        ("10.0.0.1", "is a workload's"),
        ("192.0.2.1", "is a workload's"),
    ] {
        check(&[inside], Err(why));
    }
}

/// What a client that may reach only what is declared may reach: a mesh with a service and a pod,
/// and entries of its own namespace and of another one.
fn fenced() -> View {
    let listed = |last: u8, host: &str, namespace: &str| {
        let mut workload = Workload::named(format!("listed-{last}"), namespace, "listed");
        workload.addresses = vec![ip(&format!("192.0.2.{last}"))].into();
        workload.serve(ServiceName::new(namespace, host), vec![mapping(443, AppProtocol::Tls)]);
        Change::Workload(workload)
    };
    let mut host = Workload::named("host", "app", "host");
    host.addresses = vec![ip("172.16.0.1")].into();
    (host.host_network, host.node) = (true, "n1".into());
    let serving = ServiceName::new("app", crate::plan::HOST);
    host.serve(serving, vec![mapping(9100, AppProtocol::Tcp)]);
    let mut alone = Workload::named("alone", "app", "alone");
    alone.addresses = vec![ip("192.0.2.40")].into();
    let private = |it: &mut Service| it.namespace_only = true;
    let only =
        |port: u16, protocol| move |it: &mut Service| it.ports = vec![mapping(port, protocol)];
    of([
        Change::Service(service(|it| it.canonical = true)),
        Change::Workload(endpoint(1, |it| it.node = "n2".into())),
        Change::Workload(host),
        Change::Workload(alone),
        Change::Service(entry("app", "allowed.example", |_| {})),
        Change::Service(entry("app", "*.wild.example", |_| {})),
        Change::Service(entry("other", "secret.example", private)),
        Change::Service(entry("app", "fronted.example", |it| it.waypoint = waypoint())),
        Change::Service(entry("app", "db.example", only(5432, AppProtocol::Tcp))),
        Change::Service(entry("other", "hidden.example", |it| {
            (it.ports, it.namespace_only) = (vec![mapping(8443, AppProtocol::Tls)], true);
        })),
        Change::Service(entry("app", "fixed.example", |it| it.addresses = at("192.0.2.50"))),
        Change::Service(entry("app", "listed.example", |_| {})),
        listed(1, "listed.example", "app"),
        listed(2, "secret.example", "other"),
        listed(3, "fronted.example", "app"),
    ])
}

#[test]
fn only_what_is_declared_is_reached() {
    let view = fenced();
    let check = |to: &str, expected: &str| {
        let planned = match plan(&view, to, true) {
            Plan::Tunnel(_) => "tunnel".to_owned(),
            Plan::Direct(_) => "direct".to_owned(),
            Plan::Fenced(_) => "fenced".to_owned(),
            Plan::Refuse(refusal) => refusal.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(planned.contains(expected), "{to}: {planned}");
        let freely = plan(&view, to, false);
        assert!(!matches!(freely, Plan::Fenced(_)), "everything else is as ever: {freely:?}");
    };
    check("10.96.0.1:80", "tunnel");
    check("10.0.0.1:8080", "tunnel");
    check("127.0.0.1:80", "direct");
    check("192.0.2.40:22", "direct");
    check("192.0.2.50:443", "direct");
    check("192.0.2.50:22", "has no port 22");
    check("192.0.2.1:443", "direct");
    check("192.0.2.1:22", "192.0.2.1:22 is of no Service");
    check("192.0.2.3:443", "the way around it");
    check("172.16.0.1:9100", "direct");
    check("172.16.0.1:10250", "is of no Service");
    check("198.51.100.1:22", "is of no Service");
    check("198.51.100.1:8443", "is of no Service");
    check("169.254.169.254:80", "fenced");
    // The entry that lists it is another namespace's; the port is declared for other hosts.
    check("192.0.2.2:443", "fenced");
    check("198.51.100.1:443", "fenced");
    check("198.51.100.1:5432", "fenced");
}

#[test]
fn a_name_counts_if_it_is_declared_and_leads_there() {
    let view = fenced();
    let network = Text::from("");
    // Names lead to one address.
    let check = |to: &str, said: Said<'_>, leads: &str, expected: &str| {
        let Plan::Fenced(fenced) = plan(&view, to, true) else { panic!("{to}") };
        let found = [ip(leads)];
        let planned = match fenced.allowed_by(said) {
            Err(undeclared) => undeclared.to_string(),
            Ok(Condition::Name(name, service)) => {
                match fenced.plan(&view, &network, (&name, &service), &found) {
                    Ok(direct) => format!("{} to {}", service.key, direct.address),
                    Err(refusal) => refusal.to_string(),
                }
            }
            Ok(Condition::AnyOf(all)) => {
                let hosts: Vec<&str> = all.iter().map(|it| &*it.key.hostname).collect();
                format!("one of {}", hosts.join(" "))
            }
        };
        assert!(planned.contains(expected), "{to} {said:?}: {planned}");
    };
    let (to, ip) = ("198.51.100.1:443", "198.51.100.1");
    check(to, Said::Name("allowed.example"), ip, "app/allowed.example to 198.51.100.1:443");
    check(to, Said::Name("a.wild.example"), ip, "app/*.wild.example to 198.51.100.1:443");
    check(to, Said::Name("evil.example"), ip, "has evil.example at port 443");
    check(to, Said::Name("secret.example"), ip, "has secret.example at port 443");
    check(to, Said::Name("allowed.example"), "198.51.100.2", "does not lead to 198.51.100.1");
    check(to, Said::Name("fronted.example"), ip, "the way around it");
    check(to, Said::NoName, ip, "names no host");
    check(to, Said::Bytes, ip, "names no host");
    check(to, Said::Nothing, ip, "says nothing");
    let inside = ("169.254.169.254:80", "169.254.169.254");
    check(inside.0, Said::Name("allowed.example"), inside.1, "is on the node's own link");
    let plain = "one of allowed.example fixed.example fronted.example listed.example";
    check("198.51.100.1:80", Said::Bytes, ip, plain);
    let Plan::Fenced(fenced) = plan(&view, "198.51.100.1:5432", true) else { panic!("by name") };
    assert!(matches!(fenced.unseen(), Some(Condition::AnyOf(all)) if all.len() == 1));
    let Plan::Fenced(fenced) = plan(&view, to, true) else { panic!("by name") };
    assert_eq!(fenced.unseen(), None, "what is declared as TLS says its name");
}
