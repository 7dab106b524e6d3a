//! What istio-cni leaves in a pod's namespace when it is removed from a node: its capture rules.
//!
//! They redirect to the same ports as ours, so a pod stays captured until our rules are in place
//! beside them. Then they are removed, or the pod could never leave the mesh. Connections that they
//! captured continue under our chains. Marks and routes are the same as ours and stay.

use std::fs;

use ambit_net::netlink::NetlinkError;
use ambit_net::nftables::{Family, Nftables};

/// The tables of the iptables programs that work over nftables.
const IPTABLES: [&str; 3] = ["nat", "mangle", "raw"];
/// The chains of istio-cni in them; rules of the program's own chains jump there.
const CHAINS: [&str; 2] = ["ISTIO_PRERT", "ISTIO_OUTPUT"];
/// The tables of istio-cni with `nativeNftables`, for both IP versions.
const TABLES: [&str; 3] = ["istio-ambient-nat", "istio-ambient-mangle", "istio-ambient-raw"];

/// Removes them; whether there were any.
pub(crate) fn remove(nftables: &mut Nftables) -> Result<bool, NetlinkError> {
    let mut found = false;
    for family in [Family::Ip, Family::Ip6] {
        found |= nftables.delete_chains(family, &IPTABLES, &CHAINS)?;
    }
    for table in TABLES {
        found |= nftables.delete(Family::Inet, table)?;
    }
    Ok(found)
}

/// Whether the calling thread's namespace has address translation by the legacy iptables, which
/// cannot be read or removed over nftables.
pub(crate) fn has_legacy_nat() -> bool {
    let tables = fs::read_to_string("/proc/thread-self/net/ip_tables_names");
    tables.is_ok_and(|tables| tables.lines().any(|table| table == "nat"))
}
