//! Calls to other services.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, body::Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use super::answer::Answer;
use super::settings::{Settings, Upstream};

/// Connections that are kept for each upstream while they are not needed.
const IDLE_CONNECTIONS_MAX: usize = 256;
/// How long they are kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Largest answer of an upstream.
const ANSWER_SIZE_MAX_BYTES: usize = 4 << 20;
/// What `code` says when there was no response.
const NO_RESPONSE: i32 = -1;

/// The client of all upstreams.
#[derive(Debug)]
pub(super) struct Upstreams {
    client: Client<HttpConnector, Empty<Bytes>>,
    timeout: Duration,
    keep_alives: bool,
}

/// A call without a usable answer.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("no answer from {uri} within {limit:?}")]
    Timeout { uri: String, limit: Duration },
    #[error("cannot call {uri}: {reason}")]
    Call { uri: String, reason: String },
    #[error("{uri} answered {code}")]
    Status { uri: String, code: u16 },
}

impl Upstreams {
    /// A client with the connections that the settings allow.
    pub(super) fn new(settings: &Settings) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.request_timeout));
        let idle = if settings.client_keep_alives { IDLE_CONNECTIONS_MAX } else { 0 };
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(idle)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let timeout = settings.request_timeout;
        Self { client, timeout, keep_alives: settings.client_keep_alives }
    }

    /// Calls one. What went wrong is in the answer, too.
    pub(super) async fn call(&self, upstream: &Upstream) -> Answer {
        let called = timeout(self.timeout, self.exchange(upstream)).await;
        let called = called.unwrap_or_else(|_elapsed| {
            Err(CallError::Timeout { uri: upstream.written.clone(), limit: self.timeout })
        });
        let mut answer = match called {
            Ok(answer) => answer,
            Err(error) => {
                Answer { code: NO_RESPONSE, error: Some(error.to_string()), ..Answer::default() }
            }
        };
        answer.uri = upstream.written.clone();
        answer
    }

    async fn exchange(&self, upstream: &Upstream) -> Result<Answer, CallError> {
        let uri = &upstream.written;
        let failed = |reason: String| CallError::Call { uri: uri.clone(), reason };
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = upstream.uri.clone();
        if !self.keep_alives {
            let close = header::HeaderValue::from_static("close");
            request.headers_mut().insert(header::CONNECTION, close);
        }
        let response = self.client.request(request).await.map_err(|error| failed(chain(&error)))?;
        let (code, headers) = (response.status(), headers(response.headers()));
        let body = body(response).await.map_err(failed)?;
        // A proxy's own answer is no JSON, and counts by its status alone.
        let mut answer: Answer = serde_json::from_slice(&body).unwrap_or_default();
        answer.code = i32::from(code.as_u16());
        answer.headers = headers;
        if !code.is_success() {
            let status = CallError::Status { uri: uri.clone(), code: code.as_u16() };
            answer.error.get_or_insert_with(|| status.to_string());
        }
        Ok(answer)
    }
}

async fn body(response: Response<Incoming>) -> Result<Bytes, String> {
    let limited = Limited::new(response.into_body(), ANSWER_SIZE_MAX_BYTES);
    let collected = limited.collect().await.map_err(|error| chain(error.as_ref()))?;
    Ok(collected.to_bytes())
}

/// An error with its causes: the outer one says little.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let shown =
        |value: &header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (canonical(name), shown(value))).collect()
}

/// `content-type` as `Content-Type`.
fn canonical(name: &HeaderName) -> String {
    let mut upper = true;
    let letter = |letter: char| {
        let written = if upper { letter.to_ascii_uppercase() } else { letter };
        upper = letter == '-';
        written
    };
    name.as_str().chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_are_written_with_capitals() {
        assert_eq!(canonical(&header::CONTENT_TYPE), "Content-Type");
        assert_eq!(canonical(&header::DATE), "Date");
    }
}
