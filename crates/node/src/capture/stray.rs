//! Attacks on capture with hand-made packets: each row tries one way past the redirects and then
//! connects from the same port. The application must never answer, and for the pod's own
//! connections neither must the server.
//!
//! The output of the tests is the table: `way, version, path, direction: result`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ambit_net::conntrack::Conntrack;
use ambit_net::namespace::NetNs;
use ambit_net::netlink::{Route, RouteSocket};
use ambit_net::nftables::{Chain, Family, Hook, Nftables, Priority, Rule, Table};
use ambit_net::socket::DialOptions;
use socket2::{Domain, Protocol, Socket, Type};

use super::rules::{Extent, INPUT_FILTER, IpVersion, LOOSE_PARAMETER, OUTPUT_FILTER, TABLE};
use super::{Occasion, remove_redirects};
use crate::pod::CaptureOptions;
use crate::testbed::{APP, Addresses, Client, Testbed, both, set_parameter};

const OPTIONS: CaptureOptions =
    CaptureOptions { dns: true, ipv6: true, bypass_inbound: false, cut_open: false };
/// Longest that an answer may take; a packet that is dropped has none.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Ports of the attacks, one each.
const FIRST_PORT: u16 = 20_000;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// TCP-MD5: a socket without a key drops such a segment and answers nothing.
const MD5: [u8; 20] = [1, 1, 19, 18, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
/// `MP_CAPABLE` of version 1 in a SYN.
const MP_CAPABLE: [u8; 4] = [30, 4, 1, 1];

/// Which filters are in place behind the redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// The filters and the strict start of connection tracking, as an agent leaves it.
    Both,
    /// Where the kernel parameter cannot be set.
    FiltersAlone,
    /// The redirects alone, as they were.
    Nothing,
}

/// One way past the redirects.
#[derive(Clone, Copy)]
enum Way {
    /// A segment with these flags, with these options and this much data.
    Segment(u8, &'static [u8], usize),
    /// A segment cut in two after so many bytes; the second begins so many bytes earlier.
    Fragments(usize, usize),
    /// A segment behind an extension header of IPv6.
    Extension(u8),
    /// An ICMP error about a segment that the pod never sent.
    Error,
    /// A segment whose checksum is wrong.
    BadChecksum,
}

const WAYS: [(&str, Way); 24] = [
    ("bare ACK", Way::Segment(ACK, &MD5, 0)),
    ("PSH+ACK with data", Way::Segment(PSH | ACK, &MD5, 10)),
    ("FIN+ACK", Way::Segment(FIN | ACK, &MD5, 0)),
    ("URG+ACK", Way::Segment(URG | ACK, &MD5, 1)),
    ("ACK+ECE+CWR", Way::Segment(ACK | ECE | CWR, &MD5, 0)),
    ("SYN+ACK first", Way::Segment(SYN | ACK, &MD5, 0)),
    ("RST first", Way::Segment(RST, &MD5, 0)),
    ("RST+ACK first", Way::Segment(RST | ACK, &MD5, 0)),
    ("no flag", Way::Segment(0, &MD5, 0)),
    ("every flag", Way::Segment(FIN | SYN | RST | PSH | ACK | URG, &MD5, 0)),
    ("FIN+PSH+URG", Way::Segment(FIN | PSH | URG, &MD5, 0)),
    ("SYN+RST", Way::Segment(SYN | RST, &MD5, 0)),
    ("SYN+FIN", Way::Segment(SYN | FIN, &MD5, 0)),
    ("SYN+ECE+CWR", Way::Segment(SYN | ECE | CWR, &MD5, 0)),
    ("SYN with data", Way::Segment(SYN, &MD5, 10)),
    ("SYN of MPTCP", Way::Segment(SYN, &MP_CAPABLE, 0)),
    ("ACK without MD5", Way::Segment(ACK, &[], 0)),
    ("first fragment without flags", Way::Fragments(8, 0)),
    ("overlapping fragments", Way::Fragments(16, 8)),
    ("hop-by-hop options", Way::Extension(HOP_BY_HOP)),
    ("destination options", Way::Extension(DESTINATION_OPTIONS)),
    ("fragment header alone", Way::Extension(FRAGMENT)),
    ("ICMP error about it", Way::Error),
    ("wrong checksum", Way::BadChecksum),
];

/// Sends packets with hand-made headers, from a namespace.
struct Wire(Socket);

impl Wire {
    fn open(netns: &NetNs, version: IpVersion) -> Self {
        let domain = if version == IpVersion::V6 { Domain::IPV6 } else { Domain::IPV4 };
        // IPPROTO_RAW: the header is ours.
        let open = || Socket::new(domain, Type::RAW, Some(Protocol::from(255)));
        Self(netns.run(open).expect("enter").expect("a raw socket"))
    }

    fn send(&self, to: IpAddr, packet: &[u8]) {
        let to = SocketAddr::new(to, 0);
        self.0.send_to(packet, &to.into()).expect("send");
    }

    /// Tries a way from one end to another.
    fn attack(&self, way: Way, from: SocketAddr, to: SocketAddr) {
        let segment = |flags, options: &[u8], data| segment(from, to, flags, options, data);
        let packet = |next, body: &[u8]| packet(from.ip(), to.ip(), next, body);
        let bare = || segment(ACK, &MD5, 0);
        match way {
            Way::Segment(flags, options, data) => {
                self.send(to.ip(), &packet(TCP, &segment(flags, options, data)));
            }
            Way::BadChecksum => {
                let mut bad = bare();
                bad[16] ^= 0x55;
                self.send(to.ip(), &packet(TCP, &bad));
            }
            Way::Extension(_) if to.is_ipv4() => {
                // The options of IPv4 in its place: four of no operation.
                let mut with_options = packet(TCP, &bare());
                with_options[0] = 0x46;
                with_options.splice(20..20, [1, 1, 1, 1]);
                self.send(to.ip(), &with_options);
            }
            Way::Extension(kind) => {
                let mut body = vec![TCP, 0, 1, 4, 0, 0, 0, 0];
                if kind == FRAGMENT {
                    body = vec![TCP, 0, 0, 0, 0, 0, 0, 9];
                }
                body.extend(bare());
                self.send(to.ip(), &packet(kind, &body));
            }
            Way::Fragments(cut, back) => {
                let whole = bare();
                self.send(to.ip(), &fragment(from.ip(), to.ip(), 0, true, &whole[..cut]));
                let at = cut - back;
                self.send(to.ip(), &fragment(from.ip(), to.ip(), at, false, &whole[at..]));
            }
            Way::Error => {
                // As if the pod had sent a segment that could not be delivered.
                let inner = super_packet(to, from);
                let (next, kind) = if to.is_ipv4() { (ICMP, 3) } else { (ICMP_V6, 1) };
                let mut body = vec![kind, 1, 0, 0, 0, 0, 0, 0];
                body.extend(inner);
                let pseudo = to.is_ipv6().then_some((from.ip(), to.ip(), next));
                let sum = checksum(pseudo, &body);
                body[2..4].copy_from_slice(&sum.to_be_bytes());
                self.send(to.ip(), &packet(next, &body));
            }
        }
    }
}

/// A whole packet with a bare ACK.
fn super_packet(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    packet(from.ip(), to.ip(), TCP, &segment(from, to, ACK, &MD5, 0))
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The Internet checksum, over a pseudo header where one is given.
fn checksum(pseudo: Option<(IpAddr, IpAddr, u8)>, body: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    if let Some((from, to, protocol)) = pseudo {
        bytes.extend(octets(from));
        bytes.extend(octets(to));
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
    }
    bytes.extend(body);
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn segment(from: SocketAddr, to: SocketAddr, flags: u8, options: &[u8], data: usize) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(1_000_u32.to_be_bytes());
    segment.extend(2_000_u32.to_be_bytes());
    let words = 5 + options.len() / 4;
    segment.extend([(words as u8) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(options);
    segment.resize(segment.len() + data, b'x');
    let sum = checksum(Some((from.ip(), to.ip(), TCP)), &segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

fn packet(from: IpAddr, to: IpAddr, next: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = if from.is_ipv4() {
        // The kernel fills in length and checksum of what is sent; what is quoted needs neither.
        let length = (20 + body.len()) as u16;
        let [high, low] = length.to_be_bytes();
        vec![0x45, 0, high, low, 0, 0, 0, 0, 64, next, 0, 0]
    } else {
        let [high, low] = (body.len() as u16).to_be_bytes();
        vec![0x60, 0, 0, 0, high, low, next, 64]
    };
    packet.extend(octets(from));
    packet.extend(octets(to));
    packet.extend(body);
    packet
}

/// A part of a segment; offsets are multiples of eight bytes.
fn fragment(from: IpAddr, to: IpAddr, at: usize, more: bool, part: &[u8]) -> Vec<u8> {
    if from.is_ipv4() {
        let mut packet = packet(from, to, TCP, part);
        let field = (at / 8) as u16 | if more { 0x2000 } else { 0 };
        packet[4..6].copy_from_slice(&77_u16.to_be_bytes());
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        return packet;
    }
    let [high, low] = (at as u16 | u16::from(more)).to_be_bytes();
    let mut body = vec![TCP, 0, high, low, 0, 0, 0, 77];
    body.extend(part);
    packet(from, to, FRAGMENT, &body)
}

/// Who attacks, and from where.
struct Attacker {
    netns: Arc<NetNs>,
    path: &'static str,
    addresses: [IpAddr; 2],
}

impl Attacker {
    fn address(&self, version: IpVersion) -> IpAddr {
        self.addresses[usize::from(version == IpVersion::V6)]
    }

    /// On the pod's own link.
    fn beside(bed: &Testbed) -> Self {
        let [v4, v6] = both();
        Self { netns: bed.node.clone(), path: "direct", addresses: [v4.node, v6.node] }
    }

    /// Behind a node that forwards, with masquerade.
    fn behind_nat(bed: &Testbed) -> Self {
        let netns = NetNs::create().expect("a namespace");
        for name in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            set_parameter(&bed.node, name, "1");
        }
        let mut at_node = RouteSocket::open_in(&bed.node).expect("rtnetlink");
        let mut at_client = RouteSocket::open_in(&netns).expect("rtnetlink");
        at_node.ensure_veth("far", "eth0", Some(&netns)).expect("veth");
        at_node.set_up("far").expect("up");
        at_client.set_up("eth0").expect("up");
        let table = [
            ("10.250.1.1/24", "10.250.1.9/24", "0.0.0.0/0"),
            ("fd00:10:250::1/64", "fd00:10:250::9/64", "::/0"),
        ];
        let addresses = table.map(|(gateway, own, everything)| {
            let net = |text: &str| text.parse::<ipnet::IpNet>().expect("literal");
            at_node.ensure_address("far", net(gateway)).expect("address");
            at_client.ensure_address("eth0", net(own)).expect("address");
            let route = Route {
                link: Some("eth0".to_owned()),
                ..Route::via(net(everything), net(gateway).addr())
            };
            at_client.ensure_route(&route).expect("route");
            net(own).addr()
        });
        let masquerade = |family| {
            let rule = Rule::new("masquerade").out_interface("veth0").masquerade();
            let chain = Chain::nat("post", Hook::Postrouting, Priority::SOURCE_NAT).rule(rule);
            Table::new(family, "nat-of-node").chain(chain)
        };
        let mut nftables = Nftables::open_in(&bed.node).expect("nftables");
        nftables.replace(&[masquerade(Family::Ip), masquerade(Family::Ip6)]).expect("nat");
        Self { netns: Arc::new(netns), path: "masqueraded", addresses }
    }
}

/// A captured pod with so much behind its redirects.
fn captured(behind: Behind) -> Testbed {
    let mut bed = Testbed::new();
    bed.proxy_listens();
    bed.pod_listens("app", APP, None);
    let node = bed.node.clone();
    for addresses in both() {
        bed.listen(&node, "server", SocketAddr::new(addresses.remote, APP), None);
    }
    enrol(&bed, behind);
    bed
}

fn enrol(bed: &Testbed, behind: Behind) {
    super::program(&bed.pod, OPTIONS, Extent::Full, Occasion::Enrolment).expect("program");
    if behind != Behind::Both {
        set_parameter(&bed.pod, LOOSE_PARAMETER, "1");
    }
    if behind == Behind::Nothing {
        let mut nftables = Nftables::open_in(&bed.pod).expect("nftables");
        for family in [Family::Ip, Family::Ip6] {
            let filters = [INPUT_FILTER, OUTPUT_FILTER];
            nftables.delete_chains(family, &[TABLE], &filters).expect("delete");
        }
    }
}

/// Connects from that port; returns the tag of the server that answers, or the client's error.
async fn answers(netns: &NetNs, from: SocketAddr, to: SocketAddr) -> String {
    let options = DialOptions { source: Some(from), ..DialOptions::default() };
    let connect = Client::connect(netns, to, &options);
    match tokio::time::timeout(PATIENCE, connect).await {
        Ok(Ok(client)) => client.greeting.split(' ').next().unwrap_or_default().to_owned(),
        Ok(Err(error)) => error,
        Err(_) => "no answer".to_owned(),
    }
}

/// Connects from each port and prints who answers; says how many reached `forbidden`.
async fn count(
    rows: Vec<(String, Arc<NetNs>, SocketAddr, SocketAddr)>,
    forbidden: &'static str,
) -> usize {
    let connects = rows.into_iter().map(|(name, netns, from, to)| async move {
        let answer = answers(&netns, from, to).await;
        (name, answer)
    });
    let mut past = 0;
    for (name, answer) in futures::future::join_all(connects).await {
        println!("{name}: {answer}");
        past += usize::from(answer == forbidden);
    }
    past
}

/// Every way in, from these attackers; says how many reached the application.
async fn inbound(attackers: &[Attacker]) -> usize {
    let mut rows = Vec::new();
    let mut port = FIRST_PORT;
    for attacker in attackers {
        for Addresses { version, pod, .. } in both() {
            let wire = Wire::open(&attacker.netns, version);
            for (name, way) in WAYS {
                port += 1;
                let from = SocketAddr::new(attacker.address(version), port);
                let to = SocketAddr::new(pod, APP);
                wire.attack(way, from, to);
                let name = format!("{name}, {version:?}, {}, inbound", attacker.path);
                rows.push((name, attacker.netns.clone(), from, to));
            }
        }
    }
    count(rows, "app").await
}

/// A server that sends first, and the pod that connects to it from the port it was sent to.
async fn outbound(bed: &Testbed) -> usize {
    let mut rows = Vec::new();
    let mut port = FIRST_PORT;
    for Addresses { version, pod, remote, .. } in both() {
        let wire = Wire::open(&bed.node, version);
        for (name, way) in WAYS {
            port += 1;
            let (server, own) = (SocketAddr::new(remote, APP), SocketAddr::new(pod, port));
            wire.attack(way, server, own);
            let name = format!("{name} of the server, {version:?}, direct, outbound");
            rows.push((name, bed.pod.clone(), own, server));
        }
    }
    count(rows, "server").await
}

#[tokio::test]
async fn no_stray_packet_opens_a_way_in() {
    for behind in [Behind::Nothing, Behind::FiltersAlone, Behind::Both] {
        let bed = captured(behind);
        println!("behind the redirects: {behind:?}");
        let attackers = [Attacker::beside(&bed), Attacker::behind_nat(&bed)];
        let past = inbound(&attackers).await;
        println!("{past} of {} ways in reached the application", WAYS.len() * 4);
        match behind {
            Behind::Nothing => assert!(past > 0, "the bench must be able to see a way"),
            Behind::FiltersAlone | Behind::Both => assert_eq!(past, 0, "{behind:?}"),
        }
    }
}

/// Destinations that a captured pod does not have. Some of them its applications listen at.
fn not_of_the_pod(version: IpVersion) -> Vec<IpAddr> {
    let texts: &[&str] = match version {
        IpVersion::V4 => &[
            "0.0.0.0",
            "127.0.0.2",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "10.244.1.255",
            "10.244.1.77",
            "203.0.113.9",
        ],
        IpVersion::V6 => &[
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "ff02::1",
            "fe80::77",
            "fd00:10:244:1::77",
            "2001:db8:9::9",
            "fd16:9254:7127:1338::7f00:1",
        ],
    };
    texts.iter().map(|text| text.parse().expect("literal")).collect()
}

/// Sends a SYN to each destination, in frames to the pod; those that somebody there took up. The
/// pod's own address comes last: when that is taken up, the others were received before it.
async fn taken_up(bed: &Testbed, addresses: Addresses) -> Vec<IpAddr> {
    let Addresses { version, pod, node, client, .. } = addresses;
    let mut routes = RouteSocket::open_in(&bed.node).expect("rtnetlink");
    let to_pod = Route { link: Some("veth0".to_owned()), ..Route::via(client.into(), pod) };
    routes.ensure_route(&to_pod).expect("route");
    let wire = Wire::open(&bed.node, version);
    let destinations = not_of_the_pod(version).into_iter().chain([pod]);
    let rows: Vec<_> =
        (FIRST_PORT..).map(|port| SocketAddr::new(node, port)).zip(destinations).collect();
    for (from, to) in &rows {
        let segment = segment(*from, SocketAddr::new(*to, APP), SYN, &[], 0);
        // Sent where the route is, whatever the header says.
        wire.send(client, &packet(from.ip(), *to, TCP, &segment));
    }
    let mut conntrack = Conntrack::open_in(&bed.pod).expect("conntrack");
    let mut taken = |from: SocketAddr| {
        conntrack.delete_matching(|entry| entry.original.source == from).expect("delete") > 0
    };
    let own = rows.last().expect("the pod's own").0;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !taken(own) {
        assert!(tokio::time::Instant::now() < deadline, "the bench must be able to see one");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut found = Vec::new();
    for (from, to) in &rows[..rows.len() - 1] {
        // What is dropped leaves no entry; what a listener answers does.
        let taken = taken(*from);
        println!("{version:?}, to {to}: {}", if taken { "taken up" } else { "dropped" });
        found.extend(taken.then_some(*to));
    }
    found
}

#[tokio::test]
async fn what_is_sent_to_an_address_that_the_pod_does_not_have_is_dropped() {
    for behind in [Behind::Nothing, Behind::FiltersAlone, Behind::Both] {
        let bed = captured(behind);
        println!("behind the redirects: {behind:?}");
        let mut taken = Vec::new();
        for addresses in both() {
            taken.extend(taken_up(&bed, addresses).await);
        }
        match behind {
            // The kernel delivers groups, and IPv6 where outbound connections arrive.
            Behind::Nothing => assert!(!taken.is_empty(), "the bench must be able to see one"),
            Behind::FiltersAlone | Behind::Both => assert_eq!(taken, Vec::<IpAddr>::new()),
        }
    }
}

#[tokio::test]
async fn no_stray_packet_opens_a_way_out() {
    for behind in [Behind::Nothing, Behind::FiltersAlone, Behind::Both] {
        let bed = captured(behind);
        println!("behind the redirects: {behind:?}");
        let past = outbound(&bed).await;
        println!("{past} of {} ways out reached the server", WAYS.len() * 2);
        match behind {
            Behind::Nothing => assert!(past > 0, "the bench must be able to see a way"),
            Behind::FiltersAlone | Behind::Both => assert_eq!(past, 0, "{behind:?}"),
        }
    }
}

#[tokio::test]
async fn entries_left_from_before_enrolment_lead_nowhere() {
    for behind in [Behind::Nothing, Behind::Both] {
        let bed = captured(Behind::Nothing);
        remove_redirects(&bed.pod).expect("release");
        set_parameter(&bed.pod, LOOSE_PARAMETER, "1");
        let mut rows = Vec::new();
        for (index, Addresses { version, pod, node, .. }) in both().into_iter().enumerate() {
            let wire = Wire::open(&bed.node, version);
            let from = SocketAddr::new(node, FIRST_PORT + index as u16);
            let to = SocketAddr::new(pod, APP);
            wire.attack(Way::Segment(ACK, &MD5, 0), from, to);
            let name = format!("stray ACK before enrolment, {version:?}, direct, inbound");
            rows.push((name, bed.node.clone(), from, to));
        }
        println!("behind the redirects: {behind:?}");
        if behind == Behind::Nothing {
            // As an agent did that neither looked for entries nor filtered.
            let uplink = super::Uplink::Named("eth0".to_owned());
            let tables = [IpVersion::V4, IpVersion::V6].map(|version| {
                let filter = super::Filter::FirstPackets;
                super::rules::table(version, OPTIONS, Extent::Full, &uplink, &filter)
            });
            let mut nftables = Nftables::open_in(&bed.pod).expect("nftables");
            nftables.replace(&tables).expect("the redirects");
            for family in [Family::Ip, Family::Ip6] {
                let filters = [INPUT_FILTER, OUTPUT_FILTER];
                nftables.delete_chains(family, &[TABLE], &filters).expect("delete");
            }
        } else {
            enrol(&bed, behind);
        }
        let expected = if behind == Behind::Nothing { 2 } else { 0 };
        assert_eq!(count(rows, "app").await, expected, "{behind:?}");
    }
}

#[tokio::test]
async fn an_entry_that_expired_and_a_port_that_was_used_lead_nowhere() {
    for behind in [Behind::Nothing, Behind::FiltersAlone, Behind::Both] {
        let bed = captured(behind);
        println!("behind the redirects: {behind:?}");
        let (mut inward, mut outward) = (Vec::new(), Vec::new());
        for (index, Addresses { version, pod, node, remote, .. }) in both().into_iter().enumerate()
        {
            let from = SocketAddr::new(node, FIRST_PORT + index as u16);
            let to = SocketAddr::new(pod, APP);
            let connect = |netns: &NetNs, from, to| {
                let options = DialOptions { source: Some(from), ..DialOptions::default() };
                let netns = netns.try_clone().expect("a descriptor");
                async move { Client::connect(&netns, to, &options).await.expect("captured") }
            };
            let client = connect(&bed.node, from, to).await;
            // What is left of an entry when its time is over.
            let mut conntrack = Conntrack::open_in(&bed.pod).expect("conntrack");
            let expired = conntrack.delete_matching(|entry| entry.original.source == from);
            assert_eq!(expired.expect("delete"), 1);
            client.reset();
            let wire = Wire::open(&bed.node, version);
            wire.attack(Way::Segment(ACK, &MD5, 0), from, to);
            let name = format!("expired entry, then ACK, {version:?}, direct, inbound");
            inward.push((name, bed.node.clone(), from, to));

            let own = SocketAddr::new(pod, FIRST_PORT + index as u16);
            let server = SocketAddr::new(remote, APP);
            connect(&bed.pod, own, server).await.reset();
            wire.attack(Way::Segment(ACK, &MD5, 0), server, own);
            let name = format!("port used again, then ACK, {version:?}, direct, outbound");
            outward.push((name, bed.pod.clone(), own, server));
        }
        let past = count(inward, "app").await + count(outward, "server").await;
        println!("{past} of 4 were reached");
        if behind != Behind::Nothing {
            assert_eq!(past, 0, "{behind:?}");
        }
    }
}
