//! Limits that a service of Envoy's rate limit protocol counts, on one machine. The service is this
//! program's own, in the network of a pod.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use ambit_net::namespace::NetNs;
use ambit_wire::proto::envoy::service::ratelimit::v3 as proto;
use bytes::{BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use http::{HeaderMap, HeaderValue, Response};
use prost::Message as _;
use proto::RateLimitResponse;
use proto::rate_limit_response::{self as response, Code};
use tokio::net::TcpStream;

use crate::machine::{Machine, Mesh, SETTLE_TIMEOUT, sum};
use crate::rate_limits::{ask, ask_from};

/// The service is in the pod of the application, beside it.
const COUNTED: &str = "\
apiVersion: v1
kind: Service
metadata: {name: counter, namespace: app}
spec:
  selector: {app: server}
  ports: [{name: grpc, port: 8081}]
---
apiVersion: ambit.io/v1alpha1
kind: TrafficPolicy
metadata: {name: counted, namespace: app}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  rateLimits:
  - name: per-user
    clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
    global: {backendRef: {name: counter, port: 8081}, domain: shop, timeout: 5s}
";
/// Beside what the service counts, what each pod of the waypoint counts by itself.
const APART: &str = "  - name: per-tenant
    clientSelectors: [{headers: [{name: x-tenant, type: Distinct}]}]
    limit: {requests: 2, unit: Day}
";
/// How many requests are asked at most until each of two pods has refused one.
const TRIES: usize = 60;
/// How many requests of a user the service lets pass.
const MOST: u32 = 3;

type Counts = Arc<Mutex<BTreeMap<String, u32>>>;

#[test]
fn a_service_counts_requests_and_nobody_passes_without_it() {
    let machine = Machine::up("counted", Mesh::On, &[]);
    machine.put_behind_waypoint(|| ask(&machine, "/", "").starts_with("HTTP/1.1 200"));
    machine.apply(COUNTED);
    let mut refused = String::new();
    machine.wait("nobody counts, so it is refused", SETTLE_TIMEOUT, || {
        refused = ask(&machine, "/", "x-user: first");
        refused.starts_with("HTTP/1.1 503")
    });
    assert!(refused.contains("x-ambit-reason: rate_limit_no_answer"), "{refused}");
    assert!(ask(&machine, "/", "").starts_with("HTTP/1.1 200"), "no limit counts it");
    serve(&machine, "app/server");
    machine.wait("the service counts", SETTLE_TIMEOUT, || {
        ask(&machine, "/", "x-user: first").starts_with("HTTP/1.1 200")
    });
    for user in ["ann", "bob"] {
        let field = format!("x-user: {user}");
        let answers: Vec<String> = (0..5).map(|_| ask(&machine, "/", &field)).collect();
        let statuses: Vec<&str> = answers.iter().map(|it| &it[9..12]).collect();
        assert_eq!(statuses, ["200", "200", "200", "429", "429"], "{user}");
        let counted = format!("x-counted: shop generic_key=per-user x-user={user}");
        assert!(answers.iter().all(|it| it.contains(&counted)), "{answers:?}");
    }
    machine.delete(COUNTED);
    machine.down();
}

#[test]
fn pods_share_what_a_service_counts_and_nothing_that_they_count_themselves() {
    let machine = Machine::up("counted-by-two", Mesh::On, &[]);
    machine.put_behind_patched_waypoint("spec: {replicas: 2}", || {
        machine.waypoint_pods().len() == 2 && ask(&machine, "/", "").starts_with("HTTP/1.1 200")
    });
    machine.apply(&format!("{COUNTED}{APART}"));
    serve(&machine, "app/server");
    // Both pods ask it: each client's connections go to either.
    machine.wait("the service counts", SETTLE_TIMEOUT, || {
        (0..8).all(|number| {
            let client = if number % 2 == 0 { "client/load" } else { "client/near" };
            let answer = ask_from(&machine, client, "/", &format!("x-user: first-{number}"));
            answer.contains("x-counted: ")
        })
    });
    assert_eq!(passed(&machine, "per-user", "x-user: ann"), MOST as usize, "of both together");
    assert_eq!(passed(&machine, "per-tenant", "x-tenant: a"), 2 * 2, "two of each");
    machine.down();
}

/// How many requests pass until each of the waypoint's two pods has refused one by this limit.
fn passed(machine: &Machine, limit: &str, field: &str) -> usize {
    let pods = machine.waypoint_pods();
    let labels = [&*format!("rule=\"{limit}\""), "outcome=\"refused\""];
    let refuses = |pod: &String| {
        let metrics = machine.page(&format!("app/{pod}"), "127.0.0.1/15020", "/metrics");
        sum(&metrics, "ambit_rate_limited_total", &labels) > 0
    };
    let mut passed = 0;
    for _ in 0..TRIES {
        for client in ["client/load", "client/near"] {
            let answer = ask_from(machine, client, "/", field);
            match &answer[9..12] {
                "200" => passed += 1,
                status => assert_eq!(status, "429", "{answer}"),
            }
        }
        if pods.iter().all(refuses) {
            return passed;
        }
    }
    panic!("{passed} of {TRIES} requests of each client have passed, and a pod has refused none");
}

/// Counts for as long as this program runs, at port 8081 of a pod.
fn serve(machine: &Machine, pod: &str) {
    let network = NetNs::open(format!("/proc/{}/ns/net", machine.pid(pod))).expect("its network");
    let bound = network.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 8081)));
    let listener = bound.expect("root may enter it").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            let counts = Counts::default();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, counts.clone()));
            }
        });
    });
}

async fn connection(stream: TcpStream, counts: Counts) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let counts = counts.clone();
        tokio::spawn(async move {
            let path = request.uri().path().to_owned();
            assert_eq!(path, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
            let message = message(request.into_body()).await;
            let answer = answer(&message, &counts).encode_to_vec();
            let mut framed = BytesMut::new();
            framed.put_u8(0);
            framed.put_u32(u32::try_from(answer.len()).expect("short"));
            framed.put_slice(&answer);
            let head = Response::builder().header("content-type", "application/grpc");
            let mut body = respond.send_response(head.body(()).expect("a head"), false)?;
            body.send_data(framed.freeze(), false)?;
            let ok = ("grpc-status", HeaderValue::from_static("0"));
            body.send_trailers(HeaderMap::from_iter([(ok.0.parse().expect("a name"), ok.1)]))
        });
    }
}

/// The message of a question of gRPC.
async fn message(mut body: RecvStream) -> proto::RateLimitRequest {
    let mut all = BytesMut::new();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).expect("what was received");
        all.extend_from_slice(&data);
    }
    let framed: Bytes = all.freeze();
    proto::RateLimitRequest::decode(framed.slice(5..)).expect("a question")
}

fn answer(message: &proto::RateLimitRequest, counts: &Counts) -> RateLimitResponse {
    let [descriptor] = &message.descriptors[..] else { panic!("{message:?}") };
    let entries = descriptor.entries.iter().map(|it| format!(" {}={}", it.key, it.value));
    let counted = format!("{}{}", message.domain, entries.collect::<String>());
    let mut counts = counts.lock().expect("no thread has panicked");
    let count = counts.entry(counted.clone()).or_default();
    *count += message.hits_addend;
    let code = if *count > MOST { Code::OverLimit } else { Code::Ok };
    let field = response::HeaderValue {
        key: "x-counted".to_owned(),
        value: counted,
        raw_value: Bytes::new(),
    };
    RateLimitResponse {
        overall_code: code.into(),
        response_headers_to_add: vec![field],
        ..RateLimitResponse::default()
    }
}
