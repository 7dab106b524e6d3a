//! Addresses: one form for each, and how far one reaches.
//!
//! An IPv4 address can also be written as IPv6, `::ffff:10.0.0.1`. Connections never show that
//! form, so every address is made canonical before it is compared with one of a connection. An
//! address that means something else in every namespace, as loopback does, is never accepted as the
//! address of a workload.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The prefix length of `::ffff:0:0/96`, where IPv4 lies within IPv6 (RFC 4291, section 2.5.5.2).
const MAPPED_LENGTH: u8 = 96;
/// Any address of that block.
const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);

/// A block as connections are compared with it: `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
///
/// `None` for a block that holds IPv4 beside IPv6 and so cannot be read: `::fffe:0:0/95` has no
/// meaning that its author can have intended. `::/0` is every IPv6 address.
pub fn canonical_block(block: IpNet) -> Option<IpNet> {
    let block = block.trunc();
    let IpNet::V6(v6) = block else { return Some(block) };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(MAPPED_LENGTH)) {
        (Some(v4), Some(length)) => Ipv4Net::new(v4, length).ok().map(IpNet::V4),
        _ if v6.prefix_len() > 0 && v6.contains(&MAPPED) => None,
        _ => Some(block),
    }
}

/// How far an address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The host that sends: loopback, and the unspecified address, which means the same.
    Host,
    /// The asker's link.
    Link,
    /// Several at once: multicast and broadcast.
    Group,
    /// One place, the same for all.
    Far,
}

impl Reach {
    /// The reach of an address, in whichever form it is written.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) if ip.is_loopback() || ip.octets()[0] == 0 => Self::Host,
            IpAddr::V4(ip) if ip.is_multicast() || ip == Ipv4Addr::BROADCAST => Self::Group,
            IpAddr::V4(ip) if ip.is_link_local() => Self::Link,
            IpAddr::V6(ip) if ip.is_loopback() || ip.is_unspecified() => Self::Host,
            IpAddr::V6(ip) if ip.is_multicast() => Self::Group,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Self::Link,
            IpAddr::V4(_) | IpAddr::V6(_) => Self::Far,
        }
    }
}

/// Why an entry that somebody wrote may not name this address; `None` when it may.
///
/// The metadata service of clouds is at a link-local address of IPv4, and entries for it are
/// common. A link-local address of IPv6 means nothing without the link.
pub fn not_for_entries(ip: IpAddr) -> Option<&'static str> {
    match (Reach::of(ip), ip.to_canonical()) {
        (Reach::Host, _) => Some("means the client itself"),
        (Reach::Group, _) => Some("is not the address of one workload"),
        (Reach::Link, IpAddr::V6(_)) => Some("means nothing without its link"),
        (Reach::Link | Reach::Far, _) => None,
    }
}

/// Where hosts of ServiceEntries get addresses, as with Istio: reserved space.
pub const ALLOCATED_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(240, 240, 0, 0), 16);
/// The same for IPv6: space that is for benchmarks.
pub const ALLOCATED_V6: Ipv6Net =
    Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48);

/// Whether hosts of ServiceEntries get such addresses: nobody outside of the mesh has it.
pub fn is_allocated(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ALLOCATED_V4.contains(&ip),
        IpAddr::V6(ip) => ALLOCATED_V6.contains(&ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_block_is_one_of_ipv4() {
        let check = |text: &str, expected: Option<&str>| {
            let block = text.parse().expect("a block");
            assert_eq!(canonical_block(block), expected.map(|it| it.parse().expect("a block")));
        };
        check("10.1.2.3/8", Some("10.0.0.0/8"));
        check("::ffff:10.244.1.2/128", Some("10.244.1.2/32"));
        check("::ffff:10.1.2.3/104", Some("10.0.0.0/8"));
        check("::ffff:0:0/96", Some("0.0.0.0/0"));
        check("::fffe:0:0/95", None);
        check("::ffff:10.1.2.3/95", None);
        check("::/64", None);
        check("::/1", None);
        check("::/0", Some("::/0"));
        check("::/96", Some("::/96"));
        check("::1/128", Some("::1/128"));
        check("2001:db8::1/32", Some("2001:db8::/32"));
        check("64:ff9b::a00:1/128", Some("64:ff9b::a00:1/128"));
    }

    #[test]
    fn reach() {
        let check = |reach: Reach, texts: &[&str]| {
            for text in texts {
                assert_eq!(Reach::of(text.parse().expect("an address")), reach, "{text}");
            }
        };
        let host = ["127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "::", "::1"];
        check(Reach::Host, &host);
        check(Reach::Host, &["::ffff:127.0.0.1", "::ffff:0.0.0.0"]);
        check(Reach::Link, &["169.254.169.254", "fe80::1", "febf::1", "::ffff:169.254.7.127"]);
        check(Reach::Group, &["224.0.0.1", "255.255.255.255", "ff02::1", "::ffff:239.1.1.1"]);
        check(
            Reach::Far,
            &["10.0.0.1", "240.240.0.1", "::ffff:10.0.0.1", "fd00::1", "2001:db8::1"],
        );
    }
}
