//! Changes other than apply: delete with its cascades, scale, restart, and the machine's own
//! writes.
//!
//! A pod is marked for deletion and removed when its node has stopped it; everything else is
//! removed at once, a namespace last. Nothing is removed that was neither named nor owned by a
//! named object.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::admit::{ApplyError, RESTARTED_AT_ANNOTATION, is_owned_by, is_terminating};
use super::autoscaler_fields::SCALABLE;
use super::store::{Draft, Settled, Store};
use super::{Change, Changes, Kind, ObjectRef, Outcome, StoreError, nodes};

/// Namespaces that cannot be deleted, as in Kubernetes. That of the mesh can.
const LASTING_NAMESPACES: [&str; 3] = ["default", "kube-public", "kube-system"];

impl Store {
    /// Deletes objects and what they own: all of them, or none and an error when one is not there.
    pub(crate) fn delete(
        &mut self,
        objects: &[ObjectRef],
        ignore_absent: bool,
        now: &str,
    ) -> Result<Changes, ApplyError> {
        let (settled, changes) = self.draft_delete(objects, ignore_absent, now)?;
        self.commit(settled)?;
        Ok(changes)
    }

    /// What [`Store::delete`] would do.
    pub(crate) fn would_delete(
        &self,
        objects: &[ObjectRef],
        ignore_absent: bool,
        now: &str,
    ) -> Result<Changes, ApplyError> {
        self.draft_delete(objects, ignore_absent, now).map(|(_, changes)| changes)
    }

    fn draft_delete(
        &self,
        objects: &[ObjectRef],
        ignore_absent: bool,
        now: &str,
    ) -> Result<(Settled, Changes), ApplyError> {
        let mut changes = Vec::new();
        let mut draft = self.draft();
        for object in objects {
            let is_own = |node: &Value| !nodes::is_joined(node);
            if object.plural == "nodes" && self.object(object).is_none_or(is_own) {
                return Err(ApplyError::Node { object: object.clone() });
            }
            if object.plural == "namespaces" && LASTING_NAMESPACES.contains(&object.name.as_str()) {
                return Err(ApplyError::LastingNamespace { object: object.clone() });
            }
            // The manifest's own namespace may have taken it along already.
            let named = |change: &Change| change.object == *object;
            if self.object(object).is_none() {
                if ignore_absent {
                    continue;
                }
                return Err(ApplyError::Absent { object: object.clone() });
            }
            if !changes.iter().any(named) {
                draft.delete(object, now, &mut changes);
            }
        }
        draft.remove_empty_namespaces();
        Ok((draft.settle(), Changes { changes, warnings: Vec::new() }))
    }

    /// Sets the replicas of a Deployment or StatefulSet.
    pub(crate) fn scale(
        &mut self,
        object: &ObjectRef,
        replicas: u32,
        now: &str,
    ) -> Result<Changes, ApplyError> {
        let value = self.scaled(object, replicas)?;
        self.write(object.clone(), value, now)?;
        Ok(configured(object))
    }

    /// What [`Store::scale`] would make of the object.
    pub(crate) fn scaled(&self, object: &ObjectRef, replicas: u32) -> Result<Value, ApplyError> {
        if !SCALABLE.map(Kind::plural).contains(&&*object.plural) {
            return Err(ApplyError::Unscalable { object: object.clone() });
        }
        Draft::refuse(Kind::Deployment, object, &json!({"spec": {"replicas": replicas}}))?;
        let mut value = self.present(object)?;
        value["spec"]["replicas"] = json!(replicas);
        Ok(value)
    }

    /// Restarts the pods of an object, a few at a time.
    pub(crate) fn restart(&mut self, object: &ObjectRef, now: &str) -> Result<Changes, ApplyError> {
        let rolls = [Kind::Deployment, Kind::StatefulSet, Kind::DaemonSet].map(Kind::plural);
        if !rolls.contains(&&*object.plural) {
            return Err(ApplyError::Unrestartable { object: object.clone() });
        }
        let mut value = self.present(object)?;
        let template = &mut value["spec"]["template"]["metadata"];
        template["annotations"][RESTARTED_AT_ANNOTATION] = json!(now);
        self.write(object.clone(), value, now)?;
        Ok(configured(object))
    }

    /// A copy of an object that must be there.
    fn present(&self, object: &ObjectRef) -> Result<Value, ApplyError> {
        let absent = || ApplyError::Absent { object: object.clone() };
        self.object(object).cloned().ok_or_else(absent)
    }

    /// Writes one object unchanged: for objects that the machine itself makes (nodes, pods,
    /// status).
    pub(crate) fn write(
        &mut self,
        object: ObjectRef,
        value: Value,
        now: &str,
    ) -> Result<(), StoreError> {
        let mut draft = self.draft();
        draft.put(object, value, now);
        let settled = draft.settle();
        self.commit(settled)
    }

    /// Has an object go away, a pod by its node, with what it owns.
    pub(crate) fn retire(&mut self, object: &ObjectRef, now: &str) -> Result<(), StoreError> {
        let mut draft = self.draft();
        draft.delete(object, now, &mut Vec::new());
        let settled = draft.settle();
        self.commit(settled)
    }

    /// Removes pods that are gone from their nodes, with the claims that go with them, and
    /// namespaces that were waiting for them.
    pub(crate) fn remove_gone(&mut self, gone: &[ObjectRef]) -> Result<(), StoreError> {
        let mut draft = self.draft();
        let pods: Vec<&Value> = gone.iter().filter_map(|it| self.object(it)).collect();
        let claims = draft.claims_of(&pods.into_iter().map(uid).collect());
        for object in gone.iter().chain(&claims) {
            draft.remove(object.clone());
        }
        draft.remove_empty_namespaces();
        if draft.is_empty() {
            return Ok(());
        }
        let settled = draft.settle();
        self.commit(settled)
    }
}

fn configured(object: &ObjectRef) -> Changes {
    let change = Change { object: object.clone(), outcome: Outcome::Configured };
    Changes { changes: vec![change], warnings: Vec::new() }
}

impl Draft<'_> {
    fn delete(&mut self, object: &ObjectRef, now: &str, changes: &mut Vec<Change>) {
        let Some(value) = self.object(object) else { return };
        // A pod that no node has taken on needs nobody to take it down.
        let runs = object.plural == "pods" && value.pointer("/spec/nodeName").is_some();
        let owned = match object.plural.as_str() {
            "pods" if !runs => self.claims_of(&BTreeSet::from([uid(value)])),
            "namespaces" => self.contents(&object.name),
            "gateways" | "cronjobs" => self.owned_by(uid(value)),
            plural if Kind::from_plural(plural).is_some_and(Kind::has_pod_template) => {
                self.owned_by(uid(value))
            }
            "nodes" => return self.delete_node(object.clone(), changes),
            _ => Vec::new(),
        };
        if !is_terminating(value) {
            changes.push(Change { object: object.clone(), outcome: Outcome::Deleted });
        }
        if runs || object.plural == "namespaces" {
            self.mark_deleted(object, now);
        } else {
            self.remove(object.clone());
        }
        for object in owned {
            self.delete(&object, now, changes);
        }
    }

    /// Removes another machine's node, with its pods: nobody is there who could take them down.
    fn delete_node(&mut self, node: ObjectRef, changes: &mut Vec<Change>) {
        let is_there = |(object, value): &(&ObjectRef, &Value)| {
            object.plural == "pods" && value.pointer("/spec/nodeName") == Some(&json!(node.name))
        };
        let pods: Vec<ObjectRef> =
            self.iter().filter(is_there).map(|(object, _)| object.clone()).collect();
        for object in std::iter::once(node).chain(pods) {
            changes.push(Change { object: object.clone(), outcome: Outcome::Deleted });
            self.remove(object);
        }
    }

    fn contents(&self, namespace: &str) -> Vec<ObjectRef> {
        let inside = |object: &&ObjectRef| object.namespace.as_deref() == Some(namespace);
        self.iter().map(|(object, _)| object).filter(inside).cloned().collect()
    }

    /// The claims that go with pods of these uids.
    fn claims_of(&self, pods: &BTreeSet<&str>) -> Vec<ObjectRef> {
        let claims = Kind::PersistentVolumeClaim.plural();
        let goes_along = |value: &Value| {
            let owners = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            let mut owners = owners.into_iter().flatten();
            owners.any(|it| it["uid"].as_str().is_some_and(|uid| pods.contains(uid)))
        };
        let claims = self.iter().filter(|(it, value)| it.plural == claims && goes_along(value));
        claims.map(|(object, _)| object.clone()).collect()
    }

    fn owned_by(&self, owner: &str) -> Vec<ObjectRef> {
        self.iter()
            .filter(|(_, value)| is_owned_by(value, owner))
            .map(|(object, _)| object.clone())
            .collect()
    }

    /// Namespaces that are going away and hold nothing any more are gone.
    fn remove_empty_namespaces(&mut self) {
        let terminating = |(object, value): &(&ObjectRef, &Value)| {
            object.plural == "namespaces" && is_terminating(value)
        };
        let names: Vec<ObjectRef> =
            self.iter().filter(terminating).map(|(object, _)| object.clone()).collect();
        for namespace in names {
            if self.contents(&namespace.name).is_empty() {
                self.remove(namespace);
            }
        }
    }
}

fn uid(value: &Value) -> &str {
    value.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default()
}
