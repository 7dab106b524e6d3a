//! Connections that are no HTTP: judged as bytes, and passed on to an endpoint.
//!
//! What a policy asks of requests cannot be known of bytes, so it is read strictly: such a rule of
//! an ALLOW policy never matches, and of a DENY policy what remains of it decides. They are judged
//! again whenever policies change, and end when nothing moves for too long.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ambit_http::engine::halves::BoxStream;
use ambit_http::engine::position::{Arrival, EndpointAsk, Goal, Position as _};
use ambit_http::engine::quiet;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use crate::position::Here;
use crate::telemetry;

/// Serves one connection to its end. `idle` is how long nothing may move.
pub(crate) async fn serve(here: &Here, arrival: Arrival, client: BoxStream, idle: Duration) {
    let started = Instant::now();
    let version = here.policies_version();
    if let Some(denial) = here.judge_bytes(&arrival).await {
        return telemetry::passage(&arrival, None, started, (0, 0), Some(&denial));
    }
    let ask = EndpointAsk {
        arrival: &arrival,
        goal: Goal::Original,
        hash: None,
        pinned: None,
        tried: &[],
        is_ejected: &|_| false,
    };
    let refused = |address, text: &str| {
        telemetry::passage(&arrival, address, started, (0, 0), Some(text));
    };
    let endpoint = match here.choose(&ask) {
        Ok(endpoint) => endpoint,
        Err(none) => return refused(None, &none.text),
    };
    let address = Some(endpoint.address);
    let mut server = match here.connect(&arrival, &endpoint).await {
        Ok(server) => server,
        Err(none) => return refused(address, &none.text),
    };
    let moved = Moved::default();
    let mut client = Counted { stream: client, moved: &moved };
    let error = tokio::select! {
        biased;
        copied = copy_bidirectional(&mut client, &mut server) => {
            copied.err().map(|error| error.to_string())
        }
        denial = denied(here, &arrival, version) => Some(denial),
        silent = quiet(idle, || moved.received.get() + moved.sent.get()) => {
            Some(silent.to_string())
        }
    };
    let bytes = (moved.received.get(), moved.sent.get());
    telemetry::passage(&arrival, address, started, bytes, error.as_deref());
}

/// Waits until the policies deny a connection that was judged by this version of them.
async fn denied(here: &Here, arrival: &Arrival, mut version: u64) -> String {
    loop {
        here.policies_changed(version).await;
        version = here.policies_version();
        if let Some(denial) = here.judge_bytes(arrival).await {
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
