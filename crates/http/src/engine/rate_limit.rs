//! The counts of limits that each waypoint pod keeps for itself, and what they say of a request.
//!
//! All threads of a process share them ([`buckets::Buckets`]). A request takes from each limit that
//! counts it; if one of them has nothing left, what was taken of the others is given back, so a
//! request that is refused costs nothing.

pub mod buckets;
mod fields;

use std::sync::Arc;
use std::time::Duration;

use ambit_model::http::authorize::Asked;
use ambit_model::http::rate_limit::bucket::{Moment, Quota, Taken};
use ambit_model::http::rate_limit::{Counter, RateLimit, RateLimitPolicy};
use ambit_model::names::ServiceName;

use self::buckets::{Buckets, Counts, Key, Of};
pub(super) use self::fields::{Left, fields, seconds as whole_seconds};

/// What a request has taken of its limits.
pub(super) struct Taking {
    policy: Arc<RateLimitPolicy>,
    held: Vec<Held>,
    /// What is left of each limit.
    pub(super) left: Vec<Left>,
    /// Names of limits that were reached and are not enforced.
    pub(super) shadows: Vec<usize>,
}

/// What was taken of one limit.
struct Held {
    index: usize,
    quota: Quota,
    counts: Arc<Counts>,
    key: Option<Key>,
    cost: u32,
}

/// A limit that was reached.
#[derive(Debug)]
pub(super) struct Reached {
    /// Its place in the policy.
    pub(super) index: usize,
    /// How long to wait.
    pub(super) wait: Duration,
    /// What is left of the limits that were asked.
    pub(super) left: Vec<Left>,
}

impl Taking {
    /// Takes of all limits of a policy that pods keep for themselves.
    pub(super) fn local(
        policy: &Arc<RateLimitPolicy>,
        service: &ServiceName,
        asked: &Asked<'_>,
        (buckets, now): (&Buckets, Moment),
    ) -> Result<Self, Reached> {
        let (held, left, shadows) = (Vec::new(), Vec::new(), Vec::new());
        let mut taking = Self { policy: policy.clone(), held, left, shadows };
        for (index, limit) in policy.limits.iter().enumerate() {
            let Counter::Local(quota) = &limit.counter else { continue };
            let Some(values) = limit.counts(asked) else { continue };
            let service = (!limit.is_shared).then_some(service);
            let counts =
                buckets.counts(&Of { policy: &policy.name, limit: &limit.name, service, quota });
            let key = (!values.is_empty()).then(|| buckets.key(&values));
            let cost = request_cost(limit, asked);
            let taken = counts.take(key, quota, now, cost);
            taking.left.push(Left::new(&limit.name, *quota, &taken));
            let passes = taken.wait.is_none();
            match taken.wait {
                Some(_) if limit.is_shadow => taking.shadows.push(index),
                Some(wait) => {
                    taking.give_back(now);
                    return Err(Reached { index, wait, left: taking.left });
                }
                None => {}
            }
            let cost = if passes { cost } else { 0 };
            taking.held.push(Held { index, quota: *quota, counts, key, cost });
        }
        Ok(taking)
    }

    /// Gives back what was taken for a request that does not pass after all.
    pub(super) fn give_back(&self, now: Moment) {
        for Held { quota, counts, key, cost, .. } in self.held.iter().filter(|it| it.cost > 0) {
            counts.give_back(*key, quota, now, *cost);
        }
    }

    /// Takes what the response costs.
    pub(super) fn charge(&self, now: Moment, field: impl Fn(&str) -> Option<Vec<u8>>) {
        for Held { index, quota, counts, key, .. } in &self.held {
            let Some(cost) = &self.policy.limits[*index].response_cost else { continue };
            let cost = cost.of(0, &field);
            if cost > 0 {
                counts.charge(*key, quota, now, cost);
            }
        }
    }

    /// The policy.
    pub(super) fn policy(&self) -> &Arc<RateLimitPolicy> {
        &self.policy
    }
}

/// What a request costs of a limit.
pub(super) fn request_cost(limit: &RateLimit, asked: &Asked<'_>) -> u32 {
    let field = |name: &str| asked.head.fields.value(name).map(|value| value.into_owned());
    limit.request_cost.of(1, field)
}

impl Left {
    fn new(name: &str, quota: Quota, taken: &Taken) -> Self {
        Self {
            name: name.into(),
            requests: quota.requests,
            window: quota.unit.duration(),
            burst: (quota.burst != quota.requests).then_some(quota.burst),
            remaining: taken.remaining,
            reset: taken.reset,
        }
    }
}
