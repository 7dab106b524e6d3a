//! What is under way to each service on this thread, and which of its endpoints are left out.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use ambit_model::Text;
use ambit_model::http::ejection::{Ejections, Outcome};
use ambit_model::http::traffic::{RetryBudget, TrafficPolicy};
use rustc_hash::FxHashMap;

/// Services that are remembered while nothing is under way to them.
const MAX_REMEMBERED: usize = 4096;

#[derive(Default)]
struct Load {
    requests: u32,
    retries: u32,
    ejections: Ejections,
}

/// The state of all services.
#[derive(Clone, Default)]
pub(crate) struct Loads(Rc<RefCell<FxHashMap<Text, Load>>>);

/// A request that is under way.
pub(crate) struct UnderWay {
    loads: Loads,
    service: Text,
    is_retry: bool,
}

impl Loads {
    /// Counts a request, unless the service has as many as it may have.
    pub(crate) fn begin(&self, service: &Text, policy: &TrafficPolicy) -> Option<UnderWay> {
        let mut loads = self.0.borrow_mut();
        if loads.len() >= MAX_REMEMBERED && !loads.contains_key(service) {
            loads.retain(|_, load| load.requests > 0 || load.retries > 0);
        }
        let load = loads.entry(service.clone()).or_default();
        if policy.limits.requests.is_some_and(|limit| load.requests >= limit) {
            return None;
        }
        load.requests += 1;
        Some(UnderWay { loads: self.clone(), service: service.clone(), is_retry: false })
    }

    /// Counts a retry, unless there are as many as there may be.
    pub(crate) fn retry(&self, service: &Text, policy: &TrafficPolicy) -> Option<UnderWay> {
        let mut loads = self.0.borrow_mut();
        let load = loads.entry(service.clone()).or_default();
        let budget = policy.retry_budget.unwrap_or(RetryBudget::DEFAULT);
        let is_within = policy.limits.retries.is_none_or(|limit| load.retries < limit);
        if !is_within || !budget.allows(load.requests, load.retries) {
            return None;
        }
        load.retries += 1;
        Some(UnderWay { loads: self.clone(), service: service.clone(), is_retry: true })
    }

    /// Whether an endpoint is left out.
    pub(crate) fn is_ejected(&self, service: &Text, uid: &str) -> bool {
        let loads = self.0.borrow();
        loads.get(service).is_some_and(|load| load.ejections.is_ejected(uid, Instant::now()))
    }

    /// Notes what a request to an endpoint came to.
    pub(crate) fn report(
        &self,
        service: &Text,
        policy: &TrafficPolicy,
        uid: &Text,
        alternatives: usize,
        outcome: Outcome,
    ) {
        let Some(rules) = &policy.ejection else { return };
        let mut loads = self.0.borrow_mut();
        let load = loads.entry(service.clone()).or_default();
        let ejected = load.ejections.report(rules, uid, alternatives, outcome, Instant::now());
        if let Some(time) = ejected {
            let seconds = time.as_secs();
            tracing::info!(%service, endpoint = %uid, seconds, "left out, because it fails");
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut loads = self.loads.0.borrow_mut();
        if let Some(load) = loads.get_mut(&self.service) {
            let count = if self.is_retry { &mut load.retries } else { &mut load.requests };
            *count = count.saturating_sub(1);
        }
    }
}
