//! The node's networks: the bridge of its pods, and the namespace of each pod.
//!
//! A pod has its addresses with full-length prefixes and reaches everything, its neighbours too,
//! through the gateway. So the node routes every packet, and service addresses work without
//! filtering in the bridge. Everything here may be repeated: a pod runner that was restarted does
//! it all again.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ambit_net::namespace::{self, NetNs, set_sysctl};
use ambit_net::netlink::{NetlinkError, Route, RouteSocket};
use ipnet::IpNet;

use crate::addresses::{DNS, Dual, NodeNetwork, POD_PREFIX, service};

/// The node's bridge.
pub(crate) const BRIDGE: &str = "pods";
/// The pod's interface.
const POD_LINK: &str = "eth0";

/// A network that could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// Links, addresses or routes.
    #[error("cannot set up the network")]
    Netlink(#[from] NetlinkError),
    /// A namespace.
    #[error("cannot {operation} the network namespace {path}")]
    Namespace {
        /// What was tried.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A kernel parameter.
    #[error("cannot set the kernel parameter {name}")]
    Parameter {
        /// Which.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// The address alone, as a network.
pub(crate) fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// An address with the length of its network's prefix.
pub(crate) fn with_prefix(address: IpAddr, (v4, v6): (u8, u8)) -> IpNet {
    IpNet::new(address, if address.is_ipv4() { v4 } else { v6 })
        .expect("the prefix lengths of the address plan are valid")
}

/// Sets kernel parameters of the calling thread's network namespace.
pub(crate) fn set_parameters(parameters: &[(&str, &str)]) -> Result<(), NetworkError> {
    for (name, value) in parameters {
        set_sysctl(name, value)
            .map_err(|source| NetworkError::Parameter { name: (*name).to_owned(), source })?;
    }
    Ok(())
}

/// What holds for a namespace before it gets its first interface.
///
/// The machine assigns each address once, so duplicate address detection is off: it takes a second
/// or two, during which an interface could not even resolve its neighbours. Nothing else may
/// configure addresses either.
pub(crate) fn prepare_namespace() -> Result<(), NetworkError> {
    set_parameters(&[
        ("net.ipv6.conf.all.accept_dad", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv6.conf.all.accept_ra", "0"),
        ("net.ipv6.conf.default.accept_ra", "0"),
        // A redirect would lead packets around the node, past the translation of service addresses.
        ("net.ipv4.conf.all.accept_redirects", "0"),
        ("net.ipv4.conf.default.accept_redirects", "0"),
        ("net.ipv6.conf.all.accept_redirects", "0"),
        ("net.ipv6.conf.default.accept_redirects", "0"),
    ])
}

/// Sets up the node's own side, in the calling thread's namespace.
pub(crate) fn set_up_node(network: NodeNetwork) -> Result<(), NetworkError> {
    set_parameters(&[
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.conf.all.send_redirects", "0"),
        ("net.ipv4.conf.default.send_redirects", "0"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        ("net.ipv6.conf.all.forwarding", "1"),
    ])?;
    let mut route = RouteSocket::open()?;
    route.ensure_bridge(BRIDGE)?;
    for address in network.gateway().both() {
        route.ensure_address(BRIDGE, with_prefix(address, POD_PREFIX))?;
    }
    route.set_up(BRIDGE)?;
    // Cluster DNS is answered right here.
    for address in DNS.both() {
        route.ensure_address("lo", host(address))?;
    }
    // Lets the node itself send to service addresses; translation sends the packets elsewhere.
    for address in service(0).both() {
        let services = with_prefix(address, (16, 112));
        route.ensure_route(&Route::on_link(services, BRIDGE))?;
    }
    Ok(())
}

/// The name of the node's end of a pod's cable.
fn link_name(pod: u8) -> String {
    format!("pod{pod}")
}

/// Makes a pod's network, or completes one that is half there. `further` is an address that it has
/// for itself alone: others reach it there from outside of the machine.
pub(crate) fn set_up_pod(
    network: NodeNetwork,
    pod: u8,
    further: Option<IpAddr>,
    path: &Path,
) -> Result<NetNs, NetworkError> {
    let failed =
        |operation, source| NetworkError::Namespace { operation, path: path.to_owned(), source };
    let netns = match NetNs::open(path) {
        Ok(netns) => netns,
        // Absent, or a plain file whose mount went away with an older machine.
        Err(_) => {
            let directory = path.parent().expect("namespaces are kept in a directory");
            std::fs::create_dir_all(directory).map_err(|source| failed("keep", source))?;
            let netns = NetNs::create().map_err(|source| failed("make", source))?;
            netns.pin(path).map_err(|source| failed("keep", source))?;
            netns
        }
    };
    netns.run(prepare_namespace).map_err(|source| failed("enter", source))??;
    let mut route = RouteSocket::open()?;
    let link = link_name(pod);
    route.ensure_veth(&link, POD_LINK, Some(&netns))?;
    route.set_master(&link, BRIDGE)?;
    route.set_up(&link)?;
    let inside = || -> Result<(), NetworkError> {
        set_up_inside(network.pod(pod), network.gateway())?;
        match further {
            None => Ok(()),
            Some(further) => Ok(RouteSocket::open()?.ensure_address("lo", host(further))?),
        }
    };
    netns.run(inside).map_err(|source| failed("enter", source))??;
    Ok(netns)
}

fn set_up_inside(addresses: Dual, gateway: Dual) -> Result<(), NetworkError> {
    set_parameters(&[
        // As container runtimes have it: any user may listen on any port, and ping.
        ("net.ipv4.ip_unprivileged_port_start", "0"),
    ])?;
    let mut route = RouteSocket::open()?;
    route.set_up("lo")?;
    for address in addresses.both() {
        route.ensure_address(POD_LINK, host(address))?;
    }
    route.set_up(POD_LINK)?;
    for gateway in gateway.both() {
        let everywhere: IpNet = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" }
            .parse()
            .expect("a literal network");
        route.ensure_route(&Route::on_link(host(gateway), POD_LINK))?;
        route.ensure_route(&Route::via(everywhere, gateway))?;
    }
    Ok(())
}

/// Removes a pod's network. Parts that are already gone are fine. Whatever fails, the namespace is
/// released: no later call would do it.
pub(crate) fn remove_pod(network: NodeNetwork, pod: u8, path: &Path) -> Result<(), NetworkError> {
    let disconnected = disconnect_pod(network, pod);
    let failed =
        |source| NetworkError::Namespace { operation: "let go of", path: path.to_owned(), source };
    namespace::unpin(path).map_err(failed).and(disconnected)
}

/// Removes a pod's veth pair.
///
/// The node forgets the pod's hardware address too: the next pod with the IP address has another
/// one, and would get no packets until the node asks again, which takes up to a minute.
fn disconnect_pod(network: NodeNetwork, pod: u8) -> Result<(), NetworkError> {
    let mut route = RouteSocket::open()?;
    route.delete_link(&link_name(pod))?;
    for address in network.pod(pod).both() {
        route.delete_neighbour(BRIDGE, address)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs the rights of root over network namespaces.
    #[test]
    fn a_pods_namespace_is_let_go_of_even_without_a_bridge() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("namespace");
        NetNs::create().expect("a namespace").pin(&path).expect("pinned");
        let node = NetNs::create().expect("a namespace");
        let removed = node.run(|| remove_pod(NodeNetwork::new(1), 2, &path)).expect("entered");
        assert!(matches!(removed, Err(NetworkError::Netlink(_))), "{removed:?}");
        assert!(!path.exists(), "nobody would come back for it");
    }
}
