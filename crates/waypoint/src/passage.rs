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

use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{Arrival, EndpointAsk, Goal, Position as _};
use ambit_http::engine::{Prefixed, quiet};
use ambit_model::Text;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use crate::access_log::Passage;
use crate::hello::{self, ServerName};
use crate::position::{Here, Holds};

/// Endpoints that are tried before a connection is given up: nothing of it was sent yet.
const ENDPOINTS_MAX: usize = 3;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For its first bytes, where it is not declared what they are.
    pub(crate) detect: Duration,
    /// In which nothing moves.
    pub(crate) idle: Duration,
}

/// Serves one connection to its end. `first` was read of it.
pub(crate) async fn serve(
    here: &Here,
    arrival: Arrival,
    mut client: BoxStream,
    first: Bytes,
    patience: Patience,
) {
    let mut passage = Passage::new(&arrival);
    let version = here.policies_version();
    let Some(holds) = here.rules(&arrival).await else {
        return here.record_bytes(
            &passage,
            Some("the control plane has not described this destination yet"),
        );
    };
    let mut first = BytesMut::from(first);
    let name = match holds.server_name_patience(patience.detect) {
        Some(limit) => hello::server_name(&mut client, &mut first, limit).await,
        None => ServerName::Unknown,
    };
    passage.server_name = name.host();
    if let Some(denial) = here.judge_bytes(&holds, &arrival, &name) {
        return here.record_bytes(&passage, Some(&denial));
    }
    let goal = match route(here, &arrival, &holds, &name, &mut passage) {
        Ok(goal) => goal,
        Err(why) => return here.record_bytes(&passage, Some(&why)),
    };
    let mut server = match open(here, &arrival, goal, &mut passage).await {
        Ok(server) => server,
        Err(why) => return here.record_bytes(&passage, Some(&why)),
    };
    let moved = Moved::default();
    let stream = Box::new(Prefixed::new(first.freeze(), client));
    let mut client = Counted { stream, moved: &moved };
    let error = tokio::select! {
        biased;
        copied = copy_bidirectional(&mut client, &mut server) => {
            copied.err().map(|error| error.to_string())
        }
        denial = denied(here, &arrival, &name, goal, version) => Some(denial),
        silent = quiet(patience.idle, || moved.received.get() + moved.sent.get()) => {
            Some(silent.to_string())
        }
    };
    passage.bytes = (moved.received.get(), moved.sent.get());
    here.record_bytes(&passage, error.as_deref());
}

/// Finds the rule that takes a connection, and draws where it goes. What holds there must let it.
fn route<'a>(
    here: &Here,
    arrival: &Arrival,
    holds: &'a Holds,
    name: &ServerName,
    passage: &mut Passage<'a>,
) -> Result<Goal<'a>, String> {
    let rule = holds.bytes_rule(arrival.destination, name.host());
    let rule = rule.map_err(|none| none.to_string())?;
    passage.route = rule.map(|rule| &rule.origin);
    let drawn = rule.map(|rule| rule.draw(|bound| here.random_below(bound))).transpose();
    let goal = drawn.map_err(|none| none.to_string())?.map_or(Goal::Original, Goal::Backend);
    match here.judge_bytes_elsewhere(holds, arrival, name, &goal) {
        Some(denial) => Err(denial),
        None => Ok(goal),
    }
}

/// Connects to an endpoint.
async fn open(
    here: &Here,
    arrival: &Arrival,
    goal: Goal<'_>,
    passage: &mut Passage<'_>,
) -> Result<BoxStream, String> {
    let mut tried: Vec<Text> = Vec::new();
    loop {
        let ask = EndpointAsk {
            arrival,
            goal,
            hash: None,
            pinned: None,
            tried: &tried,
            is_ejected: &|_| false,
        };
        let endpoint = here.choose(&ask).map_err(|none| none.text)?;
        passage.endpoint = Some(endpoint.address);
        match here.connect(arrival, &endpoint).await {
            Ok(server) => return Ok(server),
            Err(none) => {
                let is_last = tried.len() + 1 >= ENDPOINTS_MAX.min(endpoint.alternatives);
                if is_last || tried.contains(&endpoint.uid) {
                    return Err(none.text);
                }
                tried.push(endpoint.uid);
            }
        }
    }
}

/// Waits until the policies deny a connection that was judged by this version of them.
async fn denied(
    here: &Here,
    arrival: &Arrival,
    name: &ServerName,
    goal: Goal<'_>,
    mut version: u64,
) -> String {
    let mut deserted = pin!(here.deserted(arrival));
    loop {
        tokio::select! {
            biased;
            () = &mut deserted => {
                return "this waypoint was withdrawn from its destination".to_owned();
            }
            now = here.policies_changed(version) => version = now,
        }
        // What holds at a waypoint does not hold for what it stands before no more.
        if here.is_withdrawn(arrival.destination) {
            continue;
        }
        let Some(holds) = here.rules(arrival).await else {
            return "the control plane does not describe this destination any more".to_owned();
        };
        let denial = here.judge_bytes(&holds, arrival, name);
        let elsewhere = || here.judge_bytes_elsewhere(&holds, arrival, name, &goal);
        if let Some(denial) = denial.or_else(elsewhere) {
            return denial;
        }
    }
}

/// Bytes of a client's connection.
#[derive(Default)]
struct Moved {
    received: Cell<u64>,
    sent: Cell<u64>,
}

/// A client's connection whose bytes are counted.
struct Counted<'m> {
    stream: BoxStream,
    moved: &'m Moved,
}

fn add(count: &Cell<u64>, bytes: usize) {
    count.set(count.get() + bytes as u64);
}

impl AsyncRead for Counted<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        add(&self.moved.received, buf.filled().len() - before);
        read
    }
}

impl AsyncWrite for Counted<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = wrote {
            add(&self.moved.sent, bytes);
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
