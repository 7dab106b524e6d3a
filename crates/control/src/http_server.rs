//! HTTP/1.1 for administration and monitoring: small requests, whole responses.
//!
//! Bodies are bounded here; [`ambit_net::http_port`] bounds connections and their time. Nothing
//! here knows the requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use ambit_net::accept::Listener;
use ambit_net::drain::Guard;
use ambit_net::http_port::{self, Limits};
use ambit_wire::admin::Refusal;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;

/// Longest body of a request.
const BODY_SIZE_MAX_BYTES: usize = 64 << 10;

/// One question.
#[derive(Debug)]
pub(crate) struct Question {
    /// The method.
    pub(crate) method: Method,
    /// The path.
    pub(crate) path: String,
    /// The parameters behind the `?`.
    pub(crate) query: BTreeMap<String, String>,
    /// Which types of an answer are understood, as it is written.
    pub(crate) accept: Option<String>,
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
    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Self {
        let mut body = serde_json::to_vec_pretty(value).expect("what is answered is JSON");
        body.push(b'\n');
        Self { status, content_type: "application/json", body: body.into() }
    }

    /// An error that a person or program can read.
    pub(crate) fn error(status: StatusCode, message: &str) -> Self {
        Self::json(status, &Refusal { error: message.to_owned() })
    }

    /// Text.
    pub(crate) fn text(status: StatusCode, content_type: &'static str, text: String) -> Self {
        Self { status, content_type, body: text.into() }
    }
}

/// Answers questions.
pub(crate) type Handler = Arc<dyn Fn(Question) -> Answer + Send + Sync>;

/// Answers questions until asked to drain.
pub(crate) async fn serve(listener: Listener, limits: Limits, handler: Handler, mut guard: Guard) {
    let connections = guard.clone();
    let answer = move |request| respond(request, handler.clone());
    let serving = http_port::serve(listener, limits, answer, move |connection| {
        let mut draining = connections.clone();
        connections.spawn(async move {
            tokio::select! {
                () = connection => {}
                _ = draining.draining() => {}
            }
        });
    });
    tokio::select! {
        () = serving => {}
        _ = guard.draining() => {}
    }
}

async fn respond(request: Request<Incoming>, handler: Handler) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let answer = match Limited::new(body, BODY_SIZE_MAX_BYTES).collect().await {
        Ok(body) => {
            let accept = head.headers.get(ACCEPT).and_then(|it| it.to_str().ok());
            let question = Question {
                accept: accept.map(str::to_owned),
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
        .header(CONTENT_TYPE, answer.content_type)
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
