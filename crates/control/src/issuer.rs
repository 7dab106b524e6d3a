//! What keeps forged tokens from costing the API server a question.
//!
//! The API server publishes the keys that sign its tokens; by default every service account may
//! read them. A token that none of them has signed is refused here, by a signature's check and
//! nothing else. Where the keys are not to be had, questions are asked in turn: a source has a
//! share of them, some are kept for sources whose tokens were good before, and what was refused is
//! not asked again at once. That a token is signed proves nothing else: only the API server's
//! answer makes a caller known.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ambit_tls::key_set::{Forgery, KeySet};
use ambit_words::error_chain;
use kube::Client;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::kubernetes::{ApiError, answer};

/// Where the API server publishes its keys.
const KEYS_PATH: &str = "/openid/v1/jwks";
/// Shortest time between two questions for the keys. A token of a new key may be refused so long.
const KEYS_PAUSE: Duration = Duration::from_secs(10);
/// How old the keys may be before they are asked for again.
const KEYS_AGE_MAX: Duration = Duration::from_secs(600);
/// Reviews under way for sources that are not known.
const REVIEWS_MAX: usize = 24;
/// Further ones for sources whose token was good within [`GOOD_FOR`].
const REVIEWS_RESERVED: usize = 8;
/// Reviews under way of one source: a proxy has one token.
const REVIEWS_OF_SOURCE_MAX: usize = 2;
/// How long a source counts as good, and most of them: one for each node of a large cluster.
const GOOD_FOR: Duration = Duration::from_secs(600);
const GOOD_MAX: usize = 20_000;
/// How long a refused token is not asked about again, and most of them.
const REFUSED_FOR: Duration = Duration::from_secs(10);
const REFUSED_MAX: usize = 10_000;

/// What a token's signature says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signature {
    /// A key of the API server has signed it.
    Good,
    /// None has.
    Forged(Forgery),
    /// The keys are not to be had.
    Unknown,
}

/// The API server's public keys.
pub(crate) struct Issuer {
    client: Client,
    known: Mutex<Known>,
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Known {
    keys: Option<Arc<KeySet>>,
    /// When they were asked for.
    asked_at: Option<Instant>,
    /// Why they are not to be had, as it was said in the log.
    problem: Option<String>,
}

impl Issuer {
    /// Asks the API server of `client`.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// What the signature of `token` says.
    pub(crate) async fn judge(&self, token: &str) -> Signature {
        if !self.is_older_than(KEYS_AGE_MAX) {
            match self.verify(token) {
                Signature::Unknown | Signature::Forged(Forgery::UnknownKey) => {}
                known => return known,
            }
        }
        if self.is_older_than(KEYS_PAUSE) {
            let _one = self.asking.lock().await;
            if self.is_older_than(KEYS_PAUSE) {
                self.ask().await;
            }
        }
        self.verify(token)
    }

    fn is_older_than(&self, age: Duration) -> bool {
        let known = self.known.lock().expect("no holder of the lock panics");
        known.asked_at.is_none_or(|asked_at| asked_at.elapsed() >= age)
    }

    fn verify(&self, token: &str) -> Signature {
        let keys = self.known.lock().expect("no holder of the lock panics").keys.clone();
        match keys.map(|keys| keys.verify(token)) {
            Some(Ok(())) => Signature::Good,
            Some(Err(forgery)) => Signature::Forged(forgery),
            None => Signature::Unknown,
        }
    }

    async fn ask(&self) {
        let request = http::Request::get(KEYS_PATH).body(Vec::new()).expect("a path is a request");
        let asked = answer(self.client.request_text(request)).await;
        let mut known = self.known.lock().expect("no holder of the lock panics");
        known.asked_at = Some(Instant::now());
        let problem = match asked.map(|text| KeySet::from_json(&text)) {
            Ok(Ok(keys)) => {
                known.keys = Some(Arc::new(keys));
                known.problem = None;
                return;
            }
            // It is away: what was known holds.
            Err(error @ ApiError::Away(_)) => error_chain(&error),
            Err(error) => {
                known.keys = None;
                error_chain(&error)
            }
            Ok(Err(error)) => {
                known.keys = None;
                error_chain(&error)
            }
        };
        if known.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                error = problem,
                "the API server's keys cannot be read, so it is asked about every token; bind \
                 the ClusterRole system:service-account-issuer-discovery to control's account"
            );
        }
        known.problem = Some(problem);
    }
}

/// A part of the network that one client can be anywhere in: an address, or an IPv6 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Source(Option<IpAddr>);

impl Source {
    /// Where `address` is.
    pub(crate) fn of(address: Option<IpAddr>) -> Self {
        Self(address.map(|address| match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        }))
    }
}

/// Whose turn it is to have a question asked.
pub(crate) struct Turns {
    open: Semaphore,
    reserved: Semaphore,
    sources: Mutex<HashMap<Source, Weak<Semaphore>>>,
    good: Mutex<Recent<Source, ()>>,
    refused: Mutex<Recent<[u8; 32], String>>,
}

/// A turn, as long as it is held.
pub(crate) struct Turn<'a> {
    _place: SemaphorePermit<'a>,
    _own: OwnedSemaphorePermit,
    _source: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            open: Semaphore::new(REVIEWS_MAX),
            reserved: Semaphore::new(REVIEWS_RESERVED),
            sources: Mutex::default(),
            good: Mutex::new(Recent::new(GOOD_MAX, GOOD_FOR)),
            refused: Mutex::new(Recent::new(REFUSED_MAX, REFUSED_FOR)),
        }
    }
}

impl Turns {
    /// Waits for a turn of `source`.
    pub(crate) async fn of(&self, source: Source) -> Turn<'_> {
        let turns = self.source(source);
        let own = turns.clone().acquire_owned().await.expect("nobody closes it");
        let is_good =
            self.good.lock().expect("no holder of the lock panics").has(&source).is_some();
        let place = if is_good {
            tokio::select! {
                biased;
                place = self.reserved.acquire() => place,
                place = self.open.acquire() => place,
            }
        } else {
            self.open.acquire().await
        };
        Turn { _place: place.expect("nobody closes it"), _own: own, _source: turns }
    }

    fn source(&self, source: Source) -> Arc<Semaphore> {
        let mut sources = self.sources.lock().expect("no holder of the lock panics");
        if let Some(known) = sources.get(&source).and_then(Weak::upgrade) {
            return known;
        }
        // Those without a question go; the others are as many as there are connections.
        sources.retain(|_, known| known.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(REVIEWS_OF_SOURCE_MAX));
        sources.insert(source, Arc::downgrade(&fresh));
        fresh
    }

    /// A token of `source` was good.
    pub(crate) fn was_good(&self, source: Source) {
        self.good.lock().expect("no holder of the lock panics").add(source, ());
    }

    /// The token of this hash was refused.
    pub(crate) fn was_refused(&self, hash: [u8; 32], why: String) {
        self.refused.lock().expect("no holder of the lock panics").add(hash, why);
    }

    /// Why the token of this hash was refused just now.
    pub(crate) fn refusal(&self, hash: &[u8; 32]) -> Option<String> {
        self.refused.lock().expect("no holder of the lock panics").has(hash).cloned()
    }
}

/// So many things, each for a while; the oldest is forgotten first.
struct Recent<K, V> {
    max: usize,
    kept_for: Duration,
    known: HashMap<K, (V, Instant)>,
    order: VecDeque<(K, Instant)>,
}

impl<K: Copy + Eq + std::hash::Hash, V> Recent<K, V> {
    fn new(max: usize, kept_for: Duration) -> Self {
        Self { max, kept_for, known: HashMap::new(), order: VecDeque::new() }
    }

    fn has(&self, key: &K) -> Option<&V> {
        let (value, until) = self.known.get(key)?;
        (*until > Instant::now()).then_some(value)
    }

    fn add(&mut self, key: K, value: V) {
        let now = Instant::now();
        while let Some((oldest, until)) = self.order.front().copied() {
            if until > now && self.order.len() < self.max {
                break;
            }
            self.order.pop_front();
            // It may have come again since.
            if self.known.get(&oldest).is_some_and(|(_, known)| *known == until) {
                self.known.remove(&oldest);
            }
        }
        let until = now + self.kept_for;
        self.known.insert(key, (value, until));
        self.order.push_back((key, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_and_for_a_while() {
        let mut recent = Recent::new(10, Duration::from_secs(5));
        for round in 0..30 {
            recent.add(round % 20, round);
        }
        assert_eq!((recent.known.len(), recent.order.len()), (10, 10));
        assert_eq!((recent.has(&9), recent.has(&10)), (Some(&29), None));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(recent.has(&9), None);
        recent.add(1, 1);
        assert_eq!((recent.known.len(), recent.order.len()), (1, 1));
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let of = |text: &str| Source::of(Some(text.parse().unwrap()));
        assert_eq!(of("fd00::1"), of("fd00::ffff:0:1"));
        assert_ne!(of("fd00:0:0:1::1"), of("fd00::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }
}
