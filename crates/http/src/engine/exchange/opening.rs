//! An endpoint's connection for a client's that is no HTTP.
//!
//! Its limits and its failures are counted together with those of requests: a port may carry both,
//! and an endpoint that takes no connections takes none of either.

use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::ejection::Outcome;
use ambit_model::http::traffic::{Balancing, HashKey, TrafficPolicy};
use tokio::time::{Instant, timeout, timeout_at};

use super::room::{CONNECT_TIMEOUT, Full, bounded_by};
use super::session::hash_of;
use crate::engine::Engine;
use crate::engine::halves::BoxStream;
use crate::engine::loads::UnderWay;
use crate::engine::position::{Arrival, Endpoint, EndpointAsk, Goal, Position, Unreachable};

/// Endpoints that are tried before a connection is given up: nothing of it was sent yet.
const ENDPOINTS_MAX: usize = 3;

/// How long an idle connection may take to end that makes room for another one.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to an endpoint, and its place among those that its service may have.
pub struct Opened {
    /// The connection.
    pub stream: BoxStream,
    _place: UnderWay,
}

/// Connects to an endpoint of a destination for which this traffic policy holds. `host` is the one
/// that the client asks for, if it asks for one. `on_try` is told of each endpoint before it is
/// tried.
pub async fn open<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    (goal, traffic): (Goal<'_>, &TrafficPolicy),
    host: Option<&str>,
    mut on_try: impl FnMut(&Endpoint<P::Way>),
) -> Result<Opened, Unreachable> {
    let service = bounded_by(&goal, arrival);
    let place = place(engine, &service, traffic).await?;
    let hash = match &traffic.balancing {
        Balancing::Hash(HashKey::SourceIp) => Some(hash_of(&arrival.client.ip().to_string())),
        _ => None,
    };
    let is_ejected = |uid: &str| engine.loads.is_ejected(&service, uid);
    let limit = traffic.limits.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    let mut tried: Vec<Text> = Vec::new();
    loop {
        let pinned = None;
        let is_ejected = &is_ejected;
        let ask = EndpointAsk { arrival, goal, host, hash, pinned, tried: &tried, is_ejected };
        let endpoint = engine.position.choose(&ask)?;
        on_try(&endpoint);
        let connecting = engine.position.connect(arrival, &endpoint);
        let connected = timeout(limit, connecting).await.unwrap_or_else(|_| {
            let text = format!("{} did not answer in time", endpoint.address);
            Err(Unreachable { reason: "connect_timeout", text })
        });
        let outcome = match &connected {
            Ok(_) => Outcome::Connected,
            Err(_) => Outcome::LocalError,
        };
        let (uid, among) = (&endpoint.uid, endpoint.alternatives);
        let is_denied = connected.as_ref().is_err_and(Unreachable::is_denial);
        if !is_denied {
            engine.loads.report(&service, traffic, uid, among, outcome);
        }
        match connected {
            Ok(stream) => return Ok(Opened { stream, _place: place }),
            Err(none) => {
                let is_last = tried.len() + 1 >= ENDPOINTS_MAX.min(endpoint.alternatives);
                if is_denied || is_last || tried.contains(&endpoint.uid) {
                    return Err(none);
                }
                tried.push(endpoint.uid);
            }
        }
    }
}

/// A place for a connection. Nobody waits until others have ended, because the client's bytes would
/// wait too: only until a connection is closed that waits for a request.
async fn place<P: Position>(
    engine: &Engine<P>,
    service: &Text,
    traffic: &TrafficPolicy,
) -> Result<UnderWay, Unreachable> {
    let free = || engine.loads.connection(service, &traffic.limits);
    if let Some(place) = free() {
        return Ok(place);
    }
    let freed = engine.loads.freed(service);
    if engine.pool.make_room(service) {
        let by = Instant::now() + ROOM_TIMEOUT;
        loop {
            if let Some(place) = free() {
                return Ok(place);
            }
            if timeout_at(by, freed.notified()).await.is_err() {
                break;
            }
        }
    }
    let text = Full::Places(service.clone()).to_string();
    Err(Unreachable { reason: "overflow", text })
}
