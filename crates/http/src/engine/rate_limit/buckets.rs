//! The buckets of all limits of a process.
//!
//! A limit without distinct senders is one atomic number. The senders of another are found by a
//! keyed hash of 128 bits of what tells them apart: what that was (a name, a key, a token's claim)
//! is not kept. Nothing waits here for longer than it takes to look at a thousand numbers.

use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use ambit_model::Text;
use ambit_model::http::rate_limit::bucket::{Moment, Quota, Taken};
use ambit_model::names::{PolicyName, ServiceName};
use rustc_hash::FxHashMap;

/// Senders that one limit tells apart at a time. Beyond that the one whose bucket is nearest to
/// full is forgotten, and begins with a full one when it comes again: who is being limited stays
/// known.
pub const SENDERS_MAX: usize = 16_384;
/// Parts that are locked for themselves.
const SHARDS: usize = 16;
const SHARD_MAX: usize = SENDERS_MAX / SHARDS;

/// What is known of a text after hashing.
pub(super) type Key = [u64; 2];

/// The buckets of some senders.
type Senders = FxHashMap<Key, u64>;

/// The buckets of all limits.
pub struct Buckets {
    beginning: Instant,
    hashing: [RandomState; 2],
    limits: RwLock<FxHashMap<Key, Arc<Counts>>>,
}

/// Whose a count is. A limit that is changed begins anew.
#[derive(Hash)]
pub(super) struct Of<'a> {
    pub(super) policy: &'a PolicyName,
    pub(super) limit: &'a Text,
    /// None where several services have one count together.
    pub(super) service: Option<&'a ServiceName>,
    pub(super) quota: &'a Quota,
}

/// The buckets of one limit.
#[derive(Default)]
pub(super) struct Counts {
    /// Of all senders together.
    one: AtomicU64,
    /// Of each sender.
    senders: OnceLock<Box<[Mutex<Senders>; SHARDS]>>,
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            beginning: Instant::now(),
            hashing: [RandomState::new(), RandomState::new()],
            limits: RwLock::default(),
        }
    }
}

impl Buckets {
    /// This moment.
    pub(crate) fn now(&self) -> Moment {
        Moment::after(self.beginning.elapsed())
    }

    /// The key of a value.
    pub(super) fn key(&self, value: impl Hash) -> Key {
        [self.hashing[0].hash_one(&value), self.hashing[1].hash_one(&value)]
    }

    /// The counts of a limit.
    pub(super) fn counts(&self, of: &Of<'_>) -> Arc<Counts> {
        let key = self.key(of);
        let known = self.limits.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        known.unwrap_or_else(|| {
            let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
            limits.entry(key).or_default().clone()
        })
    }

    /// Forgets what is full, and limits of which nothing else is known.
    pub(crate) fn sweep(&self, now: Moment) {
        let all: Vec<Arc<Counts>> = {
            let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
            limits.values().cloned().collect()
        };
        all.iter().for_each(|counts| counts.sweep(now));
        drop(all);
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        // A request that is under way may hold one, and gets its answer of it.
        limits.retain(|_, counts| Arc::strong_count(counts) > 1 || !counts.is_full(now));
    }
}

impl Counts {
    /// Takes tokens, if they are there.
    pub(super) fn take(&self, key: Option<Key>, quota: &Quota, now: Moment, cost: u32) -> Taken {
        self.change(key, now, |bucket| quota.take(bucket, now, cost))
    }

    /// Takes tokens whether they are there or not.
    pub(super) fn charge(&self, key: Option<Key>, quota: &Quota, now: Moment, cost: u32) {
        self.change(key, now, |bucket| (quota.charge(bucket, now, cost), ()));
    }

    /// Puts tokens back.
    pub(super) fn give_back(&self, key: Option<Key>, quota: &Quota, now: Moment, cost: u32) {
        self.change(key, now, |bucket| (quota.give_back(bucket, cost), ()));
    }

    fn change<T>(&self, key: Option<Key>, now: Moment, change: impl Fn(u64) -> (u64, T)) -> T {
        match key {
            None => change_one(&self.one, change),
            Some(key) => {
                let shard = usize::try_from(key[0] % SHARDS as u64).expect("less than the shards");
                let senders = self.senders.get_or_init(Box::default);
                let mut shard = senders[shard].lock().unwrap_or_else(PoisonError::into_inner);
                change_sender(&mut shard, key, now, change)
            }
        }
    }

    fn sweep(&self, now: Moment) {
        for shard in self.senders.get().into_iter().flat_map(|it| it.iter()) {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, bucket| !now.is_full(*bucket));
            if shard.len() * 4 < shard.capacity() {
                shard.shrink_to_fit();
            }
        }
    }

    fn is_full(&self, now: Moment) -> bool {
        let mut shards = self.senders.get().into_iter().flat_map(|it| it.iter());
        now.is_full(self.one.load(Ordering::Relaxed))
            && shards.all(|it| it.lock().unwrap_or_else(PoisonError::into_inner).is_empty())
    }
}

fn change_one<T>(one: &AtomicU64, change: impl Fn(u64) -> (u64, T)) -> T {
    let mut bucket = one.load(Ordering::Relaxed);
    loop {
        let (after, answer) = change(bucket);
        if after == bucket {
            return answer;
        }
        match one.compare_exchange_weak(bucket, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return answer,
            Err(other) => bucket = other,
        }
    }
}

fn change_sender<T>(
    senders: &mut Senders,
    key: Key,
    now: Moment,
    change: impl Fn(u64) -> (u64, T),
) -> T {
    if senders.len() >= SHARD_MAX && !senders.contains_key(&key) {
        make_room(senders, now);
    }
    match senders.entry(key) {
        Entry::Occupied(mut entry) => {
            let (after, answer) = change(*entry.get());
            entry.insert(after);
            answer
        }
        Entry::Vacant(entry) => {
            let (after, answer) = change(0);
            if !now.is_full(after) {
                entry.insert(after);
            }
            answer
        }
    }
}

fn make_room(senders: &mut Senders, now: Moment) {
    senders.retain(|_, bucket| !now.is_full(*bucket));
    if senders.len() >= SHARD_MAX
        && let Some(key) = senders.iter().min_by_key(|(_, bucket)| **bucket).map(|(key, _)| *key)
    {
        senders.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ambit_model::http::rate_limit::bucket::Unit;

    use super::*;

    const QUOTA: Quota = Quota { requests: 10, unit: Unit::Second, burst: 10 };

    fn at(milliseconds: u64) -> Moment {
        Moment::after(Duration::from_millis(milliseconds))
    }

    fn of(buckets: &Buckets, quota: &Quota, service: Option<&str>) -> Arc<Counts> {
        let (policy, limit) = (PolicyName::new("shop", "limits"), Text::from("one"));
        let service = service.map(|it| ServiceName::new("shop", it));
        buckets.counts(&Of { policy: &policy, limit: &limit, service: service.as_ref(), quota })
    }

    fn senders(counts: &Counts) -> usize {
        let shards = counts.senders.get().into_iter().flat_map(|it| it.iter());
        shards.map(|it| it.lock().unwrap().len()).sum()
    }

    #[test]
    fn a_count_belongs_to_its_limit_service_and_quota() {
        let buckets = Buckets::default();
        let one = of(&buckets, &QUOTA, Some("web"));
        assert!(Arc::ptr_eq(&one, &of(&buckets, &QUOTA, Some("web"))));
        let other = Quota { burst: 11, ..QUOTA };
        for (quota, service) in [(&QUOTA, Some("api")), (&QUOTA, None), (&other, Some("web"))] {
            assert!(!Arc::ptr_eq(&one, &of(&buckets, quota, service)), "{quota:?} {service:?}");
        }
    }

    #[test]
    fn senders_have_their_own_counts_and_threads_share_them() {
        let buckets = Buckets::default();
        let counts = of(&buckets, &QUOTA, None);
        let keys = [None, Some(buckets.key("ann")), Some(buckets.key("bob"))];
        std::thread::scope(|scope| {
            let passed = |key| {
                let counts = &counts;
                (0..100).filter(|_| counts.take(key, &QUOTA, at(0), 1).wait.is_none()).count()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(move || keys.map(passed))).collect();
            let passed: Vec<[usize; 3]> =
                threads.into_iter().map(|it| it.join().unwrap()).collect();
            for sender in 0..3 {
                assert_eq!(passed.iter().map(|it| it[sender]).sum::<usize>(), 10, "{sender}");
            }
        });
        counts.give_back(keys[1], &QUOTA, at(0), 1);
        counts.charge(keys[2], &QUOTA, at(0), 1);
        let wait = |key| counts.take(key, &QUOTA, at(0), 1).wait;
        assert_eq!(wait(keys[1]), None);
        assert_eq!(wait(keys[2]), Some(Duration::from_millis(200)));
    }

    #[test]
    fn senders_are_bounded_and_who_is_limited_stays_known() {
        let buckets = Buckets::default();
        let counts = of(&buckets, &QUOTA, None);
        let limited = Some(buckets.key("limited"));
        assert_eq!(counts.take(limited, &QUOTA, at(0), 10).wait, None);
        for number in 0..SENDERS_MAX * 2 {
            counts.take(Some(buckets.key(number)), &QUOTA, at(0), 1);
            assert!(senders(&counts) <= SENDERS_MAX);
        }
        assert!(counts.take(limited, &QUOTA, at(0), 1).wait.is_some());
        // Their buckets are full by then, and make room at once.
        counts.take(Some(buckets.key("late")), &QUOTA, at(100), 1);
        assert!(senders(&counts) < SENDERS_MAX);
    }

    #[test]
    fn what_is_full_is_forgotten() {
        let buckets = Buckets::default();
        let counts = of(&buckets, &QUOTA, None);
        counts.take(Some(buckets.key("ann")), &QUOTA, at(0), 5);
        counts.take(None, &QUOTA, at(0), 2);
        drop(counts);
        let known = || buckets.limits.read().unwrap().len();
        for (milliseconds, expected) in [(499, 1), (500, 0)] {
            buckets.sweep(at(milliseconds));
            assert_eq!(known(), expected, "{milliseconds}");
        }
        let held = of(&buckets, &QUOTA, None);
        buckets.sweep(at(500));
        assert_eq!(known(), 1, "a request holds it");
        drop(held);
    }
}
