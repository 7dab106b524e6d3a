//! The data path end to end, with real namespaces, sockets and certificates.
#![allow(clippy::unwrap_used)]

mod world;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ambit_model::names::{NetworkAddress, PolicyName, ServiceName};
use ambit_model::policy::{Action, Policy};
use ambit_model::service::{Service, VirtualAddress};
use ambit_model::view::Change;
use ambit_model::workload::{GatewayAddress, GatewayDestination, Tunnel, Workload};
use ambit_net::netlink::{Route, RouteSocket};

use crate::config::SameNode;
use world::{PodBox, Proxy, World, change, echo, mirror, policy, publish, service};

/// Declares tests that need the rights of root over network namespaces.
macro_rules! in_namespaces {
    ($($(#[$meta:meta])* fn $name:ident() $body:block)*) => {
        $($(#[$meta])* #[test]
        fn $name() {
            world::privileged(concat!(module_path!(), "::", stringify!($name)), || $body);
        })*
    };
}

// Below the macro that they use.
mod egress;
mod gone;
mod greed;
mod past;
mod resolvers;
mod slow_readers;

/// Where client and server are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On two nodes.
    Apart,
    /// On one node, joined.
    Together,
    /// On one node, encrypted.
    TogetherEncrypted,
}

const PLACES: [Place; 3] = [Place::Apart, Place::Together, Place::TogetherEncrypted];

/// A client and a server in the mesh.
struct Pair {
    near: Proxy,
    /// The server's, if it is another one.
    far: Option<Proxy>,
    client: PodBox,
    server: PodBox,
}

impl Pair {
    fn new(world: &World, place: Place) -> Self {
        let (mut client, mut server) = (world.pod("client", "c"), world.pod("server", "s"));
        let same_node = match place {
            Place::TogetherEncrypted => SameNode::Encrypt,
            Place::Together | Place::Apart => SameNode::Join,
        };
        let near = world.proxy(same_node);
        let far = (place == Place::Apart).then(|| world.proxy(same_node));
        near.enrol(&mut client);
        far.as_ref().unwrap_or(&near).enrol(&mut server);
        let pair = Self { near, far, client, server };
        pair.publish(&[]);
        pair
    }

    fn proxies(&self) -> Vec<&Proxy> {
        std::iter::once(&self.near).chain(&self.far).collect()
    }

    /// The proxy that judges what comes to the server.
    fn judge(&self) -> &Proxy {
        self.far.as_ref().unwrap_or(&self.near)
    }

    fn publish(&self, further: &[Change]) {
        publish(&self.proxies(), &[&self.client, &self.server], further);
    }
}

fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < world::PATIENCE, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the other side of a connection has broken it; waits for it.
fn is_broken_within(mut stream: TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    let error = match stream.read(&mut [0; 1]) {
        Ok(0) => return false,
        Ok(_) => panic!("unexpected byte"),
        Err(error) => error,
    };
    error.kind() == std::io::ErrorKind::ConnectionReset
}

fn ping(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
}

in_namespaces! {
    fn a_connection_arrives_from_the_clients_own_address() {
        let world = World::new();
        for place in PLACES {
            let pair = Pair::new(&world, place);
            pair.server.serve(8080, mirror);
            for (from, to) in [(pair.client.v4, pair.server.v4), (pair.client.v6, pair.server.v6)] {
                let answer = pair.client.ask(at(to, 8080)).unwrap();
                assert_eq!(answer, format!("{from} said hello\n"), "{place:?}");
            }
        }
    }

    fn both_ends_are_proven_and_listed() {
        let world = World::new();
        for place in PLACES {
            let pair = Pair::new(&world, place);
            pair.server.serve(8080, echo);
            let mut stream = pair.client.connect(at(pair.server.v4, 8080)).unwrap();
            ping(&mut stream);
            let lists = pair.proxies().into_iter().flat_map(Proxy::list).collect::<Vec<_>>();
            let expected = if place == Place::Together { 1 } else { 2 };
            assert_eq!(lists.len(), expected, "{place:?} {lists:?}");
            for info in lists {
                let identity = |account: &str| {
                    Some(format!("spiffe://cluster.local/ns/default/sa/{account}"))
                };
                assert_eq!(info.source_identity, identity("c"));
                assert_eq!(info.destination_identity, identity("s"));
                assert_eq!(info.destination_address, format!("{}:8080", pair.server.v4));
                assert_eq!((info.bytes_to_server, info.bytes_to_client), (4, 4));
                assert_eq!(info.tls_group.is_some(), place != Place::Together);
            }
        }
    }

    /// The wall clock of the server's node jumps ahead, as after a suspend, and no timer has moved.
    fn a_certificate_that_expired_while_timers_stood_still_opens_no_tunnel() {
        let world = World::new();
        let pair = Pair::new(&world, Place::Apart);
        pair.server.serve(8080, echo);
        let to = at(pair.server.v4, 8080);
        let mut open = pair.client.connect(to).unwrap();
        ping(&mut open);
        pair.judge().ahead_s.store(2 * 3600, std::sync::atomic::Ordering::Relaxed);
        assert!(pair.client.ask(to).is_err(), "the connection between the proxies was reused");
        ping(&mut open);
        let metrics = pair.judge().metrics();
        assert!(metrics.contains("reason=\"expired\""), "{metrics}");
    }

    fn a_service_leads_to_its_endpoint() {
        let world = World::new();
        for place in PLACES {
            let mut pair = Pair::new(&world, place);
            pair.server.serve(8080, mirror);
            let service = service("web", "10.96.0.1", 8080, &mut [&mut pair.server]);
            pair.publish(&[service]);
            route_services(&pair.client);
            let answer = pair.client.ask("10.96.0.1:80".parse().unwrap()).unwrap();
            assert_eq!(answer, format!("{} said hello\n", pair.client.v4), "{place:?}");
            let refused = pair.client.ask("10.96.0.1:81".parse().unwrap());
            assert!(refused.is_err(), "a port that the service does not have");
        }
    }

    fn policies_decide_by_identity() {
        let world = World::new();
        let cases = [
            (Action::Allow, "c", true),
            (Action::Allow, "other", false),
            (Action::Deny, "c", false),
            (Action::Deny, "other", true),
        ];
        for place in PLACES {
            let pair = Pair::new(&world, place);
            pair.server.serve(8080, mirror);
            for (action, account, allowed) in cases {
                pair.publish(&[Change::Policy(policy("p", action, account))]);
                let got = pair.client.ask(at(pair.server.v4, 8080)).is_ok();
                assert_eq!(got, allowed, "{place:?} {action:?} {account}");
            }
            let metrics = pair.judge().metrics();
            assert!(metrics.contains("response_flags=\"DENY\""), "{metrics}");
        }
    }

    fn a_policy_that_arrives_cuts_what_it_denies() {
        let world = World::new();
        for place in PLACES {
            let pair = Pair::new(&world, place);
            pair.server.serve(8080, echo);
            let mut stream = pair.client.connect(at(pair.server.v4, 8080)).unwrap();
            ping(&mut stream);
            change(&pair.proxies(), Change::Policy(policy("other", Action::Deny, "nobody")));
            ping(&mut stream);
            change(&pair.proxies(), Change::Policy(policy("p", Action::Deny, "c")));
            assert!(is_broken_within(stream, Duration::from_secs(1)), "{place:?}");
            wait_until("all is closed", || pair.proxies().iter().all(|it| it.list().is_empty()));
        }
    }

    fn whoever_speaks_first_may() {
        let world = World::new();
        for place in PLACES {
            let pair = Pair::new(&world, place);
            pair.server.serve(25, |mut stream| {
                stream.write_all(b"220 ready").unwrap();
            });
            let mut stream = pair.client.connect(at(pair.server.v6, 25)).unwrap();
            let mut greeting = String::new();
            stream.read_to_string(&mut greeting).unwrap();
            assert_eq!(greeting, "220 ready", "{place:?}");
        }
    }

    fn a_client_outside_the_mesh_comes_in_unless_policy_wants_an_identity() {
        let world = World::new();
        let pair = Pair::new(&world, Place::Apart);
        pair.server.serve(8080, mirror);
        pair.server.serve(8081, echo);
        let stranger = world.pod("stranger", "c");
        for (from, to) in [(stranger.v4, pair.server.v4), (stranger.v6, pair.server.v6)] {
            let answer = stranger.ask(at(to, 8080)).unwrap();
            assert_eq!(answer, format!("{from} said hello\n"));
        }
        let mut stream = stranger.connect(at(pair.server.v4, 8081)).unwrap();
        ping(&mut stream);
        change(&pair.proxies(), Change::Policy(strict()));
        assert!(is_broken_within(stream, Duration::from_secs(1)));
        assert!(stranger.ask(at(pair.server.v4, 8080)).is_err());
        assert!(pair.client.ask(at(pair.server.v4, 8080)).is_ok());
    }

    fn a_server_outside_the_mesh_is_reached_as_plain_tcp() {
        let world = World::new();
        let pair = Pair::new(&world, Place::Apart);
        let stranger = world.pod("stranger", "x");
        stranger.serve(8080, mirror);
        for (from, to) in [(pair.client.v4, stranger.v4), (pair.client.v6, stranger.v6)] {
            let answer = pair.client.ask(at(to, 8080)).unwrap();
            assert_eq!(answer, format!("{from} said hello\n"));
        }
    }

    fn another_identity_than_the_views_is_never_reached() {
        let world = World::new();
        for place in PLACES {
            let mut pair = Pair::new(&world, place);
            pair.server.serve(8080, mirror);
            pair.server.workload.service_account = "another".into();
            pair.publish(&[]);
            let refused = pair.client.ask(at(pair.server.v4, 8080));
            assert!(refused.is_err(), "{place:?}");
            let metrics = pair.near.metrics();
            assert!(metrics.contains("response_flags=\"TLS_FAILURE\""), "{metrics}");
        }
    }

    fn a_stale_address_joins_nobody() {
        let world = World::new();
        let mut pair = Pair::new(&world, Place::Together);
        // The view still gives the server the address of a pod outside the mesh.
        let stranger = world.pod("stranger", "x");
        stranger.serve(8080, mirror);
        pair.server.workload.addresses = vec![stranger.v4].into();
        pair.publish(&[]);
        assert!(pair.client.ask(at(stranger.v4, 8080)).is_err());
    }

    fn the_description_of_an_earlier_pod_of_the_name_holds_for_nobody() {
        let world = World::new();
        for place in PLACES {
            let mut pair = Pair::new(&world, place);
            pair.server.serve(8080, mirror);
            let stranger = world.pod("stranger", "x");
            let server = at(pair.server.v4, 8080);
            assert!(stranger.ask(server).is_ok(), "{place:?}: plain text is allowed");
            let (client, earlier) = (pair.client.workload.clone(), "earlier".into());
            pair.client.workload.service_account = earlier;
            pair.publish(&[]);
            assert!(pair.client.ask(server).is_err(), "{place:?}: who connects is not described");
            pair.client.workload = client;
            let account =
                std::mem::replace(&mut pair.server.workload.service_account, "earlier".into());
            pair.publish(&[]);
            assert!(stranger.ask(server).is_err(), "{place:?}: what is reached is not described");
            // An entry that somebody wrote, of the pod's name and account.
            pair.server.workload.service_account = account;
            pair.server.workload.node = "".into();
            pair.publish(&[]);
            assert!(stranger.ask(server).is_err(), "{place:?}: an entry describes no pod");
        }
    }

    fn a_missing_policy_is_waited_for_and_then_refused() {
        let world = World::new();
        let mut pair = Pair::new(&world, Place::Apart);
        pair.server.serve(8080, mirror);
        pair.server.workload.policies = vec![PolicyName::new("default", "late")];
        pair.publish(&[]);
        let start = Instant::now();
        assert!(pair.client.ask(at(pair.server.v4, 8080)).is_err());
        assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
        let server = at(pair.server.v4, 8080);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| pair.client.ask(server));
            wait_until("a connection waits", || !pair.near.list().is_empty() || {
                std::thread::sleep(Duration::from_millis(300));
                true
            });
            let mut late = policy("late", Action::Allow, "c");
            late.scope = ambit_model::policy::PolicyScope::WorkloadSelector;
            change(&pair.proxies(), Change::Policy(late));
            assert!(asking.join().unwrap().is_ok());
        });
    }

    fn the_proxys_own_ports_lead_nowhere() {
        let world = World::new();
        let pair = Pair::new(&world, Place::Apart);
        let loopback = "127.0.0.1".parse().unwrap();
        for to in [
            at(loopback, 15001),
            at(loopback, 15006),
            at(pair.client.v4, 15001),
            at(pair.server.v4, 15001),
            at(pair.server.v4, 15006),
            at(pair.server.v4, 15008),
        ] {
            assert!(pair.client.ask(to).is_err(), "{to}");
        }
    }

    fn a_tunnel_leads_to_the_pods_own_address_whoever_names_the_pod_as_a_waypoint() {
        let world = World::new();
        let mut pair = Pair::new(&world, Place::Apart);
        pair.server.serve(8080, mirror);
        let own = pair.server.v4.to_string();
        let lo = listens(&pair.server, "127.0.0.1:9901");
        let lo_v6 = listens(&pair.server, "[::1]:9901");
        let stranger = world.pod("stranger", "x");
        let other = listens(&stranger, "0.0.0.0:8080");
        let web = service("web", "10.96.0.1", 8080, &mut [&mut pair.server]);
        let (near, peer) = (&pair.near, stranger.v4.to_string());
        let odd = [
            "127.0.0.1:9901", "127.8.8.8:9901", "[::1]:9901", "[::ffff:127.0.0.1]:9901",
            "0.0.0.0:8080", "0.1.2.3:8080", "[::]:8080", "[::ffff:0.0.0.0]:8080",
            "255.255.255.255:8080", "224.0.0.1:8080", "[ff02::1]:8080", "169.254.169.254:80",
            "[fe80::1]:8080", "10.9.255.254:8080", "240.240.0.1:8080",
        ];
        let odd = odd.map(str::to_owned).into_iter().chain([
            format!("{peer}:8080"),
            format!("[::ffff:{own}]:8080"),
            format!("[::{own}]:8080"),
            format!("{own}:0"),
            format!("{own}:15001"),
            format!("{own}:15006"),
            format!("{own}:15008"),
            "elsewhere.evil.example:80".to_owned(),
            "127.1:9901".to_owned(),
            "2130706433:9901".to_owned(),
        ]);
        let mut served = Vec::new();
        for asked in odd {
            let named = asked.parse().map_or(stranger.v4, |address: SocketAddr| address.ip());
            let mut further = vec![web.clone()];
            further.extend(foreign("evil", named, "web.default.svc.cluster.local"));
            pair.publish(&further);
            let status = near.tunnel(&pair.client, &pair.server, &asked);
            if status != Some(http::StatusCode::BAD_REQUEST) {
                served.push((asked, status));
            }
        }
        assert_eq!(served, []);
        for (place, listener) in [("lo", lo), ("lo v6", lo_v6), ("another pod", other)] {
            assert!(listener.accept().is_err(), "{place} was reached");
        }
        for asked in [format!("{own}:8080"), "web.default.svc.cluster.local:80".to_owned()] {
            let status = near.tunnel(&pair.client, &pair.server, &asked);
            assert_eq!(status, Some(http::StatusCode::OK), "{asked}");
        }
    }

    fn plain_text_leads_to_the_pods_own_addresses_and_those_that_others_reach() {
        let world = World::new();
        let mut pair = Pair::new(&world, Place::Together);
        pair.server.serve(8080, mirror);
        let (stranger, other) = (world.pod("stranger", "x"), world.pod("other", "x"));
        let elsewhere = listens(&other, "[::]:8080");
        // The pod has this one, but it means another place to everybody else.
        let metadata: IpAddr = "169.254.169.254".parse().unwrap();
        let mut here = RouteSocket::open_in(&pair.server.netns).unwrap();
        here.ensure_address("lo", metadata.into()).unwrap();
        let addresses = vec![pair.server.v4, pair.server.v6, metadata];
        pair.server.workload.addresses = addresses.into();
        pair.publish(&[]);
        let mut routes = RouteSocket::open_in(&stranger.netns).unwrap();
        let link = Some("eth0".to_owned());
        for (to, gateway) in [
            (other.v4, pair.server.v4),
            (other.v6, pair.server.v6),
            (metadata, pair.server.v4),
        ] {
            // The neighbour's frames, to the pod's hardware address.
            let route = Route { link: link.clone(), ..Route::via(to.into(), gateway) };
            routes.ensure_route(&route).unwrap();
            assert!(stranger.ask(at(to, 8080)).is_err(), "{to}");
        }
        assert!(elsewhere.accept().is_err(), "another pod was reached");
        let refused = pair.near.metrics();
        let refused = refused.lines().filter(|line| line.contains("wrong_address"));
        assert_eq!(refused.filter(|line| line.ends_with(" 3")).count(), 1, "each is on record");
        for own in [pair.server.v4, pair.server.v6] {
            assert!(stranger.ask(at(own, 8080)).is_ok(), "{own}");
        }
    }

    fn an_endpoint_that_refuses_is_passed_over() {
        let world = World::new();
        let mut pair = Pair::new(&world, Place::Apart);
        pair.server.serve(8080, mirror);
        let mut dead = world.pod("dead", "s");
        pair.judge().enrol(&mut dead);
        let service = service("web", "10.96.0.1", 8080, &mut [&mut pair.server, &mut dead]);
        let pods = [&pair.client, &pair.server, &dead];
        publish(&pair.proxies(), &pods, &[service]);
        route_services(&pair.client);
        for _ in 0..20 {
            pair.client.ask("10.96.0.1:80".parse().unwrap()).unwrap();
        }
    }

    fn a_proxy_that_dies_in_the_handshake_costs_no_connection() {
        let world = World::new();
        let (mut client, mut server) = (world.pod("client", "c"), world.pod("server", "s"));
        let (near, far) = (world.proxy(SameNode::Join), world.proxy(SameNode::Join));
        near.enrol(&mut client);
        server.workload.tunnel = Tunnel::Hbone;
        server.serve(8080, mirror);
        publish(&[&near, &far], &[&client, &server], &[]);
        let dying = server.netns.run(|| TcpListener::bind("0.0.0.0:15008")).unwrap().unwrap();
        let destination = at(server.v4, 8080);
        let mut asking = client.connect(destination).unwrap();
        asking.write_all(b"hello\n").unwrap();
        let (handshake, _) = dying.accept().unwrap();
        drop(dying);
        far.enrol(&mut server);
        drop(handshake);
        asking.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        asking.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, format!("{} said hello\n", client.v4));
    }

    fn a_removed_pod_drains_until_its_deadline() {
        let world = World::new();
        for place in PLACES {
            let pair = Pair::new(&world, place);
            pair.server.serve(8080, echo);
            let mut stream = pair.client.connect(at(pair.server.v4, 8080)).unwrap();
            ping(&mut stream);
            let start = Instant::now();
            pair.judge().remove(&pair.server, Duration::from_millis(300));
            ping(&mut stream);
            assert!(is_broken_within(stream, Duration::from_secs(2)), "{place:?}");
            assert!(start.elapsed() >= Duration::from_millis(300));
            wait_until("all is closed", || pair.proxies().iter().all(|it| it.list().is_empty()));
        }
    }

    /// Nobody answers at the address; until the kernel says so it takes three seconds.
    fn what_a_removed_pod_is_setting_up_ends_at_its_deadline() {
        let world = World::new();
        let pair = Pair::new(&world, Place::Apart);
        let silent = IpAddr::from([10, 9, 255, 250]);
        let stream = pair.client.connect(at(silent, 80)).unwrap();
        let client = pair.proxies()[0];
        client.remove(&pair.client, Duration::from_millis(300));
        assert!(is_broken_within(stream, Duration::from_secs(2)));
    }

    fn an_upgrade_lets_connections_end_by_themselves() {
        let world = World::new();
        for place in PLACES {
            let mut pair = Pair::new(&world, place);
            pair.server.serve(8080, echo);
            let mut stream = pair.client.connect(at(pair.server.v4, 8080)).unwrap();
            ping(&mut stream);
            let stop = crate::dataplane::Command::StopAccepting;
            pair.near.commands.blocking_send(stop).ok().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            ping(&mut stream);
            // What is no longer allowed is cut also now.
            if place == Place::Together {
                change(&pair.proxies(), Change::Policy(policy("p", Action::Deny, "c")));
                assert!(is_broken_within(stream, Duration::from_secs(1)));
            } else {
                drop(stream);
            }
            pair.near.thread.take().unwrap().join().unwrap();
            if let Some(far) = &mut pair.far {
                far.stop();
            }
        }
    }

    fn a_flood_and_a_trickle_pass_unchanged() {
        let world = World::new();
        for place in PLACES {
            let pair = Pair::new(&world, place);
            pair.server.serve(8080, echo);
            let stream = pair.client.connect(at(pair.server.v4, 8080)).unwrap();
            let sent: Vec<u8> = (0..4_000_000u32).flat_map(u32::to_be_bytes).collect();
            let (mut reader, mut writer) = (stream.try_clone().unwrap(), stream);
            let expected = sent.clone();
            let writing = std::thread::spawn(move || {
                for chunk in sent.chunks(77_777) {
                    writer.write_all(chunk).unwrap();
                }
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            reader.read_to_end(&mut received).unwrap();
            writing.join().unwrap();
            assert!(received == expected, "{place:?}: bytes changed on the way");
        }
    }
}

/// Listens in a pod; whether anybody came is asked later.
fn listens(pod: &PodBox, address: &str) -> TcpListener {
    let listener = pod.netns.run(|| TcpListener::bind(address)).unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// A ServiceEntry and a WorkloadEntry of another namespace at `ip`, whose labels name a Service of
/// this one as their waypoint.
fn foreign(namespace: &str, ip: IpAddr, waypoint: &str) -> [Change; 2] {
    let name = ServiceName::new("default", waypoint);
    let destination = GatewayDestination::Hostname(name);
    let waypoint = GatewayAddress { destination, hbone_mtls_port: 15008 };
    let mut service = Service::named(namespace, "elsewhere.evil.example");
    let address = NetworkAddress::new("", ip);
    service.addresses = vec![VirtualAddress { address, prefix_len: None }];
    service.waypoint = Some(waypoint.clone());
    let mut entry = Workload::named("evil/entry", namespace, "entry");
    entry.addresses = vec![ip].into();
    entry.waypoint = Some(waypoint.into());
    [Change::Service(service), Change::Workload(entry)]
}

/// Sends packets to service addresses to where the capture rules see them.
fn route_services(pod: &PodBox) {
    use ambit_net::netlink::{Route, RouteSocket};
    let mut routes = RouteSocket::open_in(&pod.netns).unwrap();
    routes.ensure_route(&Route::on_link("10.96.0.0/16".parse().unwrap(), "eth0")).unwrap();
}

/// STRICT as istiod converts it: deny clients without an identity.
fn strict() -> Policy {
    use ambit_model::policy::{Clause, Match, PolicyScope, Rule, TextMatch};
    let anybody = Match { not_principals: [TextMatch::Presence].into(), ..Match::default() };
    Policy {
        key: PolicyName::new("istio-system", "istio_converted_static_strict"),
        scope: PolicyScope::Global,
        action: Action::Deny,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![anybody] }] }],
        dry_run: false,
        is_of_waypoints: false,
    }
}
