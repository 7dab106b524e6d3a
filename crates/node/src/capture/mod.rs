//! Capture in a pod's network namespace: brings the rules of [`rules`] into place, finds out
//! whether they still are, and takes them away in two steps.
//!
//! Every function is idempotent and blocks for the few netlink exchanges it makes; call it off the
//! runtime's threads. Rules are swapped in one transaction, so no packet meets half of them.
//! Nothing here changes a table, rule or route that is not the agent's own, but for those of an
//! istio-cni whose place it has taken ([`istio`]).

mod istio;
pub(crate) mod rules;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Once;

use ambit_net::namespace::{self, NetNs};
use ambit_net::netlink::{NetlinkError, Route, RouteSocket};
use ambit_net::nftables::{Difference, Nftables, Table};
use ambit_net::procnet;

use crate::enrolment::Footprint;
use crate::pod::CaptureOptions;
use rules::{Extent, IpVersion, MIGRATE_PARAMETER, TABLE, Uplink};

/// What stays after [`remove_redirects`] serves connections captured with whatever options.
const REMAINS: CaptureOptions = CaptureOptions { dns: true, ipv6: true, bypass_inbound: false };

/// Why capture could not be brought into place, compared or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// The agent cannot enter the pod's namespace.
    #[error("enter the pod's network namespace (needs SYS_ADMIN)")]
    Enter(#[source] io::Error),
    /// The kernel's network configuration could not be read or changed.
    #[error("{0}")]
    Kernel(&'static str, #[source] NetlinkError),
    /// The sockets of the namespace could not be listed.
    #[error("list the connections in the pod's network namespace")]
    Sockets(#[source] io::Error),
}

/// One thing that was not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Drift {
    /// Rules, chains or a whole table.
    Rules(IpVersion, Difference),
    /// The policy routing rule was missing.
    PolicyRule(IpVersion),
    /// A local route was missing.
    Route(Route),
    /// The kernel parameter was off.
    Parameter,
    /// Capture rules of istio-cni stood beside ours.
    Istio,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(version, Difference::NoTable { table }) => {
                write!(f, "{version:?} table {table} missing")
            }
            Self::Rules(version, Difference::Chain { chain }) => {
                write!(f, "{version:?} chain {chain} missing or moved")
            }
            Self::Rules(version, Difference::Rules { chain, position, comment }) => {
                write!(f, "{version:?} chain {chain}, rule {position} ({comment}) differs")
            }
            Self::Rules(version, Difference::ExtraChain { chain }) => {
                write!(f, "{version:?} chain {chain} does not belong there")
            }
            Self::Rules(version, Difference::Set { set }) => {
                write!(f, "{version:?} set {set} differs")
            }
            Self::PolicyRule(version) => write!(f, "{version:?} policy routing rule missing"),
            Self::Route(route) => write!(f, "local route to {} missing", route.destination),
            Self::Parameter => write!(f, "{MIGRATE_PARAMETER} is off"),
            Self::Istio => write!(f, "rules of istio-cni are there, and removed"),
        }
    }
}

/// Brings everything into place and says what was not.
pub(crate) fn program(
    netns: &NetNs,
    options: CaptureOptions,
    extent: Extent,
) -> Result<Vec<Drift>, CaptureError> {
    netns.run(|| Pod::open(options, extent)?.mend()).map_err(CaptureError::Enter)?
}

/// Says what is not in place, and changes nothing.
#[cfg(test)]
pub(crate) fn verify(
    netns: &NetNs,
    options: CaptureOptions,
    extent: Extent,
) -> Result<Vec<Drift>, CaptureError> {
    netns.run(|| Pod::open(options, extent)?.drifts()).map_err(CaptureError::Enter)?
}

/// Stops capturing new connections; those captured before go on. Says what it found altered.
pub(crate) fn remove_redirects(netns: &NetNs) -> Result<Vec<Drift>, CaptureError> {
    program(netns, REMAINS, Extent::Remains)
}

/// Removes all that is the agent's. Connections that were captured break: see [`connections`].
///
/// The kernel parameter stays: it is harmless, and whether the pod had set it itself is not known.
pub(crate) fn remove_all(netns: &NetNs) -> Result<(), CaptureError> {
    netns
        .run(|| {
            let mut nftables = Nftables::open().map_err(kernel("open nftables"))?;
            let mut routes = RouteSocket::open().map_err(kernel("open rtnetlink"))?;
            for version in [IpVersion::V4, IpVersion::V6] {
                nftables.delete(version.family(), TABLE).map_err(kernel("delete the table"))?;
                if version == IpVersion::V6 && !ipv6_enabled() {
                    continue;
                }
                routes
                    .delete_rule(&rules::policy_rule(version))
                    .map_err(kernel("delete the policy routing rule"))?;
                for route in rules::routes(version) {
                    routes.delete_route(&route).map_err(kernel("delete a local route"))?;
                }
            }
            Ok(())
        })
        .map_err(CaptureError::Enter)?
}

/// Looks for rules that an earlier agent left.
pub(crate) fn footprint(netns: &NetNs) -> Result<Footprint, CaptureError> {
    let look = || {
        if istio::has_legacy_nat() {
            tracing::warn!(
                "the pod has rules of the legacy iptables, which the agent cannot \
                remove; if istio-cni made them, restart the pod"
            );
        }
        let mut nftables = Nftables::open().map_err(kernel("open nftables"))?;
        let mut routes = RouteSocket::open().map_err(kernel("open rtnetlink"))?;
        let policy_rules = routes.rules().map_err(kernel("list policy routing rules"))?;
        for version in [IpVersion::V4, IpVersion::V6] {
            let ruled = policy_rules.contains(&rules::policy_rule(version));
            if ruled || has_table(&mut nftables, version)? {
                return Ok(Footprint::Some);
            }
        }
        Ok(Footprint::None)
    };
    netns.run(look).map_err(CaptureError::Enter)?
}

/// How many captured connections are still open: sockets on the proxy's ports.
pub(crate) fn connections(netns: &NetNs) -> Result<usize, CaptureError> {
    let counts = netns
        .run(procnet::established_by_local_port)
        .map_err(CaptureError::Enter)?
        .map_err(CaptureError::Sockets)?;
    let ports = [rules::OUTBOUND_PORT, rules::INBOUND_PORT, rules::HBONE_PORT];
    Ok(ports.iter().filter_map(|port| counts.get(port)).sum())
}

/// The calling thread's namespace, open for work.
struct Pod {
    nftables: Nftables,
    routing: RouteSocket,
    /// Every route, as found when the namespace was opened.
    routes: Vec<Route>,
    tables: Vec<(IpVersion, Table)>,
    /// The IP versions that have policy routing: IPv6 may be switched off in the pod.
    routed: Vec<IpVersion>,
}

impl Pod {
    fn open(options: CaptureOptions, extent: Extent) -> Result<Self, CaptureError> {
        let mut nftables = Nftables::open().map_err(kernel("open nftables"))?;
        let mut routing = RouteSocket::open().map_err(kernel("open rtnetlink"))?;
        let routes = routing.routes().map_err(kernel("list routes"))?;
        let mut extents = vec![(IpVersion::V4, extent)];
        if options.ipv6 {
            extents.push((IpVersion::V6, extent));
        } else if has_table(&mut nftables, IpVersion::V6)? {
            // Captured by an agent that ran with IPv6: those connections go on.
            extents.push((IpVersion::V6, Extent::Remains));
        }
        let table = |(version, extent): &(IpVersion, Extent)| {
            let uplink = uplink(&routes, *version);
            (*version, rules::table(*version, options, *extent, &uplink))
        };
        let tables = extents.iter().map(table).collect();
        let routed = extents.iter().map(|(version, _)| *version);
        let routed = routed.filter(|v| *v == IpVersion::V4 || ipv6_enabled()).collect();
        Ok(Self { nftables, routing, routes, tables, routed })
    }

    fn drifts(&mut self) -> Result<Vec<Drift>, CaptureError> {
        let mut drifts = Vec::new();
        for (version, table) in &self.tables {
            let differences = self.nftables.verify(table).map_err(kernel("compare the table"))?;
            drifts.extend(differences.into_iter().map(|d| Drift::Rules(*version, d)));
        }
        let policy_rules = self.routing.rules().map_err(kernel("list policy routing rules"))?;
        for &version in &self.routed {
            if !policy_rules.contains(&rules::policy_rule(version)) {
                drifts.push(Drift::PolicyRule(version));
            }
            let what = |route: &Route| (route.destination, route.table, route.kind);
            let found = |wanted: &Route| self.routes.iter().any(|it| what(it) == what(wanted));
            let missing = rules::routes(version).into_iter().filter(|wanted| !found(wanted));
            drifts.extend(missing.map(Drift::Route));
        }
        if parameter_is_off() {
            drifts.push(Drift::Parameter);
        }
        Ok(drifts)
    }

    fn mend(&mut self) -> Result<Vec<Drift>, CaptureError> {
        let mut drifts = self.drifts()?;
        // Routes first: the marks that the rules set lead nowhere without them.
        for drift in &drifts {
            match drift {
                Drift::PolicyRule(version) => self
                    .routing
                    .ensure_rule(&rules::policy_rule(*version))
                    .map_err(kernel("add the policy routing rule"))?,
                Drift::Route(route) => {
                    self.routing.ensure_route(route).map_err(kernel("add a local route"))?;
                }
                Drift::Parameter => set_parameter(),
                Drift::Rules(..) | Drift::Istio => {}
            }
        }
        if drifts.iter().any(|drift| matches!(drift, Drift::Rules(..))) {
            let tables: Vec<Table> = self.tables.iter().map(|(_, table)| table.clone()).collect();
            self.nftables.replace(&tables).map_err(kernel("write the capture rules"))?;
        }
        // Ours stand: between the two no connection goes by unseen.
        if istio::remove(&mut self.nftables).map_err(kernel("remove istio-cni's rules"))? {
            drifts.push(Drift::Istio);
        }
        Ok(drifts)
    }
}

/// Whether the agent's table is there; it is never without rules.
fn has_table(nftables: &mut Nftables, version: IpVersion) -> Result<bool, CaptureError> {
    let rules = nftables.list_rules(version.family(), TABLE);
    Ok(!rules.map_err(kernel("list the table's rules"))?.is_empty())
}

/// The interface of the default route, by which the node's own packets come in.
fn uplink(routes: &[Route], version: IpVersion) -> Uplink {
    let default = |route: &&Route| rules::is_default(route, version);
    let link = routes.iter().find(default).and_then(|route| route.link.clone());
    link.map_or(Uplink::NotLoopback, Uplink::Named)
}

/// Whether loopback of the calling thread's namespace takes IPv6; without there are no routes.
fn ipv6_enabled() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6").is_ok_and(|v| v.trim() == "0")
}

/// Whether the parameter can be switched on and is not. Older kernels do not have it; capture works
/// without.
fn parameter_is_off() -> bool {
    let path = Path::new("/proc/sys").join(MIGRATE_PARAMETER);
    if !fs::read_to_string(path).is_ok_and(|value| value.trim() == "0") {
        return false;
    }
    let opened = namespace::open_sysctl(MIGRATE_PARAMETER);
    if let Err(error) = &opened {
        // What is true of one pod is true of all, and of each look at them.
        static TOLD: Once = Once::new();
        TOLD.call_once(|| cannot_set(error));
    }
    opened.is_ok()
}

fn set_parameter() {
    if let Err(error) = namespace::set_sysctl(MIGRATE_PARAMETER, "1") {
        cannot_set(&error);
    }
}

fn cannot_set(error: &io::Error) {
    tracing::warn!(%error, "{MIGRATE_PARAMETER} stays off: a proxy that restarts may reset \
        connections that wait to be accepted");
}

fn kernel(operation: &'static str) -> impl Fn(NetlinkError) -> CaptureError {
    move |source| CaptureError::Kernel(operation, source)
}
