//! Connections that are shared by the users of one thread.
//!
//! Connections are found by a key with both ends' identities, so nothing is ever sent under another
//! identity's certificate. A key's first user opens the connection while the others wait for it;
//! another one is opened when all are full. A stale connection (closing, or made with an older
//! certificate) gets no new user and ends with its last one.
//!
//! The pool never looks inside: a [`Connection`] says whether it has room, and the caller says how
//! to open one. A connection that carries one exchange at a time is pooled with a limit of one
//! user. The pool bounds how many users wait; descriptors bound how many connections are open.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::drain::Guard;

/// How often unused connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// What a pool asks of its connections.
///
/// A user counts from the poll in which [`Pool::connection`] returns, so it begins without waiting.
pub trait Connection {
    /// Whether one more user fits, of at most `limit` and what the peer allows.
    fn has_room(&self, limit: usize) -> bool;
    /// Whether the connection takes no new users.
    fn is_closing(&self) -> bool;
    /// For how long it has had no user; nothing while it has one.
    fn idle(&self) -> Option<Duration>;
}

/// Bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Users of one connection before another is opened; the peer may allow fewer.
    pub users_per_connection: usize,
    /// How long an unused connection is kept.
    pub idle: Duration,
    /// How many may wait for connections of one key that are being opened.
    pub waiters: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { users_per_connection: 100, idle: Duration::from_secs(300), waiters: 4096 }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum PoolError<E> {
    /// The connection could not be opened; all waiting users get the same error.
    #[error(transparent)]
    Connect(Arc<E>),
    /// More connections wait for this destination than are allowed to.
    #[error("{0} connections wait for a connection to this destination already")]
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

/// Connections of one thread: `C`, found by `K`, opened or failed with `E`.
pub struct Pool<K, C, E> {
    shelves: Rc<Shelves<K, C, E>>,
    limits: Limits,
}

type Shelves<K, C, E> = RefCell<HashMap<K, Shelf<C, E>>>;

/// The connections of one key.
struct Shelf<C, E> {
    ready: Vec<Ready<C, E>>,
    opening: Vec<Rc<Opening<C, E>>>,
}

/// An open connection, and how it was opened: those who waited for it may have yet to use it.
struct Ready<C, E> {
    connection: Rc<C>,
    opened: Rc<Opening<C, E>>,
}

impl<C: Connection, E> Ready<C, E> {
    /// Whether there is room beside those who use it and those who waited for it.
    fn has_room(&self, limit: usize) -> bool {
        self.connection.has_room(limit.saturating_sub(self.opened.waiters.get()))
    }
}

/// What came of opening a connection, for all who waited for it.
type Outcome<C, E> = Result<Rc<C>, Arc<E>>;

/// A connection that is being opened, and the certificate it is made with.
struct Opening<C, E> {
    generation: u128,
    outcome: RefCell<Option<Outcome<C, E>>>,
    done: Notify,
    waiters: Cell<usize>,
}

/// One that waits for a connection; leaves the queue when it is dropped.
struct Waiter<C, E>(Rc<Opening<C, E>>);

impl<C, E> Drop for Waiter<C, E> {
    fn drop(&mut self) {
        self.0.waiters.set(self.0.waiters.get() - 1);
    }
}

/// How to get a connection.
enum Source<C, E> {
    Ready(Rc<C>),
    Opening(Rc<Opening<C, E>>),
    New,
}

impl<C, E> Default for Shelf<C, E> {
    fn default() -> Self {
        Self { ready: Vec::new(), opening: Vec::new() }
    }
}

impl<C: Connection, E> Shelf<C, E> {
    fn source(&mut self, generation: u128, limits: &Limits) -> Result<Source<C, E>, PoolError<E>> {
        // Closing connections end with their last user; here they are only forgotten.
        self.ready.retain(|ready| {
            ready.opened.generation == generation && !ready.connection.is_closing()
        });
        let limit = limits.users_per_connection;
        if let Some(ready) = self.ready.iter().find(|ready| ready.has_room(limit)) {
            return Ok(Source::Ready(ready.connection.clone()));
        }
        let waiting: usize = self.opening.iter().map(|opening| opening.waiters.get()).sum();
        if waiting >= limits.waiters {
            return Err(PoolError::Crowded(waiting));
        }
        let joins = |opening: &&Rc<Opening<C, E>>| {
            opening.generation == generation && opening.waiters.get() < limit
        };
        Ok(match self.opening.iter().find(joins) {
            Some(opening) => Source::Opening(opening.clone()),
            None => Source::New,
        })
    }
}

impl<K, C, E> Pool<K, C, E>
where
    K: Clone + Eq + Hash + 'static,
    C: Connection + 'static,
    E: 'static,
{
    /// An empty pool. It is looked after by a task on this thread that ends when `guard` drains.
    pub fn new(limits: Limits, guard: Guard) -> Self {
        let shelves = Rc::default();
        let sweep = sweep(Rc::downgrade(&shelves), limits.idle, guard.clone());
        guard.spawn_local(sweep);
        Self { shelves, limits }
    }

    /// A connection with room for one more user; `connect` opens one when it is needed.
    ///
    /// `generation` numbers the certificate that `connect` would use: connections made with
    /// another one are not used. The connection's tasks run under `guard`; a connection that is
    /// opened while it drains is not kept.
    pub async fn connection<F>(
        &self,
        key: &K,
        generation: u128,
        guard: &Guard,
        connect: impl FnOnce() -> F,
    ) -> Result<Rc<C>, PoolError<E>>
    where
        F: Future<Output = Result<C, E>> + 'static,
    {
        let source = match self.shelves.borrow_mut().get_mut(key) {
            Some(shelf) => shelf.source(generation, &self.limits)?,
            None => Source::New,
        };
        let opening = match source {
            Source::Ready(connection) => return Ok(connection),
            Source::Opening(opening) => opening,
            Source::New => self.open(key, generation, guard, connect()),
        };
        opening.waiters.set(opening.waiters.get() + 1);
        let waiter = Waiter(opening);
        waiter.0.outcome().await.map_err(PoolError::Connect)
    }

    /// Opens a connection in a task of its own: it must not be lost to the others that wait for
    /// it when the first of them gives up.
    fn open<F>(&self, key: &K, generation: u128, guard: &Guard, connect: F) -> Rc<Opening<C, E>>
    where
        F: Future<Output = Result<C, E>> + 'static,
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
            let outcome = connect.await.map(Rc::new).map_err(Arc::new);
            let mut shelves = shelves.borrow_mut();
            // Without its shelf it was forgotten meanwhile, and an owner that drains would never
            // forget it: it serves those who wait, no others.
            if let Some(shelf) = shelves.get_mut(&key) {
                shelf.opening.retain(|opening| !Rc::ptr_eq(opening, &opened));
                if let Ok(connection) = &outcome
                    && !owner.is_draining()
                {
                    let (connection, opened) = (connection.clone(), opened.clone());
                    shelf.ready.push(Ready { connection, opened });
                }
            }
            *opened.outcome.borrow_mut() = Some(outcome);
            opened.done.notify_waiters();
        });
        opening
    }

    /// Forgets the connections of every key that `gone` names; each ends with its last user.
    pub fn forget(&self, mut gone: impl FnMut(&K) -> bool) {
        self.shelves.borrow_mut().retain(|key, _| !gone(key));
    }

    /// How many connections are open or being opened.
    pub fn connections(&self) -> usize {
        let shelves = self.shelves.borrow();
        shelves.values().map(|shelf| shelf.ready.len() + shelf.opening.len()).sum()
    }
}

impl<C, E> Opening<C, E> {
    async fn outcome(&self) -> Outcome<C, E> {
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
async fn sweep<K, C, E>(shelves: Weak<Shelves<K, C, E>>, idle: Duration, mut guard: Guard)
where
    C: Connection,
{
    loop {
        let drains = tokio::time::timeout(SWEEP_INTERVAL, guard.draining()).await.is_ok();
        let Some(shelves) = shelves.upgrade() else { return };
        if drains {
            shelves.borrow_mut().clear();
            return;
        }
        let unused = |connection: &C| connection.idle().is_some_and(|time| time >= idle);
        shelves.borrow_mut().retain(|_, shelf| {
            let kept = |it: &Ready<C, E>| !it.connection.is_closing() && !unused(&it.connection);
            shelf.ready.retain(kept);
            !shelf.ready.is_empty() || !shelf.opening.is_empty()
        });
    }
}
