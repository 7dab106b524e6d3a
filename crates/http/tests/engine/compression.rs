//! Responses that are compressed on their way: what clients get, and when.

use std::cell::Cell;
use std::io::Read as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::overload::{Bounds, Pressure};
use ambit_http::engine::{Settings, Speaks};
use ambit_model::http::compression::{Coding, Compression, Compressions};
use bytes::Bytes;
use http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::world::{Bed, run, run_with};

/// Whatever has not happened by then does not happen.
const LONG: Duration = Duration::from_secs(20);

fn compress(bed: &Bed, codings: &[Coding]) {
    let compression = Compression { codings: codings.to_vec(), ..Compression::default() };
    let service = Some(Arc::new(compression));
    *bed.world.compression.borrow_mut() = Compressions { service, routes: Vec::new() };
}

fn page() -> String {
    (0..12_000).map(|line| format!("line {line} of a page\n")).collect()
}

/// What a client makes of a whole body.
fn decoded(coding: &str, mut coded: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match coding {
        "gzip" => _ = flate2::read::GzDecoder::new(coded).read_to_end(&mut plain).unwrap(),
        "br" => brotli::BrotliDecompress(&mut coded, &mut plain).unwrap(),
        other => panic!("{other} is no coding"),
    }
    plain
}

/// The first of what a client makes of a body whose end has not come.
fn begun(coding: &str, coded: &[u8]) -> String {
    let mut plain = vec![0; 100];
    let read = match coding {
        "gzip" => flate2::read::GzDecoder::new(coded).read(&mut plain),
        _ => brotli::Decompressor::new(coded, 4096).read(&mut plain),
    };
    plain.truncate(read.unwrap_or(0));
    String::from_utf8(plain).unwrap()
}

fn get(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: web\r\n{lines}\r\n\r\n")
}

/// All that a client of HTTP/1 is answered.
async fn ask_bytes(bed: &Bed, request: &str) -> Vec<u8> {
    let mut client = bed.connect(Speaks::Http);
    client.write_all(request.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    all
}

/// The head in lower case, and the body, of what a client of HTTP/1 is answered.
async fn ask(bed: &Bed, request: &str) -> (String, Vec<u8>) {
    let all = ask_bytes(bed, request).await;
    let end = 4 + all.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
    let is_chunked = head.contains("transfer-encoding: chunked\r\n");
    let body = if is_chunked { joined(&all[end..]) } else { all[end..].to_vec() };
    (head, body)
}

/// What is in chunks, whose end may be missing.
fn joined(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let Some(line) = chunks.windows(2).position(|it| it == b"\r\n") else { return body };
        let size = usize::from_str_radix(std::str::from_utf8(&chunks[..line]).unwrap(), 16);
        let (start, end) = (line + 2, line + 2 + size.unwrap());
        if start == end {
            return body;
        }
        body.extend_from_slice(&chunks[start..end]);
        chunks = &chunks[end + 2..];
    }
}

fn answers(bed: &Bed, lines: &str, body: &str) {
    answers_with_length(bed, lines, body, body.len());
}

fn answers_with_length(bed: &Bed, lines: &str, body: &str, length: usize) {
    let answer = format!("HTTP/1.1 {lines}\r\nContent-Length: {length}\r\n\r\n{body}");
    bed.answers("web-1", answer.leak());
}

async fn h2_client(bed: &Bed) -> h2::client::SendRequest<Bytes> {
    let stream = bed.connect(Speaks::Unknown);
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    spawn_local(async move {
        let _ended = connection.await;
    });
    sender.ready().await.unwrap()
}

async fn piece(body: &mut h2::RecvStream) -> Option<Bytes> {
    let data = body.data().await?.unwrap();
    body.flow_control().release_capacity(data.len()).unwrap();
    Some(data)
}

#[test]
fn a_body_is_read_as_it_was_over_http1() {
    for coding in Coding::ALL {
        run(async |bed| {
            compress(bed, &[coding]);
            answers(bed, "200 OK\r\nContent-Type: text/html\r\nETag: \"a\"", &page());
            let asked = get(&format!("Accept-Encoding: deflate, {}", coding.name()));
            let (head, body) = ask(bed, &asked).await;
            for line in [
                &format!("content-encoding: {}", coding.name()),
                "etag: w/\"a\"",
                "vary: accept-encoding",
                "transfer-encoding: chunked",
            ] {
                assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
            }
            assert!(!head.contains("content-length"), "{head}");
            assert!(decoded(coding.name(), &body) == page().as_bytes(), "{coding:?}");
            assert!(body.len() < page().len() / 4, "{}", body.len());
            // As many bytes as the client was sent.
            assert_eq!((bed.last().sent_bytes, bed.last().status), (body.len() as u64, 200));
        });
    }
}

#[test]
fn a_body_is_read_as_it_was_over_http2() {
    for coding in Coding::ALL {
        run(async |bed| {
            compress(bed, &[coding]);
            bed.serve("web-1", |stream, _| {
                spawn_local(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        let page = Bytes::from(page());
                        let head = Response::builder()
                            .header("content-type", "application/json")
                            .header("content-length", page.len());
                        let mut send = respond.send_response(head.body(()).unwrap(), false);
                        send.as_mut().unwrap().send_data(page, true).unwrap();
                    }
                });
            });
            let mut sender = h2_client(bed).await;
            let request = Request::get("http://web/").header("accept-encoding", coding.name());
            let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.headers()["content-encoding"], coding.name());
            assert_eq!(response.headers()["vary"], "Accept-Encoding");
            assert!(response.headers().get("content-length").is_none());
            let (mut body, mut coded) = (response.into_body(), Vec::new());
            while let Some(data) = piece(&mut body).await {
                coded.extend_from_slice(&data);
            }
            assert!(decoded(coding.name(), &coded) == page().as_bytes(), "{coding:?}");
        });
    }
}

#[test]
fn a_client_of_http1_0_reads_to_the_end_of_the_connection() {
    run(async |bed| {
        compress(bed, &Coding::ALL);
        answers(bed, "404 Not Found\r\nContent-Type: text/plain", &page());
        let asked = "GET / HTTP/1.0\r\nHost: web\r\nAccept-Encoding: gzip\r\n\r\n";
        let (head, body) = ask(bed, asked).await;
        assert!(head.contains("content-encoding: gzip\r\n"), "{head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
        assert!(decoded("gzip", &body) == page().as_bytes());
    });
}

/// An endpoint that sends one event, and the next when it is told to.
fn streams(bed: &Bed) -> Rc<tokio::sync::Notify> {
    let next = Rc::new(tokio::sync::Notify::new());
    let waits = next.clone();
    bed.serve("web-1", move |mut stream, _| {
        let waits = waits.clone();
        spawn_local(async move {
            let _read = stream.read(&mut [0; 4096]).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                        Transfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            for event in ["data: one\n\n", "data: two\n\n"] {
                let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                stream.write_all(chunk.as_bytes()).await.unwrap();
                waits.notified().await;
            }
            stream.write_all(b"0\r\nx-sum: 2\r\n\r\n").await.unwrap();
        });
    });
    next
}

#[test]
fn an_event_does_not_wait_for_the_next_one() {
    for coding in Coding::ALL {
        run(async |bed| {
            compress(bed, &[coding]);
            let next = streams(bed);
            let mut sender = h2_client(bed).await;
            let request = Request::get("http://web/").header("accept-encoding", coding.name());
            *bed.world.version.borrow_mut() = Some(ambit_http::engine::position::Version::Http1);
            let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
            let mut body = response.await.unwrap().into_body();
            let mut coded = Vec::new();
            while begun(coding.name(), &coded) != "data: one\n\n" {
                coded.extend(timeout(LONG, piece(&mut body)).await.unwrap().unwrap());
            }
            next.notify_one();
            next.notify_one();
            sleep(Duration::from_millis(5)).await;
            next.notify_one();
            while let Some(data) = timeout(LONG, piece(&mut body)).await.unwrap() {
                coded.extend(data);
            }
            let trailers = body.trailers().await.unwrap().unwrap();
            assert_eq!(trailers["x-sum"], "2");
            assert_eq!(decoded(coding.name(), &coded), b"data: one\n\ndata: two\n\n");
        });
    }
}

#[test]
fn what_must_not_be_compressed_comes_as_it_is() {
    let html = "Content-Type: text/html\r\n";
    let large = page();
    for (method, status, lines, body) in [
        ("HEAD", "200 OK", "", ""),
        ("GET", "206 Partial Content", "Content-Range: bytes 0-9/20\r\n", &*large),
        ("GET", "200 OK", "Content-Encoding: zstd\r\n", &large),
        ("GET", "200 OK", "Cache-Control: no-transform\r\n", &large),
        ("GET", "200 OK", "", "small"),
        ("GET", "304 Not Modified", "ETag: \"a\"\r\n", ""),
    ] {
        run(async |bed| {
            // What HEAD is told of is large enough.
            let length = if method == "HEAD" { large.len() } else { body.len() };
            answers_with_length(bed, &format!("{status}\r\n{html}{lines}x: y"), body, length);
            let asked = get("Accept-Encoding: gzip, br").replace("GET", method);
            let plain = ask_bytes(bed, &asked).await;
            compress(bed, &Coding::ALL);
            let (text, coded) = (
                String::from_utf8_lossy(&plain).into_owned(),
                String::from_utf8_lossy(&ask_bytes(bed, &asked).await).into_owned(),
            );
            // GET would be answered in another form, and caches are told so.
            let vary = "vary: Accept-Encoding\r\n";
            assert_eq!(coded.contains(vary), method == "HEAD", "{coded}");
            let coded = coded.replace(vary, "");
            assert!(coded == text, "{method} {status} {lines}: {coded}");
        });
    }
    run(async |bed| {
        compress(bed, &Coding::ALL);
        answers(bed, "200 OK\r\nContent-Type: application/grpc+proto", &large);
        let (head, body) = ask(bed, &get("Accept-Encoding: gzip")).await;
        assert!(body == large.as_bytes() && !head.contains("vary"), "{head}");
    });
}

#[test]
fn a_response_that_breaks_off_is_not_ended_in_good_order() {
    run(async |bed| {
        compress(bed, &[Coding::Gzip]);
        bed.serve("web-1", |mut stream, _| {
            spawn_local(async move {
                let _read = stream.read(&mut [0; 4096]).await;
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\
                            Content-Length: 9999\r\n\r\nhalf of a page";
                stream.write_all(head.as_bytes()).await.unwrap();
                sleep(Duration::from_millis(20)).await;
            });
        });
        let all = ask_bytes(bed, &get("Accept-Encoding: gzip")).await;
        assert!(!all.ends_with(b"0\r\n\r\n"));
        let start = 4 + all.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        assert_eq!(begun("gzip", &joined(&all[start..])), "half of a page");
        assert_eq!(bed.last().reason, "closed");
    });
}

#[test]
fn a_client_that_does_not_read_holds_the_endpoint_up() {
    run(async |bed| {
        compress(bed, &Coding::ALL);
        let written = Rc::new(Cell::new(0));
        let says = written.clone();
        bed.serve("web-1", move |mut stream: DuplexStream, _| {
            let says = says.clone();
            spawn_local(async move {
                let _read = stream.read(&mut [0; 4096]).await;
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                // Bytes that cannot be compressed.
                let mut random = 1_u64;
                let mut block = vec![0; 16 << 10];
                while says.get() < 16 << 20 {
                    for byte in &mut block {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        *byte = (random >> 56) as u8;
                    }
                    if stream.write_all(&block).await.is_err() {
                        return;
                    }
                    says.set(says.get() + block.len());
                }
            });
        });
        let mut client = bed.connect(Speaks::Http);
        client.write_all(get("Accept-Encoding: gzip").as_bytes()).await.unwrap();
        let mut before = usize::MAX;
        while before != written.get() {
            before = written.get();
            sleep(Duration::from_millis(100)).await;
        }
        assert!((1..1 << 20).contains(&before), "{before}");
        let mut all = Vec::new();
        client.shutdown().await.unwrap();
        client.read_to_end(&mut all).await.unwrap();
        assert!(all.len() > 16 << 20, "{}", all.len());
    });
}

#[test]
fn without_memory_for_encoders_a_response_is_sent_as_it_is() {
    let held_bytes = Some(1 << 20);
    let pressure = Arc::new(Pressure::new(Bounds { held_bytes, ..Bounds::default() }));
    run_with(Settings { pressure, ..Settings::default() }, async |bed| {
        compress(bed, &Coding::ALL);
        answers(bed, "200 OK\r\nContent-Type: text/html", &page());
        let (head, body) = ask(bed, &get("Accept-Encoding: br")).await;
        assert!(body == page().as_bytes() && head.contains("vary: accept-encoding"), "{head}");
    });
}

#[test]
fn a_client_that_lists_thousands_of_codings_is_answered() {
    let many = |member: &str, times: usize| vec![member; times].join(",");
    for (accepts, expected) in [
        (many("gzip;q=0.5", 5_000), Some("gzip")),
        (format!("{},br", many("a;q=1.1", 5_000)), Some("br")),
        (many("gzip;q=2", 5_000), None),
        (many("*;q=0", 5_000), None),
        (many("", 50_000), None),
        ("gzip;q=0.000000000000000000001".to_owned(), None),
        ("gzip;q=-1, br;q=NaN".to_owned(), None),
    ] {
        run(async |bed| {
            compress(bed, &Coding::ALL);
            answers(bed, "200 OK\r\nContent-Type: text/html", &page());
            let (head, body) = ask(bed, &get(&format!("Accept-Encoding: {accepts}"))).await;
            let body = expected.map_or(body.clone(), |coding| decoded(coding, &body));
            assert!(head.starts_with("http/1.1 200"), "{head}");
            assert_eq!(head.contains("content-encoding"), expected.is_some(), "{head}");
            assert!(body == page().as_bytes());
        });
    }
}

#[test]
fn a_route_reads_what_the_client_has_sent_and_not_what_is_sent_on() {
    run(async |bed| {
        compress(bed, &[Coding::Gzip]);
        answers(bed, "200 OK\r\nContent-Type: text/html", &page());
        bed.route(|rule| rule.request_headers.remove = vec!["accept-encoding".into()]);
        let (head, _) = ask(bed, &get("Accept-Encoding: gzip")).await;
        assert!(head.contains("content-encoding: gzip\r\n"), "{head}");
        bed.world.rules.borrow_mut().clear();
        bed.route(|rule| {
            let set = ("cache-control".into(), "no-transform".into());
            rule.response_headers.set = vec![set];
        });
        let (head, body) = ask(bed, &get("Accept-Encoding: gzip")).await;
        assert!(!head.contains("content-encoding") && body == page().as_bytes(), "{head}");
    });
}
