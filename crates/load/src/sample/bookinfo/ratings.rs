//! The ratings service of bookinfo: two numbers, or a failure if it is asked to be faulty.

use std::cell::Cell;
use std::rc::Rc;

use ambit_net::drain::Guard;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use tokio::net::TcpListener;

use super::{json, not_found, product};
use crate::sample::server;

/// How well it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Every request is answered.
    Good,
    /// Every other request gets 503. The original draws lots; here it can be counted.
    Faulty,
}

impl Health {
    /// Reads `SERVICE_VERSION`, as the original does.
    pub(in crate::sample) fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        match variable("SERVICE_VERSION").as_deref() {
            Some("v-faulty") => Self::Faulty,
            _ => Self::Good,
        }
    }
}

/// Serves until it is asked to end.
pub(in crate::sample) async fn serve(listener: TcpListener, guard: Guard, health: Health) {
    let served = Rc::new(Cell::new(0_u64));
    let answer = move |request: Request<Incoming>, _| {
        let number = served.replace(served.get().wrapping_add(1));
        async move {
            let path = request.uri().path();
            let fails = health == Health::Faulty
                && number.is_multiple_of(2)
                && path.starts_with("/ratings/");
            if fails { unavailable() } else { answer(path) }
        }
    };
    server::serve_http(listener, guard, true, answer).await;
}

fn unavailable() -> Response<Full<Bytes>> {
    json(StatusCode::SERVICE_UNAVAILABLE, r#"{"error":"Service unavailable"}"#)
}

fn answer(path: &str) -> Response<Full<Bytes>> {
    if path == "/health" {
        return json(StatusCode::OK, r#"{"status":"Ratings is healthy"}"#);
    }
    match product(path, "/ratings/") {
        Some(id) => {
            let ratings = format!(r#"{{"id":{id},"ratings":{{"Reviewer1":5,"Reviewer2":4}}}}"#);
            json(StatusCode::OK, ratings)
        }
        None if path.starts_with("/ratings/") => {
            json(StatusCode::BAD_REQUEST, r#"{"error":"please provide numeric product ID"}"#)
        }
        None => not_found(),
    }
}
