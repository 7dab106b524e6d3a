//! TrafficPolicy (`ambit.io`): what neither Istio's resources nor the Gateway API can say of the
//! requests to a service.
//!
//! It attaches as policies of the Gateway API do (GEP-713): to a waypoint, a Service, a route or
//! one rule of a route, all of its own namespace. Each section stands for itself: of those that
//! hold for a request the most specific decides, and of several at the same target the oldest. A
//! file for each section says how it is written and what it means. Nothing here knows which
//! targets exist.

mod compression;
mod health_check;
mod limits;
mod rate_limits;

use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::compression::Compression as Compressed;
use ambit_model::http::health::HealthCheck as Check;
use ambit_model::http::limits::RequestLimits;
use ambit_model::http::rate_limit::RateLimitPolicy;
use ambit_model::names::{PolicyName, ServiceName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::istio::IstioObject;
use crate::remarks::{Remark, Remarks};
use crate::routing::Parent;
use crate::validate::names;
use crate::{FieldPath, ObjectIssues, ObjectName, remarks, routes};

use self::compression::Compression;
use self::health_check::HealthCheck;
use self::limits::Limits;
use self::rate_limits::RateLimit;

/// ambit.io TrafficPolicy.
pub type TrafficPolicy = IstioObject<TrafficPolicySpec>;

/// The controller that answers for these policies, in their status.
pub const POLICY_CONTROLLER: &str = crate::gateway::AMBIT_CONTROLLER;
/// Most targets, as of policies of the Gateway API.
const TARGETS_MAX: usize = 16;
/// What a target may be.
const TARGETS: &str = "use Gateway, HTTPRoute or GRPCRoute of gateway.networking.k8s.io, or \
                       Service of the core group, which is empty";

/// What holds for the requests to some targets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficPolicySpec {
    /// What it holds for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) target_refs: Vec<TargetRef>,
    /// How many requests may come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate_limits: Option<Vec<RateLimit>>,
    /// Which fields of responses say what is left of these limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate_limit_headers: Option<String>,
    /// How much a request may be, and how long it may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limits: Option<Limits>,
    /// Which responses are compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compression: Option<Compression>,
    /// How endpoints are checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health_check: Option<HealthCheck>,
}

/// What a policy is attached to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// API group, empty for core.
    pub(crate) group: String,
    /// Gateway, Service, HTTPRoute or GRPCRoute.
    pub(crate) kind: String,
    /// Name of the object.
    pub(crate) name: String,
    /// Of a route: the name of a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) section_name: Option<String>,
}

/// What a policy can be attached to, from the widest to the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetKind {
    /// A waypoint: all requests that it reads.
    Gateway,
    /// All requests to a Service.
    Service,
    /// The requests that an HTTPRoute answers.
    HttpRoute,
    /// The requests that a GRPCRoute answers.
    GrpcRoute,
}

/// What a policy is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its index in `targetRefs`.
    pub(crate) index: usize,
    /// The reference as it is written.
    pub written: TargetRef,
    /// What it is.
    pub kind: TargetKind,
    /// Its name.
    pub name: ObjectName,
    /// The rule of a route that is meant; `None` for all.
    pub rule: Option<Text>,
}

/// For which requests a policy at a route has no effect: those to services, or through Gateways, of
/// other namespaces. What limits them is written where those are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithoutEffect {
    /// What to say of it.
    pub message: String,
    /// Whether the route has no other requests.
    pub is_whole: bool,
}

/// The sections of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// `rateLimits`.
    RateLimits,
    /// `limits`.
    Limits,
    /// `compression`.
    Compression,
    /// `healthCheck`.
    HealthCheck,
}

/// What a policy means.
#[derive(Debug, Clone, PartialEq)]
pub struct Meaning {
    /// What it is attached to, as far as that can be read.
    pub targets: Vec<Target>,
    /// How many requests may come, if it says so.
    pub rate_limits: Option<Arc<RateLimitPolicy>>,
    /// How much a request may be, if it says so.
    pub limits: Option<RequestLimits>,
    /// Which responses are compressed, if it says so.
    pub compression: Option<Arc<Compressed>>,
    /// How endpoints are checked, if it says so.
    pub health_check: Option<Check>,
    /// What of it is wrong.
    pub remarks: Vec<Remark>,
}

impl TargetKind {
    /// Whether it is a route, of which a rule can be meant.
    fn is_route(self) -> bool {
        matches!(self, Self::HttpRoute | Self::GrpcRoute)
    }
}

impl Target {
    /// Whether both mean the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.kind, &self.name, &self.rule) == (other.kind, &other.name, &other.rule)
    }
}

impl WithoutEffect {
    /// Of a policy at a route of this namespace with these parents, if there are any.
    pub fn of(parents: &[Parent<'_>], namespace: &str) -> Option<Self> {
        let elsewhere = parents.iter().filter(|it| *it.namespace != *namespace);
        let named: Vec<String> =
            elsewhere.map(|it| format!("`{}/{}`", it.namespace, it.name)).collect();
        let message = format!(
            "it has no effect on requests to {}: a service or Gateway is limited by policies of \
             its own namespace alone",
            named.join(", ")
        );
        (!named.is_empty()).then_some(Self { message, is_whole: named.len() == parents.len() })
    }
}

impl Section {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::RateLimits, Self::Limits, Self::Compression, Self::HealthCheck];

    /// Its field.
    pub fn name(self) -> &'static str {
        match self {
            Self::RateLimits => "rateLimits",
            Self::Limits => "limits",
            Self::Compression => "compression",
            Self::HealthCheck => "healthCheck",
        }
    }
}

impl Meaning {
    /// Whether the policy says something in this section.
    pub fn has(&self, section: Section) -> bool {
        match section {
            Section::RateLimits => self.rate_limits.is_some(),
            Section::Limits => self.limits.is_some(),
            Section::Compression => self.compression.is_some(),
            Section::HealthCheck => self.health_check.is_some(),
        }
    }

    /// What is wrong with it, as one sentence.
    pub fn wrong(&self) -> Option<String> {
        let wrong = self.remarks.iter().filter(|it| it.is_wrong);
        let wrong: Vec<String> =
            wrong.map(|it| format!("{}: {}", it.at.as_str(), it.what)).collect();
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }

    /// Whether requests are refused because of what is wrong. What is wrong of compression leaves
    /// responses as they are.
    pub fn refuses(&self) -> bool {
        let mut others = Section::ALL.into_iter().filter(|it| *it != Section::Compression);
        let mut wrong = self.remarks.iter().filter(|it| it.is_wrong);
        others.any(|it| self.has(it))
            && wrong.any(|it| !it.at.as_str().starts_with("spec.compression"))
    }
}

/// Reads the specification of a TrafficPolicy of a cluster, whose definition may be newer than this
/// program; also returns what of it cannot be read. Its targets are known then too, if they can be
/// read, so that it is known whose requests must not pass without it.
pub fn read_spec(spec: Value) -> (TrafficPolicySpec, Option<String>) {
    let targets = spec.get("targetRefs").cloned().map(serde_json::from_value);
    let targets = || targets.and_then(Result::ok).unwrap_or_default();
    let has = Section::ALL.map(|section| spec.get(section.name()).is_some());
    match routes::read(spec) {
        Ok(read) => read,
        Err(problem) => {
            let [rate_limits, limits, compression, health_check] = has;
            let spec = TrafficPolicySpec {
                target_refs: targets(),
                rate_limits: rate_limits.then(Vec::new),
                rate_limit_headers: None,
                limits: limits.then(Limits::default),
                compression: compression.then(Compression::default),
                health_check: health_check.then(HealthCheck::default),
            };
            (spec, Some(problem))
        }
    }
}

/// What a policy means; `service_name` says what the Service of a namespace is called in the mesh.
pub fn read(policy: &TrafficPolicy, service_name: &dyn Fn(&str, &str) -> ServiceName) -> Meaning {
    let at = FieldPath::at("spec");
    let mut remarks = Remarks::default();
    if let Some(why) = &policy.unreadable {
        remarks.wrong(&at, format!("it cannot be read: {why}"), "use what this version knows");
    }
    let namespace = policy.metadata.namespace.as_deref().unwrap_or("default");
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let spec = &policy.spec;
    let targets = targets(&spec.target_refs, namespace, &at.field("targetRefs"), &mut remarks);
    if (&spec.rate_limits, &spec.limits) == (&None, &None)
        && (&spec.compression, &spec.health_check) == (&None, &None)
    {
        let what = "it says nothing of the requests to its targets";
        let remedy = "add a section: `rateLimits`, `limits`, `compression` or `healthCheck`";
        remarks.wrong(&at, what, remedy);
    }
    let rate_limits = spec.rate_limits.as_ref().map(|limits| {
        let about = rate_limits::About {
            policy: PolicyName::new(namespace, name),
            headers: spec.rate_limit_headers.as_deref(),
            service_name,
            unreadable: policy.unreadable.as_deref(),
        };
        Arc::new(rate_limits::read(limits, &about, &at, &mut remarks))
    });
    let unreadable = policy.unreadable.as_deref();
    let limits = spec.limits.as_ref().map(|it| limits::read(it, unreadable, &at, &mut remarks));
    let compression = spec.compression.as_ref().map(|it| {
        for target in targets.iter().filter(|it| it.kind == TargetKind::GrpcRoute) {
            let what = "gRPC compresses its messages itself: its responses stay as they are";
            let remedy = "attach `compression` to a HTTPRoute, the Service or the Gateway";
            remarks.wrong(&at.field("targetRefs").index(target.index), what, remedy);
        }
        compression::read(it, unreadable, &at, &mut remarks)
    });
    let health_check = spec.health_check.as_ref().map(|it| {
        for target in targets.iter().filter(|it| it.kind.is_route()) {
            let what = "endpoints are those of a Service: a route has none to check";
            let remedy = "attach `healthCheck` to the Service or the Gateway";
            remarks.wrong(&at.field("targetRefs").index(target.index), what, remedy);
        }
        health_check::read(it, unreadable, &at, &mut remarks)
    });
    Meaning { targets, rate_limits, limits, compression, health_check, remarks: remarks.0 }
}

/// Checks a policy by itself, whatever it is attached to.
pub(crate) fn check(policy: &TrafficPolicy, issues: &mut ObjectIssues) {
    remarks::report(&read_alone(policy).remarks, issues);
}

/// What a policy means, where nobody asks what Services are called in the mesh.
pub(crate) fn read_alone(policy: &TrafficPolicy) -> Meaning {
    read(policy, &|namespace, name| ServiceName::new(namespace, name))
}

fn targets(
    written: &[TargetRef],
    namespace: &str,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Vec<Target> {
    if written.is_empty() || written.len() > TARGETS_MAX {
        let what = format!("1 to {TARGETS_MAX} targets are allowed, here are {}", written.len());
        remarks.wrong(at, what, "name what the policy holds for, or make several policies");
    }
    let mut targets: Vec<Target> = Vec::new();
    for (index, target) in written.iter().enumerate().take(TARGETS_MAX) {
        let at = at.index(index);
        let Some(target) = self::target(target, namespace, index, &at, remarks) else { continue };
        if targets.iter().any(|it| it.is_same(&target)) {
            remarks.wrong(&at, "the same target is there twice", "remove one of the two");
            continue;
        }
        targets.push(target);
    }
    targets
}

fn target(
    written: &TargetRef,
    namespace: &str,
    index: usize,
    at: &FieldPath,
    remarks: &mut Remarks,
) -> Option<Target> {
    let kind = match (&*written.group, &*written.kind) {
        ("" | "core", "Service") => TargetKind::Service,
        (routes::GROUP, "Gateway") => TargetKind::Gateway,
        (routes::GROUP, "HTTPRoute") => TargetKind::HttpRoute,
        (routes::GROUP, "GRPCRoute") => TargetKind::GrpcRoute,
        (group, kind) => {
            let what = format!("it cannot be attached to `{kind}` of group `{group}`");
            remarks.wrong(at, what, TARGETS);
            return None;
        }
    };
    if let Some(what) = names::dns_subdomain(&written.name) {
        remarks.wrong(&at.field("name"), what, "write the name of the object");
        return None;
    }
    if written.section_name.is_some() && !kind.is_route() {
        let what = format!("of a {} no section can be meant", written.kind);
        remarks.wrong(&at.field("sectionName"), what, "remove it; of a route it names a rule");
        return None;
    }
    let rule = written.section_name.as_deref().map(Text::from);
    let name = ObjectName::new(namespace, &written.name);
    Some(Target { index, written: written.clone(), kind, name, rule })
}

#[cfg(test)]
mod tests;
