//! What happens to a connection, what decides it, and what would have to change.
//!
//! The answer comes from the same functions that proxies call, over the view that proxies got, for
//! a proxy on the client's node with no other connection open. Nothing here may add its own rules.

mod bounds;
mod connection;
mod ends;
mod fronted;
mod limits;
mod reached;
mod request;
mod sent_on;
#[cfg(test)]
mod tests;
mod token;
mod told;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ambit_manifest::canary::WHOLE;
use ambit_manifest::{Kind, ObjectName};
use ambit_model::authorize::{Decision, Denial, RuleName, Source};
use ambit_model::choice::Surroundings;
use ambit_model::fence::{Condition, Fenced, Said, Undeclared};
use ambit_model::identity::Identity;
use ambit_model::plan::{Direct, Flow, Lookup, Plan, Refusal, Target};
use ambit_model::service::{Mode, Service};
use ambit_model::workload::{GatewayAddress, Tunnel, Workload};
use ambit_wire::admin;
use ambit_words::labels::{DATAPLANE_MODE, INGRESS_USE_WAYPOINT};
use serde_json::json;

use self::ends::{Destination, Ends};
use super::lists::{self, protocol};
use crate::view_builder::Builder;

pub(super) use self::connection::explain as explain_connection;
pub(super) use self::ends::WhyError;
pub(super) use self::request::{Request, explain as explain_request};

/// Declared hosts that an answer names.
const HOSTS_MAX: usize = 8;

/// A proxy on the client's node that has nothing else to do.
struct Quiet {
    enrolled: HashMap<IpAddr, Identity>,
}

impl Surroundings for Quiet {
    fn enrolled_identity(&self, ip: IpAddr) -> Option<&Identity> {
        self.enrolled.get(&ip)
    }

    fn may_join(&self) -> bool {
        true
    }

    fn open_connections(&self, _uid: &str) -> u32 {
        0
    }

    fn is_set_aside(&self, _uid: &str) -> bool {
        false
    }

    fn random_below(&mut self, _bound: u64) -> u64 {
        0
    }
}

/// Explains a connection of pod `source` to `destination`, as the client's proxy and the server's
/// see it.
fn explain(
    builder: &Builder,
    source: &str,
    destination: &str,
) -> Result<admin::Explanation, WhyError> {
    explain_named(builder, source, destination, None)
}

/// The same of one that has this name in its TLS handshake.
fn explain_named(
    builder: &Builder,
    source: &str,
    destination: &str,
    server_name: Option<&str>,
) -> Result<admin::Explanation, WhyError> {
    let ends = Ends { builder };
    let mut notes = Vec::new();
    let client = ends.source(source, &mut notes)?;
    let target = ends.destination(client, destination, &mut notes)?;
    if target.address.port() == 0 {
        return Err(WhyError::PortZero);
    }
    let source_ip = source_address(client, target.address.ip());
    let own = gateway_of(builder, client);
    if let Some(own) = own {
        notes.push(format!(
            "{}/{} is a pod of Gateway {}/{}, which proves its identity itself",
            client.namespace, client.name, own.namespace, own.name
        ));
    }
    let is_captured = client.tunnel == Tunnel::Hbone || own.is_some();
    let entered = own.filter(|own| is_entered(builder, own, client, &target));
    let plan = if is_captured {
        let flow = Flow { source: client, source_ip, destination: target.address };
        builder.view().plan(&flow, &mut quiet(builder, client))
    } else {
        notes.push(format!(
            "{}/{} is not captured: the connection does not pass a proxy on its side and proves \
             no identity",
            client.namespace, client.name
        ));
        uncaptured(builder, &target)
    };
    if let Plan::Direct(Direct { workload: Some(workload), .. }) = &plan
        && let Some(gateway) = gateway_of(builder, workload)
    {
        return Err(WhyError::Gateway {
            pod: format!("{}/{}", workload.namespace, workload.name),
            gateway: format!("{}/{}", gateway.namespace, gateway.name),
        });
    }
    let server_name = server_name.map(str::to_ascii_lowercase);
    let judge = Judge { builder, client, is_captured, source_ip, server_name };
    let outcome = entered.map_or_else(|| judge.outcome(&plan, &mut notes), entering);
    Ok(admin::Explanation {
        api_version: admin::ApiVersion,
        source: admin::Client {
            pod: format!("{}/{}", client.namespace, client.name),
            address: source_ip,
            node: client.node.to_string(),
            captured: is_captured,
            identity: client.identity().to_string(),
        },
        certificate: None,
        destination: admin::Destination { name: target.name, address: target.address },
        plan: outcome.plan.into(),
        path: outcome.path,
        server: outcome.server,
        decision: outcome.judgement.decision,
        decided_by: outcome.judgement.decided_by,
        policy: outcome.judgement.policy,
        reason: outcome.judgement.reason,
        remedy: outcome.judgement.remedy,
        request: None,
        connection: None,
        notes,
    })
}

/// The Gateway at the edge of which this is a pod.
fn gateway_of<'a>(builder: &'a Builder, workload: &Workload) -> Option<&'a ObjectName> {
    let (mesh, gateways) = (builder.mesh(), builder.store().gateways());
    workload.services.keys().find_map(|service| gateways.edge_behind(mesh, service))
}

/// Whether a gateway does what the waypoint of a destination does.
fn is_entered(
    builder: &Builder,
    gateway: &ObjectName,
    client: &Workload,
    target: &Destination,
) -> bool {
    let own = builder.store().gateways().service_of(builder.mesh(), gateway);
    let ip = target.address.ip();
    let service = builder.view().service_meant(&client.network, ip, &client.namespace);
    service.is_some_and(|it| it.enters_at(&own))
}

/// What becomes of a connection for which a gateway does what the waypoint does.
fn entering(gateway: &ObjectName) -> Outcome {
    let path = format!(
        "Gateway {}/{} does what the waypoint does ({INGRESS_USE_WAYPOINT}: false), and sends on \
         from there",
        gateway.namespace, gateway.name
    );
    let reason = "the gateway judges the connection as the waypoint would";
    Outcome {
        plan: "waypoint",
        path: Some(path),
        server: None,
        judgement: Judgement::without_policy(admin::Decision::Waypoint, reason),
    }
}

fn source_address(client: &Workload, like: IpAddr) -> IpAddr {
    let same = client.addresses.iter().find(|ip| ip.is_ipv4() == like.is_ipv4());
    let unspecified = IpAddr::from([0, 0, 0, 0]);
    same.or(client.addresses.first()).copied().unwrap_or(unspecified)
}

/// What the proxy of the client's node has enrolled.
fn quiet(builder: &Builder, client: &Workload) -> Quiet {
    let here = builder.view().workloads();
    let here = here.filter(|it| it.node == client.node && it.tunnel == Tunnel::Hbone);
    let enrolled = here.flat_map(|it| it.addresses.iter().map(|ip| (*ip, it.identity())));
    Quiet { enrolled: enrolled.collect() }
}

/// Where a client that no proxy helps ends up: at the address, behind a service at one of its
/// endpoints.
fn uncaptured(builder: &Builder, target: &Destination) -> Plan {
    let view = builder.view();
    let network = "".into();
    let service = view.service_meant(&network, target.address.ip(), "").cloned();
    let endpoint = service.as_ref().and_then(|service| {
        let mut ready = view.endpoints(&service.key)?.iter().filter(|workload| workload.healthy);
        let (endpoint, port) = ready.find_map(|endpoint| {
            let mut ports = endpoint.services.get(&service.key)?.iter();
            Some((endpoint, ports.find(|port| port.service_port == target.address.port())?))
        })?;
        let like = |ip: &&IpAddr| ip.is_ipv4() == target.address.is_ipv4();
        let ip = endpoint.addresses.iter().find(like)?;
        Some((endpoint.clone(), SocketAddr::new(*ip, port.target_port)))
    });
    let (listed, address) = match endpoint {
        Some((workload, address)) => (Some(workload), address),
        None => (None, target.address),
    };
    // Whichever object lists the address, the pod that owns it is there.
    let owner = view.workload_at(&network, address.ip()).cloned();
    let is_better = |owner: &Workload| listed.is_none() || owner.tunnel == Tunnel::Hbone;
    let workload = owner.filter(|owner| is_better(owner)).or(listed);
    Plan::Direct(Direct { address, workload, service })
}

/// What becomes of a connection.
struct Outcome {
    plan: &'static str,
    path: Option<String>,
    server: Option<admin::Server>,
    judgement: Judgement,
}

/// What is decided, by whom, and why.
struct Judgement {
    decision: admin::Decision,
    decided_by: Option<String>,
    policy: Option<admin::DecidingPolicy>,
    reason: String,
    remedy: Option<String>,
}

impl Judgement {
    /// One that no policy makes.
    fn without_policy(decision: admin::Decision, reason: impl Into<String>) -> Self {
        Self { decision, decided_by: None, policy: None, reason: reason.into(), remedy: None }
    }
}

/// What is needed to put a plan into words.
struct Judge<'a> {
    builder: &'a Builder,
    client: &'a Workload,
    is_captured: bool,
    source_ip: IpAddr,
    /// The name in the client's TLS handshake, if it says one.
    server_name: Option<String>,
}

impl Judge<'_> {
    fn outcome(&self, plan: &Plan, notes: &mut Vec<String>) -> Outcome {
        match plan {
            Plan::Local(target) => {
                let path =
                    "joined on this node after the destination's policies; never on the wire";
                self.tunnelled("local", path.to_owned(), target, notes)
            }
            Plan::Tunnel(target) => {
                let path = format!("HBONE with mutual TLS to {}", target.hbone);
                self.tunnelled("tunnel", path, target, notes)
            }
            Plan::Waypoint { waypoint, destination } => {
                notes.extend(waypoint.service.as_deref().and_then(shares));
                Outcome {
                    plan: "waypoint",
                    path: Some(format!("HBONE to waypoint {} for {destination}", waypoint.hbone)),
                    server: None,
                    judgement: Judgement::without_policy(
                        admin::Decision::Waypoint,
                        "the waypoint judges the connection",
                    ),
                }
            }
            Plan::Direct(direct) => self.direct(direct, notes),
            Plan::Lookup(lookup) => self.looked_up(lookup, notes),
            Plan::Fenced(fenced) => self.fenced(fenced, notes),
            Plan::Refuse(refusal) => refused(refusal),
        }
    }

    /// A connection that a declared name may allow, as the client's proxy asks for it.
    fn fenced(&self, fenced: &Fenced, notes: &mut Vec<String>) -> Outcome {
        let hosts: Vec<&str> = fenced.hosts().take(HOSTS_MAX).map(|it| &**it).collect();
        let port = fenced.destination.port();
        notes.push(format!(
            "only what is declared may be reached (REGISTRY_ONLY); declared at port {port}: {}",
            hosts.join(", ")
        ));
        let said = match &self.server_name {
            Some(name) => Said::Name(name),
            None => Said::Bytes,
        };
        // Either allows it; what the client says is more to the point.
        let condition = fenced.allowed_by(said).or_else(|why| fenced.unseen().ok_or(why));
        let condition = match condition {
            Ok(Condition::Name(_, service)) if service.has_waypoint() => {
                let around = Undeclared::AroundWaypoint(service.key.clone(), fenced.destination);
                return refused(&around.into());
            }
            Ok(condition) => condition,
            Err(undeclared) => {
                let hint = "a name in the client's TLS handshake decides: say it with --sni";
                notes.extend(self.server_name.is_none().then(|| hint.to_owned()));
                return refused(&undeclared.into());
            }
        };
        let (names, by): (Vec<String>, Vec<String>) = match condition {
            Condition::Name(name, service) => {
                (vec![name.to_string()], vec![service.key.to_string()])
            }
            Condition::AnyOf(all) => {
                let all = all.iter().take(HOSTS_MAX);
                all.map(|it| (it.key.hostname.to_string(), it.key.to_string())).unzip()
            }
        };
        let reason = format!(
            "allowed by {} if {} leads to {}: the client's proxy looks it up and compares",
            by.join(" or "),
            names.join(" or "),
            fenced.destination.ip()
        );
        Outcome {
            plan: "direct",
            path: Some(format!("plain TCP to {}, not encrypted by the mesh", fenced.destination)),
            server: None,
            judgement: Judgement {
                decided_by: Some("the client's proxy".to_owned()),
                ..Judgement::without_policy(admin::Decision::Allow, reason)
            },
        }
    }

    fn tunnelled(
        &self,
        plan: &'static str,
        path: String,
        target: &Target,
        notes: &mut Vec<String>,
    ) -> Outcome {
        self.choice(target.service.as_deref(), notes);
        let identities = target.identities.iter().map(ToString::to_string).collect();
        let server = admin::Server { identities, ..server(&target.workload, target.address) };
        let identity = Some(self.client.identity());
        let judgement = self.authorize(&target.workload, target.address, identity, notes);
        Outcome { plan, path: Some(path), server: Some(server), judgement }
    }

    fn direct(&self, direct: &Direct, notes: &mut Vec<String>) -> Outcome {
        self.choice(direct.service.as_deref(), notes);
        let port = direct.address.port();
        if let (None, Some(service)) = (&direct.workload, &direct.service)
            && service.load_balancing.mode != Mode::Passthrough
            && service.port(port).is_none()
        {
            let refusal = Refusal::NoPort(service.key.clone(), port);
            let mut outcome = refused(&refusal);
            outcome.judgement.decided_by = Some("the client's node, where no rule leads on".into());
            return outcome;
        }
        let is_allowed = |reason: &str| Judgement::without_policy(admin::Decision::Allow, reason);
        let judgement = match &direct.workload {
            None => {
                is_allowed("the destination is not in the mesh: no policy of the mesh holds for it")
            }
            Some(workload) if workload.tunnel == Tunnel::Hbone && !self.is_captured => {
                self.authorize(workload, direct.address, None, notes)
            }
            Some(_) => {
                is_allowed("the destination is not captured: nothing enforces policies there")
            }
        };
        Outcome {
            plan: "direct",
            path: Some(format!("plain TCP to {}, not encrypted by the mesh", direct.address)),
            server: direct.workload.as_ref().map(|workload| server(workload, direct.address)),
            judgement,
        }
    }

    /// Nobody is asked for the name here: what it leads to is the client's node's to find out.
    fn looked_up(&self, lookup: &Lookup, notes: &mut Vec<String>) -> Outcome {
        self.choice(Some(&lookup.service), notes);
        let Lookup { host, port, .. } = lookup;
        notes.push(format!(
            "{host} is looked up when a connection needs it; an address of the mesh, of the node's \
             own link or of the proxy itself is refused"
        ));
        let reason = "the destination is outside of the mesh: no policy of the mesh holds for it";
        Outcome {
            plan: "lookup",
            path: Some(format!(
                "plain TCP to port {port} of {host}, which the client's proxy looks up; not \
                 encrypted by the mesh"
            )),
            server: None,
            judgement: Judgement::without_policy(admin::Decision::Allow, reason),
        }
    }

    fn choice(&self, service: Option<&Service>, notes: &mut Vec<String>) {
        let Some(service) = service else { return };
        let endpoints = self.builder.view().endpoints(&service.key);
        let count = endpoints.map_or(0, |endpoints| endpoints.len());
        if count > 1 {
            notes.push(format!(
                "{} has {count} endpoints; this is one that may be chosen",
                service.key
            ));
        }
    }

    fn authorize(
        &self,
        workload: &Workload,
        address: SocketAddr,
        identity: Option<Identity>,
        notes: &mut Vec<String>,
    ) -> Judgement {
        let is_proven = identity.is_some();
        let source = Source::new(identity, self.source_ip);
        let judged = self.builder.view().authorize(workload, &source, address);
        let mut judgement = match &judged.decision {
            Decision::Allow(None) => Judgement::without_policy(
                admin::Decision::Allow,
                "no ALLOW policy holds for the destination and no DENY policy matches",
            ),
            Decision::Allow(Some(rule)) => Judgement {
                policy: Some(self.deciding(rule, workload)),
                ..Judgement::without_policy(
                    admin::Decision::Allow,
                    format!("allowed by policy {rule}"),
                )
            },
            Decision::Deny(denial) => Judgement {
                policy: match denial {
                    Denial::Denied(rule) => Some(self.deciding(rule, workload)),
                    _ => None,
                },
                remedy: Some(match is_proven {
                    true => self.builder.view().remedy(workload, &source, denial),
                    false => self.remedy_of_unproven(workload, address, &source, denial),
                }),
                ..Judgement::without_policy(admin::Decision::Deny, denial.to_string())
            },
        };
        let decided_by = format!("the proxy of {}/{}", workload.namespace, workload.name);
        judgement.decided_by = Some(decided_by);
        for denial in &judged.dry_run_denials {
            notes.push(format!("a policy on trial (dry-run) would have refused: {denial}"));
        }
        self.conditions(workload, notes);
        judgement
    }

    /// What would have to change for a client that proves no identity.
    fn remedy_of_unproven(
        &self,
        workload: &Workload,
        address: SocketAddr,
        source: &Source,
        denial: &Denial,
    ) -> String {
        let view = self.builder.view();
        match self.enrolled(workload, address) {
            Some(Decision::Allow(_)) => self.enrol(),
            // It would have to prove an identity first, and then there is more.
            Some(Decision::Deny(other)) if other != *denial => {
                let source = Source::new(Some(self.client.identity()), self.source_ip);
                format!("{}; then {}", self.enrol(), view.remedy(workload, &source, &other))
            }
            _ => view.remedy(workload, source, denial),
        }
    }

    /// What would be decided if the client were captured and proved who it is; nothing for a client
    /// that cannot be.
    fn enrolled(&self, workload: &Workload, address: SocketAddr) -> Option<Decision> {
        if self.client.host_network {
            return None;
        }
        let source = Source::new(Some(self.client.identity()), self.source_ip);
        Some(self.builder.view().authorize(workload, &source, address).decision)
    }

    fn enrol(&self) -> String {
        let (namespace, name) = (&self.client.namespace, &self.client.name);
        format!(
            "enrol the client, so that it proves its identity: label the namespace {namespace}, \
             or the pod {name}, {DATAPLANE_MODE}=ambient"
        )
    }

    /// The deciding rule, with what the user wrote for it.
    fn deciding(&self, rule: &RuleName, workload: &Workload) -> admin::DecidingPolicy {
        let origin = self.authorization(rule).or_else(|| self.mutual_tls(rule, workload));
        admin::DecidingPolicy { name: rule.policy.to_string(), rule: rule.rule, origin }
    }

    fn authorization(&self, rule: &RuleName) -> Option<admin::Origin> {
        let object = ObjectName::new(&rule.policy.namespace, &rule.policy.name);
        let mut objects = self.builder.store().policies();
        let (name, policy) = objects.find(|(name, _)| **name == object)?;
        let written = policy.spec.rules.as_ref()?.get(rule.rule)?;
        Some(origin(Kind::AuthorizationPolicy, name, json!(written)))
    }

    /// What of the PeerAuthentications refuses plain text, for the policies that no user wrote.
    fn mutual_tls(&self, rule: &RuleName, workload: &Workload) -> Option<admin::Origin> {
        let workload = ObjectName::new(&workload.namespace, &workload.name);
        let object = self.builder.peer_authentication(&rule.policy, &workload)?;
        let name = ObjectName::of(&object.metadata);
        Some(origin(Kind::PeerAuthentication, &name, json!(object.spec)))
    }

    /// Policies of the destination that are not enforced as they were written.
    fn conditions(&self, workload: &Workload, notes: &mut Vec<String>) {
        for policy in self.builder.view().policies_of(workload).flatten() {
            let name = ObjectName::new(&policy.key.namespace, &policy.key.name);
            let condition = self.builder.condition(&name);
            if let Some(condition) = condition.filter(|condition| condition.status != "True") {
                notes.push(format!("policy {} is not accepted: {}", policy.key, condition.message));
            }
        }
    }
}

/// What becomes of a connection that the client's proxy refuses.
fn refused(refusal: &Refusal) -> Outcome {
    Outcome {
        plan: "refuse",
        path: None,
        server: None,
        judgement: Judgement {
            decided_by: Some("the client's proxy".to_owned()),
            remedy: Some(refusal_remedy(refusal).to_owned()),
            ..Judgement::without_policy(admin::Decision::Deny, refusal.to_string())
        },
    }
}

/// Among which waypoints the connections of a service are split.
fn shares(service: &Service) -> Option<String> {
    let share = |(waypoint, share): &(GatewayAddress, u32)| {
        format!("{share} to the waypoint {}", lists::gateway(waypoint))
    };
    let shares: Vec<String> = service.weighted_waypoints.iter().map(share).collect();
    let said = format!("of {WHOLE} new connections go {}", shares.join(" and "));
    (!shares.is_empty()).then_some(said)
}

fn origin(kind: Kind, name: &ObjectName, written: serde_json::Value) -> admin::Origin {
    let name = format!("{}/{}", name.namespace, name.name);
    admin::Origin { object: admin::ObjectName { kind: kind.name().into(), name }, written }
}

fn server(workload: &Workload, address: SocketAddr) -> admin::Server {
    admin::Server {
        workload: format!("{}/{}", workload.namespace, workload.name),
        address,
        node: workload.node.to_string(),
        protocol: protocol(workload).into(),
        ready: workload.healthy,
        identities: Vec::new(),
    }
}

fn refusal_remedy(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Undeclared(undeclared) => undeclared.remedy(),
        Refusal::NoHost(..) => "ask for a host below the wildcard: say it with --host or --sni",
        Refusal::NoPort(..) => "use one of the service's ports, or add the port to the Service",
        Refusal::NoEndpoint(_) => {
            "start a pod that the service selects and that is ready; the endpoints of one that \
             selects none are listed in an EndpointSlice"
        }
        Refusal::NoSubset(..) => "add the subset to the service's DestinationRule",
        Refusal::WaypointMissing { .. } => {
            "wait until a pod of the waypoint is ready: `ambit get gateways` shows it"
        }
        Refusal::WaypointRefused { .. } => {
            "`ambit status` says what is wrong with the waypoint; correct that, or remove the \
             label istio.io/use-waypoint"
        }
        Refusal::NoWorkloadAddress(_) => {
            "correct the address in the ServiceEntry, WorkloadEntry or EndpointSlice"
        }
        Refusal::OtherNetwork(_) => "connect to an endpoint on the client's own network",
        Refusal::NoAddress(_) => "give the endpoint an address that the client can reach",
        Refusal::ProxyPort(_) => "use the application's own port",
        Refusal::NameLeadsInside { .. } => {
            "correct the name's records in DNS; for a workload of the mesh name its Service"
        }
    }
}
