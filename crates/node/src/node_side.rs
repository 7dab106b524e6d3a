//! The node's own side of capture: connections of the node's processes to captured pods (kubelet
//! probes) take the probe address as source, by which the pods' rules know them.
//!
//! The table lives in the namespace the agent runs in and is the agent's own. Only sockets of root
//! take the address: another process on the node's network is traffic like any other. What comes to
//! the node *from* the probe address is forged and dropped; what only crosses a bridge is for
//! `bridges`. It never masks a connection that is only forwarded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ambit_net::netlink::NetlinkError;
use ambit_net::nftables::{
    Chain, Difference, Family, Hook, Nftables, Priority, Protocol, Rule, Set, SocketOwner, Table,
};

use crate::bridges::{Guard, TABLE, mend};
use crate::capture::rules::IpVersion;
use crate::pod::PodUid;

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
    /// How forged probes are kept off the bridges.
    guard: Guard,
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
            let found = mend(&mut nftables, table).map_err(failed("keep the node's table"))?;
            differences.extend(found);
        }
        let guarded = pods.guard.mend(&mut nftables);
        differences.extend(guarded.map_err(failed("keep forged probes off the bridges"))?);
        Ok(differences)
    }

    /// Looks for ports of bridges that nothing guards yet, where each has to be.
    pub(crate) fn guard_new_ports(&self) -> Result<(), NodeSideError> {
        let mut pods = self.lock();
        if pods.erased || !pods.settled || pods.guard == Guard::Bridges {
            return Ok(());
        }
        let mut nftables = Nftables::open().map_err(failed("open nftables"))?;
        let guarded = pods.guard.mend(&mut nftables);
        guarded.map(drop).map_err(failed("keep forged probes off the bridges"))
    }

    /// Whether pods on a bridge can pass for the node.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().guard.is_open()
    }

    /// Removes the table, and lets none come back.
    pub(crate) fn erase(&self) -> Result<(), NodeSideError> {
        let mut pods = self.lock();
        pods.erased = true;
        let mut nftables = Nftables::open().map_err(failed("open nftables"))?;
        let of_ip = [IpVersion::V4, IpVersion::V6].map(IpVersion::family);
        for family in of_ip.into_iter().chain([Family::Bridge, Family::Netdev]) {
            match nftables.delete(family, TABLE) {
                Err(error) if !error.is_unsupported() => {
                    return Err(failed("delete the node's table")(error));
                }
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

    /// Two pods on one bridge, the first of which has the probe address, too.
    struct Bridged {
        node: NetNs,
        pods: [NetNs; 2],
        _listener: std::net::TcpListener,
    }

    /// What the two have of a version.
    struct Ends {
        forger: &'static str,
        victim: &'static str,
        probe: IpAddr,
    }

    fn ends(version: IpVersion) -> Ends {
        let (forger, victim) = match version {
            IpVersion::V4 => ("10.244.1.5", "10.244.1.6"),
            IpVersion::V6 => ("fd00:244:1::5", "fd00:244:1::6"),
        };
        Ends { forger, victim, probe: version.probe() }
    }

    impl Bridged {
        fn new(version: IpVersion) -> Self {
            let Ends { forger, victim, probe } = ends(version);
            let node = NetNs::create().expect("a namespace (needs root)");
            let mut at_node = RouteSocket::open_in(&node).expect("rtnetlink");
            at_node.ensure_bridge("pods").expect("bridge");
            // Else the kernel shows bridged packets to the tables of IP as well.
            for tables in ["iptables", "ip6tables"] {
                set_parameter(&node, &format!("net.bridge.bridge-nf-call-{tables}"), "0");
            }
            at_node.set_up("pods").expect("up");
            let pods = [forger, victim].map(|address| pod_on(&node, address));
            let link = ambit_net::netlink::Route::on_link(IpNet::from(probe), "eth0");
            let mut at_victim = RouteSocket::open_in(&pods[1]).expect("rtnetlink");
            at_victim.ensure_route(&link).expect("route");
            let listen = || socket::tcp_listener(app(probe), &ListenOptions::default());
            let _listener = pods[1].run(listen).expect("enter").expect("listen");
            let bed = Self { node, pods, _listener };
            forge_in(&bed.pods[0], probe);
            bed
        }
    }

    fn forge_in(pod: &NetNs, probe: IpAddr) {
        let mut routes = RouteSocket::open_in(pod).expect("rtnetlink");
        routes.ensure_address("eth0", IpNet::from(probe)).expect("address");
    }

    /// A pod on the bridge, as a network plugin makes one.
    fn pod_on(node: &NetNs, address: &str) -> NetNs {
        let pod = NetNs::create().expect("a namespace");
        let mut at_node = RouteSocket::open_in(node).expect("rtnetlink");
        let mut at_pod = RouteSocket::open_in(&pod).expect("rtnetlink");
        let port = format!("port{}", pod.inode());
        at_node.ensure_veth(&port, "eth0", Some(&pod)).expect("veth");
        at_node.set_master(&port, "pods").expect("port");
        at_node.set_up(&port).expect("up");
        at_pod.set_up("lo").expect("up");
        at_pod.set_up("eth0").expect("up");
        let bits = if address.contains(':') { 64 } else { 24 };
        let address = format!("{address}/{bits}").parse().expect("literal");
        at_pod.ensure_address("eth0", address).expect("address");
        pod
    }

    /// The victim's application, at an address like this one.
    fn app(like: IpAddr) -> SocketAddr {
        let version = if like.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
        SocketAddr::new(ends(version).victim.parse().expect("literal"), APP)
    }

    /// Whether the victim is reached from an address of this pod.
    async fn reaches(pod: &NetNs, source: IpAddr, patience: Duration) -> bool {
        let to = app(source);
        let source = Some(SocketAddr::new(source, 0));
        let options = DialOptions { source, ..DialOptions::default() };
        let socket = pod.run(|| socket::tcp_dial(to, &options)).expect("enter");
        let connect = socket.expect("socket").connected();
        matches!(tokio::time::timeout(patience, connect).await, Ok(Ok(_)))
    }

    /// Longer than a handshake on one machine, shorter than the first SYN's repetition.
    const DROPPED: Duration = Duration::from_millis(700);

    #[tokio::test]
    async fn forged_probes_are_dropped_with_and_without_nftables_for_bridges() {
        for (guard, version) in [
            (Guard::Bridges, IpVersion::V4),
            (Guard::Bridges, IpVersion::V6),
            (Guard::Ports(BTreeSet::new()), IpVersion::V4),
            (Guard::Ports(BTreeSet::new()), IpVersion::V6),
        ] {
            let (bed, Ends { forger: own, probe, .. }) = (Bridged::new(version), ends(version));
            let [forger, _] = &bed.pods;
            assert!(reaches(forger, probe, PATIENCE).await, "{guard:?}: without the rules");
            let side = NodeSide::new(true);
            side.lock().guard = guard.clone();
            let mend = || bed.node.run(|| side.mend()).expect("enter").expect("mend");
            mend();
            assert!(!side.is_open());
            assert!(!reaches(forger, probe, DROPPED).await, "{guard:?}: dropped");
            let own = own.parse().expect("literal");
            assert!(reaches(forger, own, PATIENCE).await, "{guard:?}: others pass");
            assert_eq!(mend(), [], "{guard:?}");
            let family = if guard == Guard::Bridges { Family::Bridge } else { Family::Netdev };
            let tamper = || Nftables::open().and_then(|mut it| it.delete(family, TABLE));
            assert!(bed.node.run(tamper).expect("enter").expect("deleted"), "{guard:?}");
            assert!(reaches(forger, probe, PATIENCE).await, "{guard:?}: tampered with");
            assert_ne!(mend(), [], "{guard:?}");
            assert!(!reaches(forger, probe, DROPPED).await, "{guard:?}: put right");
            bed.node.run(|| side.erase()).expect("enter").expect("erase");
            assert!(!bed.node.run(tamper).expect("enter").expect("looked"), "{guard:?}: erased");
        }
    }

    #[tokio::test]
    async fn a_pod_that_nobody_captures_is_guarded_as_it_comes() {
        let (bed, side) = (Bridged::new(IpVersion::V4), NodeSide::new(true));
        let probe = IpVersion::V4.probe();
        side.lock().guard = Guard::Ports(BTreeSet::new());
        let mend = || bed.node.run(|| side.mend()).expect("enter").expect("mend");
        mend();
        let late = pod_on(&bed.node, "10.244.1.7");
        forge_in(&late, probe);
        assert!(reaches(&late, probe, PATIENCE).await, "its port is new");
        bed.node.run(|| side.guard_new_ports()).expect("enter").expect("guard");
        assert!(!reaches(&late, probe, DROPPED).await);
        assert_eq!(mend(), [], "a new port is no tampering");
        let port = format!("port{}", late.inode());
        let mut at_node = RouteSocket::open_in(&bed.node).expect("rtnetlink");
        assert!(at_node.delete_link(&port).expect("deleted"));
        assert_eq!(mend(), [], "nor is one that left");
    }

    #[test]
    fn where_nothing_can_guard_a_bridge_the_node_says_so() {
        let bed = Bridged::new(IpVersion::V4);
        let side = NodeSide::new(true);
        side.lock().guard = Guard::Nothing { has_ports: false };
        bed.node.run(|| side.mend()).expect("enter").expect("mend");
        assert!(side.is_open());
        let routed = NetNs::create().expect("a namespace");
        routed.run(|| side.mend()).expect("enter").expect("mend");
        assert!(!side.is_open(), "what is routed meets the tables of IP");
    }
}
