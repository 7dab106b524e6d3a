//! New endpoints, which take less than their share at first (slow start): a state machine; the
//! caller passes in the time.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::Text;

/// The warmth of an endpoint that takes its full share.
pub const WARM: u32 = 1000;

/// How a new endpoint comes to its share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// How long it takes.
    pub duration: Duration,
    /// So many percent of its share it gets at once.
    pub minimum_percent: u32,
    /// 1 is in proportion to time; the greater, the more it gets at first. Above 0.
    pub aggression: f64,
}

impl Warmup {
    /// Which part of its share an endpoint of this age takes, of [`WARM`] (Envoy's formula).
    pub fn warmth(&self, age: Duration) -> u32 {
        if age >= self.duration {
            return WARM;
        }
        let time = age.max(Duration::from_secs(1)).as_secs_f64() / self.duration.as_secs_f64();
        // A part of a second has as many milliseconds as the part of a whole has thousandths.
        let part = time.powf(1.0 / self.aggression).clamp(0.0, 1.0);
        let part = Duration::try_from_secs_f64(part).unwrap_or(Duration::from_secs(1));
        let part = u32::try_from(part.as_millis()).unwrap_or(WARM);
        part.max(self.minimum_percent.saturating_mul(WARM / 100)).clamp(1, WARM)
    }
}

/// When the endpoints of a service came.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// Whether any were seen before; who is there at the beginning is not new.
    has_begun: bool,
    /// Those that are there; since when, if that was seen.
    since: FxHashMap<Text, Option<Instant>>,
}

impl Arrivals {
    /// Takes which endpoints are there and take requests.
    pub fn observe<'e>(&mut self, there: impl Iterator<Item = &'e Text>, now: Instant) {
        let first = self.has_begun.then_some(now);
        let since = |uid: &Text| self.since.get(uid).copied().unwrap_or(first);
        let since = there.map(|uid| (uid.clone(), since(uid))).collect();
        (self.since, self.has_begun) = (since, true);
    }

    /// How long an endpoint has been there; `None` if it was there from the beginning, or is not.
    pub fn age(&self, uid: &str, now: Instant) -> Option<Duration> {
        let since = self.since.get(uid).copied().flatten()?;
        Some(now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_endpoint_comes_to_its_share_with_time() {
        let of = |aggression| Warmup {
            duration: Duration::from_secs(60),
            minimum_percent: 10,
            aggression,
        };
        for (aggression, age_s, expected) in [
            (1.0, 0, 100),
            (1.0, 3, 100),
            (1.0, 15, 250),
            (1.0, 30, 500),
            (1.0, 60, 1000),
            (1.0, 600, 1000),
            (2.0, 15, 500),
            (0.5, 30, 250),
            (1e-9, 59, 100),
        ] {
            let warmth = of(aggression).warmth(Duration::from_secs(age_s));
            assert_eq!(warmth, expected, "{aggression} {age_s}");
        }
        let none = Warmup { duration: Duration::ZERO, minimum_percent: 0, aggression: 1.0 };
        assert_eq!(none.warmth(Duration::ZERO), WARM);
        let least = Warmup { minimum_percent: 0, aggression: 1e-9, ..of(1.0) };
        assert_eq!(least.warmth(Duration::ZERO), 1, "everybody gets something");
    }

    #[test]
    fn who_is_there_at_the_beginning_is_not_new_and_who_comes_back_is() {
        let (mut arrivals, start) = (Arrivals::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let [a, b] = ["a", "b"].map(Text::from);
        arrivals.observe([&a].into_iter(), at(0));
        assert_eq!(arrivals.age("a", at(9)), None);
        arrivals.observe([&a, &b].into_iter(), at(10));
        let age = |arrivals: &Arrivals, uid| arrivals.age(uid, at(15));
        assert_eq!(
            (age(&arrivals, "a"), age(&arrivals, "b")),
            (None, Some(Duration::from_secs(5)))
        );
        arrivals.observe([&b].into_iter(), at(11));
        arrivals.observe([&a, &b].into_iter(), at(12));
        let (a, b) = (age(&arrivals, "a"), age(&arrivals, "b"));
        assert_eq!((a, b), (Some(Duration::from_secs(3)), Some(Duration::from_secs(5))));
    }
}
