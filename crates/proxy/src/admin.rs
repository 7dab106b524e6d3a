//! What a worker serves to operators: the admin API, metrics, readiness.
//!
//! The admin API listens on loopback and on a Unix socket of mode 0600 only, because it has no
//! authentication of its own. Pods reach metrics and readiness; see [`ambit_net::http_port`] for
//! what bounds them. Requests with bodies are refused, and no answer ever holds a key or a token.
//! Nothing here touches a connection.

pub(crate) mod connections;
mod dump;
mod profile;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ambit_dataplane::logging::Levels;
use ambit_net::accept::Listener;
use ambit_net::http_port::{self, Limits, PRIVATE, PUBLIC};
use ambit_wire::admin::{ApiVersion, List, Process, Shares, node_proxy};
use ambit_words::error_chain;
use ambit_words::exposition::{self, METRICS_PATH};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use serde::Serialize;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tracing::info;

use crate::handover::FromWorker;
use crate::link::Link;
use crate::shared::Shared;
use connections::LiveConnections;

/// Shares that are used up and shown with readiness; `/shares` has all.
const MAX_SHARES_SHOWN: usize = 8;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// What `/` shows.
const INDEX: &str = "\
ambit proxy
GET  /config_dump                 the view, settings and certificates (keys are never shown)
GET  /connections                 the live connections, also of workers that finish theirs, and how
                                  many workers are left out
GET  /shares                      who has the descriptors, and which shares of them and of memory
                                  are used up
GET  /certificates                the certificates of this node's pods
GET  /process                     this process, and whether it is ready
GET  /logging                     the log levels
POST /logging?level=LEVEL         sets them: info, or by target: info,access=off; ?reset to undo
GET  /debug/pprof/profile         processor profile; ?seconds=10&frequency=100
GET  /debug/pprof/heap            heap profile
POST /worker/restart              a new worker beside this one, which finishes its connections
POST /quitquitquit                finishes connections and ends the proxy
";

/// The state that the admin API shows.
pub(crate) struct Admin {
    /// What the threads share.
    pub(crate) shared: Arc<Shared>,
    /// The line to the supervisor.
    pub(crate) link: Link,
    /// The log levels.
    pub(crate) levels: Levels,
    /// Lists the live connections.
    pub(crate) connections: LiveConnections,
    /// Whether the agent has named all pods.
    pub(crate) enrolled: Arc<AtomicBool>,
}

/// Where an operator comes in.
pub(crate) enum Socket {
    /// Over TCP.
    Tcp(std::net::TcpListener),
    /// Over a Unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// What is served there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Everything.
    Admin,
    /// `/metrics` and `/stats/prometheus`.
    Metrics,
    /// `/healthz/ready`.
    Readiness,
}

type Answer = Response<Full<Bytes>>;

impl Service {
    fn limits(self) -> Limits {
        match self {
            Self::Admin => PRIVATE.named("administration"),
            Self::Metrics => PUBLIC.named("metrics"),
            Self::Readiness => PUBLIC.named("readiness"),
        }
    }
}

/// Serves a socket for as long as `accepting` holds; connections accepted before are answered.
pub(crate) async fn serve(
    admin: Arc<Admin>,
    socket: Socket,
    service: Service,
    mut accepting: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = match socket {
        Socket::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            Listener::Tcp(TcpListener::from_std(listener)?)
        }
        Socket::Unix(listener) => {
            listener.set_nonblocking(true)?;
            Listener::Unix(UnixListener::from_std(listener)?)
        }
    };
    let answer = move |request| {
        let admin = admin.clone();
        async move { admin.answer(service, request).await }
    };
    let spawn = |connection| drop(tokio::spawn(connection));
    tokio::select! {
        () = http_port::serve(listener, service.limits(), answer, spawn) => Ok(()),
        _ = accepting.wait_for(|accepting| !accepting) => Ok(()),
    }
}

impl Admin {
    async fn answer(&self, service: Service, request: Request<Incoming>) -> Answer {
        // No request needs one, so none is read: a client that sends one is mistaken.
        if request.body().size_hint().lower() > 0 {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "requests have no body\n");
        }
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let query = request.uri().query().unwrap_or_default().to_owned();
        let accept = request.headers().get(ACCEPT).and_then(|it| it.to_str().ok());
        match (service, &*path) {
            (Service::Metrics | Service::Admin, METRICS_PATH | "/stats/prometheus") => {
                self.metrics(accept)
            }
            (Service::Readiness | Service::Admin, "/healthz/ready") => self.readiness(),
            (Service::Admin, _) => self.administer(&method, &path, &query).await,
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    async fn administer(&self, method: &Method, path: &str, query: &str) -> Answer {
        let wants_change = matches!(path, "/worker/restart" | "/quitquitquit");
        match (method, wants_change) {
            (&Method::POST, true) | (&Method::GET, false) => {}
            (&Method::POST, false) if path == "/logging" => {}
            _ => return text(StatusCode::METHOD_NOT_ALLOWED, "see / for what goes with what\n"),
        }
        match path {
            "/" => text(StatusCode::OK, INDEX),
            "/config_dump" => json(&dump::config_dump(&self.shared)),
            node_proxy::CERTIFICATES => json(&List::from_iter(dump::certificates(&self.shared))),
            node_proxy::CONNECTIONS => json(&self.connections.of_all_workers().await),
            node_proxy::SHARES => json(&self.shares()),
            node_proxy::PROCESS => json(&self.process()),
            "/logging" => self.logging(method, query),
            "/debug/pprof/profile" => profile::processor(query).await,
            "/debug/pprof/heap" => profile::heap().await,
            "/worker/restart" => {
                info!("an operator wants a new worker");
                self.link.say(FromWorker::Replace).await;
                text(StatusCode::ACCEPTED, "a new worker is started\n")
            }
            "/quitquitquit" => {
                info!("an operator ends the proxy");
                self.link.say(FromWorker::Quit).await;
                text(StatusCode::OK, "shutting down\n")
            }
            _ => text(StatusCode::NOT_FOUND, "no such page; see /\n"),
        }
    }

    /// A share that is used up concerns its pod and leaves the node ready: a greedy pod must not
    /// take it out of service. That no pod can be taken on concerns the node.
    fn is_ready(&self) -> bool {
        self.enrolled.load(Ordering::Relaxed)
            && *self.shared.mesh.view_complete.borrow()
            && self.shared.mesh.descriptors.fits_another_pod()
    }

    fn process(&self) -> Process {
        Process { api_version: ApiVersion, pid: std::process::id(), ready: self.is_ready() }
    }

    fn shares(&self) -> Shares {
        let pods = self.shared.pods.load();
        let mut told = self.shared.mesh.descriptors.told(pods.iter().map(|pod| &pod.shares));
        told.used_up.extend(self.shared.mesh.memory.used_up(|uid| {
            let pod = pods.iter().find(|pod| pod.uid == *uid);
            pod.map_or_else(|| uid.to_string(), |pod| pod.name.to_string())
        }));
        told
    }

    fn readiness(&self) -> Answer {
        let shares = self.shares();
        let used_up = shares.used_up.iter().take(MAX_SHARES_SHOWN);
        let used_up: String = used_up.map(|it| format!("share used up: {it}\n")).collect();
        let away = self.shared.mesh.control_plane_away.load();
        // Words of a peer are among it.
        let away = away.iter().map(|why| format!("control plane: {}\n", why.escape_debug()));
        let away: String = away.collect();
        if self.is_ready() {
            return text(StatusCode::OK, format!("ready\n{used_up}{away}"));
        }
        let mut missing = String::new();
        if !shares.fits_another_pod {
            missing.push_str("not ready: too few descriptors are left for one more pod\n");
        }
        if !self.enrolled.load(Ordering::Relaxed) {
            missing.push_str("not ready: the node agent has not named all pods\n");
        }
        if !*self.shared.mesh.view_complete.borrow() {
            missing.push_str("not ready: the control plane has not sent the whole view\n");
        }
        missing.push_str(&used_up);
        missing.push_str(&away);
        text(StatusCode::SERVICE_UNAVAILABLE, missing)
    }

    fn metrics(&self, accept: Option<&str>) -> Answer {
        match self.shared.mesh.metrics.encode() {
            Ok(metrics) => {
                let (content_type, text) = exposition::answer(accept, metrics);
                answer(StatusCode::OK, content_type, text.into())
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    fn logging(&self, method: &Method, query: &str) -> Answer {
        if method != Method::POST && !query.is_empty() {
            return text(StatusCode::BAD_REQUEST, "use POST to set the log levels\n");
        }
        if !query.is_empty() {
            let set = match parameter(query, "level") {
                Some(level) => self.levels.set(&level),
                None if query.starts_with("reset") => self.levels.reset(),
                None => return text(StatusCode::BAD_REQUEST, "give ?level=LEVEL or ?reset\n"),
            };
            if let Err(error) = set {
                let reason = format!("{}\n", error_chain(&error));
                return text(StatusCode::BAD_REQUEST, reason);
            }
            info!(levels = self.levels.current(), "an operator set the log levels");
        }
        text(StatusCode::OK, format!("current log level is {}\n", self.levels.current()))
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let content_type = http::HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, TEXT, body.into())
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec_pretty(value) {
        Ok(body) => answer(StatusCode::OK, JSON, body.into()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// A parameter of a query string, decoded.
fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
    let mut decoded = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests;
