//! DestinationRules in, traffic policies out.

use std::time::Duration;

use ambit_model::http::traffic::Balancing;
use serde_json::{Value, json};

use super::*;

fn rule(spec: &Value) -> DestinationTraffic {
    let rule = json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
    read(&serde_json::from_value(rule).expect("a DestinationRule"))
}

fn remarks(read: &DestinationTraffic) -> Vec<String> {
    let said = |it: &Remark| {
        let kind = if it.is_wrong { "wrong" } else { "unhonoured" };
        format!("{kind} {}", it.at.as_str())
    };
    read.remarks.iter().map(said).collect()
}

#[test]
fn what_is_said_of_a_host_is_honoured() {
    let read = rule(&json!({"host": "web", "trafficPolicy": {
        "loadBalancer": {"simple": "ROUND_ROBIN"},
        "connectionPool": {
            "tcp": {"maxConnections": 1, "connectTimeout": "2s"},
            "http": {"http1MaxPendingRequests": 3, "http2MaxRequests": 4, "maxRetries": 5,
                "maxRequestsPerConnection": 6, "idleTimeout": "7s"}},
        "outlierDetection": {"consecutive5xxErrors": 8, "interval": "9s",
            "baseEjectionTime": "1m", "maxEjectionPercent": 100},
        "retryBudget": {"percent": 12.0, "minRetryConcurrency": 2},
    }}));
    assert_eq!(read.remarks, []);
    let Traffic { all, ports } = read.traffic.expect("a policy");
    assert!(ports.is_empty());
    assert_eq!(all.balancing, Balancing::RoundRobin);
    let seconds = |it| Some(Duration::from_secs(it));
    let limits = Limits {
        connections: Some(1),
        pending_requests: Some(3),
        requests: Some(4),
        retries: Some(5),
        requests_per_connection: Some(6),
        connect_timeout: seconds(2),
        idle_timeout: seconds(7),
    };
    assert_eq!(all.limits, limits);
    let ejection = Ejection {
        consecutive_5xx: 8,
        interval: Duration::from_secs(9),
        base_time: Duration::from_secs(60),
        max_percent: 100,
        ..Ejection::default()
    };
    assert_eq!(all.ejection, Some(ejection));
    assert_eq!(all.retry_budget, Some(RetryBudget { percent: 12, min_retries: 2 }));
    assert_eq!(rule(&json!({"host": "web"})).traffic, None);
}

#[test]
fn a_subset_inherits_and_a_port_does_not() {
    let read = rule(&json!({"host": "web",
        "trafficPolicy": {
            "loadBalancer": {"simple": "RANDOM"},
            "connectionPool": {"http": {"http2MaxRequests": 4}},
            "portLevelSettings": [{"port": {"number": 80},
                "loadBalancer": {"simple": "ROUND_ROBIN"}}]},
        "subsets": [
            {"name": "v1", "labels": {"version": "v1"}},
            {"name": "v2", "labels": {"version": "v2"},
                "trafficPolicy": {"loadBalancer": {"simple": "LEAST_REQUEST"}}}]}));
    assert_eq!(read.remarks, []);
    let at = |traffic: &Traffic| {
        let port = &traffic.ports[&80];
        let all = &traffic.all;
        (all.balancing.clone(), all.limits.requests, port.balancing.clone(), port.limits.requests)
    };
    use Balancing::{LeastRequest, Random, RoundRobin};
    let whole = at(read.traffic.as_ref().expect("a policy"));
    assert_eq!(whole, (Random, Some(4), RoundRobin, None));
    assert_eq!(read.subsets[0].traffic, None);
    let of_subset = at(read.subsets[1].traffic.as_ref().expect("a policy"));
    assert_eq!(of_subset, (LeastRequest, Some(4), RoundRobin, None));
}

#[test]
fn one_thing_is_hashed() {
    let hash = |written: Value| {
        let read = rule(&json!({"host": "web",
            "trafficPolicy": {"loadBalancer": {"consistentHash": written}}}));
        let balancing = read.traffic.as_ref().expect("a policy").all.balancing.clone();
        (balancing, remarks(&read).join(" "))
    };
    let none = String::new;
    let key = |key| Balancing::Hash(key);
    assert_eq!(
        hash(json!({"httpHeaderName": "X-User"})),
        (key(HashKey::Header("x-user".into())), none())
    );
    let cookie = HashKey::Cookie {
        name: "c".into(),
        path: Some("/".into()),
        lifetime: Some(Duration::ZERO),
    };
    let written = json!({"httpCookie": {"name": "c", "path": "/", "ttl": "0s"}});
    assert_eq!(hash(written), (key(cookie), none()));
    assert_eq!(hash(json!({"useSourceIp": true})), (key(HashKey::SourceIp), none()));
    let parameter = hash(json!({"httpQueryParameterName": "q", "maglev": {"tableSize": 7}}));
    let at = "spec.trafficPolicy.loadBalancer.consistentHash";
    let expected = (key(HashKey::Parameter("q".into())), format!("unhonoured {at}.maglev"));
    assert_eq!(parameter, expected);
    let two = hash(json!({"httpHeaderName": "a", "useSourceIp": true}));
    assert_eq!(two.1, format!("wrong {at}"));
}

#[test]
fn tls_that_cannot_be_spoken_refuses() {
    for (mode, is_refused, said) in [
        ("DISABLE", false, ""),
        ("ISTIO_MUTUAL", false, ""),
        ("SIMPLE", true, "unhonoured spec.trafficPolicy.tls.mode"),
        ("MUTUAL", true, "unhonoured spec.trafficPolicy.tls.mode"),
        ("OTHER", true, "wrong spec.trafficPolicy.tls.mode"),
    ] {
        let read = rule(&json!({"host": "web", "trafficPolicy": {"tls": {"mode": mode}}}));
        let traffic = read.traffic.as_ref().expect("a policy");
        assert_eq!(traffic.all.refusal.is_some(), is_refused, "{mode}");
        assert_eq!(remarks(&read).join(" "), said, "{mode}");
    }
}

#[test]
fn each_field_without_effect_is_told_once() {
    let read = rule(&json!({"host": "", "workloadSelector": {"matchLabels": {"a": "b"}},
        "trafficPolicy": {
            "tunnel": {}, "proxyProtocol": {},
            "loadBalancer": {"simple": "PASSTHROUGH", "localityLbSetting": {}, "warmup": {},
                "warmupDurationSecs": "5s"},
            "connectionPool": {"tcp": {"tcpKeepalive": {}, "maxConnectionDuration": "1s"},
                "http": {"h2UpgradePolicy": "UPGRADE", "useClientProtocol": true,
                    "maxConcurrentStreams": 5}},
            "outlierDetection": {"minHealthPercent": 50, "maxEjectionPercent": 101}},
        "subsets": [{"name": "a"}, {"name": "a"}, {"name": "A"}]}));
    let at = |field: &str| format!("unhonoured spec.trafficPolicy.{field}");
    let expected = [
        "wrong spec.host".to_owned(),
        "unhonoured spec.workloadSelector".to_owned(),
        at("tunnel"),
        at("proxyProtocol"),
        at("loadBalancer.localityLbSetting"),
        at("loadBalancer.warmup"),
        at("loadBalancer.warmupDurationSecs"),
        at("loadBalancer.simple"),
        at("connectionPool.tcp.tcpKeepalive"),
        at("connectionPool.tcp.maxConnectionDuration"),
        at("connectionPool.http.maxConcurrentStreams"),
        at("connectionPool.http.useClientProtocol"),
        at("connectionPool.http.h2UpgradePolicy"),
        at("outlierDetection.minHealthPercent"),
        "wrong spec.trafficPolicy.outlierDetection.maxEjectionPercent".to_owned(),
        "wrong spec.subsets[1].name".to_owned(),
        "wrong spec.subsets[2].name".to_owned(),
    ];
    assert_eq!(remarks(&read), expected);
}
