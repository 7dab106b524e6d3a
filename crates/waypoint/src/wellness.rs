//! Which endpoints get no requests because their health checks fail, as all threads read it.

use std::sync::atomic::{AtomicBool, Ordering};

use ambit_model::Text;
use ambit_model::http::health::{Health, HealthCheck, Tally};
use ambit_model::names::ServiceName;
use arc_swap::ArcSwap;
use rustc_hash::{FxHashMap, FxHashSet};

/// The services whose endpoints are checked.
#[derive(Debug, Default)]
pub(crate) struct Wellness {
    services: ArcSwap<FxHashMap<ServiceName, Of>>,
    has_begun: AtomicBool,
}

/// The endpoints of one service.
#[derive(Clone, Debug, Default)]
struct Of {
    tally: Tally,
    /// Empty in a panic, too.
    left_out: FxHashSet<Text>,
}

impl Wellness {
    /// Whether the caller is the first of the pod's threads, which makes the checks for all.
    pub(crate) fn begin(&self) -> bool {
        !self.has_begun.swap(true, Ordering::Relaxed)
    }

    /// Whether an endpoint gets no requests.
    pub(crate) fn is_left_out(&self, service: &ServiceName, uid: &str) -> bool {
        let all = self.services.load();
        all.get(service).is_some_and(|of| of.left_out.contains(uid))
    }

    /// Whether any endpoint of a service gets no requests.
    pub(crate) fn leaves_out(&self, service: &ServiceName) -> bool {
        self.services.load().get(service).is_some_and(|of| !of.left_out.is_empty())
    }

    /// Takes what the checks have found.
    pub(crate) fn publish(
        &self,
        health: &Health,
        rules: impl Fn(&ServiceName) -> Option<HealthCheck>,
    ) {
        let mut all: FxHashMap<ServiceName, Of> = FxHashMap::default();
        for (service, tally) in health.tallies() {
            all.insert(service, Of { tally, ..Of::default() });
        }
        for endpoint in health.unhealthy() {
            let Some(of) = all.get_mut(&endpoint.service) else { continue };
            let percent = rules(&endpoint.service).map_or(0, |it| it.panic_percent);
            if !of.tally.is_panic(percent) {
                of.left_out.insert(endpoint.uid.clone());
            }
        }
        self.services.store(all.into());
    }

    /// How many endpoints of each service pass, and how many there are.
    pub(crate) fn tallies(&self) -> Vec<(ServiceName, Tally)> {
        let all = self.services.load();
        let mut tallies: Vec<_> = all.iter().map(|(name, of)| (name.clone(), of.tally)).collect();
        tallies.sort_by(|(one, _), (other, _)| one.cmp(other));
        tallies
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ambit_model::http::health::{Endpoint, Probe};

    use super::*;

    #[test]
    fn who_fails_is_left_out_unless_too_many_do() {
        let rules = |panic_percent| HealthCheck {
            probe: Probe::Tcp,
            port: None,
            interval: Duration::from_secs(1),
            jitter_percent: 0,
            timeout: Duration::from_secs(1),
            unhealthy_threshold: 1,
            healthy_threshold: 1,
            panic_percent,
            problem: None,
        };
        let service = ServiceName::new("app", "web");
        let endpoint = |uid: &str| Endpoint { service: service.clone(), uid: uid.into() };
        for (panic_percent, expected) in [(0, true), (50, true), (51, false)] {
            let (rules, now) = (rules(panic_percent), Instant::now());
            let (mut health, wellness) = (Health::default(), Wellness::default());
            health.keep(["a", "b"].map(|uid| (endpoint(uid), &rules)), now, |_| 0);
            health.report(&rules, &endpoint("a"), false, now, |_| 0);
            wellness.publish(&health, |_| Some(rules.clone()));
            assert_eq!(wellness.is_left_out(&service, "a"), expected, "{panic_percent} %");
            assert_eq!(wellness.leaves_out(&service), expected);
            assert!(!wellness.is_left_out(&service, "b"));
            assert_eq!(wellness.tallies(), [(service.clone(), Tally { healthy: 1, all: 2 })]);
        }
    }
}
