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
    Connect(Rc<E>),
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
pub struct Pool<K, E> {
    shelves: Rc<Shelves<K, E>>,
    limits: Limits,
    guard: Guard,
}

type Shelves<K, E> = RefCell<HashMap<K, Shelf<E>>>;

/// The connections of one key.
struct Shelf<E> {
    ready: Vec<Ready>,
    opening: Vec<Rc<Opening<E>>>,
}

/// An open connection, and the certificate it was made with.
struct Ready {
    generation: u64,
    client: Rc<Client>,
}

/// A connection that is being opened.
struct Opening<E> {
    generation: u64,
    outcome: RefCell<Option<Result<Rc<Client>, Rc<E>>>>,
    done: Notify,
    waiters: Cell<usize>,
}

/// One that waits for a connection; leaves the queue when it is dropped.
struct Waiter<E>(Rc<Opening<E>>);

impl<E> Drop for Waiter<E> {
    fn drop(&mut self) {
        self.0.waiters.set(self.0.waiters.get() - 1);
    }
}

/// How a connection is to be had.
enum Source<E> {
    Ready(Rc<Client>),
    Opening(Rc<Opening<E>>),
    New,
}

impl<E> Default for Shelf<E> {
    fn default() -> Self {
        Self { ready: Vec::new(), opening: Vec::new() }
    }
}

impl<E> Shelf<E> {
    fn source(&mut self, generation: u64, limits: &Limits) -> Result<Source<E>, PoolError<E>> {
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
        let joins = |opening: &&Rc<Opening<E>>| {
            opening.generation == generation && opening.waiters.get() < limit
        };
        Ok(match self.opening.iter().find(joins) {
            Some(opening) => Source::Opening(opening.clone()),
            None => Source::New,
        })
    }
}

impl<K, E> Pool<K, E>
where
    K: Clone + Eq + Hash + 'static,
    E: 'static,
{
    /// An empty pool; its tasks run on this thread under `guard`.
    pub fn new(limits: Limits, guard: Guard) -> Self {
        let shelves = Rc::default();
        let sweep = sweep(Rc::downgrade(&shelves), limits.idle, guard.clone());
        guard.spawn_local(sweep);
        Self { shelves, limits, guard }
    }

    /// A connection with room for one more tunnel; `connect` opens one when it is needed.
    ///
    /// `generation` numbers the certificate that `connect` would use: connections made with
    /// another one are not used.
    pub async fn client<F>(
        &self,
        key: &K,
        generation: u64,
        connect: impl FnOnce() -> F,
    ) -> Result<Rc<Client>, PoolError<E>>
    where
        F: Future<Output = Result<Client, E>> + 'static,
    {
        let source = match self.shelves.borrow_mut().get_mut(key) {
            Some(shelf) => shelf.source(generation, &self.limits)?,
            None => Source::New,
        };
        let opening = match source {
            Source::Ready(client) => return Ok(client),
            Source::Opening(opening) => opening,
            Source::New => self.open(key, generation, connect()),
        };
        opening.waiters.set(opening.waiters.get() + 1);
        let waiter = Waiter(opening);
        waiter.0.outcome().await.map_err(PoolError::Connect)
    }

    /// Opens a connection in a task of its own: it must not be lost to the others that wait for
    /// it when the first of them gives up.
    fn open<F>(&self, key: &K, generation: u64, connect: F) -> Rc<Opening<E>>
    where
        F: Future<Output = Result<Client, E>> + 'static,
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
        self.guard.spawn_local(async move {
            let outcome = connect.await.map(Rc::new).map_err(Rc::new);
            let mut shelves = shelves.borrow_mut();
            // Without its shelf it was forgotten meanwhile: it serves those who wait, no others.
            if let Some(shelf) = shelves.get_mut(&key) {
                shelf.opening.retain(|opening| !Rc::ptr_eq(opening, &opened));
                if let Ok(client) = &outcome {
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

impl<E> Opening<E> {
    async fn outcome(&self) -> Result<Rc<Client>, Rc<E>> {
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
async fn sweep<K, E>(shelves: Weak<Shelves<K, E>>, idle: Duration, mut guard: Guard) {
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
