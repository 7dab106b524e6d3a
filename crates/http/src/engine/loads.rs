//! What is under way to each service on this thread, and which of its endpoints are left out.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use ambit_model::Text;
use ambit_model::http::ejection::{Ejections, Outcome};
use ambit_model::http::traffic::{Limits, RetryBudget, TrafficPolicy};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

/// Services that are remembered while nothing is under way to them.
const MAX_REMEMBERED: usize = 4096;

#[derive(Default)]
struct Load {
    requests: u32,
    retries: u32,
    connections: u32,
    pending: u32,
    /// A connection was closed, or waits for a request.
    freed: Rc<Notify>,
    ejections: Ejections,
}

impl Load {
    fn is_idle(&self) -> bool {
        self.requests + self.retries + self.connections + self.pending == 0
    }

    fn count(&mut self, kind: Kind) -> &mut u32 {
        match kind {
            Kind::Request => &mut self.requests,
            Kind::Retry => &mut self.retries,
            Kind::Connection => &mut self.connections,
            Kind::Pending => &mut self.pending,
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Request,
    Retry,
    Connection,
    /// A request that waits for a connection.
    Pending,
}

/// The state of all services.
#[derive(Clone, Default)]
pub(crate) struct Loads(Rc<RefCell<FxHashMap<Text, Load>>>);

/// A place among what may be under way at once: a request's, a retry's, a connection's. It is free
/// again when this is dropped.
pub(crate) struct UnderWay {
    loads: Loads,
    service: Text,
    kind: Kind,
}

impl UnderWay {
    /// The service whose place it is.
    pub(crate) fn service(&self) -> &Text {
        &self.service
    }
}

impl Loads {
    /// Counts a request, unless the service has as many as it may have.
    pub(crate) fn begin(&self, service: &Text, policy: &TrafficPolicy) -> Option<UnderWay> {
        self.take(service, Kind::Request, policy.limits.requests)
    }

    /// Counts a request that waits for a connection, unless as many wait as may.
    pub(crate) fn wait(&self, service: &Text, limits: &Limits) -> Option<UnderWay> {
        self.take(service, Kind::Pending, limits.pending_requests)
    }

    /// Counts a connection, unless there are as many as there may be.
    pub(crate) fn connection(&self, service: &Text, limits: &Limits) -> Option<UnderWay> {
        self.take(service, Kind::Connection, limits.connections)
    }

    fn take(&self, service: &Text, kind: Kind, limit: Option<u32>) -> Option<UnderWay> {
        let mut loads = self.0.borrow_mut();
        if loads.len() >= MAX_REMEMBERED && !loads.contains_key(service) {
            loads.retain(|_, load| !load.is_idle());
        }
        let count = loads.entry(service.clone()).or_default().count(kind);
        if limit.is_some_and(|limit| *count >= limit) {
            return None;
        }
        *count += 1;
        Some(UnderWay { loads: self.clone(), service: service.clone(), kind })
    }

    /// Tells those who wait for a connection of this service's.
    pub(crate) fn freed(&self, service: &Text) -> Rc<Notify> {
        self.0.borrow_mut().entry(service.clone()).or_default().freed.clone()
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
        Some(UnderWay { loads: self.clone(), service: service.clone(), kind: Kind::Retry })
    }

    /// Whether an endpoint is left out.
    pub(crate) fn is_ejected(&self, service: &Text, uid: &str) -> bool {
        let loads = self.0.borrow();
        loads.get(service).is_some_and(|load| load.ejections.is_ejected(uid, Instant::now()))
    }

    /// Forgets endpoints that are gone: they do not count among those that are left out.
    pub(crate) fn keep_endpoints(&self, is_there: impl Fn(&str) -> bool) {
        for load in self.0.borrow_mut().values_mut() {
            load.ejections.keep(&is_there);
        }
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
            let count = load.count(self.kind);
            *count = count.saturating_sub(1);
            if self.kind == Kind::Connection {
                load.freed.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_model::http::traffic::Ejection;

    use super::*;

    #[test]
    fn endpoints_that_are_gone_are_not_among_those_that_are_left_out() {
        let ejection = Ejection { consecutive_5xx: 1, max_percent: 50, ..Ejection::default() };
        let policy = TrafficPolicy { ejection: Some(ejection), ..TrafficPolicy::default() };
        let (loads, service) = (Loads::default(), Text::from("app/web:80"));
        let fails =
            |uid: &str| loads.report(&service, &policy, &uid.into(), 2, Outcome::Status(500));
        fails("old");
        fails("new");
        assert!(loads.is_ejected(&service, "old") && !loads.is_ejected(&service, "new"));
        loads.keep_endpoints(|uid| uid != "old");
        assert!(!loads.is_ejected(&service, "old"));
        fails("new");
        assert!(loads.is_ejected(&service, "new"));
    }
}
