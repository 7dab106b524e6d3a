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
        let Some((source, destination)) = ends(packet) else { return false };
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

/// Source and destination of a packet, if it is whole and plain.
fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let length =
        |at: usize| Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    match packet.first()? {
        0x45 if packet.len() >= V4_HEADER_BYTES && length(2)? == packet.len() => {
            let address = |at: usize| {
                let bytes: [u8; 4] = packet[at..at + 4].try_into().ok()?;
                Some(IpAddr::from(Ipv4Addr::from(bytes)))
            };
            Some((address(12)?, address(16)?))
        }
        first
            if first >> 4 == 6
                && packet.len() >= V6_HEADER_BYTES
                && length(4)? + V6_HEADER_BYTES == packet.len() =>
        {
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
            IpAddr::V6(_) => vec![0x60, 0, 0, 0, 0, 0, 6, 64],
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
