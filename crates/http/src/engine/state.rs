//! What all requests of a thread share: its position, settings, connections and loads.

use std::rc::Rc;
use std::time::Duration;

use ambit_net::drain::Guard;

use crate::engine::authenticate::KeySets;
use crate::engine::held::HeldBytes;
use crate::engine::loads::Loads;
use crate::engine::position::Position;
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
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            normalisation: Normalisation::default(),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(3600),
            stream_idle_timeout: Duration::from_secs(3600),
            half_close_timeout: Duration::from_secs(5),
            pool_idle_timeout: Duration::from_secs(60),
            detect_timeout: Duration::from_millis(500),
            max_connection_age: Some(Duration::from_secs(600)),
            replay_bytes: 64 * 1024,
            says_why: true,
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
        let pool = Rc::new(pool);
        Rc::new(Self {
            position,
            settings,
            pool,
            loads: Loads::default(),
            guard,
            key_sets: KeySets::default(),
            held: HeldBytes::default(),
            trials: Rc::default(),
            charging: Rc::default(),
            mirroring: Rc::default(),
        })
    }

    /// The place that it runs in.
    pub fn position(&self) -> &P {
        &self.position
    }

    /// Closes idle connections to endpoints from time to time, and forgets limits that nobody
    /// reaches. Never returns.
    pub async fn keep_tidy(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            self.pool.sweep();
            let buckets = self.position.buckets();
            buckets.sweep(buckets.now());
        }
    }
}
