//! What is left of a limit: a token bucket, kept as one number.
//!
//! The number is the moment at which the bucket will be full (the "theoretical arrival time" of the
//! generic cell rate algorithm, ITU-T I.371). So a bucket needs no clock of its own, refills
//! without being touched, and one that is full needs no memory at all. All functions here take a
//! bucket and the time, and answer with the bucket afterwards: a caller that shares one among
//! threads compares and swaps.

use std::time::Duration;

/// Ticks in a nanosecond. The time for one token is rounded up to a whole tick, so a bucket never
/// lets more pass than its quota, and so little less that it does not matter.
const TICKS_PER_NANOSECOND: u64 = 64;
/// No bucket takes longer to fill.
pub const FILLING_MAX: Duration = Duration::from_secs(366 * 86_400);

/// How many requests may come in a time, and how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    /// So many requests, at least 1 ...
    pub requests: u32,
    /// ... in this time, evenly.
    pub unit: Unit,
    /// The size of the bucket, at least 1: how many may come at once after a pause.
    pub burst: u32,
}

/// The times that limits are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
}

/// A moment, in ticks since a beginning that the caller chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// What a bucket has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How long to wait until the same request would pass; `None`: it passes.
    pub wait: Option<Duration>,
    /// Whole requests that may come now.
    pub remaining: u64,
    /// How long it takes until the bucket is full.
    pub reset: Duration,
}

impl Unit {
    /// How long it is.
    pub fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        })
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

impl Quota {
    /// How long it takes to fill the bucket.
    pub fn filling(&self) -> Duration {
        duration(self.interval().saturating_mul(self.burst.max(1).into()))
    }

    /// Ticks for one token.
    fn interval(&self) -> u64 {
        ticks(self.unit.duration()).div_ceil(self.requests.max(1).into())
    }

    /// Ticks for all tokens.
    fn capacity(&self) -> u64 {
        let capacity = self.interval().saturating_mul(self.burst.max(1).into());
        capacity.min(ticks(FILLING_MAX))
    }

    /// Takes `cost` tokens of a bucket, if they are there. One of which a request costs more than
    /// it can hold would never let it pass, so a request costs no more than that. One that costs
    /// nothing passes while there is a token.
    pub fn take(&self, bucket: u64, now: Moment, cost: u32) -> (u64, Taken) {
        let (interval, full) = (self.interval(), now.0.saturating_add(self.capacity()));
        let before = bucket.max(now.0);
        let needed = interval.saturating_mul(cost.clamp(1, self.burst.max(1)).into());
        let after = before.saturating_add(needed);
        if after > full {
            let wait = Some(duration(after - full));
            return (bucket, Taken { wait, ..self.state(before, now) });
        }
        let after = if cost == 0 { before } else { after };
        (after, self.state(after, now))
    }

    /// Takes tokens whether they are there or not. What is missing is paid back before anything
    /// passes, but never more than the bucket can hold.
    pub fn charge(&self, bucket: u64, now: Moment, cost: u32) -> u64 {
        let most = now.0.saturating_add(self.capacity().saturating_mul(2));
        let cost = self.interval().saturating_mul(cost.into());
        bucket.max(now.0).saturating_add(cost).min(most.max(bucket))
    }

    /// Puts back what was taken for a request that did not pass after all.
    pub fn give_back(&self, bucket: u64, cost: u32) -> u64 {
        let cost = cost.min(self.burst.max(1));
        bucket.saturating_sub(self.interval().saturating_mul(cost.into()))
    }

    fn state(&self, bucket: u64, now: Moment) -> Taken {
        let full = now.0.saturating_add(self.capacity());
        let remaining = full.saturating_sub(bucket) / self.interval();
        Taken { wait: None, remaining, reset: duration(bucket.saturating_sub(now.0)) }
    }
}

impl Moment {
    /// So long after the beginning. The clock stops after nine years; nothing runs for so long.
    pub fn after(beginning: Duration) -> Self {
        Self(ticks(beginning))
    }

    /// Whether a bucket is full at this moment, so that nothing is lost if it is forgotten.
    pub fn is_full(self, bucket: u64) -> bool {
        bucket <= self.0
    }
}

fn ticks(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).saturating_mul(TICKS_PER_NANOSECOND)
}

fn duration(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.div_ceil(TICKS_PER_NANOSECOND))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn quota(requests: u32, unit: Unit, burst: u32) -> Quota {
        Quota { requests, unit, burst }
    }

    fn at(milliseconds: u64) -> Moment {
        Moment::after(Duration::from_millis(milliseconds))
    }

    /// Plays `(milliseconds, cost, remaining or the wait in milliseconds)`.
    fn check(quota: Quota, steps: &[(u64, u32, Result<u64, u64>)]) {
        let mut bucket = 0;
        for (index, (milliseconds, cost, expected)) in steps.iter().enumerate() {
            let (after, taken) = quota.take(bucket, at(*milliseconds), *cost);
            let answered = match taken.wait {
                None => Ok(taken.remaining),
                Some(wait) => Err(wait.as_millis().try_into().unwrap()),
            };
            assert_eq!(answered, *expected, "step {index} of {quota:?}");
            bucket = after;
        }
    }

    #[test]
    fn a_bucket_lets_a_burst_pass_and_then_its_rate() {
        check(
            quota(2, Unit::Second, 3),
            &[
                (0, 1, Ok(2)),
                (0, 1, Ok(1)),
                (0, 1, Ok(0)),
                (0, 1, Err(500)),
                (100, 1, Err(400)),
                (500, 1, Ok(0)),
                (999, 1, Err(1)),
                (1_000, 1, Ok(0)),
                (60_000, 1, Ok(2)),
            ],
        );
        check(quota(60, Unit::Minute, 1), &[(5, 1, Ok(0)), (6, 1, Err(999)), (1_005, 1, Ok(0))]);
        check(quota(1, Unit::Hour, 2), &[(0, 1, Ok(1)), (0, 1, Ok(0)), (0, 1, Err(3_600_000))]);
    }

    #[test]
    fn costs_are_whole_and_never_more_than_the_bucket() {
        check(
            quota(10, Unit::Second, 10),
            &[(0, 7, Ok(3)), (0, 4, Err(100)), (0, 3, Ok(0)), (1_000, 99, Ok(0))],
        );
    }

    #[test]
    fn what_costs_nothing_passes_while_a_token_is_there() {
        let steps =
            [(0, 0, Ok(1)), (0, 0, Ok(1)), (0, 1, Ok(0)), (0, 0, Err(1_000)), (1_000, 0, Ok(1))];
        check(quota(1, Unit::Second, 1), &steps);
    }

    #[test]
    fn a_charge_is_a_debt_of_at_most_one_bucket() {
        let quota = quota(10, Unit::Second, 10);
        let bucket = quota.charge(0, at(0), 15);
        let (_, taken) = quota.take(bucket, at(0), 1);
        assert_eq!((taken.wait, taken.remaining), (Some(Duration::from_millis(600)), 0));
        let bucket = quota.charge(bucket, at(0), 1_000);
        assert_eq!(quota.take(bucket, at(0), 1).1.wait, Some(Duration::from_millis(1_100)));
        assert_eq!(quota.take(bucket, at(2_000), 1).1.remaining, 9);
    }

    #[test]
    fn what_is_given_back_is_there_again() {
        let quota = quota(10, Unit::Second, 10);
        let (bucket, _) = quota.take(0, at(0), 10);
        let bucket = quota.give_back(bucket, 10);
        assert_eq!(quota.take(bucket, at(0), 10).1.wait, None);
    }

    #[test]
    fn a_bucket_is_forgotten_only_when_it_is_full() {
        let quota = quota(10, Unit::Second, 10);
        let (bucket, taken) = quota.take(0, at(0), 2);
        assert_eq!(taken.reset, Duration::from_millis(200));
        assert!(!at(199).is_full(bucket) && at(200).is_full(bucket) && at(0).is_full(0));
    }

    #[test]
    fn no_quota_overflows() {
        for requests in [0, 1, u32::MAX] {
            for burst in [0, 1, u32::MAX] {
                for unit in [Unit::Second, Unit::Day] {
                    let quota = quota(requests, unit, burst);
                    for now in [at(0), Moment(u64::MAX)] {
                        for bucket in [0, u64::MAX] {
                            let (after, _) = quota.take(bucket, now, u32::MAX);
                            quota.give_back(quota.charge(after, now, u32::MAX), u32::MAX);
                        }
                    }
                }
            }
        }
    }

    /// A bucket as everybody draws it: tokens that are added as time passes. A token is as many
    /// drops as it takes ticks.
    struct Naive {
        drops: u64,
        touched: u64,
    }

    impl Naive {
        fn take(&mut self, quota: Quota, now: u64, cost: u32) -> bool {
            let capacity = quota.interval() * u64::from(quota.burst);
            self.drops = capacity.min(self.drops + (now - self.touched));
            self.touched = now;
            let needed = quota.interval() * u64::from(cost.clamp(1, quota.burst));
            let passes = self.drops >= needed;
            if passes && cost > 0 {
                self.drops -= needed;
            }
            passes
        }
    }

    proptest! {
        #[test]
        fn the_number_says_what_a_bucket_of_tokens_says(
            requests in 1_u32..2_000,
            burst in 1_u32..50,
            steps in prop::collection::vec((0_u64..3_000_000_000, 0_u32..60), 1..60),
        ) {
            let quota = quota(requests, Unit::Second, burst);
            let mut naive = Naive { drops: quota.capacity(), touched: 0 };
            let (mut bucket, mut now) = (0, 0);
            for (pause, cost) in steps {
                now += pause;
                let (after, taken) = quota.take(bucket, Moment(now), cost);
                prop_assert_eq!(taken.wait.is_none(), naive.take(quota, now, cost));
                prop_assert_eq!(taken.remaining, naive.drops / quota.interval());
                bucket = after;
                if let Some(wait) = taken.wait {
                    let later = Moment(now + ticks(wait));
                    let again = quota.take(bucket, later, cost).1.wait;
                    prop_assert!(again.is_none(), "the wait is enough");
                }
            }
        }

        #[test]
        fn no_more_passes_than_the_quota(
            requests in 1_u32..1_000,
            burst in 1_u32..100,
            pauses in prop::collection::vec(0_u64..20_000_000, 1..200),
        ) {
            let quota = quota(requests, Unit::Second, burst);
            let (mut bucket, mut now, mut passed) = (0, 0, 0_u64);
            for pause in pauses {
                now += pause;
                let (after, taken) = quota.take(bucket, at(0).max(Moment(now * 64)), 1);
                bucket = after;
                passed += u64::from(taken.wait.is_none());
                let allowed = u64::from(burst) + now * u64::from(requests) / 1_000_000_000;
                prop_assert!(passed <= allowed, "{} of {}", passed, allowed);
            }
        }
    }
}
