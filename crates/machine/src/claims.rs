//! PersistentVolumeClaims: each is given a volume of its own at once.
//!
//! A volume is memory, as the other volumes that pods can write are: bounded, never on a disk, and
//! gone with the machine whatever ends it. It outlives pods, but not its claim. Process 1 mounts it
//! in the machine's mount namespace; the pods' inits take it from there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use ambit_manifest::quantity;
use ambit_net::sys::mount::{self, MountOptions};
use ambit_words::error_chain;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use crate::controller::{decode, text};
use crate::layout::Layout;
use crate::node::memory;
use crate::objects::{Kind, ObjectRef, Store, StoreError};

/// The class that claims are of which do not say: the name of what there is.
const CLASS: &str = "ambit";
/// Most claims that have a volume.
const CLAIMS_MAX: usize = 1000;
/// What everybody may do with a volume, as local-path provisioners have it.
const MODE: u32 = 0o777;
/// No devices of anybody, and no privileges.
const OPTIONS: MountOptions =
    MountOptions { read_only: false, no_suid: true, no_dev: true, no_exec: false };

/// Makes the volumes of new claims, says so in their status, and lets go of volumes whose claim is
/// gone: a pod keeps the volume that it has. Answers whether a claim has changed.
pub(crate) fn bind(store: &mut Store, now: &str) -> Result<bool, StoreError> {
    let layout = store.layout();
    let claims = || store.of_plural(Kind::PersistentVolumeClaim.plural());
    let there = let_go(layout, claims().map(|(_, value)| text(value, "/metadata/uid")).collect());
    let open = claims().filter(|(_, value)| text(value, "/status/phase") != "Bound");
    let room = CLAIMS_MAX.saturating_sub(there);
    let bound = open.take(room).filter_map(|(object, value)| {
        let made = ensure(layout, value);
        made.inspect_err(|error| {
            let (claim, error) = (object.to_string(), error_chain(error));
            tracing::error!(claim, error, "cannot make a claim's volume");
        })
        .ok()?;
        Some((object.clone(), bound(value)))
    });
    let bound: Vec<(ObjectRef, Value)> = bound.collect();
    let changed = !bound.is_empty();
    for (object, value) in bound {
        store.write(object, value, now)?;
    }
    Ok(changed)
}

/// Lets go of all volumes but those of these claims; how many there are then.
fn let_go(layout: &Layout, wanted: BTreeSet<&str>) -> usize {
    let entries = fs::read_dir(layout.claims()).into_iter().flatten().flatten();
    let (kept, gone): (Vec<_>, Vec<_>) = entries
        .map(|entry| entry.path())
        .partition(|path| path.file_name().is_some_and(|it| wanted.iter().any(|uid| it == *uid)));
    for path in gone {
        if let Err(error) = mount::unmount(&path).and_then(|()| fs::remove_dir(&path)) {
            tracing::warn!(path = %path.display(), %error, "cannot remove a claim's volume");
        }
    }
    kept.len()
}

/// Makes the volume of a claim, unless it is there.
fn ensure(layout: &Layout, claim: &Value) -> io::Result<()> {
    let path = layout.claim(text(claim, "/metadata/uid"));
    fs::create_dir_all(&path)?;
    // A directory alone, as a failure may leave it, is none: its device is that of the others.
    if fs::metadata(&path)?.dev() != fs::metadata(layout.claims())?.dev() {
        return Ok(());
    }
    mount::tmpfs(&path, size_bytes(claim), MODE, OPTIONS)
}

/// As much as is claimed, but not more than half of the memory.
fn size_bytes(claim: &Value) -> u64 {
    claimed(claim).unwrap_or(u64::MAX).min(memory::total_bytes() / 2)
}

fn claimed(claim: &Value) -> Option<u64> {
    quantity(text(claim, "/spec/resources/requests/storage"), 0)
}

fn bound(claim: &Value) -> Value {
    let mut claim = claim.clone();
    claim["spec"]["volumeName"] = json!(format!("pvc-{}", text(&claim, "/metadata/uid")));
    let size = size_bytes(&claim);
    // As it is written, unless that is more than there is.
    let storage = match claimed(&claim) == Some(size) {
        true => text(&claim, "/spec/resources/requests/storage").to_owned(),
        false => size.to_string(),
    };
    claim["status"] = json!({
        "phase": "Bound", "accessModes": claim["spec"]["accessModes"],
        "capacity": {"storage": storage},
    });
    claim
}

/// Completes a claim, or says which field is not as it was.
pub(crate) fn complete(claim: &mut Value, old: Option<&Value>) -> Result<(), &'static str> {
    for (field, value) in [("storageClassName", CLASS), ("volumeMode", "Filesystem")] {
        if claim["spec"].get(field).is_none_or(|it| it == "") {
            claim["spec"][field] = json!(value);
        }
    }
    let Some(old) = old else {
        claim["status"] = json!({"phase": "Pending"});
        return Ok(());
    };
    let spec = |claim: &Value| decode::<PersistentVolumeClaim>(claim).spec.unwrap_or_default();
    let (is, was) = (spec(claim), spec(old));
    if is.access_modes != was.access_modes {
        return Err("spec.accessModes");
    } else if claimed(claim) != claimed(old) {
        return Err("spec.resources");
    } else if is.storage_class_name != was.storage_class_name {
        return Err("spec.storageClassName");
    }
    claim["spec"].clone_from(&old["spec"]);
    claim["status"].clone_from(&old["status"]);
    Ok(())
}

/// The claims that the pod of this ordinal of a StatefulSet has, and the volumes that name them.
pub(crate) fn of_set(
    set: &ObjectRef,
    value: &Value,
    ordinal: u32,
) -> (Vec<(ObjectRef, Value)>, Vec<Value>) {
    let templates = value.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    let made = templates.into_iter().flatten().map(|template| {
        let volume = text(template, "/metadata/name");
        let name = format!("{volume}-{}-{ordinal}", set.name);
        let object = ObjectRef { name: name.clone(), ..of_kind(set) };
        let mut labels = value.pointer("/spec/selector/matchLabels").cloned();
        let own = template.pointer("/metadata/labels").and_then(Value::as_object);
        if let (Some(labels), Some(own)) = (labels.as_mut().and_then(Value::as_object_mut), own) {
            labels.extend(own.clone());
        }
        let mut claim = json!({
            "apiVersion": "v1", "kind": Kind::PersistentVolumeClaim.name(),
            "metadata": {
                "name": name, "namespace": set.namespace, "labels": labels,
                "annotations": template["metadata"]["annotations"],
            },
            "spec": template["spec"],
        });
        // It is new, so that nothing of it can be other than it was.
        let _complete = complete(&mut claim, None);
        let volume = json!({"name": volume, "persistentVolumeClaim": {"claimName": name}});
        ((object, claim), volume)
    });
    made.unzip()
}

fn of_kind(set: &ObjectRef) -> ObjectRef {
    ObjectRef::new(Kind::PersistentVolumeClaim, set.namespace.as_deref(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> Value {
        json!({"metadata": {"name": "data", "namespace": "n", "uid": "u"}, "spec": spec})
    }

    #[test]
    fn what_is_claimed_stays_as_it_is() {
        let spec = json!({"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}});
        let mut old = claim(spec.clone());
        complete(&mut old, None).unwrap();
        assert_eq!(old["status"]["phase"], "Pending");
        assert_eq!(old["spec"]["storageClassName"], CLASS);
        let old = bound(&old);
        let mut again = claim(spec.clone());
        complete(&mut again, Some(&old)).unwrap();
        assert_eq!((&again["spec"], &again["status"]), (&old["spec"], &old["status"]));
        let mut huge = claim(spec.clone());
        huge["spec"]["resources"]["requests"]["storage"] = json!("100Pi");
        let half = (memory::total_bytes() / 2).to_string();
        assert_eq!(bound(&huge)["status"]["capacity"]["storage"], half);
        let mut same = spec.clone();
        same["resources"]["requests"]["storage"] = json!("1024Mi");
        assert_eq!(complete(&mut claim(same), Some(&old)), Ok(()), "it is as much");
        for (field, value, expected) in [
            ("accessModes", json!(["ReadWriteMany"]), "spec.accessModes"),
            ("resources", json!({"requests": {"storage": "2Gi"}}), "spec.resources"),
            ("storageClassName", json!("fast"), "spec.storageClassName"),
        ] {
            let mut changed = spec.clone();
            changed[field] = value;
            assert_eq!(complete(&mut claim(changed), Some(&old)), Err(expected));
        }
    }

    #[test]
    fn the_pods_of_a_set_have_claims_of_their_own() {
        let set = json!({"spec": {
            "selector": {"matchLabels": {"app": "db"}},
            "volumeClaimTemplates": [{
                "metadata": {"name": "data", "labels": {"tier": "x"}},
                "spec": {"accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}}},
            }],
        }});
        let object = ObjectRef::new(Kind::StatefulSet, Some("n"), "db");
        let (claims, volumes) = of_set(&object, &set, 2);
        let (of_claim, value) = &claims[0];
        assert_eq!(of_claim.to_string(), "PersistentVolumeClaim n/data-db-2");
        assert_eq!(value["metadata"]["labels"], json!({"app": "db", "tier": "x"}));
        assert_eq!(value["status"]["phase"], "Pending");
        let expected = json!([
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-2"}},
        ]);
        assert_eq!(json!(volumes), expected);
    }
}
