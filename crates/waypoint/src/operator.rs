//! Readiness and metrics.

use std::sync::Arc;

use ambit_net::accept::Listener;
use ambit_net::http_port::{self, PUBLIC};
use ambit_net::socket::{ListenOptions, tcp_listener};
use ambit_words::exposition::{self, METRICS_PATH};
use anyhow::Context as _;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::net::TcpListener;

use crate::shared::Shared;

type Answer = Response<Full<Bytes>>;

/// Serves both ports from now on.
pub(crate) async fn start(shared: &Arc<Shared>) -> anyhow::Result<()> {
    for (name, address) in
        [("metrics", shared.config.metrics), ("readiness", shared.config.readiness)]
    {
        let options = ListenOptions { v6only: false, ..ListenOptions::default() };
        let listener = tcp_listener(address, &options)
            .and_then(TcpListener::from_std)
            .with_context(|| format!("listen at {address} for {name}"))?;
        let shared = shared.clone();
        let answer = move |request: Request<Incoming>| {
            let accept = request.headers().get(ACCEPT).and_then(|it| it.to_str().ok());
            let answer = shared.answer(request.uri().path(), accept);
            async move { answer }
        };
        let spawn = |connection| drop(tokio::spawn(connection));
        let limits = PUBLIC.named(name);
        let serving = http_port::serve(Listener::Tcp(listener), limits, answer, spawn);
        tokio::spawn(serving);
    }
    Ok(())
}

impl Shared {
    fn answer(&self, path: &str, accept: Option<&str>) -> Answer {
        match path {
            METRICS_PATH | "/stats/prometheus" => match self.mesh.metrics.encode() {
                Ok(metrics) => {
                    let (content_type, text) = exposition::answer(accept, metrics);
                    answer(StatusCode::OK, content_type, text)
                }
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            },
            "/healthz/ready" => self.readiness(),
            _ => text(StatusCode::NOT_FOUND, "no such page\n".to_owned()),
        }
    }

    fn readiness(&self) -> Answer {
        let mut missing = String::new();
        if *self.stopping.borrow() {
            missing.push_str("not ready: it is told to end\n");
        }
        if !*self.mesh.view_complete.borrow() {
            missing.push_str("not ready: the control plane has not sent the whole view\n");
        }
        if self.mesh.certificates.cached(&self.own.identity).is_none() {
            missing.push_str("not ready: there is no certificate yet\n");
        }
        let view = self.mesh.view.load();
        for route in view.unreadable_routes(&self.config.own_service()) {
            let route = route.escape_debug();
            missing.push_str(&format!("not ready: the route {route} cannot be read\n"));
        }
        let away = self.mesh.control_plane_away.load();
        // Words of a peer are among it.
        let away = away.iter().map(|why| format!("control plane: {}\n", why.escape_debug()));
        let away: String = away.collect();
        if missing.is_empty() {
            return text(StatusCode::OK, format!("ready\n{away}"));
        }
        text(StatusCode::SERVICE_UNAVAILABLE, missing + &away)
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

fn text(status: StatusCode, body: String) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}
