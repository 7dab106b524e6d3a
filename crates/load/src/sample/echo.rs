//! HTTP echo: returns what arrived, or as many bytes as requested, after the requested delay, with
//! the requested status. WebSockets and gRPC streams get their messages back (`streams.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use ambit_net::drain::Guard;
use ambit_words::durations::parse_duration;
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::{Request, Response, StatusCode, header};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::server::{self, Ends};
use super::streams::{self, Answered};

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
    status: StatusCode,
}

/// Serves until it is asked to end.
pub(super) async fn serve(listener: TcpListener, guard: Guard) {
    let own = guard.clone();
    let answer = move |request, ends| {
        let guard = own.clone();
        async move { answer(request, ends, &guard).await }
    };
    server::serve_http(listener, guard, true, answer).await;
}

/// Answers one request. What lasts longer than its answer is a task of the guard.
pub(crate) async fn answer(
    request: Request<Incoming>,
    ends: Ends,
    guard: &Guard,
) -> Response<Answered> {
    if streams::is_websocket(&request) {
        return streams::websocket(request, SIZE_MAX_BYTES, guard);
    }
    if streams::is_grpc(&request) {
        return streams::grpc(request);
    }
    let wish = match wish(request.uri().query().unwrap_or_default()) {
        Ok(wish) => wish,
        Err(text) => {
            let mut response = Response::new(Either::Left(Full::from(text)));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return response;
        }
    };
    // The runtime's clock counts in milliseconds: no delay must not become one of them.
    if !wish.delay.is_zero() {
        sleep(wish.delay).await;
    }
    let (body, kind) = match wish.size {
        Some(size) => (vec![b'.'; size], "text/plain"),
        None if !request.body().is_end_stream() => {
            return Response::new(Either::Right(request.into_body().into()));
        }
        None => (arrived(&request, ends), "application/json"),
    };
    Response::builder()
        .status(wish.status)
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
                let delay = parse_duration(text).ok().filter(|delay| *delay <= DELAY_MAX);
                let error = || format!("delay={text}: write a duration up to 60s, such as 10ms\n");
                wish.delay = delay.ok_or_else(error)?;
            }
            Some(("status", text)) => {
                let status = text.parse().ok().and_then(|it| StatusCode::from_u16(it).ok());
                let error = || format!("status={text}: write a number from 200 to 599\n");
                let is_final = |it: &StatusCode| (200..600).contains(&it.as_u16());
                wish.status = status.filter(is_final).ok_or_else(error)?;
            }
            // Anything else is the client's own and comes back in the answer.
            _ => {}
        }
    }
    Ok(wish)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::LocalSet;

    use super::*;
    use crate::sample::tests::start;

    /// The whole response to a request whose connection ends after it. When the request has been
    /// sent, the server is asked to end.
    async fn exchange(request: &str) -> String {
        let client = async {
            let (address, drain) = start(&["echo"], &[]);
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            let ending = async {
                // The server is at work on it by then.
                sleep(Duration::from_millis(50)).await;
                drain.start(None);
            };
            let (read, ()) = tokio::join!(stream.read_to_string(&mut response), ending);
            read.unwrap();
            drain.finished().await;
            response
        };
        LocalSet::new().run_until(client).await
    }

    #[tokio::test]
    async fn says_what_arrived() {
        let response = exchange("GET /a?b=c HTTP/1.1\r\nHost: h\r\nX-Marker: m\r\n\r\n").await;
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        let arrived: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&arrived["method"], &arrived["uri"]), (&"GET".into(), &"/a?b=c".into()));
        assert_eq!(arrived["headers"]["x-marker"], serde_json::json!(["m"]));
        assert!(arrived["client"].as_str().unwrap().starts_with("127.0.0.1:"));
    }

    #[tokio::test]
    async fn sends_a_body_back() {
        let response =
            exchange("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nping").await;
        assert!(response.ends_with("\r\n\r\nping"), "{response}");
    }

    #[tokio::test]
    async fn finishes_what_it_is_at_when_it_is_asked_to_end() {
        let response = exchange("GET /?size=5&delay=200ms HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(response.ends_with("\r\n\r\n....."), "{response}");
    }

    #[tokio::test]
    async fn a_client_may_begin_with_http2() {
        let asked = async {
            let (address, _drain) = start(&["echo"], &[]);
            let stream = TcpStream::connect(address).await.unwrap();
            let (sender, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::task::spawn_local(async move { connection.await.is_ok() });
            let request = Request::get("http://h/?size=5").body(()).unwrap();
            let mut sender = sender.ready().await.unwrap();
            let response = sender.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().data().await.unwrap().unwrap()
        };
        assert_eq!(&LocalSet::new().run_until(asked).await[..], b".....");
    }

    #[tokio::test]
    async fn wrong_wishes_are_refused() {
        let response = exchange("GET /?delay=soon HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    }

    #[test]
    fn queries_say_how_much_how_late_and_with_which_status() {
        let (size, delay) = (Some(1024), Duration::from_millis(10));
        let expected = Wish { size, delay, status: StatusCode::UNAUTHORIZED };
        assert_eq!(wish("size=1024&delay=10ms&x=y&status=401"), Ok(expected));
        assert_eq!(wish(""), Ok(Wish::default()));
        assert!(wish("size=999999999").unwrap_err().contains("up to 8388608"));
        assert!(wish("status=101").unwrap_err().contains("200 to 599"));
        assert!(wish("delay=soon").unwrap_err().contains("such as 10ms"));
    }
}
