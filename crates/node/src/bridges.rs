//! Drops frames from one pod to another on the same bridge that claim to be probes of the node.
//!
//! IP tables never see them. They are dropped in the bridges, by nftables for bridges. On a kernel
//! without that, they are dropped on ingress at every port of a bridge (any device that belongs to
//! another), before the bridge takes them. The node's own frames come in by no port. On a kernel
//! with neither, a bridge cannot be guarded, and the node is not ready.
//!
//! A frame may hide IP in nested priority tags, which a host removes whatever their number. The
//! kernel has removed one when our rules run, so a frame with a second tag is always dropped.

use std::collections::BTreeSet;

use ambit_net::netlink::{NetlinkError, RouteSocket};
use ambit_net::nftables::{Chain, Difference, Family, Hook, Nftables, Priority, Rule, Table};

use crate::capture::rules::IpVersion;

/// Name of the tables, those of the node's side.
pub(crate) const TABLE: &str = "ambit-node";
/// The VLAN of a tag that gives a priority alone (IEEE 802.1Q, section 9.6).
const NO_VLAN: u16 = 0;
/// How often the ports are listed again because one left while they were written.
const ATTEMPTS_MAX: usize = 5;

/// How forged probes are kept off.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum Guard {
    /// In the bridges; what every agent tries first.
    #[default]
    Bridges,
    /// At these ports.
    Ports(BTreeSet<String>),
    /// Not at all: this kernel can do neither.
    Nothing {
        /// Whether there is a bridge to be guarded.
        has_ports: bool,
    },
}

impl Guard {
    /// Whether pods can pass for the node.
    pub(crate) fn is_open(&self) -> bool {
        *self == Self::Nothing { has_ports: true }
    }

    /// Compares the kernel's rules with the wanted ones and repairs them; returns what was altered.
    pub(crate) fn mend(&mut self, kernel: &mut Nftables) -> Result<Vec<Difference>, NetlinkError> {
        if *self == Self::Bridges {
            match mend(kernel, bridge_table()) {
                // A kernel that knows the family and no chain in it says that there is none.
                Err(error) if error.is_unsupported() || error.is_not_found() => {
                    tracing::info!(
                        "this kernel has no nftables for bridges: forged probes are dropped at \
                         each port instead"
                    );
                    *self = Self::Ports(BTreeSet::new());
                }
                done => return done,
            }
        }
        let mut attempts = 1;
        loop {
            let ports = bridge_ports()?;
            let Self::Ports(known) = self else {
                *self = Self::Nothing { has_ports: !ports.is_empty() };
                return Ok(Vec::new());
            };
            match mend(kernel, port_table(&ports)) {
                // Ports that came or went are no tampering.
                Ok(found) => {
                    let is_as_known = *known == ports;
                    *known = ports;
                    return Ok(if is_as_known { found } else { Vec::new() });
                }
                Err(error)
                    if error.is_unsupported() || error.is_not_found() && !takes_devices(kernel) =>
                {
                    tracing::warn!(
                        "this kernel has nftables neither for bridges nor for devices: a pod with \
                         NET_RAW may pass for a probe of the node to pods on the same bridge; a \
                         node with a bridge is not ready (CONFIG_NF_TABLES_BRIDGE or \
                         CONFIG_NF_TABLES_NETDEV is needed)"
                    );
                    *self = Self::Nothing { has_ports: !ports.is_empty() };
                    return Ok(Vec::new());
                }
                Err(error) if error.is_not_found() && attempts < ATTEMPTS_MAX => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Compares a table and replaces it if it differs; says how it differed.
pub(crate) fn mend(kernel: &mut Nftables, table: Table) -> Result<Vec<Difference>, NetlinkError> {
    let found = kernel.verify(&table)?;
    if !found.is_empty() {
        kernel.replace(&[table])?;
    }
    Ok(found)
}

/// Whether this kernel attaches chains to devices at all: to loopback, which is everywhere.
fn takes_devices(kernel: &mut Nftables) -> bool {
    const TRIAL: &str = "ambit-node-trial";
    let table = Table::new(Family::Netdev, TRIAL).chain(Chain::ingress("lo", Priority::RAW));
    let done = kernel.replace(&[table]).and_then(|()| kernel.delete(Family::Netdev, TRIAL));
    done.is_ok()
}

/// The devices of this namespace that are ports of another.
fn bridge_ports() -> Result<BTreeSet<String>, NetlinkError> {
    let links = RouteSocket::open()?.links()?;
    Ok(links.into_iter().filter(|link| link.master.is_some()).map(|link| link.name).collect())
}

fn bridge_table() -> Table {
    let chain = Chain::filter("raw-prerouting", Hook::Prerouting, Priority::RAW);
    Table::new(Family::Bridge, TABLE).chain(chain.rules(rules()))
}

fn port_table(ports: &BTreeSet<String>) -> Table {
    let chain = |port: &String| Chain::ingress(port, Priority::RAW).rules(rules());
    Table::new(Family::Netdev, TABLE).chains(ports.iter().map(chain))
}

fn rules() -> [Rule; 4] {
    let forged = |version: IpVersion| {
        let rule = Rule::new("forged probes");
        let rule = match version {
            IpVersion::V4 => rule.ipv4(),
            IpVersion::V6 => rule.ipv6(),
        };
        rule.source(version.probe().into()).drop()
    };
    let hidden = |service| Rule::new("hidden in priority tags").nested_tag(service, NO_VLAN).drop();
    [forged(IpVersion::V4), forged(IpVersion::V6), hidden(false), hidden(true)]
}
