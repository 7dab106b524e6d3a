//! Routes in, rules and problems out.

use std::time::Duration;

use ambit_model::http::matching::{NamedMatch, PathMatch, Pattern, ValueMatch};
use ambit_model::http::rule::{PathChange, RedirectPort, RetryOn, SessionKeeper};
use ambit_model::names::ServiceName;
use serde_json::{Value, json};

use super::*;
use crate::routes::{GROUP, GrantFrom, GrantTo, ReferenceGrantSpec, RouteSpec};

/// Services `web` and `api` of `app` and `far` of `shop`, a host of an entry, and a grant of `shop`
/// to HTTPRoutes of `app`.
struct Mesh;

impl Backends for Mesh {
    fn service(&self, namespace: &str, name: &str) -> Option<Known> {
        let is_there = [("app", "web"), ("app", "api"), ("shop", "far"), ("shop", "near")]
            .contains(&(namespace, name));
        let hostname = format!("{name}.{namespace}.svc.cluster.local");
        let port = |number| Port { number, name: format!("http-{number}") };
        let name = ServiceName::new(namespace, hostname);
        is_there.then(|| Known {
            name,
            ports: vec![port(80), port(90)],
            datagrams: Some(vec![port(53)]),
        })
    }

    fn host(&self, namespace: &str, hostname: &str) -> Option<Known> {
        let name = ServiceName::new(namespace, hostname);
        (hostname == "x.example.com").then(|| Known {
            name,
            ports: vec![Port { number: 443, name: "https".to_owned() }],
            datagrams: None,
        })
    }

    fn is_granted(&self, from: &GrantFrom, namespace: &str, service: &str) -> bool {
        let named = |kind: &str, namespace: &str| GrantFrom {
            group: GROUP.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
        };
        let to = GrantTo {
            kind: "Service".to_owned(),
            name: Some("far".to_owned()),
            ..GrantTo::default()
        };
        let grant = ReferenceGrantSpec { from: vec![named("HTTPRoute", "app")], to: vec![to] };
        namespace == "shop" && grants(&grant, from, ("", "Service", service))
    }
}

fn metadata() -> Value {
    json!({"namespace": "app", "name": "r", "creationTimestamp": "1970-01-01T00:00:07Z"})
}

fn http_route(rules: &Value) -> HttpRoute {
    let route =
        json!({"apiVersion": "", "kind": "", "metadata": metadata(), "spec": {"rules": rules}});
    serde_json::from_value(route).expect("an HTTPRoute")
}

fn grpc_route(rules: &Value) -> GrpcRoute {
    let route =
        json!({"apiVersion": "", "kind": "", "metadata": metadata(), "spec": {"rules": rules}});
    serde_json::from_value(route).expect("a GRPCRoute")
}

/// The only rule of an HTTPRoute that has no problem.
fn rule(written: &Value) -> Rule {
    let mut routing = http(&http_route(&json!([written])), &Mesh);
    assert_eq!(routing.problems, [], "{written}");
    Rule::clone(&routing.rules.remove(0))
}

fn problems(routing: &Routing) -> Vec<String> {
    let problem = |it: &Problem| format!("{} {}", it.at.as_str(), it.reason.word());
    routing.problems.iter().map(problem).collect()
}

/// What is wrong with a rule, by field and reason; and that the rule then answers 500.
fn wrong(routing: &Routing, written: &Value, expected: &str) {
    let found = problems(routing).join(", ").replace("spec.rules[0].", "");
    assert_eq!(found, expected, "{written}");
    let is_lost = routing.problems.iter().any(|it| it.rule == Some(0));
    let Action::Forward { backends, .. } = &routing.rules[0].action else {
        panic!("{written}: it forwards");
    };
    if is_lost {
        assert!(matches!(
            &backends[..],
            [Backend { weight: 1, destination: Destination::Invalid(_), .. }]
        ));
        assert!(routing.rules[0].mirrors.is_empty() && routing.rules[0].cors.is_none());
    }
}

fn destination(name: &str, port: u16) -> Destination {
    let name = ServiceName::new("app", format!("{name}.app.svc.cluster.local"));
    Destination::Service { name, port, subset: None }
}

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn named(name: &str, value: ValueMatch) -> NamedMatch {
    NamedMatch { name: name.into(), value, is_inverted: false }
}

#[test]
fn a_rule_is_where_it_is_written() {
    let route = http_route(&json!([{}, {"name": "second"}]));
    let routing = http(&route, &Mesh);
    let second = &routing.rules[1].origin;
    assert_eq!((second.kind, second.created_unix_s, second.index), (RouteKind::HttpRoute, 7, 1));
    assert_eq!((&*second.namespace, &*second.name), ("app", "r"));
    assert_eq!(second.rule_name.as_deref(), Some("second"));
    // No rule at all is one that matches everything and goes nowhere.
    let none = http(&http_route(&json!([])), &Mesh);
    assert_eq!(none.rules.len(), 1);
    assert!(none.rules[0].matches.is_empty());
    let Action::Forward { backends, .. } = &none.rules[0].action else { panic!("it forwards") };
    assert!(backends.is_empty());
}

#[test]
fn paths_are_compared_as_the_gateway_api_says() {
    for (written, expected) in [
        (json!({"type": "Exact", "value": "/a"}), PathMatch::Exact("/a".into())),
        (json!({"type": "PathPrefix", "value": "/a"}), PathMatch::Segments("/a".into())),
        (json!({"value": "/a/b/"}), PathMatch::Segments("/a/b".into())),
        (json!({}), PathMatch::Segments("/".into())),
        (
            json!({"type": "RegularExpression", "value": "/v[0-9]"}),
            PathMatch::Regex(pattern("/v[0-9]")),
        ),
    ] {
        let matches = rule(&json!({"matches": [{"path": written}]})).matches;
        assert_eq!(matches[0].path, Some(expected), "{written}");
    }
}

#[test]
fn fields_parameters_and_methods_are_compared() {
    let written = json!({"matches": [{
        "method": "POST",
        "headers": [
            {"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"},
            {"type": "RegularExpression", "name": "b", "value": "v.*"},
        ],
        "queryParams": [{"name": "Q", "value": "1"}, {"name": "q", "value": "2"}],
    }, {}]});
    let matches = rule(&written).matches;
    assert_eq!(matches[0].method, Some(ValueMatch::Exact("POST".into())));
    let exact = |text: &str| ValueMatch::Exact(text.into());
    let headers = [named("x-a", exact("1")), named("b", ValueMatch::Regex(pattern("v.*")))];
    assert_eq!(matches[0].headers, headers);
    assert_eq!(matches[0].parameters, [named("Q", exact("1")), named("q", exact("2"))]);
    assert_eq!(matches[1], Match::default());
}

#[test]
fn a_match_that_cannot_be_read_is_widened_and_answers_500() {
    let every = || Some(PathMatch::Regex(pattern("(?s).*")));
    for (written, expected, at) in [
        (json!({"path": {"type": "RegularExpression", "value": "("}}), every(), "path.value"),
        (json!({"path": {"type": "Newer", "value": "/a"}}), every(), "path.type"),
        (
            json!({"path": {"type": "Exact", "value": "/a//b"}}),
            Some(PathMatch::Exact("/a//b".into())),
            "path.value",
        ),
        (json!({"path": {"value": "a"}}), Some(PathMatch::Segments("a".into())), "path.value"),
        (
            json!({"path": {"value": "/a/.."}}),
            Some(PathMatch::Segments("/a/..".into())),
            "path.value",
        ),
        (
            json!({"path": {"value": "/a b"}}),
            Some(PathMatch::Segments("/a b".into())),
            "path.value",
        ),
        (json!({"method": "FETCH"}), None, "method"),
        (json!({"headers": [{"name": "a b", "value": "1"}]}), None, "headers[0].name"),
        (json!({"headers": [{"type": "Newer", "name": "a"}]}), None, "headers[0].type"),
        (
            json!({"queryParams": [{"type": "RegularExpression", "name": "a", "value": "("}]}),
            None,
            "queryParams[0].value",
        ),
    ] {
        let written = json!({"matches": [written], "backendRefs": [{"name": "web", "port": 80}]});
        let routing = http(&http_route(&json!([written])), &Mesh);
        wrong(&routing, &written, &format!("matches[0].{at} UnsupportedValue"));
        assert_eq!(routing.rules[0].matches[0].path, expected, "{written}");
    }
    let unknown = json!([{"matches": [{"headers": [{"type": "Newer", "name": "a"}]}]}]);
    let routing = http(&http_route(&unknown), &Mesh);
    assert_eq!(routing.rules[0].matches[0].headers, [named("a", ValueMatch::Present)]);
}

#[test]
fn methods_of_grpc_are_paths() {
    let check = |written: Value, expected: Option<PathMatch>, requests: &[(&str, bool)]| {
        let routing = grpc(&grpc_route(&json!([{"matches": [{"method": written}]}])), &Mesh);
        assert_eq!(routing.problems, [], "{written}");
        let path = routing.rules[0].matches[0].path.clone().expect("a path");
        if let Some(expected) = expected {
            assert_eq!(path, expected, "{written}");
        }
        for (request, is_matched) in requests {
            assert_eq!(path.matches(request), *is_matched, "{written} {request}");
        }
    };
    check(json!({"service": "a.B", "method": "C"}), Some(PathMatch::Exact("/a.B/C".into())), &[]);
    check(json!({"service": "a.B"}), Some(PathMatch::Segments("/a.B".into())), &[("/a.B/C", true)]);
    let requests = [("/x.Y/C.d", true), ("/x.Y/Cxd", false), ("/x/y/C.d", false), ("/C.d", false)];
    check(json!({"method": "C.d"}), None, &requests);
    let regular = |service: Value, method: Value| {
        let kind = "RegularExpression";
        json!({"type": kind, "service": service, "method": method})
    };
    let requests = [("/a.X/Get", true), ("/b/Get", true), ("/c/Get", false), ("/a.X/Got", false)];
    check(regular(json!("a\\..*|b"), json!("G[e]t")), None, &requests);
    check(regular(json!(null), json!("Get")), None, &[("/a/Get", true), ("/a/b/Get", false)]);
    check(regular(json!("a"), json!(null)), None, &[("/a/Get", true), ("/b/Get", false)]);
    for (written, at) in [
        (json!({}), ""),
        (json!({"service": ""}), ""),
        (json!({"type": "Newer", "service": "a"}), ".type"),
        (json!({"service": "a/b"}), ".service"),
        (regular(json!("a)|(b"), json!(null)), ".service"),
    ] {
        let written = json!({"matches": [{"method": written}]});
        let routing = grpc(&grpc_route(&json!([written])), &Mesh);
        wrong(&routing, &written, &format!("matches[0].method{at} UnsupportedValue"));
    }
}

#[test]
fn filters_are_made() {
    let filters = json!([
        {"type": "RequestHeaderModifier", "requestHeaderModifier": {
            "set": [{"name": "X-A", "value": " 1 "}, {"name": "x-a", "value": "2"}],
            "add": [{"name": "b", "value": "3"}], "remove": ["C"]}},
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["server"]}},
        {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "web", "port": 80}}},
        {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "api", "port": 90},
            "percent": 5}},
        {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "api", "port": 90},
            "fraction": {"numerator": 1, "denominator": 1000}}},
        {"type": "URLRewrite", "urlRewrite": {"hostname": "new.example",
            "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}},
    ]);
    let made = rule(&json!({"matches": [{"path": {"value": "/old"}}], "filters": filters}));
    let pair = |name: &str, value: &str| (Text::from(name), Text::from(value));
    assert_eq!(made.request_headers.set, [pair("x-a", "1")]);
    assert_eq!(made.request_headers.add, [pair("b", "3")]);
    assert_eq!(made.request_headers.remove, ["c".into()]);
    assert_eq!(made.response_headers.remove, ["server".into()]);
    let fractions: Vec<_> =
        made.mirrors.iter().map(|it| (it.fraction.numerator, it.fraction.denominator)).collect();
    assert_eq!(fractions, [(1, 1), (5, 100), (1, 1000)]);
    assert_eq!(made.mirrors[1].destination, destination("api", 90));
    let Action::Forward { rewrite, .. } = made.action else { panic!("it forwards") };
    assert_eq!(rewrite.host.as_deref(), Some("new.example"));
    assert_eq!(rewrite.path, Some(PathChange::Segments("/new".into())));
}

#[test]
fn redirects_are_made() {
    let path = json!({"type": "ReplaceFullPath", "replaceFullPath": "/a"});
    for (written, port, status) in [
        (json!({}), RedirectPort::OfListener, 302),
        (json!({"scheme": "https", "statusCode": 301}), RedirectPort::OfScheme, 301),
        (
            json!({"scheme": "https", "port": 8443, "statusCode": 308}),
            RedirectPort::Given(8443),
            308,
        ),
        (json!({"hostname": "x.example", "statusCode": 303}), RedirectPort::OfListener, 303),
        (json!({"path": path, "statusCode": 307}), RedirectPort::OfListener, 307),
    ] {
        let filter = json!({"type": "RequestRedirect", "requestRedirect": written});
        let Action::Redirect(redirect) = rule(&json!({"filters": [filter]})).action else {
            panic!("{written}: it redirects");
        };
        assert_eq!((redirect.port, redirect.status), (port, status), "{written}");
        assert_eq!(redirect.host.as_deref(), written["hostname"].as_str());
        assert_eq!(redirect.scheme.as_deref(), written["scheme"].as_str());
        assert_eq!(redirect.path.is_some(), written["path"].is_object());
    }
}

#[test]
fn origins_are_compared() {
    let cors = json!({
        "allowOrigins": ["*", "HTTPS://Example.com:8443", "https://*.x.example", "http://*"],
        "allowMethods": ["GET", "*"], "allowHeaders": ["X-A"], "exposeHeaders": ["X-B"],
        "allowCredentials": true,
    });
    let made = rule(&json!({"filters": [{"type": "CORS", "cors": cors}]})).cors.expect("CORS");
    assert_eq!(
        made.allow_origins[..2],
        [ValueMatch::Present, ValueMatch::Exact("https://example.com:8443".into()),]
    );
    for (index, origin, is_allowed) in [
        (2, "https://a.x.example", true),
        (2, "https://b.a.x.example", true),
        (2, "https://x.example", false),
        (2, "https://a.x.example:8443", false),
        (2, "http://a.x.example", false),
        (2, "https://evil.example/.x.example", false),
        (2, "https://ayx.example", false),
        (3, "http://any.where", true),
    ] {
        assert_eq!(made.allow_origins[index].matches(origin.as_bytes()), is_allowed, "{origin}");
    }
    assert_eq!(made.allow_headers, ["x-a".into()]);
    assert_eq!(made.expose_headers, ["x-b".into()]);
    assert_eq!((made.allow_credentials, made.max_age), (true, Some(Duration::from_secs(5))));
}

/// What is wrong with the filters of an HTTPRoute's rule.
fn wrong_filters(filters: Value, expected: &str) {
    let written = json!({"filters": filters});
    wrong(&http(&http_route(&json!([written])), &Mesh), &written, expected);
}

#[test]
fn a_filter_that_is_not_known_spoils_its_rule() {
    let reference = json!({"group": "a", "kind": "B", "name": "c"});
    let at_type = "filters[0].type UnsupportedValue";
    wrong_filters(json!([{"type": "Newer"}]), at_type);
    wrong_filters(json!([{"type": "ExtensionRef", "extensionRef": reference}]), at_type);
    wrong_filters(json!([{"type": "ExternalAuth", "externalAuth": {}}]), at_type);
    let at_filter = "filters[0] UnsupportedValue";
    wrong_filters(json!([{"type": "CORS"}]), at_filter);
    wrong_filters(json!([{"type": "CORS", "cors": {}, "urlRewrite": {}}]), at_filter);
    wrong_filters(json!([{"type": "CORS", "urlRewrite": {}}]), at_filter);
}

#[test]
fn some_fields_are_no_filters_to_change() {
    let modifier = |name: &str| {
        let set = json!([{"name": name, "value": "1"}]);
        json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": set}})
    };
    wrong_filters(json!([modifier("a"), modifier("b")]), "filters[1] IncompatibleFilters");
    let at_name = "filters[0].requestHeaderModifier.set[0].name UnsupportedValue";
    for name in ["a b", "Host", "Transfer-Encoding", "content-length"] {
        wrong_filters(json!([modifier(name)]), at_name);
    }
}

#[test]
fn redirects_and_rewrites_that_cannot_be_made_spoil_their_rule() {
    let redirect = |it: Value| json!({"type": "RequestRedirect", "requestRedirect": it});
    let rewrite = |it: Value| json!({"type": "URLRewrite", "urlRewrite": {"path": it}});
    let both = json!([redirect(json!({})), {"type": "URLRewrite", "urlRewrite": {}}]);
    wrong_filters(both, "filters IncompatibleFilters");
    for (written, field) in [
        (json!({"scheme": "ftp"}), "scheme"),
        (json!({"statusCode": 300}), "statusCode"),
        (json!({"port": 0}), "port"),
        (json!({"hostname": "*.a"}), "hostname"),
    ] {
        let expected = format!("filters[0].requestRedirect.{field} UnsupportedValue");
        wrong_filters(json!([redirect(written)]), &expected);
    }
    for (written, field) in [
        (json!({"type": "ReplaceFullPath", "replaceFullPath": "a"}), ".replaceFullPath"),
        (json!({"type": "ReplaceFullPath", "replaceFullPath": "/a?b"}), ".replaceFullPath"),
        (json!({"type": "ReplaceFullPath", "replacePrefixMatch": "/a"}), ""),
        (json!({"type": "Newer"}), ".type"),
    ] {
        let expected = format!("filters[0].urlRewrite.path{field} UnsupportedValue");
        wrong_filters(json!([rewrite(written)]), &expected);
    }
    let prefix = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/a"});
    let exact = json!([{"path": {"type": "Exact", "value": "/a"}}]);
    let written = json!({"matches": exact, "filters": [rewrite(prefix)]});
    let routing = http(&http_route(&json!([written])), &Mesh);
    wrong(&routing, &written, "filters[0].urlRewrite.path UnsupportedValue");
    let backends = json!([{"name": "web", "port": 80}]);
    let written = json!({"filters": [redirect(json!({}))], "backendRefs": backends});
    let routing = http(&http_route(&json!([written])), &Mesh);
    wrong(&routing, &written, "filters IncompatibleFilters");
}

#[test]
fn mirrors_and_origins_that_cannot_be_read_spoil_their_rule() {
    let mirror = |part: Value| {
        let mut mirror = json!({"backendRef": {"name": "web", "port": 80}});
        mirror.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        json!([{"type": "RequestMirror", "requestMirror": mirror}])
    };
    let at_mirror = "filters[0].requestMirror UnsupportedValue";
    wrong_filters(mirror(json!({"percent": 101})), at_mirror);
    wrong_filters(mirror(json!({"fraction": {"numerator": 2, "denominator": 1}})), at_mirror);
    wrong_filters(mirror(json!({"percent": 1, "fraction": {"numerator": 1}})), at_mirror);
    for (written, field) in [
        (json!({"allowOrigins": ["example.com"]}), "allowOrigins"),
        (json!({"allowOrigins": ["https://a*.b"]}), "allowOrigins"),
        (json!({"allowMethods": ["G T"]}), "allowMethods"),
    ] {
        let expected = format!("filters[0].cors.{field}[0] UnsupportedValue");
        wrong_filters(json!([{"type": "CORS", "cors": written}]), &expected);
    }
}

#[test]
fn filters_have_their_places() {
    let cors = json!([{"type": "CORS", "cors": {}}]);
    let of_backend = json!({"backendRefs": [{"name": "web", "port": 80, "filters": cors}]});
    let routing = http(&http_route(&json!([of_backend])), &Mesh);
    wrong(&routing, &of_backend, "backendRefs[0].filters[0].type UnsupportedValue");
    let redirect = json!([{"type": "RequestRedirect", "requestRedirect": {}}]);
    let of_grpc = json!({"filters": redirect});
    let routing = grpc(&grpc_route(&json!([of_grpc])), &Mesh);
    wrong(&routing, &of_grpc, "filters[0].type UnsupportedValue");
}

#[test]
fn backends_are_found_or_take_their_share_with_them() {
    let far = ServiceName::new("shop", "far.shop.svc.cluster.local");
    let far = Destination::Service { name: far, port: 80, subset: None };
    let host = ServiceName::new("app", "x.example.com");
    let host = Destination::Service { name: host, port: 443, subset: None };
    let hostname = |fields: Value| {
        let mut written = json!({"group": "networking.istio.io", "kind": "Hostname"});
        written.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        written
    };
    for (written, expected) in [
        (json!({"name": "web", "port": 80}), Ok(destination("web", 80))),
        (
            json!({"group": "", "kind": "Service", "name": "api", "port": 90}),
            Ok(destination("api", 90)),
        ),
        (json!({"name": "far", "namespace": "shop", "port": 80}), Ok(far)),
        (hostname(json!({"name": "x.example.com", "port": 443})), Ok(host)),
        (json!({"name": "gone", "port": 80}), Err(Reason::BackendNotFound)),
        (json!({"name": "web", "port": 81}), Err(Reason::BackendNotFound)),
        (json!({"name": "web"}), Err(Reason::BackendNotFound)),
        (json!({"name": "web", "port": 65616}), Err(Reason::BackendNotFound)),
        (json!({"name": "near", "namespace": "shop", "port": 80}), Err(Reason::RefNotPermitted)),
        // Whether it is there is not for this namespace to know.
        (json!({"name": "gone", "namespace": "else", "port": 80}), Err(Reason::RefNotPermitted)),
        (json!({"kind": "Pod", "name": "web", "port": 80}), Err(Reason::InvalidKind)),
        (json!({"group": "a.io", "name": "web", "port": 80}), Err(Reason::InvalidKind)),
        (hostname(json!({"name": "y.example.com", "port": 443})), Err(Reason::BackendNotFound)),
        (
            hostname(json!({"name": "x.example.com", "namespace": "app", "port": 443})),
            Err(Reason::InvalidKind),
        ),
    ] {
        let rules = json!([{"backendRefs": [written]}]);
        let routing = http(&http_route(&rules), &Mesh);
        let Action::Forward { backends, .. } = &routing.rules[0].action else {
            panic!("{written}")
        };
        match expected {
            Ok(expected) => {
                assert_eq!(backends[0].destination, expected, "{written}");
                assert_eq!(routing.problems, [], "{written}");
            }
            Err(reason) => {
                let found: Vec<_> =
                    routing.problems.iter().map(|it| (it.reason, it.rule)).collect();
                assert_eq!(found, [(reason, None)], "{written}");
                assert!(matches!(backends[0].destination, Destination::Invalid(_)), "{written}");
            }
        }
    }
    let foreign = json!([{"backendRefs": [{"name": "far", "namespace": "shop", "port": 80}]}]);
    let routing = grpc(&grpc_route(&foreign), &Mesh);
    assert_eq!(routing.problems[0].reason, Reason::RefNotPermitted, "granted to HTTPRoutes alone");
}

#[test]
fn what_is_sent_to_a_service_may_be_sent_on_to_it() {
    let reasons = |parents: &[Value]| {
        let spec = json!({"parentRefs": parents, "rules": [{"backendRefs": [
            {"name": "near", "namespace": "shop", "port": 80},
        ]}]});
        let route = json!({"apiVersion": "", "kind": "", "metadata": metadata(), "spec": spec});
        let routing = http(&serde_json::from_value(route).expect("an HTTPRoute"), &Mesh);
        routing.problems.iter().map(|it| it.reason).collect::<Vec<_>>()
    };
    let parent = |kind: &str, group: &str, name: &str| {
        let in_shop = json!({"namespace": "shop", "name": name});
        let mut parent = in_shop.as_object().cloned().expect("an object");
        parent.extend([("group".to_owned(), json!(group)), ("kind".to_owned(), json!(kind))]);
        Value::Object(parent)
    };
    let near = || parent("Service", "", "near");
    assert_eq!(reasons(&[near()]), []);
    let refused = [Reason::RefNotPermitted];
    assert_eq!(reasons(&[parent("Service", "", "far")]), refused, "another Service");
    assert_eq!(reasons(&[parent("ServiceEntry", "networking.istio.io", "near")]), refused);
    let at_gateway = [near(), json!({"name": "edge"})];
    assert_eq!(reasons(&at_gateway), refused, "who asks a Gateway is not in the mesh");
}

#[test]
fn weights_are_shares() {
    let weighed = |weight: Value| {
        let mut written = json!({"name": "web", "port": 80});
        written["weight"] = weight;
        written
    };
    let made =
        rule(&json!({"backendRefs": [weighed(json!(null)), weighed(json!(0)), weighed(json!(7))]}));
    let Action::Forward { backends, .. } = made.action else { panic!("it forwards") };
    assert_eq!(backends.iter().map(|it| it.weight).collect::<Vec<_>>(), [1, 0, 7]);
    for weight in [-1, 1_000_001] {
        let written = json!({"backendRefs": [weighed(json!(weight))]});
        let routing = http(&http_route(&json!([written])), &Mesh);
        wrong(&routing, &written, "backendRefs[0].weight UnsupportedValue");
    }
}

#[test]
fn limits_are_read() {
    let ms = |ms| Some(Duration::from_millis(ms));
    for (written, request, backend) in [
        (json!({"request": "1m30s", "backendRequest": "500ms"}), ms(90_000), ms(500)),
        (json!({"request": "0s", "backendRequest": "2h"}), None, ms(7_200_000)),
        (json!({}), None, None),
    ] {
        let made = rule(&json!({"timeouts": written})).timeouts;
        assert_eq!((made.request, made.backend), (request, backend), "{written}");
    }
    let made = rule(&json!({"retry": {"codes": [500, 503], "attempts": 3, "backoff": "100ms"}}));
    let retry = made.retry.expect("a retry");
    let never_seen = [RetryOn::ConnectFailure, RetryOn::RefusedStream, RetryOn::Reset];
    assert_eq!(retry.on[..3], never_seen);
    assert_eq!(retry.on[3..], [RetryOn::Status(500), RetryOn::Status(503)]);
    assert_eq!((retry.attempts, Some(retry.backoff)), (3, ms(100)));
    let retry = rule(&json!({"retry": {}})).retry.expect("a retry");
    assert_eq!((retry.attempts, Some(retry.backoff)), (2, ms(25)));
    assert_eq!(rule(&json!({"retry": {"attempts": 0}})).retry, None);
    for (written, at) in [
        (json!({"timeouts": {"request": "1.5s"}}), "timeouts.request"),
        (json!({"timeouts": {"request": "5"}}), "timeouts.request"),
        (json!({"timeouts": {"request": "1d"}}), "timeouts.request"),
        (json!({"timeouts": {"request": "123456s"}}), "timeouts.request"),
        (json!({"timeouts": {"request": "1s", "backendRequest": "2s"}}), "timeouts.backendRequest"),
        (json!({"retry": {"codes": [200]}}), "retry.codes[0]"),
        (json!({"retry": {"attempts": -1}}), "retry.attempts"),
        (json!({"retry": {"backoff": "soon"}}), "retry.backoff"),
    ] {
        let routing = http(&http_route(&json!([written])), &Mesh);
        wrong(&routing, &written, &format!("{at} UnsupportedValue"));
    }
}

#[test]
fn sessions_are_kept_by_cookie_or_field() {
    let session = |written: Value| rule(&json!({"sessionPersistence": written})).session.unwrap();
    let made = session(json!({"absoluteTimeout": "1h", "idleTimeout": "5m",
        "cookieConfig": {"lifetimeType": "Permanent"}}));
    let cookie =
        |name: &str, is_permanent| SessionKeeper::Cookie { name: name.into(), is_permanent };
    assert_eq!(made.keeper, cookie("ambit-session-app-r-0", true));
    assert_eq!(made.absolute_timeout, Some(Duration::from_secs(3600)));
    assert_eq!(made.idle_timeout, Some(Duration::from_secs(300)));
    assert_eq!(session(json!({"sessionName": "s"})).keeper, cookie("s", false));
    let field = json!({"type": "Header", "sessionName": "X-S"});
    assert_eq!(session(field).keeper, SessionKeeper::Header("x-s".into()));
    for (written, at) in [
        (json!({"cookieConfig": {"lifetimeType": "Permanent"}}), ""),
        (json!({"cookieConfig": {"lifetimeType": "Newer"}}), ".cookieConfig.lifetimeType"),
        (json!({"type": "Header", "cookieConfig": {}}), ".cookieConfig"),
        (json!({"type": "Newer"}), ".type"),
        (json!({"sessionName": "a;b"}), ".sessionName"),
    ] {
        let written = json!({"sessionPersistence": written});
        let routing = http(&http_route(&json!([written])), &Mesh);
        wrong(&routing, &written, &format!("sessionPersistence{at} UnsupportedValue"));
    }
}

fn bytes_route(spec: Value) -> crate::routes::TlsRoute {
    let route = json!({"apiVersion": "", "kind": "", "metadata": metadata(), "spec": spec});
    serde_json::from_value(route).expect("a route of connections")
}

/// The rules of a route of connections, in words.
fn connections(routing: &Routing) -> Vec<String> {
    let shown = |rule: &Arc<BytesRule>| {
        let names = rule.matches.iter().map(|it| format!("{:?}", it.server_name));
        let backends = rule.backends.iter().map(|it| match &it.destination {
            Destination::Service { name, port, .. } => format!("{}:{port} {}", name, it.weight),
            Destination::Invalid(why) => format!("refused {}: {why}", it.weight),
        });
        let names = names.collect::<Vec<_>>().join("|");
        format!("{names} to {}", backends.collect::<Vec<_>>().join(", "))
    };
    routing.connections.iter().map(shown).collect()
}

#[test]
fn routes_of_connections_have_names_and_weights() {
    let backends = json!([{"name": "web", "port": 80, "weight": 4}, {"name": "api", "port": 90}]);
    let spec = json!({"rules": [{"backendRefs": backends}]});
    let routing = tcp(&bytes_route(spec), &Mesh);
    assert_eq!(routing.problems, []);
    let to = "to app/web.app.svc.cluster.local:80 4, app/api.app.svc.cluster.local:90 1";
    assert_eq!(connections(&routing), [format!(" {to}")]);
    assert_eq!(routing.connections[0].origin.created_unix_s, 7);
    let hosts = json!(["Web.example", "*.web.example"]);
    let spec = json!({"hostnames": hosts, "rules": [{"backendRefs": backends}]});
    let names = r#"Some(Exact("web.example"))|Some(Suffix(".web.example"))"#;
    assert_eq!(connections(&tls(&bytes_route(spec), &Mesh)), [format!("{names} {to}")]);
    let spec = json!({"rules": [{"backendRefs": backends}]});
    assert_eq!(connections(&tls(&bytes_route(spec), &Mesh)), [format!(r#"Some(Suffix("")) {to}"#)]);
    // Without rules, or without backends, a route refuses.
    assert_eq!(connections(&tcp(&bytes_route(json!({})), &Mesh)), [" to "]);
}

#[test]
fn a_route_of_datagrams_leads_to_ports_that_speak_udp() {
    let of = |name: &str, port: i32| {
        let spec = json!({"rules": [{"backendRefs": [{"name": name, "port": port}]}]});
        let routing = udp(&bytes_route(spec), &Mesh);
        assert!(routing.connections.iter().all(|it| it.origin.kind == RouteKind::UdpRoute));
        connections(&routing)
    };
    assert_eq!(of("web", 53), [" to app/web.app.svc.cluster.local:53 1"]);
    assert_eq!(of("web", 80), [" to refused 1: `web` has no port 80 that speaks UDP"]);
}

#[test]
fn what_a_route_of_connections_cannot_do_is_refused_in_its_place() {
    let web = json!({"name": "web", "port": 80});
    let one = |backend: Value| json!({"rules": [{"backendRefs": [backend]}]});
    let why = "a Gateway (gateway.networking.k8s.io) cannot be a backend";
    for (spec, problem, refused) in [
        (
            json!({"hostnames": ["a"], "rules": [{"backendRefs": [web]}]}),
            "spec.hostnames UnsupportedValue",
            "refused 1: spec.hostnames: no host is known of what it takes",
        ),
        (
            one(json!({"name": "web", "port": 80, "filters": [{"type": "Newer"}]})),
            "spec.rules[0].backendRefs[0].filters UnsupportedValue",
            "refused 1: spec.rules[0].backendRefs[0].filters: nothing of a connection",
        ),
        (
            one(json!({"name": "gone", "port": 80, "weight": 3})),
            "spec.rules[0].backendRefs[0] BackendNotFound",
            "refused 3: the Service `app/gone` does not exist",
        ),
        // The grant is for HTTPRoutes.
        (
            one(json!({"name": "far", "namespace": "shop", "port": 80})),
            "spec.rules[0].backendRefs[0] RefNotPermitted",
            "refused 1: no ReferenceGrant of `shop` lets TCPRoutes of `app`",
        ),
        (
            one(json!({"group": GROUP, "kind": "Gateway", "name": "g", "port": 80})),
            "spec.rules[0].backendRefs[0] InvalidKind",
            &format!("refused 1: {why}"),
        ),
    ] {
        let routing = tcp(&bytes_route(spec.clone()), &Mesh);
        let told: Vec<String> = routing
            .problems
            .iter()
            .map(|it| format!("{} {}", it.at.as_str(), it.reason.word()))
            .collect();
        assert_eq!(told, [problem], "{spec}");
        let shown = connections(&routing);
        assert!(shown[0].starts_with(&format!(" to {refused}")), "{shown:?}");
    }
    let mut newer = bytes_route(json!({"hostnames": ["a"], "rules": [{"backendRefs": [web]}]}));
    newer.unreadable = Some("newer".to_owned());
    let routing = tls(&newer, &Mesh);
    assert!(connections(&routing)[0].contains("refused 1: spec: the route cannot be read"));
    let conditions = conditions(&routing);
    assert_eq!((conditions[0].status, conditions[0].kind), ("False", "Accepted"));
    assert!(conditions[0].message.contains("connections that they match are refused"));
}

#[test]
fn conditions_say_what_holds() {
    let good = json!({"backendRefs": [{"name": "web", "port": 80}]});
    let lost = json!({"filters": [{"type": "Newer"}]});
    let missing = json!({"backendRefs": [{"name": "gone", "port": 80}]});
    for (rules, expected) in [
        (json!([good]), "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs"),
        (
            json!([lost, good]),
            "Accepted=True Accepted, ResolvedRefs=True ResolvedRefs, \
            PartiallyInvalid=True UnsupportedValue",
        ),
        (json!([lost, lost]), "Accepted=False UnsupportedValue, ResolvedRefs=True ResolvedRefs"),
        (json!([missing, good]), "Accepted=True Accepted, ResolvedRefs=False BackendNotFound"),
    ] {
        let routing = http(&http_route(&rules), &Mesh);
        let conditions = conditions(&routing);
        let told = conditions.iter().map(|it| format!("{}={} {}", it.kind, it.status, it.reason));
        assert_eq!(told.collect::<Vec<_>>().join(", "), expected, "{rules}");
        if let Some(partly) = conditions.iter().find(|it| it.kind == "PartiallyInvalid") {
            assert!(partly.message.starts_with("Dropped Rule 0: "), "{}", partly.message);
        }
    }
    let mut newer = http_route(&json!([good, good]));
    newer.unreadable = Some("spec.rules[1].newer: unknown field".to_owned());
    let routing = http(&newer, &Mesh);
    let conditions = conditions(&routing);
    assert_eq!((conditions[0].status, conditions[0].reason), ("False", "UnsupportedValue"));
    assert_eq!(conditions[0].message.matches("newer").count(), 1, "{}", conditions[0].message);
}

#[test]
fn parents_are_services_entries_and_gateways() {
    let spec: RouteSpec<HttpRouteRule> = serde_json::from_value(json!({"parentRefs": [
        {"name": "gateway"},
        {"group": "", "kind": "Service", "name": "web", "port": 80},
        {"group": "", "kind": "Service", "name": "far", "namespace": "shop"},
        {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "out"},
        {"kind": "Service", "name": "of the wrong group"},
    ]}))
    .unwrap();
    let found: Vec<_> = parents(&spec, "app").map(|it| (it.index, it.kind, it.namespace)).collect();
    let expected = [
        (0, ParentKind::Gateway, "app"),
        (1, ParentKind::Service, "app"),
        (2, ParentKind::Service, "shop"),
        (3, ParentKind::ServiceEntry, "app"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_route_attaches_to_all_ports_or_to_one() {
    let port = |number: u16, name: &str| Port { number, name: name.to_owned() };
    let ports = [port(80, "http"), port(90, "grpc")];
    for (written, expected) in [
        (json!({}), Ok(None)),
        (json!({"port": 90}), Ok(Some(90))),
        (json!({"sectionName": "http"}), Ok(Some(80))),
        (json!({"sectionName": "http", "port": 80}), Ok(Some(80))),
        (json!({"port": 81}), Err("the Service `app/web` has no port 81")),
        (
            json!({"sectionName": "http", "port": 90}),
            Err("the Service `app/web` has no port 90 called `http`"),
        ),
    ] {
        let mut reference = json!({"group": "", "kind": "Service", "name": "web"});
        reference.as_object_mut().unwrap().extend(written.as_object().unwrap().clone());
        let spec = json!({"parentRefs": [reference]});
        let spec: RouteSpec<HttpRouteRule> = serde_json::from_value(spec).unwrap();
        let parent = parents(&spec, "app").next().expect("a Service");
        let expected = expected.map_err(str::to_owned);
        assert_eq!(parent.port(Some(&ports)), expected, "{written}");
        assert_eq!(parent.port(None), Err("the Service `app/web` does not exist".to_owned()));
    }
}
