//! The ratings service of bookinfo: two numbers.

use ambit_net::drain::Guard;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use tokio::net::TcpListener;

use super::{json, not_found, product};
use crate::sample::server;

/// Serves until it is asked to end.
pub(in crate::sample) async fn serve(listener: TcpListener, guard: Guard) {
    let answer = |request: Request<Incoming>, _| async move { answer(request.uri().path()) };
    server::serve_http(listener, guard, true, answer).await;
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
