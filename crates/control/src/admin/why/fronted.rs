//! What a waypoint knows of a destination, and which waypoint it is.

use ambit_manifest::traffic_policy::Section;
use ambit_manifest::{Kind, ObjectName};
use ambit_model::authorize::{RuleName, Source};
use ambit_model::http::rule::Origin;
use ambit_model::http::service::ServiceHttp;
use ambit_model::names::ServiceName;
use ambit_model::workload::{GatewayAddress, GatewayDestination, Tunnel, Workload};
use ambit_wire::admin;
use serde_json::json;

use super::ends::{Destination, Ends, WhyError};
use super::{origin, source_address};
use crate::admin::lists;
use crate::view_builder::Builder;

/// A client and a destination with a waypoint between them.
pub(super) struct Fronted<'a> {
    pub(super) builder: &'a Builder,
    pub(super) client: &'a Workload,
    pub(super) target: Destination,
    /// Of what the waypoint's knowledge is asked.
    pub(super) name: ServiceName,
    /// The host of a request that names none.
    pub(super) host: String,
    /// The host that the client asks for, if it is said.
    pub(super) asked: Option<String>,
    pub(super) waypoint: String,
    /// The waypoint's service, if it has one.
    pub(super) waypoint_service: Option<ServiceName>,
}

impl<'a> Fronted<'a> {
    /// The ends of a connection; `None` where no waypoint stands before the destination.
    pub(super) fn of(
        builder: &'a Builder,
        source: &str,
        destination: &str,
    ) -> Result<Option<Self>, WhyError> {
        let ends = Ends { builder };
        let client = ends.source(source, &mut Vec::new())?;
        let target = ends.destination(client, destination, &mut Vec::new())?;
        let named = named(builder, client, &target);
        Ok(named.map(|(name, host, waypoint)| Self {
            builder,
            client,
            target,
            name,
            host,
            asked: None,
            waypoint: lists::gateway(waypoint),
            waypoint_service: match &waypoint.destination {
                GatewayDestination::Hostname(name) => Some(name.clone()),
                GatewayDestination::Refused(_) | GatewayDestination::Address(_) => None,
            },
        }))
    }

    /// What holds for it; `None` if the waypoint knows nothing of it yet.
    pub(super) fn http(&self) -> Option<&'a ServiceHttp> {
        self.builder.view().http_service(&self.name).map(|http| &**http)
    }

    /// Whether those who made a route speak for the service: its namespace's, or the waypoint's.
    pub(super) fn speaks_for(&self, route: &Origin) -> bool {
        let of_waypoint = self.waypoint.split_once('/').map(|(namespace, _)| namespace);
        route.is_producers(&self.name) || of_waypoint == Some(&*route.namespace)
    }

    /// Says that the waypoint knows nothing of it yet.
    pub(super) fn unknown(&self, explanation: &mut admin::Explanation) {
        explanation.decision = admin::Decision::Deny;
        explanation.reason = format!("the waypoint knows nothing of {} yet", self.name);
    }

    /// The client, as it proves itself.
    pub(super) fn source(&self) -> Source {
        let identity = (self.client.tunnel == Tunnel::Hbone).then(|| self.client.identity());
        Source::new(identity, source_address(self.client, self.target.address.ip()))
    }

    /// The TrafficPolicy that decides a section for the requests that this rule of a route answers.
    pub(super) fn policy(&self, section: Section, route: Option<&Origin>) -> Option<String> {
        let policy = self.builder.traffic_policy(section, &self.name, route)?;
        Some(written(Kind::TrafficPolicy, policy))
    }

    /// The deciding rule, with what the user wrote for it.
    pub(super) fn deciding(&self, rule: &RuleName) -> admin::DecidingPolicy {
        let key = &rule.policy;
        let mut objects = self.builder.store().policies();
        let object = objects
            .find(|(name, _)| name.namespace == key.namespace && name.name == key.name)
            .and_then(|(name, policy)| {
                let written = policy.spec.rules.as_ref()?.get(rule.rule)?;
                Some(origin(Kind::AuthorizationPolicy, name, json!(written)))
            });
        admin::DecidingPolicy { name: key.to_string(), rule: rule.rule, origin: object }
    }
}

/// Whoever has not proven who he is is told by his address.
pub(super) fn who(source: &Source) -> String {
    match source.identity() {
        Some(identity) => {
            let identity = identity.to_string();
            format!("principal {}", identity.trim_start_matches("spiffe://"))
        }
        None => format!("address {}", source.ip()),
    }
}

/// An object that something is written in.
pub(super) fn written(kind: Kind, name: &ObjectName) -> String {
    format!("{} {}/{}", kind.name(), name.namespace, name.name)
}

fn named<'a>(
    builder: &'a Builder,
    client: &Workload,
    target: &Destination,
) -> Option<(ServiceName, String, &'a GatewayAddress)> {
    let view = builder.view();
    let ip = target.address.ip();
    if let Some(service) = view.service_meant(&client.network, ip, &client.namespace) {
        let several = service.weighted_waypoints.iter().map(|(gateway, _)| gateway);
        let waypoint = service.waypoint.iter().chain(several).next()?;
        let host = service.key.hostname.to_string();
        return Some((service.key.clone(), host, waypoint));
    }
    let workload = view.workload_at(&client.network, ip)?;
    let waypoint = workload.waypoint.as_deref()?;
    let GatewayDestination::Hostname(own) = &waypoint.destination else { return None };
    Some((own.clone(), target.address.to_string(), waypoint))
}
