//! Namespaces, links, routes and sockets against the real kernel.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use ambit_net::namespace::{self, NetNs};
use ambit_net::netlink::{Neighbour, NetlinkError, Route, RouteSocket, Rule};
use ambit_net::procnet;
use ambit_net::socket::{self, DialOptions, ListenOptions};

use crate::world::{
    CLIENT_V4, CLIENT_V6, PATIENCE, Pair, ask, lonely, privileged_tests, serve_once, server_ips,
    where_proc_sys_is_read_only,
};

privileged_tests! {
    fn a_new_namespace_is_another_one_and_the_thread_comes_back() {
        let home = NetNs::current().unwrap();
        let new = NetNs::create().unwrap();
        assert_ne!(home.inode(), new.inode());
        assert_eq!(new.run(|| NetNs::current().unwrap().inode()).unwrap(), new.inode());
        assert_eq!(NetNs::current().unwrap().inode(), home.inode());
        let panicked = std::panic::catch_unwind(|| new.run(|| panic!("inside")));
        assert!(panicked.is_err());
        assert_eq!(NetNs::current().unwrap().inode(), home.inode());
    }

    fn only_network_namespaces_are_taken_for_one() {
        let wrong: [OwnedFd; 2] = [
            std::fs::File::open("/proc/self/ns/uts").unwrap().into(),
            std::fs::File::open("/dev/null").unwrap().into(),
        ];
        for fd in wrong {
            assert_eq!(NetNs::from_fd(fd).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    fn a_pinned_namespace_outlives_its_descriptor() {
        let directory = temporary_directory("pin");
        let path = directory.join("pod");
        let inode = {
            let namespace = NetNs::create().unwrap();
            namespace.pin(&path).unwrap();
            // Again, over itself: a restarted agent does that.
            namespace.pin(&path).unwrap();
            namespace.inode()
        };
        assert_eq!(NetNs::open(&path).unwrap().inode(), inode);
        namespace::unpin(&path).unwrap();
        namespace::unpin(&path).unwrap();
        assert!(!path.exists());
        std::fs::remove_dir(directory).unwrap();
    }

    fn a_connection_crosses_a_veth_pair() {
        let pair = Pair::new();
        for ip in server_ips() {
            let address = SocketAddr::new(ip, 80);
            let options = ListenOptions::default();
            let listener =
                pair.server.run(|| socket::tcp_listener(address, &options)).unwrap().unwrap();
            let server = serve_once(listener, |s| s.peer_addr().unwrap().ip().to_string());
            let client = if ip.is_ipv4() { CLIENT_V4 } else { CLIENT_V6 };
            assert_eq!(ask(&pair.client, address).unwrap(), client);
            server.join().unwrap();
        }
    }

    fn what_is_ensured_twice_is_there_once() {
        let pair = Pair::new();
        let mut netlink = RouteSocket::open_in(&pair.client).unwrap();
        let link = netlink.ensure_veth("eth0", "eth0", Some(&pair.server)).unwrap();
        assert_eq!((link.kind.as_str(), link.up), ("veth", true));
        let bridge = netlink.ensure_bridge("pods").unwrap();
        assert_eq!(netlink.ensure_bridge("pods").unwrap(), bridge);
        let other_kind = netlink.ensure_bridge("eth0").unwrap_err();
        assert!(matches!(other_kind, NetlinkError::OtherKind { .. }), "{other_kind}");
        netlink.set_mtu("eth0", 1400).unwrap();
        netlink.set_up("pods").unwrap();
        netlink.ensure_veth("port", "far", None).unwrap();
        netlink.set_master("port", "pods").unwrap();
        netlink.set_hairpin("port").unwrap();
        assert_eq!(netlink.link("eth0").unwrap().unwrap().mtu, 1400);
        assert_eq!(netlink.link("port").unwrap().unwrap().master, Some(bridge.index));
        let wanted = format!("{CLIENT_V4}/24").parse().unwrap();
        netlink.ensure_address("eth0", wanted).unwrap();
        let count = |netlink: &mut RouteSocket| {
            netlink.addresses().unwrap().iter().filter(|found| found.address == wanted).count()
        };
        assert_eq!(count(&mut netlink), 1);
        assert!(netlink.delete_address("eth0", wanted).unwrap());
        assert!(!netlink.delete_address("eth0", wanted).unwrap());
        assert_eq!(count(&mut netlink), 0);
        assert!(netlink.delete_link("port").unwrap());
        assert!(!netlink.delete_link("port").unwrap());
        assert_eq!(netlink.link("far").unwrap(), None);
        let missing = netlink.set_up("port").unwrap_err();
        assert!(missing.to_string().contains("no interface \"port\""), "{missing}");
    }

    fn a_veth_whose_other_end_is_elsewhere_is_replaced() {
        let (here, first, second) = (lonely(), lonely(), lonely());
        let mut netlink = RouteSocket::open_in(&here).unwrap();
        netlink.ensure_veth("pod", "eth0", Some(&first)).unwrap();
        netlink.ensure_veth("pod", "eth0", Some(&second)).unwrap();
        assert_eq!(RouteSocket::open_in(&first).unwrap().link("eth0").unwrap(), None);
        assert!(RouteSocket::open_in(&second).unwrap().link("eth0").unwrap().is_some());
        netlink.ensure_veth("spare", "other", None).unwrap();
        netlink.move_link("other", &first).unwrap();
        assert_eq!(netlink.link("other").unwrap(), None);
        assert!(RouteSocket::open_in(&first).unwrap().link("other").unwrap().is_some());
    }

    fn routes_and_rules_come_and_go() {
        let pair = Pair::new();
        let mut netlink = RouteSocket::open_in(&pair.client).unwrap();
        let routes = [
            Route::via("10.244.2.0/24".parse().unwrap(), "10.9.0.2".parse().unwrap()),
            Route::via("fd00:10:244:2::/64".parse().unwrap(), "fd09::2".parse().unwrap()),
            Route::via("0.0.0.0/0".parse().unwrap(), "10.9.0.2".parse().unwrap()),
            Route::on_link("192.0.2.0/24".parse().unwrap(), "eth0"),
            Route::local("0.0.0.0/0".parse().unwrap(), 100),
            Route::local("::/0".parse().unwrap(), 100),
        ];
        for route in &routes {
            netlink.ensure_route(route).unwrap();
            netlink.ensure_route(route).unwrap();
            let found = netlink.routes().unwrap();
            let same = found.iter().filter(|found| {
                (found.destination, found.table, found.gateway, found.kind)
                    == (route.destination, route.table, route.gateway, route.kind)
            });
            assert_eq!(same.count(), 1, "{route:?} in {found:?}");
        }
        for ipv6 in [false, true] {
            let rule = Rule { ipv6, priority: 32764, mark: 0x111, mask: 0xfff, table: 100 };
            netlink.ensure_rule(&rule).unwrap();
            netlink.ensure_rule(&rule).unwrap();
            let found = netlink.rules().unwrap();
            assert_eq!(found.iter().filter(|found| **found == rule).count(), 1, "{found:?}");
            assert!(netlink.delete_rule(&rule).unwrap());
            assert!(!netlink.delete_rule(&rule).unwrap());
        }
        for route in &routes {
            assert!(netlink.delete_route(route).unwrap(), "{route:?}");
            assert!(!netlink.delete_route(route).unwrap(), "{route:?}");
        }
        let neighbour = Neighbour {
            link: "eth0".to_owned(),
            ip: "10.9.0.77".parse().unwrap(),
            mac: [2, 0, 0, 0, 0, 77],
        };
        netlink.ensure_neighbour(&neighbour).unwrap();
        netlink.ensure_neighbour(&neighbour).unwrap();
        assert!(netlink.delete_neighbour("eth0", neighbour.ip).unwrap());
        assert!(!netlink.delete_neighbour("eth0", neighbour.ip).unwrap());
    }

    fn a_kernel_parameter_is_that_of_the_namespace() {
        let (one, other) = (lonely(), lonely());
        let forward = |namespace: &NetNs| {
            let read = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
            namespace.run(read).unwrap()
        };
        one.run(|| namespace::set_sysctl("net.ipv4.ip_forward", "1")).unwrap().unwrap();
        other.run(|| namespace::set_sysctl("net.ipv4.ip_forward", "0")).unwrap().unwrap();
        assert_eq!((forward(&one).trim(), forward(&other).trim()), ("1", "0"));
        let escape = one.run(|| namespace::set_sysctl("net/../../self/comm", "x")).unwrap();
        assert_eq!(escape.unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    fn a_kernel_parameter_is_set_where_a_container_sees_it_read_only() {
        let namespace = lonely();
        let (set, plain, value) = where_proc_sys_is_read_only(|| {
            let work = || {
                let path = "/proc/sys/net/ipv4/tcp_migrate_req";
                let plain = std::fs::write(path, "1").map_err(|error| error.kind());
                let set = namespace::set_sysctl("net.ipv4.tcp_migrate_req", "1");
                (set.map_err(|error| error.kind()), plain, std::fs::read_to_string(path).unwrap())
            };
            namespace.run(work).unwrap()
        });
        assert_eq!(plain, Err(ErrorKind::ReadOnlyFilesystem));
        // Root of a user namespace alone has no right over the PID namespace.
        if crate::world::is_in_a_user_namespace() {
            assert_eq!((set, value.trim()), (Err(ErrorKind::ReadOnlyFilesystem), "0"));
        } else {
            assert_eq!((set, value.trim()), (Ok(()), "1"));
        }
    }

    fn a_dial_takes_the_address_of_somebody_else() {
        let pair = Pair::new();
        let mut netlink = RouteSocket::open_in(&pair.server).unwrap();
        for (foreign, any, server) in [
            ("192.0.2.7:0", "0.0.0.0/0", "10.9.0.2:80"),
            ("[2001:db8::7]:0", "::/0", "[fd09::2]:80"),
        ] {
            let (foreign, server): (SocketAddr, SocketAddr) =
                (foreign.parse().unwrap(), server.parse().unwrap());
            // As in a captured pod: what is marked and comes back to a foreign address is ours.
            netlink.ensure_route(&Route::local(any.parse().unwrap(), 100)).unwrap();
            netlink
                .ensure_rule(&Rule {
                    ipv6: server.is_ipv6(),
                    priority: 32764,
                    mark: 0x111,
                    mask: 0xfff,
                    table: 100,
                })
                .unwrap();
            let listen = ListenOptions { mark: Some(0x111), ..ListenOptions::default() };
            let dial =
                DialOptions { source: Some(foreign), mark: Some(0x539), ..DialOptions::default() };
            let peer = pair
                .server
                .run(|| {
                    let listener = socket::tcp_listener(server, &listen).unwrap();
                    let answer = serve_once(listener, |s| s.peer_addr().unwrap().ip().to_string());
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let dialing = socket::tcp_dial(server, &dial).unwrap();
                    let connect =
                        async { tokio::time::timeout(PATIENCE, dialing.connected()).await };
                    let stream = runtime.block_on(connect).unwrap().unwrap();
                    let own = stream.local_addr().unwrap();
                    assert_eq!(own.ip(), foreign.ip());
                    assert!(own.port() % 2 == 1, "the client's own ports are even: {own}");
                    answer.join().unwrap();
                    let mut text = String::new();
                    let mut stream = stream.into_std().unwrap();
                    stream.set_nonblocking(false).unwrap();
                    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
                    text
                })
                .unwrap();
            assert_eq!(peer, foreign.ip().to_string());
        }
    }

    fn an_address_exists_in_its_namespace_only() {
        let pair = Pair::new();
        // The capture rules' table for spoofed sources makes no address exist.
        let mut routes = RouteSocket::open_in(&pair.client).unwrap();
        for any in ["0.0.0.0/0", "::/0"] {
            routes.ensure_route(&Route::local(any.parse().unwrap(), 100)).unwrap();
        }
        for ip in server_ips() {
            assert!(pair.server.run(|| socket::address_exists(ip)).unwrap().unwrap());
            assert!(!pair.client.run(|| socket::address_exists(ip)).unwrap().unwrap());
        }
    }

    fn connections_are_counted_by_local_port_until_both_ends_are_closed() {
        let pair = Pair::new();
        let address: SocketAddr = "10.9.0.2:80".parse().unwrap();
        let count = || {
            let counts = pair.server.run(procnet::established_by_local_port).unwrap().unwrap();
            counts.get(&80).copied().unwrap_or_default()
        };
        let listener = pair
            .server
            .run(|| socket::tcp_listener(address, &ListenOptions::default()))
            .unwrap()
            .unwrap();
        listener.set_nonblocking(false).unwrap();
        assert_eq!(count(), 0);
        let dial = || pair.client.run(|| std::net::TcpStream::connect(address)).unwrap().unwrap();
        let (first, second) = (dial(), dial());
        assert_eq!(count(), 2, "not accepted yet, but established");
        let (kept, _) = listener.accept().unwrap();
        let (other, _) = listener.accept().unwrap();
        first.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(count(), 2, "half-closed is in use");
        socket::set_linger_reset(&other).unwrap();
        drop(other);
        assert_eq!(count(), 1);
        let reset = std::io::Read::read(&mut &second, &mut [0]).unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
        drop((kept, first));
        assert_eq!(count(), 0);
    }

    fn listeners_share_a_port() {
        let namespace = lonely();
        let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
        namespace
            .run(|| {
                let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
                let first = socket::tcp_listener(address, &options).unwrap();
                let same = first.local_addr().unwrap();
                let second = socket::tcp_listener(same, &options).unwrap();
                assert!(socket::tcp_info(&second).unwrap().listening);
                let alone = socket::tcp_listener(same, &ListenOptions::default());
                assert_eq!(alone.unwrap_err().kind(), ErrorKind::AddrInUse);
                // A dual-stack wildcard shows an IPv4 client as a mapped address.
                let dual = ListenOptions { v6only: false, ..ListenOptions::default() };
                let dual = socket::tcp_listener("[::]:0".parse().unwrap(), &dual).unwrap();
                let port = dual.local_addr().unwrap().port();
                let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
                dual.set_nonblocking(false).unwrap();
                let (_, peer) = dual.accept().unwrap();
                assert_eq!(socket::normalise(peer), client.local_addr().unwrap());
            })
            .unwrap();
    }
}

fn temporary_directory(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("ambit-net-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}
