//! How the pods of a StatefulSet come, go and change: one after the other, each with a name of its
//! own.
//!
//! The order is Kubernetes': the lowest ordinal starts first, the highest goes and changes first,
//! and each waits until the others are ready, unless the pods are managed in parallel. With a
//! partition a lower pod that comes back is of the earlier template, which the status keeps.

use std::collections::BTreeMap;
use std::ops::Range;

use ambit_words::labels::{POD_INDEX, POD_NAME};
use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::{Value, json};

use super::decode;
use super::owned::{Action, KeptBy, OwnedPod, Owner};
use crate::claims;
use crate::objects::{Kind, ObjectRef};

/// The label that says of which template a pod of a StatefulSet or DaemonSet is.
pub(crate) const REVISION: &str = "controller-revision-hash";
/// Where the status keeps the template of the pods below the partition.
const EARLIER: &str = "/status/currentTemplate";

/// What to do now, by ordinals.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    create: Vec<u32>,
    retire: Vec<ObjectRef>,
}

/// With whom a claim goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    Set,
    Pod,
}

/// How a StatefulSet is to be.
#[derive(Debug)]
struct Wish {
    ordinals: Range<u32>,
    is_parallel: bool,
    /// The first ordinal that changes with the template; none if pods change when they are
    /// deleted.
    changes_from: Option<u32>,
    /// Claims go with the set, and with pods for which there are too few replicas.
    claims_go: (bool, bool),
}

impl Wish {
    fn of(set: &StatefulSet) -> Self {
        let spec = set.spec.clone().unwrap_or_default();
        let count = |count: Option<i32>, otherwise: u32| {
            count.map_or(otherwise, |count| u32::try_from(count).unwrap_or(0))
        };
        let start = count(spec.ordinals.and_then(|ordinals| ordinals.start), 0);
        let update = spec.update_strategy.unwrap_or_default();
        let partition = count(update.rolling_update.and_then(|rolling| rolling.partition), 0);
        let is_on_delete = update.type_.as_deref() == Some("OnDelete");
        let retention = spec.persistent_volume_claim_retention_policy.unwrap_or_default();
        let goes = |policy: Option<String>| policy.as_deref() == Some("Delete");
        Self {
            claims_go: (goes(retention.when_deleted), goes(retention.when_scaled)),
            ordinals: start..start.saturating_add(count(spec.replicas, 1)),
            is_parallel: spec.pod_management_policy.as_deref() == Some("Parallel"),
            changes_from: (!is_on_delete).then(|| start.saturating_add(partition)),
        }
    }

    fn step(&self, pods: &BTreeMap<u32, &OwnedPod>) -> Step {
        let mut step = Step::default();
        for ordinal in self.ordinals.clone() {
            match pods.get(&ordinal) {
                None => step.create.push(ordinal),
                Some(pod) if pod.has_ended() && !pod.terminating => {
                    step.retire.push(pod.object.clone());
                }
                Some(pod) if pod.ready && !pod.terminating => continue,
                Some(_) => {}
            }
            if !self.is_parallel {
                // The next ones wait for this one.
                return step;
            }
        }
        let outside = pods.iter().rev().filter(|(ordinal, _)| !self.ordinals.contains(*ordinal));
        for (_, pod) in outside {
            if !pod.terminating {
                step.retire.push(pod.object.clone());
            }
            if !self.is_parallel {
                return step;
            }
        }
        if step == Step::default() {
            step.retire.extend(self.next_to_change(pods));
        }
        step
    }

    /// With whom the claims of a pod go.
    fn keeper(&self, ordinal: u32) -> Option<Keeper> {
        let (with_set, with_pod) = self.claims_go;
        match self.ordinals.contains(&ordinal) {
            false if with_pod => Some(Keeper::Pod),
            _ => with_set.then_some(Keeper::Set),
        }
    }

    /// The highest pod of an earlier template, if all above it are ready.
    fn next_to_change(&self, pods: &BTreeMap<u32, &OwnedPod>) -> Option<ObjectRef> {
        let first = self.changes_from?;
        for ordinal in self.ordinals.clone().rev().take_while(|ordinal| *ordinal >= first) {
            let pod = pods.get(&ordinal)?;
            if !pod.current && !pod.terminating {
                return Some(pod.object.clone());
            }
            if !pod.ready || pod.terminating {
                return None;
            }
        }
        None
    }
}

/// What to do now for a StatefulSet.
pub(super) fn act(value: &Value, owner: &Owner<'_>, pods: &[OwnedPod]) -> Action {
    let set: StatefulSet = decode(value);
    let wish = Wish::of(&set);
    let by_ordinal: BTreeMap<u32, &OwnedPod> = pods
        .iter()
        .filter_map(|pod| Some((ordinal(&owner.object.name, &pod.object.name)?, pod)))
        .collect();
    let step = wish.step(&by_ordinal);
    let earlier = value.pointer(EARLIER).map(|template| owner.with_template(template));
    let earlier = earlier.as_ref().unwrap_or(owner);
    let service = set.spec.as_ref().and_then(|spec| spec.service_name.as_deref());
    let create = step.create.into_iter().map(|ordinal| {
        let changes = wish.changes_from.is_none_or(|first| ordinal >= first);
        let (claims, volumes) = claims::of_set(owner.object, value, ordinal);
        let pod = new_pod(if changes { owner } else { earlier }, ordinal, service, volumes);
        (claims, pod)
    });
    let (claims, create): (Vec<_>, Vec<_>) = create.unzip();
    let claims = claims.into_iter().flatten().collect();
    let is_whole = |pod: &&OwnedPod| pod.current && pod.ready && !pod.terminating;
    let is_done = wish.ordinals.clone().all(|it| by_ordinal.get(&it).is_some_and(is_whole));
    let current = if is_done { owner } else { earlier };
    let status = status(value, pods, current, &owner.revision);
    let kept_by = kept_by(value, owner, &wish, &by_ordinal);
    Action { claims, kept_by, create, retire: step.retire, status }
}

/// With whom the claims of the pods go that are there. As in Kubernetes, those of a pod that is
/// gone stay as they are: nobody has said what becomes of them.
fn kept_by(
    value: &Value,
    owner: &Owner<'_>,
    wish: &Wish,
    pods: &BTreeMap<u32, &OwnedPod>,
) -> Vec<KeptBy> {
    let mut all = Vec::new();
    for (ordinal, pod) in pods {
        let reference = wish.keeper(*ordinal).map(|keeper| match keeper {
            Keeper::Set => reference(Kind::StatefulSet, &owner.object.name, owner.uid),
            Keeper::Pod => reference(Kind::Pod, &pod.object.name, &pod.uid),
        });
        let claims = claims::names_of_set(owner.object, value, *ordinal);
        all.extend(claims.map(|(_, claim)| KeptBy {
            claim,
            owner: reference.clone(),
            candidates: [owner.uid.to_owned(), pod.uid.clone()],
        }));
    }
    all
}

/// How a claim names whom it goes with.
fn reference(kind: Kind, name: &str, uid: &str) -> Value {
    json!({"apiVersion": kind.api_versions()[0], "kind": kind.name(), "name": name, "uid": uid})
}

fn ordinal(set: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

fn new_pod(
    owner: &Owner<'_>,
    ordinal: u32,
    service: Option<&str>,
    volumes: Vec<Value>,
) -> (ObjectRef, Value) {
    let name = format!("{}-{ordinal}", owner.object.name);
    let (object, mut pod) = owner.pod(&name);
    pod["metadata"]["labels"][POD_NAME] = json!(name);
    pod["metadata"]["labels"][POD_INDEX] = json!(ordinal.to_string());
    pod["spec"]["hostname"] = json!(name);
    if let Some(service) = service.filter(|service| !service.is_empty()) {
        pod["spec"]["subdomain"] = json!(service);
    }
    if !volumes.is_empty() {
        // A claim takes the place of a volume of the template that has its name.
        let own = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let is_other = |it: &&Value| volumes.iter().all(|volume| volume["name"] != it["name"]);
        let own: Vec<Value> = own.filter(is_other).cloned().collect();
        pod["spec"]["volumes"] = own.into_iter().chain(volumes).collect();
    }
    (object, pod)
}

fn status(value: &Value, pods: &[OwnedPod], current: &Owner<'_>, update: &str) -> Value {
    let live = || pods.iter().filter(|pod| !pod.terminating);
    let ready = live().filter(|pod| pod.ready).count();
    json!({
        "observedGeneration": value.pointer("/metadata/generation"),
        "replicas": live().count(),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": live().filter(|pod| pod.revision == current.revision).count(),
        "updatedReplicas": live().filter(|pod| pod.current).count(),
        "currentRevision": current.revision,
        "updateRevision": update,
        "currentTemplate": current.template(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::owned::tests::owned;
    use crate::registry::Phase;

    fn set(more: Value) -> Value {
        let mut spec = json!({
            "replicas": 3, "serviceName": "db", "selector": {},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}},
        });
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        json!({"metadata": {"uid": "u", "generation": 1}, "spec": spec})
    }

    /// Pods `w-0` and so on, written as letters: `c` of the present template, `o` of an earlier
    /// one, capital when ready, `x` terminating, `f` failed, `-` not there.
    fn pods(letters: &str) -> Vec<OwnedPod> {
        let pod = |(ordinal, letter): (usize, char)| {
            let current = matches!(letter, 'c' | 'C');
            OwnedPod {
                current,
                ready: letter.is_uppercase(),
                terminating: letter == 'x',
                phase: if letter == 'f' { Phase::Failed } else { Phase::Running },
                ..owned(&format!("w-{ordinal}"))
            }
        };
        letters.chars().enumerate().filter(|(_, letter)| *letter != '-').map(pod).collect()
    }

    fn act_on(value: &Value, pods: &[OwnedPod]) -> Action {
        let object = ObjectRef::new(Kind::StatefulSet, Some("app"), "w");
        act(value, &Owner::new(&object, value, Some(REVISION)), pods)
    }

    fn check(more: Value, have: &str, create: &[&str], retire: &[&str]) {
        let action = act_on(&set(more), &pods(have));
        let created: Vec<&str> = action.create.iter().map(|(it, _)| it.name.as_str()).collect();
        let retired: Vec<&str> = action.retire.iter().map(|it| it.name.as_str()).collect();
        assert_eq!((created.as_slice(), retired.as_slice()), (create, retire), "{have:?}");
    }

    #[test]
    fn pods_start_in_order() {
        check(json!({}), "", &["w-0"], &[]);
        check(json!({}), "c", &[], &[]);
        check(json!({}), "C", &["w-1"], &[]);
        check(json!({}), "CCC", &[], &[]);
        check(json!({}), "C-C", &["w-1"], &[]);
        check(json!({}), "xCC", &[], &[]);
        check(json!({}), "CfC", &[], &["w-1"]);
        check(json!({"ordinals": {"start": 1}}), "", &["w-1"], &[]);
        let all = ["w-0", "w-1", "w-2"];
        check(json!({"podManagementPolicy": "Parallel"}), "", &all, &[]);
    }

    #[test]
    fn the_highest_goes_first() {
        check(json!({"replicas": 1}), "CCC", &[], &["w-2"]);
        check(json!({"replicas": 1}), "CCx", &[], &[]);
        check(json!({"replicas": 1}), "CC", &[], &["w-1"]);
        let parallel = json!({"replicas": 1, "podManagementPolicy": "Parallel"});
        check(parallel, "CCC", &[], &["w-2", "w-1"]);
        check(json!({"ordinals": {"start": 1}}), "CCCC", &[], &["w-0"]);
    }

    #[test]
    fn the_highest_changes_first() {
        check(json!({}), "OOO", &[], &["w-2"]);
        check(json!({}), "OOx", &[], &[]);
        check(json!({}), "OO", &["w-2"], &[]);
        check(json!({}), "OOc", &[], &[]);
        check(json!({}), "OOC", &[], &["w-1"]);
        let partition = json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}});
        check(partition.clone(), "OOO", &[], &["w-2"]);
        check(partition, "OOC", &[], &[]);
        check(json!({"updateStrategy": {"type": "OnDelete"}}), "OOO", &[], &[]);
        let parallel = json!({"podManagementPolicy": "Parallel"});
        check(parallel.clone(), "OOO", &[], &["w-2"]);
        check(parallel, "OOc", &[], &[]);
    }

    #[test]
    fn a_pod_has_the_name_that_its_service_gives_it() {
        let action = act_on(&set(json!({})), &[]);
        let pod = &action.create[0].1;
        assert_eq!(pod["spec"]["hostname"], "w-0");
        assert_eq!(pod["spec"]["subdomain"], "db");
        assert_eq!(pod["metadata"]["labels"][POD_NAME], "w-0");
        assert_eq!(pod["metadata"]["labels"][POD_INDEX], "0");
        assert_eq!(pod["metadata"]["labels"]["app"], "db");
    }

    #[test]
    fn claims_go_with_whom_the_policy_says() {
        let check = |policy: Value, expected: &[(&str, Option<&str>)]| {
            let claim = json!({"metadata": {"name": "data"}, "spec": {}});
            let more = json!({
                "replicas": 1, "volumeClaimTemplates": [claim],
                "persistentVolumeClaimRetentionPolicy": policy,
            });
            let action = act_on(&set(more), &pods("CC"));
            let kept = action.kept_by.iter().map(|it| {
                let owner = it.owner.as_ref().and_then(|it| it["uid"].as_str());
                (it.claim.name.as_str(), owner)
            });
            assert_eq!(kept.collect::<Vec<_>>(), expected, "{policy}");
        };
        let (of_set, of_pod) = (Some("u"), Some("uid-w-1"));
        check(json!(null), &[("data-w-0", None), ("data-w-1", None)]);
        check(json!({"whenScaled": "Retain"}), &[("data-w-0", None), ("data-w-1", None)]);
        check(json!({"whenDeleted": "Delete"}), &[("data-w-0", of_set), ("data-w-1", of_set)]);
        check(json!({"whenScaled": "Delete"}), &[("data-w-0", None), ("data-w-1", of_pod)]);
        let both = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
        check(both, &[("data-w-0", of_set), ("data-w-1", of_pod)]);
    }

    #[test]
    fn below_the_partition_the_earlier_template_comes_back() {
        let mut value = set(json!({}));
        let all = |action: &Action| {
            let revision = action.status["updateRevision"].as_str().unwrap().to_owned();
            let pods = pods("CCC").into_iter();
            pods.map(|pod| OwnedPod { revision: revision.clone(), ..pod }).collect::<Vec<_>>()
        };
        let first = act_on(&value, &[]);
        value["status"] = act_on(&value, &all(&first)).status;
        let earlier = value["status"]["currentRevision"].clone();
        value["spec"]["updateStrategy"] = json!({"rollingUpdate": {"partition": 2}});
        value["spec"]["template"]["spec"]["containers"] = json!([{"name": "new"}]);
        let revisions = |have: &str| {
            let action = act_on(&value, &pods(have));
            let revision = action.create[0].1["metadata"]["labels"][REVISION].clone();
            (revision == earlier, action.status["currentRevision"] == earlier)
        };
        assert_eq!(revisions("-OC"), (true, true), "w-0 is below the partition");
        assert_eq!(revisions("OO-"), (false, true), "w-2 is not");
        let whole = act_on(&value, &pods("CCC"));
        assert_ne!(whole.status["currentRevision"], earlier, "all are of the new template");
    }
}
