//! Limits that a service counts: what it is asked, and what becomes of its answers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ambit_http::engine::record::{Flags, LimitOutcome};
use ambit_model::http::rate_limit::bucket::{Quota, Unit};
use ambit_model::http::rate_limit::{Attribute, Cost, Counter, GlobalCounter, RateLimit};
use ambit_model::names::ServiceName;
use ambit_wire::proto::envoy::service::ratelimit::v3 as proto;
use prost::Message;
use proto::RateLimitResponse;
use proto::rate_limit_response::rate_limit::Unit as WireUnit;
use proto::rate_limit_response::{Code, DescriptorStatus, HeaderValue, RateLimit as WireLimit};
use tokio::io::DuplexStream;
use tokio::task::spawn_local;

use crate::grpc;
use crate::rate_limits::{hold, limit, statuses};
use crate::world::{Bed, run};

const OK: &str = "HTTP/1.1 200 OK\r\nX-Tokens: 40\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: web\r\nX-User: ann\r\nConnection: close\r\n\r\n";

type Asked = Rc<RefCell<Vec<proto::RateLimitRequest>>>;

fn global(name: &str, change: impl FnOnce(&mut GlobalCounter)) -> RateLimit {
    let mut counter = GlobalCounter {
        service: ServiceName::new("app", "counter"),
        port: 8081,
        domain: "shop".into(),
        descriptor: vec![("generic_key".into(), name.into())],
        quota: None,
        timeout: Duration::from_secs(20),
        denies_without_answer: false,
    };
    change(&mut counter);
    RateLimit { counter: Counter::Global(Arc::new(counter)), ..limit(name, 1) }
}

fn answer(code: Code) -> RateLimitResponse {
    let header = |key: &str, value: &str| HeaderValue {
        key: key.to_owned(),
        value: value.to_owned(),
        raw_value: Default::default(),
    };
    let current =
        WireLimit { requests_per_unit: 7, unit: WireUnit::Minute.into(), name: String::new() };
    let status = DescriptorStatus {
        code: code.into(),
        current_limit: Some(current),
        limit_remaining: 4,
        duration_until_reset: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
    };
    RateLimitResponse {
        overall_code: code.into(),
        statuses: vec![status],
        response_headers_to_add: vec![header("x-quota", "a"), header("content-length", "9")],
        request_headers_to_add: vec![header("x-counted", "b"), header("host", "evil")],
        raw_body: "slow down".into(),
    }
}

/// An endpoint of the service that answers every question so.
fn counts(bed: &Bed, answer: &RateLimitResponse) -> Asked {
    let asked = Asked::default();
    let (keeps, message) = (asked.clone(), answer.encode_to_vec());
    bed.serve("counter-1", move |stream, _| {
        spawn_local(serve(stream, message.clone(), keeps.clone()));
    });
    asked
}

async fn serve(stream: DuplexStream, message: Vec<u8>, asked: Asked) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let (message, asked) = (message.clone(), asked.clone());
        spawn_local(async move {
            let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            assert_eq!(request.uri().path(), path);
            let all = grpc::question(request.into_body()).await;
            asked.borrow_mut().push(proto::RateLimitRequest::decode(&*all).unwrap());
            grpc::answer(&mut respond, &message);
        });
    }
}

#[test]
fn a_service_is_asked_and_its_fields_are_passed_on() {
    run(async |bed| {
        let heard = bed.hears("web-1", OK);
        let asked = counts(bed, &answer(Code::Ok));
        let quota = Quota { requests: 5, unit: Unit::Hour, burst: 5 };
        let mut user = global("user", |it| it.quota = Some(quota));
        user.distinct = vec![Attribute::Header("x-user".into()), Attribute::Principal];
        let absent = vec![Attribute::Header("x-absent".into())];
        let absent = RateLimit { distinct: absent, ..global("absent", |_| {}) };
        hold(bed, vec![limit("pod", 9), user, global("all", |_| {}), absent]);
        let response = bed.ask(GET).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(
            response.contains("x-quota: a\r\n") && response.ends_with("\r\n\r\nok"),
            "{response}"
        );
        assert!(response.contains("x-ratelimit-remaining: 4\r\n"), "{response}");
        assert!(heard.borrow().contains("x-counted: b\r\n"), "{heard:?}");
        assert!(!heard.borrow().contains("evil"), "{heard:?}");
        let asked = asked.borrow();
        assert_eq!((asked.len(), &*asked[0].domain, asked[0].hits_addend), (1, "shop", 1));
        let told = |it: &proto::RateLimitDescriptor| {
            let entries = it.entries.iter().map(|it| format!("{}={}", it.key, it.value));
            entries.collect::<Vec<_>>().join(" ")
        };
        let told: Vec<String> = asked[0].descriptors.iter().map(told).collect();
        let user = "generic_key=user x-user=ann principal=t/ns/shop/sa/cart";
        assert_eq!(told, [user, "generic_key=all"]);
        let limit = asked[0].descriptors[0].limit.as_ref().expect("the limit that is written");
        assert_eq!((limit.requests_per_unit, limit.unit()), (5, WireUnit::Hour));
    });
}

#[test]
fn what_the_service_refuses_is_refused_and_costs_the_pods_limits_nothing() {
    run(async |bed| {
        bed.answers("web-1", OK);
        counts(bed, &answer(Code::OverLimit));
        hold(bed, vec![limit("pod", 1), global("all", |_| {})]);
        for _ in 0..2 {
            let refused = bed.ask(GET).await;
            assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
            for field in [
                "x-quota: a",
                "retry-after: 30",
                "x-ratelimit-limit: 1, 1;w=3600;name=\"pod\", 7;w=60;name=\"all\"",
            ] {
                assert!(refused.contains(&format!("{field}\r\n")), "{field} in {refused}");
            }
            assert!(refused.ends_with("\r\n\r\nslow down"), "{refused}");
            let last = bed.last();
            assert_eq!((last.flags, &*last.limits[0].limit), (Flags::RateLimited, "all"));
        }
        let shadow = RateLimit { is_shadow: true, ..global("all", |_| {}) };
        hold(bed, vec![limit("pod", 1), shadow]);
        assert_eq!(statuses(bed, &["", ""]).await, [200, 429]);
    });
}

#[test]
fn without_an_answer_the_policy_decides() {
    run(async |bed| {
        bed.answers("web-1", OK);
        hold(bed, vec![global("all", |_| {})]);
        assert_eq!(statuses(bed, &[""]).await, [200], "there is no endpoint");
        assert!(bed.last().limits[0].outcome == LimitOutcome::FailedOpen);
        hold(bed, vec![global("all", |it| it.denies_without_answer = true)]);
        assert_eq!(statuses(bed, &[""]).await, [503]);
        let last = bed.last();
        let told = (last.reason, last.limits[0].outcome);
        assert_eq!(told, ("rate_limit_no_answer", LimitOutcome::Failed));
        // An answer that says nothing is a mistake that must be seen, whatever the policy says.
        counts(bed, &RateLimitResponse::default());
        hold(bed, vec![global("all", |_| {})]);
        assert_eq!(statuses(bed, &[""]).await, [503]);
        let shadow = RateLimit { is_shadow: true, ..global("all", |_| {}) };
        hold(bed, vec![shadow]);
        assert_eq!(statuses(bed, &[""]).await, [200]);
        // One that does not come is not waited for.
        bed.serve("silent-1", |stream, _| {
            spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut held = Vec::new();
                while let Some(Ok(request)) = connection.accept().await {
                    held.push(request);
                }
            });
        });
        let late = |it: &mut GlobalCounter| {
            it.service = ServiceName::new("app", "silent");
            it.timeout = Duration::from_millis(20);
        };
        hold(bed, vec![global("all", late)]);
        assert_eq!(statuses(bed, &[""]).await, [200]);
    });
}

#[test]
fn what_a_response_costs_is_counted_behind_it() {
    run(async |bed| {
        bed.answers("web-1", OK);
        let asked = counts(bed, &answer(Code::Ok));
        let response_cost = Some(Cost::Header { name: "x-tokens".into(), max: 100 });
        let request_cost = Cost::Number(3);
        hold(bed, vec![RateLimit { request_cost, response_cost, ..global("tokens", |_| {}) }]);
        assert_eq!(statuses(bed, &[""]).await, [200]);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while asked.borrow().len() < 2 {
            assert!(tokio::time::Instant::now() < deadline, "{asked:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let hits: Vec<u32> = asked.borrow().iter().map(|it| it.hits_addend).collect();
        assert_eq!(hits, [3, 40]);
    });
}
