//! Addresses that have a meaning of their own.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Where a captured pod sees the node's own connections come from: the kubelet's probes.
pub const PROBE_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
/// The same for IPv6.
pub const PROBE_V6: Ipv6Addr =
    Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff);
