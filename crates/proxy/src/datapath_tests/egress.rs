//! What leaves the mesh: endpoints that are names, and pods that may reach only what is declared.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use ambit_model::names::{NetworkAddress, ServiceName};
use ambit_model::service::{Mode, Service, VirtualAddress};
use ambit_model::view::Change;
use ambit_model::workload::{AppProtocol, PortMapping, Workload};
use ambit_net::netlink::RouteSocket;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record, RecordType};

use super::at;
use super::world::{self, PodBox, Proxy, World, echo, publish};
use crate::config::SameNode;

/// Answers for these names until the test ends; returns where.
fn resolver(names: HashMap<String, IpAddr>) -> SocketAddr {
    RouteSocket::open().unwrap().set_up("lo").unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let query = Message::from_vec(&buffer[..length]).unwrap();
            let question = query.queries[0].clone();
            let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
            let name = question.name().to_ascii();
            match names.get(name.trim_end_matches('.')) {
                Some(IpAddr::V4(ip)) if question.query_type() == RecordType::A => {
                    let data = RData::A(A(*ip));
                    answer.add_answer(Record::from_rdata(question.name().clone(), 60, data));
                }
                Some(_) => {}
                None => answer.metadata.response_code = ResponseCode::NXDomain,
            }
            answer.add_query(question);
            socket.send_to(&answer.to_vec().unwrap(), peer).unwrap();
        }
    });
    address
}

/// The first message of a TLS client that names a host.
fn hello(host: &str) -> Vec<u8> {
    let number = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let name = [&[0][..], &number(host.len()), host.as_bytes()].concat();
    let list = [&number(name.len())[..], &name].concat();
    let extension = [&[0, 0][..], &number(list.len()), &list].concat();
    let mut body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0]].concat();
    body.extend([&number(extension.len())[..], &extension].concat());
    let message = [&[1, 0][..], &number(body.len()), &body].concat();
    [&[22, 3, 1][..], &number(message.len()), &message].concat()
}

/// What a ServiceEntry declares for a host: a port, and an address if it has one.
fn entry(host: &str, port: u16, protocol: AppProtocol, address: Option<&str>) -> Service {
    let mut service = Service::named("default", host);
    service.ports =
        vec![PortMapping { service_port: port, target_port: port, app_protocol: protocol }];
    service.load_balancing.mode = Mode::Passthrough;
    service.addresses.extend(address.map(|ip| VirtualAddress {
        address: NetworkAddress::new("", ip.parse().unwrap()),
        prefix_len: None,
    }));
    service
}

/// A host that is looked up, at an address of its own.
fn looked_up(host: &str, port: u16, address: &str) -> [Change; 2] {
    let mut service = entry(host, port, AppProtocol::Tcp, Some(address));
    service.load_balancing.mode = Mode::Unspecified;
    let mut endpoint = Workload::named(format!("entry/{host}"), "default", "entry");
    endpoint.hostname = host.into();
    endpoint.serve(ServiceName::new("default", host), service.ports.clone());
    [Change::Service(service), Change::Workload(endpoint)]
}

/// Whether what a pod says there comes back.
fn talks(pod: &PodBox, to: SocketAddr, said: &[u8]) -> bool {
    let Ok(mut stream) = pod.connect(to) else { return false };
    let mut heard = vec![0; said.len()];
    stream.write_all(said).is_ok() && stream.read_exact(&mut heard).is_ok() && heard == said
}

/// How many connections were refused for this reason.
fn refused(proxy: &Proxy, reason: &str) -> usize {
    let reason = format!("reason=\"{reason}\"");
    let metrics = proxy.metrics();
    let mut lines = metrics.lines().filter(|line| line.starts_with("ambit_refusals_total"));
    let line = lines.find(|line| line.contains(&reason));
    line.and_then(|line| line.rsplit_once(' ')).map_or(0, |(_, count)| count.parse().unwrap())
}

in_namespaces! {
    fn an_endpoint_that_is_a_name_is_looked_up_and_leads_outside() {
        let world = World::new();
        let (mut client, mut server) = (world.pod("client", "c"), world.pod("server", "s"));
        let outside = world.pod("outside", "o");
        let names = [
            ("api.example", outside.v4),
            ("inside.example", server.v4),
            ("itself.example", "127.0.0.1".parse().unwrap()),
            ("node.example", "169.254.169.254".parse().unwrap()),
        ];
        let names = names.into_iter().map(|(name, ip)| (name.to_owned(), ip)).collect();
        let flag = format!("--dns-upstream={}", resolver(names));
        let proxy = world.proxy_with(SameNode::Join, None, &[&flag]);
        proxy.enrol(&mut client);
        proxy.enrol(&mut server);
        for pod in [&outside, &server, &client] {
            pod.serve(8080, echo);
        }
        let further = [
            looked_up("api.example", 8080, "10.9.255.1"),
            looked_up("inside.example", 8080, "10.9.255.2"),
            looked_up("itself.example", 8080, "10.9.255.3"),
            looked_up("node.example", 8080, "10.9.255.4"),
            looked_up("nowhere.example", 8080, "10.9.255.5"),
        ];
        publish(&[&proxy], &[&client, &server], &further.concat());
        let to = |last: u8| at(format!("10.9.255.{last}").parse().unwrap(), 8080);
        assert!(talks(&client, to(1), b"hello"));
        for last in 2..=4 {
            assert!(!talks(&client, to(last), b"hello"), "{last}");
        }
        assert_eq!(refused(&proxy, "name_leads_inside"), 3);
        assert!(!talks(&client, to(5), b"hello"));
        assert_eq!(refused(&proxy, "no_address"), 1);
    }

    fn a_fence_opens_for_what_is_declared_and_nothing_else() {
        let world = World::new();
        let (mut free, mut fenced) = (world.pod("free", "f"), world.pod("fenced", "c"));
        let mut server = world.pod("server", "s");
        let (outside, other) = (world.pod("outside", "o"), world.pod("elsewhere", "o"));
        let names = ["allowed.example", "evil.example", "secret.example", "a.wild.example"];
        let names = names.into_iter().chain(["db.example"]);
        let names = names.map(|name| (name.to_owned(), outside.v4)).collect();
        let flag = format!("--dns-upstream={}", resolver(names));
        let proxy = world.proxy_with(SameNode::Join, None, &[&flag]);
        for pod in [&mut free, &mut fenced, &mut server] {
            proxy.enrol(pod);
        }
        fenced.workload.registry_only = true;
        server.serve(8080, echo);
        for port in [22, 443, 5432] {
            outside.serve(port, echo);
            other.serve(port, echo);
        }
        let tls = AppProtocol::Tls;
        let mut secret = entry("secret.example", 443, tls, None);
        secret.key = ServiceName::new("other", "secret.example");
        secret.namespace_only = true;
        let entries = [
            entry("allowed.example", 443, tls, None),
            entry("*.wild.example", 443, tls, None),
            entry("db.example", 5432, AppProtocol::Tcp, None),
            secret,
        ];
        publish(&[&proxy], &[&free, &fenced, &server], &entries.map(Change::Service));
        assert!(talks(&free, at(outside.v4, 22), b"hello"), "another pod is free");
        assert!(talks(&fenced, at(server.v4, 8080), b"hello"), "the mesh is open");
        let check = |to: IpAddr, port: u16, said: &[u8], reason: Option<&str>| {
            let before = reason.map(|reason| refused(&proxy, reason));
            let talked = talks(&fenced, at(to, port), said);
            assert_eq!(talked, reason.is_none(), "{to}:{port} {said:?}");
            let after = reason.map(|reason| refused(&proxy, reason));
            assert_eq!(before.map(|it| it + 1), after, "{reason:?}");
        };
        check(outside.v4, 22, b"hello", Some("registry_only"));
        check(outside.v4, 443, &hello("allowed.example"), None);
        check(outside.v4, 443, &hello("a.wild.example"), None);
        check(outside.v4, 443, &hello("evil.example"), Some("registry_only_name"));
        check(outside.v4, 443, &hello("secret.example"), Some("registry_only_name"));
        check(other.v4, 443, &hello("allowed.example"), Some("registry_only_elsewhere"));
        check(outside.v4, 443, b"GET / HTTP/1.1\r\n", Some("registry_only_no_name"));
        check(outside.v4, 5432, b"hello", None);
        check(other.v4, 5432, b"hello", Some("registry_only"));
    }
}
