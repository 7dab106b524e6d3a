//! How much a request may be, where something says otherwise than the waypoint's own settings (the
//! section `limits` of a TrafficPolicy).

use std::time::Duration;

use crate::Text;
use crate::http::rule::{Origin, RouteKind};
use crate::names::ServiceName;

/// How much a request may be; what is `None` is as the waypoint is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of the fields of its head.
    pub head_bytes: Option<u32>,
    /// Fields of its head.
    pub fields: Option<u32>,
    /// Bytes of its body.
    pub body_bytes: Option<u64>,
    /// How long its body may take from its head.
    pub body_timeout: Option<Duration>,
    /// How long nothing may move in it, or in its response.
    pub idle_timeout: Option<Duration>,
    /// Why these limits cannot be honoured: requests are answered with 500 then.
    pub problem: Option<Text>,
}

/// The limits of the requests to one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Those that hold where no route has its own.
    pub service: Option<RequestLimits>,
    /// Those of routes and of single rules of them.
    pub routes: Vec<RouteLimits>,
}

/// The limits of a route, or of one of its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLimits {
    /// The route's kind.
    pub kind: RouteKind,
    /// The route's namespace.
    pub namespace: Text,
    /// The route's name.
    pub name: Text,
    /// The name of the rule; `None` for all rules that have no limits of their own.
    pub rule_name: Option<Text>,
    /// The limits.
    pub limits: RequestLimits,
}

impl Limits {
    /// Those of a request to `service` that this rule of a route answers. A route of another
    /// namespace has none of its own: who asks must not lift what the service's namespace says.
    pub fn of(&self, route: Option<&Origin>, service: &ServiceName) -> Option<&RequestLimits> {
        let found = route.filter(|it| it.is_producers(service)).and_then(|origin| {
            let here = self.routes.iter().filter(|it| it.is_of(origin));
            let of = |rule: Option<&Text>| {
                here.clone().find(|it| it.rule_name.as_ref() == rule).map(|it| &it.limits)
            };
            origin.rule_name.as_ref().and_then(|rule| of(Some(rule))).or_else(|| of(None))
        });
        found.or(self.service.as_ref())
    }
}

impl RouteLimits {
    fn is_of(&self, origin: &Origin) -> bool {
        self.kind == origin.kind && self.name == origin.name && self.namespace == origin.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: u64) -> RequestLimits {
        RequestLimits { body_bytes: Some(number), ..RequestLimits::default() }
    }

    fn of_route(namespace: &str, rule: Option<&str>, number: u64) -> RouteLimits {
        RouteLimits {
            kind: RouteKind::HttpRoute,
            namespace: namespace.into(),
            name: "a".into(),
            rule_name: rule.map(Text::from),
            limits: bytes(number),
        }
    }

    #[test]
    fn a_rule_comes_before_its_route_and_that_before_the_service() {
        let limits = Limits {
            service: Some(bytes(1)),
            routes: vec![
                of_route("app", None, 2),
                of_route("app", Some("upload"), 3),
                of_route("cli", None, 4),
                of_route("cli", Some("upload"), 5),
            ],
        };
        let service = ServiceName::new("app", "web");
        for (route, rule, expected) in [
            (None, None, 1),
            (Some("app/other"), Some("upload"), 1),
            (Some("app/a"), None, 2),
            (Some("app/a"), Some("other"), 2),
            (Some("app/a"), Some("upload"), 3),
            // A consumer's route does not lift what holds for the service.
            (Some("cli/a"), None, 1),
            (Some("cli/a"), Some("upload"), 1),
        ] {
            let route = route.and_then(|it: &str| it.split_once('/'));
            let origin = route.map(|(namespace, name)| Origin {
                kind: RouteKind::HttpRoute,
                namespace: namespace.into(),
                name: name.into(),
                created_unix_s: 0,
                index: 0,
                rule_name: rule.map(Text::from),
            });
            let found = limits.of(origin.as_ref(), &service).and_then(|it| it.body_bytes);
            assert_eq!(found, Some(expected), "{route:?} {rule:?}");
        }
        assert_eq!(Limits::default().of(None, &service), None);
    }
}
