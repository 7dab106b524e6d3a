//! How a Deployment's pods become what its template says: pure decisions over the existing pods.
//!
//! Each call returns one step: how many pods to create and which to retire now. The caller calls
//! again when the step has taken effect. It never retires a ready pod while that would leave fewer
//! ready ones than the strategy allows.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use serde_json::{Value, json};

use super::decode;
use super::owned::{Action, OwnedPod, Owner, random_name};
use crate::objects::ObjectRef;

/// The label that distinguishes the pods of one template from those of another.
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";
/// What Kubernetes uses when a rolling update names no bounds.
const DEFAULT_PERCENT: u32 = 25;

/// What to do now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    /// How many pods of the present template to create.
    create: u32,
    /// The pods to retire.
    retire: Vec<ObjectRef>,
}

/// What to do now for a Deployment.
pub(super) fn act(value: &Value, owner: &Owner<'_>, pods: &[OwnedPod]) -> Action {
    let step = plan(&decode(value), pods);
    let prefix = format!("{}-{}", owner.object.name, owner.revision);
    let create = (0..step.create).map(|_| owner.pod(&random_name(&prefix))).collect();
    let status = status(value, pods);
    Action { create, retire: step.retire, status, ..Action::default() }
}

fn status(value: &Value, pods: &[OwnedPod]) -> Value {
    let live = || pods.iter().filter(|pod| !pod.terminating);
    let ready = live().filter(|pod| pod.ready).count();
    json!({
        "observedGeneration": value.pointer("/metadata/generation"),
        "replicas": live().count(),
        "updatedReplicas": live().filter(|pod| pod.current).count(),
        "readyReplicas": ready,
        "availableReplicas": ready,
    })
}

/// The next step of a Deployment whose pods are `pods`.
fn plan(deployment: &Deployment, pods: &[OwnedPod]) -> Step {
    let wanted = replicas(deployment);
    let bounds = Bounds::of(deployment, wanted);
    let mut current: Vec<_> = pods.iter().filter(|pod| pod.current && !pod.terminating).collect();
    let old: Vec<_> = pods.iter().filter(|pod| !pod.current && !pod.terminating).collect();
    let leaving = pods.iter().filter(|pod| !pod.current && pod.terminating).count() as u32;
    let (have, have_old) = (current.len() as u32, old.len() as u32);
    if have > wanted {
        return Step { create: 0, retire: surplus(&mut current, have - wanted) };
    }
    let room = match bounds {
        // Nothing new before everything old is gone.
        Bounds::Recreate if have_old + leaving > 0 => 0,
        Bounds::Recreate => wanted,
        Bounds::Rolling { surge, .. } => (wanted + surge).saturating_sub(have + have_old),
    };
    let create = room.min(wanted - have);
    let retire = match bounds {
        Bounds::Recreate => old.iter().map(|pod| pod.object.clone()).collect(),
        Bounds::Rolling { unavailable, .. } => {
            let ready = |pods: &[&OwnedPod]| pods.iter().filter(|pod| pod.ready).count() as u32;
            let spare = (ready(&current) + ready(&old)).saturating_sub(wanted - unavailable);
            old_to_retire(&old, spare)
        }
    };
    Step { create, retire }
}

/// Old pods that may go: those that serve nobody, and as many ready ones as can be spared.
fn old_to_retire(old: &[&OwnedPod], spare: u32) -> Vec<ObjectRef> {
    let idle = old.iter().filter(|pod| !pod.ready);
    let ready = old.iter().filter(|pod| pod.ready).take(spare as usize);
    idle.chain(ready).map(|pod| pod.object.clone()).collect()
}

/// The pods that go when there are too many: not ready before ready, young before old.
fn surplus(pods: &mut [&OwnedPod], count: u32) -> Vec<ObjectRef> {
    pods.sort_by(|a, b| (a.ready, &b.created).cmp(&(b.ready, &a.created)));
    pods.iter().take(count as usize).map(|pod| pod.object.clone()).collect()
}

fn replicas(deployment: &Deployment) -> u32 {
    let asked = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    asked.map_or(1, |count| count.max(0) as u32)
}

/// How far a rollout may stray from the wanted number of pods.
#[derive(Clone, Copy, Debug)]
enum Bounds {
    Recreate,
    Rolling { surge: u32, unavailable: u32 },
}

impl Bounds {
    fn of(deployment: &Deployment, wanted: u32) -> Self {
        let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
        if strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("Recreate")) {
            return Self::Recreate;
        }
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let surge = share(surge, wanted, true);
        let unavailable = share(unavailable, wanted, false).min(wanted);
        // With neither nothing could ever move.
        Self::Rolling { surge, unavailable: unavailable.max(u32::from(surge == 0)).min(wanted) }
    }
}

/// A number of pods, given as such or as a percentage of `wanted`.
pub(super) fn share(value: Option<&IntOrString>, wanted: u32, round_up: bool) -> u32 {
    let percent = |percent: u32| {
        let hundredths = u64::from(wanted) * u64::from(percent);
        let share = if round_up { hundredths.div_ceil(100) } else { hundredths / 100 };
        u32::try_from(share).unwrap_or(u32::MAX)
    };
    match value {
        None => percent(DEFAULT_PERCENT),
        Some(IntOrString::Int(count)) => (*count).max(0) as u32,
        Some(IntOrString::String(text)) => {
            let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
            percent(number.unwrap_or(DEFAULT_PERCENT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::owned::tests::owned;

    fn deployment(replicas: u32, strategy: Value) -> Deployment {
        decode(&json!({
            "metadata": {"name": "d", "namespace": "n", "uid": "u"},
            "spec": {
                "replicas": replicas, "strategy": strategy,
                "selector": {"matchLabels": {"app": "d"}},
                "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": []}},
            },
        }))
    }

    /// Pods written as letters: `c` current, `o` old, capital when ready, `x` old and terminating.
    fn pods(letters: &str) -> Vec<OwnedPod> {
        let pod = |(index, letter): (usize, char)| OwnedPod {
            current: letter.eq_ignore_ascii_case(&'c'),
            ready: letter.is_uppercase(),
            terminating: letter == 'x',
            created: format!("{index}"),
            ..owned(&format!("{letter}{index}"))
        };
        letters.chars().enumerate().map(pod).collect()
    }

    fn check(replicas: u32, strategy: Value, have: &str, create: u32, retire: &[&str]) {
        let step = plan(&deployment(replicas, strategy), &pods(have));
        let retired: Vec<&str> = step.retire.iter().map(|object| object.name.as_str()).collect();
        assert_eq!((step.create, retired.as_slice()), (create, retire), "{replicas} {have:?}");
    }

    #[test]
    fn pods_are_created_and_retired_to_the_wanted_number() {
        let rolling = json!({"type": "RollingUpdate"});
        check(3, rolling.clone(), "", 3, &[]);
        check(3, rolling.clone(), "CC", 1, &[]);
        check(3, rolling.clone(), "CCC", 0, &[]);
        check(0, rolling.clone(), "CC", 0, &["C1", "C0"]);
        check(1, rolling, "CcC", 0, &["c1", "C2"]);
    }

    #[test]
    fn rolling_update_keeps_enough_ready() {
        let one_by_one = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        check(2, one_by_one.clone(), "OO", 1, &[]);
        check(2, one_by_one.clone(), "OOc", 0, &[]);
        check(2, one_by_one.clone(), "OOC", 0, &["O0"]);
        check(2, one_by_one.clone(), "OC", 1, &[]);
        check(2, one_by_one.clone(), "OCC", 0, &["O0"]);
        check(2, one_by_one, "ooO", 0, &["o0", "o1"]);
        let quarter = json!({"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
        check(4, quarter, "OOOO", 1, &["O0"]);
        let neither = json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}});
        check(2, neither, "OO", 0, &["O0"]);
    }

    #[test]
    fn recreate_waits_for_the_last_old_pod() {
        let recreate = json!({"type": "Recreate"});
        check(2, recreate.clone(), "OO", 0, &["O0", "O1"]);
        check(2, recreate.clone(), "xO", 0, &["O1"]);
        check(2, recreate.clone(), "x", 0, &[]);
        check(2, recreate, "", 2, &[]);
    }
}
