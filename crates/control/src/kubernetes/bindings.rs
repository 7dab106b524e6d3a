//! Says in the status of each Service, ServiceEntry and WorkloadEntry that names a waypoint whether
//! its requests go there: condition `istio.io/WaypointBound`, under Istio's reasons, and
//! [`CANARY_BOUND`] of the canary beside it. What names none has no such condition; other
//! conditions are left unchanged.

use std::collections::BTreeMap;

use ambit_manifest::canary::{Unfit, WHOLE};
use ambit_manifest::gateway::Unbound;
use ambit_manifest::istio::Resolution;
use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routing::ParentKind;
use ambit_manifest::{Kind, ObjectName};
use ambit_words::labels::USE_WAYPOINT;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::merged::{merged, now};
use super::{ApiError, FIELD_MANAGER, answer};
use crate::registry::kubernetes::istio;
use crate::view_builder::Builder;
use crate::view_builder::store::Binding;

/// Whether it has the waypoint that it names; istiod's for the same.
const BOUND: &str = "istio.io/WaypointBound";
/// Whether its canary gets a share of its connections. Istio says so only in a message of the
/// other one.
pub(crate) const CANARY_BOUND: &str = "ambit.io/WaypointCanaryBound";
/// A ServiceEntry that needs a waypoint and names none; istiod's for the same.
const MISSING: &str = "istio.io/WaypointMissing";
/// The types of all of them.
const OWN: [&str; 3] = [BOUND, CANARY_BOUND, MISSING];
/// Objects of one answer of the API server.
const PAGE: u32 = 500;
/// The kinds that name waypoints and have a status.
const KINDS: [Kind; 3] = [Kind::Service, Kind::ServiceEntry, Kind::WorkloadEntry];

/// Of which object.
type Named = (Kind, ObjectName);
/// What the objects' status says as far as is known: `None` for conditions that were there before
/// this replica led.
pub(super) type Bindings = BTreeMap<Named, Option<Vec<StatusCondition>>>;

/// What is to be said of the objects that name a waypoint.
pub(super) fn verdicts(builder: &Builder) -> BTreeMap<Named, Vec<StatusCondition>> {
    let store = builder.store();
    let services = store.services().filter_map(|(name, _)| {
        let binding = store.binding(&(ParentKind::Service, name.clone()))?;
        Some(((Kind::Service, name.clone()), verdict(&binding)))
    });
    let entries = store.service_entries().filter_map(|(name, entry)| {
        let binding = store.binding(&(ParentKind::ServiceEntry, name.clone()));
        let said = match binding {
            Some(binding) => verdict(&binding),
            None if entry.spec.resolution == Some(Resolution::DynamicDns) => vec![missing()],
            None => return None,
        };
        Some(((Kind::ServiceEntry, name.clone()), said))
    });
    let workloads = store.workload_entries().filter_map(|(name, _)| {
        let binding = store.binding_of_workload(name)?;
        Some(((Kind::WorkloadEntry, name.clone()), verdict(&binding)))
    });
    services.chain(entries).chain(workloads).collect()
}

fn verdict(binding: &Binding) -> Vec<StatusCondition> {
    let waypoint = full_name(&binding.waypoint);
    let primary = bound(&waypoint, binding.bound);
    let canary = binding.canary.as_ref().map(|(name, share)| {
        let (kind, canary) = (CANARY_BOUND, full_name(name));
        match share {
            Ok(share) => StatusCondition {
                kind,
                status: "True",
                reason: "WaypointAccepted",
                message: format!("{share} of {WHOLE} new connections go to waypoint {canary}"),
            },
            Err(unfit) => unfit_canary(&waypoint, &canary, *unfit),
        }
    });
    [primary].into_iter().chain(canary).collect()
}

fn full_name(name: &ObjectName) -> String {
    format!("{}/{}", name.namespace, name.name)
}

fn bound(waypoint: &str, binding: Result<(), Unbound>) -> StatusCondition {
    let kind = BOUND;
    let Err(unbound) = binding else {
        let message = format!("Successfully attached to waypoint {waypoint}");
        return StatusCondition { kind, status: "True", reason: "WaypointAccepted", message };
    };
    let message = format!(
        "the waypoint {waypoint} {}: new connections of captured clients are refused; {}",
        unbound.what(),
        unbound.remedy()
    );
    StatusCondition { kind, status: "False", reason: unbound.reason(), message }
}

fn unfit_canary(waypoint: &str, canary: &str, unfit: Unfit) -> StatusCondition {
    let message = format!(
        "the canary {canary} {}: all connections go to waypoint {waypoint}; {}",
        unfit.what(),
        unfit.remedy()
    );
    StatusCondition { kind: CANARY_BOUND, status: "False", reason: unfit.reason(), message }
}

fn missing() -> StatusCondition {
    let message = format!(
        "resolution DYNAMIC_DNS needs a waypoint, which looks up the name that a request asks for; \
         label it {USE_WAYPOINT}"
    );
    StatusCondition { kind: MISSING, status: "True", reason: "MissingUseWaypointLabel", message }
}

/// The objects that have such a condition already, for a replica that has just begun to lead.
pub(super) async fn found(client: &Client) -> Result<Bindings, ApiError> {
    let mut bindings = Bindings::new();
    for kind in KINDS {
        match find(client, kind, &mut bindings).await {
            // The cluster does not have the kind.
            Err(error) if error.is_not_found() && kind != Kind::Service => {}
            found => found?,
        }
    }
    Ok(bindings)
}

async fn find(client: &Client, kind: Kind, bindings: &mut Bindings) -> Result<(), ApiError> {
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = answer(objects.list(&page)).await?;
        for object in list.items {
            if conditions(&object).iter().any(|it| OWN.iter().any(|own| it["type"] == **own)) {
                bindings.insert((kind, ObjectName::of(&object.metadata)), None);
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Service => {
            let named = GroupVersionKind::gvk("", kind.api_versions()[0], kind.name());
            ApiResource::from_gvk_with_plural(&named, kind.plural())
        }
        _ => istio(kind),
    }
}

fn conditions(object: &DynamicObject) -> Vec<Value> {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions.cloned().unwrap_or_default()
}

/// Writes the conditions of one object, or removes them, if that differs from what is written.
pub(super) async fn write(
    client: &Client,
    (kind, name): &Named,
    wanted: &[StatusCondition],
) -> Result<(), ApiError> {
    let client = client.clone();
    let objects: Api<DynamicObject> =
        Api::namespaced_with(client, &name.namespace, &resource(*kind));
    let Some(object) = answer(objects.get_opt(&name.name)).await? else { return Ok(()) };
    let generation = object.metadata.generation.unwrap_or_default();
    let after = merged(&conditions(&object), &OWN, wanted, generation, &now());
    let Some(after) = after else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": object.metadata.resource_version },
        "status": { "conditions": after },
    });
    let as_us = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
    answer(objects.patch_status(&name.name, &as_us, &Patch::Merge(&patch))).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_says_whether_its_waypoint_takes_its_requests() {
        let waypoint = ObjectName::new("infra", "way");
        for (bound, status, reason) in [
            (Ok(()), "True", "WaypointAccepted"),
            (Err(Unbound::Missing), "False", "WaypointIsNotReady"),
            (Err(Unbound::NoWaypoint), "False", "WaypointIsNotReady"),
            (Err(Unbound::Forbidden), "False", "AttachmentDenied"),
            (Err(Unbound::OtherTraffic), "False", "UnsupportedTrafficType"),
        ] {
            let binding = Binding { waypoint: waypoint.clone(), bound, canary: None };
            let said = verdict(&binding);
            assert_eq!((said[0].status, said[0].reason), (status, reason));
            assert!(said[0].message.contains("infra/way"), "{}", said[0].message);
            assert_eq!(said.len(), 1);
        }
    }

    #[test]
    fn a_canary_says_what_it_gets_or_why_it_gets_nothing() {
        for (share, status, reason, part) in [
            (Ok(5), "True", "WaypointAccepted", "5 of 100 new connections"),
            (Err(Unfit::Weight), "False", "CanaryInvalidWeight", "whole number"),
            (Err(Unfit::SameAsPrimary), "False", "CanarySameAsPrimary", "all connections go to"),
            (Err(Unfit::Unbound(Unbound::Missing)), "False", "WaypointIsNotReady", "infra/two"),
        ] {
            let canary = Some((ObjectName::new("infra", "two"), share));
            let waypoint = ObjectName::new("infra", "one");
            let said = verdict(&Binding { waypoint, bound: Ok(()), canary });
            assert_eq!((said[0].kind, said[0].status), (BOUND, "True"));
            let canary = &said[1];
            assert_eq!((canary.kind, canary.status, canary.reason), (CANARY_BOUND, status, reason));
            assert!(canary.message.contains(part), "{}", canary.message);
        }
    }
}
