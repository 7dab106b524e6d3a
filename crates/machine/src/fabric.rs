//! The fabric: the machine's own network, a bridge that joins control plane and nodes.
//!
//! Each of them has a namespace with one interface, and routes to the pods of every node. There is
//! no link out of the machine: what may leave it is carried ([`crate::egress`]).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ambit_net::namespace::NetNs;
use ambit_net::netlink::{NetlinkError, Route, RouteSocket};
use ipnet::IpNet;

use crate::addresses::{CONTROL, Dual, FABRIC, FABRIC_PREFIX, NodeNetwork, POD_PREFIX};
use crate::layout::Layout;
use crate::link::{JOINED_LINK, make_joined_device};
use crate::node::network::{NetworkError, host, prepare_namespace, set_parameters, with_prefix};

/// The bridge's name; packet captures name it too.
pub(super) const BRIDGE: &str = "fabric";
/// The one interface of a member.
pub(crate) const MEMBER_LINK: &str = "eth0";
/// The networks of the pods of all nodes.
const ALL_PODS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];
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
    /// The device of a link to another machine.
    #[error("cannot make a TUN device; is there /dev/net/tun, and may you use it?")]
    Device(#[source] io::Error),
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
pub(super) fn create(
    layout: &Layout,
    networks: &[NodeNetwork],
    has_control: bool,
) -> Result<BTreeMap<String, NetNs>, FabricError> {
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
    let control = has_control.then(|| (CONTROL_NAME.to_owned(), CONTROL));
    let nodes = networks.iter().map(|network| (network.name(), network.fabric()));
    for (name, address) in control.into_iter().chain(nodes) {
        let path = layout.network_namespace(&name);
        let netns = create_member(&mut route, &path, &name)?;
        let inside = || set_up_member(&name, address, networks);
        netns.run(inside).map_err(|source| FabricError::Namespace {
            operation: "enter",
            path: path.clone(),
            source,
        })??;
        members.insert(name, netns);
    }
    Ok(members)
}

/// Makes the namespace of a machine that is one node of another. Its link to there is a device,
/// through which all that is not its own goes.
pub(super) fn create_joined(
    layout: &Layout,
    node: NodeNetwork,
) -> Result<BTreeMap<String, NetNs>, FabricError> {
    prepare_namespace()?;
    RouteSocket::open()?.set_up("lo")?;
    let path = layout.network_namespace(&node.name());
    let netns = create_namespace(&path)?;
    let failed = |source| FabricError::Namespace { operation: "enter", path: path.clone(), source };
    netns.run(|| set_up_joined(node)).map_err(failed)??;
    Ok(BTreeMap::from([(node.name(), netns)]))
}

fn set_up_joined(node: NodeNetwork) -> Result<(), FabricError> {
    make_joined_device().map_err(FabricError::Device)?;
    let mut route = RouteSocket::open()?;
    route.set_up("lo")?;
    for address in node.fabric().both() {
        route.ensure_address(JOINED_LINK, with_prefix(address, FABRIC_PREFIX))?;
    }
    route.set_up(JOINED_LINK)?;
    for pods in ALL_PODS {
        let pods: IpNet = pods.parse().expect("a literal network");
        route.ensure_route(&Route::on_link(pods, JOINED_LINK))?;
    }
    Ok(())
}

/// Has the members send to a node that joined by way of the fabric, from where its link leads on.
pub(super) fn lead_to_joined(
    members: &BTreeMap<String, NetNs>,
    node: NodeNetwork,
) -> Result<(), FabricError> {
    each_way(members, node, |socket, route| socket.ensure_route(route))
}

/// Has the members forget a node that joined.
pub(super) fn lead_no_more(
    members: &BTreeMap<String, NetNs>,
    node: NodeNetwork,
) -> Result<(), FabricError> {
    each_way(members, node, |socket, route| socket.delete_route(route).map(drop))
}

fn each_way(
    members: &BTreeMap<String, NetNs>,
    node: NodeNetwork,
    mut change: impl FnMut(&mut RouteSocket, &Route) -> Result<(), NetlinkError>,
) -> Result<(), FabricError> {
    for netns in members.values() {
        let mut socket = RouteSocket::open_in(netns)?;
        let own = node.fabric().both().map(host);
        let pods = node.pods().both().map(|pods| with_prefix(pods, POD_PREFIX));
        for networks in [own, pods] {
            for (network, by_way_of) in networks.into_iter().zip(FABRIC.both()) {
                change(&mut socket, &Route::via(network, by_way_of))?;
            }
        }
    }
    Ok(())
}

fn create_namespace(path: &Path) -> Result<NetNs, FabricError> {
    let failed =
        |operation, source| FabricError::Namespace { operation, path: path.to_owned(), source };
    let netns = NetNs::create().map_err(|source| failed("make", source))?;
    netns.pin(path).map_err(|source| failed("keep", source))?;
    netns.run(prepare_namespace).map_err(|source| failed("enter", source))??;
    Ok(netns)
}

fn create_member(route: &mut RouteSocket, path: &Path, name: &str) -> Result<NetNs, FabricError> {
    let netns = create_namespace(path)?;
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
