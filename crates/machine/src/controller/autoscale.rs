//! HorizontalPodAutoscalers: as many pods as their use of processors asks for.
//!
//! The rules are Kubernetes'. The caller measures; nothing here reads a process or a clock.

mod replicas;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
};
use serde_json::{Value, json};

use self::replicas::{Load, Rules, Target, Wanted, millicores};
use super::{decode, text};
use crate::objects::{Kind, ObjectRef, Store, StoreError, is_owned_by};
use crate::registry::{Mirror, Phase};

/// How often pods are measured and replicas decided, as in Kubernetes.
pub(crate) const INTERVAL: Duration = Duration::from_secs(15);

/// What is remembered between two looks.
#[derive(Debug, Default)]
pub(crate) struct Autoscaler {
    /// What each pod, by its uid, has used of processors so far, and when that was.
    used: BTreeMap<String, (Timestamp, u64)>,
    /// What each pod uses, in thousandths of a processor.
    usage: BTreeMap<String, u64>,
    /// What was recommended for each autoscaler, and when.
    recommended: BTreeMap<ObjectRef, Vec<(Timestamp, u32)>>,
}

/// What has become of an autoscaler.
struct Outcome {
    current: u32,
    desired: u32,
    metric: Option<Wanted>,
    /// Conditions: type, whether it is so, reason, message.
    conditions: Vec<(&'static str, bool, &'static str, String)>,
}

impl Autoscaler {
    /// Whether there is anything to measure for.
    pub(crate) fn is_needed(store: &Store) -> bool {
        store.of_plural(Kind::HorizontalPodAutoscaler.plural()).next().is_some()
    }

    /// Takes what the pods, by their uid, have used of processors so far, in milliseconds.
    pub(crate) fn measure(&mut self, used: BTreeMap<String, u64>, now: Timestamp) {
        let before = std::mem::take(&mut self.used);
        self.usage.clear();
        for (uid, total) in used {
            if let Some((then, earlier)) = before.get(&uid) {
                let elapsed = now.as_millisecond().saturating_sub(then.as_millisecond());
                let elapsed = u64::try_from(elapsed).unwrap_or(0).max(1);
                self.usage.insert(uid.clone(), total.saturating_sub(*earlier) * 1000 / elapsed);
            }
            self.used.insert(uid, (now, total));
        }
    }

    /// Sets the replicas of all that autoscalers name, and says in their status what came of it.
    pub(crate) fn act(
        &mut self,
        store: &mut Store,
        reported: &Mirror,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let all = super::all(store, Kind::HorizontalPodAutoscaler);
        self.recommended.retain(|object, _| all.iter().any(|(other, _)| other == object));
        let time = crate::registry::written(now);
        for (object, mut value) in all {
            let spec = decode::<HorizontalPodAutoscaler>(&value).spec;
            let outcome = self.judge(&object, &spec, (&*store, reported), now);
            if outcome.desired != outcome.current
                && let Some(target) = target(&object, &spec)
                && let Some(mut scaled) = store.object(&target).cloned()
            {
                tracing::info!(%target, replicas = outcome.desired, "an autoscaler scales");
                scaled["spec"]["replicas"] = json!(outcome.desired);
                store.write(target, scaled, &time)?;
            }
            let status = status(&value, &outcome, &time);
            if value.get("status") != Some(&status) {
                value["status"] = status;
                store.write(object, value, &time)?;
            }
        }
        Ok(())
    }

    fn judge(
        &mut self,
        object: &ObjectRef,
        spec: &HorizontalPodAutoscalerSpec,
        (store, reported): (&Store, &Mirror),
        now: Timestamp,
    ) -> Outcome {
        let mut conditions = Vec::new();
        let scaled = target(object, spec).and_then(|it| store.object(&it));
        let Some(scaled) = scaled else {
            let why = format!(
                "{} {:?} not found, or it cannot be scaled",
                spec.scale_target_ref.kind, spec.scale_target_ref.name
            );
            conditions.push(("AbleToScale", false, "FailedGetScale", why));
            return Outcome { current: 0, desired: 0, metric: None, conditions };
        };
        let current = scaled.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
        let current = u32::try_from(current).unwrap_or(u32::MAX);
        let still = |conditions| Outcome { current, desired: current, metric: None, conditions };
        conditions.push(("AbleToScale", true, "ReadyForNewScale", String::new()));
        if current == 0 {
            let why = "scaling is disabled since the replica count of the target is zero";
            conditions.push(("ScalingActive", false, "ScalingDisabled", why.to_owned()));
            return still(conditions);
        }
        let pods = self.loads(text(scaled, "/metadata/uid"), (store, reported));
        let metric = match measured(spec, &pods, current) {
            Ok(metric) => metric,
            Err(why) => {
                conditions.push(("ScalingActive", false, "FailedGetResourceMetric", why));
                return still(conditions);
            }
        };
        let why = "a replica count was calculated from the use of processors";
        conditions.push(("ScalingActive", true, "ValidMetricFound", why.to_owned()));
        let history =
            self.recommended.entry(object.clone()).or_insert_with(|| vec![(now, current)]);
        let rules = rules(spec);
        let (desired, limited) = rules.decide(current, metric.replicas, history, now);
        conditions.push(match limited {
            Some((reason, why)) => ("ScalingLimited", true, reason, why.to_owned()),
            None => {
                let why = "the desired count is within the acceptable range";
                ("ScalingLimited", false, "DesiredWithinRange", why.to_owned())
            }
        });
        Outcome { current, desired, metric: Some(metric), conditions }
    }

    /// The pods of what is scaled.
    fn loads(&self, uid: &str, (store, reported): (&Store, &Mirror)) -> Vec<Load> {
        let pods = store.of_plural(Kind::Pod.plural()).filter(|(_, pod)| {
            is_owned_by(pod, uid) && pod.pointer("/metadata/deletionTimestamp").is_none()
        });
        let load = |(object, pod): (&ObjectRef, &Value)| {
            let namespace = object.namespace.as_deref().unwrap_or_default();
            let uid = text(pod, "/metadata/uid");
            let status = reported.status(namespace, &object.name, uid);
            let phase = status.map(|it| it.phase).unwrap_or_default();
            (!matches!(phase, Phase::Failed | Phase::Succeeded)).then(|| Load {
                usage: self.usage.get(uid).copied(),
                request: request(pod),
                is_ready: status.is_some_and(|it| it.ready),
            })
        };
        pods.filter_map(load).collect()
    }
}

/// What a pod requests of processors; the name of a container that does not say it.
fn request(pod: &Value) -> Result<u64, String> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let of = |container: &Value| {
        let amount = container.pointer("/resources/requests/cpu").and_then(Value::as_str);
        amount.and_then(millicores).ok_or_else(|| {
            format!("missing request for cpu in container {}", text(container, "/name"))
        })
    };
    containers.into_iter().flatten().map(of).sum()
}

/// What the metrics of processors ask for: the most of all.
fn measured(
    spec: &HorizontalPodAutoscalerSpec,
    pods: &[Load],
    current: u32,
) -> Result<Wanted, String> {
    let targets = spec.metrics.iter().flatten().filter_map(|metric| {
        let resource = metric.resource.as_ref().filter(|it| it.name == "cpu")?;
        let percent = resource.target.average_utilization.and_then(|it| u64::try_from(it).ok());
        let amount = resource.target.average_value.as_ref().and_then(|it| millicores(&it.0));
        percent.map(Target::Utilization).or(amount.map(Target::Value))
    });
    let mut wanted: Option<Wanted> = None;
    for target in targets {
        let of_target = target.wanted(pods, current)?;
        if wanted.as_ref().is_none_or(|most| of_target.replicas > most.replicas) {
            wanted = Some(of_target);
        }
    }
    wanted.ok_or_else(|| "no metric of processors is asked for; a machine has no others".to_owned())
}

fn rules(spec: &HorizontalPodAutoscalerSpec) -> Rules {
    let number = |count: i32| u32::try_from(count).unwrap_or(0);
    let of = |rules: Option<&HPAScalingRules>, default: u32| {
        let window = rules.and_then(|rules| rules.stabilization_window_seconds).map(number);
        let is_closed = rules.is_some_and(|it| it.select_policy.as_deref() == Some("Disabled"));
        (window.unwrap_or(default), is_closed)
    };
    let behavior = spec.behavior.as_ref();
    let (up_s, up_closed) = of(behavior.and_then(|it| it.scale_up.as_ref()), 0);
    let (down_s, down_closed) =
        of(behavior.and_then(|it| it.scale_down.as_ref()), replicas::DOWN_WINDOW_S);
    Rules {
        least: spec.min_replicas.map_or(1, number),
        most: number(spec.max_replicas),
        up_s,
        down_s,
        up_closed,
        down_closed,
    }
}

/// What an autoscaler scales, if it can be scaled.
fn target(object: &ObjectRef, spec: &HorizontalPodAutoscalerSpec) -> Option<ObjectRef> {
    let named = &spec.scale_target_ref;
    let kind =
        [Kind::Deployment, Kind::StatefulSet].into_iter().find(|it| it.name() == named.kind)?;
    Some(ObjectRef::new(kind, object.namespace.as_deref(), &named.name))
}

fn status(value: &Value, outcome: &Outcome, now: &str) -> Value {
    let before = &value["status"];
    let condition = |(kind, is_so, reason, message): &(&str, bool, &str, String)| {
        let is_so = if *is_so { "True" } else { "False" };
        let mut old = before["conditions"].as_array().into_iter().flatten();
        let old = old.find(|it| it["type"] == *kind && it["status"] == is_so);
        let since = old.and_then(|it| it["lastTransitionTime"].as_str()).unwrap_or(now);
        json!({"type": kind, "status": is_so, "reason": reason, "message": message,
            "lastTransitionTime": since})
    };
    let conditions: Vec<Value> = outcome.conditions.iter().map(condition).collect();
    let mut status = json!({
        "observedGeneration": value.pointer("/metadata/generation"),
        "currentReplicas": outcome.current,
        "desiredReplicas": outcome.desired,
        "conditions": conditions,
    });
    if outcome.desired != outcome.current {
        status["lastScaleTime"] = json!(now);
    } else if let Some(last) = before.get("lastScaleTime") {
        status["lastScaleTime"] = last.clone();
    }
    if let Some(metric) = &outcome.metric {
        let mut current = json!({"averageValue": format!("{}m", metric.average)});
        if let Some(percent) = metric.utilization {
            current["averageUtilization"] = json!(percent);
        }
        let resource = json!({"name": "cpu", "current": current});
        status["currentMetrics"] = json!([{"type": "Resource", "resource": resource}]);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::registry::PodStatus;

    const START: &str = "2026-01-31T12:00:00Z";

    /// A Deployment of so many pods that request 100m each, and an autoscaler of 1 to 5.
    struct Bed {
        _root: tempfile::TempDir,
        store: Store,
        reported: Mirror,
        autoscaler: Autoscaler,
        uids: Vec<String>,
    }

    impl Bed {
        fn new(pods: u32, more: Value) -> Self {
            let root = tempfile::tempdir().expect("a directory");
            let layout = Layout::new(root.path());
            let mut store = Store::create(layout.clone()).expect("a store");
            let mut reported = Mirror::new(&layout);
            let mut put = |kind, name: &str, mut value: Value| {
                value["metadata"]["name"] = json!(name);
                value["metadata"]["namespace"] = json!("a");
                let object = ObjectRef::new(kind, Some("a"), name);
                store.write(object.clone(), value, START).expect("it is stored");
                text(store.object(&object).expect("it is there"), "/metadata/uid").to_owned()
            };
            let spec = json!({"replicas": pods});
            let owner = put(Kind::Deployment, "web", json!({"metadata": {}, "spec": spec}));
            let mut spec = json!({
                "scaleTargetRef": {"kind": "Deployment", "name": "web"},
                "minReplicas": 1, "maxReplicas": 5,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 50}}}],
            });
            for (field, value) in more.as_object().into_iter().flatten() {
                spec[field] = value.clone();
            }
            let value = json!({"metadata": {}, "spec": spec});
            put(Kind::HorizontalPodAutoscaler, "web", value);
            let mut uids = Vec::new();
            for index in 0..pods {
                let name = format!("web-{index}");
                let container = json!({"name": "c", "resources": {"requests": {"cpu": "100m"}}});
                let value = json!({"metadata": {"ownerReferences": [{"uid": owner}]},
                    "spec": {"containers": [container]}});
                let uid = put(Kind::Pod, &name, value);
                let (phase, ready) = (Phase::Running, true);
                let status = PodStatus { uid: uid.clone(), phase, ready, ..Default::default() };
                let path = layout.pod_status("a", &name);
                std::fs::create_dir_all(path.parent().expect("it has one")).expect("made");
                std::fs::write(&path, serde_json::to_vec(&status).expect("JSON")).expect("written");
                reported.read(&[path]);
                uids.push(uid);
            }
            Self { _root: root, store, reported, autoscaler: Autoscaler::default(), uids }
        }

        /// The replicas and the status when each pod has used so much, at so many seconds.
        fn look(&mut self, used_ms: u64, at_s: i64) -> (u64, Value) {
            let start: Timestamp = START.parse().expect("a time");
            let now = start + jiff::SignedDuration::from_secs(at_s);
            let used = self.uids.iter().map(|uid| (uid.clone(), used_ms)).collect();
            self.autoscaler.measure(used, now);
            self.autoscaler.act(&mut self.store, &self.reported, now).expect("it is stored");
            let object = |kind| {
                self.store.object(&ObjectRef::new(kind, Some("a"), "web")).expect("it is there")
            };
            let replicas = object(Kind::Deployment)["spec"]["replicas"].as_u64();
            let status = object(Kind::HorizontalPodAutoscaler)["status"].clone();
            (replicas.expect("a number"), status)
        }
    }

    fn reason<'a>(status: &'a Value, kind: &str) -> &'a str {
        let mut all = status["conditions"].as_array().into_iter().flatten();
        all.find(|it| it["type"] == kind).map_or("", |it| text(it, "/reason"))
    }

    #[test]
    fn busy_pods_become_more_and_idle_ones_fewer() {
        let mut bed = Bed::new(2, json!({}));
        let (replicas, status) = bed.look(0, 0);
        assert_eq!((replicas, reason(&status, "ScalingActive")), (2, "FailedGetResourceMetric"));
        // 75m each of 100m, and half of it is aimed at.
        let (replicas, status) = bed.look(1125, 15);
        assert_eq!(replicas, 3);
        assert_eq!(status["currentMetrics"][0]["resource"]["current"]["averageUtilization"], 75);
        assert_eq!(
            (&status["currentReplicas"], &status["desiredReplicas"]),
            (&json!(2), &json!(3))
        );
        assert_eq!(status["lastScaleTime"], "2026-01-31T12:00:15Z");
    }

    #[test]
    fn fewer_come_when_the_window_is_over() {
        let mut bed = Bed::new(4, json!({}));
        bed.look(0, 0);
        assert_eq!(bed.look(0, 15).0, 4, "what was is remembered for 300 s");
        assert_eq!(bed.look(0, 300).0, 4);
        assert_eq!(bed.look(0, 330).0, 1);
        let at_once = json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
        let mut bed = Bed::new(4, at_once);
        bed.look(0, 0);
        assert_eq!(bed.look(0, 15).0, 1);
        let never = json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0,
            "selectPolicy": "Disabled"}}});
        let mut bed = Bed::new(4, never);
        bed.look(0, 0);
        assert_eq!(bed.look(0, 15).0, 4);
    }

    #[test]
    fn what_cannot_be_scaled_says_why() {
        let other = json!({"scaleTargetRef": {"kind": "DaemonSet", "name": "web"}});
        let (_, status) = Bed::new(1, other).look(0, 0);
        assert_eq!(reason(&status, "AbleToScale"), "FailedGetScale");
        let memory = json!({"metrics": [{"type": "Resource", "resource": {"name": "memory",
            "target": {"type": "Utilization", "averageUtilization": 50}}}]});
        let (_, status) = Bed::new(1, memory).look(0, 0);
        assert_eq!(reason(&status, "ScalingActive"), "FailedGetResourceMetric");
        let (_, status) = Bed::new(0, json!({})).look(0, 0);
        assert_eq!(reason(&status, "ScalingActive"), "ScalingDisabled");
    }
}
