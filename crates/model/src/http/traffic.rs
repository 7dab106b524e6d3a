//! How requests to a service are spread over its endpoints, and how many run at once: a
//! DestinationRule, as used.

use std::time::Duration;

use crate::Text;
use crate::http::nearness::Nearness;
use crate::http::origination::Origination;
use crate::http::warmup::Warmup;

/// What holds for the requests to a service, or to a subset of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficPolicy {
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// How much may be under way at once.
    pub limits: Limits,
    /// When an endpoint that fails is left out.
    pub ejection: Option<Ejection>,
    /// How many retries may be under way at once; `None` is [`RetryBudget::DEFAULT`].
    pub retry_budget: Option<RetryBudget>,
    /// Which endpoints are near.
    pub nearness: Nearness,
    /// How a new endpoint comes to its share; `None` is at once.
    pub warmup: Option<Warmup>,
    /// TLS that is spoken with endpoints, inside of the mesh's own.
    pub origination: Option<Origination>,
    /// Why no request may be sent, where it would have to be sent in a way that is not possible.
    pub refusal: Option<Text>,
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balancing {
    /// Of two drawn at random the one with less load and latency.
    #[default]
    LeastRequest,
    /// At random.
    Random,
    /// One after the other.
    RoundRobin,
    /// By a hash of something of the request: the same always goes to the same endpoint, as long
    /// as it is there.
    Hash(HashKey),
}

/// What is hashed. A request without it is balanced as by [`Balancing::LeastRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// A field, by its name in lower case.
    Header(Text),
    /// A cookie; one that is missing is set, for as long as `lifetime` says.
    Cookie {
        /// Its name.
        name: Text,
        /// Where it holds.
        path: Option<Text>,
        /// How long it holds; zero is the browser's session.
        lifetime: Option<Duration>,
    },
    /// A parameter of the query.
    Parameter(Text),
    /// The client's address.
    SourceIp,
}

/// How much may be under way at once to a service, for one thread of a proxy. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub connections: Option<u32>,
    /// Requests that wait for a connection.
    pub pending_requests: Option<u32>,
    /// Requests.
    pub requests: Option<u32>,
    /// Retries, whatever the budget allows.
    pub retries: Option<u32>,
    /// Requests that one connection carries before it is closed.
    pub requests_per_connection: Option<u32>,
    /// How long a connection may take to come about.
    pub connect_timeout: Option<Duration>,
    /// How long a connection without a request is kept.
    pub idle_timeout: Option<Duration>,
}

/// When an endpoint that fails is left out (passive health checks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// So many answers from 500 one after the other; 0 is never. What fails on the way counts as
    /// one, unless `splits_local_errors`.
    pub consecutive_5xx: u32,
    /// So many of 502, 503 and 504 one after the other; 0 is never.
    pub consecutive_gateway_errors: u32,
    /// Failures on the way (no connection, a reset, no answer in time) are counted by themselves.
    pub splits_local_errors: bool,
    /// So many failures on the way one after the other, if counted by themselves; 0 is never.
    pub consecutive_local_errors: u32,
    /// After so long without an ejection the next one is shorter again.
    pub interval: Duration,
    /// How long the first ejection lasts; the second lasts twice as long, and so on.
    pub base_time: Duration,
    /// At most so many percent of the endpoints; by a small percentage still one, but never all.
    pub max_percent: u32,
    /// If fewer percent of the endpoints are left, none is left out: rather a share of errors than
    /// all of the load on a few. 0 is never.
    pub min_health_percent: u32,
}

/// How many retries may be under way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// So many percent of the requests that are under way ...
    pub percent: u32,
    /// ... or so many, whichever is more.
    pub min_retries: u32,
}

impl Default for Ejection {
    /// What Istio does when an `outlierDetection` says nothing.
    fn default() -> Self {
        Self {
            consecutive_5xx: 5,
            consecutive_gateway_errors: 0,
            splits_local_errors: false,
            consecutive_local_errors: 5,
            interval: Duration::from_secs(10),
            base_time: Duration::from_secs(30),
            max_percent: 10,
            min_health_percent: 0,
        }
    }
}

impl RetryBudget {
    /// What holds where nothing is said: Envoy's budget.
    pub const DEFAULT: Self = Self { percent: 20, min_retries: 3 };

    /// Whether one more retry may begin while so many requests and retries are under way.
    pub fn allows(self, requests: u32, retries: u32) -> bool {
        let of_requests = u64::from(requests) * u64::from(self.percent) / 100;
        u64::from(retries) < of_requests.max(u64::from(self.min_retries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_share_and_a_minimum() {
        let budget = RetryBudget::DEFAULT;
        for (requests, retries, expected) in [
            (0, 0, true),
            (1, 2, true),
            (1, 3, false),
            (20, 3, true),
            (20, 4, false),
            (1000, 199, true),
            (1000, 200, false),
        ] {
            assert_eq!(budget.allows(requests, retries), expected, "{requests} {retries}");
        }
        assert!(!RetryBudget { percent: 0, min_retries: 0 }.allows(u32::MAX, 0));
    }
}
