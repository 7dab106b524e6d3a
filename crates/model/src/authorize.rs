//! Inbound: whether a connection may come in, and why.
//!
//! [`View::authorize`] is a pure function of the view and the flow. It fails closed: if the
//! workload names a policy that the view does not hold, the connection is denied. The order is
//! Istio's: a DENY that matches denies; without any ALLOW everything else is allowed; with one,
//! only what an ALLOW matches.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ambit_words::labels::USE_WAYPOINT;

use crate::Text;
use crate::address::Reach;
use crate::identity::Identity;
use crate::names::{PolicyName, ServiceName};
use crate::policy::{Action, Match, Policy, PolicyScope, Rule, ServiceAccountMatch};
use crate::sieve::{Clue, Kind};
use crate::view::View;
use crate::workload::{GatewayAddress, GatewayDestination, Workload};

/// The client, as far as it is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    identity: Option<Identity>,
    principal: String,
    ip: IpAddr,
}

impl Source {
    /// A source with the identity it proved, if any, and its address.
    pub fn new(identity: Option<Identity>, ip: IpAddr) -> Self {
        let principal = identity.as_ref().map(Identity::principal).unwrap_or_default();
        Self { identity, principal, ip }
    }

    /// The proven identity.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The address it comes from.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// What policies call the identity, `TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`; empty without one.
    pub(crate) fn principal(&self) -> &str {
        &self.principal
    }

    pub(crate) fn namespace(&self) -> &str {
        self.identity.as_ref().map_or("", |identity| &identity.namespace)
    }
}

/// The decision, and what the policies on trial would have decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What holds.
    pub decision: Decision,
    /// What each dry-run policy would have denied; empty when all of them agree with an allow.
    pub dry_run_denials: Vec<Denial>,
}

/// What holds for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may come in; the policy and rule that allow it, or none when no ALLOW policy exists.
    Allow(Option<RuleName>),
    /// It may not.
    Deny(Denial),
}

/// One rule of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleName {
    /// The policy.
    pub policy: PolicyName,
    /// The index of the rule, from 0, in the policy as the proxy received it.
    pub rule: usize,
}

/// Why a connection may not come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// A rule of a DENY policy matches.
    Denied(RuleName),
    /// ALLOW policies exist and none matches; the first of them is named.
    NotAllowed {
        /// An ALLOW policy that holds for the workload.
        policy: PolicyName,
        /// How many there are.
        allow_policies: usize,
    },
    /// The workload names a policy that has not been received.
    PolicyMissing(PolicyName),
    /// The workload may be reached through its waypoint only.
    NotThroughWaypoint {
        /// The waypoint as it is named.
        waypoint: String,
    },
}

impl Denial {
    /// The policy that denies, if it is one.
    pub fn policy(&self) -> Option<&PolicyName> {
        match self {
            Self::Denied(rule) => Some(&rule.policy),
            Self::NotAllowed { policy, .. } | Self::PolicyMissing(policy) => Some(policy),
            Self::NotThroughWaypoint { .. } => None,
        }
    }

    /// Whether waiting may help: the missing piece may be on its way.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::PolicyMissing(_))
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rule {}", self.policy, self.rule)
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(rule) => write!(f, "denied by policy {rule}"),
            Self::NotAllowed { policy, allow_policies: 1 } => {
                write!(f, "not matched by the ALLOW policy {policy}")
            }
            Self::NotAllowed { policy, allow_policies } => {
                write!(f, "not matched by any of {allow_policies} ALLOW policies, such as {policy}")
            }
            Self::PolicyMissing(policy) => {
                write!(f, "policy {policy} holds for the workload but has not been received")
            }
            Self::NotThroughWaypoint { waypoint } => {
                write!(f, "only waypoint {waypoint} may connect to this workload")
            }
        }
    }
}

impl View {
    /// Decides whether `source` may connect to `destination`, an address of `workload`.
    pub fn authorize(
        &self,
        workload: &Workload,
        source: &Source,
        destination: SocketAddr,
    ) -> Judgement {
        match self.judged_before(workload, source) {
            Err(denial) => {
                Judgement { decision: Decision::Deny(denial), dry_run_denials: Vec::new() }
            }
            Ok(judged) => self.authorize_after(judged, workload, source, destination),
        }
    }

    /// Decides by the policies alone, without those by which a waypoint has judged before.
    pub fn authorize_after(
        &self,
        judged: JudgedBefore,
        workload: &Workload,
        source: &Source,
        destination: SocketAddr,
    ) -> Judgement {
        let mut dry_run_denials = Vec::new();
        let decision = self.judge(workload, source, destination, judged, &mut dry_run_denials);
        Judgement { decision, dry_run_denials }
    }

    fn judge(
        &self,
        workload: &Workload,
        source: &Source,
        destination: SocketAddr,
        judged: JudgedBefore,
        dry_run_denials: &mut Vec<Denial>,
    ) -> Decision {
        let (mut allows, mut trial) = (Allows::default(), Allows::default());
        let scopes = [PolicyScope::Global, PolicyScope::Namespace].into_iter().map(|scope| {
            let namespace = (scope == PolicyScope::Namespace).then_some(&workload.namespace);
            (namespace, judged.holds(scope))
        });
        let scopes = scopes.filter(|(namespace, _)| self.has_policies(*namespace));
        for (namespace, is_judged) in scopes.clone() {
            allows.count(self.allows_of(namespace, false, is_judged));
            trial.count(self.allows_of(namespace, true, is_judged));
        }
        let (mut named, mut missing) = (Vec::new(), None);
        for name in &workload.policies {
            let Some(policy) = self.policy(name) else {
                missing.get_or_insert(name);
                continue;
            };
            if policy.is_of_waypoints && judged.holds(policy.scope) {
                continue;
            }
            if policy.action == Action::Allow {
                let side = if policy.dry_run { &mut trial } else { &mut allows };
                side.count(Some((name, 1)));
            }
            named.push(policy);
        }
        let clues = clues_of(source, destination);
        let found = scopes.flat_map(|(namespace, is_judged)| {
            let all = self.sieve().matching(namespace.map(|it| &**it), &clues);
            all.filter(move |policy| !(is_judged && policy.is_of_waypoints))
        });
        for policy in found.chain(named) {
            let Some(rule) = matching_rule(policy, source, destination) else { continue };
            match (policy.action, policy.dry_run) {
                (Action::Deny, false) => return Decision::Deny(Denial::Denied(rule)),
                (Action::Deny, true) => dry_run_denials.push(Denial::Denied(rule)),
                (Action::Allow, false) => allows.found(rule),
                (Action::Allow, true) => trial.found(rule),
            }
        }
        dry_run_denials.extend(trial.denial());
        match (missing, allows.denial()) {
            (Some(name), _) => Decision::Deny(Denial::PolicyMissing(name.clone())),
            (None, Some(denial)) => Decision::Deny(denial),
            (None, None) => Decision::Allow(allows.hit),
        }
    }

    /// The first of the ALLOW policies of the mesh, or of a namespace, and how many there are; of
    /// those that waypoints judge too only if none has.
    fn allows_of(
        &self,
        namespace: Option<&Text>,
        dry_run: bool,
        is_judged: bool,
    ) -> Option<(&PolicyName, usize)> {
        let all = [false, true].into_iter().filter(|of_waypoints| !(is_judged && *of_waypoints));
        let all = all.filter_map(|is_of_waypoints| {
            self.sieve().allows(&Kind { namespace: namespace.cloned(), dry_run, is_of_waypoints })
        });
        all.reduce(|(one, ones), (other, others)| (one.min(other), ones + others))
    }

    /// What the waypoint that the destination names, or a gateway in its place, has judged before,
    /// or the denial of a connection that goes around them.
    ///
    /// A waypoint judges what comes to a service by the policies of that service's namespace, which
    /// is the workload's too. What comes to the workload itself it judges by those of its own.
    pub fn judged_before(
        &self,
        workload: &Workload,
        source: &Source,
    ) -> Result<JudgedBefore, Denial> {
        let of_services = workload.services.keys().filter_map(|name| self.service(name));
        let of_services = of_services.flat_map(|service| {
            let weighted = service.weighted_waypoints.iter().map(|(gateway, _)| gateway);
            let all = service.waypoint.iter().chain(weighted);
            all.map(|gateway| (Some(&service.key.namespace), gateway))
        });
        let own = workload.waypoint.as_deref().map(|gateway| {
            let policies_of = match &gateway.destination {
                GatewayDestination::Hostname(name) => Some(&name.namespace),
                GatewayDestination::Refused(_) | GatewayDestination::Address(_) => None,
            };
            (policies_of, gateway)
        });
        let mut named = own.into_iter().chain(of_services).peekable();
        let Some((_, first)) = named.peek().copied() else { return Ok(JudgedBefore::Nothing) };
        let proves = |gateway| source.identity().is_some_and(|id| self.gateway_proves(gateway, id));
        // One that comes in two ways may have come by the one that judges less.
        let proven = named.filter(|(_, gateway)| proves(gateway));
        let judged = proven.map(|(policies_of, _)| policies_of == Some(&workload.namespace));
        let judged = judged.chain(self.judged_at_entrances(workload, source));
        match judged.reduce(|one, other| one && other) {
            None => Err(Denial::NotThroughWaypoint { waypoint: gateway_name(first) }),
            Some(false) => Ok(JudgedBefore::OfMesh),
            Some(true) => Ok(JudgedBefore::OfMeshAndNamespace),
        }
    }

    /// For each service that `source` may have entered at a gateway, whether that has judged by the
    /// policies of the workload's namespace too.
    fn judged_at_entrances<'a>(
        &'a self,
        workload: &'a Workload,
        source: &'a Source,
    ) -> impl Iterator<Item = bool> + use<'a> {
        let services = workload.services.keys().filter_map(|name| self.service(name));
        let entered = services.filter(|it| it.has_waypoint()).filter(move |service| {
            source.identity().is_some_and(|id| {
                service.entrances.iter().any(|gateway| self.service_proves(gateway, id))
            })
        });
        entered.map(|service| service.key.namespace == workload.namespace)
    }

    /// Whether `identity` is one that the endpoints of this service prove.
    fn service_proves(&self, service: &ServiceName, identity: &Identity) -> bool {
        let endpoints = self.endpoints(service);
        endpoints.is_some_and(|it| it.iter().any(|endpoint| endpoint.identity() == *identity))
    }

    /// Whether `identity` is one that this gateway's workloads prove.
    fn gateway_proves(&self, gateway: &GatewayAddress, identity: &Identity) -> bool {
        match &gateway.destination {
            GatewayDestination::Hostname(name) => self.service_proves(name, identity),
            GatewayDestination::Refused(_) => false,
            GatewayDestination::Address(address) => {
                let workload = self.workload_at(&address.network, address.ip);
                let service = self.service_at(&address.network, address.ip, "");
                let endpoints = service.and_then(|service| self.endpoints(&service.key));
                workload.is_some_and(|w| w.identity() == *identity)
                    || endpoints.is_some_and(|e| e.iter().any(|w| w.identity() == *identity))
            }
        }
    }

    /// Whether something of `workload`'s namespace at `ip` names it as its waypoint.
    ///
    /// Who else may name it is for its namespace to say, and the control plane alone hears that:
    /// without its word the namespace is the border, as for a Gateway that says nothing.
    pub fn is_waypoint_of(&self, workload: &Workload, ip: IpAddr) -> bool {
        if Reach::of(ip) != Reach::Far {
            return false;
        }
        let (network, namespace) = (&workload.network, &workload.namespace);
        let entry = self.workload_at(network, ip).filter(|it| it.namespace == *namespace);
        let service = self.service_at(network, ip, namespace);
        let service = service.filter(|it| it.key.namespace == *namespace);
        let of_service = service.into_iter().flat_map(|service| {
            let weighted = service.weighted_waypoints.iter().map(|(gateway, _)| gateway);
            service.waypoint.iter().chain(weighted)
        });
        let of_workload = entry.and_then(|it| it.waypoint.as_deref());
        of_workload.into_iter().chain(of_service).any(|gateway| match &gateway.destination {
            GatewayDestination::Hostname(name) => workload.services.contains_key(name),
            GatewayDestination::Refused(_) => false,
            GatewayDestination::Address(address) => {
                let service = self.service_at(&address.network, address.ip, "");
                workload.addresses.contains(&address.ip)
                    || service.is_some_and(|it| workload.services.contains_key(&it.key))
            }
        })
    }

    /// What would have to change for a denied connection to come in, for a person to read.
    pub fn remedy(&self, workload: &Workload, source: &Source, denial: &Denial) -> String {
        match denial {
            Denial::Denied(rule) => format!(
                "rule {} of DENY policy {} must no longer match this source",
                rule.rule, rule.policy
            ),
            Denial::PolicyMissing(policy) => {
                format!("the control plane must send policy {policy}, or the workload not name it")
            }
            Denial::NotThroughWaypoint { waypoint } => {
                format!("connect through {waypoint}, or remove the label {USE_WAYPOINT}")
            }
            Denial::NotAllowed { policy, .. } if source.identity().is_none() => format!(
                "the client must be in the mesh to prove an identity, or {policy} must allow \
                 its address {}",
                source.ip()
            ),
            Denial::NotAllowed { policy, .. } => format!(
                "a rule of {policy} or of another ALLOW policy for {}/{} must match principal {}",
                workload.namespace, workload.name, source.principal
            ),
        }
    }
}

/// By which policies, of those that waypoints judge, a connection was judged by one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedBefore {
    /// It comes from no waypoint.
    Nothing,
    /// Those of the mesh.
    OfMesh,
    /// Those of the mesh and of the workload's namespace.
    OfMeshAndNamespace,
}

impl JudgedBefore {
    /// Whether those of this scope are among them.
    fn holds(self, scope: PolicyScope) -> bool {
        match scope {
            PolicyScope::Global => !matches!(self, Self::Nothing),
            PolicyScope::Namespace => matches!(self, Self::OfMeshAndNamespace),
            PolicyScope::WorkloadSelector => false,
        }
    }
}

/// The name of a gateway, for a person to read.
pub(crate) fn gateway_name(gateway: &GatewayAddress) -> String {
    match &gateway.destination {
        GatewayDestination::Hostname(ServiceName { namespace, hostname }) => {
            format!("{namespace}/{hostname}")
        }
        GatewayDestination::Refused(name) => name.to_string(),
        GatewayDestination::Address(address) => address.ip.to_string(),
    }
}

/// What the ALLOW policies seen so far say.
#[derive(Default)]
pub(crate) struct Allows<'a> {
    first: Option<&'a PolicyName>,
    count: usize,
    pub(crate) hit: Option<RuleName>,
}

impl<'a> Allows<'a> {
    /// There are so many more, of which this is the first.
    pub(crate) fn count(&mut self, policies: Option<(&'a PolicyName, usize)>) {
        let Some((first, count)) = policies else { return };
        self.first.get_or_insert(first);
        self.count += count;
    }

    /// This rule matches.
    pub(crate) fn found(&mut self, rule: RuleName) {
        self.hit.get_or_insert(rule);
    }

    pub(crate) fn denial(&self) -> Option<Denial> {
        let policy = self.first.filter(|_| self.hit.is_none())?;
        Some(Denial::NotAllowed { policy: policy.clone(), allow_policies: self.count })
    }
}

/// What policies can find this connection by.
fn clues_of(source: &Source, destination: SocketAddr) -> [Clue<'_>; 6] {
    let account = source.identity().map_or("", |identity| &identity.service_account);
    [
        Clue::Anything,
        Clue::Principal(source.principal()),
        Clue::Account(source.namespace(), account),
        Clue::Ip(source.ip()),
        Clue::Namespace(source.namespace()),
        Clue::Port(destination.port()),
    ]
}

fn matching_rule(policy: &Policy, source: &Source, destination: SocketAddr) -> Option<RuleName> {
    let holds = |rule: &Rule| rule_holds(rule, source, destination);
    let rule = policy.rules.iter().position(holds)?;
    Some(RuleName { policy: policy.key.clone(), rule })
}

fn rule_holds(rule: &Rule, source: &Source, destination: SocketAddr) -> bool {
    rule.clauses.iter().all(|clause| {
        clause.matches.is_empty()
            || clause.matches.iter().any(|one| match_holds(one, source, destination))
    })
}

/// Whether every field of the match that is not empty holds; a match without fields never does.
fn match_holds(one: &Match, source: &Source, destination: SocketAddr) -> bool {
    if *one == Match::default() {
        return false;
    }
    let account = |wanted: &ServiceAccountMatch| {
        source.identity().is_some_and(|identity| {
            identity.namespace == wanted.namespace
                && identity.service_account == wanted.service_account
        })
    };
    let principal = |wanted: &crate::policy::TextMatch| {
        source.identity().is_some() && wanted.matches(&source.principal)
    };
    let (from, to) = (source.ip(), destination.ip());
    field(&one.namespaces, &one.not_namespaces, |m| m.matches(source.namespace()))
        && field(&one.principals, &one.not_principals, principal)
        && field(&one.service_accounts, &one.not_service_accounts, account)
        && field(&one.source_ips, &one.not_source_ips, |net| net.contains(&from))
        && field(&one.destination_ips, &one.not_destination_ips, |net| net.contains(&to))
        && field(&one.destination_ports, &one.not_destination_ports, |p| *p == destination.port())
}

/// One field: any of the positive values (when there are some), none of the negative ones.
pub(crate) fn field<T>(positive: &[T], negative: &[T], matches: impl Fn(&T) -> bool) -> bool {
    (positive.is_empty() || positive.iter().any(&matches)) && !negative.iter().any(&matches)
}
