//! The server: connections, requests, and the answer to each.
//!
//! Everything is bounded: connections, the time for a handshake, a head and a body, their sizes,
//! the requests that are worked on at once, and the answers and streams that stay open. A client
//! that may not ask is cut off with its first answer, or if it says nothing: others of the host
//! must not keep the user out.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ambit_kubeapi::{Call, History, Listing, Request, Single, Status};
use ambit_tls::edge::EdgeAcceptor;
use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WARNING};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::body::{self, Body};
use super::server::Server;
use super::streams;
use super::write::{self, Written};

use crate::accepting::ACCEPT_PAUSE;

/// Connections at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// Largest head of a request.
const HEAD_SIZE_MAX_BYTES: usize = 32 << 10;
/// Longest wait for a handshake, for the first request of somebody who may ask, and for a head
/// from its first byte or the answer before it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Largest body, as in Kubernetes, and the time for it.
const BODY_SIZE_MAX_BYTES: usize = 3 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Most warnings of an answer, and the most characters of one.
const WARNINGS_MAX: usize = 32;
const WARNING_LEN_MAX: usize = 1000;

/// Accepts connections for as long as the machine lives.
pub(super) async fn accept(server: Arc<Server>, socket: TcpListener, tls: EdgeAcceptor) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let held = Arc::clone(&room).acquire_owned().await.expect("nobody closes it");
        match socket.accept().await {
            Ok((client, _)) => {
                let connection = carry(Arc::clone(&server), tls.clone(), client, held);
                drop(tokio::spawn(connection));
            }
            Err(error) => {
                tracing::warn!(%error, "the Kubernetes API cannot accept; waiting");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Carries one connection to its end.
async fn carry(
    server: Arc<Server>,
    tls: EdgeAcceptor,
    client: TcpStream,
    _held: OwnedSemaphorePermit,
) {
    let stream = match timeout(HANDSHAKE_TIMEOUT, tls.accept(client)).await {
        Ok(Ok((stream, _))) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a client of the Kubernetes API left"),
        Err(_elapsed) => return tracing::debug!("a client of the Kubernetes API was too slow"),
    };
    let is_known = Arc::new(AtomicBool::new(false));
    let answer = |request: http::Request<Incoming>| {
        let (server, is_known) = (Arc::clone(&server), Arc::clone(&is_known));
        async move {
            if let Err(status) = server.access.check(request.headers()) {
                return Ok::<_, Infallible>(turned_away(&status));
            }
            is_known.store(true, Ordering::Relaxed);
            Ok(answer(&server, request).await)
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_SIZE_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = match timeout(HANDSHAKE_TIMEOUT, &mut connection).await {
        Ok(ended) => ended,
        Err(_elapsed) if is_known.load(Ordering::Relaxed) => connection.await,
        Err(_elapsed) => return tracing::debug!("a client of the Kubernetes API is not known"),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the Kubernetes API broke");
    }
}

async fn answer(server: &Arc<Server>, request: http::Request<Incoming>) -> Response<Body> {
    match try_answer(server, request).await {
        Ok(response) => response,
        Err(status) => refusal(&status),
    }
}

async fn try_answer(
    server: &Arc<Server>,
    request: http::Request<Incoming>,
) -> Result<Response<Body>, Status> {
    let busy = || Status::too_many("too many requests at once; try again");
    let held = Arc::clone(&server.requests).try_acquire_owned().map_err(|_| busy())?;
    let (head, incoming) = request.into_parts();
    let text = |name| head.headers.get(name).and_then(|it| it.to_str().ok());
    let (accept, content_type) = (text(ACCEPT), text(CONTENT_TYPE));
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let call =
        server.api.call(&Request { method: &head.method, path, query, accept, content_type })?;
    let room = || {
        let busy = |_| Status::too_many("too many watches and followed logs; try again");
        Arc::clone(&server.streams).try_acquire_owned().map_err(busy)
    };
    match call {
        Call::Document { media_type, body } => Ok(whole(media_type, body.to_string().into())),
        Call::Health => Ok(whole("text/plain", "ok".into())),
        Call::List(listing) => Ok(json(&list(server, listing, held).await?)),
        Call::Get(single) => {
            let shown = |single: &Single, found: &Value| {
                ambit_kubeapi::object(single, found, jiff::Timestamp::now())
            };
            Ok(json(&get(server, single, shown, held).await?))
        }
        Call::GetScale(single) => {
            let shown = |_: &Single, found: &Value| ambit_kubeapi::scale(found);
            Ok(json(&get(server, single, shown, held).await?))
        }
        Call::Review(of, syntax) => {
            let body = write::parse(syntax, &whole_body(incoming).await?)?;
            let mut response = json(&server.api.review(of, body)?);
            *response.status_mut() = StatusCode::CREATED;
            Ok(response)
        }
        Call::Write(write) => {
            let body = whole_body(incoming).await?;
            let written = write::carry_out(server, (*write, query.to_owned(), body), held).await?;
            Ok(answered_write(&written))
        }
        Call::Watch(watch) => {
            let stream = body::watch(Arc::clone(server), watch, room()?).await?;
            Ok(answered("application/json", stream))
        }
        Call::Log(log) => {
            let stream = body::log(&server.machine, log, room()?).await?;
            Ok(answered("text/plain", stream))
        }
        Call::Exec(exec) => {
            let mut request = http::Request::from_parts(head, incoming);
            streams::exec(server, exec, &mut request).await
        }
        Call::PortForward(of) => {
            let mut request = http::Request::from_parts(head, incoming);
            streams::port_forward(server, of, &mut request).await
        }
    }
}

/// A list. The work keeps the place of its request, also when the client has left meanwhile.
async fn list(
    server: &Arc<Server>,
    listing: Listing,
    held: OwnedSemaphorePermit,
) -> Result<Value, Status> {
    let plural = listing.resource.plural;
    let answer = move |history: &History| {
        let _held = held;
        let now = jiff::Timestamp::now();
        ambit_kubeapi::list(&listing, history.objects(plural), history.version(), now)
    };
    server.look(plural, answer).await
}

/// One object, as `list` does it.
async fn get(
    server: &Arc<Server>,
    single: Single,
    shown: impl FnOnce(&Single, &Value) -> Value + Send + 'static,
    held: OwnedSemaphorePermit,
) -> Result<Value, Status> {
    let plural = single.resource.plural;
    let answer = move |history: &History| -> Result<Value, Status> {
        let _held = held;
        let Single { resource, namespace, name, .. } = &single;
        let found = history.object(resource.plural, namespace, name);
        let found = found.ok_or_else(|| Status::not_found(resource, name))?;
        Ok(shown(&single, found))
    };
    server.look(plural, answer).await?
}

/// The body of a request.
async fn whole_body(incoming: Incoming) -> Result<Bytes, Status> {
    let reading = Limited::new(incoming, BODY_SIZE_MAX_BYTES).collect();
    let read = timeout(BODY_TIMEOUT, reading).await;
    let read =
        read.map_err(|_elapsed| Status::bad_request("the body of the request is too slow"))?;
    match read {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Status::too_large(BODY_SIZE_MAX_BYTES)),
        Err(_) => Err(Status::bad_request("the body of the request ended too early")),
    }
}

fn answered_write(written: &Written) -> Response<Body> {
    let mut response = json(&written.body);
    *response.status_mut() = written.code;
    for value in warning_values(&written.warnings) {
        response.headers_mut().append(WARNING, value);
    }
    response
}

/// Warnings as headers, which kubectl prints.
fn warning_values(warnings: &[String]) -> Vec<HeaderValue> {
    let left_out = warnings.len().saturating_sub(WARNINGS_MAX);
    let more = (left_out > 0).then(|| format!("{left_out} more warnings were left out"));
    let shown = warnings.iter().take(WARNINGS_MAX).chain(&more);
    let value = |warning: &String| {
        let mut quoted = String::new();
        for character in warning.chars().take(WARNING_LEN_MAX) {
            match character {
                '"' | '\\' => quoted.extend(['\\', character]),
                control if control.is_control() => quoted.push(' '),
                other => quoted.push(other),
            }
        }
        HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()).ok()
    };
    shown.filter_map(value).collect()
}

/// An answer that ends the connection.
fn turned_away(status: &Status) -> Response<Body> {
    let mut response = refusal(status);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn refusal(status: &Status) -> Response<Body> {
    let mut response = json(&status.to_json());
    *response.status_mut() = status.code();
    if let Some(seconds) = status.retry_after_seconds() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn json(value: &Value) -> Response<Body> {
    whole("application/json", value.to_string().into())
}

fn whole(media_type: &'static str, text: Bytes) -> Response<Body> {
    answered(media_type, Full::new(text).boxed_unsync())
}

fn answered(media_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_quoted_and_bounded() {
        let warnings = ["a \"b\" \\ c\nd – e".to_owned(), "x".repeat(2000)];
        let values = warning_values(&warnings);
        assert_eq!(values[0].as_bytes(), "299 - \"a \\\"b\\\" \\\\ c d – e\"".as_bytes());
        assert_eq!(values[1].len(), "299 - \"\"".len() + WARNING_LEN_MAX);
        let many = vec!["w".to_owned(); 40];
        let values = warning_values(&many);
        assert_eq!(values.len(), WARNINGS_MAX + 1);
        assert_eq!(values[WARNINGS_MAX].as_bytes(), b"299 - \"8 more warnings were left out\"");
    }
}
