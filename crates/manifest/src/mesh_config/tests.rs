//! The mesh configuration: what is read of it, and what is said of the rest.

use std::time::Duration;

use ambit_model::http::access_log::Format;
use ambit_model::http::authorizer::{BodyCheck, Call};
use ambit_model::policy::TextMatch;

use super::*;

fn of(text: &str) -> (MeshConfig, Vec<Remark>) {
    let data = BTreeMap::from([("mesh".to_owned(), text.to_owned())]);
    read(&ConfigMap { data: Some(data), ..ConfigMap::default() })
}

/// The one provider of this configuration, and the first remark.
fn provider(text: &str) -> (Provider, String) {
    let (config, remarks) = of(&format!("extensionProviders:\n- name: p\n{text}"));
    let remark = remarks.first().map(|it| format!("{}: {}", it.at.as_str(), it.what));
    (config.providers["p"].clone(), remark.unwrap_or_default())
}

#[test]
fn what_is_used_is_read_and_the_rest_is_a_remark() {
    let (config, remarks) = of("accessLogFile: /dev/stdout\naccessLogEncoding: JSON\n\
         enableTracing: true\nrootNamespace: istio-system\nconnectTimeout: 10s\n\
         defaultProviders: {tracing: [otel], accessLogging: [file]}\n\
         extensionProviders:\n- {name: otel, opentelemetry: {service: o.x.svc, port: 4317}}\n");
    assert!(config.access_log.is_on && config.unreadable.is_none());
    assert_eq!(config.access_log.format.written(), Format::default_json().written());
    assert_eq!(config.default_providers.tracing, ["otel"]);
    assert_eq!(config.default_providers.access_logging, ["file"]);
    let Provider::Telemetry(otel) = &config.providers["otel"] else { panic!("{config:?}") };
    let service = ProviderService { namespace: None, host: "o.x.svc".to_owned(), port: 4317 };
    assert_eq!(otel.export().map(|it| &it.service), Some(&service));
    let mut told: Vec<_> = remarks.iter().map(|it| (it.is_wrong, it.at.as_str())).collect();
    told.sort_unstable();
    let expected = ["connectTimeout", "enableTracing", "rootNamespace"];
    let expected = expected.map(|field| format!("data.mesh.{field}"));
    assert_eq!(told, expected.iter().map(|it| (false, &**it)).collect::<Vec<_>>());
}

#[test]
fn numbers_may_be_in_quotes() {
    let check = |port: &str, expected: Result<u16, &str>| {
        for kind in ["envoyExtAuthzGrpc", "envoyExtAuthzHttp", "opentelemetry", "envoyOtelAls"] {
            let text = format!("  {kind}: {{service: a.shop.svc.x, port: {port}}}");
            let (found, remark) = provider(&text);
            let found = match &found {
                Provider::ExtAuthz(it) => Ok(it.service.port),
                Provider::Telemetry(TelemetryProvider::Spans { export, .. }) => {
                    Ok(export.service.port)
                }
                Provider::Telemetry(_) => expected.map_err(str::to_owned),
                Provider::Unusable(_) => Err(remark),
            };
            match expected {
                Ok(port) => assert_eq!(found, Ok(port), "{text}"),
                Err(part) => assert!(found.is_err_and(|it| it.contains(part)), "{text}"),
            }
        }
    };
    check("9000", Ok(9000));
    check("\"9000\"", Ok(9000));
    check("\"90 00\"", Err("is the text \"90 00\", and must be a whole number from 0 to"));
    check("-1", Err("is the number `-1`, and must be a whole number from 0 to"));
    check("70000", Err("70000 is not a port"));
    check("true", Err("must be a whole number"));
    check("\"\"", Err("must be a whole number"));
    let (found, _) = provider(
        "  envoyExtAuthzGrpc:\n    service: a.shop.svc.x\n    port: \"9\"\n    \
         includeRequestBodyInCheck: {maxRequestBytes: \"4096\"}",
    );
    assert!(matches!(found, Provider::ExtAuthz(_)), "{found:?}");
}

#[test]
fn a_configuration_that_is_none_has_no_provider() {
    for text in ["a: [", "- a", "a: 1\n---\nb: 1"] {
        let (config, remarks) = of(text);
        assert!(config.unreadable.is_some() && remarks[0].is_wrong, "{text}");
    }
    assert_eq!(of("").0, MeshConfig::default());
    assert_eq!(read(&ConfigMap::default()), (MeshConfig::default(), Vec::new()));
}

#[test]
fn what_pods_may_reach_is_never_read_wider_than_it_is_meant() {
    for (text, is_fenced, is_wrong) in [
        ("accessLogFile: ''", false, false),
        ("outboundTrafficPolicy: {mode: ALLOW_ANY}", false, false),
        // Istio's enumeration begins with REGISTRY_ONLY.
        ("outboundTrafficPolicy: {}", true, true),
        ("outboundTrafficPolicy: {Mode: ALLOW_ANY}", true, true),
        ("outboundTrafficPolicy:", false, false),
        ("outboundTrafficPolicy: {mode: REGISTRY_ONLY}", true, false),
        ("outboundTrafficPolicy: {mode: registry_only}", true, true),
        ("outboundTrafficPolicy: {mode: 1}", true, true),
        ("outboundTrafficPolicy: REGISTRY_ONLY", true, true),
        ("outboundTrafficPolicy: [{mode: ALLOW_ANY}]", true, true),
        ("outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n- a", true, true),
        ("outboundTrafficPolicy: {mode: ALLOW_ANY}\n- a", false, true),
    ] {
        let (config, remarks) = of(text);
        assert_eq!(config.registry_only, is_fenced, "{text}");
        assert_eq!(remarks.iter().any(|it| it.is_wrong), is_wrong, "{text}");
    }
}

#[test]
fn a_service_of_grpc_has_defaults_that_deny() {
    let (found, _) = provider("  envoyExtAuthzGrpc: {service: a.shop.svc.x, port: 9000}");
    let Provider::ExtAuthz(it) = found else { panic!("{found:?}") };
    let service = ProviderService { namespace: None, host: "a.shop.svc.x".to_owned(), port: 9000 };
    assert_eq!(it.service, service);
    assert_eq!((it.check.fail_open, it.check.status_on_error), (false, 403));
    assert_eq!((it.check.timeout, it.check.body), (Duration::from_secs(10), None));
    let (found, remark) = provider(
        "  envoyExtAuthzGrpc: {service: shop/a, port: 1, timeout: 2s, failOpen: true, \
         statusOnError: '503', clearRouteCache: true, \
         includeRequestBodyInCheck: {maxRequestBytes: 10, packAsBytes: true}}",
    );
    let Provider::ExtAuthz(it) = found else { panic!("{found:?}") };
    assert_eq!(it.service.namespace.as_deref(), Some("shop"));
    assert_eq!((it.check.fail_open, it.check.status_on_error), (true, 503));
    let body = BodyCheck { max_bytes: 10, allow_partial: false, as_bytes: true };
    assert_eq!((it.check.timeout, it.check.body), (Duration::from_secs(2), Some(body)));
    assert!(remark.contains("clearRouteCache: it has no effect"), "{remark}");
}

#[test]
fn a_service_of_http_says_which_fields_go_where() {
    let (found, _) = provider(
        "  envoyExtAuthzHttp:\n    service: a.shop.svc\n    port: 80\n    pathPrefix: /check\n    \
         includeRequestHeadersInCheck: [Cookie, x-*]\n    \
         includeAdditionalHeadersInCheck: {X-From: mesh}\n    \
         headersToUpstreamOnAllow: ['*-user']\n    headersToDownstreamOnAllow: [set-cookie]\n",
    );
    let Provider::ExtAuthz(it) = found else { panic!("{found:?}") };
    let Call::Http(call) = it.check.call else { panic!("{it:?}") };
    let expected = [TextMatch::Exact("cookie".into()), TextMatch::Prefix("x-".into())];
    assert_eq!(call.include, expected);
    assert_eq!(call.additional, [("x-from".into(), "mesh".into())]);
    assert_eq!(call.to_upstream_on_allow, [TextMatch::Suffix("-user".into())]);
    assert_eq!(call.to_downstream_on_deny, None);
    assert_eq!(call.to_downstream_on_allow, [TextMatch::Exact("set-cookie".into())]);
    assert_eq!(&*call.path_prefix, "/check");
}

#[test]
fn a_provider_that_is_wrong_can_be_used_by_nobody() {
    let http = |rest: &str| format!("  envoyExtAuthzHttp: {{service: a.b, port: 80, {rest}}}");
    let body = "includeRequestBodyInCheck: {maxRequestBytes";
    for (text, told) in [
        ("  other: {}".to_owned(), "other: providers of this kind are not known"),
        ("  zipkin: {}\n  prometheus: {}".to_owned(), "a provider has exactly one kind"),
        ("  envoyExtAuthzGrpc: {port: 80}".to_owned(), "service: `` is not the host"),
        ("  envoyExtAuthzGrpc: {service: a}".to_owned(), "port: 0 is not a port"),
        ("  envoyExtAuthzGrpc: {service: '*.x', port: 1}".to_owned(), "is not the host"),
        ("  envoyExtAuthzGrpc: {service: a, port: 1, pathPrefix: /a}".to_owned(), "pathPrefix"),
        (http("timeout: soon"), "timeout: `soon` is not a time"),
        (http("timeout: 0s"), "timeout: `0s` is not a time"),
        (http("statusOnError: '200'"), "statusOnError: it is not the status of an error"),
        (http("pathPrefix: check"), "pathPrefix: `check` is not the beginning"),
        (http("pathPrefix: /a/../b"), "pathPrefix"),
        (http("headersToUpstreamOnAllow: ['a b']"), "headersToUpstreamOnAllow[0]: `a b` is not"),
        (http("includeAdditionalHeadersInCheck: {a: \"b\\nc\"}"), "name or value is none"),
        (http(&format!("{body}: 0}}")), "maxRequestBytes: 0 is out of range"),
        (http(&format!("{body}: 99999999}}")), "maxRequestBytes: 99999999 is out of range"),
        (http("failOpen: perhaps"), "failOpen: is the text \"perhaps\", and must be true or false"),
        (http("failOpn: true"), "the field `failOpn` does not exist"),
    ] {
        let (found, remark) = provider(&text);
        assert!(matches!(found, Provider::Unusable(_)), "{text}: {found:?}");
        assert!(remark.contains(told), "{text}: {remark}");
    }
    let (config, _) = of("extensionProviders:\n- {name: p, prometheus: {}}\n\
                          - {name: p, prometheus: {}}\n- {prometheus: {}}\n- 1\n");
    assert!(matches!(config.providers["p"], Provider::Unusable(_)));
    assert_eq!(config.providers.len(), 1);
}
