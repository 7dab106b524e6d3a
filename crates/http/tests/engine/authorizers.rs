//! Authorization services: who is asked, what they see, and what becomes of their answers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::record::{CheckedAs, Flags};
use ambit_model::http::authentication::Authentication;
use ambit_model::http::authorizer::{Authorizer, BodyCheck, Call, Check, HttpCall};
use ambit_model::http::policy::{
    Action, ClientMatch, Condition, OperationMatch, PathPattern, RequestPolicy, RequestRule, Values,
};
use ambit_model::http::rule::{Cors, Destination};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::TextMatch;
use ambit_wire::proto::envoy::service::auth::v3 as proto;
use ambit_wire::proto::google::rpc::Status;
use bytes::Bytes;
use prost::Message;
use proto::check_response::HttpResponse::{DeniedResponse, OkResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::spawn_local;

use crate::authentication::{ANN, rule as issuer};
use crate::grpc;
use crate::world::{Bed, run};

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A policy with these rules.
pub(crate) fn policy(name: &str, action: Action, rules: Vec<RequestRule>) -> Arc<RequestPolicy> {
    let key = PolicyName::new("app", name);
    Arc::new(RequestPolicy { key, action, is_dry_run: false, rules, condition: None })
}

fn custom(name: &str, provider: &str) -> Arc<RequestPolicy> {
    policy(name, Action::Custom(provider.into()), vec![RequestRule::default()])
}

fn exact(text: &str) -> Values<TextMatch> {
    Values { any_of: vec![TextMatch::Exact(text.into())], none_of: Vec::new() }
}

/// What a policy compares paths with.
pub(crate) fn paths(patterns: &[&str]) -> RequestRule {
    let text = |it: &&str| match it.strip_suffix('*') {
        Some(start) => PathPattern::Text(TextMatch::Prefix(start.into())),
        None => PathPattern::Text(TextMatch::Exact((*it).into())),
    };
    let any_of = patterns.iter().map(text).collect();
    let paths = Values { any_of, none_of: Vec::new() };
    RequestRule {
        to: vec![OperationMatch { paths, ..OperationMatch::default() }],
        ..RequestRule::default()
    }
}

fn with_header(name: &str, value: &str) -> RequestRule {
    let condition = Condition::Header { name: name.into(), values: exact(value) };
    RequestRule { when: vec![condition], ..RequestRule::default() }
}

/// A provider at the service of this name.
fn provider(bed: &Bed, name: &str, change: impl FnOnce(&mut Check)) {
    let destination =
        Destination::Service { name: ServiceName::new("app", name), port: 9000, subset: None };
    let mut check = Check::default();
    change(&mut check);
    let it = Arc::new(Authorizer { destination, check });
    bed.world.authorizers.borrow_mut().insert(name.into(), it);
}

fn http(check: &mut Check, change: impl FnOnce(&mut HttpCall)) {
    let mut call = HttpCall::default();
    change(&mut call);
    check.call = Call::Http(call);
}

fn judged_by(bed: &Bed, policies: Vec<Arc<RequestPolicy>>) {
    *bed.world.request_policies.borrow_mut() = policies;
}

/// A service of gRPC: what it answers, and what it was asked.
#[derive(Clone, Default)]
struct Service {
    answer: Rc<RefCell<Vec<u8>>>,
    asked: Rc<RefCell<Vec<proto::HttpRequest>>>,
}

impl Service {
    fn says(&self, answer: &proto::CheckResponse) {
        *self.answer.borrow_mut() = answer.encode_to_vec();
    }

    fn asked(&self) -> Vec<proto::HttpRequest> {
        self.asked.borrow().clone()
    }
}

/// An endpoint of gRPC that answers every question with this message.
fn answers(bed: &Bed, name: &str, answer: &proto::CheckResponse) -> Service {
    let service = Service::default();
    service.says(answer);
    let serves = service.clone();
    bed.serve(&format!("{name}-1"), move |stream, _| {
        spawn_local(serve(stream, serves.clone()));
    });
    service
}

async fn serve(stream: DuplexStream, service: Service) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let service = service.clone();
        spawn_local(async move {
            assert_eq!(request.uri().path(), "/envoy.service.auth.v3.Authorization/Check");
            let all = grpc::question(request.into_body()).await;
            let question = proto::CheckRequest::decode(&*all).unwrap();
            let http = question.attributes.unwrap().request.unwrap().http.unwrap();
            service.asked.borrow_mut().push(http);
            let message = service.answer.borrow().clone();
            grpc::answer(&mut respond, &message);
        });
    }
}

fn option(name: &str, value: &str) -> proto::HeaderValueOption {
    let header = proto::HeaderValue { key: name.into(), value: value.into(), ..Default::default() };
    proto::HeaderValueOption { header: Some(header), ..Default::default() }
}

fn allows(ok: proto::OkHttpResponse) -> proto::CheckResponse {
    let status = Some(Status::default());
    proto::CheckResponse { status, http_response: Some(OkResponse(ok)) }
}

fn sets(fields: &[(&str, &str)]) -> proto::CheckResponse {
    let headers = fields.iter().map(|(name, value)| option(name, value)).collect();
    allows(proto::OkHttpResponse { headers, ..Default::default() })
}

fn denies(code: i32, fields: &[(&str, &str)]) -> proto::CheckResponse {
    let headers = fields.iter().map(|(name, value)| option(name, value)).collect();
    let status = Some(proto::HttpStatus { code });
    let denied = proto::DeniedHttpResponse { status, headers, body: "no way".into() };
    let status = Some(Status { code: 7, ..Default::default() });
    proto::CheckResponse { status, http_response: Some(DeniedResponse(denied)) }
}

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: web.app\r\n{fields}Connection: close\r\n\r\n")
}

fn post(body: &str) -> String {
    let length = body.len();
    format!(
        "POST / HTTP/1.1\r\nHost: w\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn outcomes(bed: &Bed) -> Vec<(String, CheckedAs)> {
    bed.last().checks.iter().map(|it| (it.provider.to_string(), it.outcome)).collect()
}

#[test]
fn a_service_sees_the_request_and_what_it_changes_is_seen_by_all_that_follows() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        provider(bed, "authz", |_| {});
        let asked = answers(
            bed,
            "authz",
            &allows(proto::OkHttpResponse {
                headers: vec![option("x-user", "ann")],
                headers_to_remove: vec!["cookie".into()],
                response_headers_to_add: vec![option("x-checked", "yes")],
                query_parameters_to_remove: vec!["key".into()],
                ..Default::default()
            }),
        );
        judged_by(
            bed,
            vec![
                custom("ask", "authz"),
                policy("ann", Action::Allow, vec![with_header("x-user", "ann")]),
            ],
        );
        let answer = bed.ask(&get("/a/../b?key=s&c=1", "Cookie: s=1\r\nX-User: eve\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("x-checked: yes\r\n"), "{answer}");
        let sent = heard.borrow().to_ascii_lowercase();
        assert!(sent.starts_with("get /b?c=1 http/1.1\r\n"), "{sent}");
        assert!(sent.contains("x-user: ann\r\n") && !sent.contains("eve"), "{sent}");
        assert!(!sent.contains("cookie"), "{sent}");
        let question = asked.asked()[0].clone();
        assert_eq!((&*question.method, &*question.path), ("GET", "/b?key=s&c=1"));
        assert_eq!((&*question.host, &*question.protocol), ("web.app", "HTTP/1.1"));
        assert_eq!((&*question.headers["cookie"], question.size), ("s=1", 0));
        assert_eq!(question.headers[":path"], "/b?key=s&c=1");
        let record = bed.last();
        assert_eq!(record.allowed_by.unwrap().policy, PolicyName::new("app", "ann"));
        assert_eq!(outcomes(bed), [("authz".to_owned(), CheckedAs::Allowed)]);
    });
}

#[test]
fn a_service_that_denies_answers_the_client() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        provider(bed, "authz", |_| {});
        let fields = [("www-authenticate", "Basic"), ("content-length", "1000"), ("x-why", "w")];
        let service = answers(bed, "authz", &denies(401, &fields));
        judged_by(bed, vec![custom("ask", "authz")]);
        let answer = bed.ask(&get("/", "")).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        for part in ["www-authenticate: Basic\r\n", "x-why: w\r\n", "x-ambit-reason: ext_authz\r\n"]
        {
            assert!(answer.contains(part), "{part}: {answer}");
        }
        assert!(answer.ends_with("\r\n\r\nno way") && !answer.contains("1000"), "{answer}");
        assert_eq!(*heard.borrow(), "");
        let record = bed.last();
        assert_eq!((record.flags, record.reason), (Flags::Unauthorized, "ext_authz"));
        assert!(record.details.contains("authz of CUSTOM policy app/ask rule 0"), "{record:?}");
        // Whatever a service says with a no, a client of gRPC must not read a yes.
        service.says(&denies(200, &[]));
        let answer = bed.ask(&get("/", "Content-Type: application/grpc\r\n")).await;
        assert!(answer.contains("grpc-status: 7\r\n"), "{answer}");
    });
}

#[test]
fn a_denial_of_other_policies_comes_after_the_service() {
    run(async |bed| {
        bed.answers("web-1", OK);
        provider(bed, "authz", |_| {});
        let asked = answers(bed, "authz", &sets(&[]));
        let no = policy("no", Action::Deny, vec![paths(&["/admin"])]);
        judged_by(bed, vec![no, custom("ask", "authz")]);
        let answer = bed.ask(&get("/admin", "")).await;
        assert!(answer.contains("x-ambit-reason: denied\r\n"), "{answer}");
        assert_eq!(asked.asked().len(), 1);
        asked.says(&denies(302, &[("location", "https://login")]));
        let answer = bed.ask(&get("/admin", "")).await;
        assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
    });
}

#[test]
fn no_service_forges_a_frame_or_an_identity() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        provider(bed, "authz", |_| {});
        let forged = [
            ("x-forwarded-client-cert", "By=a;URI=spiffe://t/ns/admin/sa/root"),
            ("host", "other"),
            (":path", "/admin"),
            (":authority", "other"),
            ("content-length", "7"),
            ("transfer-encoding", "chunked"),
            ("connection", "x-user"),
            ("upgrade", "h2c"),
        ];
        answers(bed, "authz", &sets(&forged));
        judged_by(bed, vec![custom("ask", "authz")]);
        let answer = bed.ask(&get("/a", "")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let sent = heard.borrow().to_ascii_lowercase();
        assert!(sent.starts_with("get /a http/1.1\r\nhost: web.app\r\n"), "{sent}");
        let client = "by=spiffe://t/ns/app/sa/waypoint;uri=spiffe://t/ns/shop/sa/cart\r\n";
        assert!(sent.contains(&format!("x-forwarded-client-cert: {client}")), "{sent}");
        for word in ["root", "other", "chunked", "h2c", "content-length", "/admin"] {
            assert!(!sent.contains(word), "{word}: {sent}");
        }
    });
}

#[test]
fn what_is_no_clear_answer_denies_even_where_silence_passes() {
    run(async |bed| {
        bed.answers("web-1", OK);
        judged_by(bed, vec![custom("ask", "authz")]);
        let status = |code| Some(Status { code, ..Default::default() });
        let unclear = [
            proto::CheckResponse::default(),
            proto::CheckResponse { status: status(0), ..denies(401, &[]) },
            proto::CheckResponse { status: status(7), ..sets(&[]) },
            sets(&[("a b", "1")]),
            sets(&[("a", "1\r\nb: 2")]),
        ];
        let service = answers(bed, "authz", &sets(&[]));
        for answer in unclear {
            for fail_open in [false, true] {
                provider(bed, "authz", |check| check.fail_open = fail_open);
                service.says(&answer);
                let said = bed.ask(&get("/", "")).await;
                assert!(said.starts_with("HTTP/1.1 403 "), "{answer:?}: {said}");
                assert!(said.contains("x-ambit-reason: ext_authz\r\n"), "{said}");
                assert_eq!(outcomes(bed), [("authz".to_owned(), CheckedAs::Failed)]);
            }
        }
    });
}

#[test]
fn a_service_that_does_not_answer_denies_unless_it_may_fail_open() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let silent = |stream: DuplexStream, _| {
            spawn_local(async move {
                std::future::pending::<()>().await;
                drop(stream);
            });
        };
        let closes = |stream: DuplexStream, _| drop(stream);
        for (name, told) in [
            ("silent", "did not answer in 50ms"),
            ("closes", "closed the connection without an answer"),
            ("nobody", "cannot be reached"),
        ] {
            match name {
                "silent" => bed.serve("silent-1", silent),
                "closes" => bed.serve("closes-1", closes),
                _ => {}
            }
            judged_by(bed, vec![custom("ask", name)]);
            for (fail_open, status, expected) in
                [(false, 503, CheckedAs::Failed), (true, 200, CheckedAs::FailedOpen)]
            {
                provider(bed, name, |check| {
                    http(check, |_| {});
                    check.fail_open = fail_open;
                    check.status_on_error = 503;
                    check.timeout = Duration::from_millis(50);
                });
                let answer = bed.ask(&get("/", "")).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{told}: {answer}");
                assert_eq!(outcomes(bed), [(name.to_owned(), expected)]);
                let details = bed.last().details;
                assert!(fail_open || details.contains(told), "{told}: {details}");
            }
        }
    });
}

#[test]
fn a_provider_that_does_not_exist_denies_whatever_it_says() {
    run(async |bed| {
        bed.answers("web-1", OK);
        judged_by(bed, vec![custom("ask", "gone")]);
        let answer = bed.ask(&get("/", "")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let mut missing = Authorizer::missing("the provider gone does not exist");
        missing.check.fail_open = true;
        bed.world.authorizers.borrow_mut().insert("gone".into(), Arc::new(missing));
        let answer = bed.ask(&get("/", "")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(bed.last().details.contains("the provider gone does not exist"));
    });
}

#[test]
fn several_services_are_asked_in_order_and_each_once() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        for name in ["first", "second"] {
            provider(bed, name, |_| {});
        }
        let first = answers(bed, "first", &sets(&[("x-first", "1")]));
        let second = answers(bed, "second", &sets(&[("x-second", "2")]));
        // It matches only what the first has changed.
        let then = policy("c", Action::Custom("second".into()), vec![with_header("x-first", "1")]);
        judged_by(bed, vec![custom("a", "first"), custom("b", "first"), then]);
        let answer = bed.ask(&get("/", "")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!((first.asked().len(), second.asked().len()), (1, 1));
        assert_eq!(second.asked()[0].headers["x-first"], "1");
        assert!(heard.borrow().contains("x-second: 2\r\n"), "{}", heard.borrow());
    });
}

#[test]
fn a_token_that_a_service_puts_in_is_verified() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        let rules = vec![issuer()];
        *bed.world.authentication.borrow_mut() = Authentication { rules, problem: None };
        provider(bed, "authz", |_| {});
        let asked = answers(bed, "authz", &sets(&[("authorization", &format!("Bearer {ANN}"))]));
        let principals = exact("https://login/ann");
        let from = vec![ClientMatch { request_principals: principals, ..ClientMatch::default() }];
        let ann = RequestRule { from, ..RequestRule::default() };
        judged_by(
            bed,
            vec![custom("ask", "authz"), policy("ann", Action::Allow, vec![ann.clone()])],
        );
        let fields = "Authorization: Opaque abc\r\nX-Group: root\r\n";
        let answer = bed.ask(&get("/", fields)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let question = asked.asked()[0].clone();
        assert_eq!(question.headers["authorization"], "Opaque abc");
        assert!(!question.headers.contains_key("x-group"), "only a verified token says this");
        assert!(heard.borrow().contains("x-group: admin\r\n"), "{}", heard.borrow());
        // A policy that asks for a claim is judged behind the token.
        let asks = policy("ask", Action::Custom("authz".into()), vec![ann]);
        judged_by(bed, vec![asks]);
        asked.says(&denies(403, &[]));
        let answer = bed.ask(&get("/", "")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "no token, nobody is asked: {answer}");
        let answer = bed.ask(&get("/", &format!("Authorization: Bearer {ANN}\r\n"))).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    });
}

#[test]
fn a_service_of_http_is_asked_with_chosen_fields() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        let said = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-User: ann\r\nX-Other: o\r\n\
                    Set-Cookie: s=2\r\nX-Envoy-Auth-Headers-To-Remove: cookie, x-drop\r\n\r\n";
        let asked = bed.hears("authz-1", said);
        provider(bed, "authz", |check| {
            http(check, |call| {
                call.path_prefix = "/check".into();
                call.include = vec![TextMatch::Exact("cookie".into())];
                call.additional = vec![("x-from".into(), "mesh".into())];
                call.to_upstream_on_allow = vec![TextMatch::Exact("x-user".into())];
                call.to_downstream_on_allow = vec![TextMatch::Suffix("cookie".into())];
            });
        });
        judged_by(bed, vec![custom("ask", "authz")]);
        let fields = "Authorization: Basic eA==\r\nCookie: s=1\r\nX-Drop: 1\r\nX-From: eve\r\n";
        let answer = bed.ask(&get("/a?b=c", fields)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("set-cookie: s=2\r\n"), "{answer}");
        let question = asked.borrow().to_ascii_lowercase();
        assert!(
            question.starts_with("get /check/a?b=c http/1.1\r\nhost: web.app\r\n"),
            "{question}"
        );
        for part in ["authorization: basic", "cookie: s=1", "x-from: mesh", "content-length: 0"] {
            assert!(question.contains(part), "{part}: {question}");
        }
        assert!(!question.contains("x-drop") && !question.contains("eve"), "{question}");
        let sent = heard.borrow().to_ascii_lowercase();
        assert!(sent.contains("x-user: ann\r\n") && !sent.contains("x-other"), "{sent}");
        assert!(!sent.contains("cookie:") && !sent.contains("x-drop"), "{sent}");
    });
}

#[test]
fn a_service_of_http_denies_with_its_own_answer() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let login = "HTTP/1.1 302 Found\r\nContent-Length: 5\r\nLocation: https://login\r\n\
                     X-Inner: i\r\nContent-Type: text/html\r\n\r\nlogin";
        let broken = "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n";
        for (name, said, only, fail_open, status, has_inner) in [
            ("login", login, None, false, 302, true),
            ("login", login, Some(vec![TextMatch::Exact("x-none".into())]), false, 302, false),
            ("broken", broken, None, false, 403, false),
            ("broken", broken, None, true, 200, false),
        ] {
            bed.answers(&format!("{name}-1"), said);
            judged_by(bed, vec![custom("ask", name)]);
            provider(bed, name, |check| {
                check.fail_open = fail_open;
                http(check, |call| call.to_downstream_on_deny = only.clone());
            });
            let answer = bed.ask(&get("/", "")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert_eq!(answer.contains("X-Inner: i") || answer.contains("x-inner: i"), has_inner);
            if status == 302 {
                let lower = answer.to_ascii_lowercase();
                assert!(lower.contains("location: https://login\r\n"), "{answer}");
                assert!(lower.contains("content-type: text/html\r\n"), "{answer}");
                assert!(answer.ends_with("\r\n\r\nlogin"), "{answer}");
            }
        }
    });
}

#[test]
fn a_service_is_shown_as_much_of_a_body_as_is_written() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        judged_by(bed, vec![custom("ask", "authz")]);
        let asked = answers(bed, "authz", &sets(&[]));
        for (max_bytes, allow_partial, as_bytes, status, shown) in [
            (100, false, false, 200, "hello"),
            (5, false, true, 200, "hello"),
            (4, false, false, 413, ""),
            (4, true, false, 200, "hell"),
        ] {
            provider(bed, "authz", |check| {
                check.body = Some(BodyCheck { max_bytes, allow_partial, as_bytes });
                // More than allowed is refused even where silence passes.
                check.fail_open = true;
            });
            asked.asked.borrow_mut().clear();
            heard.borrow_mut().clear();
            let answer = bed.ask(&post("hello")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{max_bytes}: {answer}");
            assert_eq!(asked.asked().len(), usize::from(status == 200));
            let Some(question) = asked.asked().first().cloned() else { continue };
            let body = if as_bytes { question.raw_body } else { Bytes::from(question.body) };
            assert_eq!(body, shown);
            let partial = question.headers.get("x-envoy-auth-partial-body").map(String::as_str);
            assert_eq!(partial, allow_partial.then_some("true"));
            assert!(heard.borrow().ends_with("\r\n\r\nhello"), "{}", heard.borrow());
        }
        // In chunks nobody knows how long it is.
        let chunks = "POST / HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\
                      Connection: close\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
        for (max_bytes, status) in [(5, 200), (4, 413)] {
            provider(bed, "authz", |check| {
                check.body = Some(BodyCheck { max_bytes, allow_partial: false, as_bytes: false });
            });
            let answer = bed.ask(chunks).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    });
}

#[test]
fn a_client_that_waits_to_send_its_body_is_asked_for_it() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        judged_by(bed, vec![custom("ask", "authz")]);
        let asked = answers(bed, "authz", &sets(&[]));
        provider(bed, "authz", |check| {
            check.body = Some(BodyCheck { max_bytes: 9, allow_partial: false, as_bytes: false });
        });
        let mut client = bed.connect(ambit_http::engine::Speaks::Http);
        let head = "POST / HTTP/1.1\r\nHost: w\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\
                    Connection: close\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let mut bytes = vec![0; 4096];
        let read = client.read(&mut bytes).await.unwrap();
        assert!(bytes[..read].starts_with(b"HTTP/1.1 100 "), "it is asked before the service is");
        client.write_all(b"hello").await.unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.unwrap();
        assert!(rest.starts_with("HTTP/1.1 200 "), "{rest}");
        assert_eq!(asked.asked()[0].body, "hello");
        assert!(!heard.borrow().to_ascii_lowercase().contains("expect"), "{}", heard.borrow());
    });
}

#[test]
fn a_browsers_question_is_asked_of_nobody() {
    run(async |bed| {
        bed.answers("web-1", OK);
        bed.route(|rule| {
            rule.cors = Some(Cors {
                allow_origins: vec![ambit_model::http::matching::ValueMatch::Exact(
                    "https://a".into(),
                )],
                allow_methods: vec!["PUT".into()],
                allow_headers: Vec::new(),
                expose_headers: Vec::new(),
                allow_credentials: true,
                max_age: None,
                forwards_unmatched: true,
            });
        });
        judged_by(bed, vec![custom("ask", "authz")]);
        provider(bed, "authz", |_| {});
        let asked = answers(bed, "authz", &denies(401, &[]));
        let preflight = |origin: &str| {
            format!(
                "OPTIONS / HTTP/1.1\r\nHost: w\r\nOrigin: {origin}\r\n\
                 Access-Control-Request-Method: PUT\r\nConnection: close\r\n\r\n"
            )
        };
        let answer = bed.ask(&preflight("https://a")).await;
        assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
        assert_eq!(asked.asked().len(), 0);
        let answer = bed.ask(&preflight("https://b")).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    });
}

#[test]
fn a_service_on_trial_is_counted_and_decides_nothing() {
    run(async |bed| {
        bed.answers("web-1", OK);
        provider(bed, "authz", |_| {});
        let asked = answers(bed, "authz", &denies(401, &[]));
        let trial = |name: &str, action, rules| {
            let mut policy = Arc::unwrap_or_clone(policy(name, action, rules));
            policy.is_dry_run = true;
            Arc::new(policy)
        };
        judged_by(
            bed,
            vec![
                trial("ask", Action::Custom("authz".into()), vec![RequestRule::default()]),
                trial("no", Action::Deny, vec![paths(&["/"])]),
                trial("only", Action::Allow, vec![paths(&["/other"])]),
            ],
        );
        let answer = bed.ask(&get("/", "")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let record = bed.last();
        let denied: Vec<_> =
            record.dry_run.iter().map(|it| it.policy().unwrap().to_string()).collect();
        assert_eq!(denied, ["app/no", "app/only"]);
        assert!(record.checks.is_empty());
        while bed.world.trials.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        let told = bed.world.trials.borrow()[0].clone();
        assert_eq!(told, "app/ask rule 0 denied: it would deny with 401");
        assert_eq!(asked.asked().len(), 1);
    });
}

/// A WebSocket that a service has let pass.
async fn upgraded(bed: &Bed) -> DuplexStream {
    bed.serve("web-1", |mut stream, _| {
        spawn_local(async move {
            let mut bytes = vec![0; 4096];
            let _read = stream.read(&mut bytes).await;
            let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                           Upgrade: websocket\r\n\r\n";
            stream.write_all(switch).await.unwrap();
            while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                stream.write_all(&bytes[..read]).await.unwrap();
            }
        });
    });
    let mut client = bed.connect(ambit_http::engine::Speaks::Http);
    let head = "GET /ws HTTP/1.1\r\nHost: w\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = vec![0; 4096];
    let read = client.read(&mut bytes).await.unwrap();
    assert!(bytes[..read].starts_with(b"HTTP/1.1 101 "));
    client
}

#[test]
fn what_a_service_let_pass_goes_on_until_another_must_be_asked() {
    run(async |bed| {
        provider(bed, "authz", |_| {});
        provider(bed, "other", |_| {});
        answers(bed, "authz", &sets(&[]));
        judged_by(bed, vec![custom("ask", "authz")]);
        let changed = || bed.world.policies.send_modify(|version| *version += 1);
        let mut client = upgraded(bed).await;
        // Another policy comes, and the same service is asked.
        judged_by(bed, vec![custom("ask", "authz"), custom("again", "authz")]);
        changed();
        client.write_all(b"hello").await.unwrap();
        let mut bytes = [0; 5];
        client.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"hello");
        // Another service must be asked, which nobody has done.
        judged_by(bed, vec![custom("ask", "authz"), custom("more", "other")]);
        changed();
        assert_eq!(client.read(&mut bytes).await.unwrap_or(0), 0);
        let details = bed.last().details;
        assert!(details.contains("app/more rule 0 asks the provider other"), "{details}");
        // The service is not the same any more.
        judged_by(bed, vec![custom("ask", "authz")]);
        let mut client = upgraded(bed).await;
        provider(bed, "authz", |check| check.timeout = Duration::from_secs(1));
        changed();
        assert_eq!(client.read(&mut bytes).await.unwrap_or(0), 0);
    });
}

#[test]
fn a_body_takes_room_when_it_comes_and_not_when_it_is_announced() {
    run(async |bed| {
        provider(bed, "authz", |check| {
            let max_bytes = 48 << 20;
            check.body = Some(BodyCheck { max_bytes, allow_partial: false, as_bytes: false });
        });
        answers(bed, "authz", &sets(&[]));
        judged_by(bed, vec![custom("ask", "authz")]);
        bed.answers("web-1", OK);
        let announces = "POST / HTTP/1.1\r\nHost: w\r\nContent-Length: 50000000\r\n\r\na";
        let mut waiting = Vec::new();
        for _ in 0..3 {
            let mut client = bed.connect(ambit_http::engine::Speaks::Http);
            client.write_all(announces.as_bytes()).await.unwrap();
            waiting.push(client);
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
        let answer = bed.ask(&post("hello")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}

#[test]
fn a_client_cannot_say_what_a_service_says_that_it_never_asked() {
    for (include, expected) in [(vec![], ""), (vec![TextMatch::Exact("x-user".into())], "eve")] {
        run(async |bed| {
            provider(bed, "authz", |check| {
                http(check, |call| {
                    call.include.clone_from(&include);
                    call.to_upstream_on_allow =
                        vec![TextMatch::Prefix("x-us".into()), TextMatch::Presence];
                });
            });
            bed.answers("authz-1", OK);
            judged_by(bed, vec![custom("ask", "authz")]);
            let heard = bed.hears("web-1", OK);
            let answer = bed.ask(&get("/", "X-User: eve\r\nX-Other: o\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            let heard = heard.borrow().to_ascii_lowercase();
            let user = heard.split("x-user: ").nth(1).and_then(|it| it.split('\r').next());
            assert_eq!(user.unwrap_or_default(), expected, "{heard}");
            assert!(heard.contains("x-other: o\r\n"), "nobody reads a word in it: {heard}");
        });
    }
}
