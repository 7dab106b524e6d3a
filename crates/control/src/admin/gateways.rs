//! The list of Gateways that ask for waypoints or are at the edge, and what is wrong with them.

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::listeners::Judged;
use ambit_manifest::gateway::{Gateway, Listener};
use ambit_wire::admin::{self, Finding, Severity};
use ambit_words::labels::{REVISION, WAYPOINT_FOR};
use serde_json::Value;

use crate::view_builder::Builder;
use crate::view_builder::edge::Edge;
use crate::view_builder::store::Store;

/// [`admin::control::GATEWAYS`].
pub(super) fn gateways(builder: &Builder, namespace: Option<&str>) -> Vec<admin::Gateway> {
    let gateways = builder.store().gateways();
    let wanted = gateways.iter().filter(|(name, gateway)| {
        let class = &gateway.spec.gateway_class_name;
        namespace.is_none_or(|it| *it == *name.namespace) && gateways.position(class).is_some()
    });
    wanted.map(|(name, it)| gateway(builder, name, it)).collect()
}

/// Gateways that are not accepted, or do not run, and listeners that lack what they name.
pub(super) fn findings(builder: &Builder) -> Vec<Finding> {
    let finding = |gateway: admin::Gateway| {
        let failed = gateway
            .conditions
            .into_iter()
            .find(|it| ["Accepted", "Programmed"].contains(&&*it.kind) && it.status == "False")?;
        let is_accepted = failed.kind != "Accepted";
        let lost = match gateway.listeners.is_empty() {
            true => "what names it as its waypoint is refused",
            false => "what should come in through it does not",
        };
        let remedy = match is_accepted {
            true => format!("see `ambit get pods -n {}`", gateway.namespace),
            false => "correct the Gateway, or what it names".to_owned(),
        };
        Some(Finding {
            severity: if is_accepted { Severity::Warning } else { Severity::Error },
            rule: "gateway".into(),
            object: format!("Gateway {}/{}", gateway.namespace, gateway.name),
            what: format!("{lost}: {}", failed.message),
            remedy,
        })
    };
    let mut all: Vec<Finding> = gateways(builder, None).into_iter().filter_map(finding).collect();
    all.extend(unresolved(builder));
    all
}

/// Listeners that are accepted, and lack a certificate or the roots of clients.
fn unresolved(builder: &Builder) -> Vec<Finding> {
    let (store, mut all) = (builder.store(), Vec::new());
    for (name, _) in store.gateways().iter() {
        let Some(edge) = Edge::find(store, name) else { continue };
        let made = edge.made(store);
        let accepted = edge.listeners().iter().filter(|it| it.not_accepted().is_none());
        all.extend(accepted.filter_map(|judged| {
            let listener = judged.full_name();
            let made = made.get(&*listener);
            let fault = judged.unresolved().or_else(|| made.and_then(|it| it.fault()))?;
            Some(Finding {
                severity: Severity::Warning,
                rule: "listener".into(),
                object: format!("Gateway {}/{}", name.namespace, name.name),
                what: format!(
                    "listener {listener} does not take all that it should: {}",
                    fault.what
                ),
                remedy: "see what it names; `ambit get gateways -o json` says more".to_owned(),
            })
        }));
    }
    all
}

fn gateway(builder: &Builder, name: &ObjectName, gateway: &Gateway) -> admin::Gateway {
    let label = |key| gateway.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
    let service = builder.store().gateways().service_of(builder.mesh(), name);
    let endpoints = builder.view().endpoints(&service);
    let ready = endpoints.map_or(0, |all| all.iter().filter(|workload| workload.healthy).count());
    let told = |pointer| {
        let status = gateway.status.as_ref().and_then(|status| status.pointer(pointer));
        status.and_then(Value::as_array).into_iter().flatten()
    };
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    admin::Gateway {
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
        class: gateway.spec.gateway_class_name.clone(),
        traffic: label(WAYPOINT_FOR),
        revision: label(REVISION),
        addresses: told("/addresses").map(|address| text(address, "value")).collect(),
        endpoints: admin::Endpoints { ready, total: endpoints.map_or(0, |all| all.len()) },
        listeners: Edge::find(builder.store(), name)
            .map(|edge| listeners(builder.store(), &edge))
            .unwrap_or_default(),
        conditions: told("/conditions")
            .map(|condition| admin::Condition {
                kind: text(condition, "type").into(),
                status: text(condition, "status").into(),
                reason: text(condition, "reason").into(),
                message: text(condition, "message"),
            })
            .collect(),
    }
}

fn listeners(store: &Store, edge: &Edge<'_>) -> Vec<admin::GatewayListener> {
    let made = edge.made(store);
    let listener = |judged: &Judged<'_>| {
        let Listener { port, protocol, hostname, .. } = judged.listener;
        let name = judged.full_name();
        let made = made.get(&*name);
        let found = || made.and_then(|it| it.fault());
        let fault = judged.not_accepted().or_else(|| judged.unresolved()).or_else(found);
        admin::GatewayListener {
            name: name.into_owned(),
            port: *port,
            protocol: protocol.clone(),
            host: hostname.clone().filter(|it| !it.is_empty()),
            attached_routes: made.and_then(|it| it.attached_routes).unwrap_or_default(),
            problem: fault.map(|it| it.what.clone()),
        }
    };
    edge.listeners().iter().map(listener).collect()
}
