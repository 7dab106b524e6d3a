//! What one data-plane thread knows of its surroundings when it plans a connection.
//!
//! How busy endpoints are, which of them refused connections lately, which pods are served here,
//! and a source of randomness. Each thread has its own, so nothing is shared on the hot path; it
//! only answers the questions of [`ambit_model::choice`] and decides nothing itself.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::choice::Surroundings;
use ambit_model::identity::Identity;
use ambit_model::names::WorkloadName;
use ambit_model::view::View;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// How long an endpoint is passed over after its first failure; doubles with every further one.
const FIRST_PENALTY: Duration = Duration::from_secs(1);
/// The longest an endpoint is passed over.
const LONGEST_PENALTY: Duration = Duration::from_secs(30);
/// After this long without a failure an endpoint starts with a clean record.
const PENALTY_MEMORY: Duration = Duration::from_secs(60);
/// Endpoints with a record, per thread. Beyond it the oldest records are dropped.
const MAX_SET_ASIDE: usize = 4096;

/// Open connections, failures and chance of one thread. Clones share them.
#[derive(Clone)]
pub struct Balance(Rc<RefCell<State>>);

struct State {
    open: FxHashMap<Text, u32>,
    set_aside: FxHashMap<Text, Failures>,
    random: Random,
}

/// The record of an endpoint that refused connections.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
    until: Instant,
}

/// Counts one connection to an endpoint for as long as it lives.
pub struct OpenConnection {
    balance: Balance,
    uid: Text,
}

impl Balance {
    /// An empty record; `seed` comes from the operating system.
    pub fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let (open, set_aside) = (FxHashMap::default(), FxHashMap::default());
        Self(Rc::new(RefCell::new(State { open, set_aside, random })))
    }

    /// Counts a connection to an endpoint.
    pub fn open(&self, uid: &Text) -> OpenConnection {
        *self.0.borrow_mut().open.entry(uid.clone()).or_default() += 1;
        OpenConnection { balance: self.clone(), uid: uid.clone() }
    }

    /// An endpoint refused a connection: others go before it for a while.
    pub fn failed(&self, uid: &Text) {
        let now = Instant::now();
        let mut state = self.0.borrow_mut();
        if state.set_aside.len() >= MAX_SET_ASIDE {
            state.set_aside.retain(|_, failures| now < failures.until);
        }
        let before = state.set_aside.get(uid).copied();
        let count = match before {
            Some(failures) if now < failures.last + PENALTY_MEMORY => failures.count + 1,
            _ if state.set_aside.len() < MAX_SET_ASIDE => 1,
            _ => return,
        };
        let penalty = FIRST_PENALTY * 2u32.saturating_pow(count - 1);
        let until = now + penalty.min(LONGEST_PENALTY);
        state.set_aside.insert(uid.clone(), Failures { count, last: now, until });
    }

    /// An endpoint took a connection: its record is clean.
    pub fn succeeded(&self, uid: &Text) {
        let mut state = self.0.borrow_mut();
        if !state.set_aside.is_empty() {
            state.set_aside.remove(uid);
        }
    }

    /// Random bytes, not for secrets.
    pub(crate) fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut state = self.0.borrow_mut();
        std::array::from_fn(|_| state.random.next().to_be_bytes()[0])
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut state = self.balance.0.borrow_mut();
        if let Some(count) = state.open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&self.uid);
            }
        }
    }
}

/// The surroundings of one plan.
pub struct Around<'a> {
    /// Open connections and failures.
    pub balance: &'a Balance,
    /// The current view of the mesh.
    pub view: &'a View,
    /// The identity of a pod that this proxy serves, by its name.
    pub enrolled: &'a dyn Fn(&WorkloadName) -> Option<&'a Identity>,
    /// The network that this proxy is on.
    pub network: &'a Text,
    /// Whether sockets of two pods of this node may be joined.
    pub may_join: bool,
}

impl Surroundings for Around<'_> {
    fn enrolled_identity(&self, ip: IpAddr) -> Option<&Identity> {
        let workload = self.view.workload_at(self.network, ip)?;
        let name = WorkloadName::new(workload.namespace.clone(), workload.name.clone());
        (self.enrolled)(&name)
    }

    fn may_join(&self) -> bool {
        self.may_join
    }

    fn open_connections(&self, uid: &str) -> u32 {
        self.balance.0.borrow().open.get(uid).copied().unwrap_or_default()
    }

    fn is_set_aside(&self, uid: &str) -> bool {
        let state = self.balance.0.borrow();
        // The usual case looks at no clock.
        !state.set_aside.is_empty()
            && state.set_aside.get(uid).is_some_and(|it| Instant::now() < it.until)
    }

    fn random_below(&mut self, bound: u64) -> u64 {
        self.balance.0.borrow_mut().random.below(bound)
    }
}

/// xorshift64*: good enough to spread load, nothing more.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Zero is the one state that it never leaves.
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a product of two u64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_set_aside(balance: &Balance, uid: &str) -> bool {
        let (view, network) = (View::default(), "".into());
        let around =
            Around { balance, view: &view, enrolled: &|_| None, network: &network, may_join: true };
        around.is_set_aside(uid)
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_are_set_aside_longer_each_time_and_forgiven() {
        let (balance, uid) = (Balance::new(1), Text::from("a"));
        for penalty_s in [1, 2, 4, 8, 16, 30, 30] {
            balance.failed(&uid);
            tokio::time::advance(Duration::from_millis(penalty_s * 1000 - 1)).await;
            assert!(is_set_aside(&balance, "a"), "before {penalty_s} s are over");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(!is_set_aside(&balance, "a"), "after {penalty_s} s");
        }
        balance.failed(&uid);
        balance.succeeded(&uid);
        assert!(!is_set_aside(&balance, "a"));
        balance.failed(&uid);
        tokio::time::advance(FIRST_PENALTY).await;
        assert!(!is_set_aside(&balance, "a"), "a success cleans the record");
    }

    #[test]
    fn connections_are_counted_while_they_live() {
        let balance = Balance::new(1);
        let count = |uid: &str| balance.0.borrow().open.get(uid).copied();
        let (one, two) = (balance.open(&"a".into()), balance.open(&"a".into()));
        assert_eq!(count("a"), Some(2));
        drop(one);
        assert_eq!(count("a"), Some(1));
        drop(two);
        assert_eq!(count("a"), None);
    }

    #[test]
    fn chance_is_even() {
        let mut random = Random::new(0);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            counts[usize::try_from(random.below(10)).expect("below ten")] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
