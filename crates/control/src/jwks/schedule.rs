//! When which issuer is asked again. Pure: the time is passed in.

use std::collections::BTreeMap;
use std::time::Duration;

use ambit_manifest::policy::KeySource;
use tokio::time::Instant;

/// The pause after a failure, doubled for each further one up to that after a success: an issuer
/// that was away may have changed its keys meanwhile.
const RETRY: Duration = Duration::from_secs(30);
/// The same as long as there are no keys at all: all tokens of the issuer are refused, and an
/// issuer within the mesh starts when the mesh does.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const FIRST_RETRY_MAX: Duration = Duration::from_secs(60);
/// Most issuers that are asked at the same time.
const FETCHES_MAX: usize = 8;

/// What is to be fetched.
#[derive(Debug)]
pub(super) struct Schedule {
    /// How old keys are when they are fetched again.
    refresh: Duration,
    sources: BTreeMap<KeySource, Entry>,
}

#[derive(Debug)]
struct Entry {
    due: Instant,
    timeout: Duration,
    failures: u32,
    has_keys: bool,
    is_under_way: bool,
}

impl Schedule {
    /// Nothing yet; keys are fetched again once they are as old as `refresh`.
    pub(super) fn new(refresh: Duration) -> Self {
        Self { refresh, sources: BTreeMap::new() }
    }

    /// From now on these are wanted and no others, each within its time. `has_keys` says of a new
    /// one whether older keys of it are known.
    pub(super) fn want(
        &mut self,
        wanted: &BTreeMap<KeySource, Duration>,
        has_keys: impl Fn(&KeySource) -> bool,
        now: Instant,
    ) {
        for (source, timeout) in wanted {
            let entry = self.sources.entry(source.clone()).or_insert_with(|| Entry {
                due: now,
                timeout: *timeout,
                failures: 0,
                has_keys: has_keys(source),
                is_under_way: false,
            });
            entry.timeout = *timeout;
        }
        self.sources.retain(|source, _| wanted.contains_key(source));
    }

    /// What is to be fetched now, with the time that it may take; it is under way from here on.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(KeySource, Duration)> {
        let room = self.room();
        let mut due: Vec<_> =
            self.sources.iter_mut().filter(|(_, it)| !it.is_under_way && it.due <= now).collect();
        // Who waits longest comes first: nobody's issuers, however slow, keep out those of others.
        due.sort_by_key(|(_, it)| it.due);
        let taken = due.into_iter().take(room).map(|(source, entry)| {
            entry.is_under_way = true;
            (source.clone(), entry.timeout)
        });
        taken.collect()
    }

    /// A fetch has ended; answers whether it is still wanted.
    pub(super) fn ended(&mut self, source: &KeySource, is_good: bool, now: Instant) -> bool {
        let refresh = self.refresh;
        let Some(entry) = self.sources.get_mut(source) else { return false };
        entry.is_under_way = false;
        entry.has_keys |= is_good;
        let pause = match is_good {
            true => {
                entry.failures = 0;
                refresh
            }
            false => {
                let (first, most) = match entry.has_keys {
                    true => (RETRY.min(refresh), refresh),
                    false => (FIRST_RETRY, FIRST_RETRY_MAX),
                };
                let pause = first.saturating_mul(1 << entry.failures.min(16)).min(most);
                entry.failures += 1;
                pause
            }
        };
        entry.due = now + pause;
        true
    }

    /// When something can be fetched next; `None` where first something must end.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.room() == 0 {
            return None;
        }
        self.sources.values().filter(|it| !it.is_under_way).map(|it| it.due).min()
    }

    /// Whether this is wanted.
    pub(super) fn has(&self, source: &KeySource) -> bool {
        self.sources.contains_key(source)
    }

    fn room(&self) -> usize {
        let under_way = self.sources.values().filter(|it| it.is_under_way).count();
        FETCHES_MAX.saturating_sub(under_way)
    }

    /// Whether there are sources without keys that were not asked yet, or are being asked.
    pub(super) fn is_first_round(&self) -> bool {
        self.sources.values().any(|it| !it.has_keys && it.failures == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFRESH: Duration = Duration::from_secs(5 * 60);

    fn source(name: &str) -> KeySource {
        KeySource::Uri(format!("https://{name}/keys").as_str().into())
    }

    fn wanted(names: &[&str]) -> BTreeMap<KeySource, Duration> {
        names.iter().map(|name| (source(name), Duration::from_secs(5))).collect()
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn keys_are_fetched_at_once_and_again_when_they_are_old() {
        let (mut schedule, start) = (Schedule::new(REFRESH), Instant::now());
        schedule.want(&wanted(&["a"]), |_| false, start);
        assert!(schedule.is_first_round());
        assert_eq!(schedule.take_due(start), [(source("a"), secs(5))]);
        assert!(schedule.take_due(start).is_empty(), "it is under way");
        assert!(schedule.ended(&source("a"), true, start));
        assert!(!schedule.is_first_round());
        assert_eq!(schedule.next(), Some(start + secs(300)));
        assert!(schedule.take_due(start + secs(299)).is_empty());
        assert_eq!(schedule.take_due(start + secs(300)).len(), 1);
    }

    #[test]
    fn a_failure_is_tried_again_after_pauses_that_double() {
        for (has_keys, pauses) in
            [(true, [30, 60, 120, 240, 300, 300, 300, 300]), (false, [1, 2, 4, 8, 16, 32, 60, 60])]
        {
            let (mut schedule, mut now) = (Schedule::new(REFRESH), Instant::now());
            schedule.want(&wanted(&["a"]), |_| has_keys, now);
            for pause in pauses {
                assert_eq!(schedule.take_due(now).len(), 1);
                schedule.ended(&source("a"), false, now);
                assert_eq!(schedule.next(), Some(now + secs(pause)), "has keys: {has_keys}");
                now += secs(pause);
            }
            schedule.take_due(now);
            schedule.ended(&source("a"), true, now);
            schedule.ended(&source("a"), false, now);
            assert_eq!(schedule.next(), Some(now + secs(30)), "a success ends the series");
        }
    }

    #[test]
    fn what_is_not_wanted_any_more_is_forgotten() {
        let (mut schedule, now) = (Schedule::new(REFRESH), Instant::now());
        schedule.want(&wanted(&["a", "b"]), |_| false, now);
        schedule.take_due(now);
        schedule.want(&wanted(&["b"]), |_| false, now);
        assert!(!schedule.ended(&source("a"), true, now));
        assert!(schedule.ended(&source("b"), true, now));
    }

    #[test]
    fn not_all_are_asked_at_once_and_who_waits_longest_comes_first() {
        let (mut schedule, now) = (Schedule::new(REFRESH), Instant::now());
        let names = ["b", "c", "d", "e", "f", "g", "h", "i", "j"];
        schedule.want(&wanted(&names), |_| false, now);
        assert_eq!(schedule.take_due(now).len(), FETCHES_MAX);
        assert_eq!(schedule.next(), None, "nothing is asked before one has answered");
        let with_a = ["a"].iter().chain(&names).copied().collect::<Vec<_>>();
        schedule.want(&wanted(&with_a), |_| false, now + secs(1));
        schedule.ended(&source("b"), true, now + secs(1));
        assert_eq!(schedule.next(), Some(now));
        let taken = schedule.take_due(now + secs(1));
        assert_eq!(taken, [(source("j"), secs(5))]);
    }
}
