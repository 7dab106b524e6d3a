//! The ListenerSets of a machine: which of them a Gateway takes, and what their status says.
//!
//! On a machine there is no other controller: one whose Gateway does not exist is told so too.

use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{Gateway, Position};
use ambit_manifest::waypoint::{SetOf, set_status, set_without_gateway};
use serde_json::Value;

use super::super::decode;
use super::listeners::labels;
use crate::objects::{Kind, ObjectRef, Store, StoreError};

/// All ListenerSets, the one that comes first before the others.
pub(super) fn all(store: &Store) -> Vec<(ObjectRef, ListenerSet)> {
    let all = store.of_plural(Kind::ListenerSet.plural());
    let mut all: Vec<(ObjectRef, ListenerSet)> =
        all.map(|(object, value)| (object.clone(), decode(value))).collect();
    all.sort_by(|(_, one), (_, other)| one.order(other));
    all
}

/// Those that a Gateway takes, in their order.
pub(super) fn taken<'a>(
    store: &Store,
    object: &ObjectRef,
    (gateway, position): (&Gateway, Position),
    all: &'a [(ObjectRef, ListenerSet)],
) -> Vec<&'a ListenerSet> {
    if position == Position::Waypoint {
        return Vec::new();
    }
    let own = object.namespace.as_deref().unwrap_or_default();
    let taken = all.iter().filter(|(set, it)| {
        let namespace = set.namespace.as_deref().unwrap_or_default();
        names(it, object) && gateway.spec.takes_sets_of(own, namespace, &labels(store, namespace))
    });
    taken.map(|(_, set)| set).collect()
}

/// Writes the status of those that name a Gateway; answers whether anything changed.
pub(super) fn write_status(
    store: &mut Store,
    object: &ObjectRef,
    all: &[(ObjectRef, ListenerSet)],
    of: &SetOf<'_>,
    now: &str,
) -> Result<bool, StoreError> {
    let mut changed = false;
    for (set, it) in all.iter().filter(|(_, it)| names(it, object)) {
        changed |= write(store, set, it, set_status(it, of, now), now)?;
    }
    Ok(changed)
}

/// The same for those whose Gateway does not exist.
pub(super) fn without_gateway(
    store: &mut Store,
    all: &[(ObjectRef, ListenerSet)],
    now: &str,
) -> Result<bool, StoreError> {
    let mut changed = false;
    for (set, it) in all {
        let Some((namespace, name)) = it.gateway() else { continue };
        if store.object(&ObjectRef::new(Kind::Gateway, Some(namespace), name)).is_none() {
            changed |= write(store, set, it, set_without_gateway(it, now), now)?;
        }
    }
    Ok(changed)
}

/// Whether a set names this Gateway.
fn names(set: &ListenerSet, gateway: &ObjectRef) -> bool {
    let namespace = gateway.namespace.as_deref().unwrap_or_default();
    set.gateway() == Some((namespace, gateway.name.as_str()))
}

fn write(
    store: &mut Store,
    object: &ObjectRef,
    set: &ListenerSet,
    status: Value,
    now: &str,
) -> Result<bool, StoreError> {
    let Some(mut value) = store.object(object).cloned() else { return Ok(false) };
    if set.metadata.uid.is_none() || value.get("status") == Some(&status) {
        return Ok(false);
    }
    value["status"] = status;
    store.write(object.clone(), value, now)?;
    Ok(true)
}
