//! VirtualServices in, rules out.

use std::collections::BTreeMap;

use ambit_model::http::head::{Claims, Client, NamedValues, RequestHead};
use ambit_model::http::rule::draw;
use ambit_model::http::table::RouteTable;
use ambit_model::names::ServiceName;
use serde_json::{Value, json};

use super::*;
use crate::routes::GrantFrom;
use crate::routing::Port;

/// Services `web` (80), `api` (80 and 90), and the host `out.example.com` (443).
struct Here;

impl Backends for Here {
    fn service(&self, namespace: &str, name: &str) -> Option<Known> {
        let port = |number| Port { number, name: String::new() };
        let ports = match name {
            "web" => vec![port(80)],
            "api" => vec![port(80), port(90)],
            _ => return None,
        };
        Some(Known { name: ServiceName::new(namespace, name), ports, datagrams: None })
    }

    fn host(&self, _: &str, hostname: &str) -> Option<Known> {
        let ports = vec![Port { number: 443, name: String::new() }];
        let name = ServiceName::new("edge", hostname);
        (hostname == "out.example.com").then_some(Known { name, ports, datagrams: None })
    }

    fn is_granted(&self, _: &GrantFrom, _: &str, _: &str) -> bool {
        true
    }

    fn has_subset(&self, _: &ServiceName, subset: &str) -> bool {
        subset != "nosuch"
    }
}

fn object(namespace: &str, spec: &Value) -> VirtualService {
    let object = json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"namespace": namespace, "name": "v"}, "spec": spec});
    serde_json::from_value(object).expect("a VirtualService")
}

fn read_at(http: &Value, port: u16) -> VirtualRouting {
    let around = Around { backends: &Here, delegates: &|_, _| None };
    virtual_service(&object("shop", &json!({"hosts": ["web"], "http": http})), &around, Some(port))
}

fn read(http: Value) -> VirtualRouting {
    read_at(&http, 80)
}

/// The only rule, of which nothing is said.
fn rule(route: Value) -> Rule {
    let read = read(json!([route]));
    assert_eq!((read.remarks, read.missing), (vec![], vec![]));
    (*read.rules[0]).clone()
}

fn said(read: &VirtualRouting) -> Vec<String> {
    let said = |it: &Remark| {
        let kind = if it.is_wrong { "wrong" } else { "unhonoured" };
        format!("{kind} {}", it.at.as_str())
    };
    read.remarks.iter().chain(&read.missing).map(said).collect()
}

/// Which rule, by its name, answers a request for a path with fields.
fn asked(read: &VirtualRouting, path: &str, fields: &[(&str, &str)]) -> Option<String> {
    let fields: Vec<(String, String)> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let table = RouteTable::new(read.rules.iter().cloned());
    let namespace = Text::from("shop");
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let head = RequestHead {
        method: "GET",
        scheme: "http",
        host: "web",
        port: None,
        path,
        query,
        fields: &NamedValues(&fields),
        client: Client { namespace: Some(&namespace), claims: Some(&Admin) },
    };
    let name = table.find(&head)?.rule.origin.rule_name.clone();
    Some(name.map(|it| it.to_string()).unwrap_or_default())
}

/// A token whose `groups` are `admin` and `dev`.
struct Admin;

impl Claims for Admin {
    fn any_claim(&self, keys: &[Text], holds: &mut dyn FnMut(&str) -> bool) -> bool {
        matches!(keys, [key] if &**key == "Groups") && ["admin", "dev"].into_iter().any(holds)
    }
}

#[test]
fn claims_of_the_token_choose_a_route() {
    let route = |name: &str, field: &str, claim: &str, value: Value| {
        let matching = json!([{field: {claim: value}}]);
        json!({"name": name, "match": matching, "route": to("web")})
    };
    let first = |routes: Value| asked(&read(routes), "/", &[("@request.auth.claims.Groups", "x")]);
    let dots = "@request.auth.claims.Groups";
    for (field, claim, value, is_chosen) in [
        ("headers", dots, json!({"exact": "admin"}), true),
        ("headers", "@request.auth.claims[Groups]", json!({"regex": "d.v"}), true),
        ("headers", dots, json!({"exact": "x"}), false),
        ("headers", "@request.auth.claims.groups", json!({"exact": "admin"}), false),
        ("withoutHeaders", dots, json!({"exact": "admin"}), false),
        ("withoutHeaders", dots, json!({"exact": "x"}), true),
    ] {
        let routes = json!([route("chosen", field, claim, value.clone()), {"route": to("web")}]);
        let expected = if is_chosen { "chosen" } else { "" };
        assert_eq!(first(routes).as_deref(), Some(expected), "{field} {claim} {value}");
    }
    let wrong = json!([route("a", "headers", "@request.auth.principal", json!({"exact": "x"}))]);
    let wrong = read(wrong);
    assert!(said(&wrong)[0].starts_with("wrong spec.http[0].match[0].headers"), "{wrong:?}");
}

fn to(host: &str) -> Value {
    json!([{"destination": {"host": host}}])
}

#[test]
fn the_first_route_that_matches_answers() {
    let route =
        |name: &str, matches: Value| json!({"name": name, "match": matches, "route": to("web")});
    let read = read(json!([
        route("exact", json!([{"uri": {"exact": "/a"}}])),
        route("no-case", json!([{"uri": {"prefix": "/Low"}, "ignoreUriCase": true}])),
        route("header", json!([{"headers": {"End-User": {"exact": "jason"}}}])),
        route("without", json!([{"withoutHeaders": {"x": {}}, "uri": {"prefix": "/w"}}])),
        route("query", json!([{"queryParams": {"q": {"regex": "[0-9]+"}}}])),
        route("own", json!([{"sourceNamespace": "shop", "uri": {"regex": "/o.*"}}])),
        route("other", json!([{"sourceNamespace": "bank"}])),
        route("labels", json!([{"sourceLabels": {"app": "x"}}])),
        route("gateway", json!([{"gateways": ["edge"]}])),
        route("authority", json!([{"authority": {"prefix": "w"}, "method": {"exact": "POST"}}])),
        route("port", json!([{"port": 90}])),
        route("all", json!([])),
    ]));
    assert_eq!(said(&read), ["unhonoured spec.http[7].match[0].sourceLabels"]);
    for (path, fields, expected) in [
        ("/a", &[][..], "exact"),
        ("/a/b", &[], "all"),
        ("/lOW", &[], "no-case"),
        ("/x", &[("end-user", "jason")], "header"),
        ("/w", &[], "without"),
        ("/w", &[("x", "1")], "all"),
        ("/x?q=12", &[], "query"),
        ("/x?q=a", &[], "all"),
        ("/own", &[], "own"),
    ] {
        assert_eq!(asked(&read, path, fields).as_deref(), Some(expected), "{path} {fields:?}");
    }
    let at_90 = read_at(&json!([route("port", json!([{"port": 90}]))]), 90);
    assert_eq!(asked(&at_90, "/", &[]).as_deref(), Some("port"));
}

#[test]
fn shares_are_as_written_and_ports_are_found() {
    let backends = |route: Value, port: u16| {
        let read = read_at(&json!([{"route": route}]), port);
        let Action::Forward { backends, .. } = &read.rules[0].action else { panic!("it forwards") };
        let told = backends.iter().map(|it| match &it.destination {
            Destination::Service { name, port, subset } => {
                format!(
                    "{} {}:{port} {}",
                    it.weight,
                    name.hostname,
                    subset.as_deref().unwrap_or("-")
                )
            }
            Destination::Invalid(why) => format!("{} {why}", it.weight),
        });
        (told.collect::<Vec<_>>().join(", "), said(&read).join(", "))
    };
    let none = String::new;
    let split = json!([
        {"destination": {"host": "web", "subset": "v1"}, "weight": 90},
        {"destination": {"host": "api", "port": {"number": 90}}, "weight": 10},
        {"destination": {"host": "out.example.com"}}]);
    let expected = "90 web:80 v1, 10 api:90 -, 0 out.example.com:443 -".to_owned();
    assert_eq!(backends(split, 80), (expected, none()));
    assert_eq!(backends(to("api"), 90), ("1 api:90 -".to_owned(), none()));
    let (told, said) = backends(to("api"), 91);
    assert!(told.contains("`api` has no port 91"), "{told}");
    assert_eq!(said, "unhonoured spec.http[0].route[0].destination");
    let (told, said) = backends(to("gone"), 80);
    assert!(told.contains("has the host `gone`"), "{told}");
    assert_eq!(said, "unhonoured spec.http[0].route[0].destination.host");
}

#[test]
fn actions_are_those_of_envoy() {
    let action = |route: Value| rule(route).action;
    let redirect =
        action(json!({"redirect": {"uri": "/new", "authority": "b", "redirectCode": 308}}));
    let expected = Redirect {
        scheme: None,
        host: Some("b".into()),
        port: RedirectPort::OfAuthority,
        path: Some(PathChange::Full("/new".into())),
        status: 308,
    };
    assert_eq!(redirect, Action::Redirect(expected));
    let Action::Redirect(redirect) = action(json!({"redirect":
        {"uri": "%PREFIX()%/new", "derivePort": "FROM_REQUEST_PORT"}}))
    else {
        panic!("it redirects")
    };
    assert_eq!(redirect.path, Some(PathChange::Prefix("/new".into())));
    assert_eq!((redirect.port, redirect.status), (RedirectPort::OfListener, 301));
    let respond = action(json!({"directResponse": {"status": 503, "body": {"string": "no"}}}));
    assert_eq!(respond, Action::Respond { status: 503, body: "no".into() });
    let rewrite = |written: Value| match action(json!({"rewrite": written, "route": to("web")})) {
        Action::Forward { rewrite, .. } => rewrite,
        other => panic!("{other:?}"),
    };
    let both = rewrite(json!({"uri": "/new", "authority": "b"}));
    assert_eq!(
        both,
        Rewrite { host: Some("b".into()), path: Some(PathChange::Prefix("/new".into())) }
    );
    let regex = rewrite(json!({"uriRegexRewrite": {"match": "^/v([0-9])/", "rewrite": "/$\\1/"}}));
    assert_eq!(regex.path.expect("a change").apply("/v2/x", None), "/$2/x");
    let host = rule(json!({"route": to("web"), "headers": {"request": {"set": {"Host": "c"}}}}));
    let Action::Forward { rewrite, .. } = host.action else { panic!("it forwards") };
    assert_eq!((rewrite.host.as_deref(), host.request_headers.set.len()), (Some("c"), 0));
}

#[test]
fn limits_faults_retries_and_mirrors_are_kept() {
    let rule = rule(json!({
        "route": to("web"),
        "timeout": "3s",
        "retries": {"attempts": 3, "perTryTimeout": "1s", "retryOn": "5xx, 429"},
        "fault": {"delay": {"percentage": {"value": 0.1}, "fixedDelay": "5s"},
            "abort": {"percentage": {"value": 50}, "grpcStatus": "UNAVAILABLE"}},
        "mirror": {"host": "api", "port": {"number": 80}}, "mirrorPercentage": {"value": 25},
        "mirrors": [{"destination": {"host": "web"}}],
        "corsPolicy": {"allowOrigins": [{"exact": "*"}, {"prefix": "https://a"}], "maxAge": "1h"},
        "headers": {"response": {"add": {"X-A": "1"}, "remove": ["X-B"]}},
    }));
    let seconds = |it| Some(Duration::from_secs(it));
    let timeouts = Timeouts { request: seconds(3), backend: None, response_head: seconds(1) };
    assert_eq!(rule.timeouts, timeouts);
    let retry = rule.retry.expect("a retry");
    assert!(retry.is_for_all_methods && retry.attempts == 3);
    assert!(retry.on.contains(&RetryOn::ServerError) && retry.on.contains(&RetryOn::Status(429)));
    let part = |numerator| Fraction { numerator, denominator: 1_000_000 };
    assert_eq!(rule.faults.delay, Some((part(1_000), Duration::from_secs(5))));
    assert_eq!(rule.faults.abort, Some((part(500_000), Abort::Grpc(14))));
    let fractions: Vec<_> = rule.mirrors.iter().map(|it| it.fraction).collect();
    assert_eq!(fractions, [part(250_000), Fraction::ALL]);
    let cors = rule.cors.expect("cors");
    assert_eq!(cors.allow_origins, [ValueMatch::Present, ValueMatch::Prefix("https://a".into())]);
    assert_eq!(rule.response_headers.add, [("x-a".into(), "1".into())]);
    assert_eq!(rule.response_headers.remove, ["x-b".into()]);
    let none = super::tests::rule(json!({"route": to("web"), "retries": {"attempts": 0}}));
    assert_eq!(none.retry.map(|it| (it.attempts, it.is_for_all_methods)), Some((0, false)));
}

#[test]
fn a_route_that_is_wrong_answers_500_in_its_place() {
    for (route, at) in [
        (
            json!({"name": "r", "match": [{"uri": {"regex": "("}}], "route": to("web")}),
            "match[0].uri.regex",
        ),
        (json!({"name": "r", "route": to("web"), "timeout": "soon"}), "timeout"),
        (json!({"name": "r"}), ""),
        (json!({"name": "r", "route": to("web"), "redirect": {}}), ""),
        (
            json!({"name": "r", "route": to("web"), "fault": {"abort": {"httpStatus": 1}}}),
            "fault.abort.httpStatus",
        ),
        (
            json!({"name": "r", "route": to("web"), "fault": {"delay": {"percent": 5}}}),
            "fault.delay.fixedDelay",
        ),
        (json!({"name": "r", "route": to("web"), "retries": {"attempts": -1}}), "retries.attempts"),
        (
            json!({"name": "r", "route": to("web"), "headers": {"request": {"add": {"te": "x"}}}}),
            "headers",
        ),
        (
            json!({"name": "r", "route": [{"destination": {"host": "web"}, "weight": -1}]}),
            "route[0].weight",
        ),
    ] {
        let read = read(json!([route.clone(), {"name": "all", "route": to("web")}]));
        let at = format!("wrong spec.http[0]{}{at}", if at.is_empty() { "" } else { "." });
        assert_eq!(said(&read), [at], "{route}");
        let Action::Forward { backends, .. } = &read.rules[0].action else { panic!("it forwards") };
        assert!(draw(backends, |_| 0).is_err(), "{route}");
        assert_eq!(read.rules[0].origin.rule_name.as_deref(), Some("r"), "{route}");
    }
}

#[test]
fn fields_without_effect_are_told() {
    let read = read(json!([{
        "route": to("web"),
        "match": [{"statPrefix": "s"}],
        "retries": {"attempts": 1, "retryOn": "sunday,5xx", "retryRemoteLocalities": false,
            "retryIgnorePreviousHosts": false},
        "headers": {"response": {"add": {"x-p": "%PROTOCOL%", "x-q": "100%%"}}},
    }]));
    let at = |field: &str| format!("unhonoured spec.http[0].{field}");
    let expected = [
        at("match[0].statPrefix"),
        at("headers.response.add.x-p"),
        at("retries.retryRemoteLocalities"),
        at("retries.retryIgnorePreviousHosts"),
        at("retries.retryOn"),
    ];
    assert_eq!(said(&read), expected);
}

#[test]
fn a_delegates_routes_are_put_below_the_one_that_delegates() {
    let delegates: BTreeMap<&str, VirtualService> = BTreeMap::from([(
        "team",
        object(
            "team",
            &json!({"http": [
                {"name": "deep", "match": [{"uri": {"prefix": "/team/deep"}}], "route": to("web")},
                {"name": "outside", "match": [{"uri": {"prefix": "/other"}}], "route": to("web")},
                {"name": "rest", "route": to("web"), "timeout": "1s"},
            ]}),
        ),
    )]);
    let find = |namespace: &str, _: &str| delegates.get(namespace).cloned().map(Arc::new);
    let around = Around { backends: &Here, delegates: &find };
    let root = object(
        "shop",
        &json!({"hosts": ["web"], "http": [
            {"name": "root", "match": [{"uri": {"prefix": "/team"}}], "timeout": "9s",
                "delegate": {"name": "v", "namespace": "team"}},
            {"delegate": {"name": "v"}},
            {"name": "all", "route": to("web")},
        ]}),
    );
    let read = virtual_service(&root, &around, Some(80));
    let expected = ["unhonoured spec.http[0].delegate", "unhonoured spec.http[1].delegate"];
    assert_eq!(said(&read), expected);
    for (path, expected) in
        [("/team/deep/x", "root-deep"), ("/team/x", "root-rest"), ("/other", "all"), ("/x", "all")]
    {
        assert_eq!(asked(&read, path, &[]).as_deref(), Some(expected), "{path}");
    }
    let limits: Vec<_> = read.rules.iter().map(|it| it.timeouts.request).collect();
    let seconds = |it| Some(Duration::from_secs(it));
    assert_eq!(limits, [seconds(9), seconds(1), None]);
}

#[test]
fn a_delegates_match_for_a_gateway_is_not_for_the_mesh() {
    let leaf = |gateways: &[&str]| {
        let matches = json!([{"uri": {"prefix": "/a"}, "gateways": gateways}]);
        object("team", &json!({"http": [{"name": "leaf", "match": matches, "route": to("web")}]}))
    };
    for (own, outer, expected) in [
        (&["edge"][..], &[][..], "all"),
        (&["edge"], &["mesh"], "all"),
        (&["mesh", "edge"], &["mesh"], "root-leaf"),
        (&[], &["edge"], "all"),
        (&[], &[], "root-leaf"),
    ] {
        let leaf = Arc::new(leaf(own));
        let find = |_: &str, _: &str| Some(leaf.clone());
        let around = Around { backends: &Here, delegates: &find };
        let matches = json!([{"uri": {"prefix": "/"}, "gateways": outer}]);
        let root = object(
            "shop",
            &json!({"hosts": ["web"], "http": [
                {"name": "root", "match": matches, "delegate": {"name": "v"}},
                {"name": "all", "route": to("web")}]}),
        );
        let read = virtual_service(&root, &around, Some(80));
        assert_eq!(asked(&read, "/a", &[]).as_deref(), Some(expected), "{own:?} {outer:?}");
    }
}

#[test]
fn values_of_fields_are_sent_as_envoy_reads_them() {
    for (written, expected, has_remark) in [
        ("a", "a", false),
        ("100%%", "100%", false),
        ("%%a%%%%", "%a%%", false),
        ("5% or 6", "5% or 6", false),
        ("%PROTOCOL%", "%PROTOCOL%", true),
        ("%%x %REQ(a)% %%", "%x %REQ(a)% %", true),
    ] {
        let headers = json!({"response": {"set": {"x": written}}});
        let read = read(json!([{"route": to("web"), "headers": headers}]));
        let set = &read.rules[0].response_headers.set;
        assert_eq!(set, &[("x".into(), expected.into())], "{written}");
        assert_eq!(read.remarks.iter().any(|it| !it.is_wrong), has_remark, "{written}");
        assert_eq!(read.remarks.len(), usize::from(has_remark), "{written}");
    }
}

#[test]
fn a_star_as_an_expression_is_whatever_is_there() {
    let star = json!({"regex": "*"});
    let read = read(json!([
        {"name": "without", "match": [{"withoutHeaders": {"x": star}, "uri": {"exact": "/w"}}],
            "route": to("web")},
        {"name": "with", "match": [{"headers": {"x": star}}], "route": to("web")},
        {"name": "all", "match": [{"uri": star}], "route": to("web")},
    ]));
    assert_eq!((read.remarks.clone(), read.missing.clone()), (vec![], vec![]));
    for (fields, expected) in [(&[][..], "without"), (&[("x", "1")], "with")] {
        assert_eq!(asked(&read, "/w", fields).as_deref(), Some(expected));
    }
    assert_eq!(asked(&read, "/", &[]).as_deref(), Some("all"));
}

#[test]
fn unmatched_preflights_are_sent_on_unless_they_are_ignored() {
    for (written, forwards, wrong) in
        [(json!(null), true, 0), (json!("FORWARD"), true, 0), (json!("IGNORE"), false, 0)]
    {
        let policy = json!({"allowOrigins": [{"exact": "a"}], "unmatchedPreflights": written});
        let read = read(json!([{"route": to("web"), "corsPolicy": policy}]));
        let cors = read.rules[0].cors.as_ref().expect("cors");
        assert_eq!((cors.forwards_unmatched, read.remarks.len()), (forwards, wrong), "{written}");
    }
    let policy = json!({"allowOrigins": [{"exact": "a"}], "unmatchedPreflights": "NEWER"});
    let read = read(json!([{"route": to("web"), "corsPolicy": policy}]));
    assert_eq!(said(&read), ["wrong spec.http[0].corsPolicy.unmatchedPreflights"]);
}

#[test]
fn a_redirect_may_replace_the_prefix_alone() {
    let path = |redirect: Value| {
        let read = read(json!([{"match": [{"uri": {"prefix": "/a"}}], "redirect": redirect}]));
        match &read.rules[0].action {
            Action::Redirect(redirect) => (redirect.path.clone(), said(&read)),
            _ => (None, said(&read)),
        }
    };
    let expected = Some(PathChange::Prefix("/b".into()));
    assert_eq!(path(json!({"prefixRewrite": "/b"})), (expected, vec![]));
    let both = path(json!({"prefixRewrite": "/b", "uri": "/c"}));
    assert_eq!(both, (None, vec!["wrong spec.http[0].redirect".to_owned()]));
}

#[test]
fn a_route_that_cannot_be_read_is_lost_and_no_other() {
    let all = json!({"name": "all", "route": to("web")});
    let of = |more: Value| {
        let mut route = json!({"name": "r", "match": [{"uri": {"prefix": "/r"}}],
            "route": to("web")});
        route.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        route
    };
    for (route, part, on_other) in [
        (of(json!({"newer": 1})), "this version does not know newer", "all"),
        (of(json!({"redirect": {"newer": 1}})), "this version does not know redirect.newer", "all"),
        (of(json!({"timeout": 5})), "invalid type: integer `5`", "all"),
        // Whom it is for is not known: it may be everything.
        (of(json!({"match": "all"})), "invalid type: string \"all\"", ""),
    ] {
        let spec = json!({"hosts": ["web"], "http": [route, all]});
        let (spec, unreadable) = crate::virtual_service::read(spec);
        assert_eq!(unreadable, None, "{route}");
        let mut service = object("shop", &json!({}));
        service.spec = spec;
        let around = Around { backends: &Here, delegates: &|_, _| None };
        let read = virtual_service(&service, &around, Some(80));
        assert_eq!(said(&read), ["wrong spec.http[0]"], "{route}");
        assert!(read.remarks[0].what.contains(part), "{}", read.remarks[0].what);
        let Action::Forward { backends, .. } = &read.rules[0].action else { panic!("it forwards") };
        assert!(draw(backends, |_| 0).is_err(), "{route}");
        assert_eq!(asked(&read, "/other", &[]).as_deref(), Some(on_other), "{route}");
    }
    let bytes = json!({"match": [{"sniHosts": ["a"]}], "route": to("web"), "newer": 1});
    let (spec, _) = crate::virtual_service::read(json!({"hosts": ["web"], "tls": [bytes],
        "newer": 1, "tcp": [{"route": to("web")}]}));
    let mut service = object("shop", &json!({}));
    service.spec = spec;
    let around = Around { backends: &Here, delegates: &|_, _| None };
    let read = virtual_service(&service, &around, Some(80));
    assert_eq!(said(&read), ["unhonoured spec.newer", "wrong spec.tls[0]"]);
    let destinations: Vec<_> =
        read.connections.iter().map(|it| &it.backends[0].destination).collect();
    assert!(matches!(destinations[..], [Destination::Invalid(_), Destination::Service { .. }]));
}

#[test]
fn a_spec_that_cannot_be_read_keeps_its_hosts() {
    for spec in [json!({"hosts": ["web"], "http": "all"}), json!({"hosts": ["web"], "gateways": 1})]
    {
        let (read, problem) = crate::virtual_service::read(spec.clone());
        assert_eq!((read.hosts, problem.is_some()), (vec!["web".to_owned()], true), "{spec}");
    }
}

#[test]
fn a_port_is_missing_only_where_requests_come_at_it() {
    let check = |http: Value, expected: &[&str]| {
        let service = object("shop", &json!({"hosts": ["api"], "http": http}));
        let around = Around { backends: &Here, delegates: &|_, _| None };
        let (remarks, missing) = remarks_at_ports(&service, &around);
        assert_eq!(remarks, []);
        let said: Vec<_> = missing.iter().map(|it| it.what.clone()).collect();
        assert_eq!(said.len(), expected.len(), "{said:?}");
        assert!(said.iter().zip(expected).all(|(it, part)| it.contains(part)), "{said:?}");
    };
    // `api` has 80 and 90, `web` only 80, `out.example.com` only 443.
    check(json!([{"route": to("api")}]), &[]);
    check(json!([{"route": to("web")}]), &[]);
    let at = |port: u16| json!([{"destination": {"host": "api", "port": {"number": port}}}]);
    check(json!([{"route": at(90)}]), &[]);
    check(json!([{"route": at(91)}]), &["`api` has no port 91"]);
    check(json!([{"route": to("gone")}]), &["no Service and no ServiceEntry"]);
    check(json!([{"match": [{"port": 7}], "route": at(91)}]), &["`api` has no port 91"]);
}

/// The rules of connections at a port, in words, and the remarks.
fn connections_at(spec: &Value, port: u16) -> (Vec<String>, Vec<String>) {
    let around = Around { backends: &Here, delegates: &|_, _| None };
    let read = virtual_service(&object("shop", spec), &around, Some(port));
    let shown = |rule: &Arc<BytesRule>| {
        let matches = rule.matches.iter().map(|it| {
            let name = it.server_name.as_ref().map(|name| format!("{name:?} "));
            let client = it.client_namespace.as_ref().map(|it| format!("of {it} "));
            let blocks = it.destinations.iter().map(|it| format!("at {it} "));
            name.into_iter().chain(client).chain(blocks).collect::<String>()
        });
        let backends = rule.backends.iter().map(|it| match &it.destination {
            Destination::Service { name, port, subset } => {
                format!("{}:{port} {subset:?} {}", name.hostname, it.weight)
            }
            Destination::Invalid(why) => format!("refused {}: {why}", it.weight),
        });
        let matches = matches.collect::<Vec<_>>().join("|");
        format!("{matches}to {}", backends.collect::<Vec<_>>().join(", "))
    };
    let remarks = read.remarks.iter().chain(&read.missing).map(|it| it.at.as_str().to_owned());
    (read.connections.iter().map(shown).collect(), remarks.collect())
}

#[test]
fn tls_routes_come_before_tcp_routes_and_both_have_ports() {
    let web = json!([{"destination": {"host": "web"}}]);
    let split = json!([
        {"destination": {"host": "api", "port": {"number": 90}, "subset": "v1"}, "weight": 80},
        {"destination": {"host": "gone"}, "weight": 20},
    ]);
    let spec = json!({
        "hosts": ["web"],
        "tcp": [
            {"match": [{"port": 80}], "route": split},
            {"match": [{"destinationSubnets": ["10.1.0.0/16"], "sourceNamespace": "bank"}],
                "route": web},
        ],
        "tls": [
            {"match": [{"port": 443, "sniHosts": ["A.example", "*.b.example"]}], "route": web},
            {"match": [{"port": 443, "sniHosts": ["c"], "sourceLabels": {"a": "b"}}],
                "route": web},
        ],
    });
    let of_subnet = "of bank at 10.1.0.0/16 to web:80 None 1";
    let (at_80, remarks) = connections_at(&spec, 80);
    assert!(at_80[0].starts_with("to api:90 Some(\"v1\") 80, refused 20: no Service"), "{at_80:?}");
    assert_eq!(at_80[1..], [of_subnet]);
    let expected = ["spec.tls[1].match[0].sourceLabels", "spec.tcp[0].route[1].destination.host"];
    assert_eq!(remarks, expected);
    let names = r#"Exact("a.example") |Suffix(".b.example") "#;
    let at_443 = [format!("{names}to web:80 None 1"), of_subnet.to_owned()];
    assert_eq!(connections_at(&spec, 443).0, at_443);
}

#[test]
fn a_route_of_connections_that_is_wrong_refuses() {
    let web = json!([{"destination": {"host": "web"}}]);
    for (kind, route, at) in [
        ("tls", json!({"route": web}), "match"),
        ("tls", json!({"match": [{"port": 80}], "route": web}), "match[0].sniHosts"),
        ("tls", json!({"match": [{"sniHosts": ["a b"]}], "route": web}), "match[0].sniHosts[0]"),
        ("tcp", json!({"match": [{"sniHosts": ["a"]}], "route": web}), "match[0].sniHosts"),
        (
            "tcp",
            json!({"match": [{"destinationSubnets": ["here"]}], "route": web}),
            "match[0].destinationSubnets[0]",
        ),
        ("tcp", json!({}), "route"),
        (
            "tcp",
            json!({"route": [{"destination": {"host": "web"}, "headers": {}}]}),
            "route[0].headers",
        ),
    ] {
        let spec = json!({"hosts": ["web"], kind: [route]});
        let (rules, remarks) = connections_at(&spec, 80);
        let at = format!("spec.{kind}[0].{at}");
        assert_eq!(remarks, std::slice::from_ref(&at), "{spec}");
        assert!(rules[0].contains(&format!("to refused 1: {at}")), "{rules:?}");
    }
}

#[test]
fn a_subset_that_nobody_defines_is_a_remark_and_stays_in_the_route() {
    let to =
        |subset: &str| json!([{"route": [{"destination": {"host": "web", "subset": subset}}]}]);
    assert_eq!(said(&read(to("v1"))), Vec::<String>::new());
    let read = read(to("nosuch"));
    assert_eq!(said(&read), ["unhonoured spec.http[0].route[0].destination.subset"]);
    assert_eq!(read.rules.len(), 1);
}
