//! Which IP packets pass a link: a pure function of their headers.
//!
//! A node is known by its addresses, to control too: it accepts a node's token only from these. So
//! what comes from a joined machine must have its node's own addresses as source, and what goes to
//! it, as destination. The other end must be in the machine's networks. Both ends of a link look,
//! and neither relies on the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::addresses::{NodeNetwork, is_machine_address, is_service_address};

/// Length of an IPv4 header without options. With options there could be a route in it.
const V4_HEADER_BYTES: usize = 20;
/// Length of an IPv6 header.
const V6_HEADER_BYTES: usize = 40;
/// The header of a part of an IPv6 packet, its length, and where in it the part's place is.
const V6_PART: u8 = 44;
const V6_PART_BYTES: usize = 8;
const V6_PART_OFFSET: usize = 0xfff8;
/// Where in an IPv4 header a part's place is.
const V4_PART_OFFSET: u16 = 0x1fff;
/// What may follow the header of IPv6. What is left out: routes, options, and tunnels.
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;
const ICMP_V4: u8 = 1;
const ICMP_HEADER_BYTES: usize = 8;
/// Messages of ICMP that are about a packet: unreachable, source quench, redirect, time exceeded
/// and parameter problem (RFC 792).
const ICMP_V4_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// Those of ICMPv6 are below (RFC 4443).
const ICMP_V6_ASKS: u8 = 128;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the joined machine to home.
    Home,
    /// From home to the joined machine.
    Joined,
}

/// What passes the link of one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    pub(super) node: NodeNetwork,
}

impl Filter {
    /// Whether a packet passes.
    pub(super) fn passes(self, packet: &[u8], way: Way) -> bool {
        let Some(plain) = plain(packet) else { return false };
        let back = match way {
            Way::Home => Way::Joined,
            Way::Joined => Way::Home,
        };
        // An error speaks of a packet that came from where it goes to.
        let is_about_own = quoted(&plain).is_none_or(|ends| self.is_between(ends, back));
        self.is_between(plain.ends, way) && is_about_own
    }

    fn is_between(self, (source, destination): (IpAddr, IpAddr), way: Way) -> bool {
        let (own, other) = match way {
            Way::Home => (source, destination),
            Way::Joined => (destination, source),
        };
        self.node.owns(own) && self.is_elsewhere(other)
    }

    /// Whether it is an address of the machine beyond this node.
    fn is_elsewhere(self, ip: IpAddr) -> bool {
        // Each node translates services itself, before a packet leaves it.
        is_machine_address(ip) && !is_service_address(ip) && !self.node.owns(ip)
    }
}

/// A packet that is whole and plain: without options, routes and other headers between that of IP
/// and what it carries.
struct Plain<'a> {
    ends: (IpAddr, IpAddr),
    protocol: u8,
    /// It is not the first part of a packet: it begins amid what that carries.
    is_later_part: bool,
    payload: &'a [u8],
}

fn plain(packet: &[u8]) -> Option<Plain<'_>> {
    let ends = ends(packet)?;
    if packet[0] >> 4 == 4 {
        let part = u16::from_be_bytes([packet[6], packet[7]]) & V4_PART_OFFSET;
        let (protocol, payload) = (packet[9], &packet[V4_HEADER_BYTES..]);
        return Some(Plain { ends, protocol, is_later_part: part != 0, payload })
            .filter(|_| length_at(packet, 2) == Some(packet.len()));
    }
    let whole = length_at(packet, 4)? + V6_HEADER_BYTES == packet.len();
    let (mut protocol, mut payload) = (packet[6], &packet[V6_HEADER_BYTES..]);
    let mut is_later_part = false;
    if protocol == V6_PART {
        protocol = *payload.first()?;
        is_later_part = length_at(payload, 2)? & V6_PART_OFFSET != 0;
        payload = payload.get(V6_PART_BYTES..)?;
    }
    let is_plain = [TCP, UDP, ICMP_V6].contains(&protocol);
    Some(Plain { ends, protocol, is_later_part, payload }).filter(|_| whole && is_plain)
}

/// Source and destination of the packet that an ICMP error is about, as far as it is one. One that
/// cannot be read is from nobody.
fn quoted(plain: &Plain<'_>) -> Option<(IpAddr, IpAddr)> {
    let kind = *plain.payload.first().filter(|_| !plain.is_later_part)?;
    let is_error = match plain.protocol {
        ICMP_V4 => ICMP_V4_ERRORS.contains(&kind),
        ICMP_V6 => kind < ICMP_V6_ASKS,
        _ => false,
    };
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let ends = || ends(plain.payload.get(ICMP_HEADER_BYTES..)?);
    is_error.then(|| ends().unwrap_or((nobody, nobody)))
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 2)?;
    Some(usize::from(u16::from_be_bytes(bytes.try_into().ok()?)))
}

/// Source and destination of a packet with a header that is there and has no options.
fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? {
        0x45 if packet.len() >= V4_HEADER_BYTES => {
            let address = |at: usize| {
                let bytes: [u8; 4] = packet[at..at + 4].try_into().ok()?;
                Some(IpAddr::from(Ipv4Addr::from(bytes)))
            };
            Some((address(12)?, address(16)?))
        }
        first if first >> 4 == 6 && packet.len() >= V6_HEADER_BYTES => {
            let address = |at: usize| {
                let bytes: [u8; 16] = packet[at..at + 16].try_into().ok()?;
                Some(IpAddr::from(Ipv6Addr::from(bytes)))
            };
            Some((address(8)?, address(24)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(source: &str, destination: &str) -> Vec<u8> {
        let payload = b"anything";
        let ends: [IpAddr; 2] = [source, destination].map(|it| it.parse().expect("an address"));
        let mut packet = match ends[0] {
            IpAddr::V4(_) => {
                let mut header = vec![0x45, 0, 0, 0];
                header.extend([0; 8]);
                header
            }
            IpAddr::V6(_) => vec![0x60, 0, 0, 0, 0, 0, TCP, 64],
        };
        for end in ends {
            match end {
                IpAddr::V4(ip) => packet.extend(ip.octets()),
                IpAddr::V6(ip) => packet.extend(ip.octets()),
            }
        }
        packet.extend(payload);
        let at = if ends[0].is_ipv4() { 2 } else { 4 };
        let length = if at == 2 { packet.len() } else { payload.len() };
        packet[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        packet
    }

    #[track_caller]
    fn check(source: &str, destination: &str, way: Way, expected: bool) {
        let filter = Filter { node: NodeNetwork::new(3) };
        let passes = filter.passes(&packet(source, destination), way);
        assert_eq!(passes, expected, "{source} to {destination}, {way:?}");
    }

    #[test]
    fn a_joined_machine_speaks_for_its_own_node_alone() {
        for (source, destination, passes) in [
            ("172.18.0.13", "172.18.0.2", true),
            ("10.244.3.9", "10.244.1.2", true),
            ("10.244.3.9", "172.18.0.11", true),
            ("fd00:172:18::13", "fd00:172:18::2", true),
            ("fd00:10:244:3::9", "fd00:10:244:1::2", true),
            // Control, another node, its pod, the fabric, a service, the host's networks.
            ("172.18.0.2", "172.18.0.11", false),
            ("172.18.0.12", "172.18.0.2", false),
            ("10.244.1.2", "10.244.2.2", false),
            ("172.18.0.1", "172.18.0.2", false),
            ("10.96.0.10", "10.244.1.2", false),
            ("127.0.0.1", "172.18.0.2", false),
            ("fd00:10:244:1::9", "fd00:10:244:2::2", false),
            ("fe80::1", "fd00:172:18::2", false),
            ("::1", "fd00:172:18::2", false),
            // Nowhere else than to the machine.
            ("10.244.3.9", "10.96.0.10", false),
            ("10.244.3.9", "192.0.2.1", false),
            ("10.244.3.9", "127.0.0.1", false),
            ("10.244.3.9", "255.255.255.255", false),
            ("10.244.3.9", "224.0.0.1", false),
            ("10.244.3.9", "10.244.3.10", false),
            ("fd00:10:244:3::9", "ff02::1", false),
            ("fd00:10:244:3::9", "2001:db8::1", false),
        ] {
            check(source, destination, Way::Home, passes);
            check(destination, source, Way::Joined, passes);
        }
    }

    /// A packet of this protocol that carries these bytes.
    fn carrying(source: &str, destination: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = packet(source, destination);
        let (header, at) = match packet[0] >> 4 {
            4 => (V4_HEADER_BYTES, 2),
            _ => (V6_HEADER_BYTES, 4),
        };
        packet.truncate(header);
        packet[if at == 2 { 9 } else { 6 }] = protocol;
        packet.extend(payload);
        let length = if at == 2 { packet.len() } else { payload.len() };
        packet[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        packet
    }

    #[test]
    fn nothing_lies_between_ip_and_what_it_carries() {
        let passes = |protocol: u8, payload: &[u8]| {
            let packet = carrying("fd00:10:244:3::9", "fd00:10:244:1::2", protocol, payload);
            Filter { node: NodeNetwork::new(3) }.passes(&packet, Way::Home)
        };
        for protocol in 0..=255 {
            let is_plain = [TCP, UDP, ICMP_V6].contains(&protocol);
            assert_eq!(passes(protocol, &[128; 16]), is_plain, "{protocol}");
            // A part of a packet, and what it is a part of.
            let part = [&[protocol, 0, 0, 0][..], &[0; 12]].concat();
            assert_eq!(passes(V6_PART, &part), is_plain && protocol != ICMP_V6, "{protocol}");
        }
        assert!(!passes(V6_PART, &[TCP, 0, 0]), "a part without its header");
    }

    #[test]
    fn an_error_is_about_a_packet_that_came_there() {
        let check = |quoted: (&str, &str), expected: bool| {
            let error =
                |kind: u8| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &packet(quoted.0, quoted.1)].concat();
            let (from, to, icmp, kind) = match quoted.0.contains(':') {
                false => ("10.244.3.9", "10.244.1.2", ICMP_V4, 3),
                true => ("fd00:10:244:3::9", "fd00:10:244:1::2", ICMP_V6, 1),
            };
            let passes = |from: &str, to: &str, way: Way, kind: u8| {
                let packet = carrying(from, to, icmp, &error(kind));
                Filter { node: NodeNetwork::new(3) }.passes(&packet, way)
            };
            assert_eq!(passes(from, to, Way::Home, kind), expected, "{quoted:?}");
            assert!(passes(from, to, Way::Home, 129), "an answer is no error");
        };
        check(("10.244.1.2", "10.244.3.9"), true);
        check(("172.18.0.2", "10.244.3.7"), true);
        check(("172.18.0.2", "172.18.0.11"), false);
        check(("10.244.1.2", "10.244.2.2"), false);
        check(("fd00:10:244:1::2", "fd00:10:244:3::9"), true);
        check(("fd00:172:18::2", "fd00:172:18::11"), false);
        let cut = carrying("10.244.3.9", "10.244.1.2", ICMP_V4, &[3, 0, 0, 0]);
        assert!(!Filter { node: NodeNetwork::new(3) }.passes(&cut, Way::Home), "about nothing");
    }

    #[test]
    fn a_packet_is_whole_and_plain() {
        let filter = Filter { node: NodeNetwork::new(3) };
        let passes = |packet: &[u8]| filter.passes(packet, Way::Home);
        for whole in
            [packet("10.244.3.9", "10.244.1.2"), packet("fd00:10:244:3::9", "fd00:10:244:1::2")]
        {
            assert!(passes(&whole));
            assert!((0..whole.len()).all(|length| !passes(&whole[..length])), "cut off");
            let longer = [whole.as_slice(), b"x"].concat();
            assert!(!passes(&longer), "more than it says");
            for version in [0, 0x46, 0x4f, 0x50, 0xff] {
                let mut other = whole.clone();
                other[0] = version;
                assert!(!passes(&other), "{version:#x}");
            }
        }
    }
}
