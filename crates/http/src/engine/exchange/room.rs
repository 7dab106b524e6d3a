//! Places for connections to a service: a limit of connections, and one of requests that wait for
//! them (circuit breakers).

use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::rule::Destination;
use ambit_model::http::traffic::Limits;
use tokio::time::{Instant, timeout_at};

use crate::engine::Engine;
use crate::engine::loads::UnderWay;
use crate::engine::position::{Arrival, Goal, Position};

/// How long a connection to an endpoint may take, if nobody says otherwise.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A service, and how much may be under way to it.
#[derive(Clone, Copy)]
pub(super) struct Bounded<'p> {
    pub(super) service: &'p Text,
    pub(super) limits: &'p Limits,
}

/// What limits and ejections are counted for, as they are written: a port of a service, or of a
/// subset of its endpoints (Envoy's clusters). What a gateway sends on may come in at it a second
/// time, when it does what the waypoint of the service does, and must not wait for itself: what
/// comes from outside is counted apart.
pub(super) fn bounded_by(goal: &Goal<'_>, arrival: &Arrival) -> Text {
    match goal {
        Goal::Backend(Destination::Service { name, port, subset }) => {
            // For each request: joined, as the formatter takes five times as long.
            let (slash, subset) = subset.as_deref().map_or(("", ""), |subset| ("/", subset));
            let whence = if arrival.outside.is_some() { " from outside" } else { "" };
            let port = port.to_string();
            let at = [&*name.namespace, "/", &*name.hostname, ":", &*port, slash, subset, whence];
            at.concat().into()
        }
        Goal::Backend(Destination::Invalid(why)) => why.clone(),
        Goal::Original => arrival.destination.to_string().into(),
    }
}

/// What a request that waited for a connection gets.
pub(super) enum Room<T> {
    /// A connection that was free.
    Kept(T),
    /// A place for a new one.
    Free(UnderWay),
}

/// Which limit is reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum Full {
    #[error("{0} has as many requests that wait for a connection as it may have")]
    Pending(Text),
    #[error("{0} has as many connections as it may have, and none was free in time")]
    Connections(Text),
    #[error("{0} has as many connections as it may have")]
    Places(Text),
}

/// Counts a request that waits for a connection.
pub(super) fn wait<P: Position>(
    engine: &Engine<P>,
    bounded: Bounded<'_>,
) -> Result<UnderWay, Full> {
    let waiting = engine.loads.wait(bounded.service, bounded.limits);
    waiting.ok_or_else(|| Full::Pending(bounded.service.clone()))
}

/// Waits until a connection is free, or the service may have one more.
pub(super) async fn room<P: Position, T>(
    engine: &Engine<P>,
    bounded: Bounded<'_>,
    until: Option<Instant>,
    kept: impl Fn() -> Option<T>,
) -> Result<Room<T>, Full> {
    let Bounded { service, limits } = bounded;
    let by = Instant::now() + limits.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    let by = until.map_or(by, |until| until.min(by));
    loop {
        if let Some(kept) = kept() {
            return Ok(Room::Kept(kept));
        }
        if let Some(place) = engine.loads.connection(service, limits) {
            return Ok(Room::Free(place));
        }
        // One that waits for another endpoint's requests keeps none of this one's waiting.
        engine.pool.make_room(service);
        let freed = engine.loads.freed(service);
        if timeout_at(by, freed.notified()).await.is_err() {
            return Err(Full::Connections(service.clone()));
        }
    }
}

/// Tells a request that waits that a connection may be free.
pub(super) fn freed<P: Position>(engine: &Engine<P>, bounded: Bounded<'_>) {
    if bounded.limits.connections.is_some() {
        engine.loads.freed(bounded.service).notify_one();
    }
}
