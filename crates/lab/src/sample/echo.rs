//! HTTP echo: says what arrived, or sends as much as it was asked for, as late as it was asked to.

use std::collections::BTreeMap;
use std::time::Duration;

use ambit_net::drain::Guard;
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::{Request, Response, StatusCode, header};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::duration;
use super::server::{self, Ends};

/// Largest answer that can be asked for.
const SIZE_MAX_BYTES: usize = 8 << 20;
/// Longest delay that can be asked for.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// What arrived.
#[derive(Debug, Serialize)]
struct Arrived<'a> {
    method: &'a str,
    uri: String,
    client: String,
    server: String,
    headers: BTreeMap<&'a str, Vec<String>>,
}

/// What the query asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    size: Option<usize>,
    delay: Duration,
}

/// Serves until it is asked to end.
pub(super) async fn serve(listener: TcpListener, guard: Guard) {
    server::serve_http(listener, guard, true, answer).await;
}

async fn answer(request: Request<Incoming>, ends: Ends) -> Response<Either<Full<Bytes>, Incoming>> {
    let wish = match wish(request.uri().query().unwrap_or_default()) {
        Ok(wish) => wish,
        Err(text) => {
            let mut response = Response::new(Either::Left(Full::from(text)));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return response;
        }
    };
    sleep(wish.delay).await;
    let (body, kind) = match wish.size {
        Some(size) => (vec![b'.'; size], "text/plain"),
        None if !request.body().is_end_stream() => {
            return Response::new(Either::Right(request.into_body()));
        }
        None => (arrived(&request, ends), "application/json"),
    };
    Response::builder()
        .header(header::CONTENT_TYPE, kind)
        .body(Either::Left(Full::from(body)))
        .expect("the header is a constant")
}

fn arrived(request: &Request<Incoming>, ends: Ends) -> Vec<u8> {
    let mut headers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, value) in request.headers() {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        headers.entry(name.as_str()).or_default().push(value);
    }
    let arrived = Arrived {
        method: request.method().as_str(),
        uri: request.uri().to_string(),
        client: ends.peer.to_string(),
        server: ends.local.to_string(),
        headers,
    };
    let mut text = serde_json::to_vec_pretty(&arrived).expect("texts can be written as JSON");
    text.push(b'\n');
    text
}

fn wish(query: &str) -> Result<Wish, String> {
    let mut wish = Wish::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("size", text)) => {
                let size = text.parse().ok().filter(|size| *size <= SIZE_MAX_BYTES);
                let error = || format!("size={text}: write a number up to {SIZE_MAX_BYTES}\n");
                wish.size = Some(size.ok_or_else(error)?);
            }
            Some(("delay", text)) => {
                let delay = duration::parse(text).filter(|delay| *delay <= DELAY_MAX);
                let error = || format!("delay={text}: write a duration up to 60s, such as 10ms\n");
                wish.delay = delay.ok_or_else(error)?;
            }
            // Anything else is the client's own and comes back in the answer.
            _ => {}
        }
    }
    Ok(wish)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_say_how_much_and_how_late() {
        let expected = Wish { size: Some(1024), delay: Duration::from_millis(10) };
        assert_eq!(wish("size=1024&delay=10ms&x=y"), Ok(expected));
        assert_eq!(wish(""), Ok(Wish::default()));
        assert!(wish("size=999999999").unwrap_err().contains("up to 8388608"));
        assert!(wish("delay=soon").unwrap_err().contains("such as 10ms"));
    }
}
