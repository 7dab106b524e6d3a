//! What all requests of a thread share: its position, settings, connections and loads.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::drain::Guard;

use crate::engine::authenticate::KeySets;
use crate::engine::buffered::buffered_bytes;
use crate::engine::held::HeldBytes;
use crate::engine::loads::Loads;
use crate::engine::overload::{
    Counted, IDLE_LOOK_INTERVAL, LOOK_INTERVAL, Overload, Pressure, Shed,
};
use crate::engine::position::Position;
use crate::engine::unread::Unread;
use crate::engine::upstream::pool::Pool;
use crate::h1::parse::Limits;
use crate::path::Normalisation;

/// How often connections to endpoints that were idle for too long are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// What holds for all requests of an engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much a head may be.
    pub limits: Limits,
    /// How paths are normalised, before anything reads them.
    pub normalisation: Normalisation,
    /// How many bytes a request's body may have.
    pub max_body_bytes: Option<u64>,
    /// How long a request's body may take from the request's head.
    pub body_timeout: Option<Duration>,
    /// How many requests of one connection of HTTP/2 may be under way.
    pub max_streams: u32,
    /// How long a head may take from its first byte.
    pub head_timeout: Duration,
    /// How long a client's connection is kept without a request.
    pub idle_timeout: Duration,
    /// How long nothing may move in an exchange: while an answer is awaited, in either body, and
    /// behind an upgrade.
    pub stream_idle_timeout: Duration,
    /// How long a client of HTTP/1 that has closed its direction may wait for a response to begin.
    pub half_close_timeout: Duration,
    /// How long an endpoint's connection is kept without a request.
    pub pool_idle_timeout: Duration,
    /// How long a connection of unknown kind may be silent before it is taken for no HTTP: its
    /// server may have to speak first.
    pub detect_timeout: Duration,
    /// After so long clients are asked to connect anew, so that all replicas get their share.
    pub max_connection_age: Option<Duration>,
    /// How much of a request's body is kept for another attempt.
    pub replay_bytes: usize,
    /// Whether `x-ambit-reason` says why the proxy itself has answered.
    pub says_why: bool,
    /// What all engines of the pod have to do, and may have.
    pub pressure: Arc<Pressure>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            normalisation: Normalisation::default(),
            max_body_bytes: None,
            body_timeout: None,
            max_streams: 256,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(3600),
            stream_idle_timeout: Duration::from_secs(3600),
            half_close_timeout: Duration::from_secs(5),
            pool_idle_timeout: Duration::from_secs(60),
            detect_timeout: Duration::from_millis(500),
            max_connection_age: Some(Duration::from_secs(600)),
            replay_bytes: 64 * 1024,
            says_why: true,
            pressure: Arc::default(),
        }
    }
}

/// The engine of one thread.
pub struct Engine<P: Position> {
    pub(super) position: P,
    pub(super) settings: Settings,
    pub(super) pool: Rc<Pool>,
    pub(super) loads: Loads,
    pub(super) guard: Guard,
    pub(super) key_sets: KeySets,
    /// Room for bodies that are kept whole.
    pub(super) held: HeldBytes,
    /// Each question on trial that is under way holds it too.
    pub(super) trials: Rc<()>,
    /// Each question about the cost of a response that is under way holds it too.
    pub(super) charging: Rc<()>,
    /// Each copy of a request that is under way holds it too.
    pub(super) mirroring: Rc<()>,
    /// Bodies by HTTP/2 that were not read.
    pub(super) unread: Unread,
    overload: RefCell<Overload>,
}

impl<P: Position> Engine<P> {
    /// What holds for its requests.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// An engine without connections; what it opens runs for this guard.
    pub fn new(position: P, settings: Settings, guard: Guard) -> Rc<Self> {
        let head_bytes = settings.limits.fields.bytes;
        let pool = Pool::new(settings.pool_idle_timeout, head_bytes, guard.clone());
        Rc::new(Self {
            position,
            settings,
            pool: Rc::new(pool),
            loads: Loads::default(),
            guard,
            key_sets: KeySets::default(),
            held: HeldBytes::default(),
            trials: Rc::default(),
            charging: Rc::default(),
            mirroring: Rc::default(),
            unread: Unread::default(),
            overload: RefCell::default(),
        })
    }

    /// The place that it runs in.
    pub fn position(&self) -> &P {
        &self.position
    }

    /// Keeps no connection to an endpoint beyond its requests from here on: what leads there must
    /// not outlast what is under way.
    pub fn close_pool(&self) {
        self.pool.close();
    }

    /// Closes idle connections to endpoints from time to time, and forgets endpoints that are gone
    /// and limits that nobody reaches. Never returns.
    pub async fn keep_tidy(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            self.pool.sweep();
            self.loads.keep_endpoints(|uid| self.position.is_there(uid));
            let buckets = self.position.buckets();
            buckets.sweep(buckets.now());
        }
    }

    /// Looks from time to time how much there is to do. Never returns.
    pub async fn keep_watch(&self) {
        loop {
            let pressure = &self.settings.pressure;
            let is_idle = pressure.requests() == 0 && self.held_bytes() == 0;
            let is_idle = is_idle && self.overload.borrow().is_calm();
            let pause = if is_idle { IDLE_LOOK_INTERVAL } else { LOOK_INTERVAL };
            let due = tokio::time::Instant::now() + pause;
            tokio::time::sleep_until(due).await;
            let lag = due.elapsed();
            let now = std::time::Instant::now();
            let changed = self.overload.borrow_mut().look(pressure, self.held_bytes(), lag, now);
            self.unread.look(self.overload.borrow().is_full(), tokio::time::Instant::now());
            let (held, requests) = (pressure.held_bytes(), pressure.requests());
            match changed {
                Some(true) => tracing::info!("connections are taken again"),
                Some(false) => tracing::warn!(
                    held_bytes = held,
                    requests,
                    lag_ms = lag.as_millis(),
                    "overloaded: new connections are refused; add replicas, or raise the bounds"
                ),
                None => {}
            }
        }
    }

    /// What waits in the buffers of this thread.
    fn held_bytes(&self) -> usize {
        buffered_bytes() + self.unread.bytes()
    }

    /// Whether new connections are refused: there is too much to do even without their requests.
    pub fn is_closed(&self) -> bool {
        self.overload.borrow().is_closed()
    }

    /// Counts a request, unless there is too much to do.
    pub(super) fn admit(&self) -> Result<Counted<'_>, Shed> {
        let percent = || u32::try_from(self.position.random_below(100)).expect("it is below 100");
        self.settings.pressure.admit(&self.overload.borrow(), percent)
    }
}
