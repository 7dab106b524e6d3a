//! The machine's address plan: pure arithmetic from a node's number to its networks.
//!
//! Every program of the machine derives the same addresses, so none has to ask another. It must
//! never look at the host: the machine's networks exist only in its own namespaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Most nodes of one machine: a node's number is an octet of its addresses.
pub(crate) const NODES_MAX: u8 = 200;
/// First pod number on a node; 0 is the network, 1 the gateway.
pub(crate) const POD_FIRST: u8 = 2;
/// Last pod number on a node.
pub(crate) const POD_LAST: u8 = 254;

/// The control plane's addresses on the fabric.
pub(crate) const CONTROL: Dual = Dual {
    v4: Ipv4Addr::new(172, 18, 0, 2),
    v6: Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, 2),
};
/// The fabric bridge's own addresses.
pub(crate) const FABRIC: Dual = Dual {
    v4: Ipv4Addr::new(172, 18, 0, 1),
    v6: Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, 1),
};
/// Prefix lengths of the fabric.
pub(crate) const FABRIC_PREFIX: (u8, u8) = (24, 64);
/// Prefix lengths of a node's pod network.
pub(crate) const POD_PREFIX: (u8, u8) = (24, 64);
/// Cluster DNS.
pub(crate) const DNS: Dual = Dual {
    v4: Ipv4Addr::new(10, 96, 0, 10),
    v6: Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0xa),
};
/// Number of the first allocated service address; those below are kept for well-known services.
const SERVICE_FIRST: u16 = 0x0100;

/// Every network that is the machine's own, whichever nodes it has. A network outside that has the
/// same addresses is hidden from the machine.
pub(crate) fn own_networks() -> [IpNet; 6] {
    [
        "10.244.0.0/16",
        "fd00:10:244::/48",
        "10.96.0.0/16",
        "fd00:10:96::/112",
        "172.18.0.0/24",
        "fd00:172:18::/64",
    ]
    .map(|network| network.parse().expect("a literal network"))
}

/// Whether an address belongs to a pod of any node.
pub fn is_pod_address(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..2] == [10, 244],
        IpAddr::V6(ip) => ip.segments()[..3] == [0xfd00, 0x10, 0x244],
    }
}

/// Whether an address is in one of the machine's networks: the fabric, pods and services.
pub(crate) fn is_machine_address(ip: IpAddr) -> bool {
    let is_of_fabric = match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == FABRIC.v4.octets()[..3],
        IpAddr::V6(ip) => ip.segments()[..4] == FABRIC.v6.segments()[..4],
    };
    is_of_fabric || is_pod_address(ip) || is_service_address(ip)
}

/// Whether an address is in the networks of services.
pub(crate) fn is_service_address(ip: IpAddr) -> bool {
    service_number(ip).is_some() || service(0).both().contains(&ip)
}

/// An IPv4 and an IPv6 address of the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dual {
    /// The IPv4 address.
    pub v4: Ipv4Addr,
    /// The IPv6 address.
    pub v6: Ipv6Addr,
}

impl Dual {
    /// Both, IPv4 first.
    pub fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

/// The networks of one node, by its number, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeNetwork {
    number: u8,
}

impl NodeNetwork {
    /// The networks of the node with this number.
    pub fn new(number: u8) -> Self {
        debug_assert!((1..=NODES_MAX).contains(&number), "node numbers are octets");
        Self { number }
    }

    /// The networks of the node with this name (`node-3`).
    pub fn of_name(name: &str) -> Option<Self> {
        let number = name.strip_prefix("node-")?.parse().ok()?;
        (1..=NODES_MAX).contains(&number).then(|| Self::new(number))
    }

    /// Its number.
    pub(crate) fn number(self) -> u8 {
        self.number
    }

    /// The node's name.
    pub fn name(self) -> String {
        format!("node-{}", self.number)
    }

    /// The node's addresses on the fabric.
    pub(crate) fn fabric(self) -> Dual {
        let last = 10 + self.number;
        Dual {
            v4: Ipv4Addr::new(172, 18, 0, last),
            // Written as in 172.18.0.N: the hexadecimal digits read like the decimal octet.
            v6: format!("fd00:172:18::{last}")
                .parse()
                .expect("decimal digits are hexadecimal digits"),
        }
    }

    /// The network addresses of the node's pods.
    pub(crate) fn pods(self) -> Dual {
        self.pod(0)
    }

    /// The pods' gateway: the node's bridge.
    pub fn gateway(self) -> Dual {
        self.pod(1)
    }

    /// The addresses of the pod with this number.
    pub fn pod(self, pod: u8) -> Dual {
        Dual {
            v4: Ipv4Addr::new(10, 244, self.number, pod),
            v6: format!("fd00:10:244:{}::{pod:x}", self.number)
                .parse()
                .expect("decimal digits are hexadecimal digits"),
        }
    }

    /// The number of the pod with this address, if it is one of this node's.
    pub(crate) fn pod_number(self, address: IpAddr) -> Option<u8> {
        let last = match address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => address.octets()[15],
        };
        let pod = self.pod(last);
        (POD_FIRST..=POD_LAST)
            .contains(&last)
            .then_some(last)
            .filter(|_| pod.both().contains(&address))
    }

    /// Whether an address is the node's own on the fabric, or in its pod networks.
    pub(crate) fn owns(self, ip: IpAddr) -> bool {
        let pods = self.pods();
        let is_of_pods = match ip {
            IpAddr::V4(ip) => ip.octets()[..3] == pods.v4.octets()[..3],
            IpAddr::V6(ip) => ip.segments()[..4] == pods.v6.segments()[..4],
        };
        is_of_pods || self.fabric().both().contains(&ip)
    }

    /// The pod networks as Kubernetes writes them.
    pub(crate) fn pod_cidrs(self) -> [String; 2] {
        let pods = self.pods();
        [format!("{}/{}", pods.v4, POD_PREFIX.0), format!("{}/{}", pods.v6, POD_PREFIX.1)]
    }
}

/// The service addresses with this number.
pub(crate) fn service(number: u16) -> Dual {
    let [high, low] = number.to_be_bytes();
    Dual {
        v4: Ipv4Addr::new(10, 96, high, low),
        v6: Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, number),
    }
}

/// The numbers that services are given, in order.
pub(crate) fn service_numbers() -> impl Iterator<Item = u16> {
    SERVICE_FIRST..u16::MAX
}

/// The number of a service address, if it is inside the service networks.
pub(crate) fn service_number(address: IpAddr) -> Option<u16> {
    let number = match address {
        IpAddr::V4(address) => u16::from_be_bytes([address.octets()[2], address.octets()[3]]),
        IpAddr::V6(address) => address.segments()[7],
    };
    (number != 0 && service(number).both().contains(&address)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_plan() {
        let node = NodeNetwork::new(2);
        assert_eq!(node.name(), "node-2");
        assert_eq!(node.fabric().v4.to_string(), "172.18.0.12");
        assert_eq!(node.fabric().v6.to_string(), "fd00:172:18::12");
        assert_eq!(node.pod_cidrs(), ["10.244.2.0/24", "fd00:10:244:2::/64"]);
        assert_eq!(node.pod(10).v6.to_string(), "fd00:10:244:2::a");
        assert_eq!(DNS, service(10));
    }

    #[test]
    fn networks_are_told_apart() {
        let node = NodeNetwork::new(2);
        let check = |ip: &str, is_machines: bool, is_services: bool, is_nodes: bool| {
            let ip = ip.parse().unwrap();
            let found = (is_machine_address(ip), is_service_address(ip), node.owns(ip));
            assert_eq!(found, (is_machines, is_services, is_nodes), "{ip}");
        };
        check("172.18.0.12", true, false, true);
        check("172.18.0.13", true, false, false);
        check("172.18.1.12", false, false, false);
        check("10.244.2.200", true, false, true);
        check("10.244.3.2", true, false, false);
        check("10.96.0.10", true, true, false);
        check("10.97.0.10", false, false, false);
        check("fd00:172:18::12", true, false, true);
        check("fd00:172:18:1::12", false, false, false);
        check("fd00:10:244:2::9", true, false, true);
        check("fd00:10:96::a", true, true, false);
        check("::ffff:10.244.2.2", false, false, false);
    }

    #[test]
    fn every_address_is_in_an_own_network() {
        let node = NodeNetwork::new(NODES_MAX);
        let all = [node.pod(POD_LAST), node.gateway(), node.fabric(), CONTROL, FABRIC, DNS];
        for address in all.into_iter().chain([service(u16::MAX)]).flat_map(Dual::both) {
            assert!(own_networks().iter().any(|it| it.contains(&address)), "{address}");
        }
    }

    #[test]
    fn numbers_come_back_from_addresses() {
        let node = NodeNetwork::new(12);
        for pod in [POD_FIRST, 77, POD_LAST] {
            for address in node.pod(pod).both() {
                assert_eq!(node.pod_number(address), Some(pod));
                assert_eq!(NodeNetwork::new(13).pod_number(address), None);
            }
        }
        assert_eq!(node.pod_number(node.gateway().v4.into()), None);
        for address in service(0x1234).both() {
            assert_eq!(service_number(address), Some(0x1234));
        }
        assert_eq!(service_number("10.97.0.1".parse().unwrap()), None);
        assert_eq!(NodeNetwork::of_name("node-0"), None);
        assert_eq!(NodeNetwork::of_name("node-12"), Some(node));
    }
}
