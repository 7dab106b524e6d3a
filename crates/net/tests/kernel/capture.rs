//! A capture of real traffic, read back.

use std::net::SocketAddr;

use ambit_net::capture::{Capture, CaptureSummary, Trace};
use ambit_net::netlink::RouteSocket;
use ambit_net::socket::{self, ListenOptions};

use crate::world::{Pair, ask, lonely, privileged_tests, serve_once, server_ips};

const LIMIT_BYTES: u64 = 16 << 20;

/// Longer than one segment, so that it crosses borders.
fn speech() -> String {
    "the marker is somewhere in here; ".repeat(3000)
}

fn speak(pair: &Pair) {
    for ip in server_ips() {
        let address = SocketAddr::new(ip, 80);
        let listen = || socket::tcp_listener(address, &ListenOptions::default());
        let server = serve_once(pair.server.run(listen).unwrap().unwrap(), |_| speech());
        assert_eq!(ask(&pair.client, address).unwrap(), speech());
        server.join().unwrap();
    }
}

privileged_tests! {
    fn what_was_said_is_in_the_capture() {
        let pair = Pair::new();
        let path = std::env::temp_dir().join(format!("ambit-capture-{}.pcap", std::process::id()));
        let capture = Capture::start(&pair.server, "eth0", &path, LIMIT_BYTES).unwrap();
        speak(&pair);
        let summary = capture.stop().unwrap();
        assert_eq!((summary.dropped, summary.over_limit), (0, 0));
        assert!(summary.frames > 0);
        assert_eq!(summary.size_bytes, std::fs::metadata(&path).unwrap().len());
        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.count_marker(b"marker"), 2 * 3000);
        assert_eq!(trace.count_marker(b"never said"), 0);
        let said = 2 * speech().len() as u64;
        assert_eq!(trace.payload_by_port()[&80], said);
        let tls = trace.tls_summary(80);
        assert_eq!((tls.tls_bytes, tls.other_bytes, tls.partial_streams), (0, said, 0));
        std::fs::remove_file(path).unwrap();
    }

    fn a_bridge_shows_what_it_forwards_and_the_limit_holds() {
        let (bridge, one, other) = (lonely(), lonely(), lonely());
        let mut netlink = RouteSocket::open_in(&bridge).unwrap();
        netlink.ensure_bridge("fabric").unwrap();
        netlink.set_up("fabric").unwrap();
        for (port, namespace, address) in
            [("a", &one, "10.7.0.1/24"), ("b", &other, "10.7.0.2/24")]
        {
            netlink.ensure_veth(port, "eth0", Some(namespace)).unwrap();
            netlink.set_master(port, "fabric").unwrap();
            netlink.set_up(port).unwrap();
            let mut inside = RouteSocket::open_in(namespace).unwrap();
            inside.ensure_address("eth0", address.parse().unwrap()).unwrap();
            inside.set_up("eth0").unwrap();
        }
        let directory = std::env::temp_dir();
        let path = directory.join(format!("ambit-fabric-{}.pcap", std::process::id()));
        let short = directory.join(format!("ambit-short-{}.pcap", std::process::id()));
        let capture = Capture::start(&bridge, "fabric", &path, LIMIT_BYTES).unwrap();
        let limited = Capture::start(&bridge, "fabric", &short, 500).unwrap();
        let address: SocketAddr = "10.7.0.2:80".parse().unwrap();
        let listen = || socket::tcp_listener(address, &ListenOptions::default());
        let server = serve_once(other.run(listen).unwrap().unwrap(), |_| "across".to_owned());
        assert_eq!(ask(&one, address).unwrap(), "across");
        server.join().unwrap();
        assert_eq!(capture.stop().unwrap().over_limit, 0);
        let CaptureSummary { over_limit, size_bytes, .. } = limited.stop().unwrap();
        assert!(over_limit > 0 && size_bytes <= 500, "{over_limit} {size_bytes}");
        assert_eq!(Trace::read(&path).unwrap().count_marker(b"across"), 1);
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(short).unwrap();
    }

    fn a_missing_interface_is_named() {
        let namespace = lonely();
        let path = std::env::temp_dir().join(format!("ambit-none-{}.pcap", std::process::id()));
        let error = Capture::start(&namespace, "eth7", &path, LIMIT_BYTES).unwrap_err();
        assert!(error.to_string().contains("\"eth7\""), "{error}");
        assert!(!path.exists());
    }
}
