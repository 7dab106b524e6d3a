//! Connections of clients: what they speak, and their requests one after the other or at once.

mod h1;
mod h2;
mod meter;
mod metered;

#[cfg(fuzzing)]
pub(crate) use meter::Meter;

use std::rc::Rc;

use ambit_net::drain::Guard;
use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::engine::detect::{Verdict, detect};
use crate::engine::halves::BoxStream;
use crate::engine::position::{Arrival, Position};
use crate::engine::prefixed::Prefixed;
use crate::engine::{Engine, Settings};

/// What a connection speaks, as far as it is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1, or HTTP/2 if it begins so.
    Http,
    /// HTTP/2, or HTTP/1.1 if it begins so.
    Http2,
    /// Nobody has said: HTTP if it begins so.
    Unknown,
}

/// What became of a connection.
pub enum Served {
    /// Its requests were answered.
    Http,
    /// It speaks no HTTP; these are its first bytes.
    Other(BoxStream, Bytes),
}

/// Serves a client's connection to its end; one that speaks no HTTP is handed back.
pub async fn serve<P: Position>(
    engine: &Rc<Engine<P>>,
    arrival: Arrival,
    mut stream: BoxStream,
    speaks: Speaks,
    guard: &Guard,
) -> Served {
    let arrival = Rc::new(arrival);
    let mut first = BytesMut::new();
    let verdict = match speaks {
        Speaks::Unknown => {
            let detecting = look(&mut stream, &mut first);
            let limit = engine.settings.detect_timeout;
            match timeout(limit, detecting).await {
                Ok(verdict) => verdict,
                Err(_) => detect(&first).in_the_end(),
            }
        }
        Speaks::Http | Speaks::Http2 => {
            let beginning = stream.read_buf(&mut first);
            if !matches!(timeout(engine.settings.idle_timeout, beginning).await, Ok(Ok(1..))) {
                return Served::Http;
            }
            // From its first byte a head has a limit of its own.
            match timeout(engine.settings.head_timeout, look(&mut stream, &mut first)).await {
                Ok(Verdict::Http2) => Verdict::Http2,
                // What is no HTTP, or not in time, gets the refusal of HTTP/1.1.
                Ok(_) | Err(_) => Verdict::Http1,
            }
        }
    };
    match verdict {
        Verdict::Http1 => h1::serve(engine, arrival, stream, first, guard).await,
        Verdict::Http2 => {
            // On the heap: what it needs would make every connection of HTTP/1 as large.
            Box::pin(h2::serve(engine, arrival, Prefixed::new(first.freeze(), stream), guard))
                .await;
        }
        Verdict::Other | Verdict::More | Verdict::MoreHttp1 => {
            return Served::Other(stream, first.freeze());
        }
    }
    Served::Http
}

/// Reads until it is clear what the client speaks.
async fn look(stream: &mut BoxStream, first: &mut BytesMut) -> Verdict {
    loop {
        match detect(first) {
            Verdict::More | Verdict::MoreHttp1 => {}
            verdict => return verdict,
        }
        match stream.read_buf(first).await {
            Ok(0) | Err(_) => return detect(first).in_the_end(),
            Ok(_) => {}
        }
    }
}

impl Settings {
    fn age(&self, random_below: impl FnOnce(u64) -> u64) -> Option<std::time::Duration> {
        let age = self.max_connection_age?;
        // A tenth more or less, so that clients that came together do not leave together.
        let spread = u64::try_from(age.as_millis() / 5).unwrap_or(u64::MAX).max(1);
        let less = std::time::Duration::from_millis(spread / 2);
        Some(age + std::time::Duration::from_millis(random_below(spread)) - less)
    }
}
