//! Routes as users wrote them, and the table of a service as its waypoint asks it.
//!
//! The table is the one that a waypoint is sent; nothing here orders rules by itself.

use std::collections::BTreeSet;

use ambit_manifest::virtual_service::VirtualService;
use ambit_manifest::{Kind, ObjectName, honoured};
use ambit_model::Text;
use ambit_model::http::bytes::{BytesMatch, BytesRule};
use ambit_model::http::gateway::HostMatch;
use ambit_model::http::matching::{Match, NamedMatch, PathMatch, ValueMatch};
use ambit_model::http::rule::{Action, Destination, Origin, RouteKind, Rule};
use ambit_model::http::table::Found;
use ambit_model::service::Service;
use ambit_wire::admin;

use super::effects;
use crate::view_builder::Builder;
use crate::view_builder::edge::Edges;
use crate::view_builder::http_services;

/// There is no such service, and no such Gateway at the edge.
#[derive(Debug, thiserror::Error)]
#[error(
    "there is no service and no gateway {0:?}; write NAMESPACE/NAME, see `ambit get services` and \
     `ambit get gateways`"
)]
pub(super) struct NoService(String);

/// [`admin::control::ROUTES`].
pub(super) fn routes(builder: &Builder, namespace: Option<&str>) -> Vec<admin::Route> {
    let (routes, edges) = (builder.store().routes().iter(), Edges::new(builder.store()));
    let wanted = routes.filter(|((_, name), _)| namespace.is_none_or(|it| *it == *name.namespace));
    let route = |((kind, name), route): (&_, &crate::view_builder::routes::Route)| {
        let kind: &ambit_manifest::Kind = kind;
        let name: &ambit_manifest::ObjectName = name;
        let routing = builder.routing(&(*kind, name.clone()))?;
        let conditions = http_services::conditions(&edges, route, routing);
        let parents = conditions.into_iter().map(|(parent, all)| admin::RouteParent {
            kind: Kind::from(parent.kind).name().into(),
            name: format!("{}/{}", parent.namespace, parent.name),
            conditions: all.iter().map(super::lists::condition).collect(),
        });
        Some(admin::Route {
            kind: kind.name().into(),
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            rules: routing.rule_count(),
            parents: parents.collect(),
        })
    };
    let virtual_services = builder.store().virtual_services().iter();
    let virtual_services =
        virtual_services.filter(|(name, _)| namespace.is_none_or(|it| *it == *name.namespace));
    let virtual_services = virtual_services.map(|(name, it)| virtual_service(builder, name, it));
    wanted.filter_map(route).chain(virtual_services).collect()
}

fn virtual_service(builder: &Builder, name: &ObjectName, object: &VirtualService) -> admin::Route {
    let condition = honoured::condition(&builder.virtual_service_remarks(object));
    let parent = |host: &String| admin::RouteParent {
        kind: "host".into(),
        name: host.clone(),
        conditions: vec![super::lists::condition(&condition)],
    };
    admin::Route {
        kind: Kind::VirtualService.name().into(),
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
        rules: object.spec.rule_count(),
        parents: object.spec.hosts.iter().map(parent).collect(),
    }
}

/// [`admin::control::ROUTE_TABLE`]: the routes of the service `NAMESPACE/NAME`, or of the Gateway
/// at the edge of that name.
pub(super) fn table(builder: &Builder, wanted: &str) -> Result<Vec<admin::RouteLine>, NoService> {
    let view = builder.view();
    let is_wanted = |service: &Service| {
        let (namespace, name) = wanted.split_once('/').unwrap_or_default();
        *service.key.namespace == *namespace
            && (*service.name == *name || *service.key.hostname == *name)
    };
    let service = view.services().find(|it| is_wanted(it));
    let Some(service) = service else {
        return of_gateway(builder, wanted).ok_or_else(|| NoService(wanted.to_owned()));
    };
    let Some(http) = view.http_service(&service.key) else { return Ok(Vec::new()) };
    let clients = http.routes.groups().iter().map(|group| group.client_namespace.as_ref());
    let of_bytes = http.bytes.groups().iter().map(|group| group.client_namespace.as_ref());
    let clients: BTreeSet<Option<&Text>> = clients.chain(of_bytes).chain([None]).collect();
    let mut lines = Vec::new();
    for port in service.ports.iter().map(|port| port.service_port) {
        for client in &clients {
            let (namespace, is_all) = (client.map(|it| &**it), client.is_none());
            let table = own(http.routes(port, namespace), http.routes(port, None), is_all);
            let line = |matches, action, origin: &Origin| admin::RouteLine {
                port,
                client_namespace: client.map(ToString::to_string),
                matches,
                action,
                effects: admin::RuleEffects::default(),
                rule: rule(origin),
            };
            let rules = table.into_iter().flat_map(|table| table.iter());
            lines.extend(rules.map(|it| admin::RouteLine {
                effects: effects::of_rule(it.rule),
                ..line(matches(&it), action(it.rule), &it.rule.origin)
            }));
            let table =
                own(http.bytes_routes(port, namespace), http.bytes_routes(port, None), is_all);
            let rules = table.into_iter().flat_map(|table| table.iter());
            lines.extend(rules.map(|(wanted, rule)| {
                line(connections(wanted), connection_action(rule), &rule.origin)
            }));
        }
    }
    Ok(lines)
}

/// The routes of the Gateway at the edge `NAMESPACE/NAME`, by port, listener and host.
fn of_gateway(builder: &Builder, wanted: &str) -> Option<Vec<admin::RouteLine>> {
    let (namespace, name) = wanted.split_once('/')?;
    let gateway = builder.gateway(&ObjectName::new(namespace, name))?;
    let mut lines = Vec::new();
    for listener in gateway.listeners() {
        let own = listener.host.as_ref();
        let line = |host: Option<&HostMatch>, matches: String, action, effects, origin: &Origin| {
            let host = host.or(own).map(|host| format!("host {}", host_name(host)));
            let at = format!("listener {}", listener.name);
            let parts: Vec<String> =
                [Some(at), host, Some(matches)].into_iter().flatten().collect();
            let (port, rule) = (listener.port, rule(origin));
            let matches = parts.join(", ");
            admin::RouteLine { port, client_namespace: None, matches, action, effects, rule }
        };
        for (host, table) in listener.tables() {
            lines.extend(table.iter().map(|it| {
                let effects = effects::of_rule(it.rule);
                line(host.as_ref(), matches(&it), action(it.rule), effects, &it.rule.origin)
            }));
        }
        lines.extend(listener.bytes().into_iter().flat_map(|it| it.iter()).map(
            |(wanted, rule)| {
                let (matches, action) = (connections(wanted), connection_action(rule));
                line(None, matches, action, admin::RuleEffects::default(), &rule.origin)
            },
        ));
    }
    Some(lines)
}

/// A host as a listener or a route names it.
fn host_name(host: &HostMatch) -> String {
    match host {
        HostMatch::Exact(name) => name.to_string(),
        HostMatch::Suffix(end) => format!("*{end}"),
    }
}

/// The table of one namespace's clients, if it is another one than everybody's.
fn own<'t, T>(table: Option<&'t T>, of_all: Option<&'t T>, is_all: bool) -> Option<&'t T> {
    let is_same = |own: &&T| of_all.is_some_and(|all| std::ptr::eq(*own, all));
    table.filter(|own| is_all || !is_same(own))
}

/// What a connection must be, in words.
pub(super) fn connections(wanted: &BytesMatch) -> String {
    let name = wanted.server_name.as_ref().map(|name| format!("TLS to {}", host_name(name)));
    let blocks: Vec<String> = wanted.destinations.iter().map(ToString::to_string).collect();
    let blocks = (!blocks.is_empty()).then(|| format!("address in {}", blocks.join(" or ")));
    let client = wanted.client_namespace.as_ref().map(|it| format!("client namespace {it}"));
    let all: Vec<String> = [name, blocks, client].into_iter().flatten().collect();
    if all.is_empty() { "every connection".to_owned() } else { all.join(", ") }
}

/// What becomes of a connection, in words.
pub(super) fn connection_action(rule: &BytesRule) -> String {
    let backends = rule.backends.iter().map(|it| (it.weight, &it.destination));
    shares(&backends.collect::<Vec<_>>(), "refuse")
}

/// Where a rule is written.
pub(super) fn rule(origin: &Origin) -> admin::RouteRule {
    admin::RouteRule {
        kind: kind(origin.kind).into(),
        route: format!("{}/{}", origin.namespace, origin.name),
        rule: origin.index,
        rule_name: origin.rule_name.as_ref().map(ToString::to_string),
    }
}

/// The name of a kind of routes.
pub(super) fn kind(kind: RouteKind) -> &'static str {
    match kind {
        RouteKind::HttpRoute => "HTTPRoute",
        RouteKind::GrpcRoute => "GRPCRoute",
        RouteKind::VirtualService => "VirtualService",
        RouteKind::TlsRoute => "TLSRoute",
        RouteKind::TcpRoute => "TCPRoute",
        RouteKind::UdpRoute => "UDPRoute",
    }
}

/// What a request must be, in words.
pub(super) fn matches(found: &Found<'_>) -> String {
    let Some(it) = found.matched.filter(|it| **it != Match::default()) else {
        return "every request".to_owned();
    };
    let value = |what: &str, value: &Option<ValueMatch>| {
        value.as_ref().map(|value| format!("{what} {}", self::value(value)))
    };
    let named = |what: &str, named: &NamedMatch| {
        let not = if named.is_inverted { "not " } else { "" };
        format!("{not}{what} {}={}", named.name, self::value(&named.value))
    };
    let parts = [
        it.path.as_ref().map(|path| format!("path {}", self::path(path))),
        value("method", &it.method),
        value("scheme", &it.scheme),
        value("host", &it.authority),
        it.client_namespace.as_ref().map(|it| format!("client namespace {it}")),
    ];
    let headers = it.headers.iter().map(|it| named("header", it));
    let parameters = it.parameters.iter().map(|it| named("query", it));
    let claims = it.claims.iter().map(|it| {
        let not = if it.is_inverted { "not " } else { "" };
        format!("{not}claim {}={}", it.keys.join("."), self::value(&it.value))
    });
    let all = parts.into_iter().flatten().chain(claims).chain(headers).chain(parameters);
    let all: Vec<String> = all.collect();
    all.join(", ")
}

fn path(path: &PathMatch) -> String {
    match path {
        PathMatch::Exact(text) => format!("{text}"),
        PathMatch::Segments(text) => format!("{}/*", text.trim_end_matches('/')),
        PathMatch::Prefix(text) => format!("{text}*"),
        PathMatch::Regex(pattern) => format!("~{}", pattern.source()),
        PathMatch::ExactNoCase(text) => format!("{text} (any case)"),
        PathMatch::PrefixNoCase(text) => format!("{text}* (any case)"),
    }
}

fn value(value: &ValueMatch) -> String {
    match value {
        ValueMatch::Exact(text) => text.to_string(),
        ValueMatch::ExactNoCase(text) => format!("{text} (any case)"),
        ValueMatch::Prefix(text) => format!("{text}*"),
        ValueMatch::Regex(pattern) => format!("~{}", pattern.source()),
        ValueMatch::Present => "*".to_owned(),
    }
}

/// What becomes of a request, in words.
pub(super) fn action(rule: &Rule) -> String {
    if let Some(abort) = effects::abort_of_all(rule) {
        return format!("answer {} (fault)", effects::abort(abort));
    }
    let backends = match &rule.action {
        Action::Redirect(redirect) => return format!("redirect with {}", redirect.status),
        Action::Respond { status, .. } => return format!("answer {status}"),
        Action::Forward { backends, .. } => backends,
    };
    let backends = backends.iter().map(|it| (it.weight, &it.destination));
    shares(&backends.collect::<Vec<_>>(), "answer 500")
}

/// Where backends lead, with their weights; `lost` is what becomes of those that lead nowhere.
fn shares(backends: &[(u32, &Destination)], lost: &str) -> String {
    let sum: u64 = backends.iter().map(|it| u64::from(it.0)).sum();
    if sum == 0 {
        return format!("{lost}: no backend has a weight");
    }
    let parts = backends.iter().map(|(weight, destination)| {
        let share = match backends.len() {
            1 => String::new(),
            _ => format!(" {weight}/{sum}"),
        };
        match destination {
            Destination::Service { name, port, subset } => {
                let subset = subset.as_ref().map(|it| format!(" subset {it}")).unwrap_or_default();
                format!("to {name}:{port}{subset}{share}")
            }
            Destination::Invalid(why) => format!("{lost}{share}: {why}"),
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use ambit_manifest::stored;
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};

    fn put(kind: Kind, object: &Value) -> Event {
        let mut object = object.clone();
        object["apiVersion"] = kind.api_versions()[0].into();
        object["kind"] = kind.name().into();
        Event::Put(stored(kind, object.to_string().as_bytes()).expect("valid"))
    }

    #[test]
    fn routes_are_listed_and_ordered_as_a_waypoint_asks_them() {
        let mut builder = Builder::new(Mesh::sample(), Vips::default());
        let metadata =
            |namespace: &str, name: &str| json!({"namespace": namespace, "name": name, "uid": "1"});
        let service = json!({"metadata": metadata("app", "web"),
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
        let route = |namespace: &str, name: &str, parent: &str, rules: Value| {
            let parents = json!([{"group": "", "kind": "Service", "namespace": "app",
                "name": parent}]);
            put(
                Kind::HttpRoute,
                &json!({"metadata": metadata(namespace, name),
                "spec": {"parentRefs": parents, "rules": rules}}),
            )
        };
        let to = |name: &str, weight: u32| json!({"name": name, "port": 80, "weight": weight});
        let path = |kind: &str, value: &str| json!({"path": {"type": kind, "value": value}});
        let rules = json!([
            {"matches": [path("PathPrefix", "/a")], "backendRefs": [to("web", 3), to("no", 1)]},
            {"matches": [path("Exact", "/a")], "backendRefs": [to("web", 1)]},
        ]);
        builder.apply([
            put(Kind::Service, &service),
            route("app", "web", "web", rules),
            route("shop", "own", "web", json!([{}])),
            route("app", "lost", "nobody", json!([{}])),
        ]);
        let all = routes(&builder, None);
        let accepted: Vec<_> = all
            .iter()
            .map(|it| (&*it.name, it.rules, it.parents[0].conditions[0].status == "True"))
            .collect();
        assert_eq!(accepted, [("lost", 1, false), ("web", 2, true), ("own", 1, true)]);
        assert_eq!(routes(&builder, Some("shop")).len(), 1);
        let lines = table(&builder, "app/web").expect("a service");
        let shown = |it: &admin::RouteLine| {
            let client = it.client_namespace.clone().unwrap_or_default();
            format!("{client}|{}|{}|{} {}", it.matches, it.action, it.rule.route, it.rule.rule)
        };
        let shown: Vec<String> = lines.iter().map(shown).collect();
        let web = "to app/web.app.svc.cluster.local:80";
        assert_eq!(shown[0], format!("|path /a|{web}|app/web 1"));
        assert!(shown[1].starts_with(&format!("|path /a/*|{web} 3/4, answer 500 1/4: ")));
        assert!(shown[2].starts_with("shop|") && shown[2].ends_with("|shop/own 0"), "{shown:?}");
        assert!(table(&builder, "app/nobody").is_err());
        let gateway = json!({"metadata": metadata("app", "in"), "spec": {
            "gatewayClassName": "ambit", "listeners": [
                {"name": "http", "port": 80, "protocol": "HTTP"},
                {"name": "tcp", "port": 90, "protocol": "TCP"}]}});
        let at_gateway = |kind: Kind, name: &str, hosts: Value, rules: Value| {
            let spec = json!({"parentRefs": [{"name": "in"}], "hostnames": hosts, "rules": rules});
            put(kind, &json!({"metadata": metadata("app", name), "spec": spec}))
        };
        let to_web = json!([{"backendRefs": [to("web", 1)]}]);
        builder.apply([
            put(Kind::Gateway, &gateway),
            at_gateway(Kind::HttpRoute, "any", json!([]), to_web.clone()),
            at_gateway(
                Kind::HttpRoute,
                "host",
                json!(["*.b.example", "a.example"]),
                to_web.clone(),
            ),
            at_gateway(Kind::TcpRoute, "bytes", json!([]), to_web),
        ]);
        let lines = table(&builder, "app/in").expect("a gateway");
        let shown: Vec<String> = lines
            .iter()
            .map(|it| format!("{} {}: {} {}", it.port, it.matches, it.action, it.rule.route))
            .collect();
        let at = |place: &str, of: &str| format!("{place}: {web} app/{of}");
        let expected = [
            at("80 listener http, host a.example, every request", "host"),
            at("80 listener http, host *.b.example, every request", "host"),
            at("80 listener http, every request", "any"),
            at("90 listener tcp, every connection", "bytes"),
        ];
        assert_eq!(shown, expected);
        let to_web = json!([{"route": [{"destination": {"host": "web"}}]}]);
        let spec = json!({"hosts": ["web.app.svc.cluster.local"], "http": to_web});
        let object = json!({"metadata": metadata("istio", "vs"), "spec": spec});
        builder.apply([put(Kind::VirtualService, &object)]);
        let [listed] = &routes(&builder, Some("istio"))[..] else { panic!("one is listed") };
        assert_eq!((&*listed.kind, listed.rules), ("VirtualService", 1));
        assert_eq!(listed.parents[0].conditions[0].kind, honoured::HONOURED);
    }
}
