//! How many requests may come (the section `rateLimits` of a TrafficPolicy).
//!
//! A limit says which requests it counts, and what tells their senders apart. All limits that count
//! a request must let it pass. What is left of a limit is a [`bucket`]; who keeps the buckets, and
//! what the time is, is not said here.

pub mod bucket;
mod counted;

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use self::bucket::Quota;
use crate::Text;
use crate::http::matching::{NamedMatch, PathMatch};
use crate::http::rule::{Origin, RouteKind};
use crate::names::{PolicyName, ServiceName};
use crate::policy::TextMatch;

/// The limits of the requests to one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimits {
    /// Those that hold where no route has its own.
    pub service: Option<Arc<RateLimitPolicy>>,
    /// Those of routes and of single rules of them.
    pub routes: Vec<RouteRateLimits>,
}

/// The limits of a route, or of one of its rules.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteRateLimits {
    /// The route's kind.
    pub kind: RouteKind,
    /// The route's namespace.
    pub namespace: Text,
    /// The route's name.
    pub name: Text,
    /// The name of the rule; `None` for all rules that have no limits of their own.
    pub rule_name: Option<Text>,
    /// The limits.
    pub policy: Arc<RateLimitPolicy>,
}

/// The limits of one TrafficPolicy.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimitPolicy {
    /// The TrafficPolicy.
    pub name: PolicyName,
    /// The limits, in their order.
    pub limits: Vec<RateLimit>,
    /// Whether responses say what is left.
    pub says_what_is_left: bool,
    /// Why these limits cannot be honoured: requests are answered with 500 then.
    pub problem: Option<Text>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimit {
    /// Its name, which no other limit of its policy has.
    pub name: Text,
    /// Which requests count: those for which all of this holds.
    pub conditions: Vec<Condition>,
    /// What tells senders apart: each combination of values has its own count. A request without
    /// one of the values is not counted.
    pub distinct: Vec<Attribute>,
    /// Who counts.
    pub counter: Counter,
    /// What a request costs.
    pub request_cost: Cost,
    /// What a response costs, beside its request.
    pub response_cost: Option<Cost>,
    /// Whether all services for which the policy holds have one count together.
    pub is_shared: bool,
    /// Counted and reported, never enforced.
    pub is_shadow: bool,
}

/// What must hold for a request that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A field.
    Header(NamedMatch),
    /// The path, without its query.
    Path(PathMatch),
    /// The method is one of these.
    Method(Vec<Text>),
    /// The client's proven identity, as policies write it.
    Principal(TextMatch),
    /// The namespace of the client's proven identity.
    Namespace(TextMatch),
    /// The address that the connection came from.
    Source(IpNet),
    /// A claim of the verified token, found by these keys, one within the other.
    Claim {
        /// The keys.
        keys: Vec<Text>,
        /// Its value, or one of its members.
        value: TextMatch,
    },
}

/// What tells senders apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A field's value. Lines that differ tell nobody apart.
    Header(Text),
    /// The client's proven identity.
    Principal,
    /// The namespace of the client's proven identity.
    Namespace,
    /// The address that the connection came from.
    Source,
    /// A claim of the verified token; of a list its first member.
    Claim(Vec<Text>),
}

/// Who counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Counter {
    /// Each waypoint pod by itself.
    Local(Quota),
    /// A service that all waypoints ask.
    Global(Arc<GlobalCounter>),
}

/// A service that counts (Envoy's `envoy.service.ratelimit.v3.RateLimitService`).
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalCounter {
    /// The service.
    pub service: ServiceName,
    /// Its port, where it speaks gRPC.
    pub port: u16,
    /// What the service knows its limits by.
    pub domain: Text,
    /// Entries of the descriptor before those of what tells senders apart.
    pub descriptor: Vec<(Text, Text)>,
    /// The limit that the service is asked to hold; `None` for the one that it is configured with.
    pub quota: Option<Quota>,
    /// How long its answer may take.
    pub timeout: Duration,
    /// Whether a request is refused when there is no answer.
    pub denies_without_answer: bool,
}

/// What a request or response costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This much.
    Number(u32),
    /// What a field says.
    Header {
        /// The field; in lower case.
        name: Text,
        /// The most that counts.
        max: u32,
    },
}

impl RateLimits {
    /// Those of a request to `service` that this rule of a route answers. A route of another
    /// namespace has none of its own: who asks must not lift what the service's namespace says.
    pub fn of(
        &self,
        route: Option<&Origin>,
        service: &ServiceName,
    ) -> Option<&Arc<RateLimitPolicy>> {
        let found = route.filter(|it| it.is_producers(service)).and_then(|origin| {
            let here = self.routes.iter().filter(|it| it.is_of(origin));
            let of = |rule: Option<&Text>| {
                here.clone().find(|it| it.rule_name.as_ref() == rule).map(|it| &it.policy)
            };
            origin.rule_name.as_ref().and_then(|rule| of(Some(rule))).or_else(|| of(None))
        });
        found.or(self.service.as_ref())
    }

    /// The services that count.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &ServiceName> {
        let policies = self.service.iter().chain(self.routes.iter().map(|it| &it.policy));
        let limits = policies.flat_map(|policy| &policy.limits);
        limits.filter_map(|limit| match &limit.counter {
            Counter::Global(counter) => Some(&counter.service),
            Counter::Local(_) => None,
        })
    }
}

impl RouteRateLimits {
    fn is_of(&self, origin: &Origin) -> bool {
        self.kind == origin.kind && self.name == origin.name && self.namespace == origin.namespace
    }
}

impl Attribute {
    /// The name that a service which counts knows it by: Envoy's, where Envoy has it.
    pub fn key(&self) -> String {
        match self {
            Self::Header(name) => name.to_string(),
            Self::Principal => "principal".to_owned(),
            Self::Namespace => "namespace".to_owned(),
            Self::Source => "remote_address".to_owned(),
            Self::Claim(keys) => keys.join("."),
        }
    }
}

impl Cost {
    /// What a head with this field costs. Nobody pays less for a number that cannot be read;
    /// `absent` is the cost without the field.
    pub fn of(&self, absent: u32, field: impl FnOnce(&str) -> Option<Vec<u8>>) -> u32 {
        match self {
            Self::Number(number) => *number,
            Self::Header { name, max } => match field(name) {
                None => absent.min(*max),
                Some(value) => {
                    let text = std::str::from_utf8(&value).ok().map(str::trim);
                    let number = text.and_then(|text| text.parse::<u32>().ok());
                    number.map_or(*max, |number| number.min(*max))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests;
