//! `/readyz`, `/healthz` and `/metrics` of the agent, over HTTP on the readiness address.
//!
//! It reports; it takes no orders and shows nothing of any pod.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::metrics::Metrics;

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 32;
/// How long a client may take to send its request, and to ask again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the readiness address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("listen on the readiness address {address}; choose another with --readiness-address")]
pub(crate) struct MonitorError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// What there is to report.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The pods of this node are known and both sockets are served.
    pub(crate) ready: AtomicBool,
    /// The CNI plugin is in its place, or none is wanted.
    pub(crate) installed: AtomicBool,
    pub(crate) metrics: Metrics,
}

impl Health {
    /// What has to happen before pods can be captured from their start.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        if !self.ready.load(Ordering::Relaxed) {
            return Some("pods are being looked at\n");
        }
        let installed = self.installed.load(Ordering::Relaxed);
        (!installed).then_some("the CNI plugin is not in its place\n")
    }
}

/// Opens the readiness address.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, MonitorError> {
    TcpListener::bind(address).await.map_err(|source| MonitorError { address, source })
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, health: Arc<Health>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let health = health.clone();
                tokio::spawn(async move {
                    serve_connection(stream, health).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept at the readiness address");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, health: Arc<Health>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.uri().path(), &health);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the readiness address broke");
    }
}

fn answer(path: &str, health: &Health) -> Response<Full<Bytes>> {
    let (status, text) = match path {
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match health.missing() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(missing) => (StatusCode::SERVICE_UNAVAILABLE, missing.to_owned()),
        },
        "/metrics" => (StatusCode::OK, health.metrics.render()),
        _ => (StatusCode::NOT_FOUND, "/readyz, /healthz and /metrics are served here\n".to_owned()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_follows_the_flag_and_health_does_not() {
        let health = Health::default();
        assert_eq!(answer("/readyz", &health).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer("/healthz", &health).status(), StatusCode::OK);
        health.ready.store(true, Ordering::Relaxed);
        assert_eq!(answer("/readyz", &health).status(), StatusCode::SERVICE_UNAVAILABLE);
        health.installed.store(true, Ordering::Relaxed);
        assert_eq!(answer("/readyz", &health).status(), StatusCode::OK);
        assert_eq!(answer("/metrics", &health).status(), StatusCode::OK);
        assert_eq!(answer("/", &health).status(), StatusCode::NOT_FOUND);
    }
}
