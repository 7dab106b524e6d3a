//! Which AuthorizationPolicies hold for the requests to a service.
//!
//! A policy holds for what it is attached to: a Service, a ServiceEntry, the waypoint that a
//! service names, a gateway at the edge, whose own service then has it, or all Gateways of a class.
//! One without `targetRefs` and `selector` holds for its whole namespace, and one in the root
//! namespace for the mesh; Istio's waypoints ignore these. One with a selector holds for pods,
//! whose node judges it. No node judges what comes to a gateway's pods, so the gateway does,
//! request by request. A policy that cannot be honoured denies all that it is for: its whole
//! namespace, where even that cannot be read.

use std::collections::BTreeSet;

use ambit_manifest::ObjectName;
use ambit_manifest::istio::{self, AuthorizationPolicy};
use ambit_manifest::policy::{self, Target};
use ambit_manifest::routing::ParentKind;
use ambit_model::http::policy::{Action, RequestPolicy, RequestRule};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::service::Service;
use ambit_model::workload::{GatewayAddress, GatewayDestination};

use super::Mesh;
use super::gateways::Gateways;
use super::routes::ParentName;
use super::selectors::Labels;
use super::store::selector;

/// For which requests a policy holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// For those to, or through, these.
    Targets(Vec<Target>),
    /// For all to services of its namespace.
    Namespace,
    /// For all.
    Mesh,
    /// For those to gateways at the edge whose pods have these labels. The node judges it for all
    /// other pods.
    Pods {
        /// The labels.
        labels: Labels,
        /// Whether pods of all namespaces are meant.
        is_everywhere: bool,
    },
}

/// A service, as far as policies look at it.
pub(super) struct Held<'a> {
    pub(super) name: &'a ServiceName,
    /// What it is made of.
    pub(super) owner: &'a ParentName,
    /// What the view has of it.
    pub(super) service: Option<&'a Service>,
    /// The waypoints that there are.
    pub(super) gateways: &'a Gateways,
}

/// For which requests `policy` holds.
pub(super) fn scope(mesh: &Mesh, policy: &AuthorizationPolicy) -> Scope {
    let is_root = policy.metadata.namespace.as_deref() == Some(&*mesh.root_namespace);
    let everything = if is_root { Scope::Mesh } else { Scope::Namespace };
    match policy::attachments(policy, &mesh.root_namespace) {
        Ok(targets) if !targets.is_empty() => Scope::Targets(targets),
        Ok(_) => match selector(policy.spec.selector.as_ref()) {
            Some(labels) => Scope::Pods { labels: labels.clone(), is_everywhere: is_root },
            None => everything,
        },
        Err(_) => everything,
    }
}

/// What waypoints enforce of `policy`. What of it cannot be honoured makes all of it a denial.
pub(super) fn enforced(mesh: &Mesh, policy: &AuthorizationPolicy) -> RequestPolicy {
    let attached = policy::attachments(policy, &mesh.root_namespace);
    let read = attached.and_then(|_| policy::request_policy(policy));
    read.unwrap_or_else(|error| {
        let metadata = &policy.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let key = PolicyName::new(namespace, name);
        let is_dry_run = policy::is_dry_run(policy);
        // It allows nothing and denies nothing.
        if policy.spec.action == istio::Action::Audit {
            tracing::error!(namespace, name, %error, "an AUDIT policy cannot be honoured");
            let action = Action::Audit;
            return RequestPolicy { key, action, is_dry_run, rules: Vec::new(), condition: None };
        }
        let denied = match scope(mesh, policy) {
            Scope::Targets(_) => "what it is attached to".to_owned(),
            Scope::Namespace | Scope::Mesh | Scope::Pods { .. } => {
                policy::unreadable_reach(metadata, &mesh.root_namespace)
            }
        };
        tracing::error!(
            namespace,
            name,
            %error,
            "a policy cannot be honoured: waypoints deny everything to {denied}",
        );
        let (action, rules) = (Action::Deny, vec![RequestRule::default()]);
        RequestPolicy { key, action, is_dry_run, rules, condition: None }
    })
}

impl Scope {
    /// Whether somebody asks for a policy of this scope, in this namespace, request by request.
    pub(super) fn is_asked(&self, gateways: &Gateways, namespace: &str) -> bool {
        let Self::Pods { labels, is_everywhere } = self else { return true };
        let mut gateways = gateways.iter().map(|(name, _)| name).filter(|name| {
            (*is_everywhere || *name.namespace == *namespace) && gateways.selects(name, labels)
        });
        gateways.next().is_some()
    }

    /// Whether a policy of this scope, in this namespace, holds for a service.
    pub(super) fn holds(&self, mesh: &Mesh, namespace: &str, service: &Held<'_>) -> bool {
        match self {
            Self::Mesh => true,
            Self::Pods { labels, is_everywhere } => {
                let edge = service.gateways.edge_behind(mesh, service.name);
                let is_meant = |edge: &&ObjectName| *is_everywhere || *edge.namespace == *namespace;
                edge.filter(is_meant).is_some_and(|it| service.gateways.selects(it, labels))
            }
            Self::Namespace => *service.name.namespace == *namespace,
            Self::Targets(targets) => targets.iter().any(|target| match target {
                Target::Service(name) => is_of(service, ParentKind::Service, name),
                Target::ServiceEntry(name) => is_of(service, ParentKind::ServiceEntry, name),
                Target::Gateway(name) => {
                    service.passes().contains(&service.gateways.service_of(mesh, name))
                }
                // Of waypoints whatever class the service's is of: it must not be less than the
                // policy says.
                Target::GatewayClass(name) => {
                    match service.gateways.edge_behind(mesh, service.name) {
                        Some(edge) => service.gateways.is_of_class(edge, name),
                        None => service.gateways.is_of_waypoints(name),
                    }
                }
            }),
        }
    }
}

fn is_of(service: &Held<'_>, kind: ParentKind, name: &ObjectName) -> bool {
    (service.owner.0, &service.owner.1) == (kind, name)
}

impl Held<'_> {
    /// The services of the waypoints that its requests may pass, and itself: it may be one.
    pub(super) fn passes(&self) -> BTreeSet<ServiceName> {
        let named = |gateway: &GatewayAddress| match &gateway.destination {
            GatewayDestination::Hostname(name) => Some(name.clone()),
            GatewayDestination::Address(_) | GatewayDestination::Refused(_) => None,
        };
        let several = self.service.iter().flat_map(|it| &it.weighted_waypoints);
        let one = self.service.iter().filter_map(|it| it.waypoint.as_ref());
        let all = several.map(|(gateway, _)| gateway).chain(one);
        all.filter_map(named).chain([self.name.clone()]).collect()
    }
}
