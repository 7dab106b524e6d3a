//! HorizontalPodAutoscalers: as many pods as their use of processors asks for.
//!
//! The rules are Kubernetes'. The caller measures; nothing here reads a process or a clock. Of two
//! autoscalers that name one object neither scales it.

mod replicas;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ambit_manifest::quantity;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
};
use serde_json::{Value, json};

use self::replicas::{Load, Rules, Target, Usage, Wanted};
use super::{decode, text};
use crate::objects::{Kind, ObjectRef, Store, StoreError, is_owned_by, scaled_by};
use crate::pod_cpu::Sample;
use crate::registry::{Mirror, Phase, PodStatus};

/// How often pods are measured and replicas decided, as in Kubernetes.
pub(crate) const INTERVAL: Duration = Duration::from_secs(15);
/// The shortest time that is measured: clock ticks are too coarse for less.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// For how long after its start a pod's use counts only while it is ready, as in Kubernetes.
const YOUNG: SignedDuration = SignedDuration::from_mins(5);
/// Thousandths.
const MILLI: i32 = -3;

/// When it is: by a clock that never goes back, and as it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) now: Timestamp,
}

/// What is remembered between two looks.
#[derive(Debug, Default)]
pub(crate) struct Autoscaler {
    before: Option<Measured>,
    /// What each pod, by its uid, uses in thousandths of a processor, and whether it was ready
    /// when that began to be measured and when it ended.
    usage: BTreeMap<String, (u64, bool)>,
    /// What was recommended for each autoscaler, and when.
    recommended: BTreeMap<ObjectRef, Vec<(Duration, u32)>>,
}

/// What pods had used of processors, and which of them were ready.
#[derive(Debug)]
struct Measured {
    at: Duration,
    used_ms: BTreeMap<String, u64>,
    ready: BTreeSet<String>,
}

/// What has become of an autoscaler.
struct Outcome {
    current: u32,
    desired: u32,
    metrics: Vec<Wanted>,
    conditions: Vec<Condition>,
}

struct Condition {
    kind: &'static str,
    is_so: bool,
    reason: &'static str,
    message: String,
}

impl Outcome {
    fn new(current: u32) -> Self {
        Self { current, desired: current, metrics: Vec::new(), conditions: Vec::new() }
    }

    /// Says this, and nothing else of that kind.
    fn say(&mut self, kind: &'static str, is_so: bool, reason: &'static str, message: String) {
        self.conditions.retain(|it| it.kind != kind);
        self.conditions.push(Condition { kind, is_so, reason, message });
    }

    fn with(mut self, kind: &'static str, is_so: bool, reason: &'static str, why: String) -> Self {
        self.say(kind, is_so, reason, why);
        self
    }
}

const ABLE: &str = "AbleToScale";
const ACTIVE: &str = "ScalingActive";
const LIMITED: &str = "ScalingLimited";

impl Autoscaler {
    /// Whether there is anything to measure for.
    pub(crate) fn is_needed(store: &Store) -> bool {
        store.of_plural(Kind::HorizontalPodAutoscaler.plural()).next().is_some()
    }

    /// Takes what pods have used so far, and which of them are ready; answers whether enough time
    /// has passed since the last one.
    pub(crate) fn measure(
        &mut self,
        sample: Sample,
        ready: BTreeSet<String>,
        at: Duration,
    ) -> bool {
        let Sample { processors, used_ms } = sample;
        if let Some(before) = &self.before {
            let elapsed = at.saturating_sub(before.at);
            if elapsed < WINDOW_MIN {
                return false;
            }
            let elapsed_ms = elapsed.as_millis();
            // A tenth more than there can be: not all is read at one moment.
            let most_ms = elapsed_ms.saturating_mul(processors as u128) * 11 / 10;
            let rate = |(uid, total): (&String, &u64)| {
                // It has fallen if an init was started again, or the time of a process was lost.
                let used_ms = u128::from(total.checked_sub(*before.used_ms.get(uid)?)?);
                let milli = u64::try_from(used_ms * 1000 / elapsed_ms).ok()?;
                let was_ready = before.ready.contains(uid) && ready.contains(uid);
                (used_ms <= most_ms).then(|| (uid.clone(), (milli, was_ready)))
            };
            self.usage = used_ms.iter().filter_map(rate).collect();
        }
        self.before = Some(Measured { at, used_ms, ready });
        true
    }

    /// Sets the replicas of all that autoscalers name, and says in their status what came of it.
    pub(crate) fn act(
        &mut self,
        store: &mut Store,
        reported: &Mirror,
        moment: Moment,
    ) -> Result<(), StoreError> {
        let all = super::all(store, Kind::HorizontalPodAutoscaler);
        self.recommended.retain(|object, _| all.iter().any(|(other, _)| other == object));
        let named = |(object, value): &(ObjectRef, Value)| scaled_by(object, value);
        let targets: Vec<Result<ObjectRef, String>> = all.iter().map(named).collect();
        let time = crate::registry::written(moment.now);
        for (index, (object, value)) in all.iter().enumerate() {
            let is_rival = |other: &usize| *other != index && targets[*other] == targets[index];
            let rivals = (0..all.len()).filter(is_rival).map(|other| &*all[other].0.name).collect();
            let outcome = match &targets[index] {
                Err(why) => Outcome::new(0).with(ABLE, false, "FailedGetScale", no_scale(why)),
                Ok(target) => {
                    let view = (&*store, reported);
                    let mut outcome = self.judge((object, value), (target, rivals), view, moment);
                    scale(&mut outcome, target, store, &time);
                    outcome
                }
            };
            let status = status(value, &outcome, &time);
            if value.get("status") != Some(&status) {
                let mut value = value.clone();
                value["status"] = status;
                store.write(object.clone(), value, &time)?;
            }
        }
        Ok(())
    }

    fn judge(
        &mut self,
        (object, value): (&ObjectRef, &Value),
        (target, rivals): (&ObjectRef, Vec<&str>),
        (store, reported): (&Store, &Mirror),
        Moment { at, now }: Moment,
    ) -> Outcome {
        let Some(scaled) = store.object(target) else {
            let why = no_scale(&format!("{target} not found"));
            return Outcome::new(0).with(ABLE, false, "FailedGetScale", why);
        };
        let current = scaled.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
        let current = u32::try_from(current).unwrap_or(u32::MAX);
        let why = "the HPA controller was able to get the target's current scale";
        let mut outcome =
            Outcome::new(current).with(ABLE, true, "SucceededGetScale", why.to_owned());
        if current == 0 {
            let why = "scaling is disabled since the replica count of the target is zero";
            return outcome.with(ACTIVE, false, "ScalingDisabled", why.to_owned());
        }
        if !rivals.is_empty() {
            let why = format!(
                "{target} is also scaled by {}; keep one autoscaler of it",
                rivals.join(", ")
            );
            return outcome.with(ACTIVE, false, "AmbiguousSelector", why);
        }
        let history = self.recommended.entry(object.clone()).or_insert_with(|| vec![(at, current)]);
        let spec = decode::<HorizontalPodAutoscaler>(value).spec;
        let rules = rules(&spec);
        outcome.desired = rules.bounded(current);
        if outcome.desired != current {
            return outcome;
        }
        let pods = loads(&self.usage, text(scaled, "/metadata/uid"), (store, reported), now);
        let (wanted, metrics) = match measured(&spec, &pods, current) {
            Ok(found) => found,
            Err(why) => {
                let why = format!("the HPA was unable to compute the replica count: {why}");
                return outcome.with(ACTIVE, false, "FailedGetResourceMetric", why);
            }
        };
        let decision = rules.decide(current, wanted, history, at);
        let why = "the HPA was able to successfully calculate a replica count from cpu";
        outcome.say(ABLE, true, decision.stable.0, decision.stable.1.to_owned());
        outcome.say(ACTIVE, true, "ValidMetricFound", why.to_owned());
        let (reason, why) = decision.limit;
        outcome.say(LIMITED, decision.is_limited, reason, why.to_owned());
        Outcome { desired: decision.replicas, metrics, ..outcome }
    }
}

fn no_scale(why: &str) -> String {
    format!("the HPA controller was unable to get the target's current scale: {why}")
}

/// Does what was decided, as `kubectl scale` does.
fn scale(outcome: &mut Outcome, target: &ObjectRef, store: &mut Store, now: &str) {
    let desired = outcome.desired;
    if desired == outcome.current {
        return;
    }
    match store.scale(target, desired, now) {
        Ok(_) => {
            tracing::info!(%target, replicas = desired, "an autoscaler scales");
            let why =
                format!("the HPA controller was able to update the target scale to {desired}");
            outcome.say(ABLE, true, "SucceededRescale", why);
        }
        Err(error) => {
            let error = anyhow::Error::new(error);
            tracing::error!(%target, error = format!("{error:#}"), "an autoscaler cannot scale");
            let why =
                format!("the HPA controller was unable to update the target scale: {error:#}");
            outcome.desired = outcome.current;
            outcome.say(ABLE, false, "FailedUpdateScale", why);
        }
    }
}

/// The pods of what is scaled.
fn loads(
    known: &BTreeMap<String, (u64, bool)>,
    owner: &str,
    (store, reported): (&Store, &Mirror),
    now: Timestamp,
) -> Vec<Load> {
    let pods = store.of_plural(Kind::Pod.plural()).filter(|(_, pod)| {
        is_owned_by(pod, owner) && pod.pointer("/metadata/deletionTimestamp").is_none()
    });
    let load = |(object, pod): (&ObjectRef, &Value)| {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let uid = text(pod, "/metadata/uid");
        let status = reported.status(namespace, &object.name, uid);
        let usage = usage(status, known.get(uid), now)?;
        Some(Load { usage, request: request(&object.name, pod) })
    };
    pods.filter_map(load).collect()
}

/// What a pod uses, of what was measured; `None` for one that has ended.
fn usage(status: Option<&PodStatus>, known: Option<&(u64, bool)>, now: Timestamp) -> Option<Usage> {
    let (status, known) = match (status, known) {
        (Some(PodStatus { phase: Phase::Failed | Phase::Succeeded, .. }), _) => return None,
        (None | Some(PodStatus { phase: Phase::Pending, .. }), _) => return Some(Usage::Unready),
        (Some(_), None) => return Some(Usage::Missing),
        (Some(status), Some(known)) => (status, known),
    };
    let started = status.started_at.as_ref().and_then(|it| it.parse::<Timestamp>().ok());
    let is_young = started.is_none_or(|started| now.duration_since(started) < YOUNG);
    let (milli, was_ready) = *known;
    // Later a pod that is not ready may be so because of its load.
    let counts = if is_young { was_ready } else { status.was_ready };
    Some(if counts { Usage::Known(milli) } else { Usage::Unready })
}

/// What a pod requests of processors; which container does not say it.
fn request(name: &str, pod: &Value) -> Result<u64, String> {
    let list = |field| pod["spec"][field].as_array().into_iter().flatten();
    let sidecars = list("initContainers").filter(|it| it["restartPolicy"] == "Always");
    let mut requests = list("containers").chain(sidecars).map(|container| {
        // As in Kubernetes, a limit is a request where there is none.
        let amount = |of| container["resources"][of]["cpu"].as_str();
        let amount = amount("requests").or_else(|| amount("limits"));
        amount.and_then(|it| quantity(it, MILLI)).ok_or_else(|| {
            let container = text(container, "/name");
            format!("missing request for cpu in container {container} of Pod {name}")
        })
    });
    requests.try_fold(0_u64, |sum, request| Ok(sum.saturating_add(request?)))
}

/// What the metrics of processors ask for, and the most of it.
fn measured(
    spec: &HorizontalPodAutoscalerSpec,
    pods: &[Load],
    current: u32,
) -> Result<(u32, Vec<Wanted>), String> {
    let targets = spec.metrics.iter().flatten().filter_map(|metric| {
        let resource = metric.resource.as_ref()?;
        let target = &resource.target;
        match (&*metric.type_, &*resource.name, &*target.type_) {
            ("Resource", "cpu", "Utilization") => {
                Some(Target::Utilization(u64::try_from(target.average_utilization?).ok()?))
            }
            ("Resource", "cpu", "AverageValue") => {
                let amount = quantity(&target.average_value.as_ref()?.0, MILLI);
                Some(Target::Value(amount.unwrap_or(u64::MAX)))
            }
            _ => None,
        }
    });
    let (mut found, mut failed) = (Vec::new(), None);
    for target in targets {
        match target.wanted(pods, current) {
            Ok(wanted) => found.push(wanted),
            Err(why) => failed = Some(why),
        }
    }
    match (found.iter().map(|it| it.replicas).max(), failed) {
        // One that has no value might ask for more.
        (Some(most), failed) if failed.is_none() || most >= current => Ok((most, found)),
        (_, Some(why)) => Err(format!("failed to get cpu utilization: {why}")),
        _ => Err("no metric of processors is asked for; a machine has no others".to_owned()),
    }
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
        has_behavior: behavior.is_some(),
    }
}

fn status(value: &Value, outcome: &Outcome, now: &str) -> Value {
    let before = &value["status"];
    let old = || before["conditions"].as_array().into_iter().flatten();
    let condition = |new: &Condition| {
        let is_so = if new.is_so { "True" } else { "False" };
        let same = old().find(|it| it["type"] == new.kind && it["status"] == is_so);
        let since = same.and_then(|it| it["lastTransitionTime"].as_str()).unwrap_or(now);
        json!({"type": new.kind, "status": is_so, "reason": new.reason, "message": new.message,
            "lastTransitionTime": since})
    };
    let said = |kind: &Value| outcome.conditions.iter().any(|new| *kind == new.kind);
    let mut conditions: Vec<Value> = outcome.conditions.iter().map(condition).collect();
    // As in Kubernetes, what was not looked at stays as it was.
    conditions.extend(old().filter(|it| !said(&it["type"])).cloned());
    let metric = |wanted: &Wanted| {
        let mut current = json!({"averageValue": format!("{}m", wanted.average)});
        if let Some(percent) = wanted.utilization {
            current["averageUtilization"] = json!(percent);
        }
        json!({"type": "Resource", "resource": {"name": "cpu", "current": current}})
    };
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
    if !outcome.metrics.is_empty() {
        status["currentMetrics"] = outcome.metrics.iter().map(metric).collect();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    const START: &str = "2026-01-31T12:00:00Z";

    /// A Deployment of so many pods that request 100m each, and an autoscaler of 1 to 5.
    struct Bed {
        _root: tempfile::TempDir,
        layout: Layout,
        store: Store,
        reported: Mirror,
        autoscaler: Autoscaler,
        uids: Vec<String>,
    }

    impl Bed {
        fn new(pods: u32, more: &Value) -> Self {
            Self::of(pods, &json!({"resources": {"requests": {"cpu": "100m"}}}), more)
        }

        /// Pods with such a container.
        fn of(pods: u32, container: &Value, more: &Value) -> Self {
            let root = tempfile::tempdir().expect("a directory");
            let layout = Layout::new(root.path());
            let store = Store::create(layout.clone()).expect("a store");
            let reported = Mirror::new(&layout);
            let autoscaler = Autoscaler::default();
            let uids = Vec::new();
            let mut bed = Self { _root: root, layout, store, reported, autoscaler, uids };
            let owner = bed.put(Kind::Deployment, "web", json!({}), json!({"replicas": pods}));
            bed.autoscale("web", more);
            for index in 0..pods {
                let metadata = json!({"ownerReferences": [{"uid": owner}]});
                let mut container = container.clone();
                container["name"] = json!("c");
                let spec = json!({"containers": [container]});
                let uid = bed.put(Kind::Pod, &format!("web-{index}"), metadata, spec);
                bed.uids.push(uid);
                bed.report(index as usize, |_| {});
            }
            bed
        }

        fn put(&mut self, kind: Kind, name: &str, mut metadata: Value, spec: Value) -> String {
            metadata["name"] = json!(name);
            metadata["namespace"] = json!("a");
            let object = ObjectRef::new(kind, Some("a"), name);
            let value = json!({"metadata": metadata, "spec": spec});
            self.store.write(object.clone(), value, START).expect("it is stored");
            text(self.store.object(&object).expect("it is there"), "/metadata/uid").to_owned()
        }

        fn autoscale(&mut self, name: &str, more: &Value) {
            let mut spec = json!({
                "scaleTargetRef": {"kind": "Deployment", "name": "web"},
                "minReplicas": 1, "maxReplicas": 5, "metrics": [utilization(50)],
            });
            for (field, value) in more.as_object().into_iter().flatten() {
                spec[field] = value.clone();
            }
            self.put(Kind::HorizontalPodAutoscaler, name, json!({}), spec);
        }

        /// A pod has run and been ready for an hour, apart from this.
        fn report(&mut self, index: usize, change: impl FnOnce(&mut PodStatus)) {
            let mut status = PodStatus {
                uid: self.uids[index].clone(),
                phase: Phase::Running,
                ready: true,
                was_ready: true,
                started_at: Some("2026-01-31T11:00:00Z".to_owned()),
                ..Default::default()
            };
            change(&mut status);
            let path = self.layout.pod_status("a", &format!("web-{index}"));
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            std::fs::write(&path, serde_json::to_vec(&status).expect("JSON")).expect("written");
            self.reported.read(&[path]);
        }

        /// The replicas and the status when each pod has used so much, at so many seconds.
        fn look(&mut self, used_ms: u64, at_s: u64) -> (u64, Value) {
            self.look_at(&vec![used_ms; self.uids.len()], at_s)
        }

        fn look_at(&mut self, used_ms: &[u64], at_s: u64) -> (u64, Value) {
            let start: Timestamp = START.parse().expect("a time");
            let at = Duration::from_secs(at_s);
            let used_ms = self.uids.iter().cloned().zip(used_ms.iter().copied()).collect();
            let statuses = self.reported.statuses().map(|(_, status)| status);
            let ready = statuses.filter(|it| it.ready).map(|it| it.uid.clone()).collect();
            self.autoscaler.measure(Sample { processors: 2, used_ms }, ready, at);
            let moment = Moment { at, now: start + at };
            self.autoscaler.act(&mut self.store, &self.reported, moment).expect("it is stored");
            let replicas = self.object(Kind::Deployment)["spec"]["replicas"].as_u64();
            let status = self.object(Kind::HorizontalPodAutoscaler)["status"].clone();
            (replicas.expect("a number"), status)
        }

        fn object(&self, kind: Kind) -> &Value {
            self.store.object(&ObjectRef::new(kind, Some("a"), "web")).expect("it is there")
        }
    }

    fn utilization(percent: u32) -> Value {
        json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percent}}})
    }

    fn average(amount: &str) -> Value {
        json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "AverageValue", "averageValue": amount}}})
    }

    /// The reason of a condition, and its message.
    fn said<'a>(status: &'a Value, kind: &str) -> (&'a str, &'a str) {
        let mut all = status["conditions"].as_array().into_iter().flatten();
        let found = all.find(|it| it["type"] == kind);
        found.map_or(("", ""), |it| (text(it, "/reason"), text(it, "/message")))
    }

    fn reason<'a>(status: &'a Value, kind: &str) -> &'a str {
        said(status, kind).0
    }

    #[test]
    fn busy_pods_become_more() {
        let mut bed = Bed::new(2, &json!({}));
        let (replicas, status) = bed.look(0, 0);
        assert_eq!((replicas, reason(&status, ACTIVE)), (2, "FailedGetResourceMetric"));
        assert_eq!(reason(&status, ABLE), "SucceededGetScale");
        // 75m each of 100m, and half of it is aimed at.
        let (replicas, status) = bed.look(1125, 15);
        assert_eq!(replicas, 3);
        assert_eq!(status["currentMetrics"][0]["resource"]["current"]["averageUtilization"], 75);
        assert_eq!(
            (&status["currentReplicas"], &status["desiredReplicas"]),
            (&json!(2), &json!(3))
        );
        assert_eq!(status["lastScaleTime"], "2026-01-31T12:00:15Z");
        let reasons = [ABLE, ACTIVE, LIMITED].map(|kind| reason(&status, kind));
        assert_eq!(reasons, ["SucceededRescale", "ValidMetricFound", "DesiredWithinRange"]);
    }

    #[test]
    fn fewer_come_when_the_window_is_over() {
        let mut bed = Bed::new(4, &json!({}));
        bed.look(0, 0);
        let (replicas, status) = bed.look(0, 15);
        assert_eq!((replicas, reason(&status, ABLE)), (4, "ScaleDownStabilized"));
        assert_eq!(bed.look(0, 299).0, 4, "what was is remembered for 300 s");
        let (replicas, status) = bed.look(0, 300);
        assert_eq!((replicas, reason(&status, LIMITED)), (1, "TooFewReplicas"));
        let at_once = json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
        let mut bed = Bed::new(4, &at_once);
        bed.look(0, 0);
        assert_eq!(bed.look(0, 15).0, 1);
        let never = json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0,
            "selectPolicy": "Disabled"}}});
        let mut bed = Bed::new(4, &never);
        bed.look(0, 0);
        let (replicas, status) = bed.look(0, 15);
        assert_eq!((replicas, reason(&status, LIMITED)), (4, "ScaleDownLimit"));
    }

    #[test]
    fn growth_waits_for_its_own_window() {
        let mut bed =
            Bed::new(2, &json!({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 60}}}));
        bed.look(0, 0);
        let (replicas, status) = bed.look(1125, 15);
        assert_eq!((replicas, reason(&status, ABLE)), (2, "ScaleUpStabilized"));
        assert_eq!(bed.look(1125 * 4, 60).0, 3);
    }

    #[test]
    fn the_bounds_hold_without_any_metric() {
        let closed = json!({"scaleDown": {"selectPolicy": "Disabled"}});
        let check = |pods, more: Value, expected| {
            let (replicas, status) = Bed::new(pods, &more).look(0, 0);
            assert_eq!((replicas, reason(&status, ABLE)), (expected, "SucceededRescale"), "{more}");
            assert_eq!(status["desiredReplicas"], expected);
        };
        check(1, json!({"minReplicas": 3}), 3);
        check(8, json!({}), 5);
        check(1, json!({"minReplicas": 3, "behavior": closed}), 3);
        check(8, json!({"behavior": closed}), 5);
        let (replicas, status) = Bed::new(0, &json!({"minReplicas": 3})).look(0, 0);
        assert_eq!((replicas, reason(&status, ACTIVE)), (0, "ScalingDisabled"));
    }

    #[test]
    fn no_autoscaler_makes_more_pods_than_kubectl_may() {
        let many = json!({"minReplicas": 20_000, "maxReplicas": 20_000});
        let (replicas, status) = Bed::new(1, &many).look(0, 0);
        assert_eq!((replicas, reason(&status, ABLE)), (1, "FailedUpdateScale"));
        assert!(said(&status, ABLE).1.contains("at most 10000 pods"), "{status}");
    }

    #[test]
    fn of_two_autoscalers_neither_scales() {
        let mut bed = Bed::new(2, &json!({"minReplicas": 3}));
        bed.autoscale("other", &json!({}));
        bed.autoscale("elsewhere", &json!({"scaleTargetRef": {"kind": "Deployment", "name": "x"}}));
        bed.look(0, 0);
        let (replicas, status) = bed.look(15_000, 15);
        assert_eq!((replicas, reason(&status, ACTIVE)), (2, "AmbiguousSelector"));
        let expected = "Deployment a/web is also scaled by other; keep one autoscaler of it";
        assert_eq!(said(&status, ACTIVE).1, expected);
    }

    #[test]
    fn a_pod_that_fails_under_load_counts() {
        let check = |change: fn(&mut PodStatus), expected: Result<u64, &str>| {
            let mut bed = Bed::new(1, &json!({}));
            bed.look(0, 0);
            bed.report(0, change);
            let (replicas, status) = bed.look(1500, 15);
            match expected {
                Ok(expected) => assert_eq!(replicas, expected, "{status}"),
                Err(part) => assert!(said(&status, ACTIVE).1.contains(part), "{status}"),
            }
        };
        let none = Err("pods might be unready");
        check(|_| {}, Ok(2));
        check(|it| it.ready = false, Ok(2));
        check(|it| (it.ready, it.was_ready) = (false, false), none);
        check(|it| it.phase = Phase::Pending, none);
        check(|it| it.phase = Phase::Failed, none);
        check(|it| it.started_at = None, Ok(2));
        let young = |it: &mut PodStatus| {
            it.started_at = Some("2026-01-31T11:55:30Z".to_owned());
            it.ready = false;
        };
        check(young, none);
    }

    #[test]
    fn a_young_pod_counts_when_it_was_ready_all_the_time() {
        let mut bed = Bed::new(1, &json!({}));
        let start = |it: &mut PodStatus| it.started_at = Some(START.to_owned());
        let mut look = |is_ready: bool, at_s: u64| {
            bed.report(0, |it| {
                start(it);
                (it.ready, it.was_ready) = (is_ready, at_s > 15);
            });
            let (replicas, status) = bed.look(at_s * 100, at_s);
            (replicas, reason(&status, ACTIVE).to_owned())
        };
        let failed = "FailedGetResourceMetric".to_owned();
        assert_eq!(look(false, 0), (1, failed.clone()));
        assert_eq!(look(false, 15), (1, failed.clone()));
        assert_eq!(look(true, 30), (1, failed), "it became ready meanwhile");
        assert_eq!(look(true, 45), (2, "ValidMetricFound".to_owned()));
    }

    #[test]
    fn what_cannot_be_is_no_measurement() {
        let check = |totals: [u64; 2], elapsed_ms: u64, expected: Option<Option<u64>>| {
            let mut autoscaler = Autoscaler::default();
            let mut measure = |total: u64, at_ms: u64| {
                let used_ms = BTreeMap::from([("u".to_owned(), total)]);
                let sample = Sample { processors: 2, used_ms };
                autoscaler.measure(sample, BTreeSet::new(), Duration::from_millis(at_ms))
            };
            measure(totals[0], 0);
            let found = measure(totals[1], elapsed_ms);
            let found = found.then(|| autoscaler.usage.get("u").map(|(milli, _)| *milli));
            assert_eq!(found, expected, "{totals:?}");
        };
        check([100, 1100], 10_000, Some(Some(100)));
        check([0, 20_000], 10_000, Some(Some(2000)));
        check([0, 22_000], 10_000, Some(Some(2200)));
        check([0, 22_001], 10_000, Some(None));
        check([0, u64::MAX], 10_000, Some(None));
        check([100, 99], 10_000, Some(None));
        check([0, 10], 999, None);
    }

    #[test]
    fn a_request_is_that_of_all_containers_that_last() {
        let pod = |containers: Value, init: Value| {
            let spec = json!({"containers": containers, "initContainers": init});
            json!({ "spec": spec })
        };
        let of = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let limited = json!({"name": "l", "resources": {"limits": {"cpu": "1"}}});
        let mut sidecar = of("50m");
        sidecar["restartPolicy"] = json!("Always");
        let check = |containers: Value, init: Value, expected: Result<u64, &str>| {
            let found = request("web-0", &pod(containers, init));
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(json!([of("100m"), of("0.1")]), json!([of("9")]), Ok(200));
        check(json!([of("100m")]), json!([sidecar]), Ok(150));
        check(json!([limited]), Value::Null, Ok(1000));
        let mut both = limited.clone();
        both["resources"]["requests"] = json!({"cpu": "100m"});
        check(json!([both]), Value::Null, Ok(100));
        let missing = "missing request for cpu in container n of Pod web-0";
        check(json!([of("1"), {"name": "n"}]), Value::Null, Err(missing));
        check(json!([of("9999999G"), of("9999999G")]), Value::Null, Ok(u64::MAX));
    }

    #[test]
    fn a_metric_without_a_value_keeps_what_is() {
        let check = |metrics: Value, used_ms, expected: u64, why: &str| {
            let more = json!({"metrics": metrics,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
            let mut bed = Bed::of(2, &json!({}), &more);
            bed.look(0, 0);
            let (replicas, status) = bed.look(used_ms, 15);
            assert_eq!((replicas, reason(&status, ACTIVE)), (expected, why), "{metrics}");
        };
        let both = json!([utilization(50), average("50m")]);
        check(both.clone(), 1500, 4, "ValidMetricFound");
        check(both, 0, 2, "FailedGetResourceMetric");
        check(json!([average("50m")]), 0, 1, "ValidMetricFound");
        let mut memory = utilization(50);
        memory["resource"]["name"] = json!("memory");
        check(json!([memory, average("50m")]), 0, 1, "ValidMetricFound");
        let mut external = average("50m");
        external["type"] = json!("External");
        check(json!([external]), 0, 2, "FailedGetResourceMetric");
    }

    #[test]
    fn what_cannot_be_scaled_says_why() {
        let check = |named: Value, part: &str| {
            let more = json!({ "scaleTargetRef": named });
            let (_, status) = Bed::new(1, &more).look(0, 0);
            let (reason, why) = said(&status, ABLE);
            assert!(reason == "FailedGetScale" && why.contains(part), "{status}");
        };
        check(json!({"kind": "Deployment", "name": "x"}), "scale: Deployment a/x not found");
        check(json!({"kind": "DaemonSet", "name": "web"}), "DaemonSet \"\" cannot be scaled");
    }
}
