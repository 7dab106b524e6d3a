//! Clients from outside at a gateway that does what the waypoint of a service does: nothing that
//! holds for the service is passed by, whichever way a request takes.

use std::sync::Arc;

use ambit_model::http::bytes::{BytesBackend, BytesRule};
use ambit_model::http::gateway::{Listener, ListenerSpeaks};
use ambit_model::http::policy::{
    Action as Effect, ClientMatch, OperationMatch, RequestPolicy, RequestRule, Values,
};
use ambit_model::http::rule::{Action, Destination, RouteKind};
use ambit_model::http::service::{RouteGroup, Routes};
use ambit_model::http::traffic::{Limits, TrafficPolicy};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::TextMatch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::task::spawn_local;

use super::edge::{FINE, PORT, get, http, leads, leads_to, origin, says, web};
use super::world::{self, GOOD, Served, UNDECLARED, World, answer, run_gateway, until};

/// A policy with one rule.
fn policy(action: Effect, rule: RequestRule) -> RequestPolicy {
    let key = PolicyName::new("app", "of-service");
    RequestPolicy { key, action, is_dry_run: false, rules: vec![rule], condition: None }
}

/// A rule for what this account asks.
fn from(account: &str) -> RequestRule {
    let principal = TextMatch::Exact(format!("cluster.local/ns/app/sa/{account}").into());
    let principals = Values { any_of: vec![principal], none_of: Vec::new() };
    let from = vec![ClientMatch { principals, ..ClientMatch::default() }];
    RequestRule { from, ..RequestRule::default() }
}

/// A rule for requests of this method.
fn of_method(method: &str) -> RequestRule {
    let methods = Values { any_of: vec![TextMatch::Exact(method.into())], none_of: Vec::new() };
    let to = vec![OperationMatch { methods, ..OperationMatch::default() }];
    RequestRule { to, ..RequestRule::default() }
}

async fn status(world: &World, fields: &str) -> u16 {
    let answer = world.ask_gateway(PORT, &get("web", fields)).await;
    answer.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or_default()
}

fn listeners() -> Vec<Served> {
    vec![http("web", PORT, None, leads_to(GOOD))]
}

#[test]
fn without_an_entrance_nobody_gets_around_the_waypoint() {
    run_gateway(&[], listeners(), async |world| {
        assert_eq!(status(world, "").await, 200, "it has no waypoint");
        world.front(false);
        assert_eq!(status(world, "").await, 503, "the waypoint has no pod");
        world.front(true);
        assert_eq!(status(world, "").await, 200);
        world.front(false);
        assert_eq!(status(world, "").await, 503);
    });
}

#[test]
fn policies_of_the_service_judge_what_enters_with_the_gateway_as_the_client() {
    run_gateway(&[], listeners(), async |world| {
        world.front(true);
        for (policy, expected) in [
            (policy(Effect::Allow, from("way")), 200),
            (policy(Effect::Allow, from("client")), 403),
            (policy(Effect::Deny, from("way")), 403),
            (policy(Effect::Deny, of_method("GET")), 403),
            (policy(Effect::Deny, of_method("POST")), 200),
        ] {
            world.judge_by(policy.clone());
            assert_eq!(status(world, "").await, expected, "{policy:?}");
        }
    });
}

#[test]
fn routes_of_the_service_answer_what_enters() {
    run_gateway(&[], listeners(), async |world| {
        world.front(true);
        let teapot = says(Action::Respond { status: 418, body: "teapot".into() });
        let of = |rule| RouteGroup { client_namespace: None, port: None, rules: vec![rule] };
        world.change_http(|it| it.routes = Routes::new(vec![of(teapot)]));
        assert_eq!(status(world, "").await, 418);
        world.change_http(|it| it.routes = Routes::new(vec![of(leads_to(GOOD))]));
        assert_eq!(status(world, "").await, 200);
        // Policies hold for them as well.
        world.judge_by(policy(Effect::Deny, from("way")));
        assert_eq!(status(world, "").await, 403);
        world.front(false);
        assert_eq!(status(world, "").await, 503);
    });
}

#[test]
fn a_request_that_enters_does_not_wait_for_itself() {
    run_gateway(&[], listeners(), async |world| {
        world.front(true);
        let of = |rule| RouteGroup { client_namespace: None, port: None, rules: vec![rule] };
        world.change_http(|it| {
            it.routes = Routes::new(vec![of(leads_to(GOOD))]);
            let limits = Limits { requests: Some(1), connections: Some(1), ..Limits::default() };
            it.traffic.all = TrafficPolicy { limits, ..TrafficPolicy::default() };
        });
        for _ in 0..3 {
            assert_eq!(status(world, "").await, 200);
        }
    });
}

#[test]
fn what_was_open_is_cut_when_a_policy_denies_it() {
    let upgrade = "GET / HTTP/1.1\r\nHost: web\r\nConnection: upgrade\r\n\
                   Upgrade: websocket\r\n\r\n";
    let check = |is_routed: bool| {
        run_gateway(&[], vec![http("web", PORT, None, leads_to(UNDECLARED))], async |world| {
            world.front(true);
            if is_routed {
                let rules = vec![leads_to(UNDECLARED)];
                let group = RouteGroup { client_namespace: None, port: None, rules };
                world.change_http(|it| it.routes = Routes::new(vec![group]));
            }
            world.serve(UNDECLARED, |mut stream| async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut head).await.unwrap();
                }
                let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                                Upgrade: websocket\r\n\r\n";
                stream.write_all(switched.as_bytes()).await.unwrap();
                let (mut from, mut to) = split(stream);
                let _broken = copy(&mut from, &mut to).await;
            });
            let mut client = world.enter(PORT).await;
            client.write_all(upgrade.as_bytes()).await.unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(b"\r\n\r\n") {
                assert_ne!(client.read_buf(&mut heard).await.unwrap(), 0, "{heard:?}");
            }
            assert!(heard.starts_with(b"HTTP/1.1 101 "), "{heard:?}");
            client.write_all(b"still here").await.unwrap();
            let mut echo = [0; 10];
            client.read_exact(&mut echo).await.unwrap();
            world.judge_by(policy(Effect::Deny, from("way")));
            let mut rest = Vec::new();
            let _reset = client.read_to_end(&mut rest).await;
            assert!(rest.is_empty(), "{rest:?}");
        });
    };
    check(false);
    check(true);
}

#[test]
fn connections_that_are_no_http_enter_as_well() {
    let rule = BytesRule {
        origin: origin(RouteKind::TcpRoute, "tcp"),
        matches: Vec::new(),
        backends: vec![BytesBackend { weight: 1, destination: web(UNDECLARED) }],
    };
    let tcp = Served::bare(Listener::new("tcp".into(), PORT, None, ListenerSpeaks::Tcp));
    run_gateway(&[], vec![tcp.with_bytes(Arc::new(rule))], async |world| {
        world.serve(UNDECLARED, |stream| async move {
            let (mut from, mut to) = split(stream);
            let _broken = copy(&mut from, &mut to).await;
        });
        let ask = async || {
            let mut client = world.enter(PORT).await;
            let _refused = client.write_all(b"\0bytes").await;
            let _refused = client.shutdown().await;
            let mut all = Vec::new();
            let _broken = client.read_to_end(&mut all).await;
            all
        };
        world.front(true);
        assert_eq!(ask().await, b"\0bytes");
        world.judge_by(policy(Effect::Deny, from("way")));
        assert_eq!(ask().await, b"", "a policy of the service denies the gateway");
        until("it is counted", || world.sum("ambit_refusals_total", "denied") == 1.0).await;
        world.front(false);
        assert_eq!(ask().await, b"", "the waypoint has no pod");
    });
}

/// One more service, whose pod is of the other one too; what it answers is 201.
async fn second(world: &World, other: &ServiceName) -> ServiceName {
    let name = ServiceName::new("app", "second.app.svc.cluster.local");
    let listener = world.second_service(&name, other).await;
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(answer(stream, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    name
}

fn to(name: &ServiceName) -> Destination {
    Destination::Service { name: name.clone(), port: GOOD, subset: None }
}

#[test]
fn routes_of_the_service_lead_where_its_waypoint_would_reach_and_no_further() {
    run_gateway(&[], listeners(), async |world| {
        let second = second(world, &world::web()).await;
        world.front(true);
        let rules = vec![leads(to(&second))];
        let group = RouteGroup { client_namespace: None, port: None, rules };
        world.change_http(|it| it.routes = Routes::new(vec![group]));
        for (waypoint, is_entered, expected) in [
            ("other", true, 201),
            // Its pods would not take what comes from here, and its waypoint has no pod.
            ("other", false, 503),
            // Another waypoint may hold more.
            ("third", true, 503),
            ("third", false, 503),
            // It has none, and its pod is of the first service too.
            ("", false, 201),
        ] {
            let named = Some(waypoint).filter(|it| !it.is_empty());
            world.front_second(&second, named, is_entered);
            assert_eq!(status(world, "").await, expected, "{waypoint} {is_entered}");
        }
    });
}

#[test]
fn another_service_of_the_same_pod_is_no_way_around() {
    run_gateway(&[], Vec::new(), async |world| {
        let second = second(world, &world::web()).await;
        world.front_second(&second, None, false);
        world.listen(vec![http("web", PORT, None, leads(to(&second)))]);
        assert_eq!(status(world, "").await, 201);
        // Its pod takes what comes from here for what was judged on entering the first service.
        world.front(true);
        let answer = world.ask_gateway(PORT, &get("web", "")).await;
        assert!(answer.contains("denied_at_destination"), "{answer}");
        world.front(false);
        assert_eq!(status(world, "").await, 201);
    });
}

#[test]
fn routes_of_the_service_are_no_way_around_another_waypoint_of_the_pod() {
    run_gateway(&[], listeners(), async |world| {
        let third = ServiceName::new("app", "third.app.svc.cluster.local");
        let second = second(world, &third).await;
        world.front_second(&second, None, false);
        world.front(true);
        let rules = vec![leads(to(&second))];
        let group = RouteGroup { client_namespace: None, port: None, rules };
        world.change_http(|it| it.routes = Routes::new(vec![group]));
        assert_eq!(status(world, "").await, 201);
        world.front_second(&third, Some("third"), true);
        assert_eq!(status(world, "").await, 503, "its pod would take it for judged by the third");
    });
}

#[test]
fn a_pipe_is_never_taken_for_a_connection_to_the_address_that_it_is_named_for() {
    run_gateway(&[], listeners(), async |world| {
        world.front(true);
        let listener = world.pass_through().await;
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(answer(stream, FINE));
            }
        });
        let two = async || tokio::join!(status(world, ""), status(world, ""));
        assert_eq!(two().await, (200, 200));
        assert_eq!(two().await, (200, 200));
        // As many as connections are idle: pipes and what they led to.
        world.judge_by(policy(Effect::Deny, from("way")));
        for _ in 0..3 {
            let four = tokio::join!(two(), two());
            assert_eq!(four, ((403, 403), (403, 403)));
        }
    });
}
