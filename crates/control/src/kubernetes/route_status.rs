//! Writes the state of a route or policy where its author looks: `status.parents` of HTTPRoute,
//! GRPCRoute, TLSRoute, TCPRoute and UDPRoute, `status.ancestors` of TrafficPolicy and
//! BackendTLSPolicy.
//!
//! There is one entry for each object that it attaches to, of one of our controllers: gateways at
//! the edge have another than the mesh. A BackendTLSPolicy has one for each Gateway by which its
//! Services are reached. Entries of other controllers are left unchanged.

use std::collections::BTreeMap;

use ambit_manifest::Kind;
use ambit_manifest::gateway::listeners::ROUTES_GROUP;
use ambit_manifest::gateway::{EDGE_CONTROLLER, ISTIO_EDGE_CONTROLLER};
use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routes::MESH_CONTROLLER;
use ambit_manifest::routing::Parent;
use ambit_manifest::traffic_policy::POLICY_CONTROLLER;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::merged::Edition;
use super::{ApiError, FIELD_MANAGER, answer};
use crate::registry::kubernetes::istio_at;
use crate::view_builder::Builder;
use crate::view_builder::backend_tls::{self, Reached};
use crate::view_builder::edge::Edges;
use crate::view_builder::http_services;
use crate::view_builder::routes::{RouteName, parent_name};
use crate::view_builder::store::Store;
use crate::view_builder::traffic_policies;

/// What is reported about a route or policy.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RouteVerdict {
    edition: Edition,
    attached: Vec<Attached>,
}

/// What is reported about one object that it attaches to.
#[derive(Debug, Clone, PartialEq)]
struct Attached {
    /// The reference as it is written.
    reference: Value,
    controller: &'static str,
    conditions: Vec<StatusCondition>,
}

/// How a kind writes what it attaches to.
struct Form {
    list: &'static str,
    reference: &'static str,
    /// The controllers whose entries are ours.
    controllers: &'static [&'static str],
}

/// The controllers of Gateways; the last only where we stand in for Istio's.
const OF_GATEWAYS: [&str; 3] = [MESH_CONTROLLER, EDGE_CONTROLLER, ISTIO_EDGE_CONTROLLER];

fn form(kind: Kind, stands_in: bool) -> Form {
    let of_gateways = if stands_in { &OF_GATEWAYS[..] } else { &OF_GATEWAYS[..2] };
    match kind {
        Kind::TrafficPolicy => {
            Form { list: "ancestors", reference: "ancestorRef", controllers: &[POLICY_CONTROLLER] }
        }
        Kind::BackendTlsPolicy => {
            Form { list: "ancestors", reference: "ancestorRef", controllers: of_gateways }
        }
        _ => Form { list: "parents", reference: "parentRef", controllers: of_gateways },
    }
}

/// What is to be reported about all routes and policies.
pub(super) fn verdicts(builder: &Builder) -> BTreeMap<RouteName, RouteVerdict> {
    let (routes, edges) = (builder.store().routes().iter(), Edges::new(builder.store()));
    let verdicts = routes.filter_map(|(name, route)| {
        let routing = builder.routing(name)?;
        let edition = Edition::of(route.metadata());
        let parents = http_services::conditions(&edges, route, routing).into_iter();
        let parents = parents.filter(|(_, conditions)| !conditions.is_empty());
        let attached = parents.map(|(parent, conditions)| Attached {
            reference: json!(parent.written),
            controller: controller(builder.store(), &parent),
            conditions,
        });
        let attached = attached.collect();
        Some((name.clone(), RouteVerdict { edition, attached }))
    });
    let policies = builder.store().traffic_policies().iter().map(|(name, known)| {
        let edition = Edition::of(&known.object.metadata);
        let targets = traffic_policies::conditions(builder, name, known).into_iter();
        let attached = targets.map(|(target, condition)| Attached {
            reference: json!(target),
            controller: POLICY_CONTROLLER,
            conditions: vec![condition],
        });
        let verdict = RouteVerdict { edition, attached: attached.collect() };
        ((Kind::TrafficPolicy, name.clone()), verdict)
    });
    verdicts.chain(policies).chain(backend_tls(builder)).collect()
}

/// What is to be reported about all BackendTLSPolicies.
fn backend_tls(builder: &Builder) -> impl Iterator<Item = (RouteName, RouteVerdict)> {
    let reached = Reached::of(builder);
    builder.store().backend_tls().iter().map(move |(name, known)| {
        let edition = Edition::of(&known.object.metadata);
        let conditions = backend_tls::conditions(builder, name, known);
        let ancestors = reached.ancestors(known).into_iter();
        let attached = ancestors.map(|(gateway, controller)| Attached {
            reference: json!({"group": ROUTES_GROUP, "kind": "Gateway",
                "namespace": gateway.namespace, "name": gateway.name}),
            controller,
            conditions: conditions.to_vec(),
        });
        let verdict = RouteVerdict { edition, attached: attached.collect() };
        ((Kind::BackendTlsPolicy, name.clone()), verdict)
    })
}

/// The controller that answers for a route at a parent.
fn controller(store: &Store, parent: &Parent<'_>) -> &'static str {
    let gateways = store.gateways();
    let edge = gateways.of_parent(&parent_name(parent)).and_then(|it| gateways.controller(it));
    edge.unwrap_or(MESH_CONTROLLER)
}

/// Writes the state of one object, if it differs from what is written. Entries of Istio's gateways
/// are ours only where `stands_in` says so.
pub(super) async fn write(
    client: &Client,
    (kind, name): &RouteName,
    verdict: &RouteVerdict,
    stands_in: bool,
) -> Result<(), ApiError> {
    let form = form(*kind, stands_in);
    // An older cluster lacks the first version.
    for version in kind.api_versions() {
        let resource = istio_at(*kind, version);
        let routes = Api::namespaced_with(client.clone(), &name.namespace, &resource);
        if let Some(object) = answer(routes.get_opt(&name.name)).await? {
            return patch(&routes, &form, &name.name, &object, verdict).await;
        }
    }
    Ok(())
}

async fn patch(
    routes: &Api<DynamicObject>,
    form: &Form,
    name: &str,
    object: &DynamicObject,
    verdict: &RouteVerdict,
) -> Result<(), ApiError> {
    let before = object.data.pointer(&format!("/status/{}", form.list)).and_then(Value::as_array);
    let before = before.cloned().unwrap_or_default();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let after = merged(form, &before, verdict, &now);
    if after == before {
        return Ok(());
    }
    let patch = json!({
        "metadata": { "resourceVersion": object.metadata.resource_version },
        "status": { form.list: after },
    });
    let as_us = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    answer(routes.patch_status(name, &as_us, &Patch::Merge(&patch))).await.map(drop)
}

/// The entries of the list as they should be. Times of conditions that did not change stay.
fn merged(form: &Form, before: &[Value], verdict: &RouteVerdict, now: &str) -> Vec<Value> {
    let is_own =
        |entry: &&Value| form.controllers.iter().any(|own| entry["controllerName"] == **own);
    let mut after: Vec<Value> = before.iter().filter(|it| !is_own(it)).cloned().collect();
    for Attached { reference, controller, conditions } in &verdict.attached {
        let known = before.iter().filter(is_own);
        let known = known.clone().find(|entry| entry[form.reference] == *reference);
        let known = known.and_then(|entry| entry["conditions"].as_array());
        let since = |condition: &StatusCondition| {
            let is_same =
                |it: &&Value| it["type"] == condition.kind && it["status"] == condition.status;
            let same = known.and_then(|all| all.iter().find(is_same));
            same.map_or_else(|| json!(now), |it| it["lastTransitionTime"].clone())
        };
        let condition = |condition: &StatusCondition| {
            json!({
                "type": condition.kind,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": since(condition),
                "observedGeneration": verdict.edition.generation,
            })
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        after.push(json!({
            form.reference: reference, "controllerName": controller, "conditions": conditions,
        }));
    }
    after
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ambit_manifest::ObjectName;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::kubernetes::fake::FakeApi;
    use crate::metrics::Metrics;
    use crate::registry::Registry;
    use crate::view_builder::{Mesh, Vips};
    use crate::world::World;

    #[tokio::test]
    async fn a_backend_tls_policy_has_an_entry_for_each_gateway_that_leads_to_its_service() {
        let api = FakeApi::default();
        let put = |plural: &str, name: &str, spec: Value| {
            let path =
                format!("/apis/gateway.networking.k8s.io/v1/namespaces/shop/{plural}/{name}");
            api.put(&path, json!({"metadata": {"generation": 4}, "spec": spec}));
            path
        };
        let path = put(
            "backendtlspolicies",
            "tls",
            json!({"targetRefs": [{"group": "", "kind": "Service", "name": "web"}],
                "validation": {"hostname": "web.example", "wellKnownCACertificates": "System"}}),
        );
        put(
            "gateways",
            "in",
            json!({"gatewayClassName": "istio",
                "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}),
        );
        put(
            "httproutes",
            "web",
            json!({"parentRefs": [{"name": "in"}],
                "rules": [{"backendRefs": [{"name": "web", "port": 443}]}]}),
        );
        let service = json!({"metadata": {}, "spec": {"ports": [{"port": 443}]}});
        api.put("/api/v1/namespaces/shop/services/web", service);
        let (file, metrics) = (std::env::temp_dir().join("none"), Arc::new(Metrics::new()));
        let mesh = Mesh { stands_in: true, ..Mesh::sample() };
        let world = World::new(mesh, Vips::default(), file, metrics);
        let mut registry = Registry::kubernetes(&api.client(), "istio-system");
        registry.load(|events| world.apply(events)).await.unwrap();
        let name = (Kind::BackendTlsPolicy, ObjectName::new("shop", "tls"));
        let verdict = verdicts(&world.read()).remove(&name).expect("it is known");
        write(&api.client(), &name, &verdict, true).await.unwrap();
        let ancestors = api.get(&path).unwrap()["status"]["ancestors"].clone();
        let [ancestor] = ancestors.as_array().unwrap().as_slice() else { panic!("{ancestors}") };
        let reference = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway",
            "namespace": "shop", "name": "in"});
        assert_eq!(ancestor["ancestorRef"], reference);
        assert_eq!(ancestor["controllerName"], "istio.io/gateway-controller");
        let told =
            |it: &Value| format!("{} {} {}", it["type"], it["reason"], it["observedGeneration"]);
        let conditions: Vec<String> =
            ancestor["conditions"].as_array().unwrap().iter().map(told).collect();
        let expected = ["\"Accepted\" \"Accepted\" 4", "\"ResolvedRefs\" \"ResolvedRefs\" 4"];
        assert_eq!(conditions, expected);
    }

    #[test]
    fn entries_of_others_and_times_of_what_did_not_change_stay() {
        let condition = |status| StatusCondition {
            kind: "Accepted",
            status,
            reason: "Reason",
            message: "m".to_owned(),
        };
        let edition = |generation| {
            Edition::of(&ObjectMeta { generation: Some(generation), ..ObjectMeta::default() })
        };
        let verdict = |generation, status| RouteVerdict {
            edition: edition(generation),
            attached: vec![Attached {
                reference: json!({"name": "web"}),
                controller: MESH_CONTROLLER,
                conditions: vec![condition(status)],
            }],
        };
        let form = form(Kind::HttpRoute, false);
        let merged = |before: &[Value], verdict: &RouteVerdict, now| {
            super::merged(&form, before, verdict, now)
        };
        let other = json!({"parentRef": {"name": "edge"}, "controllerName": "example.com/edge"});
        let first = merged(std::slice::from_ref(&other), &verdict(1, "True"), "t1");
        assert_eq!((first.len(), &first[0]), (2, &other));
        assert_eq!(first[1]["controllerName"], "istio.io/mesh-controller");
        assert_eq!(first[1]["parentRef"], json!({"name": "web"}));
        assert_eq!(merged(&first, &verdict(1, "True"), "t2"), first, "nothing changed");
        let second = merged(&first, &verdict(2, "True"), "t2");
        let told = |entry: &Value, field: &str| entry["conditions"][0][field].clone();
        assert_eq!(told(&second[1], "lastTransitionTime"), "t1");
        assert_eq!(told(&second[1], "observedGeneration"), 2);
        let third = merged(&second, &verdict(3, "False"), "t3");
        assert_eq!(told(&third[1], "lastTransitionTime"), "t3");
        let gone = RouteVerdict { edition: edition(4), attached: Vec::new() };
        assert_eq!(merged(&third, &gone, "t4"), [other]);
    }
}
