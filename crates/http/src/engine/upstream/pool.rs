//! Connections to endpoints that are kept for the next request, for one thread.
//!
//! One of HTTP/1.1 carries one request at a time; the last one used is used first, so that the
//! others become idle and are closed. One of HTTP/2 carries as many as its peer allows.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ambit_model::Text;
use ambit_net::drain::Guard;
use bytes::Bytes;
use h2::client::SendRequest;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::engine::halves::BoxStream;
use crate::engine::piece::Broken;
use crate::engine::upstream::h1;

/// Idle connections of HTTP/1.1 to one endpoint.
const MAX_IDLE: usize = 512;
/// How much a stream of HTTP/2 may send before it is read here.
const WINDOW_BYTES: u32 = 256 * 1024;
/// The same for all streams of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// What a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The endpoint.
    pub(crate) uid: Text,
    /// Its address: a pod of the same name may have another one later.
    pub(crate) address: SocketAddr,
    /// Whatever else must be the same, as the position says it.
    pub(crate) kind: u64,
}

struct Idle {
    connection: h1::Connection,
    since: Instant,
}

/// A connection of HTTP/2 with room for streams.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) sender: SendRequest<Bytes>,
    number: u64,
    /// Each request that uses it holds it too.
    pub(crate) open: Rc<()>,
    used: Rc<Cell<Instant>>,
}

#[derive(Default)]
struct State {
    idle: FxHashMap<Key, VecDeque<Idle>>,
    shared: FxHashMap<Key, Vec<Shared>>,
    opening: FxHashMap<Key, Rc<tokio::sync::Mutex<()>>>,
    opened: u64,
}

/// The connections of one thread.
pub(crate) struct Pool {
    state: RefCell<State>,
    idle_timeout: Duration,
    guard: Guard,
}

impl Pool {
    pub(crate) fn new(idle_timeout: Duration, guard: Guard) -> Self {
        Self { state: RefCell::default(), idle_timeout, guard }
    }

    /// An idle connection of HTTP/1.1 that its server has not closed.
    pub(crate) fn idle(&self, key: &Key) -> Option<h1::Connection> {
        let mut state = self.state.borrow_mut();
        let idle = state.idle.get_mut(key)?;
        let now = Instant::now();
        while idle.front().is_some_and(|it| now.duration_since(it.since) >= self.idle_timeout) {
            idle.pop_front();
        }
        while let Some(Idle { mut connection, .. }) = idle.pop_back() {
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        state.idle.remove(key);
        None
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(&self, key: &Key, mut connection: h1::Connection) {
        connection.is_used = true;
        let mut state = self.state.borrow_mut();
        if !state.idle.contains_key(key) {
            state.idle.insert(key.clone(), VecDeque::new());
        }
        let idle = state.idle.get_mut(key).expect("it was put there");
        if idle.len() >= MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back(Idle { connection, since: Instant::now() });
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        state.idle.retain(|_, idle| {
            idle.retain(|it| now.duration_since(it.since) < self.idle_timeout);
            !idle.is_empty()
        });
        state.shared.retain(|_, list| {
            let is_fresh = |it: &Shared| now.duration_since(it.used.get()) < self.idle_timeout;
            list.retain(|it| Rc::strong_count(&it.open) > 1 || is_fresh(it));
            !list.is_empty()
        });
        state.opening.retain(|_, lock| Rc::strong_count(lock) > 1);
    }

    /// A connection of HTTP/2 with room for one more stream.
    pub(crate) fn shared(&self, key: &Key) -> Option<Shared> {
        let state = self.state.borrow();
        let has_room = |it: &&Shared| {
            // The pool holds it once.
            Rc::strong_count(&it.open) <= it.sender.current_max_send_streams()
        };
        let shared = state.shared.get(key)?.iter().find(has_room).cloned()?;
        shared.used.set(Instant::now());
        Some(shared)
    }

    /// Held by the one that opens a connection of HTTP/2 to an endpoint; the others wait for it.
    pub(crate) fn opening(&self, key: &Key) -> Rc<tokio::sync::Mutex<()>> {
        self.state.borrow_mut().opening.entry(key.clone()).or_default().clone()
    }

    /// Begins HTTP/2 on a connection and shares it until it ends.
    pub(crate) async fn share(
        self: &Rc<Self>,
        key: &Key,
        stream: BoxStream,
    ) -> Result<Shared, Broken> {
        let mut builder = h2::client::Builder::new();
        builder.enable_push(false).initial_window_size(WINDOW_BYTES);
        builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (sender, connection) = builder.handshake::<_, Bytes>(stream).await?;
        let shared = {
            let mut state = self.state.borrow_mut();
            state.opened += 1;
            let used = Rc::new(Cell::new(Instant::now()));
            let shared = Shared { sender, number: state.opened, open: Rc::default(), used };
            state.shared.entry(key.clone()).or_default().push(shared.clone());
            shared
        };
        let (pool, key, number) = (Rc::downgrade(self), key.clone(), shared.number);
        self.guard.spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of HTTP/2 to an endpoint broke");
            }
            if let Some(pool) = pool.upgrade() {
                pool.forget(&key, number);
            }
        });
        Ok(shared)
    }

    /// Gives a connection of HTTP/2 no more streams.
    pub(crate) fn retire(&self, key: &Key, shared: &Shared) {
        self.forget(key, shared.number);
    }

    fn forget(&self, key: &Key, number: u64) {
        let mut state = self.state.borrow_mut();
        if let Some(list) = state.shared.get_mut(key) {
            list.retain(|it| it.number != number);
            if list.is_empty() {
                state.shared.remove(key);
            }
        }
    }
}
