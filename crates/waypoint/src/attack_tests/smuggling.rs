//! Requests in requests: whatever two readers could frame or read in two ways is refused, or
//! reaches the server in one way alone. The server of these tests keeps every byte that it is sent.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PROTOCOL_ERROR, RST_STREAM, fields, frame,
    next, preface,
};
use super::world::{HTTP, World, run};

/// What no server may be asked for.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: web\r\n\r\n";

/// What a server was sent, one connection after the other.
type Heard = Rc<RefCell<Vec<u8>>>;

/// A server that frames by Content-Length alone, answers, and keeps what comes.
async fn keep(mut stream: TcpStream, heard: Heard) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
        heard.borrow_mut().extend_from_slice(&bytes[..read]);
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn kept(world: &World) -> Heard {
    let heard = Heard::default();
    let keeps = heard.clone();
    world.serve(HTTP, move |stream| keep(stream, keeps.clone()));
    heard
}

/// A request of HTTP/1.1 and the status it gets; 0 is none but that of the first of two requests.
struct Case {
    name: &'static str,
    request: String,
    status: u16,
    /// What the server is sent instead, if it is sent anything.
    sent: Option<&'static str>,
}

fn refused(name: &'static str, request: impl Into<String>, status: u16) -> Case {
    Case { name, request: request.into(), status, sent: None }
}

fn passes(name: &'static str, request: impl Into<String>, sent: &'static str) -> Case {
    Case { name, request: request.into(), status: 200, sent: Some(sent) }
}

/// A POST with these fields, and this behind its head.
fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: web\r\n{fields}\r\n\r\n{body}")
}

fn cases() -> Vec<Case> {
    let chunked = "Transfer-Encoding: chunked";
    let hidden = format!("0\r\n\r\n{HIDDEN}");
    let sized = format!("Content-Length: {}", hidden.len());
    let get = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n\r\n");
    vec![
        refused("CL.TE", post(&format!("{sized}\r\n{chunked}"), &hidden), 400),
        refused("TE.CL", post(&format!("{chunked}\r\nContent-Length: 4"), &hidden), 400),
        refused("CL twice", post("Content-Length: 0\r\nContent-Length: 40", HIDDEN), 400),
        refused("CL twice, equal", post("Content-Length: 2\r\nContent-Length: 2", "hi"), 400),
        refused("CL list", post("Content-Length: 0, 40", HIDDEN), 400),
        refused("CL sign", post("Content-Length: +2", "hi"), 400),
        refused("CL hexadecimal", post("Content-Length: 0x2", "hi"), 400),
        refused("CL and a space", post("Content-Length : 40", HIDDEN), 400),
        refused("CL overflow", post("Content-Length: 18446744073709551618", "hi"), 400),
        refused("TE twice", post(&format!("{chunked}\r\n{chunked}"), &hidden), 400),
        refused("TE not last", post("Transfer-Encoding: chunked, gzip", &hidden), 400),
        refused("TE identity", post("Transfer-Encoding: identity", HIDDEN), 501),
        refused("TE unknown", post("Transfer-Encoding: xchunked", &hidden), 501),
        refused("TE by a tab", post("Transfer-Encoding:\x0bchunked", &hidden), 400),
        refused("TE and a space", post("Transfer-Encoding : chunked", &hidden), 400),
        refused("TE folded", post("Transfer-Encoding:\r\n chunked", &hidden), 400),
        refused("TE in 1.0", post(chunked, &hidden).replace("1.1", "1.0"), 400),
        refused("TE by bare LF", post(&format!("X: y\n{chunked}"), &hidden), 400),
        refused("TE by bare CR", post(&format!("X: y\r{chunked}"), &hidden), 400),
        refused("TE behind NUL", post(&format!("X: y\0\r\n{chunked}"), &hidden), 400),
        refused("obs-fold", get("GET / HTTP/1.1", "Host: web\r\nX: y\r\n z"), 400),
        refused("bare LF", "GET / HTTP/1.1\nHost: web\n\n", 400),
        refused("no name", get("GET / HTTP/1.1", "Host: web\r\n: x"), 400),
        refused("Host twice", get("GET / HTTP/1.1", "Host: web\r\nHost: other"), 400),
        refused("Host twice, equal", get("GET / HTTP/1.1", "Host: web\r\nHost: web"), 400),
        refused("Host list", get("GET / HTTP/1.1", "Host: web, other"), 400),
        refused("Host with a user", get("GET / HTTP/1.1", "Host: a@web"), 400),
        refused("Host with a path", get("GET / HTTP/1.1", "Host: web/x"), 400),
        refused("no Host", get("GET / HTTP/1.1", "X: y"), 400),
        refused("0.9", "GET /\r\n\r\n", 400),
        refused("absolute, https", get("GET https://web/ HTTP/1.1", "Host: web"), 400),
        refused("absolute, file", get("GET file:///etc HTTP/1.1", "Host: web"), 400),
        refused("absolute, a user", get("GET http://a@web/ HTTP/1.1", "Host: web"), 400),
        refused("a fragment", get("GET /#x HTTP/1.1", "Host: web"), 400),
        refused("a space in the target", get("GET /a b HTTP/1.1", "Host: web"), 400),
        refused("chunk size sign", post(chunked, &format!("+0\r\n\r\n{HIDDEN}")), 400),
        refused("chunk size 0x", post(chunked, &format!("0x0\r\n\r\n{HIDDEN}")), 400),
        refused("chunk size overflow", post(chunked, "10000000000000002\r\nhi\r\n0\r\n\r\n"), 400),
        refused("chunk by bare LF", post(chunked, &format!("2\nhi\r\n{hidden}")), 400),
        refused("a chunk too long", post(chunked, &format!("2\r\nhiho\r\n{hidden}")), 400),
        refused("extension with LF", post(chunked, &format!("2;a\nb\r\nhi\r\n{hidden}")), 400),
        refused("trailer CL", post(chunked, "0\r\nContent-Length: 40\r\n\r\n"), 400),
        refused("trailer TE", post(chunked, "0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400),
        refused("trailer Host", post(chunked, "0\r\nHost: other\r\n\r\n"), 400),
    ]
}

/// What reaches the server in one way.
fn harmless() -> Vec<Case> {
    let chunked = "Transfer-Encoding: chunked";
    let get = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n\r\n");
    vec![
        passes(
            "absolute wins over Host",
            get("GET http://web/a HTTP/1.1", "Host: other\r\nConnection: close"),
            "GET /a HTTP/1.1\r\nHost: web\r\n",
        ),
        passes(
            "extensions are not passed on",
            post(&format!("{chunked}\r\nConnection: close"), "2;x=\"y\"\r\nhi\r\n0;z\r\n\r\n"),
            "\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        ),
        passes(
            "Connection names no length",
            post("Content-Length: 2\r\nConnection: close, content-length", "hi"),
            "Content-Length: 2\r\n",
        ),
        passes(
            "h2c is not asked for",
            get(
                "GET / HTTP/1.1",
                "Host: web\r\nConnection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                 HTTP2-Settings: AAMAAABk",
            ),
            "GET / HTTP/1.1\r\nHost: web\r\n",
        ),
    ]
}

#[test]
fn what_two_readers_could_read_in_two_ways_is_refused() {
    run(&[], async |world| {
        let heard = kept(world);
        let all = || cases().into_iter().chain(harmless());
        for case in all() {
            let Case { name, request, status, sent } = case;
            heard.borrow_mut().clear();
            let answer = world.ask(HTTP, request.as_bytes()).await;
            let expected = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&expected), "{name}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{name}: {answer}");
            let heard = String::from_utf8_lossy(&heard.borrow()).into_owned();
            assert!(!heard.contains("hidden"), "{name}: {heard}");
            match sent {
                Some(sent) => assert!(heard.contains(sent), "{name}: {heard}"),
                // A body that breaks in the middle may have begun.
                None => assert!(heard.matches("HTTP/1.1").count() <= 1, "{name}: {heard}"),
            }
            for gone in ["h2c", "HTTP2-Settings", "x=\"y\""] {
                assert!(!heard.contains(gone), "{name}: {heard}");
            }
        }
        println!("{} requests of HTTP/1.1", all().count());
        world.stays_good().await;
    });
}

/// How a request of HTTP/2 by hand ends: the code of RST_STREAM or GOAWAY, or 0 for an answer.
async fn ends(world: &World, frames: &[u8]) -> u32 {
    let mut client = world.connect(HTTP).await;
    client.write_all(&[&preface(&[]), frames].concat()).await.unwrap();
    let ending = async {
        loop {
            let Some(came) = next(&mut client).await else { return PROTOCOL_ERROR };
            match came.kind {
                RST_STREAM | GOAWAY => return came.code(),
                HEADERS => return 0,
                _ => {}
            }
        }
    };
    timeout(Duration::from_secs(10), ending).await.expect("it ends")
}

#[test]
fn nothing_is_hidden_in_requests_of_http2() {
    run(&[], async |world| {
        let heard = kept(world);
        let good = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "web")];
        let with = |more: &[(&str, &str)]| fields(&[&good, more].concat());
        let but = |name: &str, value: &'static str| {
            let all = good.map(|(it, of)| if it == name { (it, value) } else { (it, of) });
            fields(&all)
        };
        let split = "/ HTTP/1.1\r\nHost: web\r\n\r\nGET /hidden";
        for (name, head) in [
            ("CRLF in a value", with(&[("x", "y\r\nhidden: 1")])),
            ("LF in a value", with(&[("x", "y\nhidden: 1")])),
            ("NUL in a value", with(&[("x", "y\0hidden")])),
            ("CRLF in a name", with(&[("x: y\r\nhidden", "1")])),
            ("a colon in a name", with(&[("x:hidden", "1")])),
            ("a space in a name", with(&[("x hidden", "1")])),
            ("an upper-case name", with(&[("X-Hidden", "1")])),
            ("an empty name", with(&[("", "hidden")])),
            ("CRLF in the path", but(":path", split)),
            ("a space in the path", but(":path", "/ hidden")),
            ("a path without slash", but(":path", "hidden")),
            ("an empty path", but(":path", "")),
            ("CRLF in the method", but(":method", "GET /hidden HTTP/1.1\r\nHost: web\r\n\r\nGET")),
            ("a space in the method", but(":method", "GET /hidden")),
            ("CRLF in the authority", but(":authority", "web\r\nhidden: 1")),
            ("a user in the authority", but(":authority", "hidden@web")),
            ("a path in the authority", but(":authority", "web/hidden")),
            ("CRLF in the scheme", but(":scheme", "http\r\nhidden: 1")),
            ("a method twice", with(&[(":method", "POST")])),
            ("a path twice", with(&[(":path", "/hidden")])),
            ("an authority twice", with(&[(":authority", "hidden")])),
            ("a pseudo-field behind fields", with(&[("x", "y"), (":path", "/hidden")])),
            ("a status", with(&[(":status", "200")])),
            ("an unknown pseudo-field", with(&[(":hidden", "1")])),
            ("no method", fields(&good[1..])),
            ("no path", fields(&[good[0], good[1], good[3]])),
            ("no authority", fields(&good[..3])),
            ("Host is another", with(&[("host", "hidden")])),
            ("Host twice", with(&[("host", "web"), ("host", "web")])),
            ("Connection", with(&[("connection", "hidden")])),
            ("Keep-Alive", with(&[("keep-alive", "hidden")])),
            ("Proxy-Connection", with(&[("proxy-connection", "hidden")])),
            ("Upgrade", with(&[("upgrade", "hidden")])),
            ("TE but trailers", with(&[("te", "gzip")])),
            ("Transfer-Encoding", with(&[("transfer-encoding", "chunked")])),
            ("CL without a body", with(&[("content-length", "40")])),
            ("CL twice", with(&[("content-length", "0"), ("content-length", "40")])),
            ("CL no number", with(&[("content-length", "0x0")])),
        ] {
            heard.borrow_mut().clear();
            let flags = END_STREAM | END_HEADERS;
            let _code = ends(world, &frame(HEADERS, flags, 1, &head)).await;
            sleep(Duration::from_millis(2)).await;
            assert_eq!(String::from_utf8_lossy(&heard.borrow()), "", "{name}");
        }
        world.stays_good().await;
    });
}

#[test]
fn bodies_of_http2_are_as_long_as_they_say() {
    run(&[], async |world| {
        let heard = kept(world);
        // What is not as long as it says, in either direction, is no request.
        let post = |length: &'static str| {
            fields(&[
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/"),
                (":authority", "web"),
                ("content-length", length),
            ])
        };
        for (name, length, body) in [("more than CL", "0", HIDDEN), ("less than CL", "100", "hi")] {
            heard.borrow_mut().clear();
            let head = frame(HEADERS, END_HEADERS, 1, &post(length));
            let frames = [head, frame(DATA, END_STREAM, 1, body.as_bytes())].concat();
            let code = ends(world, &frames).await;
            assert_eq!(code, PROTOCOL_ERROR, "{name}");
            sleep(Duration::from_millis(2)).await;
            let heard = String::from_utf8_lossy(&heard.borrow()).into_owned();
            assert!(!heard.contains("hidden"), "{name}: {heard}");
        }
        // Trailers that do not end the request.
        heard.borrow_mut().clear();
        let head = frame(HEADERS, END_HEADERS, 1, &post("2"));
        let trailers = frame(HEADERS, END_HEADERS, 1, &fields(&[("x-hidden", "1")]));
        assert_eq!(ends(world, &[head, trailers].concat()).await, PROTOCOL_ERROR);
        // As a good one: what looks like a request is a body, and is framed as one.
        heard.borrow_mut().clear();
        let head = frame(
            HEADERS,
            END_HEADERS,
            1,
            &fields(&[
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/"),
                (":authority", "web"),
                ("host", "web"),
            ]),
        );
        let frames = [head, frame(DATA, END_STREAM, 1, HIDDEN.as_bytes())].concat();
        assert_eq!(ends(world, &frames).await, 0);
        let heard = String::from_utf8_lossy(&heard.borrow()).into_owned();
        assert!(heard.starts_with("POST / HTTP/1.1\r\nHost: web\r\n"), "{heard}");
        let chunk = format!("\r\n\r\n{:x}\r\n{HIDDEN}\r\n", HIDDEN.len());
        assert!(heard.contains(&chunk), "{heard}");
        world.stays_good().await;
    });
}
