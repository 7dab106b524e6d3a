//! What chains on bridges and devices see of a frame, with an attacker's frames.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use super::{Chain, Family, Hook, Nftables, Priority, Rule, Table};
use crate::namespace::NetNs;
use crate::netlink::RouteSocket;
use crate::sys::packet_socket;

const FORGED: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 6);
const PORT: u16 = 9999;
/// EtherTypes of tags.
const CUSTOMER: u16 = 0x8100;
const SERVICE: u16 = 0x88a8;

/// Two pods on one bridge.
struct Bed {
    node: NetNs,
    attacker: NetNs,
    victim: UdpSocket,
    /// Hardware addresses of victim and attacker.
    macs: [[u8; 6]; 2],
}

impl Bed {
    fn new() -> Self {
        let node = NetNs::create().expect("a namespace (needs root)");
        let mut at_node = RouteSocket::open_in(&node).expect("rtnetlink");
        at_node.ensure_bridge("pods").expect("bridge");
        at_node.set_up("pods").expect("up");
        let [attacker, victim] = ["10.244.1.5/24", "10.244.1.6/24"].map(|address| {
            let pod = NetNs::create().expect("a namespace");
            let mut at_pod = RouteSocket::open_in(&pod).expect("rtnetlink");
            let port = if address.contains(".5/") { "attacker" } else { "victim" };
            at_node.ensure_veth(port, "eth0", Some(&pod)).expect("veth");
            at_node.set_master(port, "pods").expect("port");
            at_node.set_up(port).expect("up");
            at_pod.set_up("lo").expect("up");
            at_pod.set_up("eth0").expect("up");
            at_pod.ensure_address("eth0", address.parse().expect("literal")).expect("address");
            let link = at_pod.link("eth0").expect("rtnetlink").expect("there");
            (pod, link.mac)
        });
        let macs = [victim.1, attacker.1];
        let victim = victim.0.run(|| UdpSocket::bind((VICTIM, PORT))).expect("enter");
        let victim = victim.expect("bound");
        victim.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        Self { node, attacker: attacker.0, victim, macs }
    }

    /// Whether a datagram from the forged address arrives in these tags, outermost first.
    fn arrives(&self, tags: &[(u16, u16)]) -> bool {
        let mut frame = self.macs.concat();
        for (kind, vlan) in tags {
            frame.extend([kind.to_be_bytes(), vlan.to_be_bytes()].concat());
        }
        frame.extend(0x0800_u16.to_be_bytes());
        frame.extend(datagram());
        let send = || {
            let index = RouteSocket::open().expect("rtnetlink").link("eth0").expect("rtnetlink");
            let socket = packet_socket::open(index.expect("there").index)?;
            packet_socket::send(&socket, &frame)
        };
        assert_eq!(self.attacker.run(send).expect("enter").expect("sent"), frame.len());
        match self.victim.recv(&mut [0; 64]) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// IPv4 and UDP; a checksum of 0 is none.
fn datagram() -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0];
    header.extend(FORGED.octets());
    header.extend(VICTIM.octets());
    let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from(folded).expect("twice sixteen bits, folded, of ten words");
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut udp = [1234, PORT, 12, 0].map(u16::to_be_bytes).concat();
    udp.extend(*b"ping");
    header.extend(udp);
    header
}

#[test]
fn tags_within_tags_hide_an_address_unless_they_are_dropped() {
    let bed = Bed::new();
    let hiding: [&[(u16, u16)]; 6] = [
        &[(CUSTOMER, 0), (CUSTOMER, 0)],
        &[(SERVICE, 0), (CUSTOMER, 0)],
        &[(CUSTOMER, 0), (SERVICE, 0)],
        &[(CUSTOMER, 0), (CUSTOMER, 0), (CUSTOMER, 0)],
        // Priority and drop eligibility in the tag.
        &[(CUSTOMER, 0xf000), (CUSTOMER, 0x7000)],
        &[(SERVICE, 0), (SERVICE, 0), (CUSTOMER, 0)],
    ];
    let told: [&[(u16, u16)]; 3] = [&[], &[(CUSTOMER, 0)], &[(SERVICE, 0)]];
    for tags in told.iter().chain(&hiding) {
        assert!(bed.arrives(tags), "{tags:?}: without rules");
    }
    let forged = Rule::new("forged").ipv4().source(FORGED_NET.parse().expect("literal")).drop();
    let hidden = [false, true].map(|service| Rule::new("hidden").nested_tag(service, 0).drop());
    let in_bridge = Chain::filter("in", Hook::Prerouting, Priority::RAW);
    let at_port = Chain::ingress("attacker", Priority::RAW);
    for (family, chain) in [(Family::Bridge, in_bridge), (Family::Netdev, at_port)] {
        let mut kernel = Nftables::open_in(&bed.node).expect("nftables");
        let only_forged = Table::new(family, "test").chain(chain.clone().rule(forged.clone()));
        kernel.replace(&[only_forged]).expect("written");
        for tags in told {
            assert!(!bed.arrives(tags), "{family:?} {tags:?}");
        }
        for tags in hiding {
            assert!(bed.arrives(tags), "{family:?} {tags:?}: the address alone does not tell");
        }
        let chain = chain.rule(forged.clone()).rules(hidden.clone());
        let both = Table::new(family, "test").chain(chain);
        kernel.replace(std::slice::from_ref(&both)).expect("written");
        assert_eq!(kernel.verify(&both).expect("listed"), [], "{family:?}");
        for tags in told.iter().chain(&hiding) {
            assert!(!bed.arrives(tags), "{family:?} {tags:?}");
        }
        assert!(kernel.delete(family, "test").expect("deleted"));
    }
}

const FORGED_NET: &str = "169.254.7.127/32";

#[test]
fn a_chain_of_a_device_goes_with_it_and_is_missed() {
    let bed = Bed::new();
    let mut kernel = Nftables::open_in(&bed.node).expect("nftables");
    let table = |ports: &[&str]| {
        let chains = ports.iter().map(|port| Chain::ingress(port, Priority::RAW));
        Table::new(Family::Netdev, "test").chains(chains)
    };
    let both = table(&["attacker", "victim"]);
    kernel.replace(std::slice::from_ref(&both)).expect("written");
    assert_eq!(kernel.verify(&both).expect("listed"), []);
    assert_ne!(kernel.verify(&table(&["attacker"])).expect("listed"), [], "one too many");
    let error = kernel.replace(&[Table::new(Family::Bridge, "test").chain(Chain::nat(
        "there-is-no-such-kind-for-bridges",
        Hook::Prerouting,
        Priority::RAW,
    ))]);
    assert!(error.expect_err("refused").is_not_found(), "how a kernel without a kind answers");
    RouteSocket::open_in(&bed.node).expect("rtnetlink").delete_link("victim").expect("deleted");
    let left = table(&["attacker"]);
    kernel.replace(std::slice::from_ref(&left)).expect("written again");
    assert_eq!(kernel.verify(&left).expect("listed"), []);
}
