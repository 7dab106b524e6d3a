//! One request and its answer over a connection of HTTP/1.1, within bounds of size and time.
//!
//! Who is asked, and what an answer other than success means, is the caller's.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use http::header::HeaderMap;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::limits::{Exceeded, within};

/// For the head of an answer, and between two pieces of its body.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How much is shown of what the other side says to an error.
const COMPLAINT_MAX_BYTES: u64 = 4 << 10;
const COMPLAINT_MAX_CHARACTERS: usize = 300;
pub(crate) const USER_AGENT: &str = "ambit";

/// A request that is not answered as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection breaks, or has something else than HTTP.
    #[error("the connection to {host} failed")]
    Connection {
        /// To whom.
        host: String,
        /// Why.
        source: hyper::Error,
    },
    /// Nothing comes.
    #[error("{host} did not answer within {} seconds", .after.as_secs())]
    Timeout {
        /// Who.
        host: String,
        /// How long was waited.
        after: Duration,
    },
    /// An answer that is no success.
    #[error("{host} answers {status}{complaint}")]
    Status {
        /// Who.
        host: String,
        /// Its answer.
        status: StatusCode,
        /// What it says, after a colon.
        complaint: String,
    },
    /// An answer that is too large.
    #[error("{host} sends too much")]
    Bound {
        /// Who.
        host: String,
        /// The bound.
        source: Exceeded,
    },
    /// What comes cannot be written.
    #[error("cannot write it")]
    Write(#[source] io::Error),
}

/// Where the body of an answer goes, piece by piece.
pub(crate) trait Sink {
    fn take(&mut self, piece: &[u8]) -> io::Result<()>;
}

impl Sink for Vec<u8> {
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.extend_from_slice(piece);
        Ok(())
    }
}

/// The head of an answer.
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

/// Sends a request; the body of a success goes to the sink. A demand to log in and a redirect are
/// answers too; any other status is an error.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin,
    host: &str,
    request: Request<Empty<Bytes>>,
    limit: u64,
    sink: &mut impl Sink,
) -> Result<Head, ExchangeError> {
    let failed = |source| ExchangeError::Connection { host: host.to_owned(), source };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let exchange = async {
        let answered = timed(host, ANSWER_TIMEOUT, sender.send_request(request)).await?;
        receive(host, answered.map_err(failed)?, limit, sink).await
    };
    // The connection moves only while it is polled, and needs no task for that.
    let mut exchange = pin!(exchange);
    tokio::select! {
        done = &mut exchange => return done,
        _ended = connection => {}
    }
    exchange.await
}

async fn receive(
    host: &str,
    response: Response<Incoming>,
    limit: u64,
    sink: &mut impl Sink,
) -> Result<Head, ExchangeError> {
    let (parts, body) = response.into_parts();
    let head = Head { status: parts.status, headers: parts.headers };
    match head.status {
        StatusCode::OK => body_into(host, body, limit, sink).await?,
        StatusCode::UNAUTHORIZED => {}
        status if status.is_redirection() => {}
        status => {
            let (host, complaint) = (host.to_owned(), complaint(host, body).await);
            return Err(ExchangeError::Status { host, status, complaint });
        }
    }
    Ok(head)
}

async fn body_into(
    host: &str,
    mut body: Incoming,
    limit: u64,
    sink: &mut impl Sink,
) -> Result<(), ExchangeError> {
    let mut total = 0;
    while let Some(frame) = timed(host, ANSWER_TIMEOUT, body.frame()).await? {
        let host = host.to_owned();
        let frame = match frame {
            Ok(frame) => frame,
            Err(source) => return Err(ExchangeError::Connection { host, source }),
        };
        let Ok(piece) = frame.into_data() else { continue };
        total += piece.len() as u64;
        within(total, limit, "bytes").map_err(|source| ExchangeError::Bound { host, source })?;
        sink.take(&piece).map_err(ExchangeError::Write)?;
    }
    Ok(())
}

/// What the other side says to an error, after a colon; letters only.
async fn complaint(host: &str, body: Incoming) -> String {
    let mut bytes = Vec::new();
    // As far as it comes.
    let _partly = body_into(host, body, COMPLAINT_MAX_BYTES, &mut bytes).await;
    let text = shown(&String::from_utf8_lossy(&bytes));
    if text.is_empty() { text } else { format!(": {text}") }
}

/// What a stranger says, as a line that a terminal may show.
pub(crate) fn shown(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let text: String = letters.take(COMPLAINT_MAX_CHARACTERS).collect();
    text.trim().to_owned()
}

/// Waits so long for the other side.
pub(crate) async fn timed<T>(
    host: &str,
    after: Duration,
    future: impl Future<Output = T>,
) -> Result<T, ExchangeError> {
    let timed = timeout(after, future).await;
    timed.map_err(|_| ExchangeError::Timeout { host: host.to_owned(), after })
}

/// A part of an address, with all that could mean something else written as numbers.
pub(crate) fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
