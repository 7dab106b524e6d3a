//! What is read, what is refused, and that it does not matter how the bytes come.

use super::*;

fn small() -> Limits {
    let fields = FieldLimits { number: 5, ..FieldLimits::default() };
    Limits { line_bytes: 64, head_bytes: 256, fields }
}

fn parse_request(bytes: &[u8], progress: &mut Progress) -> Result<Parsed<RequestHead>, Refused> {
    request(bytes, Scheme::Http, &small(), progress)
}

fn parse_in_tls(bytes: &[u8], progress: &mut Progress) -> Result<Parsed<RequestHead>, Refused> {
    request(bytes, Scheme::Https, &small(), progress)
}

fn parse_response(bytes: &[u8], progress: &mut Progress) -> Result<Parsed<ResponseHead>, Refused> {
    response(bytes, &small(), progress)
}

/// Reads at once, in two parts and byte by byte; the results must be the same.
fn in_all_ways<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    parse: impl Fn(&[u8], &mut Progress) -> Result<Parsed<T>, Refused>,
) -> Result<Parsed<T>, Refused> {
    let whole = parse(bytes, &mut Progress::default());
    for cut in 0..bytes.len() {
        let mut progress = Progress::default();
        let first = parse(&bytes[..cut], &mut progress);
        let result = match first {
            Ok(Parsed::Partial) => parse(bytes, &mut progress),
            other => other,
        };
        assert_eq!(result, whole, "cut at {cut}: {}", bytes.escape_ascii());
    }
    let mut progress = Progress::default();
    let mut steps = (0..=bytes.len()).map(|end| parse(&bytes[..end], &mut progress));
    let stepwise = steps.find(|step| *step != Ok(Parsed::Partial));
    assert_eq!(stepwise.unwrap_or(Ok(Parsed::Partial)), whole, "{}", bytes.escape_ascii());
    whole
}

fn shown(fields: &Fields) -> String {
    let lines = fields.iter().map(|it| {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        format!(" {}={}", text(it.name), text(it.value))
    });
    lines.collect()
}

/// `method form authority path version fields`, a body behind the head left alone.
fn check(text: &str, expected: Result<&str, Refused>) {
    check_bytes(text.as_bytes(), expected);
}

fn check_bytes(bytes: &[u8], expected: Result<&str, Refused>) {
    let result = in_all_ways(bytes, parse_request).map(|parsed| match parsed {
        Parsed::Partial => "partial".to_owned(),
        Parsed::Complete { head, used } => {
            assert!(bytes[..used].ends_with(b"\r\n\r\n"));
            let form = match head.target() {
                Target::Origin { .. } => "origin",
                Target::Authority(_) => "authority",
                Target::Asterisk { .. } => "asterisk",
            };
            let authority = head.authority().as_str();
            let path = head.path().map_or("-", Path::as_str);
            let version = if head.version() == Version::Http10 { "1.0" } else { "1.1" };
            let (method, fields) = (head.method().as_str(), shown(&head.fields));
            format!("{method} {form} {authority} {path} {version}{fields}")
        }
    });
    assert_eq!(result.as_deref().map_err(|it| *it), expected, "{}", bytes.escape_ascii());
}

/// A request to `h` with one more line.
fn check_line(line: &str, expected: Result<&str, Refused>) {
    let expected = expected.map(|fields| format!("GET origin h / 1.1{fields}"));
    let expected = expected.as_deref().map_err(|it| *it);
    check(&format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n"), expected);
}

#[test]
fn forms_of_targets() {
    check("GET /a?b HTTP/1.1\r\nHost: h:80\r\n\r\n", Ok("GET origin h:80 /a?b 1.1"));
    check("GET / HTTP/1.0\r\nHost: h\r\n\r\n", Ok("GET origin h / 1.0"));
    let host = "HTTP/1.1\r\nHost: other\r\n\r\n";
    check(&format!("GET http://h/a {host}"), Ok("GET origin h /a 1.1"));
    check(&format!("GET HTTP://h:1 {host}"), Ok("GET origin h:1 / 1.1"));
    check(&format!("GET http://h?q {host}"), Ok("GET origin h /?q 1.1"));
    check(&format!("CONNECT h:443 {host}"), Ok("CONNECT authority h:443 - 1.1"));
    check(&format!("CONNECT [::1]:443 {host}"), Ok("CONNECT authority [::1]:443 - 1.1"));
    check(&format!("OPTIONS * {host}"), Ok("OPTIONS asterisk other - 1.1"));
    check(&format!("OPTIONS http://h {host}"), Ok("OPTIONS asterisk h - 1.1"));
    check(&format!("OPTIONS http://h/ {host}"), Ok("OPTIONS origin h / 1.1"));
    check("GET http://h/ HTTP/1.0\r\n\r\n", Ok("GET origin h / 1.0"));
    check("CONNECT h:443 HTTP/1.0\r\n\r\n", Ok("CONNECT authority h:443 - 1.0"));
    check(&format!("get / {host}"), Ok("get origin other / 1.1"));
    check(&format!("M-SEARCH /a|[\\ {host}"), Ok("M-SEARCH origin other /a|[\\ 1.1"));
}

#[test]
fn the_client_does_not_choose_the_scheme() {
    let host = "HTTP/1.1\r\nHost: h\r\n\r\n";
    for target in ["https://h/a", "HTTPS://h:443", "https://h"] {
        for method in ["GET", "OPTIONS"] {
            let text = format!("{method} {target} {host}");
            check(&text, Err(Refused::HttpsInPlainText));
            let in_tls = in_all_ways(text.as_bytes(), parse_in_tls);
            assert!(matches!(in_tls, Ok(Parsed::Complete { .. })), "{text}");
        }
    }
    let plain = in_all_ways(format!("GET http://h/a {host}").as_bytes(), parse_in_tls);
    assert!(matches!(plain, Ok(Parsed::Complete { .. })));
}

#[test]
fn forms_that_are_none() {
    let refused = |line: &str, why| check(&format!("{line}\r\nHost: h\r\n\r\n"), Err(why));
    for (target, why) in [
        ("a", Refused::Target),
        ("h:80", Refused::Target),
        ("", Refused::Target),
        ("\\a", Refused::Target),
        ("?a", Refused::Target),
        ("//h@x#f", Refused::Fragment),
        ("/a#b", Refused::Fragment),
        ("/a\"b", Refused::Target),
        ("/a<b", Refused::Target),
        ("/\u{e9}", Refused::Target),
        ("/a b", Refused::RequestLine),
        ("ftp://h/", Refused::TargetScheme),
        ("http:///a", Refused::Host),
        ("http://", Refused::Host),
        ("http://h:x/", Refused::Host),
        ("http://u:p@h/", Refused::UserInfo),
        ("http://h#f", Refused::Fragment),
        ("*", Refused::TargetForm),
    ] {
        refused(&format!("GET {target} HTTP/1.1"), why);
    }
    for target in ["/a", "h", "*", "http://h/", "h:"] {
        refused(&format!("CONNECT {target} HTTP/1.1"), Refused::TargetForm);
    }
    refused("CONNECT u@h:1 HTTP/1.1", Refused::UserInfo);
}

#[test]
fn request_lines() {
    let refused = |start: &str, why| check(&format!("{start}Host: h\r\n\r\n"), Err(why));
    refused("GET /\r\n", Refused::RequestLine);
    refused("GET / \r\n", Refused::RequestLine);
    refused("GET / HTTP/1.1 \r\n", Refused::RequestLine);
    refused("GET  / HTTP/1.1\r\n", Refused::Target);
    refused("GET /  HTTP/1.1\r\n", Refused::RequestLine);
    refused("GET\t/ HTTP/1.1\r\n", Refused::Method);
    refused("GET / http/1.1\r\n", Refused::RequestLine);
    refused("GET / HTTP/1.10\r\n", Refused::RequestLine);
    refused("GET HTTP/1.1\r\n", Refused::RequestLine);
    refused("GET / HTTP/1.2\r\n", Refused::Version);
    refused("GET / HTTP/2.0\r\n", Refused::Version);
    refused("GET / HTTP/0.9\r\n", Refused::Version);
    refused("G(T / HTTP/1.1\r\n", Refused::Method);
    refused(" GET / HTTP/1.1\r\n", Refused::Method);
    refused("G\u{c9}T / HTTP/1.1\r\n", Refused::Method);
    refused("GET /\r HTTP/1.1\r\n", Refused::BareCr);
    check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Err(Refused::Version));
    check_bytes(b"\x16\x03\x01\x02\x00\x01", Err(Refused::Method));
    check_bytes(b"\0", Err(Refused::Method));
}

#[test]
fn a_request_may_begin_with_one_empty_line() {
    check("\r\nGET / HTTP/1.0\r\nHost: h\r\n\r\n", Ok("GET origin h / 1.0"));
    check("\r\n\r\nGET / HTTP/1.0\r\n\r\n", Err(Refused::EmptyLines));
    check("\nGET / HTTP/1.0\r\n\r\n", Err(Refused::BareLf));
    check("\rGET / HTTP/1.0\r\n\r\n", Err(Refused::BareCr));
}

#[test]
fn ends_of_lines() {
    check("GET / HTTP/1.1\nHost: h\n\n", Err(Refused::BareLf));
    check("GET / HTTP/1.1\r\nHost: h\n\r\n", Err(Refused::BareLf));
    check("GET / HTTP/1.1\r\nHost: h\r\n\n", Err(Refused::BareLf));
    check("GET / HTTP/1.1\r\nHost: h\n", Err(Refused::BareLf));
    check("GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", Err(Refused::BareCr));
    check("GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", Err(Refused::BareCr));
    check("GET / HTTP/1.1\r\nHost: h\r\n\r", Ok("partial"));
    check("", Ok("partial"));
}

#[test]
fn fields_as_they_came() {
    check_line("x-A:  1 \t", Ok(" x-A=1"));
    check_line("A:", Ok(" A="));
    check_line("A: \u{e9}\r\na: b c", Ok(" A=\\xc3\\xa9 a=b c"));
    check_line("a:b:c", Ok(" a=b:c"));
}

#[test]
fn fields_that_are_none() {
    check_line("a: b\r\n c", Err(Refused::ObsFold));
    check_line("a: b\r\n\tc: d", Err(Refused::ObsFold));
    check("GET / HTTP/1.1\r\n Host: h\r\n\r\n", Err(Refused::ObsFold));
    check_line("a : b", Err(Refused::SpaceBeforeColon));
    check_line("Transfer-Encoding\t: chunked", Err(Refused::SpaceBeforeColon));
    check_line("a", Err(Refused::FieldName));
    check_line(": b", Err(Refused::FieldName));
    check_line("a b: c", Err(Refused::FieldName));
    check_line("a\u{e9}: c", Err(Refused::FieldName));
    check_line("a\0: c", Err(Refused::FieldName));
    check_line("a: b\0c", Err(Refused::FieldValue));
    check_line("a: \u{b}chunked", Err(Refused::FieldValue));
    check_line("a: b\x7f", Err(Refused::FieldValue));
    check_line("a: b\rc: d", Err(Refused::BareCr));
}

#[test]
fn one_host() {
    check("GET / HTTP/1.1\r\n\r\n", Err(Refused::HostMissing));
    check("GET / HTTP/1.0\r\n\r\n", Err(Refused::HostMissing));
    check("OPTIONS * HTTP/1.0\r\n\r\n", Err(Refused::HostMissing));
    check("GET http://h/ HTTP/1.1\r\n\r\n", Err(Refused::HostMissing));
    check_line("Host: h", Err(Refused::HostRepeated));
    check_line("hOST: other", Err(Refused::HostRepeated));
    check("GET / HTTP/1.0\r\nHost: h\r\nHost: i\r\n\r\n", Err(Refused::HostRepeated));
    let host = |host: &str, why| {
        check(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), Err(why));
        check(&format!("GET http://x/ HTTP/1.1\r\nHost: {host}\r\n\r\n"), Err(why));
    };
    for wrong in ["", "a,b", "a b", "a/b", "http://a", "a:99999", "a:", "*"] {
        host(wrong, Refused::Host);
    }
    host("user@h", Refused::UserInfo);
}

#[test]
fn limits() {
    let long = "x".repeat(64);
    check(&format!("GET /{long} HTTP/1.1\r\nHost: h\r\n\r\n"), Err(Refused::TargetTooLong));
    check(&format!("{long}x"), Err(Refused::TargetTooLong));
    check_line(&format!("a: {long}{long}{long}{long}"), Err(Refused::HeadTooLarge));
    check_line("a: 1\r\na: 2\r\na: 3\r\na: 4", Ok(" a=1 a=2 a=3 a=4"));
    check_line("a: 1\r\na: 2\r\na: 3\r\na: 4\r\na: 5", Err(Refused::TooManyFields));
}

#[test]
fn more_fields_than_are_indexed_are_refused() {
    let fields = FieldLimits { number: u16::MAX, bytes: u32::MAX };
    let limits = Limits { line_bytes: 1 << 20, head_bytes: 1 << 20, fields };
    let head = |number| format!("GET http://h HTTP/1.0\r\n{}\r\n", "a: b\r\n".repeat(number));
    let parse =
        |number| request(head(number).as_bytes(), Scheme::Http, &limits, &mut Progress::default());
    assert!(matches!(parse(MOST_FIELDS), Ok(Parsed::Complete { .. })));
    assert_eq!(parse(MOST_FIELDS + 1), Err(Refused::TooManyFields));
}

/// `status reason version fields`.
fn check_response(bytes: &[u8], expected: Result<&str, Refused>) {
    let result = in_all_ways(bytes, parse_response).map(|parsed| match parsed {
        Parsed::Partial => "partial".to_owned(),
        Parsed::Complete { head, .. } => {
            let version = if head.version == Version::Http10 { "1.0" } else { "1.1" };
            let reason = head.reason.as_bytes().escape_ascii();
            let (code, fields) = (head.status.code(), shown(&head.fields));
            format!("{code} [{reason}] {version}{fields}")
        }
    });
    assert_eq!(result.as_deref().map_err(|it| *it), expected, "{}", bytes.escape_ascii());
}

#[test]
fn responses() {
    check_response(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody", Ok("200 [OK] 1.1 A=b"));
    check_response(b"HTTP/1.0 404 Not Found\r\n\r\n", Ok("404 [Not Found] 1.0"));
    check_response(b"HTTP/1.1 200 \r\n\r\n", Ok("200 [] 1.1"));
    check_response(b"HTTP/1.1 200\r\n\r\n", Ok("200 [] 1.1"));
    check_response(
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
        Ok("103 [Early Hints] 1.1 Link=x"),
    );
    check_response(b"HTTP/1.1 299 caf\xe9\r\n\r\n", Ok("299 [caf\\xe9] 1.1"));
    check_response(b"HTTP/1.1 200 OK\r\n", Ok("partial"));
}

#[test]
fn responses_that_are_none() {
    check_response(b"\r\nHTTP/1.1 200 OK\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1 200 OK\n\n", Err(Refused::BareLf));
    check_response(b"HTTP/1.1 200 O\0K\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1 200 O\rK\r\n\r\n", Err(Refused::BareCr));
    check_response(b"HTTP/1.1 20 OK\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1 2000 OK\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1 +20 OK\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1  200 OK\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1 099 OK\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1OK 200\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/2.0 200 OK\r\n\r\n", Err(Refused::Version));
    check_response(b"200 OK\r\n\r\n", Err(Refused::StatusLine));
    check_response(b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", Err(Refused::ObsFold));
    check_response(b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", Err(Refused::SpaceBeforeColon));
}

#[test]
fn every_refusal_has_a_section_and_a_status() {
    let statuses = [
        (Refused::TargetTooLong, 414),
        (Refused::TooManyFields, 431),
        (Refused::HeadTooLarge, 431),
        (Refused::TooManyOptions, 431),
        (Refused::TransferCoding, 501),
        (Refused::Version, 505),
        (Refused::HttpsInPlainText, 400),
        (Refused::BareLf, 400),
    ];
    for (refused, status) in statuses {
        assert_eq!(refused.status(), status);
        assert!(refused.section().starts_with("RFC "));
    }
}
