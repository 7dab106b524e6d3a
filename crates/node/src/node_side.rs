//! The node's own side of capture: connections of the node's processes to captured pods (kubelet
//! probes) take the probe address as source, by which the pods' rules know them.
//!
//! The table lives in the namespace the agent runs in and is the agent's own. Only sockets of root
//! take the address: another process on the node's network is traffic like any other. What comes to
//! the node *from* the probe address is forged and dropped, in the bridges too. It never masks a
//! connection that is only forwarded.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ambit_net::netlink::NetlinkError;
use ambit_net::nftables::{
    Chain, Difference, Family, Hook, Nftables, Priority, Protocol, Rule, Set, SocketOwner, Table,
};

use crate::capture::rules::IpVersion;
use crate::pod::PodUid;

/// Name of the table in the node's namespace.
const TABLE: &str = "ambit-node";
/// Name of the set of captured pods' addresses.
const PODS: &str = "pods";
/// Before kube-proxy's masquerading: the first translation of a connection decides.
const BEFORE_SOURCE_NAT: Priority = Priority(Priority::SOURCE_NAT.0 - 1);
/// The user whose sockets are taken for the kubelet's.
const ROOT: SocketOwner = SocketOwner::User(0);

/// Why the node's table could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("{operation} (the agent needs NET_ADMIN in the node's network namespace)")]
pub(crate) struct NodeSideError {
    operation: &'static str,
    #[source]
    source: NetlinkError,
}

impl NodeSideError {
    /// Whether this kernel cannot do it, now or later.
    fn is_unsupported(&self) -> bool {
        let NetlinkError::Refused { source, .. } = &self.source else { return false };
        source.kind() == io::ErrorKind::Unsupported
    }
}

/// The node's table, and the addresses that belong in its set.
#[derive(Debug)]
pub(crate) struct NodeSide {
    ipv6: bool,
    pods: Mutex<Pods>,
}

#[derive(Debug, Default)]
struct Pods {
    addresses: BTreeMap<PodUid, Vec<IpAddr>>,
    /// Until the pods of an earlier agent are known again, the kernel's set is not touched.
    settled: bool,
    /// Found out at the first try, and said once.
    bridges_unsupported: bool,
    /// Nothing is written any more.
    erased: bool,
}

impl Pods {
    fn all(&self) -> BTreeSet<IpAddr> {
        self.addresses.values().flatten().copied().collect()
    }
}

impl NodeSide {
    /// Nothing is written before [`NodeSide::mend`].
    pub(crate) fn new(ipv6: bool) -> Self {
        Self { ipv6, pods: Mutex::default() }
    }

    /// A pod with these addresses is captured.
    pub(crate) fn insert(&self, uid: &PodUid, addresses: &[IpAddr]) -> Result<(), NodeSideError> {
        self.change(|pods| {
            pods.insert(uid.clone(), addresses.to_vec());
        })
    }

    /// A pod is not captured any more.
    pub(crate) fn remove(&self, uid: &PodUid) -> Result<(), NodeSideError> {
        self.change(|pods| {
            pods.remove(uid);
        })
    }

    /// Compares the table with what it should be and puts it right; says what differed.
    pub(crate) fn mend(&self) -> Result<Vec<Difference>, NodeSideError> {
        let mut pods = self.lock();
        if pods.erased {
            return Ok(Vec::new());
        }
        pods.settled = true;
        let mut nftables = Nftables::open().map_err(failed("open nftables"))?;
        let mut differences = Vec::new();
        for table in self.tables(&pods.all()) {
            differences.extend(mend(&mut nftables, table)?);
        }
        if !pods.bridges_unsupported {
            match mend(&mut nftables, bridge_table()) {
                Ok(found) => differences.extend(found),
                Err(error) if error.is_unsupported() => {
                    pods.bridges_unsupported = true;
                    tracing::warn!(
                        "this kernel has no nftables for bridges: a pod with NET_RAW \
                        may pass for a probe of the node to pods on the same bridge"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(differences)
    }

    /// Removes the table, and lets none come back.
    pub(crate) fn erase(&self) -> Result<(), NodeSideError> {
        let mut pods = self.lock();
        pods.erased = true;
        let mut nftables = Nftables::open().map_err(failed("open nftables"))?;
        for family in [IpVersion::V4.family(), IpVersion::V6.family(), Family::Bridge] {
            match nftables.delete(family, TABLE).map_err(failed("delete the node's table")) {
                Err(error) if !error.is_unsupported() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Changes what is wanted, then the kernel's set by the difference.
    fn change(
        &self,
        edit: impl FnOnce(&mut BTreeMap<PodUid, Vec<IpAddr>>),
    ) -> Result<(), NodeSideError> {
        let mut pods = self.lock();
        let before = pods.all();
        edit(&mut pods.addresses);
        if !pods.settled || pods.erased {
            return Ok(());
        }
        let after = pods.all();
        if before == after {
            return Ok(());
        }
        let mut nftables = Nftables::open().map_err(failed("open nftables"))?;
        for version in self.versions() {
            let of_version = |ip: &&IpAddr| ip.is_ipv6() == (version == IpVersion::V6);
            let gone: Vec<_> = before.difference(&after).filter(of_version).copied().collect();
            let come: Vec<_> = after.difference(&before).filter(of_version).copied().collect();
            nftables
                .remove_addresses(version.family(), TABLE, PODS, &gone)
                .map_err(failed("remove a pod's address from the node's table"))?;
            nftables
                .add_addresses(version.family(), TABLE, PODS, &come)
                .map_err(failed("add a pod's address to the node's table"))?;
        }
        Ok(())
    }

    fn versions(&self) -> impl Iterator<Item = IpVersion> + use<> {
        let ipv6 = self.ipv6;
        [IpVersion::V4, IpVersion::V6].into_iter().filter(move |v| ipv6 || *v == IpVersion::V4)
    }

    fn tables(&self, addresses: &BTreeSet<IpAddr>) -> Vec<Table> {
        self.versions().map(|version| table(version, addresses)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Pods> {
        // The map is whole at every moment, also when a thread panicked with the lock.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares a table and replaces it if it differs; says how it differed.
fn mend(nftables: &mut Nftables, table: Table) -> Result<Vec<Difference>, NodeSideError> {
    let found = nftables.verify(&table).map_err(failed("compare the node's table"))?;
    if !found.is_empty() {
        nftables.replace(&[table]).map_err(failed("write the node's table"))?;
    }
    Ok(found)
}

/// Drops frames from one pod to another on the same bridge that claim to be probes of the node: the
/// node's own frames do not come in by a port.
fn bridge_table() -> Table {
    let forged = |version: IpVersion| {
        let rule = Rule::new("forged probes");
        let rule = match version {
            IpVersion::V4 => rule.ipv4(),
            IpVersion::V6 => rule.ipv6(),
        };
        rule.source(version.probe().into()).drop()
    };
    let chain = Chain::filter("raw-prerouting", Hook::Prerouting, Priority::RAW);
    let rules = [IpVersion::V4, IpVersion::V6].map(forged);
    Table::new(Family::Bridge, TABLE).chain(chain.rules(rules))
}

fn table(version: IpVersion, addresses: &BTreeSet<IpAddr>) -> Table {
    let v4 = addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    });
    let v6 = addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(*ip),
    });
    let probe = Rule::new("connections of the node to captured pods").protocol(Protocol::Tcp);
    let (set, probe) = match version {
        IpVersion::V4 => (Set::ipv4(PODS, v4), probe.destination_in_ipv4(PODS)),
        IpVersion::V6 => (Set::ipv6(PODS, v6), probe.destination_in_ipv6(PODS)),
    };
    let probe = probe.sent_by(ROOT).source_nat(version.probe());
    let forged =
        Rule::new("forged probes").source(version.probe().into()).in_interface_not("lo").drop();
    Table::new(version.family(), TABLE)
        .set(set)
        .chain(Chain::filter("raw-prerouting", Hook::Prerouting, Priority::RAW).rule(forged))
        .chain(Chain::nat("nat-postrouting", Hook::Postrouting, BEFORE_SOURCE_NAT).rule(probe))
}

fn failed(operation: &'static str) -> impl Fn(NetlinkError) -> NodeSideError {
    move |source| NodeSideError { operation, source }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::SocketAddr;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use ambit_net::namespace::NetNs;
    use ambit_net::netlink::RouteSocket;
    use ambit_net::socket::{self, DialOptions, ListenOptions};
    use ipnet::IpNet;

    use super::*;
    use crate::testbed::{APP, Client, PATIENCE, Testbed, both, set_parameter};

    /// Peer address that the application sees for a connection from a namespace.
    async fn seen_from(from: &NetNs, destination: SocketAddr) -> IpAddr {
        let options = DialOptions::default();
        let client = Client::connect(from, destination, &options).await.expect("connects");
        client.greeting.rsplit(' ').next().expect("a peer").parse().expect("an address")
    }

    #[tokio::test]
    async fn connections_of_the_node_to_captured_pods_come_from_the_probe_address() {
        let mut bed = Testbed::new();
        bed.pod_listens("app", APP, None);
        let (node, uid) = (bed.node.clone(), PodUid::new("a"));
        let side = NodeSide::new(true);
        let addresses: Vec<IpAddr> = both().map(|of| of.pod).to_vec();
        node.run(|| side.insert(&uid, &addresses)).expect("enter").expect("insert");
        for of in both() {
            let app = SocketAddr::new(of.pod, APP);
            assert_eq!(seen_from(&node, app).await, of.node, "nothing is written before mend");
        }
        assert!(!node.run(|| side.mend()).expect("enter").expect("mend").is_empty());
        for of in both() {
            let app = SocketAddr::new(of.pod, APP);
            assert_eq!(seen_from(&node, app).await, of.probe);
            let other = SocketAddr::new(of.pod_second, APP);
            assert_ne!(seen_from(&node, other).await, of.probe, "not in the set");
        }
        assert_eq!(node.run(|| side.mend()).expect("enter").expect("mend"), []);
        node.run(|| side.erase()).expect("enter").expect("erase");
        assert_eq!(node.run(|| side.mend()).expect("enter").expect("erased"), []);
        for of in both() {
            let app = SocketAddr::new(of.pod, APP);
            assert_eq!(seen_from(&node, app).await, of.node);
        }
    }

    #[tokio::test]
    async fn an_address_that_a_later_pod_took_over_stays_in_the_set() {
        let mut bed = Testbed::new();
        bed.pod_listens("app", APP, None);
        let (node, side) = (bed.node.clone(), NodeSide::new(true));
        let [of, _] = both();
        let change = |edit: &dyn Fn() -> Result<(), NodeSideError>| {
            node.run(edit).expect("enter").expect("change");
        };
        change(&|| side.mend().map(drop));
        change(&|| side.insert(&PodUid::new("earlier"), &[of.pod]));
        change(&|| side.insert(&PodUid::new("later"), &[of.pod]));
        change(&|| side.remove(&PodUid::new("earlier")));
        assert_eq!(seen_from(&node, SocketAddr::new(of.pod, APP)).await, of.probe);
    }

    #[tokio::test]
    async fn another_users_connections_and_forwarded_ones_keep_their_source() {
        let mut bed = Testbed::new();
        bed.pod_listens("app", APP, None);
        let (node, side) = (bed.node.clone(), NodeSide::new(true));
        let client = NetNs::create().expect("a namespace");
        let [of, _] = both();
        let forwarding = || ambit_net::namespace::set_sysctl("net.ipv4.ip_forward", "1");
        node.run(forwarding).expect("enter").expect("forward");
        let mut at_node = RouteSocket::open_in(&node).expect("rtnetlink");
        let mut at_client = RouteSocket::open_in(&client).expect("rtnetlink");
        at_node.ensure_veth("other", "eth0", Some(&client)).expect("veth");
        let subnet = |text: &str| text.parse::<IpNet>().expect("literal");
        at_node.ensure_address("other", subnet("10.246.1.1/24")).expect("address");
        at_client.ensure_address("eth0", subnet("10.246.1.5/24")).expect("address");
        at_node.set_up("other").expect("up");
        at_client.set_up("eth0").expect("up");
        let gateway = "10.246.1.1".parse().expect("literal");
        let route = ambit_net::netlink::Route::via(subnet("0.0.0.0/0"), gateway);
        at_client.ensure_route(&route).expect("route");
        let prepare = || {
            side.insert(&PodUid::new("a"), &[of.pod])?;
            side.mend()
        };
        node.run(prepare).expect("enter").expect("mend");
        let app = SocketAddr::new(of.pod, APP);
        assert_eq!(seen_from(&client, app).await.to_string(), "10.246.1.5");
        let as_nobody = node.run(|| {
            Command::new(std::env::current_exe().expect("this test"))
                .args(["--exact", "node_side::tests::child_of_another_user", "--ignored"])
                .arg("--nocapture")
                .env(CHILD_DIALS, app.to_string())
                .uid(65534)
                .stdout(Stdio::piped())
                .spawn()
        });
        let child = as_nobody.expect("enter").expect("start the child");
        let output = tokio::task::spawn_blocking(|| child.wait_with_output());
        let output = output.await.expect("no panic").expect("the child ends").stdout;
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains(&format!("app {app} {}\n", of.node)), "{output}");
    }

    /// Where the child process connects to.
    const CHILD_DIALS: &str = "AMBIT_TEST_CHILD_DIALS";

    #[test]
    #[ignore = "started by the test above, as another user"]
    fn child_of_another_user() {
        let Ok(address) = std::env::var(CHILD_DIALS) else { return };
        let mut stream = std::net::TcpStream::connect(address).expect("connects");
        let mut greeting = [0; 64];
        let length = stream.read(&mut greeting).expect("is greeted");
        print!("{}", String::from_utf8_lossy(&greeting[..length]));
    }

    #[tokio::test]
    async fn forged_probes_are_dropped_on_a_bridge_and_when_forwarded() {
        let node = NetNs::create().expect("a namespace (needs root)");
        let mut at_node = RouteSocket::open_in(&node).expect("rtnetlink");
        at_node.ensure_bridge("pods").expect("bridge");
        // Else the kernel shows bridged packets to the tables of IP as well.
        set_parameter(&node, "net.bridge.bridge-nf-call-iptables", "0");
        at_node.set_up("pods").expect("up");
        let pods = ["10.244.1.5/24", "10.244.1.6/24"].map(|address| {
            let pod = NetNs::create().expect("a namespace");
            let mut at_pod = RouteSocket::open_in(&pod).expect("rtnetlink");
            let port = format!("port{}", pod.inode());
            at_node.ensure_veth(&port, "eth0", Some(&pod)).expect("veth");
            at_node.set_master(&port, "pods").expect("port");
            at_node.set_up(&port).expect("up");
            at_pod.set_up("lo").expect("up");
            at_pod.set_up("eth0").expect("up");
            at_pod.ensure_address("eth0", address.parse().expect("literal")).expect("address");
            pod
        });
        let probe = IpVersion::V4.probe();
        let forge = |pod: &NetNs, reply: bool| {
            let mut routes = RouteSocket::open_in(pod).expect("rtnetlink");
            let link = ambit_net::netlink::Route::on_link(IpNet::from(probe), "eth0");
            if reply {
                routes.ensure_route(&link).expect("route");
            } else {
                routes.ensure_address("eth0", IpNet::from(probe)).expect("address");
            }
        };
        forge(&pods[0], false);
        forge(&pods[1], true);
        let app = SocketAddr::new("10.244.1.6".parse().expect("literal"), APP);
        let listen = || socket::tcp_listener(app, &ListenOptions::default());
        let _listener = pods[1].run(listen).expect("enter").expect("listen");
        let dial = |source: IpAddr, patience: Duration| {
            let source = Some(SocketAddr::new(source, 0));
            let options = DialOptions { source, ..DialOptions::default() };
            let socket = pods[0].run(|| socket::tcp_dial(app, &options)).expect("enter");
            let connect = socket.expect("socket").connected();
            async move { matches!(tokio::time::timeout(patience, connect).await, Ok(Ok(_))) }
        };
        assert!(dial(probe, PATIENCE).await, "without the rules the forged probe arrives");
        let side = NodeSide::new(true);
        node.run(|| side.mend()).expect("enter").expect("mend");
        assert!(!dial(probe, Duration::from_millis(700)).await, "dropped");
        assert!(dial("10.244.1.5".parse().expect("literal"), PATIENCE).await, "others pass");
    }
}
