//! Connections to endpoints that are kept for the next request, for one thread.
//!
//! One of HTTP/1.1 carries one request at a time; the last one used is used first, so that the
//! others become idle and are closed. One of HTTP/2 carries as many as its peer allows.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::traffic::Limits;
use ambit_net::cork::cork;
use ambit_net::drain::Guard;
use bytes::Bytes;
use h2::client::SendRequest;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::engine::halves::BoxStream;
use crate::engine::loads::UnderWay;
use crate::engine::piece::Broken;
use crate::engine::upstream::h1;
use crate::engine::upstream::h2::SEND_BUFFER_BYTES;

/// Idle connections of HTTP/1.1 to one endpoint.
const MAX_IDLE: usize = 512;
/// How much a stream of HTTP/2 may send before it is read here.
const WINDOW_BYTES: u32 = 256 * 1024;
/// The same for all streams of a connection: as much as there is. Streams whose clients do not read
/// would keep a smaller one filled, and those of all other clients waiting.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// What small frames may cost a connection while they wait for their clients, by the library's
/// reckoning: 256 bytes each. Beyond it the connection ends, with the requests of all clients.
const SMALL_FRAMES_BYTES: usize = 256 * 1024 * 1024;

/// What a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The endpoint.
    pub(crate) uid: Text,
    /// Its address: a pod of the same name may have another one later.
    pub(crate) address: SocketAddr,
    /// Whatever else must be the same, as the position says it.
    pub(crate) kind: u64,
    /// It carries copies of requests: they never take a connection that a request could have.
    pub(crate) is_for_copies: bool,
}

struct Idle {
    connection: h1::Connection,
    /// When it has been idle for too long.
    until: Instant,
}

/// A connection of HTTP/2 with room for streams.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) sender: SendRequest<Bytes>,
    number: u64,
    /// Each request that uses it holds it too.
    pub(crate) open: Rc<()>,
    used: Rc<Cell<Instant>>,
    /// When a response last came.
    heard: Rc<Cell<Instant>>,
    /// How long it may be idle.
    idle_timeout: Duration,
    /// Requests that it has carried.
    carried: Rc<Cell<u32>>,
    most: Option<u32>,
    service: Text,
}

impl Shared {
    /// Notes that a response has come.
    pub(crate) fn hear(&self) {
        self.heard.set(Instant::now());
    }

    /// Whether no response has come since then.
    pub(crate) fn is_mute_since(&self, then: Instant) -> bool {
        self.heard.get() < then
    }

    fn may_carry(&self) -> bool {
        self.most.is_none_or(|most| self.carried.get() < most)
    }
}

/// How HTTP/2 is begun with an endpoint. `head_bytes` bounds the heads that it sends.
pub(crate) fn builder(head_bytes: u32) -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder.enable_push(false).initial_window_size(WINDOW_BYTES);
    builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder.max_header_list_size(head_bytes).data_frame_budget(SMALL_FRAMES_BYTES);
    builder.max_send_buffer_size(SEND_BUFFER_BYTES);
    builder
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
    /// Nothing is kept any more.
    is_closed: Cell<bool>,
    idle_timeout: Duration,
    head_bytes: u32,
    guard: Guard,
}

impl Pool {
    /// `head_bytes` bounds heads of HTTP/2 that endpoints send; the library would take 16 MiB.
    pub(crate) fn new(idle_timeout: Duration, head_bytes: u32, guard: Guard) -> Self {
        let (state, is_closed) = (RefCell::default(), Cell::new(false));
        Self { state, is_closed, idle_timeout, head_bytes, guard }
    }

    /// Keeps nothing for a next request from here on. What is in use ends with its requests.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        // What is dropped may come back to the pool, which must not be borrowed then.
        let kept = std::mem::take(&mut *self.state.borrow_mut());
        let State { idle, shared, .. } = kept;
        idle.into_values().flatten().for_each(|it| self.leave(it.connection));
        drop(shared);
    }

    /// Closes a connection that nobody uses any more, in good order. Its place is free now.
    fn leave(&self, mut connection: h1::Connection) {
        drop(connection.place.take());
        self.guard.spawn_local(connection.leave());
    }

    /// An idle connection of HTTP/1.1 that its server has not closed.
    pub(crate) fn idle(&self, key: &Key) -> Option<h1::Connection> {
        let (mut found, mut over) = (None, Vec::new());
        {
            let mut state = self.state.borrow_mut();
            let idle = state.idle.get_mut(key)?;
            take_over(idle, Instant::now(), &mut over);
            while let Some(Idle { mut connection, .. }) = idle.pop_back() {
                if connection.is_quiet() {
                    found = Some(connection);
                    break;
                }
                over.push(connection);
            }
            if found.is_none() {
                state.idle.remove(key);
            }
        }
        over.into_iter().for_each(|it| self.leave(it));
        found
    }

    /// Keeps a connection for the next request, unless it takes no more, or has carried as many as
    /// it may. Its last request was sent; if the answer was not read to its end, it is closed.
    pub(crate) fn keep(&self, key: &Key, mut connection: h1::Connection, limits: &Limits) {
        if !connection.is_answered() {
            return;
        }
        let is_worn = limits.requests_per_connection.is_some_and(|most| connection.carried >= most);
        if is_worn || !connection.is_persistent() || self.is_closed.get() {
            return self.leave(connection);
        }
        connection.is_used = true;
        let mut state = self.state.borrow_mut();
        if !state.idle.contains_key(key) {
            state.idle.insert(key.clone(), VecDeque::new());
        }
        let idle = state.idle.get_mut(key).expect("it was put there");
        let oldest = if idle.len() >= MAX_IDLE { idle.pop_front() } else { None };
        let until = Instant::now() + limits.idle_timeout.unwrap_or(self.idle_timeout);
        idle.push_back(Idle { connection, until });
        drop(state);
        if let Some(oldest) = oldest {
            self.leave(oldest.connection);
        }
    }

    /// Closes an idle connection to another endpoint of a service, so that one more may be opened.
    /// Answers whether there was one; its place is free now, or when its task has ended.
    pub(crate) fn make_room(&self, service: &Text) -> bool {
        let mut state = self.state.borrow_mut();
        let of_service = |it: &Idle| {
            it.connection.place.as_ref().is_some_and(|place| place.service() == service)
        };
        let closed = state.idle.values_mut().find_map(|idle| {
            let at = idle.iter().position(of_service)?;
            idle.remove(at)
        });
        let is_closed = closed.is_some();
        let idle = |it: &Shared| Rc::strong_count(&it.open) == 1 && it.service == *service;
        let shared = state.shared.values_mut().filter(|_| !is_closed).find_map(|list| {
            let at = list.iter().position(idle)?;
            Some(list.remove(at))
        });
        // What is dropped here frees its place, now or when its task has ended.
        drop(state);
        let is_closed = closed.is_some() || shared.is_some();
        if let Some(idle) = closed {
            self.leave(idle.connection);
        }
        drop(shared);
        is_closed
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self) {
        let (now, mut over) = (Instant::now(), Vec::new());
        let mut state = self.state.borrow_mut();
        state.idle.retain(|_, idle| {
            take_over(idle, now, &mut over);
            !idle.is_empty()
        });
        state.shared.retain(|_, list| {
            let is_fresh = |it: &Shared| now.duration_since(it.used.get()) < it.idle_timeout;
            list.retain(|it| Rc::strong_count(&it.open) > 1 || is_fresh(it));
            !list.is_empty()
        });
        state.opening.retain(|_, lock| Rc::strong_count(lock) > 1);
        drop(state);
        over.into_iter().for_each(|it| self.leave(it));
    }

    /// A connection of HTTP/2 with room for one more stream.
    pub(crate) fn shared(&self, key: &Key) -> Option<Shared> {
        let state = self.state.borrow();
        let has_room = |it: &&Shared| {
            // The pool holds it once.
            it.may_carry() && Rc::strong_count(&it.open) <= it.sender.current_max_send_streams()
        };
        let shared = state.shared.get(key)?.iter().find(has_room).cloned()?;
        shared.used.set(Instant::now());
        shared.carried.set(shared.carried.get() + 1);
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
        place: UnderWay,
        limits: &Limits,
    ) -> Result<Shared, Broken> {
        let (stream, driver) = cork(stream);
        let opening = builder(self.head_bytes).handshake::<_, Bytes>(stream);
        let (sender, mut connection) = opening.await?;
        driver.start();
        let shared = {
            let mut state = self.state.borrow_mut();
            state.opened += 1;
            let (used, heard) = (Instant::now(), Instant::now());
            let shared = Shared {
                sender,
                number: state.opened,
                open: Rc::default(),
                used: Rc::new(Cell::new(used)),
                heard: Rc::new(Cell::new(heard)),
                idle_timeout: limits.idle_timeout.unwrap_or(self.idle_timeout),
                carried: Rc::new(Cell::new(1)),
                most: limits.requests_per_connection,
                service: place.service().clone(),
            };
            if !self.is_closed.get() {
                state.shared.entry(key.clone()).or_default().push(shared.clone());
            }
            shared
        };
        let (pool, key, number) = (Rc::downgrade(self), key.clone(), shared.number);
        self.guard.spawn_local(async move {
            let _held_to_the_end = place;
            let driven = poll_fn(|cx| {
                let ended = Pin::new(&mut connection).poll(cx);
                driver.push(cx);
                ended
            });
            if let Err(error) = driven.await {
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

/// Moves what has been idle for too long.
fn take_over(idle: &mut VecDeque<Idle>, now: Instant, into: &mut Vec<h1::Connection>) {
    if idle.iter().all(|it| now < it.until) {
        return;
    }
    for it in std::mem::take(idle) {
        if now < it.until {
            idle.push_back(it);
        } else {
            into.push(it.connection);
        }
    }
}
