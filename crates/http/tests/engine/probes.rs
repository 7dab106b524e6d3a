//! Health checks of endpoints: what is asked, and what counts as well.

use ambit_http::engine::position::Version;
use ambit_http::engine::probe::probe;
use ambit_http::h1::parse::Limits;
use ambit_model::http::health::Probe;
use bytes::Bytes;
use http::{HeaderMap, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::{LocalSet, spawn_local};

/// What a check of a server comes to: `ok`, or why not.
fn check(
    asked: &Probe,
    version: Version,
    serve: impl AsyncFnOnce(DuplexStream) + 'static,
    expected: &str,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (near, far) = duplex(64 << 10);
        spawn_local(async move { serve(far).await });
        let answer = probe(Box::new(near), asked, "web.app:80", version, Limits::default()).await;
        let answer = answer.map_or_else(|error| error.to_string(), |()| "ok".to_owned());
        assert_eq!(answer, expected, "{asked:?}");
    });
}

fn http(statuses: Vec<(u16, u16)>) -> Probe {
    Probe::Http { path: "/healthz?full".into(), host: None, statuses }
}

#[test]
fn a_get_is_answered_with_a_status_that_is_expected() {
    for (answer, statuses, expected) in [
        ("HTTP/1.1 200 OK\r\n\r\n", vec![], "ok"),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", vec![], "ok"),
        ("HTTP/1.1 204 No Content\r\n\r\n", vec![], "it has answered 204"),
        ("HTTP/1.1 204 No Content\r\n\r\n", vec![(200, 299)], "ok"),
        ("HTTP/1.1 503 Away\r\n\r\n", vec![(200, 204), (503, 503)], "ok"),
        ("HTTP/1.1 500 Broken\r\n\r\n", vec![(200, 499)], "it has answered 500"),
        ("SSH-2.0-server\r\n", vec![], "it did not answer"),
        ("", vec![], "it did not answer"),
    ] {
        let serve = async move |mut stream: DuplexStream| {
            let mut heard = Vec::new();
            while !heard.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut heard).await.unwrap();
            }
            let heard = String::from_utf8(heard).unwrap();
            let begins = "GET /healthz?full HTTP/1.1\r\nHost: web.app:80\r\n";
            assert!(heard.starts_with(begins), "{heard}");
            assert!(heard.contains("user-agent: ambit-health-check\r\n"), "{heard}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        check(&http(statuses), Version::Http1, serve, expected);
    }
}

/// Serves one request of HTTP/2 with this status, body and trailers.
async fn serve_h2(stream: DuplexStream, status: u16, body: Bytes, grpc: Option<&'static str>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let body = body.clone();
        spawn_local(async move {
            let is_grpc = request.uri().path() == "/grpc.health.v1.Health/Check";
            let mut asked = request.into_body();
            if is_grpc {
                let question = asked.data().await.unwrap().unwrap();
                assert_eq!(&question[..], b"\0\0\0\0\x05\x0a\x03pkg");
            }
            let head = Response::builder().status(status).body(()).unwrap();
            let mut send = respond.send_response(head, false).unwrap();
            send.send_data(body, grpc.is_none()).unwrap();
            if let Some(status) = grpc {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", status.parse().unwrap());
                send.send_trailers(trailers).unwrap();
            }
        });
    }
}

#[test]
fn http2_is_asked_in_its_own_words() {
    for (status, expected) in [(200, "ok"), (503, "it has answered 503")] {
        let serve = async move |stream| serve_h2(stream, status, "well".into(), None).await;
        check(&http(vec![]), Version::Http2, serve, expected);
    }
}

#[test]
fn grpc_says_whether_it_serves() {
    let asked = Probe::Grpc { service: "pkg".into() };
    for (status, message, grpc, expected) in [
        (200, &b"\0\0\0\0\x02\x08\x01"[..], Some("0"), "ok"),
        (200, b"\0\0\0\0\x02\x08\x02", Some("0"), "it says that it does not serve"),
        (200, b"\0\0\0\0\0", Some("0"), "it says that it does not serve"),
        (200, b"", Some("12"), "it has answered with the gRPC status 12"),
        (200, b"\0\0\0\0\x02\x08\x01", None, "it says that it does not serve"),
        (404, b"", None, "it has answered 404"),
    ] {
        let body = Bytes::from_static(message);
        let serve = async move |stream| serve_h2(stream, status, body, grpc).await;
        check(&asked, Version::Http1, serve, expected);
    }
}

#[test]
fn a_connection_is_all_that_tcp_asks_for() {
    check(&Probe::Tcp, Version::Http1, async |_| {}, "ok");
}

#[test]
fn what_is_no_request_is_not_sent() {
    let asked = Probe::Http { path: "no path".into(), host: None, statuses: vec![] };
    check(&asked, Version::Http1, async |_| {}, "the check is no request");
}
