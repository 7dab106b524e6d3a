//! How many connections each client identity has, of all threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ambit_model::identity::Identity;
use rustc_hash::FxHashMap;

/// Connections by client. Clones share them.
#[derive(Clone)]
pub(crate) struct Clients(Option<Arc<Counts>>);

struct Counts {
    most: usize,
    by_identity: Mutex<FxHashMap<Identity, usize>>,
}

/// A connection of a client; dropped, it is closed.
pub(crate) struct Connected(Option<(Arc<Counts>, Identity)>);

impl Counts {
    fn all(&self) -> MutexGuard<'_, FxHashMap<Identity, usize>> {
        // A panic elsewhere leaves the counts whole.
        self.by_identity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    /// Each may have so many; `None` is any number, and nothing is counted.
    pub(crate) fn new(most: Option<usize>) -> Self {
        Self(most.map(|most| Arc::new(Counts { most, by_identity: Mutex::default() })))
    }

    /// Counts a connection, unless its client has as many as it may have.
    pub(crate) fn connect(&self, identity: &Identity) -> Option<Connected> {
        let Some(counts) = &self.0 else { return Some(Connected(None)) };
        let mut all = counts.all();
        let count = all.entry(identity.clone()).or_default();
        if *count >= counts.most {
            return None;
        }
        *count += 1;
        Some(Connected(Some((counts.clone(), identity.clone()))))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let Some((counts, identity)) = &self.0 else { return };
        let mut all = counts.all();
        if let Some(count) = all.get_mut(identity) {
            *count -= 1;
            if *count == 0 {
                all.remove(identity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_and_gets_back_what_it_closes() {
        let clients = Clients::new(Some(2));
        let (cart, other) =
            (Identity::new("t", "shop", "cart"), Identity::new("t", "shop", "other"));
        let first = clients.connect(&cart).expect("the first");
        let _second = clients.connect(&cart).expect("the second");
        assert!(clients.connect(&cart).is_none());
        assert!(clients.connect(&other).is_some());
        drop(first);
        assert!(clients.connect(&cart).is_some());
        let counts = clients.0.as_ref().expect("it counts");
        assert_eq!(counts.all().len(), 1, "who has none is not kept");
        let unbounded = Clients::new(None);
        let all: Vec<_> = (0..100).map(|_| unbounded.connect(&cart)).collect();
        assert!(all.iter().all(Option::is_some));
    }
}
