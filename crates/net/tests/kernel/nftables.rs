//! nftables against the real kernel: what the rules do, and that tampering is detected.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ambit_net::conntrack::{Conntrack, Tuple};
use ambit_net::namespace::{self, NetNs};
use ambit_net::netlink::{NetlinkError, Route, RouteSocket};
use ambit_net::nftables::{
    Chain, ConnectionState, Difference, Direction, Family, Hook, Nftables, Priority, Protocol,
    Rule, ServiceKey, Set, SocketOwner, Table, Verdict, Watch,
};
use ambit_net::socket::{self, ListenOptions};

use crate::world::{PATIENCE, Pair, ask, lonely, privileged_tests, serve_once, server_ips};

const ENOENT: i32 = 2;
const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

/// What differs between the tables of the two address families.
struct Samples {
    ipv6: bool,
    net: ipnet::IpNet,
    host: ipnet::IpNet,
    own: IpAddr,
    backends: Vec<SocketAddr>,
    pods: Set,
}

impl Samples {
    fn of(family: Family) -> Self {
        let ipv6 = family == Family::Ip6;
        let (net, host, own) = if ipv6 {
            ("fd00::/8", "fd09::1/128", "fd09::9")
        } else {
            ("10.0.0.0/8", "10.9.0.1/32", "10.9.0.9")
        };
        let own: IpAddr = own.parse().unwrap();
        let pods = if ipv6 {
            Set::ipv6("pods", ["fd09::1".parse().unwrap(), "fd09::2".parse().unwrap()])
        } else {
            Set::ipv4("pods", ["10.9.0.1".parse().unwrap(), "10.9.0.2".parse().unwrap()])
        };
        let backends = (1..4).map(|port| SocketAddr::new(own, port)).collect();
        Self { ipv6, net: net.parse().unwrap(), host: host.parse().unwrap(), own, backends, pods }
    }

    fn conditions(&self) -> Vec<Rule> {
        let states = [
            ConnectionState::Established,
            ConnectionState::Related,
            ConnectionState::New,
            ConnectionState::Invalid,
            ConnectionState::Untracked,
        ];
        let (from_pods, to_pods) = (Rule::new("from pods"), Rule::new("to pods"));
        let (from_pods, to_pods) = if self.ipv6 {
            (from_pods.source_in_ipv6("pods"), to_pods.destination_in_ipv6("pods"))
        } else {
            (from_pods.source_in_ipv4("pods"), to_pods.destination_in_ipv4("pods"))
        };
        vec![
            Rule::new("states").state(&states).counter().accept(),
            Rule::new("reply").direction(Direction::Reply).accept(),
            Rule::new("original").direction(Direction::Original).counter(),
            from_pods.accept(),
            to_pods.accept(),
            Rule::new("nets").source(self.net).destination(self.host).accept(),
            Rule::new("not nets").source_not(self.host).destination_not(self.net).accept(),
            Rule::new("ports").protocol(Protocol::Tcp).source_port(1).port_not(2).accept(),
            Rule::new("syn").protocol(Protocol::Tcp).tcp_flags(0x17, 0x02).drop(),
            Rule::new("marks").mark(0x539, 0xfff).connection_mark_not(1, u32::MAX).accept(),
            Rule::new("not marks").mark_not(0, 1).connection_mark(0x111, 0xfff).accept(),
            Rule::new("in").in_interface("lo").return_to_caller(),
            Rule::new("not in").in_interface_not("eth0").jump("called"),
            Rule::new("local").to_local_address().goto("called"),
            Rule::new("other").to_other_address().reject(),
        ]
    }

    fn marking(&self) -> Vec<Rule> {
        vec![
            Rule::new("root").sent_by(SocketOwner::User(0)).set_mark(7),
            Rule::new("anyone").sent_by(SocketOwner::Anyone).set_connection_mark(7),
            Rule::new("out").out_interface("eth0").mark_from_connection(),
            Rule::new("not out").out_interface_not("lo").connection_from_mark(),
        ]
    }

    fn destinations(&self) -> Vec<Rule> {
        let services = Rule::new("services");
        vec![
            if self.ipv6 {
                services.service_verdict_ipv6("services")
            } else {
                services.service_verdict_ipv4("services")
            },
            Rule::new("redirect").protocol(Protocol::Tcp).redirect(15001),
            Rule::new("redirect into").protocol(Protocol::Tcp).redirect_into(self.net, 15001),
        ]
    }

    fn backends(&self) -> Vec<Rule> {
        vec![
            Rule::new("pick").protocol(Protocol::Tcp).destination_nat(&self.backends),
            Rule::new("only").protocol(Protocol::Udp).destination_nat(&self.backends[..1]),
        ]
    }
}

/// Every condition and statement at least once.
fn everything(family: Family) -> Table {
    let samples = Samples::of(family);
    let key = ServiceKey { ip: samples.own, protocol: Protocol::Tcp, port: 80 };
    let verdicts = [(key, Verdict::Goto("backends".to_owned()))];
    let icmp = if samples.ipv6 { Protocol::Icmpv6 } else { Protocol::Icmp };
    let reset = Rule::new("reset").protocol(Protocol::Tcp).reject_with_reset();
    Table::new(family, "everything")
        .set(samples.pods.clone())
        .set(Set::services("services", samples.ipv6, verdicts))
        .chain(
            Chain::filter("raw", Hook::Prerouting, Priority::RAW)
                .rule(Rule::new("zone").protocol(Protocol::Udp).port(53).zone(1))
                .rule(Rule::new("untracked").protocol(icmp).no_track()),
        )
        .chain(
            Chain::filter("conditions", Hook::Input, Priority::FILTER)
                .drop_by_default()
                .rules(samples.conditions()),
        )
        .chain(Chain::route("output", Priority::MANGLE).rules(samples.marking()))
        .chain(
            Chain::nat("nat", Hook::Prerouting, Priority::DESTINATION_NAT)
                .rules(samples.destinations()),
        )
        .chain(
            Chain::nat("source", Hook::Postrouting, Priority::SOURCE_NAT)
                .rule(Rule::new("one").mark(1, 1).source_nat(samples.own))
                .rule(Rule::new("whatever").masquerade()),
        )
        .chain(Chain::regular("called").rule(reset))
        .chain(Chain::regular("backends").rules(samples.backends()))
}

fn redirecting(port: u16) -> Vec<Table> {
    FAMILIES
        .map(|family| {
            let redirect =
                Rule::new("inbound").protocol(Protocol::Tcp).port_not(15008).redirect(port);
            Table::new(family, "ambit").chain(
                Chain::nat("prerouting", Hook::Prerouting, Priority::DESTINATION_NAT)
                    .rule(redirect),
            )
        })
        .into()
}

fn wildcard(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(socket::unspecified_like(ip), port)
}

privileged_tests! {
    fn what_was_installed_verifies_and_so_does_the_next_install() {
        let namespace = lonely();
        let mut nft = Nftables::open_in(&namespace).unwrap();
        for family in [Family::Ip, Family::Ip6, Family::Inet] {
            let table = everything(family);
            assert_eq!(
                nft.verify(&table).unwrap(),
                [Difference::NoTable { table: "everything".to_owned() }]
            );
            for _ in 0..2 {
                nft.replace(std::slice::from_ref(&table)).unwrap();
                assert_eq!(nft.verify(&table).unwrap(), [], "{family:?}");
            }
            assert!(nft.delete(family, "everything").unwrap());
            assert!(!nft.delete(family, "everything").unwrap());
        }
    }

    fn a_bridge_table_verifies() {
        let mut nft = Nftables::open_in(&lonely()).unwrap();
        let spoofed = |rule: Rule, own: &str| rule.source_not(own.parse().unwrap()).drop();
        let table = Table::new(Family::Bridge, "ports").chain(
            Chain::filter("prerouting", Hook::Prerouting, Priority::MANGLE)
                .rule(spoofed(Rule::new("v4").in_interface("pod1").ipv4(), "10.244.1.2/32"))
                .rule(spoofed(Rule::new("v6").in_interface("pod1").ipv6(), "fd00:10:244:1::2/128")),
        );
        nft.replace(std::slice::from_ref(&table)).unwrap();
        assert_eq!(nft.verify(&table).unwrap(), []);
        assert!(nft.delete(Family::Bridge, "ports").unwrap());
        assert!(!nft.verify(&table).unwrap().is_empty());
    }

    fn tampering_shows() {
        let namespace = lonely();
        let mut nft = Nftables::open_in(&namespace).unwrap();
        let chain = |rules: &[Rule]| {
            Chain::filter("input", Hook::Input, Priority::FILTER).rules(rules.to_vec())
        };
        let table = |chains: Vec<Chain>| {
            let pods = Set::ipv4("pods", ["10.9.0.1".parse().unwrap()]);
            Table::new(Family::Ip, "ambit").set(pods).chains(chains)
        };
        let first = Rule::new("first").protocol(Protocol::Tcp).port(80).accept();
        let second = Rule::new("second").in_interface("lo").counter().drop();
        let wanted = table(vec![chain(&[first.clone(), second.clone()])]);
        let rules_differ = |position: usize, comment: &str| Difference::Rules {
            chain: "input".to_owned(),
            position,
            comment: comment.to_owned(),
        };
        let other_port = Rule::new("first").protocol(Protocol::Tcp).port(81).accept();
        let other_verdict = Rule::new("first").protocol(Protocol::Tcp).port(80).drop();
        let extra = Rule::new("extra").accept();
        let rules = |rules: &[&Rule]| {
            vec![chain(&rules.iter().copied().cloned().collect::<Vec<Rule>>())]
        };
        for (found, difference) in [
            (rules(&[&other_port, &second]), rules_differ(0, "first")),
            (rules(&[&other_verdict, &second]), rules_differ(0, "first")),
            (rules(&[&second, &first]), rules_differ(0, "first")),
            (rules(&[&first]), rules_differ(1, "second")),
            (rules(&[&first, &second, &extra]), rules_differ(2, "extra")),
        ] {
            nft.replace(&[table(found)]).unwrap();
            assert_eq!(nft.verify(&wanted).unwrap(), [difference]);
        }
        let elsewhere = Chain::filter("input", Hook::Forward, Priority::FILTER)
            .rules([first.clone(), second.clone()]);
        nft.replace(&[table(vec![elsewhere, Chain::regular("more")])]).unwrap();
        let (input, more) = ("input".to_owned(), "more".to_owned());
        assert_eq!(
            nft.verify(&wanted).unwrap(),
            [Difference::Chain { chain: input }, Difference::ExtraChain { chain: more }]
        );
        nft.replace(std::slice::from_ref(&wanted)).unwrap();
        nft.add_addresses(Family::Ip, "ambit", "pods", &["10.9.0.7".parse().unwrap()]).unwrap();
        let set = Difference::Set { set: "pods".to_owned() };
        assert_eq!(nft.verify(&wanted).unwrap(), [set]);
        let gone = ["10.9.0.7".parse().unwrap(), "10.9.0.8".parse().unwrap()];
        nft.remove_addresses(Family::Ip, "ambit", "pods", &gone).unwrap();
        nft.add_addresses(Family::Ip, "ambit", "pods", &["10.9.0.1".parse().unwrap()]).unwrap();
        assert_eq!(nft.verify(&wanted).unwrap(), []);
        let comments: Vec<String> =
            nft.list_rules(Family::Ip, "ambit").unwrap().into_iter().map(|r| r.comment).collect();
        assert_eq!(comments, ["first", "second"]);
    }

    fn a_refused_transaction_changes_nothing_and_names_the_rule() {
        let namespace = lonely();
        let mut nft = Nftables::open_in(&namespace).unwrap();
        let good = redirecting(15006);
        nft.replace(&good).unwrap();
        let bad = Table::new(Family::Ip, "ambit").chain(
            Chain::nat("prerouting", Hook::Prerouting, Priority::DESTINATION_NAT)
                .rule(Rule::new("nowhere").jump("missing")),
        );
        let error = nft.replace(&[bad]).unwrap_err();
        assert_eq!(error.errno(), Some(ENOENT));
        assert!(error.to_string().contains("\"nowhere\" to prerouting"), "{error}");
        assert_eq!(nft.verify(&good[0]).unwrap(), []);
        let empty = Table::new(Family::Ip, "ambit")
            .chain(Chain::regular("c").rule(Rule::new("none").destination_nat(&[])));
        let error = nft.replace(&[empty]).unwrap_err();
        assert!(matches!(error, NetlinkError::Unusable { .. }), "{error}");
        assert_eq!(nft.verify(&good[0]).unwrap(), []);
    }

    fn a_redirected_connection_tells_where_it_was_going() {
        let pair = Pair::new();
        Nftables::open_in(&pair.server).unwrap().replace(&redirecting(15006)).unwrap();
        for ip in server_ips() {
            let listener = pair
                .server
                .run(|| socket::tcp_listener(wildcard(ip, 15006), &ListenOptions::default()))
                .unwrap()
                .unwrap();
            let server =
                serve_once(listener, |s| socket::original_destination(s).unwrap().to_string());
            let wanted = SocketAddr::new(ip, 8080);
            assert_eq!(ask(&pair.client, wanted).unwrap(), wanted.to_string());
            server.join().unwrap();
        }
        // An IPv4 client of a dual-stack listener.
        let dual = ListenOptions { v6only: false, ..ListenOptions::default() };
        let listener = pair
            .server
            .run(|| socket::tcp_listener("[::]:15006".parse().unwrap(), &dual))
            .unwrap()
            .unwrap();
        let server = serve_once(listener, |s| socket::original_destination(s).unwrap().to_string());
        let wanted = SocketAddr::new(server_ips()[0], 9090);
        assert_eq!(ask(&pair.client, wanted).unwrap(), wanted.to_string());
        server.join().unwrap();
    }

    fn a_connection_redirected_into_a_block_arrives_at_the_address_that_ends_as_its_destination() {
        let pair = Pair::new();
        let mut routes = RouteSocket::open_in(&pair.client).unwrap();
        routes.set_up("lo").unwrap();
        for (family, block, destination, arrives) in [
            (Family::Ip, "127.64.0.0/10", "10.9.0.77:80", "127.73.0.77:15001"),
            (Family::Ip6, "fd77:1::/64", "[fd09::77]:80", "[fd77:1::77]:15001"),
        ] {
            let block: ipnet::IpNet = block.parse().unwrap();
            let (wanted, arrives): (SocketAddr, SocketAddr) =
                (destination.parse().unwrap(), arrives.parse().unwrap());
            routes.ensure_route(&Route::local(block, 255)).unwrap();
            let rule = Rule::new("outbound").protocol(Protocol::Tcp).redirect_into(block, 15001);
            let output = Chain::nat("output", Hook::Output, Priority::DESTINATION_NAT).rule(rule);
            let table = Table::new(family, "ambit").chain(output);
            Nftables::open_in(&pair.client).unwrap().replace(&[table]).unwrap();
            let listen = || {
                socket::tcp_listener(wildcard(wanted.ip(), 15001), &ListenOptions::default())
            };
            let listener = pair.client.run(listen).unwrap().unwrap();
            let server = serve_once(listener, |s| {
                let at = s.local_addr().unwrap();
                format!("{} at {at}", socket::original_destination(s).unwrap())
            });
            assert_eq!(ask(&pair.client, wanted).unwrap(), format!("{wanted} at {arrives}"));
            server.join().unwrap();
        }
    }

    fn a_service_address_reaches_every_backend() {
        let pair = Pair::new();
        let mut routes = RouteSocket::open_in(&pair.client).unwrap();
        for (vip, other, any) in [
            ("10.96.0.7:80", "10.9.0.3/24", "10.96.0.0/16"),
            ("[fd00:10:96::7]:80", "fd09::3/64", "fd00:10:96::/112"),
        ] {
            let vip: SocketAddr = vip.parse().unwrap();
            let other: ipnet::IpNet = other.parse().unwrap();
            let first = server_ips()[usize::from(vip.is_ipv6())];
            RouteSocket::open_in(&pair.server).unwrap().ensure_address("eth0", other).unwrap();
            routes.ensure_route(&Route::via(any.parse().unwrap(), first)).unwrap();
            let backends = [SocketAddr::new(first, 8081), SocketAddr::new(other.addr(), 8082)];
            let ipv6 = vip.is_ipv6();
            let key = ServiceKey { ip: vip.ip(), protocol: Protocol::Tcp, port: vip.port() };
            let closed = ServiceKey { port: 81, ..key };
            let services = Set::services(
                "services",
                ipv6,
                [
                    (key, Verdict::Goto("service-a".to_owned())),
                    (closed, Verdict::Drop),
                ],
            );
            let look_up = if ipv6 {
                Rule::new("services").service_verdict_ipv6("services")
            } else {
                Rule::new("services").service_verdict_ipv4("services")
            };
            let family = if ipv6 { Family::Ip6 } else { Family::Ip };
            let pick = Rule::new("a").protocol(Protocol::Tcp).destination_nat(&backends);
            let table = Table::new(family, "services")
                .set(services)
                .chain(
                    Chain::nat("output", Hook::Output, Priority::DESTINATION_NAT).rule(look_up),
                )
                .chain(Chain::regular("service-a").rule(pick));
            Nftables::open_in(&pair.client).unwrap().replace(&[table]).unwrap();
            let mut reached = BTreeSet::new();
            // Both misses all of 40 with a probability of 2^-39.
            for _ in 0..40 {
                let listeners = backends.map(|backend| {
                    let listen = || socket::tcp_listener(backend, &ListenOptions::default());
                    pair.server.run(listen).unwrap().unwrap()
                });
                let client = pair
                    .client
                    .run(|| std::net::TcpStream::connect_timeout(&vip, PATIENCE))
                    .unwrap()
                    .unwrap();
                for listener in &listeners {
                    match listener.accept() {
                        Ok((stream, _)) => reached.insert(stream.local_addr().unwrap()),
                        Err(error) => error.kind() == ErrorKind::WouldBlock,
                    };
                }
                drop(client);
            }
            assert_eq!(reached, BTreeSet::from(backends));
        }
    }

    fn a_reset_and_an_unreachable_port_reach_the_client() {
        let pair = Pair::new();
        for family in FAMILIES {
            let table = Table::new(family, "refuse").chain(
                Chain::filter("input", Hook::Input, Priority::FILTER)
                    .rule(Rule::new("reset").protocol(Protocol::Tcp).port(1).reject_with_reset())
                    .rule(Rule::new("unreachable").protocol(Protocol::Tcp).port(2).reject()),
            );
            Nftables::open_in(&pair.server).unwrap().replace(&[table]).unwrap();
        }
        for ip in server_ips() {
            for port in [1, 2] {
                let error = ask(&pair.client, SocketAddr::new(ip, port)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{ip} {port}");
            }
        }
    }

    fn marks_travel_between_packet_and_connection() {
        let pair = Pair::new();
        let table = Table::new(Family::Ip, "marks")
            .chain(
                Chain::filter("prerouting", Hook::Prerouting, Priority::MANGLE)
                    .rule(Rule::new("mark").protocol(Protocol::Tcp).set_connection_mark(0x111)),
            )
            .chain(
                Chain::route("output", Priority::MANGLE)
                    .rule(Rule::new("back").connection_mark(0x111, 0xfff).mark_from_connection()),
            )
            .chain(
                // Answers carry the mark, or they are lost here.
                Chain::filter("postrouting", Hook::Postrouting, Priority::FILTER)
                    .rule(Rule::new("unmarked").mark_not(0x111, 0xfff).drop()),
            );
        Nftables::open_in(&pair.server).unwrap().replace(&[table]).unwrap();
        let address: SocketAddr = "10.9.0.2:80".parse().unwrap();
        let listen = || socket::tcp_listener(address, &ListenOptions::default());
        let server = serve_once(pair.server.run(listen).unwrap().unwrap(), |_| "marked".to_owned());
        assert_eq!(ask(&pair.client, address).unwrap(), "marked");
        server.join().unwrap();
        let entries = Conntrack::open_in(&pair.server).unwrap().entries().unwrap();
        assert!(entries.iter().any(|entry| entry.mark == 0x111), "{entries:?}");
    }

    fn a_source_address_is_translated_on_the_way_out() {
        let (client, router, server) = (lonely(), lonely(), lonely());
        let mut routes = RouteSocket::open_in(&router).unwrap();
        routes.ensure_veth("a", "eth0", Some(&client)).unwrap();
        routes.ensure_veth("b", "eth0", Some(&server)).unwrap();
        let address = |routes: &mut RouteSocket, link: &str, net: &str| {
            routes.ensure_address(link, net.parse().unwrap()).unwrap();
            routes.set_up(link).unwrap();
        };
        address(&mut routes, "a", "10.1.0.1/24");
        address(&mut routes, "b", "10.2.0.1/24");
        let mut of_client = RouteSocket::open_in(&client).unwrap();
        address(&mut of_client, "eth0", "10.1.0.2/24");
        let default = Route::via("0.0.0.0/0".parse().unwrap(), "10.1.0.1".parse().unwrap());
        of_client.ensure_route(&default).unwrap();
        address(&mut RouteSocket::open_in(&server).unwrap(), "eth0", "10.2.0.2/24");
        router.run(|| namespace::set_sysctl("net.ipv4.ip_forward", "1")).unwrap().unwrap();
        let mut nft = Nftables::open_in(&router).unwrap();
        let target: SocketAddr = "10.2.0.2:80".parse().unwrap();
        for (rule, seen) in [
            (Rule::new("masquerade").out_interface("b").masquerade(), "10.2.0.1"),
            (Rule::new("fixed").source_nat("10.2.0.1".parse().unwrap()), "10.2.0.1"),
        ] {
            let chain = Chain::nat("out", Hook::Postrouting, Priority::SOURCE_NAT).rule(rule);
            nft.replace(&[Table::new(Family::Ip, "out").chain(chain)]).unwrap();
            let listen = || socket::tcp_listener(target, &ListenOptions::default());
            let answer = serve_once(server.run(listen).unwrap().unwrap(), |stream| {
                stream.peer_addr().unwrap().ip().to_string()
            });
            assert_eq!(ask(&client, target).unwrap(), seen);
            answer.join().unwrap();
        }
    }

    fn a_captured_datagram_is_found_and_forgotten() {
        let namespace = lonely();
        let capture = Rule::new("dns").protocol(Protocol::Udp).port(53).redirect(15053);
        let table = Table::new(Family::Ip, "ambit")
            .chain(Chain::nat("output", Hook::Output, Priority::DESTINATION_NAT).rule(capture));
        Nftables::open_in(&namespace).unwrap().replace(&[table]).unwrap();
        let (proxy, application) = namespace
            .run(|| {
                let options = ListenOptions::default();
                let proxy = socket::udp_bind("127.0.0.1:15053".parse().unwrap(), &options).unwrap();
                (proxy, UdpSocket::bind("127.0.0.1:0").unwrap())
            })
            .unwrap();
        proxy.set_nonblocking(false).unwrap();
        proxy.set_read_timeout(Some(PATIENCE)).unwrap();
        let resolver: SocketAddr = "127.0.0.9:53".parse().unwrap();
        application.send_to(b"query", resolver).unwrap();
        let mut buffer = [0; 16];
        let (length, client) = proxy.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"query");
        let source = proxy.local_addr().unwrap();
        let reply = Tuple { protocol: Protocol::Udp, source, destination: client };
        let mut conntrack = Conntrack::open_in(&namespace).unwrap();
        let original = conntrack.original_of_reply(&reply, 0).unwrap().unwrap();
        assert_eq!((original.source, original.destination), (client, resolver));
        let stranger = Tuple { destination: "127.0.0.1:9".parse().unwrap(), ..reply };
        assert_eq!(conntrack.original_of_reply(&stranger, 0).unwrap(), None);
        let captured = conntrack.entries().unwrap();
        assert!(captured.iter().any(|entry| entry.original == original && entry.reply == reply));
        let of_dns = |entry: &ambit_net::conntrack::Entry| entry.reply.source.port() == 15053;
        assert_eq!(conntrack.delete_matching(of_dns).unwrap(), 1);
        assert_eq!(conntrack.delete_matching(of_dns).unwrap(), 0);
        assert_eq!(conntrack.original_of_reply(&reply, 0).unwrap(), None);
    }

    fn a_zone_keeps_connections_of_equal_addresses_apart() {
        let namespace = lonely();
        let zone = Rule::new("zone").protocol(Protocol::Udp).port(53).zone(1);
        let table = Table::new(Family::Ip, "ambit")
            .chain(Chain::filter("output", Hook::Output, Priority::RAW).rule(zone));
        Nftables::open_in(&namespace).unwrap().replace(&[table]).unwrap();
        // Tracking is on as soon as a rule needs it; the zone needs it.
        let mut conntrack = Conntrack::open_in(&namespace).unwrap();
        assert_eq!(conntrack.count().unwrap(), 0);
        assert_eq!(conntrack.entries().unwrap(), []);
        namespace
            .run(|| UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", "127.0.0.1:53").unwrap())
            .unwrap();
        assert_eq!(conntrack.count().unwrap(), 1);
        let entries = conntrack.entries().unwrap();
        let found = entries.iter().find(|entry| entry.original.destination.port() == 53);
        assert_eq!(found.map(|entry| entry.zone), Some(1), "{entries:?}");
    }

    fn changes_are_noticed() {
        let (watched, other) = (lonely(), lonely());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let replace = |namespace: &NetNs| {
            Nftables::open_in(namespace).unwrap().replace(&redirecting(15006)).unwrap();
        };
        runtime.block_on(async {
            let mut watch = Watch::open_in(&watched).unwrap();
            replace(&other);
            let nothing = tokio::time::timeout(Duration::from_millis(50), watch.changed()).await;
            assert!(nothing.is_err());
            replace(&watched);
            tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap().unwrap();
            replace(&watched);
            tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap().unwrap();
        });
    }

    fn many_elements_and_backends_fit() {
        let namespace = lonely();
        let mut nft = Nftables::open_in(&namespace).unwrap();
        let addresses = (0..2000_u32).map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n));
        let services = (0..1500_u16).map(|port| {
            let ip = IpAddr::from([10, 96, 0, 1]);
            let key = ServiceKey { ip, protocol: Protocol::Udp, port };
            (key, Verdict::Goto("a-rather-long-name-of-a-chain-as-services-have".to_owned()))
        });
        let backends: Vec<SocketAddr> =
            (0..400).map(|port| SocketAddr::from(([10, 0, 0, 1], port))).collect();
        let table = Table::new(Family::Ip, "many")
            .set(Set::ipv4("pods", addresses))
            .set(Set::services("services", false, services))
            .chain(Chain::regular("a-rather-long-name-of-a-chain-as-services-have"))
            .chain(
                Chain::nat("output", Hook::Output, Priority::DESTINATION_NAT)
                    .rule(Rule::new("services").service_verdict_ipv4("services"))
                    .rule(Rule::new("many").protocol(Protocol::Tcp).destination_nat(&backends)),
            );
        nft.replace(std::slice::from_ref(&table)).unwrap();
        assert_eq!(nft.verify(&table).unwrap(), []);
    }
}
