//! `/readyz`, `/healthz` and `/metrics` of the agent, over HTTP on the readiness address.
//!
//! It only reports: it takes no orders and shows nothing about any pod.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ambit_net::accept::Listener;
use ambit_net::http_port::{self, PUBLIC};
use ambit_words::exposition::METRICS_PATH;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// Why the readiness address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("listen on the readiness address {address}; choose another with --readiness-address")]
pub(crate) struct MonitorError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// The state that the agent reports.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The pods of this node are known and both sockets are served.
    pub(crate) ready: AtomicBool,
    /// The CNI plugin is in its place, or none is wanted.
    pub(crate) installed: AtomicBool,
    /// Pods on a bridge can pass for the node, which STRICT must not let happen.
    pub(crate) forgeable: AtomicBool,
    pub(crate) metrics: Metrics,
}

impl Health {
    /// What has to happen before pods can be captured from their start.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        if !self.ready.load(Ordering::Relaxed) {
            return Some("the agent is still inspecting its pods\n");
        }
        if self.forgeable.load(Ordering::Relaxed) {
            return Some(
                "pods on a bridge can pass for the node: the kernel has nftables neither for \
                 bridges (CONFIG_NF_TABLES_BRIDGE) nor for devices (CONFIG_NF_TABLES_NETDEV)\n",
            );
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
    let answer =
        move |request: Request<Incoming>| std::future::ready(answer(request.uri().path(), &health));
    let spawn = |connection| drop(tokio::spawn(connection));
    http_port::serve(Listener::Tcp(listener), PUBLIC.named("readiness"), answer, spawn).await;
}

fn answer(path: &str, health: &Health) -> Response<Full<Bytes>> {
    let (status, text) = match path {
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match health.missing() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(missing) => (StatusCode::SERVICE_UNAVAILABLE, missing.to_owned()),
        },
        METRICS_PATH => (StatusCode::OK, health.metrics.render()),
        _ => (StatusCode::NOT_FOUND, "/readyz, /healthz and /metrics are served here\n".to_owned()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[tokio::test]
    async fn who_says_nothing_keeps_no_probe_out() {
        let listener = listen(([127, 0, 0, 1], 0).into()).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(serve(listener, Arc::default()));
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(tokio::net::TcpStream::connect(address).await.expect("connected"));
        }
        let started = Instant::now();
        let patience = Duration::from_secs(1);
        let asked = ambit_net::local_http::get(address, "/healthz", patience).await;
        assert_eq!(asked.expect("answered").0, StatusCode::OK, "{:?}", started.elapsed());
    }

    #[test]
    fn readiness_follows_the_flag_and_health_does_not() {
        let health = Health::default();
        assert_eq!(answer("/readyz", &health).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer("/healthz", &health).status(), StatusCode::OK);
        health.ready.store(true, Ordering::Relaxed);
        assert_eq!(answer("/readyz", &health).status(), StatusCode::SERVICE_UNAVAILABLE);
        health.installed.store(true, Ordering::Relaxed);
        assert_eq!(answer("/readyz", &health).status(), StatusCode::OK);
        health.forgeable.store(true, Ordering::Relaxed);
        let answered = answer("/readyz", &health);
        assert_eq!(answered.status(), StatusCode::SERVICE_UNAVAILABLE, "probes can be forged");
        health.forgeable.store(false, Ordering::Relaxed);
        assert_eq!(answer("/metrics", &health).status(), StatusCode::OK);
        assert_eq!(answer("/", &health).status(), StatusCode::NOT_FOUND);
    }
}
