//! Which addresses pods may connect to: a pure judgement.
//!
//! The host's own loopback and link-local addresses are never among them, whatever the user allows:
//! a pod would pass for a program of the host there.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::addresses::own_networks;

/// Most networks that can be named.
const NETWORKS_MAX: usize = 64;
/// Where clouds tell a virtual machine its secrets over IPv6; over IPv4 the address is link-local.
const METADATA: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// The networks outside of the machine that its pods may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Egress {
    networks: Vec<IpNet>,
}

/// What names no networks.
#[derive(Debug, thiserror::Error)]
#[error("{written:?}: {what}; write networks as in 10.0.0.0/8,192.0.2.7/32,2001:db8::/32")]
pub struct EgressError {
    written: String,
    what: &'static str,
}

impl Egress {
    /// Everything that can be reached at all, as a flag without a value means it.
    pub const EVERYWHERE: &str = "0.0.0.0/0,::/0";

    /// Why nothing may be sent to this address; `None` if it may.
    pub(super) fn refusal(&self, ip: IpAddr) -> Option<&'static str> {
        let is_own = own_networks().iter().any(|network| network.contains(&ip.to_canonical()));
        let own = is_own.then_some("it is one of the machine's own networks");
        own.or_else(|| self.refusal_of_cluster(ip))
    }

    /// The same for a machine that carries a workload of a cluster, whose networks may have the
    /// addresses of the machine's own.
    pub(super) fn refusal_of_cluster(&self, ip: IpAddr) -> Option<&'static str> {
        let ip = ip.to_canonical();
        let is_allowed = self.networks.iter().any(|network| network.contains(&ip));
        never(ip).or_else(|| (!is_allowed).then_some("--egress does not name it"))
    }
}

/// Why nothing is ever sent to this address from a machine.
fn never(ip: IpAddr) -> Option<&'static str> {
    let (is_loopback, is_link_local, is_any) = match ip {
        IpAddr::V4(v4) => {
            let is_any = v4.octets()[0] == 0 || v4.is_broadcast();
            (v4.is_loopback(), v4.is_link_local(), is_any)
        }
        IpAddr::V6(v6) => {
            let is_link_local = v6.is_unicast_link_local() || METADATA.contains(&v6);
            // Also an IPv4 address in the old form `::a.b.c.d`.
            let is_any = v6.segments()[..6] == [0; 6] && !v6.is_loopback();
            (v6.is_loopback(), is_link_local, is_any)
        }
    };
    if is_loopback {
        Some("it is the host's loopback")
    } else if is_link_local {
        Some("it is link-local or a cloud's metadata service")
    } else if is_any || ip.is_multicast() {
        Some("it is not the address of one host")
    } else {
        None
    }
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks: Vec<String> = self.networks.iter().map(IpNet::to_string).collect();
        f.write_str(&networks.join(","))
    }
}

impl FromStr for Egress {
    type Err = EgressError;

    fn from_str(written: &str) -> Result<Self, EgressError> {
        let wrong = |what| EgressError { written: written.to_owned(), what };
        let network = |text: &str| -> Result<IpNet, EgressError> {
            let network: IpNet = text.parse().map_err(|_| wrong("it is no list of networks"))?;
            if network.trunc() != network {
                return Err(wrong("a network has bits beyond its prefix length"));
            }
            Ok(network)
        };
        let networks = written.split(',').map(network).collect::<Result<Vec<_>, _>>()?;
        if networks.len() > NETWORKS_MAX {
            return Err(wrong("more than 64 networks"));
        }
        Ok(Self { networks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(egress: &str, ip: &str, expected: Result<(), &str>) {
        let egress: Egress = egress.parse().unwrap();
        let refusal = egress.refusal(ip.parse().unwrap());
        match expected {
            Ok(()) => assert_eq!(refusal, None, "{ip}"),
            Err(part) => assert!(refusal.is_some_and(|it| it.contains(part)), "{ip}: {refusal:?}"),
        }
    }

    #[test]
    fn the_host_itself_and_the_machine_are_never_reached() {
        for (ips, part) in [
            (&["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"][..], "loopback"),
            (&["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "febf::1"], "link-local"),
            (&["fd00:ec2::254", "fd20:ce::254"], "metadata"),
            (&["0.0.0.0", "0.1.2.3", "::", "::127.0.0.1", "255.255.255.255"], "not the address"),
            (&["224.0.0.1", "239.1.2.3", "ff02::1", "::ffff:224.0.0.1"], "not the address"),
            (&["10.244.1.2", "10.96.0.10", "172.18.0.11", "::ffff:10.96.0.1"], "own networks"),
            (&["fd00:10:244:1::2", "fd00:10:96::a", "fd00:172:18::2"], "own networks"),
        ] {
            ips.iter().for_each(|ip| check(Egress::EVERYWHERE, ip, Err(part)));
        }
        // Not even if they are named.
        check("127.0.0.0/8,10.96.0.0/16", "127.0.0.1", Err("loopback"));
        check("127.0.0.0/8,10.96.0.0/16", "10.96.0.1", Err("own networks"));
    }

    #[test]
    fn without_networks_every_other_address_is_reached_and_with_them_only_those() {
        for ip in ["192.0.2.1", "10.1.2.3", "172.18.1.1", "1.1.1.1", "2001:db8::1", "fd00::1"] {
            check(Egress::EVERYWHERE, ip, Ok(()));
        }
        let some = "192.0.2.0/24,2001:db8::/32";
        check(some, "192.0.2.1", Ok(()));
        check(some, "::ffff:192.0.2.1", Ok(()));
        check(some, "2001:db8:1::1", Ok(()));
        check(some, "192.0.3.1", Err("does not name it"));
        check(some, "2001:db9::1", Err("does not name it"));
        check("0.0.0.0/0", "2001:db8::1", Err("does not name it"));
    }

    #[test]
    fn a_workload_of_a_cluster_reaches_its_networks_and_not_the_host_itself() {
        let egress: Egress = Egress::EVERYWHERE.parse().unwrap();
        let refusal = |ip: &str| egress.refusal_of_cluster(ip.parse().unwrap());
        for ip in ["10.244.1.2", "10.96.0.1", "172.18.0.11", "fd00:10:244:1::2", "192.0.2.1"] {
            assert_eq!(refusal(ip), None, "{ip}");
        }
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0"]
        {
            assert!(refusal(ip).is_some(), "{ip}");
        }
    }

    #[test]
    fn networks_are_read_whole_or_not_at_all() {
        let read = |written: &str| written.parse::<Egress>().map(|it| it.to_string());
        assert_eq!(read("10.0.0.0/8,2001:db8::/32").unwrap(), "10.0.0.0/8,2001:db8::/32");
        let many = vec!["192.0.2.0/24"; NETWORKS_MAX + 1].join(",");
        for (written, part) in [
            ("", "no list"),
            ("10.0.0.1", "no list"),
            ("10.0.0.0/8, 192.0.2.0/24", "no list"),
            ("10.0.0.0/33", "no list"),
            ("10.0.0.1/8", "beyond its prefix"),
            (&many, "more than 64"),
        ] {
            let error = read(written).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("2001:db8::/32"), "{error}");
        }
    }
}
