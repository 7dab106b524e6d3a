//! Which endpoints of a service are left out because they fail: a state machine; the caller passes
//! in the time.
//!
//! The caller reports the outcome of each request. Enough consecutive failures eject the endpoint
//! for a time that grows with each ejection. However many endpoints fail, at least one is never
//! left out: it answers, even if badly.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::Text;
use crate::http::traffic::Ejection;

/// No ejection lasts longer, unless the base time itself is longer (Envoy's `max_ejection_time`).
const EJECTION_MAX: Duration = Duration::from_secs(300);

/// What a request to an endpoint came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered with this status.
    Status(u16),
    /// It failed on the way: no connection, a reset, no answer in time.
    LocalError,
    /// It took a connection that is no HTTP, which says nothing of its answers.
    Connected,
}

/// The endpoints of one service that lately failed.
#[derive(Clone, Debug, Default)]
pub struct Ejections {
    failing: FxHashMap<Text, Failing>,
    /// If more are left out, none is; `None` is however many.
    most: Option<usize>,
}

/// An endpoint that lately failed; one that only succeeds is not kept.
#[derive(Clone, Copy, Debug, Default)]
struct Failing {
    errors_5xx: u32,
    gateway_errors: u32,
    local_errors: u32,
    until: Option<Instant>,
    /// How many ejections the next one's length counts.
    times: u32,
    /// From when the next [`Ejection::interval`] without an ejection counts.
    since: Option<Instant>,
}

impl Failing {
    /// Counts what a request came to; answers whether it was one failure too many.
    fn count(&mut self, rules: &Ejection, outcome: Outcome) -> bool {
        let (is_5xx, is_gateway, is_local) = match outcome {
            Outcome::Status(status) => (status >= 500, (502..=504).contains(&status), false),
            Outcome::LocalError if rules.splits_local_errors => (false, false, true),
            Outcome::LocalError => (true, true, true),
            Outcome::Connected => {
                self.has_connected();
                return false;
            }
        };
        let add = |count: &mut u32, is: bool| *count = if is { count.saturating_add(1) } else { 0 };
        add(&mut self.local_errors, is_local);
        if !(rules.splits_local_errors && is_local) {
            add(&mut self.errors_5xx, is_5xx);
            add(&mut self.gateway_errors, is_gateway);
        }
        let over = |count: u32, max: u32| max > 0 && count >= max;
        over(self.errors_5xx, rules.consecutive_5xx)
            || over(self.gateway_errors, rules.consecutive_gateway_errors)
            || rules.splits_local_errors && over(self.local_errors, rules.consecutive_local_errors)
    }

    /// Forgets that it could not be reached, but not what it has answered.
    fn has_connected(&mut self) {
        let unreached = std::mem::take(&mut self.local_errors);
        // Without counts of their own they are in both others, and alone there if these are equal.
        if self.errors_5xx == unreached {
            (self.errors_5xx, self.gateway_errors) = (0, 0);
        }
    }

    /// Forgets one ejection for each interval without one.
    fn forget(&mut self, rules: &Ejection, now: Instant) {
        while let Some(since) = self.since.filter(|_| self.times > 0) {
            let next = since + rules.interval.max(Duration::from_millis(1));
            if next > now {
                return;
            }
            self.times -= 1;
            self.since = Some(next);
        }
    }

    fn is_ejected(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    fn is_well(&self, now: Instant) -> bool {
        let errors = self.errors_5xx + self.gateway_errors + self.local_errors;
        errors == 0 && self.times == 0 && !self.is_ejected(now)
    }
}

impl Ejections {
    /// Whether this endpoint is left out.
    pub fn is_ejected(&self, uid: &str, now: Instant) -> bool {
        self.failing.get(uid).is_some_and(|it| it.is_ejected(now))
            && self.most.is_none_or(|most| self.count(now) <= most)
    }

    /// How many endpoints are left out.
    pub fn count(&self, now: Instant) -> usize {
        self.failing.values().filter(|it| it.is_ejected(now)).count()
    }

    /// Takes what a request to an endpoint of a service with so many endpoints came to; answers
    /// whether the endpoint is left out from now on, and for how long.
    pub fn report(
        &mut self,
        rules: &Ejection,
        uid: &Text,
        endpoints: usize,
        outcome: Outcome,
        now: Instant,
    ) -> Option<Duration> {
        let is_good = match outcome {
            Outcome::Status(status) => status < 500,
            Outcome::Connected => true,
            Outcome::LocalError => false,
        };
        if is_good && !self.failing.contains_key(uid) {
            return None;
        }
        self.most = most_by_health(rules, endpoints);
        let ejected = self.count(now);
        let failing = self.failing.entry(uid.clone()).or_default();
        if failing.is_ejected(now) {
            // An answer to what was sent before: it says nothing of how it is afterwards.
            return None;
        }
        failing.forget(rules, now);
        let is_over = failing.count(rules, outcome);
        if is_over && ejected < most(rules, endpoints) {
            failing.times = failing.times.saturating_add(1);
            let longest = EJECTION_MAX.max(rules.base_time);
            let time = rules.base_time.saturating_mul(failing.times).min(longest);
            *failing = Failing {
                until: Some(now + time),
                since: Some(now + time),
                times: failing.times,
                ..Failing::default()
            };
            return Some(time);
        }
        if failing.is_well(now) {
            self.failing.remove(uid);
        }
        None
    }

    /// Forgets endpoints that are gone.
    pub fn keep(&mut self, mut is_there: impl FnMut(&str) -> bool) {
        self.failing.retain(|uid, _| is_there(uid));
    }
}

/// How many of so many endpoints may be left out: by a small percentage still one, but never all.
fn most(rules: &Ejection, endpoints: usize) -> usize {
    let share = endpoints.saturating_mul(rules.max_percent.min(100) as usize) / 100;
    share.max(1).min(endpoints.saturating_sub(1))
}

/// How many of so many endpoints may be left out before all are asked again.
fn most_by_health(rules: &Ejection, endpoints: usize) -> Option<usize> {
    let left = rules.min_health_percent.min(100) as usize;
    (left > 0).then(|| endpoints.saturating_mul(100 - left) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Ejection = Ejection {
        consecutive_5xx: 3,
        consecutive_gateway_errors: 2,
        splits_local_errors: false,
        consecutive_local_errors: 2,
        interval: Duration::from_secs(10),
        base_time: Duration::from_secs(30),
        max_percent: 50,
        min_health_percent: 0,
    };
    const OK: Outcome = Outcome::Status(200);
    const ERROR: Outcome = Outcome::Status(500);
    const GATEWAY: Outcome = Outcome::Status(503);

    /// The index of the outcome that ejects, of outcomes of one endpoint of `endpoints`.
    fn check(rules: &Ejection, outcomes: &[Outcome], expected: Option<usize>) {
        let (mut ejections, now) = (Ejections::default(), Instant::now());
        let mut report = |it| ejections.report(rules, &"a".into(), 4, it, now).is_some();
        let at = outcomes.iter().position(|outcome| report(*outcome));
        assert_eq!(at, expected, "{outcomes:?}");
    }

    #[test]
    fn failures_one_after_the_other_eject() {
        check(&RULES, &[ERROR, ERROR, ERROR], Some(2));
        check(&RULES, &[ERROR, ERROR, OK, ERROR, ERROR], None);
        check(&RULES, &[GATEWAY, GATEWAY], Some(1));
        check(&RULES, &[GATEWAY, ERROR, GATEWAY], Some(2));
        check(&RULES, &[ERROR, Outcome::LocalError, ERROR], Some(2));
        let split = Ejection { splits_local_errors: true, ..RULES };
        check(&split, &[ERROR, ERROR, Outcome::LocalError, ERROR], Some(3));
        check(&split, &[Outcome::LocalError, Outcome::LocalError], Some(1));
        check(&split, &[Outcome::LocalError, OK, Outcome::LocalError], None);
        const CONNECTED: Outcome = Outcome::Connected;
        check(&RULES, &[ERROR, CONNECTED, ERROR, CONNECTED, ERROR], Some(4));
        check(&RULES, &[Outcome::LocalError, CONNECTED, Outcome::LocalError, ERROR], None);
        check(&RULES, &[Outcome::LocalError, ERROR, CONNECTED, ERROR], Some(3));
        check(&split, &[ERROR, CONNECTED, ERROR, CONNECTED, ERROR], Some(4));
        check(&split, &[Outcome::LocalError, CONNECTED, Outcome::LocalError], None);
        let never = Ejection { consecutive_5xx: 0, consecutive_gateway_errors: 0, ..RULES };
        check(&never, &[GATEWAY; 50], None);
    }

    #[test]
    fn an_ejection_grows_and_is_forgotten() {
        let (mut ejections, start) = (Ejections::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let uid = Text::from("a");
        let mut fail = |now| {
            let mut report = || ejections.report(&RULES, &uid, 4, GATEWAY, now);
            report().or_else(report)
        };
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
        assert_eq!(seconds(fail(at(0))), Some(30));
        assert_eq!(seconds(fail(at(10))), None, "it is left out already");
        assert_eq!(seconds(fail(at(31))), Some(60));
        // Out until 91; one interval later the next is one step shorter than it would be.
        assert_eq!(seconds(fail(at(102))), Some(60));
        // Out until 162; two intervals later all is forgotten.
        assert_eq!(seconds(fail(at(182))), Some(30));
        assert!(ejections.is_ejected("a", at(211)));
        assert!(!ejections.is_ejected("a", at(212)));
        assert!(ejections.report(&RULES, &uid, 4, OK, at(300)).is_none());
        assert!(ejections.failing.is_empty(), "what is well again is not kept");
    }

    #[test]
    fn what_comes_while_it_is_out_is_not_counted() {
        let (mut ejections, start) = (Ejections::default(), Instant::now());
        let mut report = |outcome, seconds| {
            let now = start + Duration::from_secs(seconds);
            ejections.report(&RULES, &"a".into(), 4, outcome, now).is_some()
        };
        assert!(!report(GATEWAY, 0) && report(GATEWAY, 0));
        assert!(!report(GATEWAY, 29), "out until 30");
        assert!(!report(GATEWAY, 31), "the first since it is back");
        assert!(report(GATEWAY, 32));
    }

    #[test]
    fn some_always_answer() {
        let now = Instant::now();
        for (endpoints, max_percent, expected) in
            [(4, 50, 2), (4, 10, 1), (1, 100, 0), (1, 10, 0), (2, 100, 1), (10, 100, 9), (3, 0, 1)]
        {
            let rules = Ejection { max_percent, ..RULES };
            let mut ejections = Ejections::default();
            for endpoint in 0..endpoints {
                for _ in 0..3 {
                    let uid = Text::from(endpoint.to_string());
                    ejections.report(&rules, &uid, endpoints, ERROR, now);
                }
            }
            assert_eq!(ejections.count(now), expected, "{max_percent} % of {endpoints}");
        }
        let mut ejections = Ejections::default();
        ejections.report(&RULES, &"a".into(), 1, ERROR, now);
        ejections.keep(|_| false);
        assert!(ejections.failing.is_empty());
    }

    #[test]
    fn if_too_few_are_left_all_are_asked() {
        let rules = Ejection { max_percent: 100, min_health_percent: 50, ..RULES };
        let (mut ejections, now) = (Ejections::default(), Instant::now());
        let uids = ["a", "b", "c"].map(Text::from);
        for (index, uid) in uids.iter().enumerate() {
            for _ in 0..3 {
                ejections.report(&rules, uid, 4, ERROR, now);
            }
            let left_out = uids.iter().filter(|uid| ejections.is_ejected(uid, now)).count();
            assert_eq!(left_out, [1, 2, 0][index], "{uid}");
        }
    }
}
