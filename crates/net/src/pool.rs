//! HBONE connections that are shared by the connections of one thread.
//!
//! Connections are found by a key that says who connects to whom, so that nothing is ever sent
//! under another identity's certificate. A key's first user opens the connection while the others
//! wait for it; a further one is opened when all are full. What is out of date (closing, made with
//! an older certificate) gets no new tunnel and ends with its last one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::drain::Guard;
use crate::hbone::Client;

/// How often unused connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tunnels on one connection before another is opened; the peer may allow fewer.
    pub tunnels_per_connection: usize,
    /// How long an unused connection is kept.
    pub idle: Duration,
    /// How many may wait for connections of one key that are being opened.
    pub waiters: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tunnels_per_connection: 100, idle: Duration::from_secs(300), waiters: 4096 }
    }
}

/// Why no connection can be had.
#[derive(Debug, thiserror::Error)]
pub enum PoolError<E> {
    /// The connection could not be opened; all that waited for it are told the same.
    #[error(transparent)]
    Connect(Arc<E>),
    /// More connections wait for this destination than are allowed to.
    #[error("{0} connections wait for an HBONE connection to this destination already")]
    Crowded(usize),
}

impl<E> Clone for PoolError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Connect(error) => Self::Connect(error.clone()),
            Self::Crowded(waiters) => Self::Crowded(*waiters),
        }
    }
}

/// HBONE connections of one thread. Clones share them.
pub struct Pool<K, T, E> {
    shelves: Rc<Shelves<K, T, E>>,
    limits: Limits,
}

/// An open connection, and what its owner knows about it.
pub struct Pooled<T> {
    client: Client,
    about: T,
}

impl<T> Pooled<T> {
    /// What [`Pool::client`] was told about the connection when it was opened.
    pub fn about(&self) -> &T {
        &self.about
    }
}

impl<T> std::ops::Deref for Pooled<T> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

type Shelves<K, T, E> = RefCell<HashMap<K, Shelf<T, E>>>;

/// The connections of one key.
struct Shelf<T, E> {
    ready: Vec<Ready<T>>,
    opening: Vec<Rc<Opening<T, E>>>,
}

/// An open connection, and the certificate it was made with.
struct Ready<T> {
    generation: u128,
    client: Rc<Pooled<T>>,
}

/// What came of opening a connection, for all who waited for it.
type Outcome<T, E> = Result<Rc<Pooled<T>>, Arc<E>>;

/// A connection that is being opened.
struct Opening<T, E> {
    generation: u128,
    outcome: RefCell<Option<Outcome<T, E>>>,
    done: Notify,
    waiters: Cell<usize>,
}

/// One that waits for a connection; leaves the queue when it is dropped.
struct Waiter<T, E>(Rc<Opening<T, E>>);

impl<T, E> Drop for Waiter<T, E> {
    fn drop(&mut self) {
        self.0.waiters.set(self.0.waiters.get() - 1);
    }
}

/// How a connection is to be had.
enum Source<T, E> {
    Ready(Rc<Pooled<T>>),
    Opening(Rc<Opening<T, E>>),
    New,
}

impl<T, E> Default for Shelf<T, E> {
    fn default() -> Self {
        Self { ready: Vec::new(), opening: Vec::new() }
    }
}

impl<T, E> Shelf<T, E> {
    fn source(&mut self, generation: u128, limits: &Limits) -> Result<Source<T, E>, PoolError<E>> {
        // Closing connections end with their last tunnel; here they are only forgotten.
        self.ready.retain(|ready| ready.generation == generation && !ready.client.is_closing());
        let limit = limits.tunnels_per_connection;
        if let Some(ready) = self.ready.iter().find(|ready| ready.client.has_room(limit)) {
            return Ok(Source::Ready(ready.client.clone()));
        }
        let waiting: usize = self.opening.iter().map(|opening| opening.waiters.get()).sum();
        if waiting >= limits.waiters {
            return Err(PoolError::Crowded(waiting));
        }
        let joins = |opening: &&Rc<Opening<T, E>>| {
            opening.generation == generation && opening.waiters.get() < limit
        };
        Ok(match self.opening.iter().find(joins) {
            Some(opening) => Source::Opening(opening.clone()),
            None => Source::New,
        })
    }
}

impl<K, T, E> Pool<K, T, E>
where
    K: Clone + Eq + Hash + 'static,
    T: 'static,
    E: 'static,
{
    /// An empty pool. It is looked after by a task on this thread that ends when `guard` drains.
    pub fn new(limits: Limits, guard: Guard) -> Self {
        let shelves = Rc::default();
        let sweep = sweep(Rc::downgrade(&shelves), limits.idle, guard.clone());
        guard.spawn_local(sweep);
        Self { shelves, limits }
    }

    /// A connection with room for one more tunnel; `connect` opens one when it is needed.
    ///
    /// `generation` numbers the certificate that `connect` would use: connections made with
    /// another one are not used. The connection's tasks run under `guard`; what is opened while it
    /// drains is not kept.
    pub async fn client<F>(
        &self,
        key: &K,
        generation: u128,
        guard: &Guard,
        connect: impl FnOnce() -> F,
    ) -> Result<Rc<Pooled<T>>, PoolError<E>>
    where
        F: Future<Output = Result<(Client, T), E>> + 'static,
    {
        let source = match self.shelves.borrow_mut().get_mut(key) {
            Some(shelf) => shelf.source(generation, &self.limits)?,
            None => Source::New,
        };
        let opening = match source {
            Source::Ready(client) => return Ok(client),
            Source::Opening(opening) => opening,
            Source::New => self.open(key, generation, guard, connect()),
        };
        opening.waiters.set(opening.waiters.get() + 1);
        let waiter = Waiter(opening);
        waiter.0.outcome().await.map_err(PoolError::Connect)
    }

    /// Opens a connection in a task of its own: it must not be lost to the others that wait for
    /// it when the first of them gives up.
    fn open<F>(&self, key: &K, generation: u128, guard: &Guard, connect: F) -> Rc<Opening<T, E>>
    where
        F: Future<Output = Result<(Client, T), E>> + 'static,
    {
        let opening = Rc::new(Opening {
            generation,
            outcome: RefCell::default(),
            done: Notify::new(),
            waiters: Cell::new(0),
        });
        let mut shelves = self.shelves.borrow_mut();
        shelves.entry(key.clone()).or_default().opening.push(opening.clone());
        let (shelves, key, opened) = (self.shelves.clone(), key.clone(), opening.clone());
        let owner = guard.clone();
        guard.spawn_local(async move {
            let outcome = connect.await;
            let outcome = outcome.map(|(client, about)| Rc::new(Pooled { client, about }));
            let outcome = outcome.map_err(Arc::new);
            let mut shelves = shelves.borrow_mut();
            // Without its shelf it was forgotten meanwhile, and an owner that drains would never
            // forget it: it serves those who wait, no others.
            if let Some(shelf) = shelves.get_mut(&key) {
                shelf.opening.retain(|opening| !Rc::ptr_eq(opening, &opened));
                if let Ok(client) = &outcome
                    && !owner.is_draining()
                {
                    shelf.ready.push(Ready { generation, client: client.clone() });
                }
            }
            *opened.outcome.borrow_mut() = Some(outcome);
            opened.done.notify_waiters();
        });
        opening
    }

    /// Forgets the connections of every key that `gone` names; each ends with its last tunnel.
    pub fn forget(&self, mut gone: impl FnMut(&K) -> bool) {
        self.shelves.borrow_mut().retain(|key, _| !gone(key));
    }

    /// How many connections are open or being opened.
    pub fn connections(&self) -> usize {
        let shelves = self.shelves.borrow();
        shelves.values().map(|shelf| shelf.ready.len() + shelf.opening.len()).sum()
    }
}

impl<T, E> Opening<T, E> {
    async fn outcome(&self) -> Outcome<T, E> {
        loop {
            let done = self.done.notified();
            if let Some(outcome) = &*self.outcome.borrow() {
                return outcome.clone();
            }
            done.await;
        }
    }
}

/// Lets go of unused connections, until the pool is gone or its owner drains.
async fn sweep<K, T, E>(shelves: Weak<Shelves<K, T, E>>, idle: Duration, mut guard: Guard) {
    loop {
        let drains = tokio::time::timeout(SWEEP_INTERVAL, guard.draining()).await.is_ok();
        let Some(shelves) = shelves.upgrade() else { return };
        if drains {
            shelves.borrow_mut().clear();
            return;
        }
        let unused = |client: &Client| client.idle().is_some_and(|time| time >= idle);
        shelves.borrow_mut().retain(|_, shelf| {
            shelf.ready.retain(|ready| !ready.client.is_closing() && !unused(&ready.client));
            !shelf.ready.is_empty() || !shelf.opening.is_empty()
        });
    }
}
