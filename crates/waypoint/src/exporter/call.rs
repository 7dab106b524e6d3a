//! One export: a message to a collector and its answer, in gRPC or in plain HTTP.

use std::time::Duration;

use ambit_http::engine::halves::BoxStream;
use ambit_model::Text;
use ambit_model::http::telemetry::{Collector, Place, Way};
use ambit_wire::proto::opentelemetry::ExportResponse;
use ambit_words::error_chain;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, TE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use prost::Message as _;

use crate::exports::Signal;

/// Bytes of a collector's answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Compressed or not, and the length, in front of a message of gRPC.
const GRPC_PREFIX_BYTES: usize = 5;

/// Why records were not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// There is no connection.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// A status of HTTP.
    #[error("it answers HTTP {0}")]
    Http(StatusCode),
    /// A status of gRPC.
    #[error("it answers gRPC {0}: {1}")]
    Grpc(u32, String),
    /// The settings make no request.
    #[error("{0} makes no request of HTTP")]
    Settings(&'static str),
}

impl CallError {
    /// Whether the same may be taken later, as OTLP says.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Late(_) | Self::Broken(_) => true,
            Self::Http(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Grpc(status, _) => matches!(status, 1 | 4 | 8 | 10 | 11 | 14 | 15),
            Self::Settings(_) => false,
        }
    }
}

fn broken(error: &hyper::Error) -> CallError {
    CallError::Broken(error_chain(error))
}

/// Runs the connection's task on this thread.
#[derive(Clone)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move { drop(future.await) });
    }
}

/// A connection to a collector.
pub(super) enum Line {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Line {
    /// Begins to speak on a connection.
    pub(super) async fn open(stream: BoxStream, to: &Collector) -> Result<Self, CallError> {
        let io = TokioIo::new(stream);
        match to.way {
            Way::Grpc(_) => {
                let (sender, connection) =
                    http2::handshake(Local, io).await.map_err(|error| broken(&error))?;
                tokio::task::spawn_local(async move { drop(connection.await) });
                Ok(Self::Http2(sender))
            }
            Way::Http { .. } => {
                let (sender, connection) =
                    http1::handshake(io).await.map_err(|error| broken(&error))?;
                tokio::task::spawn_local(async move { drop(connection.await) });
                Ok(Self::Http1(sender))
            }
        }
    }

    /// Whether another message may be sent.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Http1(sender) => !sender.is_closed(),
            Self::Http2(sender) => !sender.is_closed(),
        }
    }

    /// Sends a message; the answer is how many records of it are rejected.
    pub(super) async fn export(
        &mut self,
        to: &Collector,
        signal: Signal,
        message: Bytes,
    ) -> Result<u64, CallError> {
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await.map_err(|error| broken(&error))?;
                sender.send_request(request(to, signal, message)?).await
            }
            Self::Http2(sender) => {
                sender.ready().await.map_err(|error| broken(&error))?;
                sender.send_request(request(to, signal, message)?).await
            }
        };
        let response = response.map_err(|error| broken(&error))?;
        answer(response, matches!(to.way, Way::Grpc(_))).await
    }
}

fn request(
    to: &Collector,
    signal: Signal,
    message: Bytes,
) -> Result<Request<Full<Bytes>>, CallError> {
    let host = match &to.place {
        Place::Service(name, port) => format!("{}:{port}", name.hostname),
        Place::Host(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        Place::Host(host, port) => format!("{host}:{port}"),
    };
    let authority = HeaderValue::try_from(&host).map_err(|_| CallError::Settings("the host"))?;
    let (uri, kind, headers, body) = match &to.way {
        Way::Grpc(metadata) => {
            let path = match signal {
                Signal::Spans => "opentelemetry.proto.collector.trace.v1.TraceService/Export",
                Signal::Logs => "opentelemetry.proto.collector.logs.v1.LogsService/Export",
            };
            let mut framed = BytesMut::with_capacity(GRPC_PREFIX_BYTES + message.len());
            framed.put_u8(0);
            let length = u32::try_from(message.len());
            framed.put_u32(length.map_err(|_| CallError::Settings("a batch"))?);
            framed.put(message);
            (format!("http://{host}/{path}"), "application/grpc", metadata, framed.freeze())
        }
        Way::Http { path, headers } => {
            let path = match (signal, path.strip_suffix("traces")) {
                (Signal::Logs, Some(before)) => format!("{before}logs"),
                _ => path.to_string(),
            };
            (path, "application/x-protobuf", headers, message)
        }
    };
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri.parse::<Uri>().map_err(|_| CallError::Settings("the path"))?;
    let fields = request.headers_mut();
    add(fields, headers)?;
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    match to.way {
        Way::Grpc(_) => fields.insert(TE, HeaderValue::from_static("trailers")),
        Way::Http { .. } => fields.insert(HOST, authority),
    };
    Ok(request)
}

fn add(fields: &mut HeaderMap, headers: &[(Text, Text)]) -> Result<(), CallError> {
    for (name, value) in headers {
        // A value may be a secret, so an error does not show it.
        let wrong = || CallError::Settings("a header or its value");
        let name = HeaderName::try_from(&**name).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(&**value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        fields.append(name, value);
    }
    Ok(())
}

async fn answer(response: Response<Incoming>, is_grpc: bool) -> Result<u64, CallError> {
    let (head, body) = response.into_parts();
    let read = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
    let read = read.map_err(|error| CallError::Broken(error.to_string()))?;
    if head.status != StatusCode::OK {
        return Err(CallError::Http(head.status));
    }
    let trailers = read.trailers().cloned();
    let mut bytes = read.to_bytes();
    if is_grpc {
        grpc_status(trailers.as_ref().unwrap_or(&head.headers))?;
        if bytes.len() < GRPC_PREFIX_BYTES {
            return Ok(0);
        }
        bytes = bytes.slice(GRPC_PREFIX_BYTES..);
    }
    // What is taken is taken, whatever is said of it besides.
    let response = ExportResponse::decode(bytes).unwrap_or_default();
    let rejected = response.partial_success.map_or(0, |it| it.rejected);
    Ok(u64::try_from(rejected).unwrap_or(0))
}

fn grpc_status(fields: &HeaderMap) -> Result<(), CallError> {
    let text = |name: &str| fields.get(name).and_then(|it| it.to_str().ok());
    match text("grpc-status").and_then(|it| it.parse().ok()) {
        Some(0) => Ok(()),
        Some(status) => Err(CallError::Grpc(status, text("grpc-message").unwrap_or("").to_owned())),
        None => Err(CallError::Broken("it has sent no status of gRPC".to_owned())),
    }
}

#[cfg(test)]
mod tests;
