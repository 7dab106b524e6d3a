//! The rules that redirect a pod's TCP through its sidecar, in the pod's own network namespace.
//!
//! They are Istio's and Linkerd's, reduced to what a pod here can do: everything the pod sends goes
//! to the proxy's outbound port, everything that arrives goes to its inbound port. Not redirected:
//! what the proxy itself sends (recognised by its user), loopback, the proxy's administration, and
//! what the node itself sends, which is the kubelet's probes: in a cluster the meshes handle those
//! by other means. Both address families, since pods here have both.
//!
//! A pod that calls itself by its own service is not supported: the meshes recognise that case by a
//! source address on loopback, and no experiment needs it.

use ambit_machine::Dual;
use ambit_net::namespace::NetNs;
use ambit_net::netlink::NetlinkError;
use ambit_net::nftables::{
    Chain, Family, Hook, Nftables, Priority, Protocol, Rule, SocketOwner, Table,
};
use ipnet::IpNet;

/// The name of the tables.
const TABLE: &str = "ambit-sidecar";

const TCP_FIN: u8 = 0x01;
const TCP_SYN: u8 = 0x02;
const TCP_RST: u8 = 0x04;
const TCP_ACK: u8 = 0x10;

/// Where a sidecar listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// For what the pod sends.
    pub(super) outbound: u16,
    /// For connections to the pod.
    pub(super) inbound: u16,
    /// For its administration, which is not redirected.
    pub(super) admin: u16,
}

/// Redirects new connections; those that are open stay as they are.
pub(super) fn install(
    netns: &NetNs,
    ports: Ports,
    user: u32,
    node: Dual,
) -> Result<(), NetlinkError> {
    let tables = [Family::Ip, Family::Ip6].map(|family| table(family, ports, user, node));
    Nftables::open_in(netns)?.replace(&tables)
}

/// Takes all rules away; none there is fine.
pub(super) fn remove(netns: &NetNs) -> Result<(), NetlinkError> {
    let mut nftables = Nftables::open_in(netns)?;
    for family in [Family::Ip, Family::Ip6] {
        nftables.delete(family, TABLE)?;
    }
    Ok(())
}

fn table(family: Family, ports: Ports, user: u32, node: Dual) -> Table {
    let [v4, v6] = node.both();
    let node = IpNet::from(if family == Family::Ip { v4 } else { v6 });
    let inbound = [
        Rule::new("of the node: probes").source(node).accept(),
        first_packet("to the pod")
            .in_interface_not("lo")
            .port_not(ports.admin)
            .redirect(ports.inbound),
    ];
    let outbound = [
        Rule::new("of the sidecar itself").sent_by(SocketOwner::User(user)).accept(),
        Rule::new("inside the pod").out_interface("lo").accept(),
        first_packet("of the pod").redirect(ports.outbound),
    ];
    let nat = Priority::DESTINATION_NAT;
    Table::new(family, TABLE)
        .chain(Chain::nat("prerouting", Hook::Prerouting, nat).rules(inbound))
        .chain(Chain::nat("output", Hook::Output, nat).rules(outbound))
}

/// The first packet of a TCP connection. A connection that is open already looks new to connection
/// tracking, which begins with these rules, and must not be torn apart.
fn first_packet(comment: &str) -> Rule {
    Rule::new(comment)
        .protocol(Protocol::Tcp)
        .tcp_flags(TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK, TCP_SYN)
}
