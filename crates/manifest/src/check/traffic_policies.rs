//! TrafficPolicies: targets that are not there or that no waypoint reads, policies that exclude one
//! another, and services that should count and are not there.

use ambit_model::http::rate_limit::{Counter, GlobalCounter};

use super::All;
use crate::routing::{self, Parent, Routing};
use crate::traffic_policy::{self, Section, Target, TargetKind, TrafficPolicy, WithoutEffect};
use crate::{Finding, Kind, Object, ObjectKey, ObjectName, Typed};

impl All<'_> {
    /// Warns about what a policy names and is not there, and about others in its place.
    pub(super) fn traffic_policy(
        &self,
        object: &Object,
        policy: &TrafficPolicy,
        warnings: &mut Vec<Finding>,
    ) {
        let own = traffic_policy::read_alone(policy);
        for target in &own.targets {
            let at = format!("spec.targetRefs[{}]", target.index);
            if let Some(without) = self.without_effect(target) {
                warnings.push(object.finding(&at, without.message, "ask for the limits there"));
            }
            if let Some((what, remedy)) = self.missing(target) {
                warnings.push(object.finding(&at, what, remedy));
            }
            let port = own.health_check.as_ref().and_then(|it| it.port);
            if let Some(what) = port.and_then(|port| self.no_port(target, port)) {
                let remedy = "correct the port, or leave it out: the Service's first is checked";
                warnings.push(object.finding("spec.healthCheck.port", what, remedy));
            }
            for (key, other) in self.other_policies(object) {
                let other = traffic_policy::read_alone(other);
                let both = |it: &Section| own.has(*it) && other.has(*it);
                let is_same = |it: &Target| target.is_same(it);
                let Some(section) = Section::ALL.into_iter().find(both) else { continue };
                if other.targets.iter().any(is_same) {
                    let (section, namespace, name) = (section.name(), &key.namespace, &key.name);
                    warnings.push(object.finding(
                        &at,
                        format!(
                            "TrafficPolicy {namespace}/{name} has `{section}` for the same \
                             target: the older of the two decides"
                        ),
                        "put both into one policy",
                    ));
                }
            }
        }
        let limits = own.rate_limits.iter().flat_map(|it| it.limits.iter().enumerate());
        for (index, limit) in limits {
            let Counter::Global(counter) = &limit.counter else { continue };
            if let Some(what) = self.no_counter(counter) {
                let at = format!("spec.rateLimits[{index}].global.backendRef");
                warnings.push(object.finding(at, what, "correct the name, or add the Service"));
            }
        }
    }

    fn other_policies(
        &self,
        object: &Object,
    ) -> impl Iterator<Item = (&ObjectKey, &TrafficPolicy)> {
        let own = object.key.clone();
        self.objects.iter().filter_map(move |(key, typed)| match typed {
            Typed::TrafficPolicy(policy) if *key != own && key.namespace == own.namespace => {
                Some((key, &**policy))
            }
            _ => None,
        })
    }

    /// What of a target is not there, and what to do.
    fn missing(&self, target: &Target) -> Option<(String, &'static str)> {
        let ObjectName { namespace, name } = &target.name;
        let correct = "correct the name, or add the object";
        let object = |kind| self.objects.get(&ObjectKey::new(kind, namespace, name));
        let absent =
            |kind: Kind| (format!("the {kind} `{namespace}/{name}` does not exist"), correct);
        let no_rule = |routing: &Routing| {
            let rule = target.rule.as_ref()?;
            let has = routing.rules.iter().any(|it| it.origin.rule_name.as_ref() == Some(rule));
            let what = format!("the route `{namespace}/{name}` has no rule called `{rule}`");
            (!has).then_some((what, "give the rule that is meant this `name`"))
        };
        match target.kind {
            TargetKind::Service if object(Kind::Service).is_none() => Some(absent(Kind::Service)),
            TargetKind::Service if self.names_waypoint(Kind::Service, &target.name) => None,
            TargetKind::Service => Some((
                format!(
                    "the Service `{namespace}/{name}` has no waypoint: nobody reads its requests"
                ),
                "name a waypoint with the label istio.io/use-waypoint",
            )),
            TargetKind::Gateway => object(Kind::Gateway).is_none().then(|| absent(Kind::Gateway)),
            TargetKind::HttpRoute => match object(Kind::HttpRoute) {
                Some(Typed::HttpRoute(route)) => no_rule(&routing::http(route, self)),
                _ => Some(absent(Kind::HttpRoute)),
            },
            TargetKind::GrpcRoute => match object(Kind::GrpcRoute) {
                Some(Typed::GrpcRoute(route)) => no_rule(&routing::grpc(route, self)),
                _ => Some(absent(Kind::GrpcRoute)),
            },
        }
    }

    /// Says if the Service has no such port, whose endpoints would all fail their checks.
    fn no_port(&self, target: &Target, port: u16) -> Option<String> {
        let ObjectName { namespace, name } = &target.name;
        let service = self.objects.get(&ObjectKey::new(Kind::Service, namespace, name));
        let Some(Typed::Service(service)) = service.filter(|_| target.kind == TargetKind::Service)
        else {
            return None;
        };
        let has_port = routing::service_ports(service).iter().any(|it| it.number == port);
        let what = "no endpoint passes, and requests are answered with 503";
        (!has_port).then(|| format!("the Service `{namespace}/{name}` has no port {port}: {what}"))
    }

    fn without_effect(&self, target: &Target) -> Option<WithoutEffect> {
        let ObjectName { namespace, name } = &target.name;
        let object = |kind| self.objects.get(&ObjectKey::new(kind, namespace, name));
        let parents: Vec<Parent<'_>> = match target.kind {
            TargetKind::HttpRoute => match object(Kind::HttpRoute)? {
                Typed::HttpRoute(route) => routing::parents(&route.spec, namespace).collect(),
                _ => return None,
            },
            TargetKind::GrpcRoute => match object(Kind::GrpcRoute)? {
                Typed::GrpcRoute(route) => routing::parents(&route.spec, namespace).collect(),
                _ => return None,
            },
            TargetKind::Service | TargetKind::Gateway => return None,
        };
        WithoutEffect::of(&parents, namespace)
    }

    fn no_counter(&self, counter: &GlobalCounter) -> Option<String> {
        let (namespace, name) = (&counter.service.namespace, &counter.service.hostname);
        let key = ObjectKey::new(Kind::Service, namespace, name);
        let Some(Typed::Service(service)) = self.objects.get(&key) else {
            return Some(format!("the Service `{namespace}/{name}` does not exist"));
        };
        let has_port = routing::service_ports(service).iter().any(|it| it.number == counter.port);
        (!has_port)
            .then(|| format!("the Service `{namespace}/{name}` has no port {}", counter.port))
    }
}
