//! The fabric: the machine's own network, a bridge that joins control plane and nodes.
//!
//! Each of them has a namespace with one interface, and routes to the pods of every node. There is
//! no link out of the machine: what may leave it is carried ([`crate::egress`]).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ambit_net::namespace::NetNs;
use ambit_net::netlink::{NetlinkError, Route, RouteSocket};

use crate::addresses::{CONTROL, Dual, FABRIC, FABRIC_PREFIX, NodeNetwork, POD_PREFIX};
use crate::layout::Layout;
use crate::node::network::{NetworkError, prepare_namespace, set_parameters, with_prefix};

/// The bridge's name; packet captures name it too.
pub(super) const BRIDGE: &str = "fabric";
/// The one interface of a member.
pub(crate) const MEMBER_LINK: &str = "eth0";
/// The control plane's namespace.
pub(crate) const CONTROL_NAME: &str = "control";

/// Why the fabric could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FabricError {
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
    /// Links, addresses, routes or parameters.
    #[error("cannot set up the fabric")]
    Network(#[from] NetworkError),
}

impl From<NetlinkError> for FabricError {
    fn from(error: NetlinkError) -> Self {
        Self::Network(error.into())
    }
}

/// Makes the bridge and a namespace for each member, and pins these below the state directory.
pub(super) fn create(layout: &Layout, nodes: u8) -> Result<BTreeMap<String, NetNs>, FabricError> {
    let networks: Vec<NodeNetwork> = (1..=nodes).map(NodeNetwork::new).collect();
    prepare_namespace()?;
    let mut route = RouteSocket::open()?;
    route.set_up("lo")?;
    route.ensure_bridge(BRIDGE)?;
    leave_bridged_frames_alone()?;
    for address in FABRIC.both() {
        route.ensure_address(BRIDGE, with_prefix(address, FABRIC_PREFIX))?;
    }
    route.set_up(BRIDGE)?;
    let mut members = BTreeMap::new();
    let control = (CONTROL_NAME.to_owned(), CONTROL);
    let nodes = networks.iter().map(|network| (network.name(), network.fabric()));
    for (name, address) in std::iter::once(control).chain(nodes) {
        let path = layout.network_namespace(&name);
        let netns = create_member(&mut route, &path, &name)?;
        let inside = || set_up_member(&name, address, &networks);
        netns.run(inside).map_err(|source| FabricError::Namespace {
            operation: "enter",
            path: path.clone(),
            source,
        })??;
        members.insert(name, netns);
    }
    Ok(members)
}

fn create_member(route: &mut RouteSocket, path: &Path, name: &str) -> Result<NetNs, FabricError> {
    let failed =
        |operation, source| FabricError::Namespace { operation, path: path.to_owned(), source };
    let netns = NetNs::create().map_err(|source| failed("make", source))?;
    netns.pin(path).map_err(|source| failed("keep", source))?;
    netns.run(prepare_namespace).map_err(|source| failed("enter", source))??;
    let cable = format!("f-{name}");
    route.ensure_veth(&cable, MEMBER_LINK, Some(&netns))?;
    route.set_master(&cable, BRIDGE)?;
    route.set_up(&cable)?;
    Ok(netns)
}

fn set_up_member(name: &str, address: Dual, nodes: &[NodeNetwork]) -> Result<(), FabricError> {
    let mut route = RouteSocket::open()?;
    route.set_up("lo")?;
    leave_bridged_frames_alone()?;
    for address in address.both() {
        route.ensure_address(MEMBER_LINK, with_prefix(address, FABRIC_PREFIX))?;
    }
    route.set_up(MEMBER_LINK)?;
    for node in nodes.iter().filter(|node| node.name() != name) {
        for (pods, by_way_of) in node.pods().both().into_iter().zip(node.fabric().both()) {
            route.ensure_route(&Route::via(with_prefix(pods, POD_PREFIX), by_way_of))?;
        }
    }
    Ok(())
}

/// Packets that a bridge passes on are none of the packet filter's business, whatever the host's
/// default.
fn leave_bridged_frames_alone() -> Result<(), NetworkError> {
    for family in ["iptables", "ip6tables"] {
        let name = format!("net.bridge.bridge-nf-call-{family}");
        if Path::new("/proc/sys").join(name.replace('.', "/")).exists() {
            set_parameters(&[(&name, "0")])?;
        }
    }
    Ok(())
}
