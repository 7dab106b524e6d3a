//! Writes the status of the ListenerSets that name a Gateway of ours.
//!
//! It says whether the Gateway takes the set, and how its listeners are. What is written already is
//! not looked at again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_manifest::gateway::listeners::judge_all;
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{Gateway, Position};
use ambit_manifest::waypoint::{Made, SetOf, set_status, set_without_gateway};
use ambit_manifest::{Kind, ObjectName};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{ApiError, answer};
use crate::registry::kubernetes::istio;
use crate::view_builder::store::Store;

/// What was written, each with the set that it was written of.
#[derive(Default)]
pub(super) struct Told(BTreeMap<ObjectName, (Arc<ListenerSet>, Value)>);

/// The sets of one Gateway.
pub(super) struct Sets {
    /// Those that name it.
    named: Vec<(ObjectName, Arc<ListenerSet>)>,
    /// Those that it takes, in their order.
    taken: Vec<Arc<ListenerSet>>,
}

impl Sets {
    /// The sets of a Gateway; only one at the edge takes any.
    pub(super) fn of(
        store: &Store,
        name: &ObjectName,
        gateway: &Gateway,
        position: Position,
    ) -> Self {
        let named = store.gateways().sets().of(name);
        let named = named.map(|(name, set)| (name.clone(), set.clone())).collect();
        let taken = match position {
            Position::Waypoint => Vec::new(),
            Position::Edge => store.taken_sets(name, gateway).into_iter().cloned().collect(),
        };
        Self { named, taken }
    }

    /// Those that it takes, in their order.
    pub(super) fn taken(&self) -> Vec<&ListenerSet> {
        self.taken.iter().map(|it| &**it).collect()
    }

    /// Writes the status of each set that names the Gateway, where it differs.
    pub(super) async fn tell(
        &self,
        client: &Client,
        manager: &str,
        (gateway, position, made): (&Gateway, Position, &Made),
        told: &mut Told,
    ) -> Result<(), ApiError> {
        let listeners = judge_all(&gateway.spec, &self.taken());
        let of = SetOf { gateway, position, listeners: &listeners, made };
        for (name, set) in &self.named {
            let verdict = set_status(set, &of, "");
            let known = told.0.get(name);
            if known.is_some_and(|(known, told)| known == set && *told == verdict) {
                continue;
            }
            let status = |set: &ListenerSet, now: &str| set_status(set, &of, now);
            match write(client, manager, (name, set), status).await {
                Ok(()) => drop(told.0.insert(name.clone(), (set.clone(), verdict))),
                // It is gone, or changes just now: then it is looked at again.
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    told.0.remove(name);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Sets of which something was told, and whose Gateway is gone.
pub(super) struct Orphans(Vec<(ObjectName, Arc<ListenerSet>)>);

impl Orphans {
    /// Says in their status that there is no Gateway.
    pub(super) async fn tell(self, client: &Client, manager: &str) -> Result<(), ApiError> {
        for (name, set) in &self.0 {
            match write(client, manager, (name, set), set_without_gateway).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Told {
    /// The sets whose Gateway is gone. Of those of which nothing was told the Gateway may have been
    /// another controller's.
    pub(super) fn orphans(&self, store: &Store) -> Orphans {
        let gateways = store.gateways();
        let told = self.0.keys().filter_map(|name| {
            let gateway = gateways.sets().gateway(name)?;
            let (name, set) = gateways.sets().of(gateway).find(|(it, _)| *it == name)?;
            let is_there = gateways.iter().any(|(it, _)| it == gateway);
            (!is_there).then(|| (name.clone(), set.clone()))
        });
        Orphans(told.collect())
    }

    /// Forgets the sets that are not there.
    pub(super) fn retain<'a>(&mut self, all: impl Iterator<Item = &'a Sets>) {
        let named = all.flat_map(|it| &it.named).map(|(name, _)| name);
        let named: BTreeSet<&ObjectName> = named.collect();
        self.0.retain(|name, _| named.contains(name));
    }
}

async fn write(
    client: &Client,
    manager: &str,
    (name, set): (&ObjectName, &ListenerSet),
    status: impl Fn(&ListenerSet, &str) -> Value,
) -> Result<(), ApiError> {
    let sets: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &name.namespace, &istio(Kind::ListenerSet));
    let Some(object) = answer(sets.get_opt(&name.name)).await? else { return Ok(()) };
    if object.metadata.uid != set.metadata.uid {
        return Ok(());
    }
    // Others have conditions there too: those of this moment are kept.
    let before = object.data.get("status").cloned();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let set = ListenerSet { status: before.clone(), ..set.clone() };
    let status = status(&set, &now);
    if before.as_ref() == Some(&status) {
        return Ok(());
    }
    let version = object.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
    let as_us = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    answer(sets.patch_status(&name.name, &as_us, &Patch::Merge(&patch))).await.map(drop)
}
