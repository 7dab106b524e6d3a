//! The machine's controllers: from Gateways to Deployments, from these to pods, from pods to nodes.
//!
//! [`step`] compares the objects with what the nodes report, and makes the changes that bring the
//! two closer. Pure functions in [`rollout`] and [`schedule`] decide what to change; this file only
//! reads and writes objects. It never waits: it is called again whenever an object or a status
//! changes.

pub(crate) mod gateways;
pub(crate) mod rollout;
pub(crate) mod schedule;
mod shape;

use ambit_words::labels;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::objects::{Admission, Kind, ObjectRef, Store, StoreError};
use crate::registry::{Mirror, Phase};
pub(crate) use gateways::MeshNames;
pub(crate) use shape::{decode, text};

/// Brings pods closer to what the objects ask for. Answers whether anything changed.
pub(crate) fn step(
    store: &mut Store,
    reported: &Mirror,
    admission: &Admission,
    mesh: Option<&MeshNames>,
    now: &str,
) -> Result<bool, StoreError> {
    let gone = gone(store, reported);
    store.remove_gone(&gone)?;
    let mut changed = !gone.is_empty();
    changed |= gateways::step(store, admission, mesh, now)?;
    changed |= roll_out(store, reported, now)?;
    changed |= place(store, now)?;
    Ok(changed)
}

/// Pods that were going away and have no status any more: their node has taken them down.
fn gone(store: &Store, reported: &Mirror) -> Vec<ObjectRef> {
    let taken_down = |(object, value): &(&ObjectRef, &Value)| {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let uid = text(value, "/metadata/uid");
        value.pointer("/metadata/deletionTimestamp").is_some()
            && reported.status(namespace, &object.name, uid).is_none()
    };
    store.of_plural("pods").filter(taken_down).map(|(object, _)| object.clone()).collect()
}

fn roll_out(store: &mut Store, reported: &Mirror, now: &str) -> Result<bool, StoreError> {
    let deployments: Vec<(ObjectRef, Deployment)> = store
        .of_plural("deployments")
        .map(|(object, value)| (object.clone(), decode(value)))
        .collect();
    let mut changed = false;
    for (object, deployment) in deployments {
        let pods = rollout::pods_of(&deployment, store, reported);
        let plan = rollout::plan(&deployment, &pods);
        for pod in &plan.retire {
            store.retire_pod(pod, now)?;
        }
        for _ in 0..plan.create {
            let (pod, value) = rollout::new_pod(&object, &deployment);
            store.write(pod, value, now)?;
        }
        changed |= plan.create > 0 || !plan.retire.is_empty();
        changed |= write_deployment_status(store, &object, &pods, now)?;
    }
    Ok(changed)
}

fn write_deployment_status(
    store: &mut Store,
    object: &ObjectRef,
    pods: &[rollout::PodOfDeployment],
    now: &str,
) -> Result<bool, StoreError> {
    let Some(mut value) = store.object(object).cloned() else { return Ok(false) };
    let live = || pods.iter().filter(|pod| !pod.terminating);
    let status = json!({
        "observedGeneration": value.pointer("/metadata/generation"),
        "replicas": live().count(),
        "updatedReplicas": live().filter(|pod| pod.current).count(),
        "readyReplicas": live().filter(|pod| pod.ready).count(),
        "availableReplicas": live().filter(|pod| pod.ready).count(),
    });
    if value.get("status") == Some(&status) {
        return Ok(false);
    }
    value["status"] = status;
    store.write(object.clone(), value, now)?;
    Ok(true)
}

fn place(store: &mut Store, now: &str) -> Result<bool, StoreError> {
    let nodes: Vec<schedule::NodeView> =
        store.of_plural("nodes").map(|(_, value)| schedule::NodeView::of(value)).collect();
    let all: Vec<(ObjectRef, Pod)> =
        store.of_plural("pods").map(|(object, value)| (object.clone(), decode(value))).collect();
    let mut placed: Vec<schedule::Placed> =
        all.iter().filter_map(|(_, pod)| schedule::Placed::of(pod)).collect();
    let mut changed = false;
    for (object, pod) in all {
        let node_named = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let already = store.object(&object).and_then(|value| value.pointer("/status/conditions"));
        if node_named && already.is_some() {
            continue;
        }
        let verdict = schedule::place(&pod, &nodes, &placed);
        changed |= write_placement(store, &object, &verdict, now)?;
        if let Ok(node) = verdict {
            placed.extend(schedule::Placed::on(&pod, node));
        }
    }
    Ok(changed)
}

fn write_placement(
    store: &mut Store,
    object: &ObjectRef,
    verdict: &Result<String, schedule::Unschedulable>,
    now: &str,
) -> Result<bool, StoreError> {
    let Some(mut value) = store.object(object).cloned() else { return Ok(false) };
    let condition = match verdict {
        Ok(node) => {
            value["spec"]["nodeName"] = json!(node);
            json!({"type": "PodScheduled", "status": "True"})
        }
        Err(why) => json!({
            "type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": why.to_string(),
        }),
    };
    let status = json!({"phase": Phase::Pending, "conditions": [condition]});
    if value.get("status") == Some(&status) && verdict.is_err() {
        return Ok(false);
    }
    value["status"] = status;
    store.write(object.clone(), value, now)?;
    Ok(true)
}

/// The machine's own objects: namespaces that always exist, and its nodes.
pub(crate) fn initial_objects() -> Vec<Value> {
    let namespace =
        |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    vec![namespace("default"), namespace("istio-system")]
}

/// The Node object of one of the machine's nodes.
pub(crate) fn node_object(network: crate::addresses::NodeNetwork) -> (ObjectRef, Value) {
    let name = network.name();
    let [v4, v6] = network.fabric().both();
    let value = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            labels::HOSTNAME: name,
            labels::OS: "linux",
            labels::REGION: "local",
            labels::ZONE: name.replace("node", "zone"),
        }},
        "spec": {"podCIDR": network.pod_cidrs()[0], "podCIDRs": network.pod_cidrs()},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": v4},
                {"type": "InternalIP", "address": v6},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    (ObjectRef::new(Kind::Node, None, &name), value)
}
