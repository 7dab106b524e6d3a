//! PersistentVolumeClaims: each is given a volume of its own at once. Those of StatefulSets, and of
//! volumes that pods bring along, are made here.
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
use crate::objects::{Kind, ObjectRef, Store, StoreError, is_owned_by};

/// The class that claims are of which do not say: the name of what there is.
const CLASS: &str = "ambit";
/// Longest name of a claim: with its ending it must still be that of a file.
const NAME_LEN_MAX: usize = 250;
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

/// Makes the claims of the volumes that pods bring along (`ephemeral`). Answers whether one is new.
/// As in Kubernetes it belongs to its pod, and one that is there is not touched, whose ever it is.
pub(crate) fn of_pods(store: &mut Store, now: &str) -> Result<bool, StoreError> {
    let pods = store.of_plural(Kind::Pod.plural());
    let pods = pods.filter(|(_, pod)| pod.pointer("/metadata/deletionTimestamp").is_none());
    let wanted = pods.flat_map(|(object, pod)| ephemeral(object, pod).map(move |it| (pod, it)));
    let missing = wanted.filter(|(_, (claim, _))| store.object(claim).is_none());
    let fits = |name: &str| name.len() <= NAME_LEN_MAX;
    let missing = missing.filter(|(_, (claim, _))| fits(&claim.name));
    let new: Vec<(ObjectRef, Value)> = missing
        .map(|(pod, (claim, template))| {
            let value = of_pod(&claim, pod, template);
            (claim, value)
        })
        .collect();
    let changed = !new.is_empty();
    for (claim, value) in new {
        store.write(claim, value, now)?;
    }
    Ok(changed)
}

/// The volumes that a pod brings along: each claim, and its template.
fn ephemeral<'a>(
    object: &'a ObjectRef,
    pod: &'a Value,
) -> impl Iterator<Item = (ObjectRef, &'a Value)> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().filter_map(|volume| {
        let template = volume.pointer("/ephemeral/volumeClaimTemplate")?;
        let name = name_of_pod(&object.name, text(volume, "/name"));
        let kind = Kind::PersistentVolumeClaim;
        Some((ObjectRef::new(kind, object.namespace.as_deref(), &name), template))
    })
}

/// How the claim of a volume is called that a pod brings along.
pub(crate) fn name_of_pod(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

fn of_pod(claim: &ObjectRef, pod: &Value, template: &Value) -> Value {
    let (name, uid) = (text(pod, "/metadata/name"), text(pod, "/metadata/uid"));
    let mut value = json!({
        "apiVersion": "v1", "kind": Kind::PersistentVolumeClaim.name(),
        "metadata": {
            "name": claim.name, "namespace": claim.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{
                "apiVersion": "v1", "kind": Kind::Pod.name(), "name": name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    });
    // It is new, so that nothing of it can be other than it was.
    let _complete = complete(&mut value, None);
    value
}

/// Why a pod cannot have a volume that it brings along.
pub(crate) fn obstacle(store: &Store, object: &ObjectRef, pod: &Value) -> Option<String> {
    let uid = text(pod, "/metadata/uid");
    ephemeral(object, pod).find_map(|(claim, _)| match store.object(&claim) {
        Some(there) if !is_owned_by(there, uid) => Some(format!(
            "{claim} was not created for this pod (pod is not owner); delete the claim, or rename \
             the volume or the pod"
        )),
        None if claim.name.len() > NAME_LEN_MAX => Some(format!(
            "the claim {:?} would have a name of more than {NAME_LEN_MAX} characters; shorten \
             that of the volume or of the pod",
            claim.name
        )),
        _ => None,
    })
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

/// The claim with its owner among those who could be it; `None` if it names that one already.
pub(crate) fn with_owner(
    claim: &Value,
    owner: Option<&Value>,
    candidates: &[String],
) -> Option<Value> {
    let before = claim.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let before: Vec<&Value> = before.into_iter().flatten().collect();
    let is_other = |it: &&&Value| candidates.iter().all(|uid| it["uid"] != uid.as_str());
    let kept = before.iter().filter(is_other).copied();
    let after: Vec<&Value> = kept.chain(owner).collect();
    if after == before {
        return None;
    }
    let mut claim = claim.clone();
    claim["metadata"]["ownerReferences"] = json!(after);
    Some(claim)
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
    let made = names_of_set(set, value, ordinal).map(|(template, object)| {
        let (volume, name) = (text(template, "/metadata/name"), object.name.clone());
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

/// The templates of a StatefulSet's claims, each with the claim of the pod of this ordinal.
pub(crate) fn names_of_set<'a>(
    set: &'a ObjectRef,
    value: &'a Value,
    ordinal: u32,
) -> impl Iterator<Item = (&'a Value, ObjectRef)> {
    let templates = value.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    templates.into_iter().flatten().map(move |template| {
        let name = format!("{}-{}-{ordinal}", text(template, "/metadata/name"), set.name);
        let kind = Kind::PersistentVolumeClaim;
        (template, ObjectRef::new(kind, set.namespace.as_deref(), &name))
    })
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
    fn a_claim_goes_with_one_of_those_who_could_keep_it() {
        let of = |uids: &[&str]| {
            let owners: Vec<Value> = uids.iter().map(|uid| json!({ "uid": uid })).collect();
            json!({"metadata": {"ownerReferences": owners}})
        };
        let candidates = ["set".to_owned(), "pod".to_owned()];
        let check = |before: &[&str], owner: Option<&str>, expected: Option<&[&str]>| {
            let owner = owner.map(|uid| json!({ "uid": uid }));
            let after = with_owner(&of(before), owner.as_ref(), &candidates);
            assert_eq!(after, expected.map(of), "{before:?}");
        };
        check(&[], None, None);
        check(&["other"], Some("set"), Some(&["other", "set"]));
        check(&["set"], Some("set"), None);
        check(&["set", "other"], Some("pod"), Some(&["other", "pod"]));
        check(&["pod"], None, Some(&[]));
    }

    #[test]
    fn a_pod_brings_claims_along() {
        let pod = json!({"metadata": {"name": "web", "uid": "u"}, "spec": {"volumes": [
            {"name": "empty", "emptyDir": {}},
            {"name": "data", "ephemeral": {"volumeClaimTemplate": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"accessModes": ["ReadWriteOnce"]},
            }}},
        ]}});
        let object = ObjectRef::new(Kind::Pod, Some("n"), "web");
        let made: Vec<(ObjectRef, &Value)> = ephemeral(&object, &pod).collect();
        assert_eq!(made.len(), 1);
        let (claim, template) = &made[0];
        assert_eq!(claim.to_string(), "PersistentVolumeClaim n/web-data");
        let value = of_pod(claim, &pod, template);
        assert!(is_owned_by(&value, "u"));
        assert_eq!(value["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(value["spec"]["storageClassName"], CLASS);
        assert_eq!(value["status"]["phase"], "Pending");
    }

    #[test]
    fn the_claim_of_somebody_else_is_not_taken() {
        const NOW: &str = "2026-01-31T12:00:00Z";
        let root = tempfile::tempdir().unwrap();
        let mut store = Store::create(Layout::new(root.path())).unwrap();
        let named = |kind: Kind, name: &str| ObjectRef::new(kind, Some("n"), name);
        let pod = |name: &str, volume: &str| {
            let volume = json!({"name": volume, "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Mi"}},
            }}}});
            json!({"metadata": {"name": name}, "spec": {"volumes": [volume]}})
        };
        let (claims, pods) = (Kind::PersistentVolumeClaim, Kind::Pod);
        store.write(named(claims, "b-data"), claim(json!({})), NOW).unwrap();
        let long = "x".repeat(NAME_LEN_MAX);
        for name in ["a", "b", &long] {
            store.write(named(pods, name), pod(name, "data"), NOW).unwrap();
        }
        assert!(of_pods(&mut store, NOW).unwrap());
        assert!(!of_pods(&mut store, NOW).unwrap(), "it is made once");
        assert_eq!(store.of_plural(claims.plural()).count(), 2);
        let why = |name: &str| {
            let object = named(pods, name);
            obstacle(&store, &object, store.object(&object).unwrap()).unwrap_or_default()
        };
        assert_eq!(why("a"), "");
        let expected = "PersistentVolumeClaim n/b-data was not created for this pod (pod is not \
                        owner); delete the claim, or rename the volume or the pod";
        assert_eq!(why("b"), expected);
        assert!(why(&long).contains("a name of more than 250 characters"));
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
