//! Bodies, connections and what is refused, head by head.

use super::*;
use crate::h1::parse::{self, Limits, Parsed, Progress};
use crate::head::Scheme;

fn read_request(line: &str, fields: &str) -> RequestHead {
    let text = format!("{line}\r\nHost: h\r\n{fields}\r\n");
    let (limits, mut progress) = (Limits::default(), Progress::default());
    match parse::request(text.as_bytes(), Scheme::Http, &limits, &mut progress) {
        Ok(Parsed::Complete { head, .. }) => head,
        other => panic!("{text}: {other:?}"),
    }
}

fn read_response(line: &str, fields: &str) -> ResponseHead {
    let text = format!("{line}\r\n{fields}\r\n");
    match parse::response(text.as_bytes(), &Limits::default(), &mut Progress::default()) {
        Ok(Parsed::Complete { head, .. }) => head,
        other => panic!("{text}: {other:?}"),
    }
}

fn check(line: &str, fields: &str, expected: Result<RequestBody, Refused>) {
    let mut head = read_request(line, fields);
    let framing = request(&mut head).map(|framing| framing.body);
    assert_eq!(framing, expected, "{line} {fields}");
}

#[test]
fn bodies_of_requests() {
    let post = "POST / HTTP/1.1";
    check(post, "", Ok(RequestBody::Absent));
    check(post, "Content-Length: 0\r\n", Ok(RequestBody::Sized(0)));
    check(post, "content-length:  5 \r\n", Ok(RequestBody::Sized(5)));
    check(post, "Content-Length: 007\r\n", Ok(RequestBody::Sized(7)));
    check("GET / HTTP/1.1", "Content-Length: 5\r\n", Ok(RequestBody::Sized(5)));
    check("POST / HTTP/1.0", "Content-Length: 5\r\n", Ok(RequestBody::Sized(5)));
    check(post, "Transfer-Encoding: chunked\r\n", Ok(RequestBody::Chunked));
    check(post, "TRANSFER-ENCODING: CHUNKED\r\n", Ok(RequestBody::Chunked));
    let longest = format!("Content-Length: {LONGEST_BODY}\r\n");
    check(post, &longest, Ok(RequestBody::Sized(LONGEST_BODY)));
}

#[test]
fn lengths_that_are_none() {
    for value in [
        "",
        "+5",
        "-5",
        "5, 5",
        "5,5",
        "5 5",
        "0x5",
        "5;",
        "5.0",
        "five",
        "\u{0665}",
        "1e3",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999999",
    ] {
        let fields = format!("Content-Length: {value}\r\n");
        check("POST / HTTP/1.1", &fields, Err(Refused::ContentLength));
    }
    let twice = "Content-Length: 5\r\nContent-Length: ";
    check("POST / HTTP/1.1", &format!("{twice}5\r\n"), Err(Refused::ContentLength));
    check("POST / HTTP/1.1", &format!("{twice}6\r\n"), Err(Refused::ContentLength));
}

#[test]
fn codings_that_are_none() {
    let coding = |value: &str, why| {
        check("POST / HTTP/1.1", &format!("Transfer-Encoding: {value}\r\n"), Err(why));
    };
    coding("xchunked", Refused::TransferCoding);
    coding("identity", Refused::TransferCoding);
    coding("gzip", Refused::TransferCoding);
    coding("gzip, chunked", Refused::TransferCoding);
    coding("chunked;a=b", Refused::TransferCoding);
    coding("chunked;", Refused::TransferCoding);
    coding("\"chunked\"", Refused::TransferCoding);
    coding("chunked,", Refused::TransferCoding);
    coding("chunked, identity", Refused::ChunkedNotLast);
    coding("chunked, chunked", Refused::ChunkedNotLast);
    coding("chunked, gzip", Refused::ChunkedNotLast);
    coding("", Refused::ChunkedNotLast);
    coding(",", Refused::ChunkedNotLast);
    let twice = "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n";
    check("POST / HTTP/1.1", twice, Err(Refused::ChunkedNotLast));
    let both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    check("POST / HTTP/1.1", both, Err(Refused::LengthAndCoding));
    check("POST / HTTP/1.0", both, Err(Refused::LengthAndCoding));
    let named = "Connection: content-length\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    check("POST / HTTP/1.1", named, Err(Refused::LengthAndCoding));
    check("POST / HTTP/1.0", "Transfer-Encoding: chunked\r\n", Err(Refused::CodingInHttp10));
    check("CONNECT h:1 HTTP/1.1", "Transfer-Encoding: chunked\r\n", Err(Refused::TransferCoding));
    check("CONNECT h:1 HTTP/1.1", "Content-Length: 5\r\n", Err(Refused::ContentLength));
}

#[test]
fn whether_the_client_stays() {
    let check = |version: &str, fields: &str, expected: bool| {
        let mut head = read_request(&format!("GET / HTTP/{version}"), fields);
        let framing = request(&mut head).expect("a body or none");
        assert_eq!(framing.is_persistent, expected, "{version} {fields}");
        assert!(head.fields.len() == 0, "{fields}");
    };
    check("1.1", "", true);
    check("1.1", "Connection: close\r\n", false);
    check("1.1", "Connection: keep-alive\r\nConnection: Close\r\n", false);
    check("1.1", "Connection: closed\r\n", true);
    check("1.0", "", false);
    check("1.0", "Connection: Keep-Alive\r\n", true);
    check("1.0", "Connection: keep-alive, close\r\n", false);
    check("1.0", "Proxy-Connection: keep-alive\r\n", false);
}

#[test]
fn whether_the_client_waits_or_switches() {
    let check = |line: &str, fields: &str, waits: bool, protocol: Option<&str>| {
        let mut head = read_request(line, fields);
        let framing = request(&mut head).expect("a body or none");
        let upgrade = framing.upgrade.map(Protocol::as_bytes);
        let got = (framing.expects_continue, upgrade);
        assert_eq!(got, (waits, protocol.map(str::as_bytes)), "{line} {fields}");
        // What is sent is what policies see.
        assert_eq!(head.values("upgrade").next(), upgrade, "{line} {fields}");
    };
    let (new, old) = ("POST / HTTP/1.1", "POST / HTTP/1.0");
    check(new, "Expect: 100-Continue\r\nContent-Length: 5\r\n", true, None);
    check(new, "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", true, None);
    check(new, "Expect: 100-continue\r\n", false, None);
    check(old, "Expect: 100-continue\r\nContent-Length: 5\r\n", false, None);
    let websocket = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    check(new, websocket, false, Some("websocket"));
    check(new, &format!("{websocket}Content-Length: 0\r\n"), false, Some("websocket"));
    check(new, &format!("{websocket}Content-Length: 1\r\n"), false, None);
    check(old, websocket, false, None);
    check("CONNECT h:1 HTTP/1.1", websocket, false, None);
}

fn check_response(line: &str, fields: &str, asked: Asked, body: ResponseBody, persistent: bool) {
    let mut head = read_response(line, fields);
    let framing = response(&mut head, asked).expect("a response");
    assert_eq!((framing.body, framing.is_persistent), (body, persistent), "{line} {fields}");
}

#[test]
fn bodies_of_responses() {
    use Asked::{Connect, Head, Other};
    use ResponseBody::{Absent, Chunked, Sized, Tunnel, UntilClose};
    let (ok, length) = ("HTTP/1.1 200 OK", "Content-Length: 5\r\n");
    let web = Asked::Upgrade(Protocol::WebSocket);
    let (chunked, none) = ("Transfer-Encoding: chunked\r\n", Absent { length: None });
    check_response(ok, length, Other, Sized(5), true);
    check_response(ok, chunked, Other, Chunked, true);
    check_response(ok, "", Other, UntilClose, false);
    check_response(ok, "Connection: close\r\nContent-Length: 5\r\n", Other, Sized(5), false);
    check_response("HTTP/1.0 200 OK", length, Other, Sized(5), false);
    check_response(ok, length, Head, Absent { length: Some(5) }, true);
    check_response(ok, chunked, Head, none, true);
    check_response(ok, "", Head, none, true);
    check_response("HTTP/1.1 304 Not Modified", length, Other, Absent { length: Some(5) }, true);
    check_response("HTTP/1.1 204 No Content", "", Other, none, true);
    check_response("HTTP/1.1 204 No Content", "Content-Length: 0\r\n", Other, none, true);
    check_response("HTTP/1.1 204 No Content", length, Other, none, false);
    check_response("HTTP/1.1 204 No Content", chunked, Other, none, false);
    check_response("HTTP/1.1 100 Continue", "", Other, none, true);
    check_response("HTTP/1.1 103 Early Hints", "Content-Length: 0\r\n", Other, none, true);
    check_response(ok, length, Connect, Tunnel, false);
    check_response(ok, chunked, Connect, Tunnel, false);
    check_response("HTTP/1.1 403 Forbidden", length, Connect, Sized(5), true);
    check_response(ok, length, web, Sized(5), true);
    let switch = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    check_response("HTTP/1.1 101 Switching Protocols", switch, web, Tunnel, false);
}

#[test]
fn responses_that_are_refused() {
    let check = |line: &str, fields: &str, why: Refused| {
        let mut head = read_response(line, fields);
        assert_eq!(response(&mut head, Asked::Other), Err(why), "{line} {fields}");
    };
    let (ok, switch) = ("HTTP/1.1 200 OK", "Connection: upgrade\r\nUpgrade: websocket\r\n");
    let (length, chunked) = ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n");
    check(ok, &format!("{length}{chunked}"), Refused::LengthAndCoding);
    check(ok, &format!("{length}{length}"), Refused::ContentLength);
    check(ok, "Transfer-Encoding: gzip\r\n", Refused::TransferCoding);
    check("HTTP/1.0 200 OK", chunked, Refused::CodingInHttp10);
    check("HTTP/1.1 101 Switching Protocols", switch, Refused::Upgrade);
    check("HTTP/1.1 103 Early Hints", length, Refused::ContentLength);
    check("HTTP/1.1 100 Continue", chunked, Refused::TransferCoding);
    // Only to what was asked for.
    for upgrade in ["", "Upgrade: TLS/1.0\r\n", "Upgrade: h2c\r\n", "Upgrade: websocket, a\r\n"] {
        let fields = format!("Connection: upgrade\r\n{upgrade}");
        let mut head = read_response("HTTP/1.1 101 Switching Protocols", &fields);
        let asked = Asked::Upgrade(Protocol::WebSocket);
        assert_eq!(response(&mut head, asked), Err(Refused::Upgrade), "{fields}");
    }
}
