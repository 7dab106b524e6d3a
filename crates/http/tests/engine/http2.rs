//! HTTP/2 on either side.

use ambit_http::engine::Speaks;
use ambit_http::engine::position::Version;
use ambit_http::engine::record::Protocol;
use ambit_model::http::matching::{Match, ValueMatch};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use tokio::io::DuplexStream;
use tokio::task::spawn_local;

use crate::world::{Bed, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok";

async fn client(bed: &Bed) -> h2::client::SendRequest<Bytes> {
    let stream = bed.connect(Speaks::Unknown);
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    spawn_local(async move {
        let _ended = connection.await;
    });
    sender.ready().await.unwrap()
}

/// Answers with the request's body and its trailers.
fn echo(stream: DuplexStream) {
    spawn_local(async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            spawn_local(async move {
                let path = request.uri().path().to_owned();
                let mut body = request.into_body();
                let head = Response::builder().header("x-path", path).body(()).unwrap();
                let mut send = respond.send_response(head, false).unwrap();
                while let Some(Ok(data)) = body.data().await {
                    body.flow_control().release_capacity(data.len()).unwrap();
                    send.send_data(data, false).unwrap();
                }
                let trailers = body.trailers().await.unwrap().unwrap_or_default();
                send.send_trailers(trailers).unwrap();
            });
        }
    });
}

async fn text(body: &mut h2::RecvStream) -> String {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        all.extend(data);
    }
    String::from_utf8(all).unwrap()
}

#[test]
fn streams_and_trailers_pass_both_ways() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| echo(stream));
        let mut sender = client(bed).await;
        let request = Request::post("http://web/a/../b").body(()).unwrap();
        let (response, mut send) = sender.send_request(request, false).unwrap();
        send.send_data("first".into(), false).unwrap();
        // The response begins before the request has ended.
        let response = response.await.unwrap();
        assert_eq!(response.headers()["x-path"], "/b");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        send.send_data("second".into(), false).unwrap();
        send.send_trailers(trailers).unwrap();
        let mut body = response.into_body();
        assert_eq!(text(&mut body).await, "firstsecond");
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["x-sum"], "1");
        assert_eq!(bed.last().protocol, Protocol::Http2);
    });
}

#[test]
fn one_connection_to_an_endpoint_carries_many_requests() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| echo(stream));
        let sender = client(bed).await;
        let one = async |number: usize| {
            let mut sender = sender.clone().ready().await.unwrap();
            let request = Request::post("http://web/").body(()).unwrap();
            let (response, mut send) = sender.send_request(request, false).unwrap();
            send.send_data(number.to_string().into(), true).unwrap();
            text(&mut response.await.unwrap().into_body()).await
        };
        let all = futures::future::join_all((0..50).map(one)).await;
        assert_eq!(all, (0..50).map(|it| it.to_string()).collect::<Vec<_>>());
        assert_eq!(bed.world.servers.borrow()["web-1"].1, 1);
    });
}

#[test]
fn versions_are_translated() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        *bed.world.version.borrow_mut() = Some(Version::Http1);
        let mut sender = client(bed).await;
        let mut request = Request::get("http://web/a").body(()).unwrap();
        request.headers_mut().append("cookie", "a=1".parse().unwrap());
        request.headers_mut().append("cookie", "b=2".parse().unwrap());
        let (response, _) = sender.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert!(response.headers().get("connection").is_none());
        assert_eq!(text(&mut response.into_body()).await, "ok");
        let heard = heard.borrow().clone();
        assert!(heard.starts_with("GET /a HTTP/1.1\r\nHost: web\r\n"), "{heard}");
        assert!(heard.contains("cookie: a=1; b=2\r\n"), "{heard}");
        bed.serve("web-1", |stream, _| echo(stream));
        *bed.world.version.borrow_mut() = Some(Version::Http2);
        let answer = bed
            .ask(
                "POST /c HTTP/1.1\r\nHost: web\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
            )
            .await;
        assert!(answer.contains("x-path: /c\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n2\r\nhi\r\n0\r\n\r\n"), "{answer}");
    });
}

#[test]
fn clients_of_grpc_are_told_by_their_own_status() {
    run(async |bed| {
        *bed.world.denies.borrow_mut() = Some(|_| true);
        let mut sender = client(bed).await;
        let request = Request::post("http://web/pkg.Svc/Method")
            .header("content-type", "application/grpc+proto")
            .body(())
            .unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "7");
        assert_eq!(response.headers()["grpc-message"], "RBAC: access denied");
        assert!(response.body().is_end_stream());
        // No more than a client of HTTP: the details are for the log.
        *bed.world.denies.borrow_mut() = None;
        let method = Some(ValueMatch::Exact("PUT".into()));
        bed.route(|rule| rule.matches = vec![Match { method, ..Match::default() }]);
        let request = Request::post("http://web/pkg.Svc/Method")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers()["grpc-message"], "no_route");
    });
}

#[test]
fn what_has_no_body_gets_none_from_http2_either() {
    run(async |bed| {
        bed.serve("web-1", |stream, _| {
            spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    // Its end comes behind it, which is allowed.
                    let head = Response::builder().status(204).body(()).unwrap();
                    let mut send = respond.send_response(head, false).unwrap();
                    send.send_data(Bytes::new(), true).unwrap();
                }
            });
        });
        *bed.world.version.borrow_mut() = Some(Version::Http2);
        let two = "GET / HTTP/1.1\r\nHost: web\r\n\r\n".repeat(2);
        let answer = bed.ask(&two).await;
        assert_eq!(answer, "HTTP/1.1 204 No Content\r\n\r\n".repeat(2));
    });
}
