//! A call to a service of the mesh, for a request that waits for its answer.
//!
//! The service is reached as an upstream is: its endpoints are chosen, its connections pooled, its
//! limits held. Question and answer are held whole, so both have a bound. A call may be made again
//! on another connection: who is called must bear that.

use std::future::pending;
use std::time::Duration;

use ambit_model::Text;
use ambit_model::http::ejection::Outcome;
use ambit_model::http::rule::Destination;
use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};

use super::attempt::{key, opened, shared};
use super::room::{self, Bounded, bounded_by};
use crate::engine::Engine;
use crate::engine::piece::{Broken, Piece, Sink, Source};
use crate::engine::position::{
    Arrival, Endpoint, EndpointAsk, Goal, Position, Rules as _, Version,
};
use crate::engine::upstream::heard::Heard;
use crate::engine::upstream::{Reading, Sending, h2};
use crate::fields::Fields;
use crate::h1::framing::{RequestBody, RequestFraming};
use crate::head::{RequestHead, ResponseHead};

/// Most bytes of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// How often a call is made at most, on different connections.
const ATTEMPTS: usize = 3;

/// A request whose body is at hand.
pub(super) struct Call<'a> {
    pub(super) destination: &'a Destination,
    pub(super) version: Version,
    pub(super) head: &'a RequestHead,
    pub(super) body: Bytes,
    /// How long all of it may take.
    pub(super) timeout: Duration,
}

/// A response, whole.
pub(super) struct Called {
    pub(super) head: ResponseHead,
    pub(super) body: Bytes,
    pub(super) trailers: Option<Fields>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No endpoint, or no connection to one.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It is not there at all.
    #[error("{0}")]
    Missing(Text),
    /// It has as many requests as it may have.
    #[error("{0} has as many requests as it may have")]
    Full(Text),
    /// The time is up.
    #[error("it did not answer in {}", ambit_words::durations::write_duration(*.0))]
    Late(Duration),
    /// The connection broke.
    #[error("it closed the connection without an answer")]
    Broken(#[from] Broken),
    /// The answer has no end.
    #[error("its answer has more than {MAX_ANSWER_BYTES} bytes")]
    TooLarge,
}

impl CallError {
    /// Whether another connection may do better.
    fn may_try_again(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Broken(_))
    }
}

/// Makes a call.
pub(super) async fn call<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    rules: &P::Rules,
    call: &Call<'_>,
) -> Result<Called, CallError> {
    if let Destination::Invalid(why) = call.destination {
        return Err(CallError::Missing(why.clone()));
    }
    let goal = Goal::Backend(call.destination);
    let service = bounded_by(&goal, arrival);
    let traffic = rules.traffic(&goal).clone();
    let bounded = Bounded { service: &service, limits: &traffic.limits };
    let until = Instant::now() + call.timeout;
    let Some(_under_way) = engine.loads.begin(&service, &traffic) else {
        return Err(CallError::Full(service));
    };
    let mut tried: Vec<Text> = Vec::new();
    loop {
        let ask = EndpointAsk {
            arrival,
            goal,
            host: None,
            hash: None,
            pinned: None,
            tried: &tried,
            is_ejected: &|uid| engine.loads.is_ejected(&service, uid),
        };
        let endpoint = engine.position.choose(&ask);
        let endpoint = endpoint.map_err(|none| CallError::Unreachable(none.text))?;
        tried.push(endpoint.uid.clone());
        let once = once(engine, arrival, bounded, &endpoint, call, until);
        let called = timeout_at(until, once).await;
        let called = called.unwrap_or(Err(CallError::Late(call.timeout)));
        let outcome = match &called {
            Ok(called) => Outcome::Status(called.head.status.code()),
            Err(_) => Outcome::LocalError,
        };
        let (uid, among) = (&endpoint.uid, endpoint.alternatives);
        engine.loads.report(&service, &traffic, uid, among, outcome);
        match called {
            Err(error) if error.may_try_again() && tried.len() < ATTEMPTS => {}
            called => return called,
        }
    }
}

async fn once<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    bounded: Bounded<'_>,
    endpoint: &Endpoint<P::Way>,
    call: &Call<'_>,
    until: Instant,
) -> Result<Called, CallError> {
    match call.version {
        Version::Http1 => over_http1(engine, arrival, bounded, endpoint, call, until).await,
        Version::Http2 => over_http2(engine, arrival, bounded, endpoint, call, until).await,
    }
}

async fn over_http1<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    bounded: Bounded<'_>,
    endpoint: &Endpoint<P::Way>,
    call: &Call<'_>,
    until: Instant,
) -> Result<Called, CallError> {
    let key = key(endpoint);
    let mut connection = match engine.pool.idle(&key) {
        Some(connection) => connection,
        None => opened(engine, arrival, bounded, endpoint, &key, Some(until))
            .await
            .map_err(|failed| CallError::Unreachable(failed.answer.details))?,
    };
    let framing = RequestFraming {
        body: RequestBody::Sized(call.body.len() as u64),
        is_persistent: true,
        expects_continue: false,
        upgrade: None,
    };
    connection.send(call.head, &framing);
    let (outbox, reading) = connection.sides();
    let (mut sending, mut reading) = (Sending::Http1(outbox), Reading::Http1(reading));
    let called = whole(&mut sending, &mut reading, call.body.clone()).await?;
    engine.pool.keep(&key, connection, bounded.limits);
    room::freed(engine, bounded);
    Ok(called)
}

async fn over_http2<P: Position>(
    engine: &Engine<P>,
    arrival: &Arrival,
    bounded: Bounded<'_>,
    endpoint: &Endpoint<P::Way>,
    call: &Call<'_>,
    until: Instant,
) -> Result<Called, CallError> {
    let key = key(endpoint);
    let shared = shared(engine, arrival, bounded, endpoint, &key, Some(until))
        .await
        .map_err(|failed| CallError::Unreachable(failed.answer.details))?;
    let called = async {
        let mut sender = shared.sender.clone().ready().await.map_err(Broken::from)?;
        let has_body = !call.body.is_empty();
        let (scheme, limits) = (arrival.scheme.as_str(), engine.settings.limits.fields);
        let (mut sending, mut reading) =
            h2::open(&mut sender, call.head, scheme, has_body, limits)?;
        let called = {
            let (mut up, mut down) = (Sending::Http2(&mut sending), Reading::Http2(&mut reading));
            whole(&mut up, &mut down, call.body.clone()).await
        };
        if called.is_err() {
            sending.reset(::h2::Reason::CANCEL);
        }
        called
    };
    let called = called.await;
    if matches!(called, Err(CallError::Broken(_))) {
        engine.pool.retire(&key, &shared);
    }
    drop(shared);
    room::freed(engine, bounded);
    called
}

/// Sends a body and reads the whole answer, which may come before the body is sent.
async fn whole(
    sending: &mut Sending<'_>,
    reading: &mut Reading<'_>,
    body: Bytes,
) -> Result<Called, CallError> {
    let upload = async {
        if !body.is_empty() {
            sending.put(body);
        }
        sending.finish(None);
        // A server that reads no more may still say why.
        let _answered_all_the_same = sending.flush().await;
        pending::<()>().await;
    };
    let download = async {
        let head = loop {
            match reading.head().await? {
                Heard::Informational(_) => {}
                Heard::Final(head, _) => break head,
            }
        };
        let (mut body, mut trailers) = (BytesMut::new(), None);
        while let Some(piece) = reading.piece().await? {
            match piece {
                Piece::Data(data) if body.len() + data.len() > MAX_ANSWER_BYTES => {
                    return Err(CallError::TooLarge);
                }
                Piece::Data(data) => body.extend_from_slice(&data),
                Piece::Trailers(fields) => trailers = Some(fields),
            }
        }
        Ok(Called { head, body: body.freeze(), trailers })
    };
    tokio::select! {
        called = download => called,
        () = upload => unreachable!("it never ends"),
    }
}
