//! DestinationRules in, traffic policies out.

use std::time::Duration;

use ambit_model::http::nearness::{Distribution, Failover, Nearness, Place};
use ambit_model::http::origination::{ClientFiles, Origination, Trust};
use ambit_model::http::traffic::Balancing;
use ambit_model::http::warmup::Warmup;
use ambit_model::service::Scope;
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
            "baseEjectionTime": "1m", "maxEjectionPercent": 100, "minHealthPercent": 20},
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
        min_health_percent: 20,
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
    assert_eq!(of_subset, (LeastRequest, Some(4), LeastRequest, None));
}

#[test]
fn at_a_port_a_subset_comes_before_the_host() {
    use Balancing::{LeastRequest, Random, RoundRobin};
    let of = |balancing: &str| json!({"loadBalancer": {"simple": balancing}});
    let at_80 = |mut policy: Value, balancing: &str| {
        let mut port = of(balancing);
        port["port"] = json!({"number": 80});
        policy["portLevelSettings"] = json!([port]);
        policy
    };
    let requests = |mut policy: Value| {
        policy["connectionPool"] = json!({"http": {"http2MaxRequests": 4}});
        policy
    };
    for (host, subset, expected) in [
        (of("RANDOM"), of("ROUND_ROBIN"), (RoundRobin, None)),
        (at_80(json!({}), "RANDOM"), of("ROUND_ROBIN"), (RoundRobin, None)),
        (at_80(of("LEAST_REQUEST"), "RANDOM"), requests(json!({})), (Random, Some(4))),
        // What is said of a port holds instead of everything else that the same one says.
        (at_80(requests(json!({})), "RANDOM"), of("ROUND_ROBIN"), (RoundRobin, None)),
        (of("RANDOM"), at_80(requests(of("ROUND_ROBIN")), "LEAST_REQUEST"), (LeastRequest, None)),
    ] {
        let read = rule(&json!({"host": "web", "trafficPolicy": host,
            "subsets": [{"name": "v1", "trafficPolicy": subset}]}));
        let traffic = read.subsets[0].traffic.clone().expect("a policy");
        let policy = traffic.ports.get(&80).unwrap_or(&traffic.all);
        let found = (policy.balancing.clone(), policy.limits.requests);
        assert_eq!(found, expected, "{host} {subset}");
    }
}

/// A rule as it comes from a cluster.
fn from_cluster(spec: Value) -> DestinationTraffic {
    let object = json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": {"namespace": "shop", "name": "web"}, "spec": {"host": "web"}});
    let mut object: DestinationRule = serde_json::from_value(object).expect("a DestinationRule");
    (object.spec, object.unreadable) = crate::destination_rule::read(spec);
    read(&object)
}

#[test]
fn a_rule_that_cannot_be_read_refuses_requests() {
    let subsets = json!([{"name": "v1"}]);
    for (spec, part) in [
        (json!({"host": "web", "trafficPolicy": {"tls": "SIMPLE"}}), "invalid type"),
        (json!({"host": "web", "subsets": 1}), "invalid type"),
        (
            json!({"host": "web", "trafficPolicy": {"tls": {"newer": 1}}, "subsets": subsets}),
            "this version does not know spec.trafficPolicy.tls.newer",
        ),
    ] {
        let read = from_cluster(spec.clone());
        assert!(read.is_refused && read.subsets.is_empty(), "{spec}");
        let refusal = read.traffic.clone().and_then(|it| it.all.refusal).expect("a refusal");
        assert!(refusal.starts_with("its DestinationRule shop/web: "), "{refusal}");
        assert!(refusal.contains(part), "{refusal}");
        assert_eq!(remarks(&read), ["wrong spec"], "{spec}");
    }
}

#[test]
fn fields_of_newer_versions_are_told_and_the_rest_holds() {
    let read = from_cluster(json!({"host": "web", "trafficPolicy": {
        "loadBalancer": {"simple": "RANDOM", "zoneAwareLbSetting": {"enabled": true},
            "warmup": {"duration": "9s", "minimumPercent": 12.5}},
        "connectionPool": {"http": {"http2KeepAlive": {"interval": "1s"}, "newer": 1}},
        "outlierDetection": {"outlierDetectionHttpErrorCodes": [429]},
        "retryBudget": {"percent": 10, "budgetInterval": "1s"}},
        "subsets": [{"name": "v1", "newer": 1}]}));
    let policy = "spec.trafficPolicy";
    let mut expected = [
        format!("unhonoured {policy}.connectionPool.http.newer"),
        "unhonoured spec.subsets.0.newer".to_owned(),
        format!("unhonoured {policy}.retryBudget.budgetInterval"),
        format!("unhonoured {policy}.loadBalancer.zoneAwareLbSetting"),
        format!("unhonoured {policy}.connectionPool.http.http2KeepAlive"),
        format!("unhonoured {policy}.outlierDetection.outlierDetectionHttpErrorCodes"),
    ];
    let mut told = remarks(&read);
    expected.sort();
    told.sort();
    assert_eq!(told, expected);
    let all = read.traffic.expect("a policy").all;
    assert_eq!((all.balancing, all.refusal), (Balancing::Random, None));
    assert_eq!(all.warmup.map(|it| it.minimum_percent), Some(12));
    assert_eq!(read.subsets.len(), 1);
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

/// How TLS is spoken, whether requests are refused, and the remarks.
fn spoken(tls: &Value) -> (Option<Origination>, bool, Vec<String>) {
    let read = rule(&json!({"host": "web", "trafficPolicy": {"tls": tls}}));
    let policy = read.traffic.clone().expect("a policy").all;
    let told = remarks(&read).into_iter().map(|it| it.replace("spec.trafficPolicy.tls", "tls"));
    (policy.origination, policy.refusal.is_some(), told.collect())
}

#[test]
fn tls_is_spoken_as_is_written() {
    let public = Origination {
        server_name: None,
        alternatives: Vec::new(),
        uris: Vec::new(),
        trust: Trust::Public,
        client: None,
    };
    let client = Some(ClientFiles { chain: "/c".into(), key: "/k".into() });
    for (tls, expected) in [
        (json!({}), None),
        (json!({"mode": "DISABLE"}), None),
        (json!({"mode": "ISTIO_MUTUAL"}), None),
        (json!({"mode": "SIMPLE"}), Some(public.clone())),
        (json!({"mode": "SIMPLE", "caCertificates": "system"}), Some(public.clone())),
        (
            json!({"mode": "SIMPLE", "sni": "a.example", "caCertificates": "/ca",
                "subjectAltNames": ["b.example"]}),
            Some(Origination {
                server_name: Some("a.example".into()),
                alternatives: vec!["b.example".into()],
                uris: Vec::new(),
                trust: Trust::File("/ca".into()),
                client: None,
            }),
        ),
        (
            json!({"mode": "SIMPLE", "insecureSkipVerify": true}),
            Some(Origination { trust: Trust::Nobody, ..public.clone() }),
        ),
        (
            json!({"mode": "MUTUAL", "clientCertificate": "/c", "privateKey": "/k"}),
            Some(Origination { client, ..public.clone() }),
        ),
    ] {
        assert_eq!(spoken(&tls), (expected, false, vec![]), "{tls}");
    }
}

#[test]
fn tls_that_cannot_be_spoken_refuses() {
    for (tls, told) in [
        (json!({"mode": "OTHER"}), "wrong tls.mode"),
        (json!({"mode": "MUTUAL"}), "unhonoured tls"),
        (json!({"mode": "SIMPLE", "credentialName": "c"}), "unhonoured tls.credentialName"),
        (json!({"mode": "SIMPLE", "caCrl": "/crl"}), "unhonoured tls.caCrl"),
        (json!({"mode": "SIMPLE", "caCertificates": "ca.pem"}), "wrong tls.caCertificates"),
        (
            json!({"mode": "SIMPLE", "subjectAltNames": ["a", "spiffe://a/b"]}),
            "unhonoured tls.subjectAltNames[1]",
        ),
    ] {
        assert_eq!(spoken(&tls), (None, true, vec![told.to_owned()]), "{tls}");
    }
}

#[test]
fn each_field_without_effect_is_told_once() {
    let read = rule(&json!({"host": "", "workloadSelector": {"matchLabels": {"a": "b"}},
        "trafficPolicy": {
            "tunnel": {}, "proxyProtocol": {},
            "loadBalancer": {"simple": "PASSTHROUGH"},
            "connectionPool": {"tcp": {"tcpKeepalive": {}, "maxConnectionDuration": "1s"},
                "http": {"h2UpgradePolicy": "UPGRADE", "useClientProtocol": true,
                    "maxConcurrentStreams": 5}},
            "outlierDetection": {"maxEjectionPercent": 101}},
        "subsets": [{"name": "a"}, {"name": "a"}, {"name": "A"}]}));
    let at = |field: &str| format!("unhonoured spec.trafficPolicy.{field}");
    let expected = [
        "wrong spec.host".to_owned(),
        "unhonoured spec.workloadSelector".to_owned(),
        at("tunnel"),
        at("proxyProtocol"),
        at("loadBalancer.simple"),
        at("connectionPool.tcp.tcpKeepalive"),
        at("connectionPool.tcp.maxConnectionDuration"),
        at("connectionPool.http.maxConcurrentStreams"),
        at("connectionPool.http.useClientProtocol"),
        at("connectionPool.http.h2UpgradePolicy"),
        "wrong spec.trafficPolicy.outlierDetection.maxEjectionPercent".to_owned(),
        "wrong spec.subsets[1].name".to_owned(),
        "wrong spec.subsets[2].name".to_owned(),
    ];
    assert_eq!(remarks(&read), expected);
}

/// What a load balancer means beside this outlier detection, and the remarks.
fn balanced(balancer: &Value, ejects: bool) -> (TrafficPolicy, Vec<String>) {
    let mut policy = json!({"loadBalancer": balancer});
    if ejects {
        policy["outlierDetection"] = json!({"consecutive5xxErrors": 1});
    }
    let read = rule(&json!({"host": "web", "trafficPolicy": policy}));
    let told =
        remarks(&read).into_iter().map(|it| it.replace("spec.trafficPolicy.loadBalancer.", ""));
    let told = told.collect();
    (read.traffic.expect("a policy").all, told)
}

#[test]
fn nearness_needs_outlier_detection_unless_shares_are_given() {
    let place = |region: &str, zone: Option<&str>| Place {
        region: Some(region.into()),
        zone: zone.map(Text::from),
        subzone: None,
    };
    let steps = vec![Scope::Network, Scope::Zone];
    let by_labels = Failover { steps, regions: vec![] };
    let regions = vec![("r1".into(), "r2".into())];
    let by_region = Failover { regions, ..Failover::default() };
    let shares = Nearness::Distribute(vec![Distribution {
        from: place("r1", None),
        to: vec![(place("r1", Some("z1")), 80), (place("r1", None), 20)],
    }]);
    let labels = json!(["topology.istio.io/network", "topology.kubernetes.io/zone"]);
    for (setting, expected) in [
        (json!({}), Nearness::Failover(Failover::default())),
        (json!({"failoverPriority": labels}), Nearness::Failover(by_labels)),
        (json!({"failover": [{"from": "r1", "to": "r2"}]}), Nearness::Failover(by_region)),
    ] {
        let balancer = json!({"localityLbSetting": setting});
        let (policy, told) = balanced(&balancer, true);
        assert_eq!((policy.nearness, told), (expected, vec![]), "{setting}");
        let (policy, told) = balanced(&balancer, false);
        let told_once = vec!["unhonoured localityLbSetting".to_owned()];
        assert_eq!((policy.nearness, told), (Nearness::Ignored, told_once), "{setting}");
    }
    for ejects in [true, false] {
        let to = json!({"r1/*": 20, "r1/z1/*": 80});
        let setting = json!({"distribute": [{"from": "r1/*", "to": to}]});
        let (policy, told) = balanced(&json!({"localityLbSetting": setting}), ejects);
        assert_eq!((policy.nearness, told), (shares.clone(), vec![]));
        let off = json!({"localityLbSetting": {"enabled": false}});
        assert_eq!(balanced(&off, ejects).0.nearness, Nearness::Ignored);
    }
    assert_eq!(balanced(&json!({}), true).0.nearness, Nearness::OfServiceElsePlace);
    assert_eq!(balanced(&json!({}), false).0.nearness, Nearness::OfService);
}

#[test]
fn what_is_wrong_with_nearness_and_warm_up_is_told() {
    let setting = |it: Value| json!({"localityLbSetting": it});
    let distribute =
        |from: &str, to: Value| setting(json!({"distribute": [{"from": from, "to": to}]}));
    for (balancer, told) in [
        (
            setting(json!({"failoverPriority": ["app=web"]})),
            "unhonoured localityLbSetting.failoverPriority[0]",
        ),
        (
            setting(json!({"failover": [{"from": "a", "to": "a"}]})),
            "wrong localityLbSetting.failover[0]",
        ),
        (distribute("a/*", json!({"a/*": 99})), "wrong localityLbSetting.distribute[0].to"),
        (distribute("*/z", json!({"a/*": 100})), "wrong localityLbSetting.distribute[0].from"),
        (distribute("a//b", json!({"*": 100})), "wrong localityLbSetting.distribute[0].from"),
        (json!({"warmup": {}}), "wrong warmup.duration"),
        (
            json!({"warmup": {"duration": "1s", "minimumPercent": 101}}),
            "wrong warmup.minimumPercent",
        ),
        (json!({"warmup": {"duration": "1s", "aggression": 0.0}}), "wrong warmup.aggression"),
        (json!({"warmupDurationSecs": "long"}), "wrong warmupDurationSecs"),
    ] {
        assert_eq!(balanced(&balancer, true).1, [told], "{balancer}");
    }
}

#[test]
fn a_new_endpoint_warms_up_as_is_written() {
    let of = |seconds, minimum_percent, aggression| {
        let duration = Duration::from_secs(seconds);
        Some(Warmup { duration, minimum_percent, aggression })
    };
    let whole = json!({"duration": "30s", "minimumPercent": 25, "aggression": 2.0});
    for (balancer, expected) in [
        (json!({"warmup": {"duration": "30s"}}), of(30, 10, 1.0)),
        (json!({"warmup": whole}), of(30, 25, 2.0)),
        (json!({"warmupDurationSecs": "5s"}), of(5, 10, 1.0)),
        (json!({"warmup": {"duration": "0s"}}), None),
        (json!({}), None),
    ] {
        let (policy, told) = balanced(&balancer, false);
        assert_eq!((policy.warmup, told), (expected, vec![]), "{balancer}");
    }
}
