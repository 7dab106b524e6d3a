//! PersistentVolumeClaims: each is given a volume of its own at once.
//!
//! A volume is memory, as the other volumes that pods can write are: bounded, never on a disk, and
//! gone with the machine whatever ends it. It outlives pods, but not its claim. Process 1 mounts it
//! in the machine's mount namespace; the pods' inits take it from there.

use std::collections::BTreeMap;
use std::fs;
use std::io;

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
/// What everybody may do with a volume, as local-path provisioners have it.
const MODE: u32 = 0o777;
/// No devices of anybody, and no privileges.
const OPTIONS: MountOptions =
    MountOptions { read_only: false, no_suid: true, no_dev: true, no_exec: false };

/// Makes the volumes of new claims and lets go of those whose claim is gone; whether any was made.
/// A pod keeps the volume that it has.
pub(crate) fn keep(layout: &Layout, store: &Store) -> bool {
    let claims = store.of_plural(Kind::PersistentVolumeClaim.plural());
    let wanted: BTreeMap<&str, &Value> =
        claims.map(|(_, value)| (text(value, "/metadata/uid"), value)).collect();
    let there = fs::read_dir(layout.claims()).into_iter().flatten().flatten();
    for entry in there {
        let is_wanted = entry.file_name().to_str().is_some_and(|uid| wanted.contains_key(uid));
        let path = entry.path();
        if !is_wanted && let Err(error) = mount::unmount(&path).and_then(|()| fs::remove_dir(&path))
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a claim's volume");
        }
    }
    let missing = wanted.iter().filter(|(uid, _)| !layout.claim(uid).exists());
    let make = |(uid, value): (&&str, &&Value)| {
        make(layout, uid, value)
            .inspect_err(|error| {
                let (claim, error) = (text(value, "/metadata/name"), error_chain(error));
                tracing::error!(claim, error, "cannot make a claim's volume");
            })
            .is_ok()
    };
    // Each is tried.
    missing.map(make).fold(false, |any, made| any | made)
}

fn make(layout: &Layout, uid: &str, value: &Value) -> io::Result<()> {
    let (path, aside) = (layout.claim(uid), layout.root().join("claim.new"));
    // It is there only when it is whole.
    fs::create_dir_all(layout.claims())?;
    fs::create_dir_all(&aside)?;
    let made = mount::tmpfs(&aside, size_bytes(value), MODE, OPTIONS).and_then(|()| {
        let tree = mount::detached(&aside)?;
        mount::unmount(&aside)?;
        fs::create_dir(&path)?;
        mount::attach(tree, mount::open_path(&path)?).inspect_err(|_| {
            // Empty: nothing but this made it.
            let _left = fs::remove_dir(&path);
        })
    });
    made.and(fs::remove_dir(&aside))
}

/// As much as is claimed, but not more than half of the memory.
fn size_bytes(value: &Value) -> u64 {
    let claimed = quantity(text(value, "/spec/resources/requests/storage"), 0);
    claimed.unwrap_or(u64::MAX).min(memory::total_bytes() / 2)
}

/// Says of each claim whether it has its volume. Answers whether anything changed.
pub(crate) fn bind(store: &mut Store, now: &str) -> Result<bool, StoreError> {
    let claims = store.of_plural(Kind::PersistentVolumeClaim.plural());
    let open = claims.filter_map(|(object, value)| {
        let uid = text(value, "/metadata/uid");
        let is_open = text(value, "/status/phase") != "Bound" && store.layout().claim(uid).exists();
        is_open.then(|| (object.clone(), bound(value)))
    });
    let open: Vec<(ObjectRef, Value)> = open.collect();
    let changed = !open.is_empty();
    for (object, value) in open {
        store.write(object, value, now)?;
    }
    Ok(changed)
}

fn bound(claim: &Value) -> Value {
    let mut claim = claim.clone();
    claim["spec"]["volumeName"] = json!(format!("pvc-{}", text(&claim, "/metadata/uid")));
    let storage = claim.pointer("/spec/resources/requests/storage").cloned();
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
    } else if is.resources != was.resources {
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
