//! What both programs answer, over a connection.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::*;
use crate::sample::tests::start;

/// More elements than are told as JSON.
const JSON_LONG: usize = 40_000;

/// Sends one request; returns the status, the head and the body.
async fn ask(original: &str, request: &str, rest: &str) -> (u16, String, String) {
    let pod = [("HOSTNAME", "bin-0"), ("PORT", "1")];
    let (address, _drain) = start(&["httpbin", "--as", original], &pod);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{request} HTTP/1.1\r\nhost: bin:8000\r\nconnection: close\r\n{rest}");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_owned(), body.to_owned())
}

async fn check(original: &str, request: &str, rest: &str, expected: Value) {
    let (code, _, body) = ask(original, request, &format!("{rest}\r\n")).await;
    assert_eq!(code, 200, "{request}: {body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body, expected, "{request}");
}

async fn check_status(request: &str, rest: &str, expected: u16, part: &str) {
    for original in ["mccutchen", "kennethreitz"] {
        let (code, head, body) = ask(original, request, &format!("{rest}\r\n")).await;
        assert_eq!(code, expected, "{original} {request}: {body}");
        let all = format!("{}\n{body}", head.to_ascii_lowercase());
        assert!(all.contains(part), "{original} {request}: {all}");
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn what_was_asked_comes_back_as_either_writes_it() {
    run(async {
        let headers = json!({"Connection": ["close"], "Host": ["bin:8000"], "X-A": ["1", "2"]});
        let rest = "x-a: 1\r\nx-a: 2\r\n";
        let said = json!({
            "args": {"a": ["1", "2"], "b": ["x y"]}, "headers": headers, "method": "GET",
            "origin": "127.0.0.1", "url": "http://bin:8000/get?a=1&a=2&b=x+y"
        });
        check("mccutchen", "GET /get?a=1&a=2&b=x+y", rest, said).await;
        let headers = json!({"Connection": "close", "Host": "bin:8000", "X-A": "1,2"});
        let said = json!({
            "args": {"a": ["1", "2"], "b": "x y"}, "headers": headers, "origin": "127.0.0.1",
            "url": "http://bin:8000/get?a=1&a=2&b=x+y"
        });
        check("kennethreitz", "GET /get?a=1&a=2&b=x+y", rest, said).await;
        let forwarded = "x-forwarded-for: 10.0.0.1, 10.0.0.2\r\n";
        check("mccutchen", "GET /ip", forwarded, json!({"origin": "10.0.0.1"})).await;
        let all = json!({"origin": "10.0.0.1, 10.0.0.2"});
        check("kennethreitz", "GET /ip", forwarded, all).await;
        let shown = json!({"headers": {"Connection": "close", "Host": "bin:8000"}});
        check("kennethreitz", "GET /headers", forwarded, shown).await;
        check("mccutchen", "GET /hostname", "", json!({"hostname": "bin-0"})).await;
        let cookie = "cookie: a=1; b=2\r\n";
        check("mccutchen", "GET /cookies", cookie, json!({"a": "1", "b": "2"})).await;
        let cookies = json!({"cookies": {"a": "1", "b": "2"}});
        check("kennethreitz", "GET /cookies", cookie, cookies).await;
    });
}

#[test]
fn bodies_come_back() {
    run(async {
        for (original, kind, body, data, form, parsed) in [
            (
                "mccutchen",
                "application/json",
                "{\"a\": 1}",
                "{\"a\": 1}",
                json!({}),
                json!({"a": 1}),
            ),
            (
                "mccutchen",
                "",
                "ab",
                "data:application/octet-stream;base64,YWI=",
                json!({}),
                json!(null),
            ),
            (
                "mccutchen",
                "application/x-www-form-urlencoded",
                "a=1",
                "a=1",
                json!({"a": ["1"]}),
                json!(null),
            ),
            (
                "kennethreitz",
                "application/x-www-form-urlencoded",
                "a=1",
                "",
                json!({"a": "1"}),
                json!(null),
            ),
            ("kennethreitz", "text/plain", "ab", "ab", json!({}), json!(null)),
        ] {
            let length = body.len();
            let kind =
                if kind.is_empty() { String::new() } else { format!("content-type: {kind}\r\n") };
            let rest = format!("{kind}content-length: {length}\r\n\r\n{body}");
            let (code, _, answer) = ask(original, "POST /post", &rest).await;
            assert_eq!(code, 200, "{answer}");
            let answer: Value = serde_json::from_str(&answer).unwrap();
            let told = (&answer["data"], &answer["form"], &answer["json"]);
            assert_eq!(told, (&json!(data), &form, &parsed), "{original} {body}");
        }
        let wrong = "content-type: application/json\r\ncontent-length: 1\r\n\r\n{";
        let (code, _, answer) = ask("mccutchen", "POST /post", wrong).await;
        assert_eq!((code, answer.contains("the body is no JSON")), (400, true), "{answer}");
        let text = format!("[{}0]", "0,".repeat(JSON_LONG));
        let rest = format!("content-length: {}\r\n\r\n{text}", text.len());
        let (_, _, answer) = ask("kennethreitz", "POST /post", &rest).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&answer["data"], &answer["json"]), (&json!(text), &json!(null)));
        let long = format!(
            "content-length: {}\r\n\r\n{}",
            BODY_MAX_BYTES + 1,
            "x".repeat(BODY_MAX_BYTES + 1)
        );
        let (code, _, answer) = ask("mccutchen", "POST /anything", &long).await;
        assert_eq!((code, answer.contains("cannot read the body")), (400, true), "{answer}");
    });
}

#[test]
fn statuses_redirects_and_passwords() {
    run(async {
        let (_, _, body) = ask("mccutchen", "GET /status/418", "\r\n").await;
        assert_eq!(body, "I'm a teapot!");
        let (_, _, body) = ask("kennethreitz", "GET /status/418", "\r\n").await;
        assert!(body.contains("-=[ teapot ]=-"), "{body}");
        check_status("OPTIONS /get", "", 200, "access-control-allow-methods: get, post").await;
        check_status("GET /status/503:1,200:0", "", 503, "").await;
        check_status("GET /status/302", "", 302, "location: /redirect/1").await;
        check_status("GET /status/99", "", 400, "from 200 to 599").await;
        check_status("GET /status/200:x", "", 400, "CODE:WEIGHT").await;
        check_status("GET /redirect/2", "", 302, "location: /relative-redirect/1").await;
        check_status("GET /absolute-redirect/1", "", 302, "location: http://bin:8000/get").await;
        check_status("GET /redirect/0", "", 400, "at least 1").await;
        let way = "GET /redirect-to?url=http://a/b&status_code=307";
        check_status(way, "", 307, "location: http://a/b").await;
        check_status("GET /redirect-to?url=/&status_code=200", "", 400, "300 to 399").await;
        check_status("GET /basic-auth/me/key", "", 401, "www-authenticate: basic").await;
        let given = "authorization: Basic bWU6a2V5\r\n";
        check_status("GET /basic-auth/me/key", given, 200, "\"authenticated\": true").await;
        check_status("GET /bearer", "", 401, "www-authenticate: bearer").await;
        check_status("GET /bearer", "authorization: Bearer t\r\n", 200, "\"token\": \"t\"").await;
        check_status("GET /response-headers?X-A=1&x-a=2", "", 200, "x-a: 2").await;
        let asked = "GET /response-headers?Content-Length=9&Transfer-Encoding=x&Connection=y";
        let (_, head, body) = ask("mccutchen", asked, "\r\n").await;
        let head = head.to_ascii_lowercase();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert!(!head.contains("transfer-encoding") && !head.contains("connection: y"), "{head}");
        check_status("GET /response-headers?a%20b=1", "", 400, "no header field").await;
        check_status("GET /post", "", 405, "only takes POST").await;
        check_status("GET /delay/0.01", "", 200, "\"url\"").await;
        check_status("GET /delay/-1", "", 400, "no number of seconds").await;
        check_status("GET /bytes/16", "", 200, "content-length: 16").await;
        check_status("GET /bytes/999999999", "", 200, "content-length: 102400").await;
        check_status("GET /stream/2", "", 200, "\"id\":1").await;
        check_status("GET /nothing", "", 404, "there is: /get").await;
        let (code, _, body) = ask("mccutchen", "GET /delay/11", "\r\n").await;
        assert_eq!((code, body.contains("at most 10 s")), (400, true), "{body}");
        let (_, _, body) = ask("mccutchen", "GET /uuid", "\r\n").await;
        let body: Value = serde_json::from_str(&body).unwrap();
        let text = body["uuid"].as_str().unwrap();
        assert_eq!((text.len(), &text[14..15]), (36, "4"), "{text}");
    });
}
