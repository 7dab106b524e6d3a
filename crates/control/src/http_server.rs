//! HTTP/1.1 for administration and monitoring: small questions, whole answers.
//!
//! Requests, their number and their time are bounded. Nothing here knows what is asked.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ambit_net::drain::Guard;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

/// Connections served at the same time.
const CONNECTIONS_MAX: usize = 128;
/// Longest body of a request.
const BODY_SIZE_MAX_BYTES: usize = 64 << 10;
/// Longest wait for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the kernel could not give a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// One question.
#[derive(Debug)]
pub(crate) struct Question {
    /// The method.
    pub(crate) method: Method,
    /// The path.
    pub(crate) path: String,
    /// The parameters behind the `?`.
    pub(crate) query: BTreeMap<String, String>,
    /// The body.
    pub(crate) body: Bytes,
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
}

impl Answer {
    /// JSON.
    pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Self {
        let mut body = serde_json::to_vec_pretty(value).expect("a JSON value is JSON");
        body.push(b'\n');
        Self { status, content_type: "application/json", body: body.into() }
    }

    /// An error that a person or program can read.
    pub(crate) fn error(status: StatusCode, message: &str) -> Self {
        Self::json(status, &json!({ "error": message }))
    }

    /// Text.
    pub(crate) fn text(status: StatusCode, content_type: &'static str, text: String) -> Self {
        Self { status, content_type, body: text.into() }
    }
}

/// Answers questions.
pub(crate) type Handler = Arc<dyn Fn(Question) -> Answer + Send + Sync>;

/// Where questions come from.
pub(crate) enum Listener {
    /// The network.
    Tcp(TcpListener),
    /// This machine.
    Unix(UnixListener),
}

/// Answers questions until asked to drain.
pub(crate) async fn serve(listener: Listener, handler: Handler, mut guard: Guard) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            _ = guard.draining() => return,
            accepted = accept(&listener) => accepted,
        };
        match accepted {
            Ok(stream) => {
                let handler = handler.clone();
                let mut draining = guard.clone();
                guard.spawn(async move {
                    tokio::select! {
                        () = connection(stream, handler) => {}
                        _ = draining.draining() => {}
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

async fn accept(listener: &Listener) -> std::io::Result<Box<dyn Transport>> {
    Ok(match listener {
        Listener::Tcp(listener) => Box::new(listener.accept().await?.0),
        Listener::Unix(listener) => Box::new(listener.accept().await?.0),
    })
}

async fn connection(stream: Box<dyn Transport>, handler: Handler) {
    let service = service_fn(move |request| {
        let handler = handler.clone();
        async move { Ok::<_, Infallible>(respond(request, handler).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "administration connection broke");
    }
}

async fn respond(request: Request<Incoming>, handler: Handler) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let answer = match Limited::new(body, BODY_SIZE_MAX_BYTES).collect().await {
        Ok(body) => {
            let question = Question {
                method: head.method,
                path: head.uri.path().to_owned(),
                query: query(head.uri.query().unwrap_or_default()),
                body: body.to_bytes(),
            };
            // Answers read shared state and write small files: short, but not for the async
            // threads.
            let answered = tokio::task::spawn_blocking(move || handler(question)).await;
            answered.unwrap_or_else(|_| {
                Answer::error(StatusCode::INTERNAL_SERVER_ERROR, "answering failed, see the log")
            })
        }
        Err(_) => {
            let message = format!("a body has at most {BODY_SIZE_MAX_BYTES} bytes");
            Answer::error(StatusCode::PAYLOAD_TOO_LARGE, &message)
        }
    };
    Response::builder()
        .status(answer.status)
        .header(http::header::CONTENT_TYPE, answer.content_type)
        .body(Full::new(answer.body))
        .expect("a status and a constant header make a response")
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(key, value)| (decoded(key), decoded(value))).collect()
}

/// Undoes percent encoding; what is not encoded properly stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let encoded = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match encoded {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let got = query("src=shop%2Fweb&dst=%5B%3A%3A1%5D:80&flag&odd=%2");
        let expected = [("src", "shop/web"), ("dst", "[::1]:80"), ("flag", ""), ("odd", "%2")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(got, BTreeMap::from(expected));
    }
}
