//! What is written, and that it is read again as what it was.

use proptest::prelude::*;

use super::*;
use crate::authority::Authority;
use crate::fields::FieldLimits;
use crate::h1::framing::{self, Asked};
use crate::h1::parse::{self, Limits, Parsed, Progress};
use crate::head::{Method, Reason, Scheme, Status};
use crate::path::Path;

fn read_request(bytes: &[u8]) -> RequestHead {
    let (limits, mut progress) = (Limits::default(), Progress::default());
    match parse::request(bytes, Scheme::Http, &limits, &mut progress) {
        Ok(Parsed::Complete { head, used }) if used == bytes.len() => head,
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

fn read_response(bytes: &[u8]) -> ResponseHead {
    match parse::response(bytes, &Limits::default(), &mut Progress::default()) {
        Ok(Parsed::Complete { head, used }) if used == bytes.len() => head,
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

/// What a request becomes on its way through: lines joined by `|`, the last, empty ones left out.
fn check(request: &str, expected: &str) {
    let mut head = read_request(format!("{}||", request).replace('|', "\r\n").as_bytes());
    let framing = framing::request(&mut head).expect("a request");
    let mut out = Vec::new();
    super::request(&head, framing.body, framing.upgrade, false, &mut out);
    let text = String::from_utf8_lossy(&out).replace("\r\n", "|");
    assert_eq!(text, format!("{expected}||"));
}

#[test]
fn requests() {
    check("GET /a?b HTTP/1.1|x-A: 1|host: h|X-a: 2", "GET /a?b HTTP/1.1|Host: h|x-A: 1|X-a: 2");
    check("GET / HTTP/1.0|Host: h", "GET / HTTP/1.1|Host: h");
    check("GET http://h/a HTTP/1.0", "GET /a HTTP/1.1|Host: h");
    check("GET http://h/a?b HTTP/1.1|Host: other", "GET /a?b HTTP/1.1|Host: h");
    check("OPTIONS http://h HTTP/1.1|Host: other", "OPTIONS * HTTP/1.1|Host: h");
    check("CONNECT h:1 HTTP/1.1|Host: other", "CONNECT h:1 HTTP/1.1|Host: h:1");
    check("OPTIONS * HTTP/1.1|Host: h", "OPTIONS * HTTP/1.1|Host: h");
    let start = "POST / HTTP/1.1|Host: h";
    check(&format!("{start}|content-length: 007|a: b"), &format!("{start}|a: b|Content-Length: 7"));
    check(
        &format!("{start}|transfer-encoding: CHUNKED|Connection: a, close|a: b"),
        &format!("{start}|Transfer-Encoding: chunked"),
    );
    check(
        &format!("{start}|TE: trailers|Connection: te"),
        &format!("{start}|TE: trailers|Connection: te"),
    );
    check(
        &format!("{start}|Upgrade: websocket|Connection: keep-alive, Upgrade"),
        &format!("{start}|Connection: upgrade|Upgrade: websocket"),
    );
    for protocol in ["h2c/1", "TLS/1.0", "HTTP/2.0"] {
        check(&format!("{start}|Upgrade: {protocol}|Connection: upgrade"), start);
    }
}

#[test]
fn what_a_filter_adds_does_not_frame_the_message() {
    let mut head = read_request(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    for name in ["Host", "content-length", "Transfer-Encoding", "Connection", "Upgrade", "x"] {
        head.fields.append(name, b"1").expect("a field");
    }
    let mut out = Vec::new();
    request(&head, RequestBody::Absent, None, true, &mut out);
    assert_eq!(out, b"GET / HTTP/1.1\r\nHost: h\r\nx: 1\r\nConnection: close\r\n\r\n");
}

/// What a client gets of a response: the lines behind the status, and how the body is sent.
fn check_response(
    response: &str,
    asked: Asked,
    client: Client,
    expected: &str,
    body: ResponseBody,
    is_persistent: bool,
) {
    let mut head = read_response(format!("HTTP/1.1 {response}||").replace('|', "\r\n").as_bytes());
    let framing = framing::response(&mut head, asked).expect("a response");
    let mut out = Vec::new();
    let written = super::response(&head, framing.body, framing.upgrade, client, &mut out);
    let text = String::from_utf8_lossy(&out).replace("\r\n", "|");
    assert_eq!(text, format!("HTTP/1.1 {expected}||"));
    assert_eq!(written, Written { body, is_persistent }, "{response}");
}

#[test]
fn responses() {
    use ResponseBody::{Absent, Chunked, Sized, Tunnel, UntilClose};
    let new = Client { version: Version::Http11, is_persistent: true };
    let old = Client { version: Version::Http10, is_persistent: true };
    let (last, closing) = (
        Client { is_persistent: false, ..new },
        Client { version: Version::Http10, is_persistent: false },
    );
    let other = Asked::Other;
    let sized = "200 OK|A: b|Content-Length: 5";
    check_response(sized, other, new, sized, Sized(5), true);
    check_response(sized, other, last, &format!("{sized}|Connection: close"), Sized(5), false);
    check_response(sized, other, old, &format!("{sized}|Connection: keep-alive"), Sized(5), true);
    check_response(sized, other, closing, &format!("{sized}|Connection: close"), Sized(5), false);
    let chunked = "200 OK|Transfer-Encoding: chunked";
    check_response(chunked, other, new, chunked, Chunked, true);
    check_response(chunked, other, old, "200 OK|Connection: close", UntilClose, false);
    check_response("200 ", other, new, "200 |Transfer-Encoding: chunked", Chunked, true);
    check_response("200 OK", other, old, "200 OK|Connection: close", UntilClose, false);
    check_response(sized, Asked::Head, new, sized, Absent { length: Some(5) }, true);
    check_response("204 None", other, new, "204 None", Absent { length: None }, true);
    check_response(
        "103 Early Hints|Link: x",
        other,
        last,
        "103 Early Hints|Link: x",
        Absent { length: None },
        false,
    );
    check_response(sized, Asked::Connect, new, "200 OK|A: b", Tunnel, false);
    let switch = "101 Switching Protocols|Connection: upgrade|Upgrade: websocket";
    check_response(switch, Asked::Upgrade(Protocol::WebSocket), new, switch, Tunnel, false);
}

fn any_fields() -> impl Strategy<Value = Fields> {
    let value = "([!-~\u{80}-\u{ff}]([ -~\t\u{e9}]{0,12}[!-~])?)?";
    proptest::collection::vec(("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}", value), 0..12).prop_map(
        |lines| {
            let mut fields = Fields::new(FieldLimits::default());
            for (name, value) in lines {
                fields.append(&*name, value.as_bytes()).expect("a field");
            }
            // Some of these are made by the writer.
            fields.retain(|field| field.known.is_none());
            fields
        },
    )
}

fn any_authority() -> impl Strategy<Value = Authority> {
    "([a-zA-Z0-9._-]{1,20}|\\[fd00::[0-9a-f]{1,4}\\])(:[1-9][0-9]{0,3})?"
        .prop_map(|text| Authority::parse(text.as_bytes()).expect("an authority"))
}

fn any_path() -> impl Strategy<Value = Path> {
    "/[!$-;=?-_a-z|~]{0,30}".prop_map(|text| Path::parse(text.as_bytes()).expect("a path"))
}

fn any_request() -> impl Strategy<Value = RequestHead> {
    let method = "[A-Z]{1,8}|[a-z]{3}|GET|POST";
    (method, any_authority(), any_path(), any_fields(), 0..3_u8).prop_map(
        |(method, authority, path, fields, form)| {
            let to = Authority::parse(format!("{}:80", authority.host()).as_bytes());
            let (method, target) = match form {
                0 => ("CONNECT", Target::Authority(to.expect("an authority"))),
                1 => ("OPTIONS", Target::Asterisk { host: authority }),
                _ => (&*method, Target::Origin { path, host: authority }),
            };
            let method = Method::parse(method).expect("a method");
            RequestHead::new(method, target, Version::Http11, fields).expect("a head")
        },
    )
}

proptest! {
    #[test]
    fn a_written_request_is_read_as_it_was(head in any_request()) {
        let mut out = Vec::new();
        request(&head, RequestBody::Absent, None, false, &mut out);
        prop_assert_eq!(read_request(&out), head);
    }

    #[test]
    fn a_written_response_is_read_as_it_was(
        code in 200_u16..=999,
        reason in "([!-~][ -~\u{e9}]{0,20})?",
        fields in any_fields(),
    ) {
        let status = Status::new(code).expect("a status");
        let reason = Reason::new(reason.as_bytes()).expect("a reason");
        let head = ResponseHead { status, reason, version: Version::Http11, fields };
        let client = Client { version: Version::Http11, is_persistent: true };
        let mut out = Vec::new();
        response(&head, ResponseBody::Absent { length: None }, None, client, &mut out);
        prop_assert_eq!(read_response(&out), head);
    }
}
