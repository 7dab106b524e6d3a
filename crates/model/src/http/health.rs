//! Which endpoints of services pass their health checks: a state machine; the caller probes, and
//! passes in the time.
//!
//! An endpoint that is ready passes until it has failed often enough, one after the other; then it
//! gets no requests until it has passed often enough. Checks of many endpoints are spread over
//! time. How an endpoint is probed, the caller knows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::Text;
use crate::names::ServiceName;

/// How the endpoints of a service are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// The service's port that is asked; `None` is its first.
    pub port: Option<u16>,
    /// From the end of a check to the next.
    pub interval: Duration,
    /// At most so many percent of the interval more, at random.
    pub jitter_percent: u32,
    /// How long a check may take.
    pub timeout: Duration,
    /// So many checks must fail, one after the other, before an endpoint gets no more requests.
    pub unhealthy_threshold: u32,
    /// So many must pass before it gets requests again.
    pub healthy_threshold: u32,
    /// While fewer percent of the endpoints pass, all get requests; 0 is never.
    pub panic_percent: u32,
    /// Why this cannot be honoured: the service gets no requests then.
    pub problem: Option<Text>,
}

/// What an endpoint is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Whether it takes a connection.
    Tcp,
    /// A GET.
    Http {
        /// The path, and maybe a query.
        path: Text,
        /// The host; `None` is the service's.
        host: Option<Text>,
        /// Ranges of statuses that are expected, both ends included; none is 200 alone.
        statuses: Vec<(u16, u16)>,
    },
    /// grpc.health.v1.Health/Check.
    Grpc {
        /// The service that is asked about; empty is the whole server.
        service: Text,
    },
}

/// An endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The service.
    pub service: ServiceName,
    /// The workload.
    pub uid: Text,
}

/// One that is checked.
#[derive(Clone, Copy, Debug)]
struct Checked {
    is_healthy: bool,
    /// Checks, one after the other, that say the contrary.
    contrary: u32,
    /// When it is checked next; `None` while it is checked.
    due: Option<Instant>,
}

/// All endpoints that are checked.
#[derive(Clone, Debug, Default)]
pub struct Health {
    endpoints: FxHashMap<Endpoint, Checked>,
    /// Those that wait for their next check.
    waiting: BTreeSet<(Instant, Endpoint)>,
}

/// What holds for one service now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Endpoints that pass.
    pub healthy: usize,
    /// All of them.
    pub all: usize,
}

impl Tally {
    /// Whether requests go to all endpoints, because too few of them pass.
    pub fn is_panic(self, percent: u32) -> bool {
        let (healthy, all) = (self.healthy as u64, self.all as u64);
        healthy * 100 < all * u64::from(percent)
    }
}

impl Health {
    /// Checks these endpoints from now on, and no others. A new one is checked within its interval;
    /// `random_below` draws a number.
    pub fn keep<'a>(
        &mut self,
        all: impl IntoIterator<Item = (Endpoint, &'a HealthCheck)>,
        now: Instant,
        mut random_below: impl FnMut(u64) -> u64,
    ) {
        let mut before = std::mem::take(&mut self.endpoints);
        self.waiting.clear();
        for (endpoint, rules) in all {
            let checked = before.remove(&endpoint).unwrap_or_else(|| Checked {
                is_healthy: true,
                contrary: 0,
                due: Some(now + part(rules.interval, 100, &mut random_below)),
            });
            self.waiting.extend(checked.due.map(|due| (due, endpoint.clone())));
            self.endpoints.insert(endpoint, checked);
        }
    }

    /// The endpoints whose time has come, at most so many, the longest overdue first. They are
    /// being checked from now on, until [`Self::report`].
    pub fn begin(&mut self, now: Instant, most: usize) -> Vec<Endpoint> {
        let mut begun = Vec::new();
        while begun.len() < most
            && self.waiting.first().is_some_and(|(due, _)| *due <= now)
            && let Some((_, endpoint)) = self.waiting.pop_first()
        {
            if let Some(checked) = self.endpoints.get_mut(&endpoint) {
                checked.due = None;
            }
            begun.push(endpoint);
        }
        begun
    }

    /// When the next check is due, if any waits.
    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Takes what a check has found; answers whether the endpoint gets requests, if that is new.
    pub fn report(
        &mut self,
        rules: &HealthCheck,
        endpoint: &Endpoint,
        passed: bool,
        now: Instant,
        mut random_below: impl FnMut(u64) -> u64,
    ) -> Option<bool> {
        let checked = self.endpoints.get_mut(endpoint)?;
        let more = part(rules.interval, rules.jitter_percent, &mut random_below);
        let due = now + rules.interval + more;
        if let Some(before) = checked.due.replace(due) {
            self.waiting.remove(&(before, endpoint.clone()));
        }
        self.waiting.insert((due, endpoint.clone()));
        if passed == checked.is_healthy {
            checked.contrary = 0;
            return None;
        }
        checked.contrary += 1;
        let threshold = if passed { rules.healthy_threshold } else { rules.unhealthy_threshold };
        if checked.contrary < threshold {
            return None;
        }
        *checked = Checked { is_healthy: passed, contrary: 0, ..*checked };
        Some(passed)
    }

    /// The endpoints that get no requests by themselves.
    pub fn unhealthy(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|(_, it)| !it.is_healthy).map(|(endpoint, _)| endpoint)
    }

    /// How many endpoints of each service pass.
    pub fn tallies(&self) -> FxHashMap<ServiceName, Tally> {
        let mut tallies = FxHashMap::<ServiceName, Tally>::default();
        for (endpoint, checked) in &self.endpoints {
            let tally = tallies.entry(endpoint.service.clone()).or_default();
            tally.all += 1;
            tally.healthy += usize::from(checked.is_healthy);
        }
        tallies
    }
}

/// Up to so many percent of a time.
fn part(time: Duration, percent: u32, random_below: &mut impl FnMut(u64) -> u64) -> Duration {
    let most = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_mul(percent.into());
    Duration::from_millis(random_below((most / 100).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> HealthCheck {
        HealthCheck {
            probe: Probe::Tcp,
            port: None,
            interval: Duration::from_secs(10),
            jitter_percent: 0,
            timeout: Duration::from_secs(1),
            unhealthy_threshold: 3,
            healthy_threshold: 2,
            panic_percent: 0,
            problem: None,
        }
    }

    fn endpoint(uid: &str) -> Endpoint {
        Endpoint { service: ServiceName::new("app", "web"), uid: uid.into() }
    }

    /// What becomes of an endpoint whose checks pass (`+`) and fail (`-`): one letter for each, `U`
    /// and `H` where it changes.
    fn check(checks: &str, expected: &str) {
        let (rules, now) = (rules(), Instant::now());
        let mut health = Health::default();
        health.keep([(endpoint("a"), &rules)], now, |_| 0);
        let mut seen = String::new();
        for (number, passed) in checks.chars().map(|it| it == '+').enumerate() {
            let at = now + Duration::from_secs(11 * number as u64);
            assert_eq!(health.begin(at, 9).len(), 1, "it is due");
            seen.push(match health.report(&rules, &endpoint("a"), passed, at, |_| 0) {
                None => '.',
                Some(true) => 'H',
                Some(false) => 'U',
            });
        }
        assert_eq!(seen, expected, "{checks}");
    }

    #[test]
    fn thresholds_count_what_comes_one_after_the_other() {
        check("+++++", ".....");
        check("--+--+", "......");
        check("---", "..U");
        check("-----", "..U..");
        check("---++", "..U.H");
        check("---+-++", "..U...H");
        check("---++--+---", "..U.H.....U");
    }

    #[test]
    fn checks_are_due_one_interval_after_the_last_has_ended() {
        let (rules, start) = (rules(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = Health::default();
        let mut draws = [2_000, 7_000].into_iter();
        let all = [(endpoint("a"), &rules), (endpoint("b"), &rules)];
        health.keep(all, start, |bound| {
            assert_eq!(bound, 10_000, "the first is within an interval");
            draws.next().expect("two of them")
        });
        assert!(health.begin(at(1), 9).is_empty());
        assert_eq!(health.begin(at(2), 9), [endpoint("a")]);
        assert!(health.begin(at(3), 9).is_empty(), "it is being checked");
        assert_eq!(health.next_due(), Some(at(7)));
        assert!(health.report(&rules, &endpoint("a"), true, at(4), |_| 0).is_none());
        assert_eq!(health.begin(at(20), 1), [endpoint("b")], "the longest overdue");
        assert_eq!(health.next_due(), Some(at(14)));
        let jitter = HealthCheck { jitter_percent: 20, ..rules.clone() };
        health.report(&jitter, &endpoint("b"), true, at(20), |bound| {
            assert_eq!(bound, 2_000);
            1_000
        });
        assert_eq!(health.begin(at(20), 9), [endpoint("a")]);
        assert_eq!(health.next_due(), Some(at(31)));
    }

    #[test]
    fn endpoints_that_are_gone_are_forgotten_and_others_keep_what_is_known() {
        let (rules, now) = (rules(), Instant::now());
        let mut health = Health::default();
        let all = || ["a", "b"].map(|uid| (endpoint(uid), &rules));
        health.keep(all(), now, |_| 0);
        for _ in 0..3 {
            health.report(&rules, &endpoint("a"), false, now, |_| 0);
        }
        health.keep(all(), now, |_| 0);
        assert_eq!(health.unhealthy().collect::<Vec<_>>(), [&endpoint("a")]);
        let tally = health.tallies()[&ServiceName::new("app", "web")];
        assert_eq!(tally, Tally { healthy: 1, all: 2 });
        health.keep([(endpoint("b"), &rules)], now, |_| 0);
        assert_eq!(health.unhealthy().count(), 0);
        assert!(health.report(&rules, &endpoint("a"), true, now, |_| 0).is_none(), "it is gone");
        health.keep([], now, |_| 0);
        assert_eq!(health.next_due(), None);
    }

    #[test]
    fn panic_is_a_share_of_the_endpoints() {
        for (healthy, all, percent, expected) in [
            (0, 4, 0, false),
            (1, 4, 25, false),
            (0, 4, 1, true),
            (1, 4, 50, true),
            (2, 4, 50, false),
            (4, 4, 100, false),
            (0, 0, 50, false),
        ] {
            let tally = Tally { healthy, all };
            assert_eq!(tally.is_panic(percent), expected, "{healthy} of {all}, {percent} %");
        }
    }
}
