//! Questions, each with a part of its answer.

use std::collections::BTreeMap;

use ambit_manifest::stored;
use serde_json::{Value, json};

use super::*;
use crate::registry::{CaptureNotes, Event, PodStatus};
use crate::view_builder::{Mesh, Vips};

fn put(kind: Kind, name: &str, mut object: Value) -> Event {
    object["apiVersion"] = kind.api_versions()[0].into();
    object["kind"] = kind.name().into();
    object["metadata"]["namespace"] = "app".into();
    object["metadata"]["name"] = name.into();
    object["metadata"]["uid"] = name.into();
    Event::Put(stored(kind, object.to_string().as_bytes()).expect("valid"))
}

/// A pod of a Deployment; with an address it runs and is captured.
fn pod(owner: &str, name: &str, ip: Option<&str>, ready: bool) -> Vec<Event> {
    let owners = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": owner,
        "uid": owner, "controller": true}]);
    let object = json!({
        "metadata": {"ownerReferences": owners, "labels": {"app": owner}},
        "spec": {"nodeName": "node-1", "containers": []},
    });
    let mut events = vec![put(Kind::Pod, name, object)];
    let Some(ip) = ip else { return events };
    let status = PodStatus {
        uid: name.into(),
        phase: "Running".into(),
        pod_ips: vec![ip.parse().expect("an address")],
        ready,
        ..PodStatus::default()
    };
    events.push(Event::Captured {
        namespace: "app".into(),
        name: name.into(),
        uid: Some(name.into()),
        notes: CaptureNotes::default(),
    });
    let status = Some(status);
    events.push(Event::PodStatus { namespace: "app".into(), name: name.into(), status });
    events
}

/// Pods of `load` and of `web`, which has a service of its name; nothing of `late` runs, and
/// `unready` is not ready.
fn builder() -> Builder {
    let mut builder = Builder::new(Mesh::sample(), Vips::default());
    let ports = json!([{"port": 80, "targetPort": 8080}]);
    let spec = json!({"clusterIP": "10.96.0.1", "selector": {"app": "web"}, "ports": ports});
    builder.apply(
        [
            pod("load", "load-1", Some("10.0.0.1"), false),
            pod("load", "load-2", Some("10.0.0.2"), true),
            pod("backend", "backend-1", Some("10.0.0.3"), true),
            pod("unready", "unready-1", Some("10.0.0.5"), false),
            pod("late", "late-1", None, false),
            pod("web", "web-1", Some("10.0.0.4"), true),
            vec![put(Kind::Service, "web", json!({"spec": spec}))],
        ]
        .concat(),
    );
    builder
}

fn error(builder: &Builder, source: &str, destination: &str) -> String {
    explain(builder, source, destination).expect_err("no answer").to_string()
}

#[test]
fn a_deployment_means_a_pod_of_it_that_is_ready() {
    let builder = builder();
    let check = |source: &str, destination: &str, pod: &str, address: &str| {
        let answer = explain(&builder, source, destination).expect("an answer");
        let meant = (answer.source.pod, answer.destination.address.to_string());
        assert_eq!(meant, (pod.to_owned(), address.to_owned()), "{source} {destination}");
        answer.notes
    };
    for source in ["app/load", "deploy/app/load", "deployment/app/load"] {
        let notes = check(source, "web", "app/load-2", "10.96.0.1:80");
        assert_eq!(notes, ["app/load has 2 pods that run; this is app/load-2"]);
    }
    let one = check("app/backend", "app/load-1:80", "app/backend-1", "10.0.0.1:80");
    assert_eq!(one, [""; 0], "there is no choice");
    let unready = check("app/unready", "web", "app/unready-1", "10.96.0.1:80");
    assert_eq!(unready, ["app/unready-1 is not ready"]);
    let named = check("app/unready-1", "web", "app/unready-1", "10.96.0.1:80");
    assert_eq!(named, [""; 0], "nothing was picked");
    check("app/load-1", "app/backend:9000", "app/load-1", "10.0.0.3:9000");
    check("app/load-1", "app/web", "app/load-1", "10.96.0.1:80");
    check("app/load-1", "deploy/web", "app/load-1", "10.0.0.4:8080");
    check("app/load-1", "pod/web-1", "app/load-1", "10.0.0.4:8080");
}

#[test]
fn what_does_not_exist_is_said_with_what_may_be_meant() {
    let builder = builder();
    let check = |source: &str, destination: &str, expected: &str| {
        let error = error(&builder, source, destination);
        assert!(error.starts_with(expected), "{source} {destination}: {error}");
    };
    check("app/nosuch", "web", "there is no running pod app/nosuch, nor a workload of that");
    let near = "there is no running pod app/laod, nor a workload of that name with one; did you \
        mean app/load?";
    check("app/laod", "web", near);
    check("pod/app/load", "web", "there is no running pod pod/app/load");
    let from = |destination: &str, expected: &str| check("app/load", destination, expected);
    let any = "there is no service, pod or workload app/";
    from("app/nosuch:80", &format!("{any}nosuch; see `ambit get services`"));
    from("app/wbe:80", &format!("{any}wbe; did you mean app/web?"));
    from("app/bakend:80", &format!("{any}bakend; did you mean app/backend?"));
    from("svc/nosuch:80", "there is no service app/nosuch; see");
    from("svc/backend:80", "there is no service app/backend; see");
    from("pod/app/web:80", "there is no pod app/web");
    from("deploy/app/web-1", "there is no Deployment app/web-1; did you mean app/web?");
    from("app/late:80", "app/late has no address");
    from("app/late-1:80", "app/late-1 has no address");
    from("nosuch.example:80", "no service is called \"nosuch.example\"; for a host outside");
    from("wbe", "no service is called \"wbe\"; did you mean web?");
    from("web.ap:80", "no service is called \"web.ap\"; did you mean web.app?");
    from("app/web:http", "\"app/web:http\" is no destination; write NAMESPACE/POD");
}

#[test]
fn the_port_of_an_ipv6_address_is_asked_for_with_brackets() {
    let builder = builder();
    for (destination, expected) in [
        ("::1", "say which port of ::1, as in [::1]:8080"),
        ("[::1]", "say which port of ::1, as in [::1]:8080"),
        ("fd00::2:80", "say which port of fd00::2:80, as in [fd00::2:80]:8080"),
        ("10.0.0.1", "say which port of 10.0.0.1, as in 10.0.0.1:8080"),
    ] {
        let error = error(&builder, "app/load", destination);
        assert!(error.starts_with(expected), "{destination}: {error}");
    }
}

/// The same behind a waypoint, with a route and a policy.
fn fronted() -> Builder {
    let mut builder = builder();
    let labels = json!({"istio.io/use-waypoint": "way"});
    let service = |name: &str, ip: &str, port: u16, labels: Value| {
        let ports = json!([{"port": port, "name": "http"}]);
        let spec = json!({"clusterIP": ip, "selector": {"app": name}, "ports": ports});
        put(Kind::Service, name, json!({"metadata": {"labels": labels}, "spec": spec}))
    };
    let listeners = json!([{"name": "mesh", "protocol": "HBONE", "port": 15008}]);
    let gateway = json!({"spec": {"gatewayClassName": "istio-waypoint", "listeners": listeners}});
    let path = |kind: &str, value: &str| json!([{"path": {"type": kind, "value": value}}]);
    let route = json!({"spec": {
        "parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
        "rules": [
            {"matches": path("PathPrefix", "/api"), "backendRefs": [{"name": "web", "port": 80}]},
            {"matches": path("Exact", "/gone"), "backendRefs": [{"name": "none", "port": 80}]},
        ],
    }});
    let policy = json!({"spec": {
        "targetRefs": [{"kind": "Service", "group": "", "name": "web"}],
        "action": "DENY",
        "rules": [{"to": [{"operation": {"paths": ["/api/admin*"]}}],
            "when": [{"key": "request.headers[x-team]", "notValues": ["ops"]}]}],
    }});
    let events = [
        pod("way", "way-1", Some("10.0.0.9"), true),
        vec![
            put(Kind::Gateway, "way", gateway),
            service("way", "10.96.0.9", 15008, json!({})),
            service("web", "10.96.0.1", 80, labels),
            put(Kind::HttpRoute, "web", route),
            put(Kind::AuthorizationPolicy, "no-admin", policy),
        ],
    ];
    builder.apply(events.concat());
    builder
}

#[test]
fn a_request_is_routed_and_judged_as_the_waypoint_does_it() {
    let builder = fronted();
    let ask = |target: &str, headers: &str| {
        let (path, headers) = (target.to_owned(), headers.to_owned());
        let query = [("path".to_owned(), path), ("headers".to_owned(), headers)].into();
        let request = Request::of(&query).expect("a request").expect("one is asked about");
        explain_request(&builder, "app/load", "web", &request).expect("an answer")
    };
    use admin::Decision::{Allow, Deny};
    for (target, headers, decision, rule, status, policy) in [
        ("/api/x?q=1", "", Allow, Some(0), None, None),
        ("/api/admin", "", Deny, Some(0), None, Some("app/no-admin")),
        // What is written in another way is the same path.
        ("/api/./%61dmin/x", "x-team: dev", Deny, Some(0), None, Some("app/no-admin")),
        ("/api/admin", "X-Team: ops", Allow, Some(0), None, None),
        ("/other", "", Deny, None, Some(404), None),
    ] {
        let answer = ask(target, headers);
        let request = answer.request.unwrap_or_else(|| panic!("no waypoint: {}", answer.reason));
        assert_eq!(answer.decision, decision, "{target} {headers}: {}", answer.reason);
        assert_eq!(request.rule.map(|it| it.rule), rule, "{target}");
        assert_eq!(request.status, status, "{target}");
        assert_eq!(answer.policy.as_ref().map(|it| &*it.name), policy, "{target}");
        assert_eq!(answer.remedy.is_some(), decision == Deny, "{target}");
        let origin = answer.policy.and_then(|it| it.origin);
        assert_eq!(origin.is_some(), policy.is_some(), "what decides is shown as it is written");
    }
    let gone = ask("/gone", "");
    assert_eq!((gone.decision, gone.remedy.is_some()), (Deny, true), "{}", gone.reason);
    let gone = gone.request.expect("a waypoint reads it");
    assert!(gone.action.starts_with("answer 500: "), "{}", gone.action);
    assert_eq!(gone.status, Some(500));
}

#[test]
fn a_backend_with_another_waypoint_is_reached_through_that_one() {
    let mut builder = fronted();
    let service = |name: &str, ip: &str, port: u16, labels: Value| {
        let ports = json!([{"port": port, "name": "http"}]);
        let spec = json!({"clusterIP": ip, "selector": {"app": name}, "ports": ports});
        put(Kind::Service, name, json!({"metadata": {"labels": labels}, "spec": spec}))
    };
    let listeners = json!([{"name": "mesh", "protocol": "HBONE", "port": 15008}]);
    let gateway = json!({"spec": {"gatewayClassName": "istio-waypoint", "listeners": listeners}});
    let route = json!({"spec": {
        "parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
        "rules": [{"backendRefs": [{"name": "backend", "port": 80}]}],
    }});
    let labels = json!({"istio.io/use-waypoint": "other"});
    builder.apply([
        put(Kind::Gateway, "other", gateway),
        service("other", "10.96.0.8", 15008, json!({})),
        service("backend", "10.96.0.7", 80, labels),
        put(Kind::HttpRoute, "web", route),
    ]);
    let answer = ask_for(&builder, "web", "/api");
    assert_eq!(answer.decision, admin::Decision::Deny, "the other one has no pod yet");
    builder.apply(pod("other", "other-1", Some("10.0.0.8"), true));
    let answer = ask_for(&builder, "web", "/api");
    assert_eq!(answer.decision, admin::Decision::Allow, "{}", answer.reason);
    let is_noted = |note: &String| note.contains("has a waypoint of its own");
    assert!(answer.notes.iter().any(is_noted), "{:?}", answer.notes);
}

#[test]
fn what_a_rule_does_beside_is_told() {
    let mut builder = fronted();
    let percent = json!({"value": 100.0});
    let all = json!({"match": [{"uri": {"prefix": "/f"}}],
        "fault": {"abort": {"httpStatus": 418, "percentage": percent},
            "delay": {"fixedDelay": "3s", "percentage": {"value": 50.0}}},
        "rewrite": {"uri": "/g"}, "headers": {"request": {"set": {"x-team": "ops"}}},
        "corsPolicy": {"allowOrigins": [{"exact": "https://a.example"}]},
        "mirror": {"host": "web"}, "route": [{"destination": {"host": "web"}}]});
    let part = json!({"fault": {"abort": {"grpcStatus": "UNAVAILABLE", "percentage": percent}},
        "route": [{"destination": {"host": "web"}}]});
    let rules = json!({"spec": {"hosts": ["web"], "http": [all, part]}});
    let none = json!({"spec": {"rules": []}});
    builder.apply([put(Kind::HttpRoute, "web", none), put(Kind::VirtualService, "web", rules)]);
    let answer = ask_for(&builder, "web", "/f");
    assert_eq!(answer.decision, admin::Decision::Deny);
    assert!(answer.reason.starts_with("the routes answer 418; "), "{}", answer.reason);
    let request = answer.request.expect("a waypoint reads it");
    assert_eq!((&*request.action, request.status), ("answer 418 (fault)", Some(418)));
    let effects = request.effects;
    assert_eq!(effects.faults, ["delay of 3s for 50 %", "answer 418 for 100 %"]);
    assert_eq!(effects.rewrite.as_deref(), Some("what matches of the path becomes /g"));
    assert_eq!(effects.headers, ["request: set x-team: ops"]);
    assert_eq!(effects.mirrors, ["100 % to app/web.app.svc.cluster.local:80"]);
    assert_eq!(effects.cors.as_deref(), Some("origins https://a.example"));
    let table = crate::admin::routes::table(&builder, "app/web").expect("a service");
    assert!(table.iter().any(|line| line.effects == effects), "{table:?}");
    let answer = ask_for(&builder, "web", "/other");
    assert_eq!(answer.decision, admin::Decision::Deny);
    assert!(answer.reason.contains("grpc-status 14"), "{}", answer.reason);
}

#[test]
fn a_policy_that_a_waypoint_enforces_is_listed_as_it_is_there() {
    let policies = crate::admin::lists::policies(&fronted(), None);
    let [admin::Policy::AuthorizationPolicy(policy)] = &policies[..] else {
        panic!("{policies:?}");
    };
    let conditions = policy.conditions.iter().map(|it| (&*it.kind, &*it.status));
    assert_eq!(conditions.collect::<Vec<_>>(), [("WaypointAccepted", "True")]);
    assert_eq!(policy.scope.as_deref(), Some("targets"));
    assert_eq!(policy.targets, ["Service app/web"]);
}

#[test]
fn a_path_that_another_normalisation_reads_otherwise_has_a_note() {
    let has_note = |path: &str| {
        let answer = ask_for(&fronted(), "web", path);
        answer.notes.iter().any(|it| it.contains("AMBIT_PATH_NORMALIZATION"))
    };
    for path in ["//api", "/api%2Fx", "/api%5cx", "/api;v=1", "/api/./x", "/%61pi"] {
        assert!(has_note(path), "{path}");
    }
    assert!(!has_note("/api/x.html?of=//y"));
}

fn ask_for(builder: &Builder, destination: &str, path: &str) -> admin::Explanation {
    let request = Request::of(&[("path".to_owned(), path.to_owned())].into());
    let request = request.expect("a request").expect("one is asked about");
    explain_request(builder, "app/load", destination, &request).expect("an answer")
}

#[test]
fn a_port_that_the_service_lacks_is_no_way_in() {
    let mut builder = fronted();
    database(&mut builder);
    let answer = ask_for(&builder, "app/db:99", "/api");
    assert_eq!(answer.decision, admin::Decision::Deny, "{}", answer.reason);
    assert_eq!(answer.request.expect("a waypoint reads it").status, Some(503));
    assert!(answer.reason.contains("99"), "{}", answer.reason);
    assert!(answer.remedy.is_some_and(|it| it.contains("one of the service's ports")));
}

/// No proxy of the mesh refuses it, so nothing of it may be called allowed.
#[test]
fn a_port_that_the_service_lacks_is_no_way_in_for_who_is_not_captured() {
    let mut builder = builder();
    let stranger = pod("stranger", "stranger-1", Some("10.0.0.9"), true);
    let is_captured = |event: &Event| matches!(event, Event::Captured { .. });
    builder.apply(stranger.into_iter().filter(|event| !is_captured(event)));
    let answer = explain(&builder, "app/stranger", "app/web:99").expect("an answer");
    assert_eq!((&*answer.plan, answer.decision), ("refuse", admin::Decision::Deny));
    assert!(answer.reason.contains("no port 99"), "{}", answer.reason);
    let answer = explain(&builder, "app/stranger", "app/web:80").expect("an answer");
    assert_eq!(answer.plan, "direct");
}

#[test]
fn policies_at_the_endpoints_must_admit_the_waypoint() {
    let mut builder = fronted();
    let viewer = |principals: Value| {
        let rules = json!([{"from": [{"source": {"principals": principals}}]}]);
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules});
        put(Kind::AuthorizationPolicy, "viewer", json!({"spec": spec}))
    };
    let (client, waypoint) = ("cluster.local/ns/app/sa/load", "cluster.local/ns/app/sa/default");
    let told = |builder: &Builder| {
        let found = crate::admin::findings::findings(builder);
        let told = found.into_iter().filter(|it| it.rule == "waypoint-not-admitted");
        told.map(|it| format!("{}: {} {}", it.object, it.what, it.remedy)).collect::<Vec<_>>()
    };
    builder.apply([viewer(json!([client]))]);
    let answer = ask_for(&builder, "web", "/api");
    assert_eq!(answer.decision, admin::Decision::Deny, "{}", answer.reason);
    assert!(answer.reason.contains("ALLOW policy app/viewer"), "{}", answer.reason);
    assert_eq!(answer.decided_by.as_deref(), Some("the proxy of app/web-1"));
    assert_eq!(answer.request.expect("a waypoint reads it").status, Some(503));
    let remedy = answer.remedy.expect("there is one");
    assert!(remedy.contains("targetRefs") && remedy.contains(waypoint), "{remedy}");
    let [found] = &told(&builder)[..] else { panic!("{:?}", told(&builder)) };
    assert!(found.starts_with("AuthorizationPolicy app/viewer: it selects app/web-1"), "{found}");
    assert!(found.contains(waypoint), "{found}");
    builder.apply([viewer(json!([client, waypoint]))]);
    let answer = ask_for(&builder, "web", "/api");
    assert_eq!(answer.decision, admin::Decision::Allow, "{}", answer.reason);
    assert_eq!(told(&builder), [""; 0]);
    database(&mut builder);
    builder.apply([viewer(json!([client]))]);
    let bytes = explain_connection(&builder, "app/load", "db:5432", None).expect("an answer");
    assert_eq!(bytes.decision, admin::Decision::Deny, "bytes are judged there too");
    let http = explain_connection(&builder, "app/load", "db:80", None).expect("an answer");
    assert!(http.notes.iter().any(|it| it.contains("app/viewer")), "{:?}", http.notes);
}

#[test]
fn the_limits_that_count_a_request_are_named() {
    let mut builder = fronted();
    let limits = |limits: Value| {
        let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
        let spec = json!({"targetRefs": targets, "rateLimits": limits});
        put(Kind::TrafficPolicy, "limits", json!({"spec": spec}))
    };
    let user = json!([{"headers": [{"name": "X-User", "type": "Distinct"}]}]);
    let quota = json!({"requests": 10, "unit": "Minute", "burst": 20});
    builder.apply([limits(json!([
        {"name": "all", "limit": {"requests": 5, "unit": "Second"}, "shadowMode": true},
        {"name": "user", "clientSelectors": user, "limit": quota},
    ]))]);
    let ask = |builder: &Builder, path: &str, headers: &str| {
        let (path, headers) = (path.to_owned(), headers.to_owned());
        let query = [("path".to_owned(), path), ("headers".to_owned(), headers)].into();
        let request = Request::of(&query).expect("a request").expect("one is asked about");
        explain_request(builder, "app/load", "web", &request).expect("an answer")
    };
    let told = |path: &str, headers: &str| {
        let limits = ask(&builder, path, headers).request.expect("a waypoint reads it").limits;
        let told = limits
            .iter()
            .map(|it| format!("{} {} {:?} {}", it.limit, it.quota, it.sender, it.enforced));
        told.collect::<Vec<_>>()
    };
    let all = r#"all 5 per second, in each waypoint pod "" false"#;
    let user = r#"user 10 per minute, burst 20, in each waypoint pod "x-user=ann" true"#;
    assert_eq!(told("/api", ""), [all]);
    assert_eq!(told("/api", "x-user: ann"), [all, user]);
    assert_eq!(told("/other", "x-user: ann"), [] as [&str; 0], "no route, no limit");
    builder.apply([limits(json!([{"limit": {"requests": 0, "unit": "Second"}}]))]);
    let answer = ask(&builder, "/api", "");
    assert_eq!(answer.decision, admin::Decision::Deny);
    assert!(answer.reason.contains("requests"), "{}", answer.reason);
}

#[test]
fn what_bounds_a_request_is_named_with_where_it_is_written() {
    let mut builder = fronted();
    let targets = json!([{"group": "", "kind": "Service", "name": "web"}]);
    let limits = json!({"targetRefs": targets, "limits": {"maxBodyBytes": 1024}});
    let check = json!({"type": "HTTP", "http": {"path": "/healthz"}, "interval": "5s"});
    let check = json!({"targetRefs": targets, "healthCheck": check});
    let pages = json!({"targetRefs": targets, "compression": {"algorithms": ["gzip", "br"]}});
    let rule = json!({"spec": {"host": "web", "trafficPolicy": {
        "connectionPool": {"tcp": {"maxConnections": 7}},
        "outlierDetection": {"consecutive5xxErrors": 3, "maxEjectionPercent": 50}}}});
    builder.apply([
        put(Kind::TrafficPolicy, "sizes", json!({"spec": limits})),
        put(Kind::TrafficPolicy, "well", json!({"spec": check})),
        put(Kind::TrafficPolicy, "pages", json!({"spec": pages})),
        put(Kind::DestinationRule, "pool", rule),
    ]);
    let ask = |builder: &Builder, path: &str| {
        let request = Request::of(&[("path".to_owned(), path.to_owned())].into());
        let request = request.expect("a request").expect("one is asked about");
        explain_request(builder, "app/load", "web", &request).expect("an answer")
    };
    let answer = ask(&builder, "/api").request.expect("a waypoint reads it");
    let bound = |it: &admin::Bound| {
        let of = it.service.as_deref().unwrap_or("request").split('.').next();
        format!("{} {} of {} by {}", it.bound, it.value, of.unwrap_or_default(), it.from)
    };
    let bounds: Vec<String> = answer.bounds.iter().map(bound).collect();
    let outliers = "3 answers of 5xx in a row leave an endpoint out for 30s, at most 50 % of them";
    assert_eq!(
        bounds,
        [
            "maxBodyBytes 1024 of request by TrafficPolicy app/sizes".to_owned(),
            "compression gzip or br from 1024 bytes of request by TrafficPolicy app/pages"
                .to_owned(),
            "maxConnections 7 of app/web by DestinationRule app/pool".to_owned(),
            format!("outlierDetection {outliers} of app/web by DestinationRule app/pool"),
        ]
    );
    let [check] = &answer.health_checks[..] else { panic!("{:?}", answer.health_checks) };
    assert!(check.check.starts_with("GET /healthz every 5s, within 1s; out"), "{}", check.check);
    assert_eq!(check.from, "TrafficPolicy app/well");
    let unrouted = ask(&builder, "/other").request.expect("a waypoint reads it");
    assert!(unrouted.bounds.is_empty() && unrouted.health_checks.is_empty());
    let wrong = json!({"targetRefs": targets, "limits": {"maxBodyBytes": 0}});
    builder.apply([put(Kind::TrafficPolicy, "sizes", json!({"spec": wrong}))]);
    let answer = ask(&builder, "/api");
    assert_eq!(answer.decision, admin::Decision::Deny);
    assert!(answer.reason.starts_with("TrafficPolicy app/sizes: "), "{}", answer.reason);
}

/// A database behind the waypoint, with routes of connections.
fn database(builder: &mut Builder) {
    let labels = json!({"istio.io/use-waypoint": "way"});
    let ports = json!([
        {"port": 5432, "name": "tcp"}, {"port": 443, "name": "tls"},
        {"port": 6379, "name": "redis"}, {"port": 80, "name": "http"},
    ]);
    let spec = json!({"clusterIP": "10.96.0.5", "selector": {"app": "web"}, "ports": ports});
    let parent = |port: u16| json!([{"group": "", "kind": "Service", "name": "db", "port": port}]);
    let to = json!([{"name": "db", "port": 5432}]);
    let tcp = json!({"spec": {"parentRefs": parent(5432), "rules": [{"backendRefs": to}]}});
    let hostnames = json!(["db.example.com"]);
    let tls = json!({"spec": {"parentRefs": parent(443), "hostnames": hostnames,
        "rules": [{"backendRefs": [{"name": "db", "port": 443}]}]}});
    let pool = json!({"spec": {"host": "db", "trafficPolicy": {
        "connectionPool": {"tcp": {"maxConnections": 9}, "http": {"http2MaxRequests": 5}}}}});
    builder.apply([
        put(Kind::Service, "db", json!({"metadata": {"labels": labels}, "spec": spec})),
        put(Kind::TcpRoute, "bytes", tcp),
        put(Kind::TlsRoute, "names", tls),
        put(Kind::DestinationRule, "pool", pool),
    ]);
}

#[test]
fn a_connection_of_bytes_is_routed_and_judged_as_the_waypoint_does_it() {
    let mut builder = fronted();
    database(&mut builder);
    let ask = |builder: &Builder, port: u16, name: Option<&str>| {
        let destination = format!("db:{port}");
        explain_connection(builder, "app/load", &destination, name).expect("an answer")
    };
    use admin::Decision::{Allow, Deny, Waypoint};
    for (port, name, decision, carried, route) in [
        (5432, None, Allow, Some("TCP"), Some("app/bytes")),
        (443, Some("DB.example.com"), Allow, Some("TLS"), Some("app/names")),
        (443, Some("other.example.com"), Deny, Some("TLS"), None),
        (443, None, Deny, Some("TLS"), None),
        (6379, None, Allow, Some("TCP"), None),
        (80, None, Waypoint, None, None),
    ] {
        let answer = ask(&builder, port, name);
        assert_eq!(answer.decision, decision, "{port} {name:?}: {}", answer.reason);
        assert_eq!(answer.remedy.is_some(), decision == Deny, "{port} {name:?}");
        let connection = answer.connection;
        assert_eq!(connection.as_ref().map(|it| &*it.protocol), carried, "{port}");
        let rule = connection.and_then(|it| it.rule);
        assert_eq!(rule.as_ref().map(|it| &*it.route), route, "{port} {name:?}");
    }
    let bounds = ask(&builder, 5432, None).connection.expect("an answer").bounds;
    let bounds: Vec<_> = bounds.iter().map(|it| (&*it.bound, &*it.value)).collect();
    assert_eq!(bounds, [("maxConnections", "9")], "what is of requests holds for none of them");
}

#[test]
fn policies_of_requests_let_no_bytes_pass_and_a_request_to_bytes_is_said_to_be_none() {
    let mut builder = fronted();
    database(&mut builder);
    let targets = json!([{"kind": "Service", "group": "", "name": "db"}]);
    let methods = json!([{"to": [{"operation": {"methods": ["GET"]}}]}]);
    let policy = json!({"spec": {"targetRefs": targets, "action": "ALLOW", "rules": methods}});
    builder.apply([put(Kind::AuthorizationPolicy, "reads", policy)]);
    let answer = explain_connection(&builder, "app/load", "db:5432", None).expect("an answer");
    assert_eq!(answer.decision, admin::Decision::Deny);
    let remedy = answer.remedy.expect("there is one");
    assert!(remedy.contains("app/reads") && remedy.contains("never does"), "{remedy}");
    let request = Request::of(&[("method".to_owned(), "GET".to_owned())].into());
    let request = request.expect("a request").expect("one is asked about");
    let answer = explain_request(&builder, "app/load", "db:5432", &request).expect("an answer");
    assert!(answer.request.is_none() && answer.connection.is_some());
    assert!(answer.notes.iter().any(|it| it.contains("nobody reads the request")));
}

#[test]
fn the_condition_of_a_policy_is_shown_with_what_it_comes_to() {
    let mut builder = fronted();
    let ask = |builder: &Builder, condition: &str| {
        let request = Request::of(&[("path".to_owned(), "/api/x".to_owned())].into());
        let request = request.expect("a request").expect("one is asked about");
        let answer = explain_request(builder, "app/load", "web", &request).expect("an answer");
        let told = answer.notes.into_iter().find(|it| it.contains(condition));
        (answer.decision, told.expect("it is told"))
    };
    use admin::Decision::{Allow, Deny};
    for (condition, decision, comes_to) in [
        ("request.method == 'GET'", Deny, "is true"),
        ("source.namespace == 'bank'", Allow, "is false"),
        ("auth.claims.group == 'x'", Deny, "has no value (there is no auth.claims), and counts"),
    ] {
        let metadata = json!({"annotations": {"ambit.io/condition": condition}});
        let targets = json!([{"kind": "Service", "group": "", "name": "web"}]);
        let spec = json!({"targetRefs": targets, "action": "DENY", "rules": [{}]});
        let policy = json!({"metadata": metadata, "spec": spec});
        builder.apply([put(Kind::AuthorizationPolicy, "when", policy)]);
        let (got, told) = ask(&builder, condition);
        assert_eq!(got, decision, "{told}");
        assert!(told.starts_with(&format!("the condition of app/when {comes_to}")), "{told}");
    }
}

#[test]
fn the_claims_of_a_token_that_is_supposed_are_judged() {
    let mut builder = fronted();
    let targets = json!([{"kind": "Service", "group": "", "name": "web"}]);
    let keys = r#"{"keys":[{"kty":"OKP","crv":"Ed25519",
        "x":"HefOdGXUcH85qk2k2UW8jR7_kLMTak9dsWkFSsdmcGo"}]}"#;
    let policy = json!({"spec": {
        "targetRefs": targets, "action": "DENY",
        "rules": [{"when": [{"key": "request.auth.claims[group]", "notValues": ["admin"]}]}],
    }});
    builder.apply([put(Kind::AuthorizationPolicy, "admin", policy)]);
    let ask = |builder: &Builder, claims: Option<&str>| {
        let mut query = BTreeMap::from([("path".to_owned(), "/api/x".to_owned())]);
        query.extend(claims.map(|it| ("claims".to_owned(), it.to_owned())));
        let request = Request::of(&query).expect("a request").expect("one is asked about");
        explain_request(builder, "app/load", "web", &request).expect("an answer")
    };
    let unread = ask(&builder, Some(r#"{"group": "admin"}"#));
    assert_eq!(unread.decision, admin::Decision::Deny);
    assert!(unread.notes.iter().any(|it| it.contains("nobody reads the token")));
    let rule = json!({"issuer": "https://a", "audiences": ["shop"], "jwks": keys});
    let login = json!({"spec": {"targetRefs": targets, "jwtRules": [rule]}});
    builder.apply([put(Kind::RequestAuthentication, "login", login)]);
    for (claims, reason) in [
        (Some(r#"{"aud": "shop", "group": "admin"}"#), None),
        (Some(r#"{"iss": "https://a", "aud": ["shop"], "group": ["x", "admin"]}"#), None),
        (Some(r#"{"aud": "shop", "group": "dev"}"#), Some("app/admin")),
        (None, Some("app/admin")),
        (Some(r#"{"group": "admin"}"#), Some("Audiences in Jwt are not allowed")),
        (Some(r#"{"iss": "https://b"}"#), Some("Jwt issuer is not configured")),
        (Some(r#"{"aud": "shop", "exp": 1}"#), Some("Jwt is expired")),
        (Some("admin"), Some("the token is refused")),
    ] {
        let answer = ask(&builder, claims);
        let expected =
            if reason.is_none() { admin::Decision::Allow } else { admin::Decision::Deny };
        assert_eq!(answer.decision, expected, "{claims:?}: {}", answer.reason);
        let told = reason.is_none_or(|it| answer.reason.contains(it));
        assert!(told, "{claims:?}: {}", answer.reason);
    }
}

#[test]
fn a_request_that_nobody_reads_is_said_to_be_none() {
    let query = [("method".to_owned(), "GET".to_owned())].into();
    let request = Request::of(&query).expect("a request").expect("one is asked about");
    let answer = explain_request(&builder(), "app/load", "web", &request).expect("an answer");
    assert_eq!(answer.request, None);
    let notes = answer.notes.join(" ");
    assert!(notes.contains("no waypoint stands before"), "{notes}");
}

#[test]
fn what_is_no_request_is_refused() {
    let of = |name: &str, value: &str| Request::of(&[(name.to_owned(), value.to_owned())].into());
    assert_eq!(of("src", "a/b").expect("no question about one"), None);
    assert!(of("headers", "no colon").is_err());
    assert!(of("method", "get x").is_err());
    let bad = of("path", "/%zz").expect("read later").expect("asked about");
    let refused = explain_request(&builder(), "app/load", "web", &bad).expect_err("no path");
    assert!(matches!(refused, WhyError::Request(_)), "{refused}");
}

/// Pods of `load`, in a mesh in which only what is declared may be reached.
fn fenced() -> Builder {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "istio-system", "name": "istio"},
        "data": {"mesh": "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"},
    });
    let config = stored(Kind::ConfigMap, config.to_string().as_bytes()).expect("valid");
    let ports = json!([{"number": 443, "name": "tls", "protocol": "TLS"}]);
    let entry = |host: &str, found: &str| {
        let spec = json!({"hosts": [host], "resolution": found, "ports": ports});
        json!({"spec": spec})
    };
    let mut builder = builder();
    builder.apply([
        Event::Put(config),
        put(Kind::ServiceEntry, "allowed", entry("allowed.example", "NONE")),
        put(Kind::ServiceEntry, "dns", entry("dns.example", "DNS")),
    ]);
    builder
}

#[test]
fn what_may_leave_the_mesh_is_said_with_what_allows_it() {
    let check = |builder: &Builder, to: &str, sni: Option<&str>, plan: &str, parts: &[&str]| {
        let answer = explain_connection(builder, "app/load", to, sni).expect("an answer");
        let text = format!("{answer:?}");
        assert_eq!(answer.plan.to_string(), plan, "{to} {sni:?}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text}");
        answer.decision
    };
    let (free, fenced) = (builder(), fenced());
    let (allow, deny) = (admin::Decision::Allow, admin::Decision::Deny);
    let is = |found, expected| assert_eq!(found, expected);
    is(check(&free, "198.51.100.1:443", None, "direct", &["not in the mesh"]), allow);
    is(check(&fenced, "web", None, "local", &[]), allow);
    let looked_up = ["port 443 of dns.example", "looks up"];
    is(check(&fenced, "dns.example:443", None, "lookup", &looked_up), allow);
    let outside = "198.51.100.1:22";
    let parts = ["REGISTRY_ONLY", "198.51.100.1:22 is of no Service", "in a ServiceEntry"];
    is(check(&fenced, outside, None, "refuse", &parts), deny);
    let outside = "198.51.100.1:443";
    let unnamed = ["names no host", "say it with --sni", "allowed.example"];
    is(check(&fenced, outside, None, "refuse", &unnamed), deny);
    let other = ["evil.example at port 443"];
    is(check(&fenced, outside, Some("evil.example"), "refuse", &other), deny);
    let named = ["allowed by app/allowed.example if allowed.example leads to 198.51.100.1"];
    is(check(&fenced, outside, Some("Allowed.example"), "direct", &named), allow);
}
