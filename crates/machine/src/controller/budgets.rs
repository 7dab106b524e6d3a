//! PodDisruptionBudgets: how many pods may be evicted now, and whether this one may.
//!
//! The rules are Kubernetes'. A budget is asked by who evicts through the Kubernetes API. Nobody
//! else asks it: a deletion, a rollout and a taint go ahead.

use std::collections::BTreeMap;

use ambit_manifest::selector::matches;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::rollout::share;
use super::{decode, text};
use crate::objects::{Kind, ObjectRef, Store};
use crate::registry::{Mirror, Phase};

/// Why a pod is not evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its budget would be broken.
    Broken {
        /// The budget's name.
        budget: String,
        /// How many pods it needs.
        needed: u32,
        /// How many are ready.
        healthy: u32,
    },
    /// Nobody knows how many pods its budget needs.
    Unknown {
        /// The budget's name.
        budget: String,
        /// Why.
        why: String,
    },
    /// It has more than one budget.
    Several,
}

/// A pod, as far as budgets care.
struct Budgeted<'a> {
    value: &'a Value,
    phase: Phase,
    is_ready: bool,
    is_going: bool,
}

impl<'a> Budgeted<'a> {
    fn of(object: &ObjectRef, value: &'a Value, reported: &Mirror) -> Self {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let status = reported.status(namespace, &object.name, text(value, "/metadata/uid"));
        Self {
            value,
            phase: status.map(|it| it.phase).unwrap_or_default(),
            is_ready: status.is_some_and(|it| it.ready),
            is_going: value.pointer("/metadata/deletionTimestamp").is_some(),
        }
    }

    fn is_healthy(&self) -> bool {
        self.is_ready && !self.is_going
    }
}

/// What a budget says of its pods.
#[derive(Debug, PartialEq, Eq)]
struct Tally {
    healthy: u32,
    needed: u32,
    expected: u32,
    /// Why nobody knows how many there should be.
    unknown: Option<String>,
}

impl Tally {
    fn allowed(&self) -> u32 {
        let is_known = self.unknown.is_none() && self.expected > 0;
        if is_known { self.healthy.saturating_sub(self.needed) } else { 0 }
    }
}

/// The status of a budget.
pub(super) fn status(
    object: &ObjectRef,
    value: &Value,
    store: &Store,
    reported: &Mirror,
    now: &str,
) -> Value {
    let tally = tally(object, value, store, reported);
    let allowed = tally.allowed();
    let (is_allowed, reason) = match (&tally.unknown, allowed) {
        (Some(_), _) => ("False", "SyncFailed"),
        (None, 0) => ("False", "InsufficientPods"),
        (None, _) => ("True", "SufficientPods"),
    };
    let generation = value.pointer("/metadata/generation");
    let before = value.pointer("/status/conditions/0").unwrap_or(&Value::Null);
    let since = before["lastTransitionTime"].as_str().filter(|_| before["status"] == is_allowed);
    json!({
        "observedGeneration": generation,
        "currentHealthy": tally.healthy,
        "desiredHealthy": tally.needed,
        "expectedPods": tally.expected,
        "disruptionsAllowed": allowed,
        "conditions": [{
            "type": "DisruptionAllowed",
            "status": is_allowed,
            "reason": reason,
            "message": tally.unknown.unwrap_or_default(),
            "observedGeneration": generation,
            "lastTransitionTime": since.unwrap_or(now),
        }],
    })
}

/// Why a pod may not be evicted now; `None` if it may.
pub(crate) fn refusal(pod: &ObjectRef, store: &Store, reported: &Mirror) -> Option<Refusal> {
    let value = store.object(pod)?;
    let judged = Budgeted::of(pod, value, reported);
    if judged.is_going || judged.phase != Phase::Running {
        return None;
    }
    let plural = Kind::PodDisruptionBudget.plural();
    let mut of_pod = store.of_plural(plural).filter(|(object, budget)| {
        object.namespace == pod.namespace && selects(&spec(budget), value)
    });
    let (object, budget) = of_pod.next()?;
    if of_pod.next().is_some() {
        return Some(Refusal::Several);
    }
    let tally = tally(object, budget, store, reported);
    let always = spec(budget).unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow");
    // One that is not ready is not among those that the budget counts on.
    let is_spare = always || tally.needed > 0 && tally.healthy >= tally.needed;
    if !judged.is_ready && is_spare || tally.allowed() > 0 {
        return None;
    }
    let budget = object.name.clone();
    Some(match tally {
        Tally { unknown: Some(why), .. } => Refusal::Unknown { budget, why },
        Tally { needed, healthy, .. } => Refusal::Broken { budget, needed, healthy },
    })
}

fn spec(budget: &Value) -> PodDisruptionBudgetSpec {
    decode::<PodDisruptionBudget>(budget).spec.unwrap_or_default()
}

/// A budget without a selector has no pods, and one with an empty selector all of its namespace.
fn selects(spec: &PodDisruptionBudgetSpec, pod: &Value) -> bool {
    let labels: BTreeMap<String, String> =
        pod.pointer("/metadata/labels").map(decode).unwrap_or_default();
    spec.selector.as_ref().is_some_and(|selector| matches(selector, &labels))
}

fn tally(object: &ObjectRef, value: &Value, store: &Store, reported: &Mirror) -> Tally {
    let spec = spec(value);
    let pods = store.of_plural(Kind::Pod.plural());
    let pods =
        pods.filter(|(pod, value)| pod.namespace == object.namespace && selects(&spec, value));
    let pods: Vec<Budgeted<'_>> =
        pods.map(|(pod, value)| Budgeted::of(pod, value, reported)).collect();
    let healthy = count(pods.iter().filter(|pod| pod.is_healthy()).count());
    let known = |needed, expected| Tally { healthy, needed, expected, unknown: None };
    if let Some(IntOrString::Int(least)) = &spec.min_available {
        return known(u32::try_from(*least).unwrap_or(0), count(pods.len()));
    }
    let expected = match expected(object, &pods, store) {
        Ok(expected) => expected,
        Err(why) => return Tally { healthy, needed: 0, expected: 0, unknown: Some(why) },
    };
    match (&spec.min_available, &spec.max_unavailable) {
        (Some(least), _) => known(share(Some(least), expected, true), expected),
        (None, Some(most)) => {
            known(expected.saturating_sub(share(Some(most), expected, true)), expected)
        }
        (None, None) => known(0, 0),
    }
}

/// How many pods there should be by what makes them. Pods of their own do not count.
fn expected(object: &ObjectRef, pods: &[Budgeted<'_>], store: &Store) -> Result<u32, String> {
    let mut makers = BTreeMap::new();
    for pod in pods {
        let owners = pod.value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let Some(owner) = owners.into_iter().flatten().find(|it| it["controller"] == true) else {
            continue;
        };
        let (kind, name) = (text(owner, "/kind"), text(owner, "/name"));
        let kind = [Kind::Deployment, Kind::StatefulSet].into_iter().find(|it| it.name() == kind);
        let Some(kind) = kind else {
            return Err(format!(
                "{} {name:?} does not implement the scale subresource; use minAvailable with a \
                 number",
                text(owner, "/kind")
            ));
        };
        let maker = ObjectRef::new(kind, object.namespace.as_deref(), name);
        let replicas = store.object(&maker).and_then(|it| it.pointer("/spec/replicas"));
        let replicas = replicas.and_then(Value::as_u64).unwrap_or_default();
        makers.insert(maker, u32::try_from(replicas).unwrap_or(u32::MAX));
    }
    Ok(makers.into_values().fold(0, u32::saturating_add))
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    const NOW: &str = "2026-01-31T12:00:00Z";

    /// A Deployment of three replicas, and the pods that there are: `R` ready, `r` running, `p`
    /// not started, `x` going away.
    struct Bed {
        _root: tempfile::TempDir,
        layout: Layout,
        store: Store,
        reported: Mirror,
    }

    impl Bed {
        fn new(maker: Kind, pods: &str) -> Self {
            let root = tempfile::tempdir().expect("a directory");
            let layout = Layout::new(root.path());
            let store = Store::create(layout.clone()).expect("a store");
            let reported = Mirror::new(&layout);
            let mut bed = Self { _root: root, layout, store, reported };
            bed.put(maker, "web", json!({"replicas": 3}), json!({}));
            for (index, state) in pods.chars().enumerate() {
                let name = format!("web-{index}");
                let owner = json!({"kind": maker.name(), "name": "web", "controller": true});
                let mut metadata = json!({"labels": {"app": "web"}, "ownerReferences": [owner]});
                if state == 'x' {
                    metadata["deletionTimestamp"] = json!(NOW);
                }
                bed.put(Kind::Pod, &name, json!({}), metadata);
                if state != 'p' {
                    bed.report(&name, state != 'r');
                }
            }
            bed
        }

        fn put(&mut self, kind: Kind, name: &str, spec: Value, mut metadata: Value) {
            metadata["name"] = json!(name);
            metadata["namespace"] = json!("a");
            let value = json!({"metadata": metadata, "spec": spec});
            let object = ObjectRef::new(kind, Some("a"), name);
            self.store.write(object, value, NOW).expect("it is stored");
        }

        fn report(&mut self, name: &str, is_ready: bool) {
            let object = ObjectRef::new(Kind::Pod, Some("a"), name);
            let uid = text(self.store.object(&object).expect("it is there"), "/metadata/uid");
            let status = crate::registry::PodStatus {
                uid: uid.to_owned(),
                phase: Phase::Running,
                ready: is_ready,
                ..Default::default()
            };
            let path = self.layout.pod_status("a", name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            std::fs::write(&path, serde_json::to_vec(&status).expect("JSON")).expect("written");
            self.reported.read(&[path]);
        }
    }

    fn budget(mut spec: Value) -> Value {
        spec["selector"] = json!({"matchLabels": {"app": "web"}});
        spec
    }

    /// A budget over such pods has this status: healthy, needed, expected, allowed.
    fn check(maker: Kind, pods: &str, spec: Value, expected: [u64; 4], reason: &str) {
        let mut bed = Bed::new(maker, pods);
        bed.put(Kind::PodDisruptionBudget, "web", budget(spec), json!({}));
        let object = ObjectRef::new(Kind::PodDisruptionBudget, Some("a"), "web");
        let value = bed.store.object(&object).expect("it is there").clone();
        let status = status(&object, &value, &bed.store, &bed.reported, NOW);
        let fields = ["currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed"];
        assert_eq!(fields.map(|it| status[it].as_u64().expect("a number")), expected);
        assert_eq!(status["conditions"][0]["reason"], reason);
    }

    #[test]
    fn budgets_are_those_of_kubernetes() {
        let deployment = |pods, spec, expected, reason| {
            check(Kind::Deployment, pods, spec, expected, reason);
        };
        let (enough, few) = ("SufficientPods", "InsufficientPods");
        deployment("RRR", json!({"minAvailable": 2}), [3, 2, 3, 1], enough);
        deployment("RRr", json!({"minAvailable": 2}), [2, 2, 3, 0], few);
        deployment("RRx", json!({"minAvailable": 2}), [2, 2, 3, 0], few);
        deployment("RRR", json!({"minAvailable": "50%"}), [3, 2, 3, 1], enough);
        deployment("RRR", json!({"minAvailable": "100%"}), [3, 3, 3, 0], few);
        deployment("RRR", json!({"maxUnavailable": 1}), [3, 2, 3, 1], enough);
        deployment("RR", json!({"maxUnavailable": 1}), [2, 2, 3, 0], few);
        deployment("RRR", json!({"maxUnavailable": "50%"}), [3, 1, 3, 2], enough);
        deployment("RRR", json!({"maxUnavailable": 5}), [3, 0, 3, 3], enough);
        deployment("RRR", json!({}), [3, 0, 0, 0], few);
        deployment("", json!({"maxUnavailable": 1}), [0, 0, 0, 0], few);
        check(Kind::StatefulSet, "RRR", json!({"maxUnavailable": 1}), [3, 2, 3, 1], enough);
        check(Kind::Job, "RRR", json!({"maxUnavailable": 1}), [3, 0, 0, 0], "SyncFailed");
        check(Kind::Job, "RRR", json!({"minAvailable": 1}), [3, 1, 3, 2], enough);
    }

    #[test]
    fn who_evicts_is_refused_when_the_budget_would_be_broken() {
        let refused = |pods: &str, specs: &[Value], pod: &str| {
            let mut bed = Bed::new(Kind::Deployment, pods);
            for (index, spec) in specs.iter().enumerate() {
                let name = format!("b{index}");
                bed.put(Kind::PodDisruptionBudget, &name, budget(spec.clone()), json!({}));
            }
            let pod = ObjectRef::new(Kind::Pod, Some("a"), pod);
            refusal(&pod, &bed.store, &bed.reported)
        };
        let two = [json!({"minAvailable": 2})];
        assert_eq!(refused("RRR", &two, "web-0"), None);
        let broken = Refusal::Broken { budget: "b0".to_owned(), needed: 2, healthy: 2 };
        assert_eq!(refused("RRx", &two, "web-0"), Some(broken));
        assert_eq!(refused("RRx", &[], "web-0"), None, "there is no budget");
        assert_eq!(refused("RRp", &two, "web-2"), None, "it has not started");
        assert_eq!(refused("RRr", &two, "web-2"), None, "the budget does not count on it");
        let broken = Refusal::Broken { budget: "b0".to_owned(), needed: 2, healthy: 1 };
        assert_eq!(refused("Rr", &two, "web-1"), Some(broken));
        let always = [json!({"minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"})];
        assert_eq!(refused("Rr", &always, "web-1"), None);
        let mut bed = Bed::new(Kind::Job, "RR");
        let spec = budget(json!({"maxUnavailable": 1}));
        bed.put(Kind::PodDisruptionBudget, "b0", spec, json!({}));
        let pod = ObjectRef::new(Kind::Pod, Some("a"), "web-0");
        let Some(Refusal::Unknown { budget, why }) = refusal(&pod, &bed.store, &bed.reported)
        else {
            panic!("it is not known how many pods a Job should have");
        };
        assert_eq!(budget, "b0");
        assert!(why.contains("does not implement the scale subresource"), "{why}");
        let several = [two[0].clone(), two[0].clone()];
        assert_eq!(refused("RRR", &several, "web-0"), Some(Refusal::Several));
    }
}
