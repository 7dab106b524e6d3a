//! Connections that are no HTTP: judged and routed as bytes, and passed on to an endpoint.
//!
//! What a policy asks of requests cannot be known of bytes, so it is read strictly: such a rule of
//! an ALLOW policy never matches, and of a DENY policy what remains of it decides. They are judged
//! again whenever policies change, and end when nothing moves for too long. They are routed once,
//! when they begin.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use ambit_dataplane::record::Counted;
use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{Arrival, Endpoint, Goal, Position as _, Rules as _};
use ambit_http::engine::{self, Engine, Opened, Prefixed, quiet};
use ambit_model::http::rule::{Destination, Origin};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use crate::access_log::Passage;
use crate::hello::{self, ServerName};
use crate::position::{Here, Holds, Way};
use crate::refused::Refused;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For its first bytes, where it is not declared what they are.
    pub(crate) detect: Duration,
    /// In which nothing moves.
    pub(crate) idle: Duration,
}

/// Serves one connection to its end. `first` was read of it; `named` is the name in its TLS
/// handshake, if somebody has read that already.
pub(crate) async fn serve(
    engine: &Engine<Here>,
    arrival: Arrival,
    (mut client, first): (BoxStream, Bytes),
    named: Option<ServerName>,
    patience: Patience,
) {
    let here = engine.position();
    let mut passage = Passage::new(&arrival);
    let version = here.policies_version();
    let Some(holds) = here.rules(&arrival).await else {
        let text = "the control plane has not described this destination yet".to_owned();
        return here.refuse_bytes(&passage, &Refused::unreachable("unknown_service", text));
    };
    let mut first = BytesMut::from(first);
    let name = match (named, holds.server_name_patience(patience.detect)) {
        (Some(named), _) => named,
        (None, Some(limit)) => hello::server_name(&mut client, &mut first, limit).await,
        (None, None) => ServerName::Unknown,
    };
    passage.server_name = name.host();
    let (goal, mut server) = match reach(engine, &arrival, &holds, &name, &mut passage).await {
        Ok(reached) => reached,
        Err(refused) => return here.refuse_bytes(&passage, &refused),
    };
    let moved = Moved::new(here.count_bytes(&passage));
    let stream = Box::new(Prefixed::new(first.freeze(), client));
    let mut client = Counting { stream, moved: &moved };
    let error = tokio::select! {
        biased;
        copied = copy_bidirectional(&mut client, &mut server.stream) => {
            copied.err().map(|error| error.to_string())
        }
        denial = denied(here, &arrival, &name, (goal, passage.route), version) => Some(denial),
        silent = quiet(patience.idle, || moved.received.get() + moved.sent.get()) => {
            Some(silent.to_string())
        }
    };
    passage.bytes = (moved.received.get(), moved.sent.get());
    here.record_bytes(&passage, error.as_deref());
}

/// Judges and routes a connection, and connects to where it goes.
async fn reach<'a>(
    engine: &Engine<Here>,
    arrival: &Arrival,
    holds: &'a Holds,
    name: &ServerName,
    passage: &mut Passage<'a>,
) -> Result<(Goal<'a>, Opened), Refused> {
    let here = engine.position();
    if let Some(denial) = here.judge_bytes(holds, arrival, name) {
        return Err(Refused::denied(denial));
    }
    let goal = route(here, arrival, holds, name, passage)?;
    if let Goal::Backend(Destination::Service { name, .. }) = goal {
        passage.service = Some(name);
    }
    // What holds there must let it.
    if let Some(denial) = here.judge_bytes_elsewhere(holds, arrival, name, (&goal, passage.route)) {
        return Err(Refused::denied(denial));
    }
    Ok((goal, open(engine, arrival, holds, (goal, name.host()), passage).await?))
}

/// Finds the rule that takes a connection, and draws where it goes.
fn route<'a>(
    here: &Here,
    arrival: &Arrival,
    holds: &'a Holds,
    name: &ServerName,
    passage: &mut Passage<'a>,
) -> Result<Goal<'a>, Refused> {
    let unrouted = |text: String| Refused::unreachable("no_route", text);
    let rule = holds.bytes_rule(arrival.destination, name.host());
    let rule = rule.map_err(|none| unrouted(none.to_string()))?;
    passage.route = rule.map(|rule| &rule.origin);
    let drawn = rule.map(|rule| rule.draw(|bound| here.random_below(bound))).transpose();
    let drawn = drawn.map_err(|none| unrouted(none.to_string()))?;
    Ok(drawn.map_or(Goal::Original, Goal::Backend))
}

/// Connects to an endpoint.
async fn open(
    engine: &Engine<Here>,
    arrival: &Arrival,
    holds: &Holds,
    (goal, host): (Goal<'_>, Option<&str>),
    passage: &mut Passage<'_>,
) -> Result<Opened, Refused> {
    let note = |endpoint: &Endpoint<Way>| {
        passage.endpoint = Some(endpoint.address);
        passage.workload = endpoint.workload.clone();
    };
    let traffic = holds.traffic(&goal);
    let opened = engine::open(engine, arrival, (goal, traffic), host, note).await;
    opened.map_err(|none| Refused::unreachable(none.reason, none.text))
}

/// Waits until the policies deny a connection that was judged by this version of them.
pub(crate) async fn denied(
    here: &Here,
    arrival: &Arrival,
    name: &ServerName,
    (goal, by): (Goal<'_>, Option<&Origin>),
    mut version: u64,
) -> String {
    let mut deserted = pin!(here.deserted(arrival));
    loop {
        tokio::select! {
            biased;
            () = &mut deserted => {
                return "this proxy was withdrawn from its destination".to_owned();
            }
            now = here.policies_changed(version) => version = now,
        }
        // What holds at a waypoint does not hold for what it stands before no more.
        if here.is_withdrawn(arrival) {
            continue;
        }
        let Some(holds) = here.rules(arrival).await else {
            return "the control plane does not describe this destination any more".to_owned();
        };
        let denial = here.judge_bytes(&holds, arrival, name);
        let elsewhere = || here.judge_bytes_elsewhere(&holds, arrival, name, (&goal, by));
        if let Some(denial) = denial.or_else(elsewhere) {
            return denial;
        }
    }
}

/// Bytes of a client's connection.
struct Moved {
    received: Cell<u64>,
    sent: Cell<u64>,
    /// Its metrics, which have them at once: it may last for days.
    counted: Counted,
}

impl Moved {
    fn new(counted: Counted) -> Self {
        Self { received: Cell::default(), sent: Cell::default(), counted }
    }

    fn receive(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.received.set(self.received.get() + bytes);
        self.counted.moved(bytes, 0);
    }

    fn send(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.sent.set(self.sent.get() + bytes);
        self.counted.moved(0, bytes);
    }
}

/// A client's connection whose bytes are counted.
struct Counting<'m> {
    stream: BoxStream,
    moved: &'m Moved,
}

impl AsyncRead for Counting<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.moved.receive(buf.filled().len() - before);
        read
    }
}

impl AsyncWrite for Counting<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = wrote {
            self.moved.send(bytes);
        }
        wrote
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
