//! Calls from one sample to another over HTTP/1.1.
//!
//! The caller chooses whether connections are reused, because the published experiments differ in
//! that. Everything has a limit, and errors are described in words.

use std::time::Duration;

use ambit_words::durations::write_duration;
use ambit_words::error_chain;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

/// Connections that are kept for each server while they are not needed.
const IDLE_CONNECTIONS_MAX: usize = 256;
/// How long they are kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Largest answer.
const ANSWER_SIZE_MAX_BYTES: usize = 4 << 20;

/// Fields that speak of one connection and are not passed on.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    client: HyperClient<HttpConnector, Empty<Bytes>>,
    timeout: Duration,
    keep_alive: bool,
}

/// An answer of a server.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A call without an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("no answer from {uri} within {}", write_duration(*.limit))]
    Timeout { uri: Uri, limit: Duration },
    #[error("cannot call {uri}: {reason}")]
    Call { uri: Uri, reason: String },
}

impl Client {
    /// A client that waits so long for an answer, and uses connections again or not.
    pub(super) fn new(timeout: Duration, keep_alive: bool) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout));
        let client = HyperClient::builder(TokioExecutor::new())
            .pool_max_idle_per_host(if keep_alive { IDLE_CONNECTIONS_MAX } else { 0 })
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .http1_title_case_headers(true)
            .build(connector);
        Self { client, timeout, keep_alive }
    }

    /// Asks for a page.
    pub(super) async fn get(&self, uri: &Uri, headers: HeaderMap) -> Result<Answered, CallError> {
        let called = timeout(self.timeout, self.exchange(uri, headers)).await;
        called.unwrap_or_else(|_elapsed| {
            Err(CallError::Timeout { uri: uri.clone(), limit: self.timeout })
        })
    }

    async fn exchange(&self, uri: &Uri, headers: HeaderMap) -> Result<Answered, CallError> {
        let failed = |reason: String| CallError::Call { uri: uri.clone(), reason };
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers;
        if !self.keep_alive {
            let close = HeaderValue::from_static("close");
            request.headers_mut().insert(header::CONNECTION, close);
        }
        let response =
            self.client.request(request).await.map_err(|error| failed(error_chain(&error)))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = body(response).await.map_err(failed)?;
        Ok(Answered { status, headers, body })
    }
}

/// The fields of a request that may be passed on to another server.
pub(super) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let passed = headers.iter().filter(|(name, _)| !HOP_BY_HOP.contains(name));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

async fn body(response: Response<Incoming>) -> Result<Bytes, String> {
    let limited = Limited::new(response.into_body(), ANSWER_SIZE_MAX_BYTES);
    let collected = limited.collect().await.map_err(|error| error_chain(error.as_ref()))?;
    Ok(collected.to_bytes())
}
