//! What a waypoint makes of an AuthorizationPolicy, by tables.

use ambit_model::http::policy::Segment;
use serde_json::{Value, json};

use crate::routes::GROUP as GATEWAY_GROUP;

use super::*;

fn policy(spec: Value) -> AuthorizationPolicy {
    serde_json::from_value(json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "p", "namespace": "app"}, "spec": spec,
    }))
    .unwrap()
}

fn converted(spec: Value) -> RequestPolicy {
    request_policy(&policy(spec.clone())).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// The field and the beginning of the problem.
fn refused(spec: Value, expected: &str) {
    let error = request_policy(&policy(spec.clone())).expect_err(&spec.to_string());
    assert!(error.to_string().starts_with(expected), "{spec}: {error}");
}

fn exact(text: &str) -> TextMatch {
    TextMatch::Exact(text.into())
}

fn any_of<T>(values: impl IntoIterator<Item = T>) -> Values<T> {
    Values { any_of: values.into_iter().collect(), none_of: Vec::new() }
}

fn none_of<T>(values: impl IntoIterator<Item = T>) -> Values<T> {
    Values { any_of: Vec::new(), none_of: values.into_iter().collect() }
}

#[test]
fn actions() {
    for (spec, action) in [
        (json!({}), Action::Allow),
        (json!({"action": "ALLOW", "rules": [{}]}), Action::Allow),
        (json!({"action": "DENY", "rules": [{}]}), Action::Deny),
        (json!({"action": "AUDIT", "rules": [{}]}), Action::Audit),
        (
            json!({"action": "CUSTOM", "provider": {"name": "opa"}, "rules": [{}]}),
            Action::Custom("opa".into()),
        ),
    ] {
        let rules = spec["rules"].as_array().map_or(0, Vec::len);
        let policy = converted(spec);
        assert_eq!((policy.action, policy.rules), (action, vec![RequestRule::default(); rules]));
        assert_eq!((policy.key, policy.is_dry_run), (PolicyName::new("app", "p"), false));
    }
    for (spec, error) in [
        (json!({"action": "CUSTOM", "rules": [{}]}), "spec.provider: exactly the CUSTOM policies"),
        (json!({"provider": {"name": "opa"}}), "spec.provider: exactly the CUSTOM policies"),
        (
            json!({"action": "CUSTOM", "provider": {"name": "opa"}}),
            "spec.rules: a CUSTOM policy without rules never asks",
        ),
    ] {
        refused(spec, error);
    }
}

#[test]
fn a_policy_on_trial_says_so_in_its_annotation() {
    for (value, expected) in [("true", true), ("false", false), ("yes", false)] {
        let mut policy = policy(json!({"action": "DENY", "rules": [{}]}));
        let annotation = ("istio.io/dry-run".to_owned(), value.to_owned());
        policy.metadata.annotations = Some([annotation].into());
        assert_eq!(request_policy(&policy).unwrap().is_dry_run, expected, "{value}");
    }
}

#[test]
fn a_policy_does_not_hold_without_the_condition_that_it_may_have() {
    for (key, is_right) in [
        ("ambit.io/condition", true),
        ("example.com/condition", true),
        ("ambit.io/conditon", false),
        ("ambit.io/Condition", false),
        ("ambit.io/newer", false),
        ("amibt.io/condition", false),
    ] {
        let mut policy = policy(json!({"rules": [{}]}));
        policy.metadata.annotations = Some([(key.to_owned(), "false".to_owned())].into());
        let read = request_policy(&policy);
        let at = format!("metadata.annotations.{key}: a policy has no such annotation");
        match read {
            Ok(_) => assert!(is_right, "{key}"),
            Err(error) => assert!(!is_right && error.to_string().starts_with(&at), "{error}"),
        }
        let layer_4 = crate::policy::convert(&policy, "istio-system").policy.expect("it is sent");
        assert_eq!(layer_4.rules.is_empty(), key != "example.com/condition", "{key}");
    }
}

#[test]
fn what_was_not_read_is_not_enforced_as_if_it_was() {
    let mut policy = policy(json!({}));
    policy.unreadable = Some("spec.newer: unknown field".to_owned());
    let error = request_policy(&policy).unwrap_err();
    assert_eq!(error.to_string(), "spec: it cannot be read (spec.newer: unknown field)");
}

#[test]
fn sources() {
    let check = |source: Value, expected: ClientMatch| {
        let policy = converted(json!({"rules": [{"from": [{"source": source}]}]}));
        let rule = RequestRule { from: vec![expected], ..RequestRule::default() };
        assert_eq!(policy.rules, [rule], "{source}");
    };
    check(
        json!({"principals": ["cluster.local/ns/a/sa/x", "*/sa/y", "td/*"],
            "notPrincipals": ["*"]}),
        ClientMatch {
            principals: Values {
                any_of: vec![
                    exact("cluster.local/ns/a/sa/x"),
                    TextMatch::Suffix("/sa/y".into()),
                    TextMatch::Prefix("td/".into()),
                ],
                none_of: vec![TextMatch::Presence],
            },
            ..ClientMatch::default()
        },
    );
    check(
        json!({"namespaces": ["shop", "dev-*"], "trustDomains": ["td"], "notTrustDomains": ["x"],
            "notNamespaces": ["dev-x"], "requestPrincipals": ["iss/*"],
            "notRequestPrincipals": ["iss/bob"]}),
        ClientMatch {
            namespaces: Values {
                any_of: vec![exact("shop"), TextMatch::Prefix("dev-".into())],
                none_of: vec![exact("dev-x")],
            },
            trust_domains: Values { any_of: vec![exact("td")], none_of: vec![exact("x")] },
            request_principals: Values {
                any_of: vec![TextMatch::Prefix("iss/".into())],
                none_of: vec![exact("iss/bob")],
            },
            ..ClientMatch::default()
        },
    );
    let account = |namespace: &str, name: &str| ServiceAccountMatch {
        namespace: namespace.into(),
        service_account: name.into(),
    };
    check(
        json!({"serviceAccounts": ["x", "shop/y"], "notServiceAccounts": ["z"]}),
        ClientMatch {
            service_accounts: Values {
                any_of: vec![account("app", "x"), account("shop", "y")],
                none_of: vec![account("app", "z")],
            },
            ..ClientMatch::default()
        },
    );
    check(
        json!({"ipBlocks": ["10.0.0.1", "fd00::/8"], "notIpBlocks": ["10.0.0.0/8"],
            "remoteIpBlocks": ["1.2.3.0/24"], "notRemoteIpBlocks": ["::1"]}),
        ClientMatch {
            ip_blocks: Values {
                any_of: vec!["10.0.0.1/32".parse().unwrap(), "fd00::/8".parse().unwrap()],
                none_of: vec!["10.0.0.0/8".parse().unwrap()],
            },
            remote_ip_blocks: Values {
                any_of: vec!["1.2.3.0/24".parse().unwrap()],
                none_of: vec!["::1/128".parse().unwrap()],
            },
            ..ClientMatch::default()
        },
    );
}

#[test]
fn operations() {
    let check = |operation: Value, expected: OperationMatch| {
        let policy = converted(json!({"rules": [{"to": [{"operation": operation}]}]}));
        let rule = RequestRule { to: vec![expected], ..RequestRule::default() };
        assert_eq!(policy.rules, [rule], "{operation}");
    };
    check(
        json!({"ports": ["80"], "notPorts": ["81"], "methods": ["GET", "P*"],
            "notMethods": ["PUT"]}),
        OperationMatch {
            ports: Values { any_of: vec![80], none_of: vec![81] },
            methods: Values {
                any_of: vec![exact("GET"), TextMatch::Prefix("P".into())],
                none_of: vec![exact("PUT")],
            },
            ..OperationMatch::default()
        },
    );
    let text = |it| PathPattern::Text(it);
    check(
        json!({"paths": ["/a", "/b*", "*/c", "*", "/d/{*}/e/{**}"], "notPaths": ["/a/b"]}),
        OperationMatch {
            paths: Values {
                any_of: vec![
                    text(exact("/a")),
                    text(TextMatch::Prefix("/b".into())),
                    text(TextMatch::Suffix("/c".into())),
                    text(TextMatch::Presence),
                    PathPattern::Template(vec![
                        Segment::Literal("d".into()),
                        Segment::One,
                        Segment::Literal("e".into()),
                        Segment::Rest,
                    ]),
                ],
                none_of: vec![text(exact("/a/b"))],
            },
            ..OperationMatch::default()
        },
    );
}

#[test]
fn hosts_with_and_without_ports() {
    let suffix = |text: &str| TextMatch::Suffix(text.into());
    let prefix = |text: &str| TextMatch::Prefix(text.into());
    for (written, host, port) in [
        ("a.com", exact("a.com"), None),
        ("A.com:8080", exact("a.com"), Some(8080)),
        ("a.com:*", exact("a.com"), None),
        ("*.A.com", suffix(".a.com"), None),
        ("*.a.com:80", suffix(".a.com"), Some(80)),
        ("a.*", prefix("a."), None),
        ("a.*:80", prefix("a."), Some(80)),
        ("*", TextMatch::Presence, None),
        ("*:8080", TextMatch::Presence, Some(8080)),
        ("[::1]", exact("[::1]"), None),
        ("[::1]:80", exact("[::1]"), Some(80)),
    ] {
        let rules = json!([{"to": [{"operation": {"hosts": [written]}}]}]);
        let policy = converted(json!({"rules": rules}));
        let hosts = &policy.rules[0].to[0].hosts;
        assert_eq!(*hosts, any_of([HostMatch { host, port }]), "{written}");
        let rules = json!([{"to": [{"operation": {"notHosts": [written]}}]}]);
        let policy = converted(json!({"rules": rules}));
        assert_eq!(policy.rules[0].to[0].hosts, none_of(hosts.any_of.clone()), "{written}");
    }
    for (written, error) in [
        ("a.com:", "`` is not a port"),
        ("a.com:0", "`0` is not a port"),
        ("a.com:80*", "`80*` is not a port"),
        ("a.com:65536", "`65536` is not a port"),
        (":80", "`:80` names no host"),
        ("::1", "`::1`: write an IPv6 address in brackets"),
        ("fd00::1:80", "`fd00::1:80`: write an IPv6 address in brackets"),
        ("*8080", "`*8080` could end in a host or in a port"),
    ] {
        let rules = json!([{"to": [{"operation": {"notHosts": ["a", written]}}]}]);
        let at = "spec.rules[0].to[0].operation.notHosts[1]";
        refused(json!({"action": "DENY", "rules": rules}), &format!("{at}: {error}"));
    }
}

#[test]
fn conditions() {
    let text = |it, values| Condition::Text(it, values);
    let a = || any_of([exact("a")]);
    let keys = |keys: &[&str]| keys.iter().map(|it| Text::from(*it)).collect::<Vec<_>>();
    let block = || any_of(["10.0.0.0/8".parse().unwrap()]);
    let account = ServiceAccountMatch { namespace: "app".into(), service_account: "a".into() };
    for (key, value, expected) in [
        (
            "request.headers[X-Token]",
            "a",
            Condition::Header { name: "x-token".into(), values: a() },
        ),
        (
            "request.headers[:authority]",
            "a",
            Condition::Header { name: ":authority".into(), values: a() },
        ),
        (
            "request.auth.claims[groups]",
            "a",
            Condition::Claim { keys: keys(&["groups"]), values: a() },
        ),
        (
            "request.auth.claims[org][unit.x]",
            "a",
            Condition::Claim { keys: keys(&["org", "unit.x"]), values: a() },
        ),
        ("request.auth.principal", "a", text(TextAttribute::RequestPrincipal, a())),
        ("request.auth.audiences", "a", text(TextAttribute::Audience, a())),
        ("request.auth.presenter", "a", text(TextAttribute::Presenter, a())),
        ("connection.sni", "a", text(TextAttribute::ServerName, a())),
        ("source.namespace", "a", text(TextAttribute::Namespace, a())),
        ("source.trustDomain", "a", text(TextAttribute::TrustDomain, a())),
        ("source.principal", "*", text(TextAttribute::Principal, any_of([TextMatch::Presence]))),
        ("source.serviceAccount", "a", Condition::ServiceAccount(any_of([account]))),
        ("source.ip", "10.0.0.0/8", Condition::Ip(IpAttribute::Source, block())),
        ("remote.ip", "10.0.0.0/8", Condition::Ip(IpAttribute::Remote, block())),
        ("destination.ip", "10.0.0.0/8", Condition::Ip(IpAttribute::Destination, block())),
        ("destination.port", "80", Condition::DestinationPort(any_of([80]))),
    ] {
        let policy = converted(json!({"rules": [{"when": [{"key": key, "values": [value]}]}]}));
        assert_eq!(policy.rules[0].when, [expected], "{key}");
    }
    let not = json!({"rules": [{"when": [{"key": "request.headers[a]", "notValues": ["*"]}]}]});
    let expected = Condition::Header { name: "a".into(), values: none_of([TextMatch::Presence]) };
    assert_eq!(converted(not).rules[0].when, [expected]);
}

/// Whatever the action: these rules are refused with this error.
fn rules_refused(cases: &[(Value, &str)]) {
    for (rules, expected) in cases {
        for action in ["ALLOW", "DENY", "AUDIT"] {
            refused(json!({"action": action, "rules": rules}), expected);
        }
    }
}

#[test]
fn a_condition_that_cannot_be_honoured_is_an_error_that_names_its_field() {
    let check = |condition: Value, expected: &str| {
        let at = "spec.rules[1].when[0]";
        rules_refused(&[(json!([{}, {"when": [condition]}]), &format!("{at}{expected}"))]);
    };
    let with = |key: &str| json!({"key": key, "values": ["a"]});
    check(with("request.method"), ".key: the attribute `request.method` does not exist");
    let filter = "experimental.envoy.filters.a.b[c]";
    check(with(filter), &format!(".key: `{filter}` is no attribute"));
    check(with("request.headers[a b]"), ".key: `a b` is not the name of a field");
    check(with("request.headers[:path]"), ".key: `:path` is not the name of a field");
    for key in ["request.headers[]", "request.headers[a][b]", "request.auth.claims[a][]"] {
        check(with(key), &format!(".key: `{key}` is no attribute"));
    }
    check(json!({"key": "source.ip"}), ": a condition needs values");
    let empty = json!({"key": "source.ip", "values": [], "notValues": []});
    check(empty, ".values: the list is empty");
    let block = json!({"key": "source.ip", "values": ["10.0.0.0/33"]});
    check(block, ".values[0]: `10.0.0.0/33` is neither");
    let port = json!({"key": "destination.port", "notValues": ["http"]});
    check(port, ".notValues[0]: `http` is not a port");
    let account = json!({"key": "source.serviceAccount", "values": ["a/b/c"]});
    check(account, ".values[0]: ");
}

#[test]
fn a_source_or_operation_that_cannot_be_honoured_is_an_error_that_names_its_field() {
    let from = |source: Value| json!([{"from": [{"source": source}]}]);
    let to = |operation: Value| json!([{"to": [{"operation": operation}]}]);
    let at = |end: &str| format!("spec.rules[0].{end}");
    let never = "never matches";
    rules_refused(&[
        (
            to(json!({"methods": ["GET", "delete"]})),
            &at(&format!("to[0].operation.methods[1]: `delete` {never}")),
        ),
        (
            to(json!({"notPaths": ["/%61bc"]})),
            &at(&format!("to[0].operation.notPaths[0]: `/%61bc` {never}")),
        ),
        (to(json!({"hosts": ["a b"]})), &at(&format!("to[0].operation.hosts[0]: `a b` {never}"))),
        (from(json!({})), &at("from[0].source: a source must ask for something")),
        (from(json!({"namespaces": ["a*b"]})), &at("from[0].source.namespaces[0]: in `a*b` a")),
        (
            from(json!({"notRemoteIpBlocks": ["::ffff:0:0/90"]})),
            &at("from[0].source.notRemoteIpBlocks[0]: the block"),
        ),
        (to(json!({"methods": [""]})), &at("to[0].operation.methods[0]: the value is empty")),
        (
            to(json!({"paths": ["/a", "/{**}/{*}"]})),
            &at("to[0].operation.paths[1]: `/{**}/{*}`: `{*}` or `{**}` follows `{**}`"),
        ),
        (to(json!({"notPaths": ["/{*}a"]})), &at("to[0].operation.notPaths[0]: `/{*}a`")),
        (json!([{"from": []}]), &at("from: the list is empty")),
    ]);
}

#[test]
fn targets() {
    let name = |name: &str| ObjectName::new("app", name);
    let gateway = json!({"group": GATEWAY_GROUP, "kind": "Gateway", "name": "waypoint"});
    let class = json!({"group": GATEWAY_GROUP, "kind": "GatewayClass", "name": "istio-waypoint"});
    let service = json!({"kind": "Service", "name": "web"});
    let core = json!({"group": "core", "kind": "Service", "name": "web", "namespace": "app"});
    let entry = json!({"group": "networking.istio.io", "kind": "ServiceEntry", "name": "ext"});
    let of = |spec: Value, root: &str| {
        attachments(&policy(spec), root).map_err(|error| error.to_string())
    };
    assert_eq!(of(json!({}), "istio-system"), Ok(Vec::new()));
    assert_eq!(of(json!({"selector": {"matchLabels": {"a": "b"}}}), "app"), Ok(Vec::new()));
    let all = json!({"targetRefs": [gateway, service, core, entry]});
    let expected = vec![
        Target::Gateway(name("waypoint")),
        Target::Service(name("web")),
        Target::Service(name("web")),
        Target::ServiceEntry(name("ext")),
    ];
    assert_eq!(of(all, "istio-system"), Ok(expected));
    let single = json!({"targetRef": class});
    assert_eq!(of(single.clone(), "app"), Ok(vec![Target::GatewayClass("istio-waypoint".into())]));
    for (spec, error) in [
        (single, "spec.targetRef.kind: only policies in istio-system hold for a GatewayClass"),
        (
            json!({"targetRefs": vec![service.clone(); 17]}),
            "spec.targetRefs: it is attached to more than 16 objects",
        ),
        (
            json!({"targetRefs": [{"kind": "Service", "name": "web", "namespace": "shop"}]}),
            "spec.targetRefs[0].namespace: a policy holds for objects of its own namespace",
        ),
        (json!({"targetRefs": [service, {"kind": "Service"}]}), "spec.targetRefs[1].name: it is"),
        (
            json!({"targetRefs": [{"group": "apps", "kind": "Deployment", "name": "web"}]}),
            "spec.targetRefs[0]: a policy cannot be attached to Deployment of group \"apps\"",
        ),
        (
            json!({"targetRefs": [{"kind": "Gateway", "name": "waypoint"}]}),
            "spec.targetRefs[0]: a policy cannot be attached to Gateway of group \"\"",
        ),
    ] {
        let found = of(spec.clone(), "istio-system").expect_err("it is wrong");
        assert!(found.starts_with(error), "{spec}: {found}");
    }
}
