//! ListenerSets add listeners to a Gateway that takes them, and routes attach to those alone.

use super::edge::{attached, namespace, own_service, sent, told};
use super::*;

/// A listener as `NAME PROTOCOL HOST`, at port 80, for routes of its author's namespace.
fn listener(written: &str) -> Value {
    let words: Vec<&str> = written.split(' ').collect();
    let mut listener = json!({"name": words[0], "protocol": words[1], "port": 80});
    if let Some(host) = words.get(2) {
        listener["hostname"] = json!(host);
    }
    listener
}

fn listeners(all: &[&str]) -> Value {
    all.iter().map(|it| listener(it)).collect()
}

fn gateway(class: &str, allowed: &Value, all: &[&str]) -> Event {
    let spec = json!({"gatewayClassName": class, "listeners": listeners(all),
        "allowedListeners": {"namespaces": allowed}});
    put(Kind::Gateway, &json!({"metadata": meta("infra", "edge", &json!({})), "spec": spec}))
}

fn takes(from: &str) -> Value {
    json!({"from": from, "selector": {"matchLabels": {"edge": "y"}}})
}

/// A set that was made in this second.
fn set(namespace: &str, name: &str, second: u8, all: &[&str]) -> Event {
    let mut metadata = meta(namespace, name, &json!({}));
    metadata["creationTimestamp"] = json!(format!("2026-01-01T00:00:0{second}Z"));
    let spec = json!({"parentRef": {"name": "edge", "namespace": "infra"},
        "listeners": listeners(all)});
    put(Kind::ListenerSet, &json!({"metadata": metadata, "spec": spec}))
}

/// A parent as `KIND NAMESPACE NAME [SECTION]`.
fn parent(written: &str) -> Value {
    let words: Vec<&str> = written.split(' ').collect();
    let mut parent = json!({"kind": words[0], "namespace": words[1], "name": words[2]});
    if let Some(section) = words.get(3) {
        parent["sectionName"] = json!(section);
    }
    parent
}

fn route(namespace: &str, name: &str, parents: &[&str]) -> Event {
    let parents: Value = parents.iter().map(|it| parent(it)).collect();
    let spec = json!({"parentRefs": parents, "rules": [{}]});
    put(Kind::HttpRoute, &json!({"metadata": meta(namespace, name, &json!({})), "spec": spec}))
}

#[test]
fn a_route_attaches_to_the_parent_that_it_names_and_to_no_other() {
    let mut builder = builder();
    builder.apply([
        gateway("ambit", &takes("All"), &["web HTTP gw.com"]),
        set("infra", "own", 1, &["web HTTP ls.com", "alt HTTP alt.com"]),
        set("shop", "far", 2, &["web HTTP far.com"]),
    ]);
    let mut check = |namespace: &str, parents: &[&str], at: &[&str], conditions: &[&str]| {
        builder.apply([route(namespace, "r", parents)]);
        let sent = sent(&builder).into_iter();
        let with: Vec<String> = sent.filter(|it| it.contains(":r")).collect();
        let names = with.iter().filter_map(|it| Some(it.split_once('@')?.0));
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        assert_eq!(names, at, "{parents:?}");
        assert_eq!(told(&builder, Kind::HttpRoute, namespace, "r"), conditions, "{parents:?}");
        let counted = attached(&builder);
        let counted = counted.iter().filter(|it| it.ends_with(" 1")).count();
        assert_eq!(counted, at.len(), "{parents:?}");
        builder.apply([delete(Kind::HttpRoute, namespace, "r")]);
    };
    let accepted = "Accepted=Accepted ResolvedRefs=ResolvedRefs";
    let no_parent = "Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs";
    let (edge, own, far) = ("Gateway infra edge", "ListenerSet infra own", "ListenerSet shop far");
    check("infra", &[edge], &["web"], &[accepted]);
    check("infra", &[own], &["infra/own/alt", "infra/own/web"], &[accepted]);
    check("infra", &["ListenerSet infra own web"], &["infra/own/web"], &[accepted]);
    check("infra", &["Gateway infra edge alt"], &[], &[no_parent]);
    check(
        "infra",
        &["Gateway infra edge alt", "ListenerSet infra own alt"],
        &["infra/own/alt"],
        &[no_parent, accepted],
    );
    let all = ["infra/own/alt", "infra/own/web", "web"];
    check("infra", &[edge, own], &all, &[accepted, accepted]);
    // What is the same is the namespace of the set.
    let denied = "Accepted=NotAllowedByListeners ResolvedRefs=ResolvedRefs";
    check("infra", &[far], &[], &[denied]);
    check("shop", &[far], &["shop/far/web"], &[accepted]);
    check("shop", &[far, edge], &["shop/far/web"], &[accepted, denied]);
    check("shop", &["ListenerSet shop gone"], &[], &[""]);
}

#[test]
fn a_gateway_takes_the_sets_of_the_namespaces_that_it_names() {
    let mut builder = builder();
    builder.apply([
        gateway("ambit", &takes("None"), &["web HTTP gw.com"]),
        set("infra", "own", 1, &["web HTTP own.com"]),
        set("shop", "far", 1, &["web HTTP far.com"]),
        route("shop", "r", &["ListenerSet shop far"]),
    ]);
    let (own, far) = ("infra/own/web@80/own.com []", "shop/far/web@80/far.com [far.com:r]");
    let accepted = "Accepted=Accepted ResolvedRefs=ResolvedRefs";
    let refused = "Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs";
    let web = "web@80/gw.com []";
    for (event, expected, route) in [
        (gateway("ambit", &takes("Same"), &["web HTTP gw.com"]), vec![own, web], refused),
        (gateway("ambit", &takes("All"), &["web HTTP gw.com"]), vec![own, far, web], accepted),
        (gateway("ambit", &takes("Selector"), &["web HTTP gw.com"]), vec![web], refused),
        (namespace("shop", &json!({"edge": "y"})), vec![far, web], accepted),
        (namespace("shop", &json!({"edge": "n"})), vec![web], refused),
        (namespace("shop", &json!({"edge": "y"})), vec![far, web], accepted),
        (delete(Kind::ListenerSet, "shop", "far"), vec![web], ""),
        (gateway("ambit", &Value::Null, &["web HTTP gw.com"]), vec![web], ""),
    ] {
        builder.apply([event]);
        let mut found = sent(&builder);
        found.sort();
        assert_eq!(found, expected);
        assert_eq!(told(&builder, Kind::HttpRoute, "shop", "r"), [route]);
    }
    // A waypoint takes none, and says so to routes.
    builder.apply([set("shop", "far", 1, &["web HTTP far.com"])]);
    let mesh = json!([{"name": "mesh", "protocol": "HBONE", "port": 15008}]);
    let spec = json!({"gatewayClassName": "ambit-waypoint", "listeners": mesh,
        "allowedListeners": {"namespaces": takes("All")}});
    let metadata = meta("infra", "edge", &json!({}));
    builder.apply([put(Kind::Gateway, &json!({"metadata": metadata, "spec": spec}))]);
    assert_eq!(sent(&builder), ["nothing"]);
    assert_eq!(told(&builder, Kind::HttpRoute, "shop", "r"), ["Accepted=NoMatchingParent"]);
    builder.apply([delete(Kind::Gateway, "infra", "edge")]);
    assert_eq!(told(&builder, Kind::HttpRoute, "shop", "r"), [""]);
}

#[test]
fn the_earlier_listener_stays_and_the_later_is_not_sent() {
    let check = |sets: &[(&str, u8, &[&str])], expected: &[&str]| {
        let mut builder = builder();
        builder.apply([gateway("ambit", &takes("All"), &["web HTTP gw.com"])]);
        builder.apply(sets.iter().map(|(name, second, all)| set("infra", name, *second, all)));
        let mut found: Vec<String> =
            sent(&builder).iter().filter_map(|it| Some(it.split_once('@')?.0.to_owned())).collect();
        found.sort();
        assert_eq!(found, expected, "{sets:?}");
    };
    let (a, b) = ("infra/a/l", "infra/b/l");
    check(&[("a", 1, &["l HTTP x.com"]), ("b", 2, &["l HTTP y.com"])], &[a, b, "web"]);
    check(&[("a", 1, &["l HTTP x.com"]), ("b", 2, &["l HTTP x.com"])], &[a, "web"]);
    check(&[("a", 2, &["l HTTP x.com"]), ("b", 1, &["l HTTP x.com"])], &[b, "web"]);
    check(&[("a", 1, &["l HTTP x.com"]), ("b", 1, &["l HTTP x.com"])], &[a, "web"]);
    check(&[("a", 1, &["l HTTP gw.com"])], &["web"]);
    check(&[("a", 1, &["l TCP", "m HTTP x.com"])], &["infra/a/m", "web"]);
    // What loses keeps nobody away.
    check(&[("a", 1, &["l TCP"]), ("b", 2, &["l HTTP x.com"])], &[b, "web"]);
    // Of one author none is chosen, and both keep others away.
    check(&[("a", 1, &["l HTTP x.com", "m HTTP x.com"]), ("b", 2, &["l HTTP x.com"])], &["web"]);
}

#[test]
fn policies_of_routes_of_a_set_are_known_at_the_gateways_service() {
    let mut builder = builder();
    builder.apply([gateway("ambit", &takes("All"), &["web HTTP gw.com"])]);
    let own = own_service(&builder);
    let name = own.hostname.split('.').next().unwrap().to_owned();
    let target = json!([{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"}]);
    let limits = json!({"targetRefs": target, "limits": {"maxBodyBytes": 7}});
    builder.apply([
        service("infra", &name, &json!({"ports": [{"port": 80}]})),
        route("infra", "r", &["ListenerSet infra own"]),
        put(
            Kind::TrafficPolicy,
            &json!({"metadata": meta("infra", "p", &json!({})), "spec": limits}),
        ),
    ]);
    let count = |builder: &Builder| builder.view().http_service(&own).unwrap().limits.routes.len();
    assert_eq!(count(&builder), 0, "there is no such set");
    builder.apply([set("infra", "own", 1, &["web HTTP own.com"])]);
    assert_eq!(count(&builder), 1);
    builder.apply([gateway("ambit", &takes("None"), &["web HTTP gw.com"])]);
    assert_eq!(count(&builder), 0);
}
