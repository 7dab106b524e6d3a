//! The node's own side of capture: connections of the node's processes to captured pods (kubelet
//! probes) take the probe address as source, by which the pods' rules know them.
//!
//! The table lives in the namespace the agent runs in and is the agent's own. Only sockets of root
//! take the address: another process on the node's network is traffic like any other. What comes to
//! the node *from* the probe address is forged and dropped, in the bridges too. It never masks a
//! connection that is only forwarded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ambit_net::netlink::NetlinkError;
use ambit_net::nftables::{
    Chain, Difference, Hook, Nftables, Priority, Protocol, Rule, Set, SocketOwner, Table,
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
        pods.settled = true;
        let mut nftables = Nftables::open().map_err(failed("open nftables"))?;
        let mut differences = Vec::new();
        for table in self.tables(&pods.all()) {
            let found = nftables.verify(&table).map_err(failed("compare the node's table"))?;
            if !found.is_empty() {
                nftables.replace(&[table]).map_err(failed("write the node's table"))?;
            }
            differences.extend(found);
        }
        Ok(differences)
    }

    /// Changes what is wanted, then the kernel's set by the difference.
    fn change(
        &self,
        edit: impl FnOnce(&mut BTreeMap<PodUid, Vec<IpAddr>>),
    ) -> Result<(), NodeSideError> {
        let mut pods = self.lock();
        let before = pods.all();
        edit(&mut pods.addresses);
        if !pods.settled {
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
