//! The machine's controllers: from Gateways to Deployments, from these and other kinds to pods,
//! from pods to nodes.
//!
//! [`step`] compares the objects with what the nodes report, and makes the changes that bring the
//! two closer. Pure functions in [`rollout`], [`stateful`], [`daemon`], [`jobs`], [`cron_jobs`],
//! [`driven_out`], [`budgets`] and [`schedule`] decide what to change; this file only reads and
//! writes objects. It never waits: it is called again whenever an object or a status changes.
//! [`autoscale`] is no step of it: time drives it, and what pods use.

pub(crate) mod autoscale;
pub(crate) mod budgets;
mod cron_jobs;
mod daemon;
mod driven_out;
pub(crate) mod gateways;
mod jobs;
mod owned;
pub(crate) mod rollout;
pub(crate) mod schedule;
mod shape;
mod stateful;

use std::time::Duration;

use ambit_manifest::BUILT_IN_NAMESPACES;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use self::owned::{Action, KeptBy, Owner};
use self::schedule::NodeView;
use crate::claims;
use crate::objects::{Admission, Kind, ObjectRef, Store, StoreError};
use crate::registry::{Mirror, Phase};
pub(crate) use gateways::MeshNames;
pub(crate) use shape::{decode, text};

/// How often the controllers look again while a Job has a deadline or vanishes by itself.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// How often at least while a CronJob waits for its time: clocks are set.
const CLOCK_INTERVAL_MAX: Duration = Duration::from_secs(30);

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
    changed |= drive_out(store, reported, now)?;
    changed |= roll_out(store, reported, now)?;
    // Before their pods have a node.
    changed |= claims::of_pods(store, now)?;
    changed |= claims::bind(store, now)?;
    changed |= place(store, now)?;
    changed |= judge_budgets(store, reported, now)?;
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

/// For how long nothing has to be done by the mere passing of time; `None` until something changes.
pub(crate) fn wait_for_time(store: &Store, now: Timestamp) -> Option<Duration> {
    if store.of_plural(Kind::Job.plural()).any(|(_, value)| jobs::waits_for_time(value)) {
        return Some(CLOCK_INTERVAL);
    }
    let cron_jobs = store.of_plural(Kind::CronJob.plural());
    let next = cron_jobs.filter_map(|(_, value)| cron_jobs::next_time(value, now));
    let next = next.chain(driven_out::next_time(store, &nodes(store), now)).min()?;
    let wait = next.duration_since(now).unsigned_abs();
    Some(wait.clamp(CLOCK_INTERVAL, CLOCK_INTERVAL_MAX))
}

/// Retires pods that their nodes drive out.
fn drive_out(store: &mut Store, reported: &Mirror, now: &str) -> Result<bool, StoreError> {
    let time = now.parse().unwrap_or_else(|_| Timestamp::now());
    let pods = driven_out::pods(store, reported, &nodes(store), time);
    for pod in &pods {
        tracing::info!(%pod, "a pod does not tolerate a taint of its node, and goes");
        store.retire(pod, now)?;
    }
    Ok(!pods.is_empty())
}

/// Creates and retires the pods of all objects that have a template of pods.
fn roll_out(store: &mut Store, reported: &Mirror, now: &str) -> Result<bool, StoreError> {
    let time = now.parse().unwrap_or_else(|_| Timestamp::now());
    let nodes = nodes(store);
    let mut changed = false;
    // Before Jobs that are not kept vanish.
    for (object, value) in all(store, Kind::CronJob) {
        let action = cron_jobs::act(&object, &value, store, time);
        changed |= carry_out(store, &object, action, now)?;
    }
    changed |= remove_expired(store, time, now)?;
    for kind in Kind::all().filter(|kind| kind.has_pod_template()) {
        for (object, value) in all(store, kind) {
            let action = action(kind, &object, &value, (&*store, reported), &nodes, time);
            changed |= carry_out(store, &object, action, now)?;
        }
    }
    Ok(changed)
}

/// Says how many pods may still be evicted.
fn judge_budgets(store: &mut Store, reported: &Mirror, now: &str) -> Result<bool, StoreError> {
    let mut changed = false;
    for (object, mut value) in all(store, Kind::PodDisruptionBudget) {
        let status = budgets::status(&object, &value, store, reported, now);
        if value.get("status") != Some(&status) {
            value["status"] = status;
            store.write(object, value, now)?;
            changed = true;
        }
    }
    Ok(changed)
}

fn all(store: &Store, kind: Kind) -> Vec<(ObjectRef, Value)> {
    let all = store.of_plural(kind.plural());
    all.map(|(object, value)| (object.clone(), value.clone())).collect()
}

/// Jobs that have been over for as long as they want to be kept.
fn remove_expired(store: &mut Store, time: Timestamp, now: &str) -> Result<bool, StoreError> {
    let jobs = store.of_plural(Kind::Job.plural());
    let expired = jobs.filter(|(_, value)| jobs::is_expired(value, time));
    let expired: Vec<ObjectRef> = expired.map(|(object, _)| object.clone()).collect();
    for object in &expired {
        store.retire(object, now)?;
    }
    Ok(!expired.is_empty())
}

fn nodes(store: &Store) -> Vec<NodeView> {
    store.of_plural("nodes").map(|(_, value)| NodeView::of(value)).collect()
}

fn action(
    kind: Kind,
    object: &ObjectRef,
    value: &Value,
    (store, reported): (&Store, &Mirror),
    nodes: &[NodeView],
    time: Timestamp,
) -> Action {
    let revision_label = match kind {
        Kind::Job => None,
        Kind::Deployment => Some(rollout::TEMPLATE_HASH),
        _ => Some(stateful::REVISION),
    };
    let owner = Owner::new(object, value, revision_label);
    let pods = owner.pods(store, reported);
    match kind {
        Kind::StatefulSet => stateful::act(value, &owner, &pods),
        Kind::DaemonSet => daemon::act(value, &owner, &pods, nodes),
        Kind::Job => jobs::act(value, &owner, &pods, time),
        _ => rollout::act(value, &owner, &pods),
    }
}

/// Does what a controller wants for one object.
fn carry_out(
    store: &mut Store,
    object: &ObjectRef,
    action: Action,
    now: &str,
) -> Result<bool, StoreError> {
    let Action { claims, kept_by, create, retire, mut status } = action;
    let mut changed = !retire.is_empty();
    // Before the pods go that take claims along.
    for KeptBy { claim, owner, candidates } in kept_by {
        let there = store.object(&claim);
        let other = there.and_then(|it| claims::with_owner(it, owner.as_ref(), &candidates));
        if let Some(value) = other {
            store.write(claim, value, now)?;
            changed = true;
        }
    }
    for pod in &retire {
        store.retire(pod, now)?;
    }
    for (claim, value) in claims {
        // One that was there before is kept, with what it holds.
        if store.object(&claim).is_none() {
            store.write(claim, value, now)?;
            changed = true;
        }
    }
    for (pod, value) in create {
        if store.object(&pod).is_some() {
            // Somebody else's: it is not theirs to take, and the next one waits.
            status = with_condition(status, &format!("pods {:?} already exists", pod.name));
            continue;
        }
        store.write(pod, value, now)?;
        changed = true;
    }
    let Some(mut value) = store.object(object).cloned() else { return Ok(changed) };
    if value.get("status") == Some(&status) {
        return Ok(changed);
    }
    value["status"] = status;
    store.write(object.clone(), value, now)?;
    Ok(true)
}

/// Says that a pod cannot be created, as a ReplicaSet does.
fn with_condition(mut status: Value, message: &str) -> Value {
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|it| it["type"] != "ReplicaFailure");
    conditions.push(json!({
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message,
    }));
    status["conditions"] = json!(conditions);
    status
}

fn place(store: &mut Store, now: &str) -> Result<bool, StoreError> {
    let nodes = nodes(store);
    let pods = store.of_plural("pods");
    let (there, open): (Vec<_>, Vec<_>) = pods
        .map(|(object, value)| (object.clone(), is_placed(value), decode::<Pod>(value)))
        .partition(|(_, is_placed, _)| *is_placed);
    let mut placed: Vec<schedule::Placed> =
        there.iter().filter_map(|(.., pod)| schedule::Placed::of(pod)).collect();
    let mut changed = false;
    for (object, _, pod) in open {
        let obstacle = store.object(&object).and_then(|it| claims::obstacle(store, &object, it));
        let verdict = match obstacle {
            Some(why) => Err(why),
            None => schedule::place(&pod, &nodes, &placed).map_err(|why| why.to_string()),
        };
        changed |= write_placement(store, &object, &verdict, now)?;
        if let Ok(node) = verdict {
            placed.extend(schedule::Placed::on(&pod, node));
        }
    }
    Ok(changed)
}

/// Whether a pod has been given its node. One that names its node itself still has to be.
fn is_placed(pod: &Value) -> bool {
    pod.pointer("/spec/nodeName").is_some() && text(pod, "/status/conditions/0/status") == "True"
}

fn write_placement(
    store: &mut Store,
    object: &ObjectRef,
    verdict: &Result<String, String>,
    now: &str,
) -> Result<bool, StoreError> {
    let Some(mut value) = store.object(object).cloned() else { return Ok(false) };
    let condition = match verdict {
        Ok(node) => {
            value["spec"]["nodeName"] = json!(node);
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now})
        }
        Err(why) => json!({
            "type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": why,
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

/// The machine's own objects: the namespaces that every cluster has.
pub(crate) fn initial_objects() -> Vec<Value> {
    let namespace =
        |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    BUILT_IN_NAMESPACES.into_iter().map(namespace).collect()
}
