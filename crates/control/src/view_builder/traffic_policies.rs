//! TrafficPolicies: which are there, and which of them decides for the requests to a service.
//!
//! Each section is decided for itself. A rule of a route comes before the route, the route before
//! the service, the service before its waypoint; among several at the same target the oldest
//! decides. Routes of another namespace than the service's have none of their own: who asks must
//! not lift what the service's namespace says. One that is wrong decides as well: its requests do
//! not pass in another way than it was meant to say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routing::ParentKind;
use ambit_manifest::traffic_policy::{
    self, Meaning, Section, Target, TargetKind, TargetRef, TrafficPolicy, WithoutEffect,
};
use ambit_manifest::{Kind, ObjectName};
use ambit_model::Text;
use ambit_model::http::compression::{Compressions, RouteCompression};
use ambit_model::http::health::HealthCheck;
use ambit_model::http::limits::{Limits, RouteLimits};
use ambit_model::http::rate_limit::{RateLimits, RouteRateLimits};
use ambit_model::http::rule::{Origin, RouteKind};

use super::request_policies::Held;
use super::services::service_name;
use super::store::age;
use super::{Builder, Mesh};

/// A policy, and what it means.
#[derive(Debug)]
pub(crate) struct Known {
    /// The object.
    pub(crate) object: Arc<TrafficPolicy>,
    /// What it means.
    pub(crate) meaning: Meaning,
}

/// All TrafficPolicies.
#[derive(Debug, Default)]
pub(crate) struct TrafficPolicies {
    policies: BTreeMap<ObjectName, Known>,
    by_target: BTreeMap<(TargetKind, ObjectName), BTreeSet<ObjectName>>,
}

impl TrafficPolicies {
    /// Puts or removes a policy; answers with the targets that it had and has.
    pub(super) fn put(
        &mut self,
        mesh: &Mesh,
        name: &ObjectName,
        policy: Option<Arc<TrafficPolicy>>,
    ) -> Vec<Target> {
        let mut targets = Vec::new();
        if let Some(old) = self.policies.remove(name) {
            for target in old.meaning.targets {
                let key = (target.kind, target.name.clone());
                if let Some(names) = self.by_target.get_mut(&key) {
                    names.remove(name);
                    if names.is_empty() {
                        self.by_target.remove(&key);
                    }
                }
                targets.push(target);
            }
        }
        if let Some(object) = policy {
            let called =
                |namespace: &str, name: &str| service_name(mesh, &ObjectName::new(namespace, name));
            let meaning = traffic_policy::read(&object, &called);
            for target in &meaning.targets {
                let key = (target.kind, target.name.clone());
                self.by_target.entry(key).or_default().insert(name.clone());
                targets.push(target.clone());
            }
            self.policies.insert(name.clone(), Known { object, meaning });
        }
        targets
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectName, &Known)> {
        self.policies.iter()
    }

    /// The policies at a target, whichever rule of it they mean.
    fn at(
        &self,
        kind: TargetKind,
        name: &ObjectName,
    ) -> impl Iterator<Item = (&ObjectName, &Known)> {
        let names = self.by_target.get(&(kind, name.clone())).into_iter().flatten();
        names.filter_map(|name| self.policies.get_key_value(name))
    }

    /// The policy that decides a section at a target: the oldest.
    fn oldest(
        &self,
        section: Section,
        (kind, name, rule): (TargetKind, &ObjectName, Option<&Text>),
    ) -> Option<(&ObjectName, &Known)> {
        let is_it = |it: &Target| it.kind == kind && it.name == *name && it.rule.as_ref() == rule;
        let here = self.at(kind, name).filter(|(_, it)| it.meaning.has(section));
        let here = here.filter(|(_, it)| it.meaning.targets.iter().any(is_it));
        here.min_by(|one, other| {
            age(&one.1.object.metadata, one.0).cmp(&age(&other.1.object.metadata, other.0))
        })
    }

    /// The policy that decides a section for the requests to a service, where no route has its own.
    pub(super) fn deciding(
        &self,
        mesh: &Mesh,
        section: Section,
        held: &Held<'_>,
    ) -> Option<(&ObjectName, &Known)> {
        let (kind, object) = held.owner;
        let own = (*kind == ParentKind::Service)
            .then(|| self.oldest(section, (TargetKind::Service, object, None)))
            .flatten();
        let of_waypoint = || {
            let passed = held.passes();
            let is_passed =
                |name: &ObjectName| passed.contains(&held.gateways.service_of(mesh, name));
            let targets = self.by_target.keys().filter(|(kind, _)| *kind == TargetKind::Gateway);
            let targets = targets.filter(|(_, name)| is_passed(name));
            targets.filter_map(|(kind, name)| self.oldest(section, (*kind, name, None))).min_by(
                |one, other| {
                    age(&one.1.object.metadata, one.0).cmp(&age(&other.1.object.metadata, other.0))
                },
            )
        };
        own.or_else(of_waypoint)
    }

    /// The policy that decides a section for the requests that this rule of a route answers, if
    /// the route has its own.
    pub(super) fn of_route(&self, section: Section, origin: &Origin) -> Option<&ObjectName> {
        let kind = match origin.kind {
            RouteKind::HttpRoute => TargetKind::HttpRoute,
            RouteKind::GrpcRoute => TargetKind::GrpcRoute,
            _ => return None,
        };
        let route = ObjectName::new(&origin.namespace, &origin.name);
        let of = |rule| self.oldest(section, (kind, &route, rule)).map(|(name, _)| name);
        origin.rule_name.as_ref().and_then(|rule| of(Some(rule))).or_else(|| of(None))
    }

    /// What a section says of the requests to a service, and of those that routes of its own
    /// namespace answer: `routes` are those that are attached to it.
    fn section<'a, T>(
        &self,
        (mesh, held): (&Mesh, &Held<'_>),
        routes: impl Iterator<Item = &'a (Kind, ObjectName)>,
        section: Section,
        of: impl Fn(&Meaning) -> Option<T>,
    ) -> (Option<T>, Vec<(OfRoute, T)>) {
        if self.policies.is_empty() {
            return (None, Vec::new());
        }
        let service = self.deciding(mesh, section, held).and_then(|(_, it)| of(&it.meaning));
        let mut of_routes = Vec::new();
        for (kind, name) in routes.filter(|(_, it)| it.namespace == held.name.namespace) {
            let (kind, target) = match kind {
                Kind::HttpRoute => (RouteKind::HttpRoute, TargetKind::HttpRoute),
                Kind::GrpcRoute => (RouteKind::GrpcRoute, TargetKind::GrpcRoute),
                _ => continue,
            };
            let meant = self.at(target, name).flat_map(|(_, it)| &it.meaning.targets);
            let meant = meant.filter(|it| it.kind == target && it.name == *name);
            let rules: BTreeSet<Option<&Text>> = meant.map(|it| it.rule.as_ref()).collect();
            of_routes.extend(rules.into_iter().filter_map(|rule| {
                let (_, known) = self.oldest(section, (target, name, rule))?;
                let of_route = OfRoute { kind, name: name.clone(), rule: rule.cloned() };
                Some((of_route, of(&known.meaning)?))
            }));
        }
        (service, of_routes)
    }

    /// How many requests to a service may come; `routes` are those that are attached to it.
    pub(super) fn rate_limits<'a>(
        &self,
        mesh: &Mesh,
        held: &Held<'_>,
        routes: impl Iterator<Item = &'a (Kind, ObjectName)>,
    ) -> RateLimits {
        let of = |meaning: &Meaning| meaning.rate_limits.clone();
        let (service, routes) = self.section((mesh, held), routes, Section::RateLimits, of);
        let of_route = |(of, policy): (OfRoute, _)| RouteRateLimits {
            kind: of.kind,
            namespace: of.name.namespace,
            name: of.name.name,
            rule_name: of.rule,
            policy,
        };
        RateLimits { service, routes: routes.into_iter().map(of_route).collect() }
    }

    /// How much requests to a service may be.
    pub(super) fn limits<'a>(
        &self,
        mesh: &Mesh,
        held: &Held<'_>,
        routes: impl Iterator<Item = &'a (Kind, ObjectName)>,
    ) -> Limits {
        let of = |meaning: &Meaning| meaning.limits.clone();
        let (service, routes) = self.section((mesh, held), routes, Section::Limits, of);
        let of_route = |(of, limits): (OfRoute, _)| RouteLimits {
            kind: of.kind,
            namespace: of.name.namespace,
            name: of.name.name,
            rule_name: of.rule,
            limits,
        };
        Limits { service, routes: routes.into_iter().map(of_route).collect() }
    }

    /// Which responses of a service are compressed.
    pub(super) fn compression<'a>(
        &self,
        mesh: &Mesh,
        held: &Held<'_>,
        routes: impl Iterator<Item = &'a (Kind, ObjectName)>,
    ) -> Compressions {
        let of = |meaning: &Meaning| meaning.compression.clone();
        let (service, routes) = self.section((mesh, held), routes, Section::Compression, of);
        let of_route = |(of, compression): (OfRoute, _)| RouteCompression {
            kind: of.kind,
            namespace: of.name.namespace,
            name: of.name.name,
            rule_name: of.rule,
            compression,
        };
        Compressions { service, routes: routes.into_iter().map(of_route).collect() }
    }

    /// How the endpoints of a service are checked, if they are.
    pub(super) fn health_check(&self, mesh: &Mesh, held: &Held<'_>) -> Option<HealthCheck> {
        self.deciding(mesh, Section::HealthCheck, held)?.1.meaning.health_check.clone()
    }
}

/// A route, or one rule of it.
struct OfRoute {
    kind: RouteKind,
    name: ObjectName,
    rule: Option<Text>,
}

/// The condition of a policy for each of its targets, with the reference as it is written.
pub(crate) fn conditions(
    builder: &Builder,
    name: &ObjectName,
    known: &Known,
) -> Vec<(TargetRef, StatusCondition)> {
    let wrong = known.meaning.wrong();
    let of_target = |target: &Target| {
        let (status, reason, message) = match (&wrong, missing(builder, target)) {
            (Some(wrong), _) => {
                let effect = match known.meaning.refuses() {
                    true => "requests that this section is for are refused",
                    false => "no response that this section is for is compressed",
                };
                ("False", "Invalid", format!("{wrong}: {effect}"))
            }
            (None, Err(missing)) => ("False", "TargetNotFound", missing),
            (None, Ok(hint)) => {
                let others = decided_by_others(builder, name, known, target);
                match (others, without_effect(builder, target)) {
                    (Some(message), _) => ("False", "Conflicted", message),
                    (None, Some(it)) if it.is_whole => ("False", "NotPermitted", it.message),
                    (None, Some(it)) => {
                        ("True", "Accepted", format!("the policy is in force, but {}", it.message))
                    }
                    (None, None) => ("True", "Accepted", format!("the policy is in force{hint}")),
                }
            }
        };
        let condition = StatusCondition { kind: "Accepted", status, reason, message };
        (target.written.clone(), condition)
    };
    known.meaning.targets.iter().map(of_target).collect()
}

/// What of a target is not there, or a hint on one that is.
fn missing(builder: &Builder, target: &Target) -> Result<&'static str, String> {
    let (store, name) = (builder.store(), &target.name);
    let called = format!("`{}/{}`", name.namespace, name.name);
    let route = |kind: Kind| {
        let Some(routing) = builder.routing(&(kind, name.clone())) else {
            return Err(format!("the {} {called} does not exist", kind.name()));
        };
        let has =
            |rule: &Text| routing.rules.iter().any(|it| it.origin.rule_name.as_ref() == Some(rule));
        match target.rule.as_ref().filter(|rule| !has(rule)) {
            Some(rule) => Err(format!("the {} {called} has no rule called `{rule}`", kind.name())),
            None => Ok(""),
        }
    };
    match target.kind {
        TargetKind::HttpRoute => route(Kind::HttpRoute),
        TargetKind::GrpcRoute => route(Kind::GrpcRoute),
        TargetKind::Gateway if store.gateways().is_ours(name) => Ok(""),
        TargetKind::Gateway => {
            Err(format!("the Gateway {called} is not one of Ambit's, or is not there"))
        }
        TargetKind::Service => {
            let service = builder.view().service(&service_name(builder.mesh(), name));
            let service = service.ok_or(format!("the Service {called} does not exist"))?;
            Ok(match service.waypoint.is_some() || !service.weighted_waypoints.is_empty() {
                true => "",
                false => ", but the Service has no waypoint, which would read its requests",
            })
        }
    }
}

/// The services of other namespaces that the route of a target is attached to.
fn without_effect(builder: &Builder, target: &Target) -> Option<WithoutEffect> {
    let kind = match target.kind {
        TargetKind::HttpRoute => Kind::HttpRoute,
        TargetKind::GrpcRoute => Kind::GrpcRoute,
        TargetKind::Service | TargetKind::Gateway => return None,
    };
    let route = builder.store().routes().get(&(kind, target.name.clone()))?;
    WithoutEffect::of(&route.parents(), &target.name.namespace)
}

/// Who decides sections of a policy at a target in its place.
fn decided_by_others(
    builder: &Builder,
    name: &ObjectName,
    known: &Known,
    target: &Target,
) -> Option<String> {
    let policies = builder.store().traffic_policies();
    let place = (target.kind, &target.name, target.rule.as_ref());
    let lost = Section::ALL.into_iter().filter(|section| known.meaning.has(*section));
    let lost = lost.filter_map(|section| {
        let (other, _) = policies.oldest(section, place).filter(|(other, _)| *other != name)?;
        let (section, other) = (section.name(), format!("{}/{}", other.namespace, other.name));
        Some(format!("`{section}` is decided by the older TrafficPolicy {other}"))
    });
    let lost: Vec<String> = lost.collect();
    (!lost.is_empty()).then(|| lost.join("; "))
}
