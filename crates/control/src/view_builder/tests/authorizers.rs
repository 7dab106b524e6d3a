//! The providers of CUSTOM policies: what a waypoint is told to ask.

use ambit_model::http::rule::Destination;

use super::*;

const WEB: &str = "shop/web.shop.svc.cluster.local";

fn config(namespace: &str, mesh: &str) -> Event {
    put(
        Kind::ConfigMap,
        &json!({"metadata": meta(namespace, "istio", &json!({})), "data": {"mesh": mesh}}),
    )
}

fn provider(service: &str) -> String {
    format!(
        "extensionProviders:\n\
         - {{name: authz, envoyExtAuthzGrpc: {{service: {service}, port: 9000}}}}"
    )
}

fn custom(provider: &str) -> Event {
    let spec = json!({"action": "CUSTOM", "provider": {"name": provider}, "rules": [{}]});
    policy("shop", "ask", &spec)
}

/// Whom requests to `web` are asked of.
fn asked(builder: &Builder) -> String {
    let known = builder.view().http_service(&WEB.parse().unwrap()).expect("a service");
    let told = known.authorizers.iter().map(|(name, it)| match &it.destination {
        Destination::Service { name: service, port, .. } => format!("{name} at {service}:{port}"),
        Destination::Invalid(why) => format!("{name} denies: {why}"),
    });
    told.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_provider_is_looked_up_in_the_mesh_configuration() {
    let mut builder = builder();
    let ports = json!({"ports": [{"port": 80}]});
    builder.apply([service("shop", "web", &ports)]);
    assert_eq!(asked(&builder), "");
    builder.apply([custom("authz")]);
    assert!(asked(&builder).starts_with("authz denies: the provider authz does not exist"));
    builder.apply([config("shop", &provider("authz.shop.svc.cluster.local"))]);
    assert!(asked(&builder).contains("does not exist"), "only that of the root namespace counts");
    builder.apply([config("istio-system", &provider("authz.shop.svc.cluster.local"))]);
    let told = asked(&builder);
    assert!(told.contains("service authz.shop.svc.cluster.local of the provider authz"), "{told}");
    builder.apply([service("shop", "authz", &ports)]);
    assert!(asked(&builder).contains("has no port 9000"), "{}", asked(&builder));
    builder.apply([service("shop", "authz", &json!({"ports": [{"port": 9000}]}))]);
    let expected = "authz at shop/authz.shop.svc.cluster.local:9000";
    assert_eq!(asked(&builder), expected);
    let there = format!("shop/{}", "authz.shop.svc.cluster.local");
    builder.apply([config("istio-system", &provider(&there))]);
    assert_eq!(asked(&builder), expected);
    builder.apply([config("istio-system", &provider("bank/authz.shop.svc.cluster.local"))]);
    assert!(asked(&builder).contains("does not exist"));
    builder.apply([config("istio-system", &provider("'*'"))]);
    assert!(asked(&builder).contains("is not the host of a service"), "{}", asked(&builder));
    builder.apply([delete(Kind::ConfigMap, "istio-system", "istio")]);
    assert!(asked(&builder).contains("is not among the extensionProviders"));
}

#[test]
fn a_policy_that_asks_another_provider_changes_what_is_asked() {
    let mut builder = builder();
    builder.apply([
        service("shop", "web", &json!({"ports": [{"port": 80}]})),
        custom("authz"),
        config("istio-system", "extensionProviders:\n- {name: other, prometheus: {}}"),
    ]);
    builder.apply([custom("other")]);
    assert_eq!(asked(&builder), "other denies: the provider other is none that authorizes");
    builder.apply([policy("shop", "ask", &json!({}))]);
    assert_eq!(asked(&builder), "");
}

#[test]
fn a_provider_of_a_service_entry_is_found_by_its_host() {
    let mut builder = builder();
    let entry = json!({
        "metadata": meta("bank", "authz", &json!({})),
        "spec": {
            "hosts": ["authz.example.com"], "location": "MESH_EXTERNAL", "resolution": "STATIC",
            "ports": [{"number": 9000, "name": "grpc", "protocol": "GRPC"}],
            "endpoints": [{"address": "10.9.0.1"}],
        },
    });
    builder.apply([
        service("shop", "web", &json!({"ports": [{"port": 80}]})),
        custom("authz"),
        config("istio-system", &provider("authz.example.com")),
    ]);
    assert!(asked(&builder).contains("does not exist"));
    builder.apply([put(Kind::ServiceEntry, &entry)]);
    assert_eq!(asked(&builder), "authz at bank/authz.example.com:9000");
}

#[test]
fn a_custom_policy_says_whether_its_provider_can_be_asked() {
    let mut builder = builder();
    let said = |builder: &Builder| {
        let policy = builder.store().policies().next().expect("the policy").1;
        let condition = builder.provider_condition(policy);
        condition.map(|it| format!("{} {} {}: {}", it.kind, it.status, it.reason, it.message))
    };
    builder.apply([custom("authz")]);
    let told = said(&builder).expect("waypoints enforce it");
    assert!(told.starts_with("WaypointAccepted False Invalid: the provider authz does"), "{told}");
    builder.apply([
        service("shop", "authz", &json!({"ports": [{"port": 9000}]})),
        config("istio-system", &provider("authz.shop.svc.cluster.local")),
    ]);
    let told = said(&builder).expect("waypoints enforce it");
    assert_eq!(told, "WaypointAccepted True Accepted: waypoints ask the provider authz");
    let mut spec = json!({"action": "CUSTOM", "provider": {"name": "authz"}, "rules": [{}]});
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    builder.apply([policy("shop", "ask", &spec)]);
    assert_eq!(said(&builder), None, "pods judge it, and never ask");
    builder.apply([policy("shop", "ask", &json!({}))]);
    assert_eq!(said(&builder), None);
}
