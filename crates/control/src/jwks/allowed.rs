//! What control may ask for keys: hosts by name, and addresses once a name is resolved.
//!
//! Whoever writes a RequestAuthentication chooses a URL, and control connects to it from its own
//! place in the network. So addresses that mean control's own host or link, or a cloud's metadata
//! service, are refused whatever name leads there, unless the operator allows them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ambit_model::address::Reach;
use ipnet::IpNet;

/// Where clouds answer a machine about itself, beside the link-local addresses: Azure, Alibaba and
/// Oracle; Amazon and Google over IPv6.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// What the operator says of issuers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allowed {
    /// The only hosts, in lower case, that may be asked; `*.example.com` is every name below.
    /// Without any, all may.
    pub(crate) hosts: Vec<String>,
    /// Addresses that may be asked whatever they mean, also in plain text.
    pub(crate) networks: Vec<IpNet>,
}

impl Allowed {
    /// Everything.
    pub(crate) fn all() -> Self {
        let all = [IpAddr::from([0; 4]), IpAddr::from([0; 16])].map(|it| IpNet::new(it, 0));
        let networks = all.into_iter().map(|it| it.expect("no bits are bits of both")).collect();
        Self { hosts: Vec::new(), networks }
    }

    /// Whether this host, in lower case, may be asked.
    pub(super) fn host(&self, host: &str) -> bool {
        let is = |pattern: &String| match pattern.strip_prefix('*') {
            Some(end) => host.len() > end.len() && host.ends_with(end),
            None => host == pattern,
        };
        self.hosts.is_empty() || self.hosts.iter().any(is)
    }

    /// Whether this address is in one of the operator's networks.
    pub(super) fn is_listed(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.networks.iter().any(|network| network.contains(&ip))
    }

    /// Why this address may not be asked; `None` when it may.
    pub(crate) fn refuses(&self, ip: IpAddr) -> Option<&'static str> {
        if self.is_listed(ip) {
            return None;
        }
        let behind = translated(ip);
        let all = || std::iter::once(ip.to_canonical()).chain(behind);
        if all().any(|ip| METADATA.contains(&ip)) {
            return Some("is a cloud's metadata service");
        }
        all().find_map(|ip| match Reach::of(ip) {
            Reach::Host => Some("means control itself"),
            Reach::Link => Some("is on control's own link"),
            Reach::Group => Some("is not the address of one server"),
            Reach::Far => None,
        })
    }
}

/// The address of IPv4 that a network may make of one of IPv6: NAT64 (RFC 6052) and 6to4 (RFC
/// 3056).
fn translated(ip: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(ip) = ip else { return None };
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let v4 =
        |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match (a, b) {
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => Some(v4(g, h)),
        (0x2002, _) => Some(v4(b, c)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_mean_control_or_its_cloud_are_refused() {
        let allowed = Allowed::default();
        for (ip, is_refused) in [
            ("93.184.216.34", false),
            ("10.0.0.1", false),
            ("2001:db8::1", false),
            ("fd12::1", false),
            ("127.0.0.1", true),
            ("::1", true),
            ("0.0.0.0", true),
            ("169.254.169.254", true),
            ("::ffff:169.254.169.254", true),
            ("64:ff9b::a9fe:a9fe", true),
            ("64:ff9b::808:808", false),
            ("2002:7f00:1::", true),
            ("fe80::1", true),
            ("224.0.0.1", true),
            ("255.255.255.255", true),
            ("168.63.129.16", true),
            ("100.100.100.200", true),
            ("fd00:ec2::254", true),
            ("fd20:ce::254", true),
        ] {
            let ip: IpAddr = ip.parse().expect("an address");
            assert_eq!(allowed.refuses(ip).is_some(), is_refused, "{ip}");
        }
        let networks = vec!["127.0.0.0/8".parse().expect("a network")];
        let allowed = Allowed { networks, ..Allowed::default() };
        assert_eq!(allowed.refuses("127.0.0.1".parse().expect("an address")), None);
        assert_eq!(allowed.refuses("::ffff:127.0.0.1".parse().expect("an address")), None);
        assert!(allowed.refuses("::1".parse().expect("an address")).is_some());
    }

    #[test]
    fn hosts_are_those_that_are_listed_or_all() {
        assert!(Allowed::default().host("anything"));
        let hosts = vec!["login.example.com".to_owned(), "*.corp.example.com".to_owned()];
        let allowed = Allowed { hosts, ..Allowed::default() };
        for (host, expected) in [
            ("login.example.com", true),
            ("a.corp.example.com", true),
            ("a.b.corp.example.com", true),
            ("corp.example.com", false),
            (".corp.example.com", false),
            ("evilcorp.example.com", false),
            ("login.example.com.evil.com", false),
        ] {
            assert_eq!(allowed.host(host), expected, "{host}");
        }
    }
}
