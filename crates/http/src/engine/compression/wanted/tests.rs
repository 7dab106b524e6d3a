//! Which responses are compressed, and what their heads say then.

use super::*;
use crate::h1::parse::{self, Limits, Parsed, Progress};
use crate::head::Scheme;

const GET: &str = "GET / HTTP/1.1\r\nHost: web\r\nAccept-Encoding: gzip\r\n";
const PAGE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n";
const LARGE: ResponseBody = ResponseBody::Sized(5_000);

fn request(lines: &str) -> RequestHead {
    let text = format!("{lines}\r\n");
    let mut progress = Progress::default();
    let read = parse::request(text.as_bytes(), Scheme::Http, &Limits::default(), &mut progress);
    match read {
        Ok(Parsed::Complete { head, .. }) => head,
        other => panic!("{text:?} is a request: {other:?}"),
    }
}

fn response(lines: &str) -> ResponseHead {
    let text = format!("{lines}\r\n");
    match parse::response(text.as_bytes(), &Limits::default(), &mut Progress::default()) {
        Ok(Parsed::Complete { head, .. }) => head,
        other => panic!("{text:?} is a response: {other:?}"),
    }
}

/// The coding, and the fields of the response in lower case, one a line.
fn decided(
    compression: Compression,
    asked: &str,
    answered: &str,
    body: ResponseBody,
) -> (Option<Coding>, String) {
    let (asked, mut head) = (request(asked), response(answered));
    let wanted = Wanted::of(&Arc::new(compression), &asked);
    let encoder = wanted.decide(&asked.fields, &mut head, body, &Arc::default());
    let line = |name: &[u8], value: &[u8]| {
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        format!("{}: {value}", name.to_lowercase())
    };
    let fields: Vec<String> = head.fields.iter().map(|it| line(it.name, it.value)).collect();
    (encoder.map(|it| it.coding()), fields.join("\n"))
}

/// Whether a response is compressed, and whether it says that it might have been.
fn check(asked: &str, answered: &str, body: ResponseBody, expected: (bool, bool)) {
    let (coding, fields) = decided(Compression::default(), asked, answered, body);
    let found = (coding.is_some(), fields.contains("vary: Accept-Encoding"));
    assert_eq!(found, expected, "{asked:?} {answered:?} {body:?}");
    let is_said = fields.contains("content-encoding: gzip") && !answered.contains("Encoding");
    assert_eq!(is_said, coding.is_some(), "{fields}");
}

#[test]
fn a_response_is_compressed_if_it_may_be_and_its_client_accepts_it() {
    const NO: (bool, bool) = (false, false);
    const PLAIN: (bool, bool) = (false, true);
    const CODED: (bool, bool) = (true, true);
    let with = |line: &str| format!("{PAGE}{line}\r\n");
    let status = |code: u16| PAGE.replace("200", &code.to_string());
    check(GET, PAGE, LARGE, CODED);
    check(GET, PAGE, ResponseBody::Chunked, CODED);
    check(GET, PAGE, ResponseBody::UntilClose, CODED);
    check(GET, PAGE, ResponseBody::Sized(1_024), CODED);
    check(GET, PAGE, ResponseBody::Sized(1_023), NO);
    check(GET, PAGE, ResponseBody::Sized(0), NO);
    check(GET, PAGE, ResponseBody::Absent { length: Some(0) }, NO);
    check(GET, PAGE, ResponseBody::Tunnel, NO);
    for (code, expected) in
        [(201, CODED), (204, NO), (205, NO), (206, NO), (404, CODED), (503, CODED), (304, NO)]
    {
        check(GET, &status(code), LARGE, expected);
    }
    for (line, expected) in [
        ("Content-Encoding: br", NO),
        ("Content-Encoding: identity", NO),
        ("Content-Range: bytes 0-1/2", NO),
        ("Cache-Control: no-transform", NO),
        ("Cache-Control: max-age=5 , No-Transform", NO),
        ("Cache-Control: max-age=5\r\nCache-Control: no-transform", NO),
        ("Cache-Control: no-store, private", CODED),
    ] {
        check(GET, &with(line), LARGE, expected);
    }
    for (content_type, expected) in [
        ("Content-Type: application/json\r\n", CODED),
        ("Content-Type: text/event-stream\r\n", CODED),
        ("Content-Type: image/png\r\n", NO),
        ("Content-Type: application/grpc\r\n", NO),
        ("", NO),
    ] {
        check(GET, &format!("HTTP/1.1 200 OK\r\n{content_type}"), LARGE, expected);
    }
    let asked = |line: &str| GET.replace("Accept-Encoding: gzip", line);
    check(&asked("Accept: */*"), PAGE, LARGE, PLAIN);
    check(&asked("Accept-Encoding: gzip;q=0"), PAGE, LARGE, PLAIN);
    check(&asked("Accept-Encoding: zstd, deflate"), PAGE, LARGE, PLAIN);
    check(&format!("{GET}Cache-Control: no-transform\r\n"), PAGE, LARGE, PLAIN);
    check(&GET.replace("GET", "POST"), PAGE, LARGE, CODED);
    let head = GET.replace("GET", "HEAD");
    check(&head, PAGE, ResponseBody::Absent { length: Some(5_000) }, PLAIN);
    check(&head, PAGE, ResponseBody::Absent { length: None }, PLAIN);
    check(&head, PAGE, ResponseBody::Absent { length: Some(5) }, NO);
}

#[test]
fn the_policy_says_which_codings_types_and_sizes() {
    let asked = &GET.replace("gzip", "gzip, br");
    let change = |change: fn(&mut Compression)| {
        let mut compression = Compression::default();
        change(&mut compression);
        let (coding, fields) = decided(compression, asked, PAGE, LARGE);
        (coding, fields.contains("vary"))
    };
    assert_eq!(change(|_| ()), (Some(Coding::Brotli), true));
    assert_eq!(change(|it| it.codings.reverse()), (Some(Coding::Gzip), true));
    assert_eq!(change(|it| it.codings = vec![Coding::Gzip]), (Some(Coding::Gzip), true));
    assert_eq!(change(|it| it.codings.clear()), (None, false));
    assert_eq!(change(|it| it.min_bytes = 5_001), (None, false));
    assert_eq!(change(|it| it.min_bytes = 0), (Some(Coding::Brotli), true));
    assert_eq!(change(|it| it.content_types = vec!["image/*".into()]), (None, false));
    let any = Compression { content_types: vec!["application/*".into()], ..Compression::default() };
    let grpc = "HTTP/1.1 200 OK\r\nContent-Type: Application/gRPC-web+proto\r\n";
    assert_eq!(decided(any, asked, grpc, ResponseBody::Chunked).0, None);
}

#[test]
fn the_head_is_that_of_the_compressed_form() {
    for (lines, expected) in [
        ("Content-Length: 5000", "content-encoding: gzip\nvary: Accept-Encoding"),
        ("ETag: \"a\"", "etag: W/\"a\"\ncontent-encoding: gzip\nvary: Accept-Encoding"),
        ("ETag: W/\"a\"", "etag: W/\"a\"\ncontent-encoding: gzip\nvary: Accept-Encoding"),
        ("ETag: a", "content-encoding: gzip\nvary: Accept-Encoding"),
        ("ETag: \"", "content-encoding: gzip\nvary: Accept-Encoding"),
        ("Vary: Origin", "vary: Origin\ncontent-encoding: gzip\nvary: Accept-Encoding"),
        ("Vary: Origin, accept-encoding", "vary: Origin, accept-encoding\ncontent-encoding: gzip"),
        ("Vary: *", "vary: *\ncontent-encoding: gzip"),
        (
            "Accept-Ranges: bytes\r\nContent-MD5: a\r\nDigest: sha-256=a\r\n\
             Content-Digest: sha-256=:a:\r\nRepr-Digest: sha-256=:a:",
            "content-encoding: gzip\nvary: Accept-Encoding",
        ),
    ] {
        let answered = format!("{PAGE}{lines}\r\n");
        let (_, fields) = decided(Compression::default(), GET, &answered, LARGE);
        let expected = format!("content-type: text/html; charset=utf-8\n{expected}");
        assert_eq!(fields, expected, "{lines}");
    }
}

#[test]
fn what_stays_plain_keeps_its_tag_and_its_length() {
    let asked = GET.replace("Accept-Encoding: gzip", "Accept: */*");
    let lines = "ETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-Length: 5000\r\n";
    let answered = format!("{PAGE}{lines}");
    let (_, fields) = decided(Compression::default(), &asked, &answered, LARGE);
    let kept = "etag: \"a\"\naccept-ranges: bytes\ncontent-length: 5000\nvary: Accept-Encoding";
    assert!(fields.ends_with(kept), "{fields}");
}

#[test]
fn who_asks_by_a_weak_tag_is_answered_with_it() {
    let unchanged = "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n";
    let weak = "etag: W/\"a\"\nvary: Accept-Encoding";
    for (tags, expected) in [
        ("W/\"a\"", weak),
        ("\"b\", W/\"a\"", weak),
        ("\"a\"", "etag: \"a\""),
        ("W/\"ab\"", "etag: \"a\""),
        ("*", "etag: \"a\""),
    ] {
        let asked = format!("{GET}If-None-Match: {tags}\r\n");
        let body = ResponseBody::Absent { length: None };
        let found = decided(Compression::default(), &asked, unchanged, body);
        assert_eq!(found, (None, expected.to_owned()), "{tags}");
        let found = decided(Compression::none(), &asked, unchanged, body);
        assert_eq!(found.1, "etag: \"a\"");
    }
}

#[test]
fn without_memory_or_room_in_the_head_a_response_is_sent_as_it_is() {
    let wanted = Wanted::of(&Arc::default(), &request(GET));
    let mut head = response(PAGE);
    let none = Arc::new(Room::new(Some(0)));
    assert!(wanted.decide(&Fields::default(), &mut head, LARGE, &none).is_none());
    assert!(head.fields.first(Known::ContentEncoding).is_none());
    assert!(head.fields.first(Known::Vary).is_some());
    let full = format!("{PAGE}{}", "A: b\r\n".repeat(98));
    let (coding, fields) = decided(Compression::default(), GET, &full, LARGE);
    assert_eq!(coding, None);
    assert!(!fields.contains("encoding"), "{fields}");
}
