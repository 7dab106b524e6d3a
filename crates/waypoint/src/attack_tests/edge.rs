//! Clients from outside of the mesh, at a gateway: whose they are, what they may say of themselves,
//! and what becomes of them as listeners come and go.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_model::http::bytes::{BytesBackend, BytesRule, ServerNameMatch};
use ambit_model::http::gateway::{
    Challenge, GatewayRouteName, HostMatch, Listener, ListenerSpeaks,
};
use ambit_model::http::policy::{
    Action as Effect, ClientMatch, RequestPolicy, RequestRule, Values,
};
use ambit_model::http::rule::{
    Action, Backend, Destination, Faults, HeaderChanges, Origin, Rewrite, RouteKind, Rule, Timeouts,
};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::view::Change;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::world::{GOOD, HTTP, Served, UNDECLARED, VIP, World, answer, run_gateway, until};

pub(super) const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";
pub(super) const PORT: u16 = 8080;

pub(super) fn origin(kind: RouteKind, name: &str) -> Origin {
    let (namespace, name) = ("app".into(), name.into());
    Origin { kind, namespace, name, created_unix_s: 0, index: 0, rule_name: None }
}

pub(super) fn web(port: u16) -> Destination {
    let name = ServiceName::new("app", "web.app.svc.cluster.local");
    Destination::Service { name, port, subset: None }
}

/// A rule for everything that leads to a port of the service.
pub(super) fn leads_to(port: u16) -> Arc<Rule> {
    leads(web(port))
}

/// A rule for everything that leads there.
pub(super) fn leads(destination: Destination) -> Arc<Rule> {
    let backend = Backend {
        weight: 1,
        destination,
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
    };
    let backends = vec![backend];
    says(Action::Forward { backends, rewrite: Rewrite::default() })
}

pub(super) fn says(action: Action) -> Arc<Rule> {
    Arc::new(Rule {
        origin: origin(RouteKind::HttpRoute, "route"),
        matches: Vec::new(),
        action,
        request_headers: HeaderChanges::default(),
        response_headers: HeaderChanges::default(),
        mirrors: Vec::new(),
        cors: None,
        faults: Faults::default(),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
    })
}

/// A listener for HTTP at this port, with a rule for all of its requests.
pub(super) fn http(name: &str, port: u16, host: Option<&str>, rule: Arc<Rule>) -> Served {
    let host = host.map(HostMatch::new);
    Served::bare(Listener::new(name.into(), port, host, ListenerSpeaks::Http)).with_rule(rule)
}

pub(super) fn get(host: &str, fields: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n").into_bytes()
}

/// Serves a port of the service, and keeps the heads of requests in lower case.
fn heads_of(world: &World, port: u16) -> Rc<RefCell<Vec<String>>> {
    let heads = Rc::new(RefCell::new(Vec::new()));
    let kept = heads.clone();
    world.serve(port, move |mut stream| {
        let kept = kept.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut head).await.unwrap_or_default() == 0 {
                    return;
                }
            }
            kept.borrow_mut().push(String::from_utf8_lossy(&head).to_lowercase());
            stream.write_all(FINE.as_bytes()).await.unwrap();
            answer(stream, FINE).await;
        }
    });
    heads
}

#[test]
fn a_request_is_for_the_most_specific_listener_that_has_its_host() {
    let special = says(Action::Respond { status: 203, body: "special".into() });
    let listeners = vec![
        http("wide", PORT, Some("*.example.com"), leads_to(GOOD)),
        http("special", PORT, Some("special.example.com"), special),
    ];
    run_gateway(&[], listeners, async |world| {
        for (host, status, body) in [
            ("a.example.com", 200, "fine"),
            ("A.B.Example.com:8080", 200, "fine"),
            ("special.example.com", 203, "special"),
            ("example.com", 404, ""),
            ("other.org", 404, ""),
        ] {
            let answer = world.ask_gateway(PORT, &get(host, "")).await;
            let start = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&start) && answer.ends_with(body), "{host}: {answer}");
        }
    });
}

#[test]
fn what_a_client_from_outside_says_of_itself_is_not_passed_on() {
    let listeners = vec![http("web", PORT, None, leads_to(HTTP))];
    run_gateway(&[], listeners, async |world| {
        let heads = heads_of(world, HTTP);
        let claims = "X-Forwarded-Client-Cert: By=x;URI=spiffe://cluster.local/ns/app/sa/boss\r\n\
                      X-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.1\r\n\
                      x_forwarded_for: 192.0.2.2\r\nX-Envoy-Max-Retries: 9\r\n\
                      X-Envoy-External-Address: 192.0.2.3\r\nx_envoy_internal: true\r\n";
        let answer = world.ask_gateway(PORT, &get("web", claims)).await;
        assert!(answer.ends_with("fine"), "{answer}");
        let head = heads.borrow()[0].clone();
        for absent in ["client-cert", "192.0.2.2", "192.0.2.3", "envoy", "https"] {
            assert!(!head.contains(absent), "{absent}: {head}");
        }
        assert!(head.contains("\r\nx-forwarded-proto: http\r\n"), "{head}");
        assert!(head.contains("\r\nx-forwarded-for: 192.0.2.1, 127.0.0.1\r\n"), "{head}");
    });
}

/// Nobody from this block may ask.
fn closed_to(block: &str) -> RequestPolicy {
    let blocks = Values { any_of: vec![block.parse().unwrap()], none_of: Vec::new() };
    let from = vec![ClientMatch { remote_ip_blocks: blocks, ..ClientMatch::default() }];
    let rules = vec![RequestRule { from, ..RequestRule::default() }];
    let key = PolicyName::new("app", "test");
    RequestPolicy { key, action: Effect::Deny, is_dry_run: false, rules, condition: None }
}

#[test]
fn only_proxies_that_are_believed_say_where_a_client_is() {
    let check = |trusted: &str, said: &str, block: &str, status: u16| {
        let listeners = vec![http("web", PORT, None, leads_to(GOOD))];
        let flag = format!("--trusted-proxies={trusted}");
        run_gateway(&[&flag], listeners, async |world| {
            world.judge_outside_by(closed_to(block));
            let fields = format!("X-Forwarded-For: {said}\r\n");
            let answer = world.ask_gateway(PORT, &get("web", &fields)).await;
            let start = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&start), "{trusted}, {said}, {block}: {answer}");
        });
    };
    check("0", "192.0.2.1", "192.0.2.0/24", 200);
    check("0", "192.0.2.1", "127.0.0.0/8", 403);
    check("1", "192.0.2.1", "192.0.2.0/24", 403);
    check("1", "192.0.2.1, 198.51.100.1", "192.0.2.0/24", 200);
    check("1", "192.0.2.1, 198.51.100.1", "198.51.100.0/24", 403);
    check("2", "192.0.2.1, 198.51.100.1", "192.0.2.0/24", 403);
    // Fewer have spoken than are believed: it is the connection's own address.
    check("2", "192.0.2.1", "127.0.0.0/8", 403);
    check("1", "no address", "127.0.0.0/8", 403);
}

#[test]
fn a_directory_is_answered_before_policies_and_routes_and_nobody_else_is() {
    let listeners = || vec![http("web", PORT, Some("other.org"), leads_to(GOOD))];
    run_gateway(&[], listeners(), async |world| {
        let (host, token, answer) = ("a.example.com".into(), "abc".into(), "abc.thumb".into());
        world.answer(listeners(), Challenge { host, token, answer });
        world.judge_outside_by(closed_to("127.0.0.0/8"));
        for (host, path, status, body) in [
            ("a.example.com", "/.well-known/acme-challenge/abc", 200, "abc.thumb"),
            ("A.Example.com:80", "/.well-known/acme-challenge/abc", 200, "abc.thumb"),
            ("a.example.com", "/.well-known/acme-challenge/abd", 403, "RBAC: access denied"),
            ("other.org", "/.well-known/acme-challenge/abc", 403, "RBAC: access denied"),
            ("a.example.com", "/", 403, "RBAC: access denied"),
        ] {
            let request = get(host, "");
            let request =
                String::from_utf8(request).unwrap().replace("GET /", &format!("GET {path}"));
            let answer = world.ask_gateway(PORT, request.as_bytes()).await;
            let start = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&start) && answer.ends_with(body), "{host}{path}: {answer}");
        }
    });
}

#[test]
fn a_load_balancer_says_where_a_client_is_if_that_is_asked_for() {
    let listeners = || vec![http("web", PORT, None, leads_to(HTTP))];
    run_gateway(&["--proxy-protocol"], listeners(), async |world| {
        let heads = heads_of(world, HTTP);
        let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 1234 80\r\n";
        let answer = world.ask_gateway(PORT, &[&line[..], &get("web", "")].concat()).await;
        assert!(answer.ends_with("fine"), "{answer}");
        assert!(heads.borrow()[0].contains("x-forwarded-for: 192.0.2.7\r\n"));
        let bare = world.ask_gateway(PORT, &get("web", "")).await;
        assert_eq!(bare, "", "who goes around the load balancer is refused");
    });
    run_gateway(&[], listeners(), async |world| {
        let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 1234 80\r\n";
        let answer = world.ask_gateway(PORT, &[&line[..], &get("web", "")].concat()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    });
}

#[test]
fn listeners_come_and_go_and_requests_under_way_end_well() {
    let all =
        || vec![http("one", PORT, None, leads_to(HTTP)), http("two", 8081, None, leads_to(GOOD))];
    run_gateway(&[], vec![http("two", 8081, None, leads_to(GOOD))], async |world| {
        let refused = TcpStream::connect(("127.0.0.1", PORT)).await;
        assert!(refused.is_err(), "nothing listens there yet");
        world.listen(all());
        world.serve(HTTP, |mut stream| async move {
            stream.read_buf(&mut Vec::new()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            stream.write_all(FINE.as_bytes()).await.unwrap();
            stream.read_buf(&mut Vec::new()).await.unwrap_or_default();
        });
        let mut client = world.enter(PORT).await;
        client.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.listen(vec![http("two", 8081, None, leads_to(GOOD))]);
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert!(got.starts_with("HTTP/1.1 200 ") && got.ends_with("fine"), "{got}");
        let is_closed = async {
            while TcpStream::connect(("127.0.0.1", PORT)).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        is_closed.await;
        let other = world.ask_gateway(8081, &get("web", "")).await;
        assert!(other.ends_with("fine"), "{other}");
    });
}

#[test]
fn with_a_route_that_cannot_be_read_nobody_is_taken() {
    run_gateway(&[], vec![http("web", PORT, None, leads_to(GOOD))], async |world| {
        assert!(world.ask_gateway(PORT, &get("web", "")).await.ends_with("fine"));
        let name: GatewayRouteName = world.route_of_gateway("newer");
        world.tell(Change::UnreadableGatewayRoute(name.clone()));
        let is_taken = async || TcpStream::connect(("127.0.0.1", PORT)).await.is_ok();
        while is_taken().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        world.tell(Change::RemoveGatewayRoute(name));
        while !is_taken().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(world.ask_gateway(PORT, &get("web", "")).await.ends_with("fine"));
    });
}

#[test]
fn connections_that_are_no_http_go_where_a_route_says_and_nowhere_without() {
    let rule = BytesRule {
        origin: origin(RouteKind::TcpRoute, "tcp"),
        matches: Vec::new(),
        backends: vec![BytesBackend { weight: 1, destination: web(UNDECLARED) }],
    };
    let tcp = |name: &str, port| {
        Served::bare(Listener::new(name.into(), port, None, ListenerSpeaks::Tcp))
    };
    let tls = |name: &str, port, host: &str| {
        let host = Some(ServerNameMatch::new(host));
        Served::bare(Listener::new(name.into(), port, host, ListenerSpeaks::TlsPassthrough))
    };
    let rule = Arc::new(rule);
    let listeners = vec![
        tcp("tcp", PORT).with_bytes(rule.clone()),
        tcp("bare", 8081),
        tls("tls", 8443, "*.example.com").with_bytes(rule),
    ];
    run_gateway(&[], listeners, async |world| {
        world.serve(UNDECLARED, |stream| async move {
            let (mut from, mut to) = split(stream);
            let _broken = copy(&mut from, &mut to).await;
        });
        let ask = async |port: u16, bytes: &[u8]| {
            let mut client = world.enter(port).await;
            let _refused = client.write_all(bytes).await;
            let _refused = client.shutdown().await;
            let mut all = Vec::new();
            let _broken = client.read_to_end(&mut all).await;
            all
        };
        assert_eq!(ask(PORT, b"\0bytes").await, b"\0bytes");
        assert_eq!(ask(8081, b"\0bytes").await, b"", "no route takes it");
        let hello = |name: &str| hello(name);
        assert_eq!(ask(8443, &hello("a.example.com")).await, hello("a.example.com"));
        assert_eq!(ask(8443, &hello("example.com")).await, b"");
        assert_eq!(ask(8443, b"GET / HTTP/1.1\r\n\r\n").await, b"", "it is no TLS");
        let refusals = || world.sum("ambit_refusals_total", "no_route");
        until("it is counted", || refusals() == 1.0).await;
    });
}

#[test]
fn datagrams_have_a_session_for_each_client_and_end_when_a_policy_denies_them() {
    let rule = BytesRule {
        origin: origin(RouteKind::UdpRoute, "udp"),
        matches: Vec::new(),
        backends: vec![BytesBackend { weight: 1, destination: web(UNDECLARED) }],
    };
    let udp = |name: &str, port| {
        Served::bare(Listener::new(name.into(), port, None, ListenerSpeaks::Udp))
    };
    let tcp = Served::bare(Listener::new("tcp".into(), PORT, None, ListenerSpeaks::Tcp));
    let listeners = vec![
        udp("udp", PORT).with_bytes(Arc::new(rule.clone())),
        tcp.with_bytes(Arc::new(rule)),
        udp("bare", 8081),
    ];
    run_gateway(&[], listeners, async |world| {
        let echo = UdpSocket::bind((VIP, UNDECLARED)).await.unwrap();
        let sessions = Rc::new(RefCell::new(BTreeSet::new()));
        let seen = sessions.clone();
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 70_000];
            while let Ok((length, from)) = echo.recv_from(&mut buffer).await {
                seen.borrow_mut().insert(from);
                echo.send_to(&buffer[..length], from).await.unwrap();
            }
        });
        // Its listeners are open by then.
        drop(world.enter(PORT).await);
        let client = async |port: u16| {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.connect(("127.0.0.1", port)).await.unwrap();
            socket
        };
        let ask = async |socket: &UdpSocket, datagram: &[u8]| {
            socket.send(datagram).await.unwrap();
            let mut buffer = vec![0; 70_000];
            let answer = timeout(Duration::from_millis(300), socket.recv(&mut buffer)).await;
            answer.ok().map(|length| buffer[..length.unwrap()].to_vec())
        };
        let (one, two) = (client(PORT).await, client(PORT).await);
        for datagram in [&b"a"[..], b"", &[7; 60_000]] {
            assert_eq!(ask(&one, datagram).await.as_deref(), Some(datagram));
            assert_eq!(ask(&two, datagram).await.as_deref(), Some(datagram));
        }
        assert_eq!(sessions.borrow().len(), 2);
        assert_eq!(ask(&client(8081).await, b"a").await, None);
        until("it is counted", || world.sum("ambit_refusals_total", "no_route") == 1.0).await;
        world.judge_outside_by(RequestPolicy {
            key: PolicyName::new("app", "nobody"),
            action: Effect::Deny,
            is_dry_run: false,
            rules: vec![RequestRule::default()],
            condition: None,
        });
        until("both end", || world.sum("ambit_refusals_total", "denied") == 2.0).await;
        assert_eq!(ask(&one, b"a").await, None);
        until("it is judged anew", || world.sum("ambit_refusals_total", "denied") == 3.0).await;
    });
}

/// A client's first message in TLS, which asks for this name.
fn hello(name: &str) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let name = name.as_bytes();
    let entry = [&[0][..], &length(name.len()), name].concat();
    let list = [&length(entry.len())[..], &entry].concat();
    let extension = [&[0, 0][..], &length(list.len()), &list].concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend(length(extension.len()));
    body.extend(extension);
    let mut message = vec![1, 0];
    message.extend(length(body.len()));
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend(length(message.len()));
    record.extend(message);
    record
}
