//! Routes of several authors that meet at one service: who is asked first is written down, but may
//! not be what each of them meant.
//!
//! Istio leaves it undefined which of a VirtualService and a route of the Gateway API holds, and
//! takes only one of two VirtualServices that name the same host.

use std::collections::{BTreeMap, BTreeSet};

use ambit_model::http::rule::{Origin, RouteKind};
use ambit_model::http::service::{RouteGroup, ServiceHttp};
use ambit_wire::admin::{Finding, Severity};

use super::routes;
use crate::view_builder::Builder;

/// The ports at which a route is attached; `None` is all.
type Ports = BTreeSet<Option<u16>>;

/// All findings.
pub(super) fn findings(builder: &Builder) -> Vec<Finding> {
    let view = builder.view();
    let known = view.services().filter_map(|it| Some((it, view.http_service(&it.key)?)));
    let found = known.flat_map(|(service, http)| {
        let object = format!("Service {}/{}", service.key.namespace, service.name);
        of_service(&object, http)
    });
    found.collect()
}

fn of_service(object: &str, http: &ServiceHttp) -> Vec<Finding> {
    let requests = Written::all(http.routes.groups(), |it| &it.origin);
    let connections = Written::all(http.bytes.groups(), |it| &it.origin);
    let warning = |rule: &'static str, what: String, remedy: &str| Finding {
        severity: Severity::Warning,
        rule: rule.into(),
        object: object.to_owned(),
        what,
        remedy: remedy.to_owned(),
    };
    let mut found = Vec::new();
    for (what, written) in [("requests", requests), ("connections", connections)] {
        if let Some((of_gateway_api, virtual_service)) = written.mixed() {
            let what = format!(
                "both {of_gateway_api} and VirtualService {virtual_service} route its {what}: the \
                 former is asked first; Istio leaves it undefined which of them holds"
            );
            found.push(warning("mixed-routes", what, "keep the routes of one API"));
        }
        let mut virtual_services = written.virtual_services.keys();
        if let (Some(one), Some(other)) = (virtual_services.next(), virtual_services.next()) {
            let what = format!(
                "the VirtualServices {one} and {other} both route its {what}: the routes of the \
                 older one are asked first; Istio may take only one of them"
            );
            let remedy = "put their routes into one VirtualService, in the order that is meant";
            found.push(warning("several-virtual-services", what, remedy));
        }
    }
    found
}

/// The routes of a service, by their names, with the ports at which they are attached.
#[derive(Default)]
struct Written {
    /// With the kind before the name.
    of_gateway_api: BTreeMap<String, Ports>,
    virtual_services: BTreeMap<String, Ports>,
}

impl Written {
    fn all<R>(groups: &[RouteGroup<R>], origin: impl Fn(&R) -> &Origin) -> Self {
        let mut written = Self::default();
        for group in groups {
            for rule in &group.rules {
                let origin = origin(rule);
                let name = format!("{}/{}", origin.namespace, origin.name);
                let ports = match origin.kind {
                    RouteKind::VirtualService => written.virtual_services.entry(name),
                    kind => {
                        let name = format!("{} {name}", routes::kind(kind));
                        written.of_gateway_api.entry(name)
                    }
                };
                ports.or_default().insert(group.port);
            }
        }
        written
    }

    /// A route of each API, at the same port.
    fn mixed(&self) -> Option<(&String, &String)> {
        let meet = |one: &Ports, other: &Ports| {
            one.contains(&None) || other.contains(&None) || !one.is_disjoint(other)
        };
        self.of_gateway_api.iter().find_map(|(one, ports)| {
            let mut others = self.virtual_services.iter();
            others.find(|(_, others)| meet(ports, others)).map(|(other, _)| (one, other))
        })
    }
}

#[cfg(test)]
mod tests {
    use ambit_manifest::{Kind, stored};
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::Event;
    use crate::view_builder::{Mesh, Vips};

    fn put(kind: Kind, name: &str, spec: &Value) -> Event {
        let object = json!({"apiVersion": kind.api_versions()[0], "kind": kind.name(),
            "metadata": {"namespace": "app", "name": name, "uid": name}, "spec": spec});
        Event::Put(stored(kind, object.to_string().as_bytes()).expect("valid"))
    }

    fn check(objects: Vec<Event>, expected: &[(&str, &str)]) {
        let mut builder = Builder::new(Mesh::sample(), Vips::default());
        let ports = json!([{"port": 80}, {"port": 90}]);
        let service = json!({"clusterIP": "10.96.0.1", "ports": ports});
        builder.apply([put(Kind::Service, "web", &service)]);
        builder.apply(objects);
        let found = findings(&builder);
        let rules: Vec<&str> = found.iter().map(|it| &*it.rule).collect();
        assert_eq!(rules, expected.iter().map(|it| it.0).collect::<Vec<_>>(), "{found:?}");
        for (finding, (_, part)) in found.iter().zip(expected) {
            assert_eq!(finding.object, "Service app/web");
            assert!(finding.what.contains(part), "{}", finding.what);
        }
    }

    #[test]
    fn routes_of_both_apis_and_several_virtual_services_are_told() {
        let parent = |port: u16| {
            json!({"parentRefs": [{"group": "", "kind": "Service", "name": "web", "port": port}],
                "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]})
        };
        let route = json!([{"destination": {"host": "web"}}]);
        let http = json!({"hosts": ["web"], "http": [{"match": [{"port": 80}], "route": route}]});
        let tcp = json!({"hosts": ["web"], "tcp": [{"match": [{"port": 90}], "route": route}]});
        let http_route = |port| put(Kind::HttpRoute, "r", &parent(port));
        let virtual_service = |name, spec| put(Kind::VirtualService, name, spec);
        let mixed = "both HTTPRoute app/r and VirtualService app/v route its requests";
        for (objects, expected) in [
            (vec![http_route(80), virtual_service("v", &http)], &[("mixed-routes", mixed)][..]),
            (vec![http_route(90), virtual_service("v", &http)], &[]),
            (
                vec![put(Kind::TcpRoute, "t", &parent(90)), virtual_service("v", &tcp)],
                &[("mixed-routes", "both TCPRoute app/t and VirtualService app/v route its conn")],
            ),
            (
                vec![virtual_service("v", &http), virtual_service("w", &http)],
                &[(
                    "several-virtual-services",
                    "VirtualServices app/v and app/w both route its req",
                )],
            ),
            (vec![virtual_service("v", &http), virtual_service("w", &tcp)], &[]),
        ] {
            check(objects, expected);
        }
    }
}
