//! The server: connections, requests, and the answer to each.
//!
//! Everything is bounded: connections, the time for a handshake and a head, the size of a head, the
//! requests that are worked on at once, and the answers and streams that stay open. Bodies are not
//! read. A client that may not ask is cut off with its first answer, or if it says nothing: others
//! of the host must not keep the user out.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ambit_kubeapi::{Call, History, Listing, Request, Single, Status};
use ambit_tls::edge::EdgeAcceptor;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};
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

use crate::accepting::ACCEPT_PAUSE;

/// Connections at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// Largest head of a request.
const HEAD_SIZE_MAX_BYTES: usize = 32 << 10;
/// Longest wait for a handshake, for the first request of somebody who may ask, and for a head
/// from its first byte or the answer before it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

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

async fn answer(server: &Arc<Server>, mut request: http::Request<Incoming>) -> Response<Body> {
    match try_answer(server, &mut request).await {
        Ok(response) => response,
        Err(status) => refusal(&status),
    }
}

async fn try_answer(
    server: &Arc<Server>,
    request: &mut http::Request<Incoming>,
) -> Result<Response<Body>, Status> {
    let busy = || Status::too_many("too many requests at once; try again");
    let _held = Arc::clone(&server.requests).try_acquire_owned().map_err(|_| busy())?;
    let accept = request.headers().get(http::header::ACCEPT).and_then(|it| it.to_str().ok());
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let call = server.api.call(&Request { method: request.method(), path, query, accept })?;
    let room = || {
        let busy = |_| Status::too_many("too many watches and followed logs; try again");
        Arc::clone(&server.streams).try_acquire_owned().map_err(busy)
    };
    match call {
        Call::Document { media_type, body } => Ok(whole(media_type, body.to_string().into())),
        Call::Health => Ok(whole("text/plain", "ok".into())),
        Call::List(listing) => Ok(json(&list(server, listing).await?)),
        Call::Get(single) => Ok(json(&get(server, single).await?)),
        Call::Watch(watch) => {
            let stream = body::watch(Arc::clone(server), watch, room()?).await?;
            Ok(answered("application/json", stream))
        }
        Call::Log(log) => {
            let stream = body::log(&server.machine, log, room()?).await?;
            Ok(answered("text/plain", stream))
        }
        Call::Exec(exec) => streams::exec(server, exec, request).await,
        Call::PortForward(of) => streams::port_forward(server, of, request).await,
    }
}

async fn list(server: &Arc<Server>, listing: Listing) -> Result<Value, Status> {
    let plural = listing.resource.plural;
    let answer = move |history: &History| {
        let now = jiff::Timestamp::now();
        ambit_kubeapi::list(&listing, history.objects(plural), history.version(), now)
    };
    server.look(plural, answer).await
}

async fn get(server: &Arc<Server>, single: Single) -> Result<Value, Status> {
    let plural = single.resource.plural;
    let answer = move |history: &History| -> Result<Value, Status> {
        let Single { resource, namespace, name, .. } = &single;
        let found = history.object(resource.plural, namespace, name);
        let found = found.ok_or_else(|| Status::not_found(resource, name))?;
        Ok(ambit_kubeapi::object(&single, found, jiff::Timestamp::now()))
    };
    server.look(plural, answer).await?
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
    if status.code() == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
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
