//! Says in the status of each Service that names a waypoint whether its requests go there:
//! condition `istio.io/WaypointBound`, under Istio's reasons. A Service that names none has no such
//! condition; other conditions are left unchanged.

use std::collections::BTreeMap;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::Unbound;
use ambit_manifest::policy::StatusCondition;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{ApiError, FIELD_MANAGER, answer};
use crate::view_builder::Builder;
use crate::view_builder::gateways::Naming;

/// The condition's type; istiod's for the same.
const TYPE: &str = "istio.io/WaypointBound";
/// Services of one answer of the API server.
const PAGE: u32 = 500;

/// What the Services' status says as far as is known: `None` for a condition that was there before
/// this replica led.
pub(super) type Bindings = BTreeMap<ObjectName, Option<StatusCondition>>;

/// What is to be said of the Services that name a waypoint.
pub(super) fn verdicts(builder: &Builder) -> BTreeMap<ObjectName, StatusCondition> {
    let store = builder.store();
    let verdicts = store.services().filter_map(|(name, record)| {
        let labels = record.object.metadata.labels.clone().unwrap_or_default();
        let of_namespace = store.namespace(&name.namespace).labels;
        let naming = Naming {
            namespace: &name.namespace,
            labels: &labels,
            of_namespace: &of_namespace,
            is_workload: false,
        };
        let (_, waypoint, binding) = store.gateways().named(&naming)?;
        Some((name.clone(), verdict(&waypoint, binding)))
    });
    verdicts.collect()
}

fn verdict(waypoint: &ObjectName, binding: Result<(), Unbound>) -> StatusCondition {
    let waypoint = format!("{}/{}", waypoint.namespace, waypoint.name);
    let Err(unbound) = binding else {
        let message = format!("Successfully attached to waypoint {waypoint}");
        return StatusCondition { kind: TYPE, status: "True", reason: "WaypointAccepted", message };
    };
    let reason = match unbound {
        Unbound::Missing | Unbound::NoWaypoint => "WaypointIsNotReady",
        Unbound::Forbidden => "AttachmentDenied",
        Unbound::OtherTraffic => "UnsupportedTrafficType",
    };
    let message = format!(
        "the waypoint {waypoint} {}: new connections of captured clients are refused; {}",
        unbound.what(),
        unbound.remedy()
    );
    StatusCondition { kind: TYPE, status: "False", reason, message }
}

/// The Services that have the condition already, for a replica that has just begun to lead.
pub(super) async fn found(client: &Client) -> Result<Bindings, ApiError> {
    let services: Api<Service> = Api::all(client.clone());
    let mut bindings = Bindings::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = answer(services.list(&page)).await?;
        for service in list.items {
            let status = service.status.unwrap_or_default();
            if status.conditions.unwrap_or_default().iter().any(|it| it.type_ == TYPE) {
                let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
                let name = service.metadata.name.as_deref().unwrap_or_default();
                bindings.insert(ObjectName::new(namespace, name), None);
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(bindings),
        }
    }
}

/// Writes the condition of one Service, or removes it, if that differs from what is written.
pub(super) async fn write(
    client: &Client,
    name: &ObjectName,
    condition: Option<&StatusCondition>,
) -> Result<(), ApiError> {
    let services: Api<Service> = Api::namespaced(client.clone(), &name.namespace);
    let Some(service) = answer(services.get_opt(&name.name)).await? else { return Ok(()) };
    let before = service.status.unwrap_or_default().conditions.unwrap_or_default();
    let before = serde_json::to_value(before).expect("conditions are JSON");
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let generation = service.metadata.generation.unwrap_or_default();
    let Some(after) = merged(&before, condition, generation, &now) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": service.metadata.resource_version },
        "status": { "conditions": after },
    });
    let as_us = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    answer(services.patch_status(&name.name, &as_us, &Patch::Merge(&patch))).await.map(drop)
}

/// The conditions as they should be, unless they are so. The time of one that did not change stays.
fn merged(
    before: &Value,
    condition: Option<&StatusCondition>,
    generation: i64,
    now: &str,
) -> Option<Vec<Value>> {
    let mut after = before.as_array().cloned().unwrap_or_default();
    let own = after.iter().position(|it| it["type"] == TYPE).map(|index| after.remove(index));
    let Some(condition) = condition else { return own.map(|_| after) };
    let is_told = |it: &Value| {
        it["status"] == condition.status
            && it["reason"] == condition.reason
            && it["message"] == condition.message
    };
    if own.as_ref().is_some_and(is_told) {
        return None;
    }
    let same = own.filter(|it| it["status"] == condition.status);
    let since = same.map_or_else(|| json!(now), |it| it["lastTransitionTime"].clone());
    after.push(json!({
        "type": TYPE,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }));
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_says_whether_its_waypoint_takes_its_requests() {
        let way = ObjectName::new("infra", "way");
        for (binding, status, reason) in [
            (Ok(()), "True", "WaypointAccepted"),
            (Err(Unbound::Missing), "False", "WaypointIsNotReady"),
            (Err(Unbound::NoWaypoint), "False", "WaypointIsNotReady"),
            (Err(Unbound::Forbidden), "False", "AttachmentDenied"),
            (Err(Unbound::OtherTraffic), "False", "UnsupportedTrafficType"),
        ] {
            let condition = verdict(&way, binding);
            assert_eq!((condition.status, condition.reason), (status, reason));
            assert!(condition.message.contains("infra/way"), "{}", condition.message);
        }
    }

    #[test]
    fn conditions_of_others_and_times_of_what_did_not_change_stay() {
        let other = json!({"type": "LoadBalancerReady", "status": "True"});
        let way = ObjectName::new("infra", "way");
        let (bound, missing) = (verdict(&way, Ok(())), verdict(&way, Err(Unbound::Missing)));
        let first = merged(&json!([other]), Some(&bound), 0, "t1").expect("it is new");
        assert_eq!((first.len(), &first[0]), (2, &other));
        assert_eq!(first[1]["lastTransitionTime"], "t1");
        assert_eq!(merged(&json!(first), Some(&bound), 0, "t2"), None, "nothing changed");
        let second = merged(&json!(first), Some(&missing), 0, "t2").expect("it changed");
        assert_eq!(second[1]["lastTransitionTime"], "t2");
        let denied = verdict(&way, Err(Unbound::Forbidden));
        let third = merged(&json!(second), Some(&denied), 0, "t3").expect("its reason changed");
        assert_eq!(third[1]["lastTransitionTime"], "t2");
        assert_eq!(merged(&json!(third), None, 0, "t4"), Some(vec![other.clone()]));
        assert_eq!(merged(&json!([other]), None, 0, "t5"), None, "there was none");
    }
}
