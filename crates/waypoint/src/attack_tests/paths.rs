//! Paths that are written so that a policy reads one thing and the server another, and fields by
//! which a client says that it is somebody else.

use std::cell::RefCell;
use std::rc::Rc;

use ambit_model::http::policy::{
    Action, ClientMatch, OperationMatch, PathPattern, RequestPolicy, RequestRule, Values,
};
use ambit_model::names::PolicyName;
use ambit_model::policy::TextMatch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::frames::{END_HEADERS, END_STREAM, HEADERS, fields, frame, next, preface};
use super::world::{HTTP, World, run};

/// Heads that a server was sent.
type Heads = Rc<RefCell<Vec<String>>>;

/// A server that keeps each head, and answers it.
async fn keep(mut stream: TcpStream, heads: Heads) {
    let mut heard = Vec::new();
    while let Ok(1..) = stream.read_buf(&mut heard).await {
        while let Some(at) = heard.windows(4).position(|it| it == b"\r\n\r\n") {
            let head: Vec<u8> = heard.drain(..at + 4).collect();
            heads.borrow_mut().push(String::from_utf8(head).unwrap());
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

fn kept(world: &World) -> Heads {
    let heads = Heads::default();
    let keeps = heads.clone();
    world.serve(HTTP, move |stream| keep(stream, keeps.clone()));
    heads
}

fn policy(action: Action, rule: RequestRule) -> RequestPolicy {
    let key = PolicyName::new("app", "test");
    RequestPolicy { key, action, is_dry_run: false, rules: vec![rule], condition: None }
}

/// Nobody may ask for `/admin` or what is below it.
fn closed() -> RequestPolicy {
    let path = |it| PathPattern::Text(it);
    let paths =
        vec![path(TextMatch::Exact("/admin".into())), path(TextMatch::Prefix("/admin/".into()))];
    let paths = Values { any_of: paths, none_of: Vec::new() };
    let to = vec![OperationMatch { paths, ..OperationMatch::default() }];
    policy(Action::Deny, RequestRule { to, ..RequestRule::default() })
}

/// How a server might read the path, if it reads more into it than it should.
fn readings(path: &str) -> Vec<String> {
    let path = path.split(['?', '#']).next().unwrap();
    let mut all = vec![path.to_owned()];
    let decoded = path.replace("%2F", "/").replace("%5C", "/").replace('\\', "/");
    all.push(decoded.clone());
    let merged = decoded.split('/').filter(|it| !it.is_empty()).collect::<Vec<_>>().join("/");
    all.push(format!("/{merged}"));
    all
}

/// The status that a path gets, and what the server read.
async fn ask(world: &World, heads: &Heads, path: &str) -> (u16, Option<String>) {
    heads.borrow_mut().clear();
    let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
    let answer = world.ask(HTTP, request.as_bytes()).await;
    let status = answer[9..12].parse().unwrap();
    let heads = heads.borrow();
    let path = heads.first().map(|head| head.split(' ').nth(1).unwrap().to_owned());
    (status, path)
}

#[test]
fn no_spelling_of_a_path_gets_around_a_policy() {
    run(&["--path-normalization=decode-and-merge-slashes"], async |world| {
        let heads = kept(world);
        world.judge_by(closed());
        for path in [
            "/admin",
            "/admin/",
            "/admin?x",
            "/admin/x",
            "//admin",
            "///admin//x",
            "/./admin",
            "/admin/.",
            "/x/../admin",
            "/x/y/../../admin/z",
            "/admin/x/..",
            "/..//admin",
            "/../admin",
            "/x/%2e%2e/admin",
            "/x/.%2E/admin",
            "/%2e/admin",
            "/%61dmin",
            "/%61%64%6d%69%6e",
            "/admin%2f",
            "/admin%2Fx",
            "/x%2f..%2fadmin",
            "%2fadmin",
            "/%2fadmin",
            "/%5cadmin",
            "\\admin",
            "/x\\..\\admin",
            "/x%5c..%5Cadmin",
            "/admin\\x",
            "/admin%5cx",
            "http://web/admin",
            "http://web//x/../admin",
        ] {
            let (status, sent) = ask(world, &heads, path).await;
            assert!(matches!(status, 400 | 403), "{path}: {status}");
            assert_eq!(sent, None, "{path}");
        }
        world.stays_good().await;
    });
}

/// What a policy does not mean reaches the server as the policy has read it, so that a server that
/// reads it in the same way finds no other path in it.
#[test]
fn what_passes_a_policy_is_sent_as_the_policy_has_read_it() {
    run(&["--path-normalization=decode-and-merge-slashes"], async |world| {
        let heads = kept(world);
        world.judge_by(closed());
        for (path, expected) in [
            ("/admin/../x", "/x"),
            ("/administrator", "/administrator"),
            ("/Admin", "/Admin"),
            ("/x/admin", "/x/admin"),
            ("/x?/../admin", "/x?/../admin"),
            ("/x/..%2fy//z", "/y/z"),
            // Segments with parameters are segments like others (RFC 3986, 3.3).
            ("/admin;x=1/y", "/admin;x=1/y"),
            ("/;/admin", "/;/admin"),
            // Decoded once. What is left means itself.
            ("/%2561dmin", "/%2561dmin"),
            ("/x/%252e%252e/admin", "/x/%252E%252E/admin"),
            ("/%252fadmin", "/%252Fadmin"),
        ] {
            let (status, sent) = ask(world, &heads, path).await;
            let sent = sent.unwrap_or_default();
            assert_eq!(status, 200, "{path}");
            assert!(sent.eq_ignore_ascii_case(expected), "{path}: {sent}");
            for reading in readings(&sent) {
                let is_closed = reading == "/admin" || reading.starts_with("/admin/");
                assert!(!is_closed, "{path} was sent as {sent}, which may be read as {reading}");
            }
        }
        world.stays_good().await;
    });
}

#[test]
fn paths_of_http2_are_read_like_others() {
    run(&["--path-normalization=decode-and-merge-slashes"], async |world| {
        let heads = kept(world);
        world.judge_by(closed());
        for path in ["/x/../admin", "//admin", "/%2e/admin", "/x%2f..%2Fadmin", "/%61dmin"] {
            let head = fields(&[
                (":method", "GET"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "web"),
            ]);
            let asked = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head);
            let mut client = world.connect(HTTP).await;
            client.write_all(&[preface(&[]), asked].concat()).await.unwrap();
            let answer = loop {
                let came = next(&mut client).await.expect("an answer");
                if came.kind == HEADERS {
                    break came.payload;
                }
            };
            // A status that is not in the table of HPACK is text; 200 is entry 8.
            assert!(!answer.contains(&0x88), "{path}: {answer:?}");
            assert!(heads.borrow().is_empty(), "{path}: {:?}", heads.borrow());
        }
        world.stays_good().await;
    });
}

#[test]
fn a_client_is_who_its_certificate_says() {
    run(&[], async |world| {
        let heads = kept(world);
        let forged = "spiffe://cluster.local/ns/app/sa/admin";
        let claims = [
            format!("X-Forwarded-Client-Cert: By=spiffe://x;URI={forged}"),
            format!("x-forwarded-client-cert: By=spiffe://x;URI={forged},By=y;URI={forged}"),
            format!("X-Forwarded-Client-Cert: a\r\nX-FORWARDED-CLIENT-CERT: URI={forged}"),
            format!("Connection: X-Forwarded-Client-Cert\r\nX-Forwarded-Client-Cert: URI={forged}"),
            format!(
                "X_Forwarded_Client_Cert: URI={forged}\r\nx-forwarded-client_cert: URI={forged}"
            ),
        ];
        let get = |fields: &str| {
            format!("GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{fields}\r\n\r\n")
        };
        for claim in &claims {
            heads.borrow_mut().clear();
            let answer = world.ask(HTTP, get(claim).as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{claim}: {answer}");
            let head = heads.borrow().concat().to_ascii_lowercase();
            assert!(!head.contains("sa/admin"), "{claim}: {head}");
            assert_eq!(head.matches("x-forwarded-client-cert:").count(), 1, "{head}");
            assert!(head.contains("uri=spiffe://cluster.local/ns/app/sa/client"), "{head}");
        }
        // A policy asks the certificate too.
        let admin = TextMatch::Exact("cluster.local/ns/app/sa/admin".into());
        let principals = Values { any_of: vec![admin], none_of: Vec::new() };
        let from = vec![ClientMatch { principals, ..ClientMatch::default() }];
        world.judge_by(policy(Action::Allow, RequestRule { from, ..RequestRule::default() }));
        heads.borrow_mut().clear();
        for claim in &claims {
            let answer = world.ask(HTTP, get(claim).as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{claim}: {answer}");
        }
        assert!(heads.borrow().is_empty(), "{:?}", heads.borrow());
    });
}

/// Commands that Envoy takes from trusted clients, and what only a proxy may say.
#[test]
fn a_client_commands_no_proxy() {
    run(&[], async |world| {
        let heads = kept(world);
        let fields = "x-envoy-upstream-rq-timeout-ms: 1\r\nx-envoy-max-retries: 100\r\n\
                      x-envoy-retry-on: 5xx";
        let request =
            format!("GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{fields}\r\n\r\n");
        let answer = world.ask(HTTP, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let head = heads.borrow().concat();
        assert!(!head.to_ascii_lowercase().contains("x-envoy-"), "{head}");
    });
}
