//! Capture in a pod's network namespace: brings the rules of [`rules`] into place, finds out
//! whether they still are, and takes them away in two steps.
//!
//! Every function is idempotent and blocks for the few netlink exchanges it makes; call it off the
//! runtime's threads. Rules are swapped in one transaction, so no packet meets half of them.
//! Nothing here changes a table, rule or route that is not the agent's own, but for those of an
//! istio-cni whose place it has taken ([`istio`]).

mod istio;
mod older;
mod parameters;
pub(crate) mod ports;
pub(crate) mod rules;
#[cfg(test)]
mod stray;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;

use ambit_net::namespace::NetNs;
use ambit_net::netlink::{NetlinkError, Route, RouteSocket};
use ambit_net::nftables::{Connection, Difference, Nftables, Table};
use ambit_net::procnet;
use ambit_words::ports::OF_PROXY;

use crate::enrolment::Footprint;
use crate::pod::CaptureOptions;
use rules::{Extent, Filter, IpVersion, TABLE, Uplink};

/// What stays after [`remove_redirects`] serves connections captured with whatever options.
const REMAINS: CaptureOptions =
    CaptureOptions { dns: true, ipv6: true, bypass_inbound: false, cut_open: false };

/// Why capture is brought into place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// The pod is enrolled: what is open and was never captured is older, and goes on.
    Enrolment,
    /// Capture is in place, or was altered: what is open now is not older for that.
    Repair,
}

/// How capture stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// What was not as it should be, and was put right.
    pub(crate) drifts: Vec<Drift>,
    /// Open connections that are older than the capture and go by in plain text.
    pub(crate) older: usize,
    /// The kernel parameter that capture has to do without.
    pub(crate) lacks: Option<&'static str>,
}

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
    /// A kernel parameter was off.
    Parameter(&'static str),
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
            Self::Parameter(name) => write!(f, "{name} was altered"),
            Self::Istio => write!(f, "found and removed rules of istio-cni"),
        }
    }
}

/// Brings everything into place and says what was not.
pub(crate) fn program(
    netns: &NetNs,
    options: CaptureOptions,
    extent: Extent,
    occasion: Occasion,
) -> Result<Standing, CaptureError> {
    let bring = || Pod::open(options, extent, occasion)?.mend(occasion);
    netns.run(bring).map_err(CaptureError::Enter)?
}

/// Says what is not in place, and changes nothing.
#[cfg(test)]
pub(crate) fn verify(
    netns: &NetNs,
    options: CaptureOptions,
    extent: Extent,
) -> Result<Vec<Drift>, CaptureError> {
    netns
        .run(|| Pod::open(options, extent, Occasion::Repair)?.drifts())
        .map_err(CaptureError::Enter)?
}

/// Stops capturing new connections; those captured before go on. Says what it found altered.
pub(crate) fn remove_redirects(netns: &NetNs) -> Result<Vec<Drift>, CaptureError> {
    program(netns, REMAINS, Extent::Remains, Occasion::Repair).map(|standing| standing.drifts)
}

/// Removes all that is the agent's. Connections that were captured break: see [`connections`].
///
/// The kernel parameters stay: they are harmless, and whether the pod had set them itself is not
/// known.
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
    Ok(OF_PROXY.iter().filter_map(|port| counts.get(port)).sum())
}

/// The calling thread's namespace, open for work.
struct Pod {
    nftables: Nftables,
    routing: RouteSocket,
    options: CaptureOptions,
    extent: Extent,
    /// Every route, as found when the namespace was opened.
    routes: Vec<Route>,
    /// The IP versions whose rules are ours, each with how much of them is wanted.
    extents: Vec<(IpVersion, Extent)>,
    /// The IP versions that have policy routing: IPv6 may be switched off in the pod.
    routed: Vec<IpVersion>,
    /// The connections older than the capture, as the kernel has noted them; none where they were
    /// not noted yet.
    record: Option<BTreeSet<Connection>>,
}

impl Pod {
    fn open(
        options: CaptureOptions,
        extent: Extent,
        occasion: Occasion,
    ) -> Result<Self, CaptureError> {
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
        let routed = extents.iter().map(|(version, _)| *version);
        let routed = routed.filter(|v| *v == IpVersion::V4 || ipv6_enabled()).collect();
        let record = match extent {
            Extent::Full => record(&mut nftables, options, occasion, &extents)?,
            Extent::Remains => Some(BTreeSet::new()),
        };
        Ok(Self { nftables, routing, options, extent, routes, extents, routed, record })
    }

    /// What the kernel is to have.
    fn tables(&self, filter: &Filter) -> BTreeMap<IpVersion, Table> {
        let table = |(version, extent): &(IpVersion, Extent)| {
            let uplink = uplink(&self.routes, *version);
            (*version, rules::table(*version, self.options, *extent, &uplink, filter))
        };
        self.extents.iter().map(table).collect()
    }

    fn drifts(&mut self) -> Result<Vec<Drift>, CaptureError> {
        let mut drifts = Vec::new();
        for (version, table) in self.tables(&self.filter()) {
            let differences = self.nftables.verify(&table).map_err(kernel("compare the table"))?;
            drifts.extend(differences.into_iter().map(|d| Drift::Rules(version, d)));
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
        drifts.extend(parameters::altered().into_iter().map(Drift::Parameter));
        Ok(drifts)
    }

    fn mend(&mut self, occasion: Occasion) -> Result<Standing, CaptureError> {
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
                Drift::Parameter(_) | Drift::Rules(..) | Drift::Istio => {}
            }
        }
        parameters::set();
        if drifts.iter().any(|drift| matches!(drift, Drift::Rules(..))) {
            if self.record.is_none() && occasion == Occasion::Enrolment {
                self.note_older()?;
            }
            self.write(&self.filter())?;
        }
        // Ours stand: between the two no connection goes by unseen.
        if istio::remove(&mut self.nftables).map_err(kernel("remove istio-cni's rules"))? {
            drifts.push(Drift::Istio);
        }
        let older = self.forget_ended()?;
        let is_lacking = self.extent == Extent::Full && !parameters::is_strict();
        let lacks = is_lacking.then_some(rules::LOOSE_PARAMETER);
        Ok(Standing { drifts, older, lacks })
    }

    /// The filter with what is on record: nothing, where nothing was noted.
    fn filter(&self) -> Filter {
        Filter::AllBut(self.record.clone().unwrap_or_default())
    }

    fn write(&mut self, filter: &Filter) -> Result<(), CaptureError> {
        let tables: Vec<Table> = self.tables(filter).into_values().collect();
        self.nftables.replace(&tables).map_err(kernel("write the capture rules"))
    }

    /// Notes what is open, once no connection can join it any more.
    fn note_older(&mut self) -> Result<(), CaptureError> {
        self.write(&Filter::FirstPackets)?;
        // It may have come with the first rule that asks connection tracking.
        parameters::set();
        let mut noted = older::note().map_err(CaptureError::Sockets)?;
        if self.options.cut_open {
            // Before the filter, which would keep the resets from leaving.
            older::cut(&noted);
            noted.clear();
        }
        self.record = Some(noted.into_iter().map(|it| it.ends).collect());
        Ok(())
    }

    /// Takes off the record what has ended, or is to end, so that nobody can use it again. Says how
    /// many are left.
    fn forget_ended(&mut self) -> Result<usize, CaptureError> {
        let Some(record) = self.record.as_ref().filter(|record| !record.is_empty()) else {
            return Ok(0);
        };
        let mut open = older::still_open(record).map_err(CaptureError::Sockets)?;
        if self.options.cut_open {
            older::cut(&open);
            open.clear();
        }
        let open: BTreeSet<Connection> = open.into_iter().map(|it| it.ends).collect();
        let ended: Vec<Connection> = record.difference(&open).copied().collect();
        for (version, extent) in &self.extents {
            let of_version = |it: &&Connection| it.local.is_ipv6() == (*version == IpVersion::V6);
            let ended: Vec<Connection> = ended.iter().filter(of_version).copied().collect();
            if *extent == Extent::Full && !ended.is_empty() {
                self.nftables
                    .remove_connections(version.family(), TABLE, rules::OLDER, &ended)
                    .map_err(kernel("forget connections that have ended"))?;
            }
        }
        Ok(open.len())
    }
}

/// The connections on record, if they were noted for all that is to be captured: an older agent
/// noted none, and none were noted of connections to a pod that took them as they came.
fn record(
    nftables: &mut Nftables,
    options: CaptureOptions,
    occasion: Occasion,
    extents: &[(IpVersion, Extent)],
) -> Result<Option<BTreeSet<Connection>>, CaptureError> {
    let mut all = BTreeSet::new();
    for (version, _) in extents.iter().filter(|(_, extent)| *extent == Extent::Full) {
        let family = version.family();
        let noted = nftables.connections(family, TABLE, rules::OLDER);
        let noted = noted.map_err(kernel("list the older connections"))?;
        if occasion == Occasion::Repair {
            // What was lost with its table is lost: what is open now proves nothing.
            all.extend(noted.unwrap_or_default());
            continue;
        }
        let Some(noted) = noted else { return Ok(None) };
        let rules = nftables.list_rules(family, TABLE).map_err(kernel("list the table's rules"))?;
        let is_filtered = rules.iter().any(|rule| rule.chain == rules::INPUT_FILTER);
        if !options.bypass_inbound && !is_filtered {
            return Ok(None);
        }
        all.extend(noted);
    }
    Ok(Some(all))
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

fn kernel(operation: &'static str) -> impl Fn(NetlinkError) -> CaptureError {
    move |source| CaptureError::Kernel(operation, source)
}
