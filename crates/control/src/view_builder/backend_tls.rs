//! BackendTLSPolicies: which of them decides how TLS is spoken with the endpoints of a Service, and
//! what its author is told.
//!
//! One for a port comes before one for all ports; among several for the same the oldest decides.
//! What a policy says of TLS takes the place of what a DestinationRule says of it. One that is
//! wrong, or whose roots cannot be used, decides as well: nothing is sent, for it would travel as
//! plain text or to a server that is verified less.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::backend_tls::{self, BackendTlsPolicy, Meaning, Roots, Target};
use ambit_manifest::gateway::listeners::Fault;
use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routes::MESH_CONTROLLER;
use ambit_manifest::routing::{ParentKind, Port};
use ambit_model::Text;
use ambit_model::http::origination::{Origination, Trust};
use ambit_model::http::service::Traffic;
use ambit_model::http::traffic::TrafficPolicy;
use ambit_model::names::ServiceName;

use super::Builder;
use super::client_roots;
use super::destination_rules::Said;
use super::http_services;
use super::routes::ParentName;
use super::services::service_name;
use super::store::{Store, age};

/// Most ancestors that the status of a policy may have.
const ANCESTORS_MAX: usize = 16;

/// A policy, and what it means.
#[derive(Debug)]
pub(crate) struct Known {
    /// The object.
    pub(crate) object: Arc<BackendTlsPolicy>,
    meaning: Meaning,
}

/// All BackendTLSPolicies.
#[derive(Debug, Default)]
pub(crate) struct BackendTlsPolicies {
    policies: BTreeMap<ObjectName, Known>,
    by_service: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
}

impl Known {
    /// What holds the roots that it names.
    fn root_maps(&self, namespace: &str) -> impl Iterator<Item = ObjectName> {
        let named = match &self.meaning.roots {
            Roots::Public => &[][..],
            Roots::In(named) => named,
        };
        named.iter().filter_map(move |it| it.holder(namespace))
    }
}

impl BackendTlsPolicies {
    /// Puts or removes a policy; answers with the Services that it has and had.
    pub(super) fn put(
        &mut self,
        name: &ObjectName,
        policy: Option<Arc<BackendTlsPolicy>>,
    ) -> BTreeSet<ObjectName> {
        let mut services = BTreeSet::new();
        if let Some(old) = self.policies.remove(name) {
            for Target { service, .. } in old.meaning.targets {
                if let Some(names) = self.by_service.get_mut(&service) {
                    names.remove(name);
                    if names.is_empty() {
                        self.by_service.remove(&service);
                    }
                }
                services.insert(service);
            }
        }
        if let Some(object) = policy {
            let meaning = backend_tls::read(&object);
            for Target { service, .. } in &meaning.targets {
                self.by_service.entry(service.clone()).or_default().insert(name.clone());
                services.insert(service.clone());
            }
            self.policies.insert(name.clone(), Known { object, meaning });
        }
        services
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectName, &Known)> {
        self.policies.iter()
    }

    /// The ConfigMaps with roots that they name.
    pub(super) fn root_maps(&self) -> impl Iterator<Item = ObjectName> {
        self.policies.iter().flat_map(|(name, known)| known.root_maps(&name.namespace))
    }

    /// The Services of the policies that name this ConfigMap.
    pub(super) fn with_root_map(&self, map: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        let naming = self.policies.iter();
        let naming = naming.filter(|(name, it)| it.root_maps(&name.namespace).any(|it| it == *map));
        naming.flat_map(|(_, it)| it.meaning.targets.iter().map(|target| &target.service))
    }

    /// The oldest policy for all ports of a Service, or for the one of this name.
    fn oldest(&self, service: &ObjectName, port: Option<&str>) -> Option<(&ObjectName, &Known)> {
        let names = self.by_service.get(service).into_iter().flatten();
        let here = names.filter_map(|name| self.policies.get_key_value(name));
        let is_it = |it: &Target| it.service == *service && it.port.as_deref() == port;
        let here = here.filter(|(_, it)| it.meaning.targets.iter().any(is_it));
        here.min_by(|one, other| {
            age(&one.1.object.metadata, one.0).cmp(&age(&other.1.object.metadata, other.0))
        })
    }

    /// The policy that decides for a port of a Service.
    fn deciding(&self, service: &ObjectName, port: &Port) -> Option<(&ObjectName, &Known)> {
        let named = Some(&*port.name).filter(|name| !name.is_empty());
        let of_port = named.and_then(|name| self.oldest(service, Some(name)));
        of_port.or_else(|| self.oldest(service, None))
    }
}

/// Puts what policies say of TLS with the endpoints of a Service into what else is said of it.
pub(super) fn decide(store: &Store, owner: &ParentName, ports: &[Port], said: &mut Said) {
    let (ParentKind::Service, service) = owner else { return };
    let policies = store.backend_tls();
    if !policies.by_service.contains_key(service) {
        return;
    }
    for port in ports {
        let Some((name, known)) = policies.deciding(service, port) else { continue };
        let spoken = spoken(store, name, known);
        let of_subsets = said.subsets.values_mut().filter_map(|it| it.traffic.as_mut());
        for traffic in [&mut said.traffic].into_iter().chain(of_subsets) {
            put(traffic, port.number, &spoken);
        }
    }
}

fn put(traffic: &mut Traffic, port: u16, spoken: &Result<Origination, Text>) {
    let of_port = traffic.ports.get(&port).unwrap_or(&traffic.all).clone();
    let policy = match spoken {
        Ok(it) => TrafficPolicy { origination: Some(it.clone()), ..of_port },
        Err(why) => TrafficPolicy { origination: None, refusal: Some(why.clone()), ..of_port },
    };
    traffic.ports.insert(port, policy);
}

/// How TLS is spoken as a policy asks, or why nothing is sent.
fn spoken(store: &Store, name: &ObjectName, known: &Known) -> Result<Origination, Text> {
    let meaning = &known.meaning;
    let refused = |why| {
        let ObjectName { namespace, name } = name;
        Text::from(format!("BackendTLSPolicy {namespace}/{name}: {why}"))
    };
    if let Some(wrong) = meaning.wrong() {
        return Err(refused(wrong));
    }
    let trust = trust(store, name, meaning).0.map_err(|fault| refused(fault.what))?;
    Ok(Origination {
        server_name: Some(meaning.hostname.clone()),
        alternatives: meaning.hosts.clone(),
        uris: meaning.uris.clone(),
        trust,
        client: None,
    })
}

/// Whom a policy trusts, or why nobody; and what is wrong with the first reference that cannot be
/// used. Those that can be used count without the others: fewer endpoints can prove anything then.
fn trust(
    store: &Store,
    name: &ObjectName,
    meaning: &Meaning,
) -> (Result<Trust, Fault>, Option<Fault>) {
    let Roots::In(named) = &meaning.roots else { return (Ok(Trust::Public), None) };
    let (mut roots, mut unresolved) = (Vec::new(), None);
    for it in named {
        let fault = |reason, what| Fault { reason, what };
        let found = match it.holder(&name.namespace) {
            Some(holder) => {
                let found = store.client_roots().find(&holder);
                found.map_err(|what| fault("InvalidCACertificateRef", what))
            }
            None => Err(fault("InvalidKind", client_roots::unread(it))),
        };
        match found {
            Ok(found) => roots.push(&**found),
            Err(fault) => unresolved = unresolved.or(Some(fault)),
        }
    }
    let trust = client_roots::joined(&roots, "endpoints").map(Trust::Roots).map_err(|what| {
        let why = unresolved.as_ref().map(|it| &it.what);
        let what = why.map_or(what.clone(), |why| format!("{what}: {why}"));
        Fault { reason: client_roots::NO_ROOTS, what }
    });
    (trust, unresolved)
}

/// The conditions of a policy, which are the same for all ancestors.
pub(crate) fn conditions(
    builder: &Builder,
    name: &ObjectName,
    known: &Known,
) -> [StatusCondition; 2] {
    let (trust, unresolved) = trust(builder.store(), name, &known.meaning);
    let others = decided_by_others(builder, name, known);
    let (status, reason, message) = match (others, known.meaning.wrong(), trust) {
        (Some(others), ..) => ("False", "Conflicted", others),
        (None, Some(wrong), _) => ("False", "Invalid", format!("{wrong}: requests are refused")),
        (None, None, Err(fault)) => {
            ("False", fault.reason, format!("{}: requests are refused", fault.what))
        }
        (None, None, Ok(_)) => match missing(builder, known) {
            Some(missing) => ("False", "TargetNotFound", missing),
            None => ("True", "Accepted", in_force(&known.meaning)),
        },
    };
    let accepted = StatusCondition { kind: "Accepted", status, reason, message };
    let kind = "ResolvedRefs";
    let resolved = match unresolved {
        Some(Fault { reason, what: message }) => {
            StatusCondition { kind, status: "False", reason, message }
        }
        None => {
            let message = "all references are resolved".to_owned();
            StatusCondition { kind, status: "True", reason: kind, message }
        }
    };
    [accepted, resolved]
}

fn in_force(meaning: &Meaning) -> String {
    let unhonoured = meaning.remarks.iter().map(|it| format!("; {}: {}", it.at.as_str(), it.what));
    format!("the policy is in force{}", unhonoured.collect::<String>())
}

/// Who decides in place of a policy, if it decides nowhere.
fn decided_by_others(builder: &Builder, name: &ObjectName, known: &Known) -> Option<String> {
    let policies = builder.store().backend_tls();
    let older = |target: &Target| {
        let (other, _) = policies.oldest(&target.service, target.port.as_deref())?;
        (other != name).then(|| format!("{}/{}", other.namespace, other.name))
    };
    let older: Option<BTreeSet<String>> = known.meaning.targets.iter().map(older).collect();
    let older: Vec<String> = older?.into_iter().collect();
    (!older.is_empty())
        .then(|| format!("it is decided by the older BackendTLSPolicy {}", older.join(", ")))
}

/// What is not there, if nothing is there that a policy is attached to.
fn missing(builder: &Builder, known: &Known) -> Option<String> {
    let absent = |target: &Target| {
        let ObjectName { namespace, name } = &target.service;
        let parent = (ParentKind::Service, target.service.clone());
        let Some(ports) = http_services::ports(builder.store(), &parent) else {
            return Some(format!("the Service `{namespace}/{name}` does not exist"));
        };
        let port = target.port.as_ref()?;
        let has_port = ports.iter().any(|it| *it.name == **port);
        (!has_port).then(|| format!("the Service `{namespace}/{name}` has no port called `{port}`"))
    };
    let absent: Option<Vec<String>> = known.meaning.targets.iter().map(absent).collect();
    absent.map(|it| it.join("; "))
}

/// By which Gateways each Service is reached of which a policy says something: those at the edge
/// that have a route to it, and its waypoint. Each has its controller.
pub(crate) struct Reached(BTreeMap<ObjectName, BTreeMap<ObjectName, &'static str>>);

impl Reached {
    /// By which Gateways they are reached now.
    pub(crate) fn of(builder: &Builder) -> Self {
        let store = builder.store();
        let mut reached: BTreeMap<ObjectName, BTreeMap<ObjectName, &'static str>> = BTreeMap::new();
        let asked = store.backend_tls().by_service.keys();
        let services: BTreeMap<ServiceName, &ObjectName> =
            asked.map(|it| (service_name(builder.mesh(), it), it)).collect();
        if services.is_empty() {
            return Self(reached);
        }
        for (gateway, own) in &builder.edges {
            let routed = builder.view().gateway_routes(own).flat_map(|it| it.destinations());
            for service in routed.filter_map(|it| services.get(it)) {
                let Some(controller) = store.gateways().controller(gateway) else { continue };
                let by = reached.entry((*service).clone()).or_default();
                by.insert(gateway.clone(), controller);
            }
        }
        for service in services.into_values() {
            let binding = store.binding(&(ParentKind::Service, service.clone()));
            if let Some(binding) = binding.filter(|it| it.bound.is_ok()) {
                let by = reached.entry(service.clone()).or_default();
                by.insert(binding.waypoint, MESH_CONTROLLER);
            }
        }
        Self(reached)
    }

    /// The Gateways by which the Services of a policy are reached, each with its controller.
    pub(crate) fn ancestors(&self, known: &Known) -> Vec<(ObjectName, &'static str)> {
        let targets = known.meaning.targets.iter();
        let gateways = targets.filter_map(|it| self.0.get(&it.service)).flatten();
        let gateways: BTreeMap<&ObjectName, &'static str> =
            gateways.map(|(name, controller)| (name, *controller)).collect();
        let gateways = gateways.into_iter().take(ANCESTORS_MAX);
        gateways.map(|(name, controller)| (name.clone(), controller)).collect()
    }
}
