//! What happened to pods and to what makes them, in Kubernetes' words: the events of a machine.
//!
//! Nobody reports events: they are the differences between two looks at the objects and at what the
//! nodes say of their pods. So a pod's life needs no code here, and an event never says more than
//! the objects do. The list is in memory alone and bounded; what happens again is counted, not
//! listed again.

use std::collections::{BTreeMap, VecDeque};

use ambit_words::names::UNSCHEDULABLE;
use serde_json::{Value, json};

use crate::controller::text;
use crate::objects::{Kind, ObjectRef, Store};
use crate::registry::{ContainerStatus, Mirror, OOM_KILLED, PodStatus};

/// Events that are kept; the oldest goes first.
const EVENTS_MAX: usize = 1000;
/// Longest message: reasons may quote what others wrote.
const MESSAGE_LEN_MAX: usize = 1024;

/// Reasons of a pod that starts or ends as it should.
const USUAL: [&str; 4] = ["", "starting", "waiting to be captured", "terminating"];

/// The events of a machine, and what it was when it was last looked at.
#[derive(Debug, Default)]
pub(crate) struct Events {
    events: VecDeque<Event>,
    /// How many there ever were.
    count: u64,
    pods: BTreeMap<ObjectRef, Seen>,
    /// Autoscalers, and when they scaled last.
    scaled: BTreeMap<About, String>,
}

/// Something that happened, once or again.
#[derive(Debug)]
struct Event {
    about: About,
    kind: EventKind,
    reason: &'static str,
    message: String,
    /// Which event it is, and of when.
    number: u64,
    count: u32,
    first: String,
    last: String,
}

/// The object of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct About {
    object: ObjectRef,
    uid: String,
}

/// Whether it is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventKind {
    Normal,
    Warning,
}

/// A pod as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    uid: String,
    owner: Option<About>,
    node: String,
    why_not: String,
    is_going: bool,
    status: PodStatus,
}

/// What is to be said of a change.
type Said = (About, EventKind, &'static str, String);

impl Events {
    /// Notes what has changed since the last look.
    pub(crate) fn observe(&mut self, store: &Store, reported: &Mirror, now: &str) {
        let pods: BTreeMap<ObjectRef, Seen> = store
            .of_plural("pods")
            .map(|(object, value)| (object.clone(), Seen::of(object, value, reported)))
            .collect();
        let mut said = Vec::new();
        for (object, before) in &self.pods {
            if pods.get(object).is_none_or(|now| now.uid != before.uid)
                && let Some(owner) = &before.owner
                && store.object(&owner.object).is_some()
            {
                let message = format!("Deleted pod: {}", object.name);
                said.push((owner.clone(), EventKind::Normal, "SuccessfulDelete", message));
            }
        }
        for (object, pod) in &pods {
            let before = self.pods.get(object).filter(|before| before.uid == pod.uid);
            if before != Some(pod) {
                pod.differences(object, before, &mut said);
            }
        }
        self.pods = pods;
        self.observe_autoscalers(store, &mut said);
        for event in said {
            self.note(event, now);
        }
    }

    /// Notes which autoscalers have scaled since the last look.
    fn observe_autoscalers(&mut self, store: &Store, said: &mut Vec<Said>) {
        let mut scaled = BTreeMap::new();
        for (object, value) in store.of_plural(Kind::HorizontalPodAutoscaler.plural()) {
            let uid = text(value, "/metadata/uid").to_owned();
            let about = About { object: object.clone(), uid };
            let last = text(value, "/status/lastScaleTime");
            // One that was not seen before has scaled nothing since.
            if self.scaled.get(&about).is_some_and(|before| before != last) {
                let message = rescaled(value);
                said.push((about.clone(), EventKind::Normal, "SuccessfulRescale", message));
            }
            scaled.insert(about, last.to_owned());
        }
        self.scaled = scaled;
    }

    fn note(&mut self, (about, kind, reason, mut message): Said, now: &str) {
        self.count += 1;
        if message.len() > MESSAGE_LEN_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_LEN_MAX));
            message.push_str("...");
        }
        let is_same =
            |it: &Event| it.about == about && it.reason == reason && it.message == message;
        let again = self.events.iter().position(is_same).and_then(|at| self.events.remove(at));
        let (count, first) = match again {
            Some(before) => (before.count.saturating_add(1), before.first),
            None => (1, now.to_owned()),
        };
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        let (number, last) = (self.count, now.to_owned());
        self.events.push_back(Event { about, kind, reason, message, number, count, first, last });
    }

    /// The events as Kubernetes writes them, the latest last.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        self.events.iter().map(Event::to_json).collect()
    }
}

impl Event {
    fn to_json(&self) -> Value {
        let ObjectRef { plural, namespace, name } = &self.about.object;
        let kind = Kind::from_plural(plural);
        let namespace = namespace.as_deref().unwrap_or("default");
        let kind_of = match self.kind {
            EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        };
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{name}.{:x}", self.number),
                "namespace": namespace,
                "creationTimestamp": self.first,
                "resourceVersion": self.number.to_string(),
            },
            "involvedObject": {
                "apiVersion": kind.map(|it| it.api_versions()[0]),
                "kind": kind.map(Kind::name),
                "namespace": namespace,
                "name": name,
                "uid": self.about.uid,
            },
            "type": kind_of,
            "reason": self.reason,
            "message": self.message,
            "count": self.count,
            "firstTimestamp": self.first,
            "lastTimestamp": self.last,
            "source": {"component": "ambit"},
        })
    }
}

impl Seen {
    fn of(object: &ObjectRef, value: &Value, reported: &Mirror) -> Self {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let uid = text(value, "/metadata/uid");
        let owner = value.pointer("/metadata/ownerReferences/0").and_then(|owner| {
            let kind = Kind::all().find(|kind| owner["kind"] == kind.name())?;
            let object = ObjectRef::new(kind, Some(namespace), owner["name"].as_str()?);
            Some(About { object, uid: text(owner, "/uid").to_owned() })
        });
        let is_refused = text(value, "/status/conditions/0/status") == "False";
        let why_not = text(value, "/status/conditions/0/message");
        Self {
            uid: uid.to_owned(),
            owner,
            node: text(value, "/spec/nodeName").to_owned(),
            why_not: if is_refused { why_not } else { "" }.to_owned(),
            is_going: value.pointer("/metadata/deletionTimestamp").is_some(),
            status: reported.status(namespace, &object.name, uid).cloned().unwrap_or_default(),
        }
    }

    /// What happened between two looks at a pod; before the first one it was not there.
    fn differences(&self, object: &ObjectRef, before: Option<&Self>, said: &mut Vec<Said>) {
        let about = About { object: object.clone(), uid: self.uid.clone() };
        let mut say = |kind, reason, message| said.push((about.clone(), kind, reason, message));
        let nothing = Self::default();
        let is_new = before.is_none();
        let before = before.unwrap_or(&nothing);
        let status = &self.status;
        if before.node != self.node {
            let message =
                format!("Assigned {}/{} to {}", namespace(object), object.name, self.node);
            say(EventKind::Normal, "Scheduled", message);
        }
        if !self.why_not.is_empty() && before.why_not != self.why_not {
            say(EventKind::Warning, "FailedScheduling", self.why_not.clone());
        }
        let is_failure = !USUAL.contains(&status.reason.as_str())
            && !status.reason.starts_with(UNSCHEDULABLE)
            && status.pid == 0;
        if is_failure && before.status.reason != status.reason {
            say(EventKind::Warning, "Failed", status.reason.clone());
        }
        for container in &status.containers {
            let was = before.status.containers.iter().find(|it| it.name == container.name);
            of_container(container, was, &mut say);
        }
        if self.is_going && !before.is_going {
            let names = status.containers.iter().filter(|it| it.running).map(|it| &it.name);
            names.for_each(|name| {
                say(EventKind::Normal, "Killing", format!("Stopping container {name}"));
            });
        }
        if is_new && let Some(owner) = &self.owner {
            let message = format!("Created pod: {}", object.name);
            said.push((owner.clone(), EventKind::Normal, "SuccessfulCreate", message));
        }
    }
}

/// What an autoscaler has done and why, in the words of Kubernetes' controller.
fn rescaled(autoscaler: &Value) -> String {
    let number = |at: &str| autoscaler.pointer(at).and_then(Value::as_u64);
    let current = number("/status/currentReplicas").unwrap_or_default();
    let desired = number("/status/desiredReplicas").unwrap_or_default();
    let target = text(autoscaler, "/spec/metrics/0/resource/target/type");
    let reason = match target {
        _ if number("/spec/maxReplicas").is_some_and(|most| current > most) => {
            "Current number of replicas above Spec.MaxReplicas"
        }
        _ if current < number("/spec/minReplicas").unwrap_or(1) => {
            "Current number of replicas below Spec.MinReplicas"
        }
        _ if desired < current => "All metrics below target",
        "AverageValue" => "cpu resource above target",
        _ => "cpu resource utilization (percentage of request) above target",
    };
    format!("New size: {desired}; reason: {reason}")
}

fn of_container(
    now: &ContainerStatus,
    before: Option<&ContainerStatus>,
    say: &mut impl FnMut(EventKind, &'static str, String),
) {
    let nothing = ContainerStatus::default();
    let before = before.unwrap_or(&nothing);
    let name = &now.name;
    // It may have started and ended between the two looks, or ended and started again.
    let has_exit = before.last_exit.is_none() && now.last_exit.is_some();
    let is_again = now.restarts > before.restarts;
    let was_missed = !before.running && !now.running && (is_again || has_exit);
    let has_ended = was_missed || before.running && (!now.running || is_again);
    let failure = now.start_failure();
    if was_missed && failure.is_none() {
        say(EventKind::Normal, "Started", format!("Started container {name}"));
    }
    if has_ended {
        // What came before its end.
        of_health(now, before, say);
    }
    match now.last_exit {
        Some(_) if has_ended && let Some(why) = failure => {
            say(EventKind::Warning, "Failed", format!("Container {name} {why}"));
        }
        Some(0) if has_ended => {
            say(EventKind::Normal, "Completed", format!("Container {name} ended well"));
        }
        Some(exit) if has_ended && now.oom_killed => {
            let why = "it wanted more memory than its limit";
            let message = format!("Container {name} exited with {exit}: {why}");
            say(EventKind::Warning, OOM_KILLED, message);
        }
        Some(exit) if has_ended => {
            say(EventKind::Warning, "Exited", format!("Container {name} exited with {exit}"));
        }
        _ => {}
    }
    if now.running && (!before.running || is_again) {
        say(EventKind::Normal, "Started", format!("Started container {name}"));
    }
    if now.crash_looping && !before.crash_looping {
        let message = format!("Back-off restarting failed container {name}");
        say(EventKind::Warning, "BackOff", message);
    }
    if !has_ended {
        of_health(now, before, say);
    }
}

fn of_health(
    now: &ContainerStatus,
    before: &ContainerStatus,
    say: &mut impl FnMut(EventKind, &'static str, String),
) {
    if now.unhealthy.count > before.unhealthy.count {
        say(EventKind::Warning, "Unhealthy", now.unhealthy.message.clone());
    }
    if now.post_start_failures > before.post_start_failures {
        say(EventKind::Warning, "FailedPostStartHook", "PostStartHook failed".to_owned());
    }
    if now.killed.count > before.killed.count {
        say(EventKind::Normal, "Killing", now.killed.message.clone());
    }
    if now.pre_stop_failures > before.pre_stop_failures {
        say(EventKind::Warning, "FailedPreStopHook", "PreStopHook failed".to_owned());
    }
}

fn namespace(object: &ObjectRef) -> &str {
    object.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Phase;

    fn pod(name: &str) -> ObjectRef {
        ObjectRef::new(Kind::Pod, Some("app"), name)
    }

    fn container(change: impl FnOnce(&mut ContainerStatus)) -> Seen {
        let mut container = ContainerStatus { name: "web".to_owned(), ..Default::default() };
        change(&mut container);
        let status = PodStatus {
            phase: Phase::Running,
            pid: 7,
            containers: vec![container],
            ..Default::default()
        };
        Seen { uid: "u".to_owned(), node: "node-1".to_owned(), status, ..Seen::default() }
    }

    fn check(before: Option<&Seen>, now: &Seen, expected: &[&str]) {
        let mut said = Vec::new();
        now.differences(&pod("web"), before, &mut said);
        let said: Vec<String> = said
            .into_iter()
            .map(|(about, kind, reason, message)| {
                format!("{} {kind:?} {reason}: {message}", about.object.plural)
            })
            .collect();
        assert_eq!(said, expected);
    }

    #[test]
    fn a_pod_is_created_scheduled_started_and_ended() {
        let object = ObjectRef::new(Kind::Deployment, Some("app"), "web");
        let owner = Some(About { object, uid: "d".to_owned() });
        let new = Seen { uid: "u".to_owned(), owner: owner.clone(), ..Seen::default() };
        check(None, &new, &["deployments Normal SuccessfulCreate: Created pod: web"]);
        let placed = Seen { node: "node-1".to_owned(), ..new.clone() };
        check(Some(&new), &placed, &["pods Normal Scheduled: Assigned app/web to node-1"]);
        let running = Seen { owner, ..container(|it| it.running = true) };
        check(Some(&placed), &running, &["pods Normal Started: Started container web"]);
        let going = Seen { is_going: true, ..running.clone() };
        check(Some(&running), &going, &["pods Normal Killing: Stopping container web"]);
        check(Some(&going), &going, &[]);
    }

    #[test]
    fn what_goes_wrong_is_a_warning() {
        let placed = Seen { node: "node-1".to_owned(), ..container(|_| {}) };
        let nowhere = Seen { why_not: "0/1 nodes are available".to_owned(), ..placed.clone() };
        check(Some(&placed), &nowhere, &["pods Warning FailedScheduling: 0/1 nodes are available"]);
        let mut failed = Seen { node: "node-1".to_owned(), ..Seen::default() };
        failed.status.reason = "cannot write /a".to_owned();
        check(
            Some(&Seen { node: "node-1".to_owned(), ..Seen::default() }),
            &failed,
            &["pods Warning Failed: cannot write /a"],
        );
        let running = container(|it| it.running = true);
        let again = container(|it| {
            (it.running, it.restarts, it.last_exit, it.crash_looping) = (true, 1, Some(3), true);
        });
        check(
            Some(&running),
            &again,
            &[
                "pods Warning Exited: Container web exited with 3",
                "pods Normal Started: Started container web",
                "pods Warning BackOff: Back-off restarting failed container web",
            ],
        );
        let short = container(|it| it.last_exit = Some(3));
        let expected = [
            "pods Normal Started: Started container web",
            "pods Warning Exited: Container web exited with 3",
        ];
        check(Some(&container(|_| {})), &short, &expected);
        let never = container(|it| {
            (it.last_exit, it.reason) = (Some(127), "cannot run x: no such file".to_owned());
        });
        let why = "pods Warning Failed: Container web cannot start: cannot run x: no such file";
        check(Some(&container(|_| {})), &never, &[why]);
        let ran = container(|it| {
            (it.last_exit, it.reason) = (Some(3), "exited with 3".to_owned());
        });
        check(Some(&container(|_| {})), &ran, &expected);
        let back = container(|it| (it.running, it.restarts, it.last_exit) = (true, 1, Some(3)));
        check(Some(&short), &back, &expected[..1]);
        let ended = container(|it| it.last_exit = Some(0));
        check(Some(&running), &ended, &["pods Normal Completed: Container web ended well"]);
    }

    #[test]
    fn what_probes_and_hooks_say_comes_before_an_end() {
        let running = container(|it| it.running = true);
        let unhealthy = |it: &mut ContainerStatus| {
            it.running = true;
            it.unhealthy.add("Liveness probe failed: why".to_owned());
        };
        let failed = "pods Warning Unhealthy: Liveness probe failed: why";
        check(Some(&running), &container(unhealthy), &[failed]);
        check(Some(&container(unhealthy)), &container(unhealthy), &[]);
        let killed = container(|it| {
            unhealthy(it);
            it.killed.add("Container web failed liveness probe, will be restarted".to_owned());
            (it.restarts, it.last_exit) = (1, Some(143));
        });
        let expected = [
            failed,
            "pods Normal Killing: Container web failed liveness probe, will be restarted",
            "pods Warning Exited: Container web exited with 143",
            "pods Normal Started: Started container web",
        ];
        check(Some(&running), &killed, &expected);
        let hooks = container(|it| {
            (it.running, it.post_start_failures, it.pre_stop_failures) = (true, 1, 1);
            it.killed.add("FailedPostStartHook".to_owned());
        });
        let expected = [
            "pods Warning FailedPostStartHook: PostStartHook failed",
            "pods Normal Killing: FailedPostStartHook",
            "pods Warning FailedPreStopHook: PreStopHook failed",
        ];
        check(Some(&running), &hooks, &expected);
    }

    #[test]
    fn an_autoscaler_says_what_it_scaled_and_why() {
        let root = tempfile::tempdir().expect("a directory");
        let layout = crate::layout::Layout::new(root.path());
        let mut store = Store::create(layout.clone()).expect("a store");
        let reported = Mirror::new(&layout);
        let mut events = Events::default();
        let object = ObjectRef::new(Kind::HorizontalPodAutoscaler, Some("app"), "web");
        let mut look = |current: u32, desired: u32, target: &str, last: Value| {
            let metric = json!({"resource": {"target": {"type": target}}});
            let value = json!({
                "metadata": {"name": "web", "namespace": "app"},
                "spec": {"minReplicas": 2, "maxReplicas": 5, "metrics": [metric]},
                "status": {"currentReplicas": current, "desiredReplicas": desired,
                    "lastScaleTime": last},
            });
            store.write(object.clone(), value, "now").expect("it is stored");
            events.observe(&store, &reported, "now");
            events.to_json().iter().map(|it| it["message"].to_string()).collect::<Vec<_>>()
        };
        let utilization = "Utilization";
        assert!(look(2, 2, utilization, Value::Null).is_empty());
        let more = "\"New size: 4; reason: cpu resource utilization (percentage of request) above \
                    target\"";
        assert_eq!(look(2, 4, utilization, json!("1")), [more]);
        assert_eq!(look(4, 4, utilization, json!("1")).len(), 1, "it has not scaled since");
        for (current, desired, target, last, expected) in [
            (4, 5, "AverageValue", "2", "New size: 5; reason: cpu resource above target"),
            (5, 3, utilization, "3", "New size: 3; reason: All metrics below target"),
            (7, 5, utilization, "4", "Current number of replicas above Spec.MaxReplicas"),
            (1, 2, utilization, "5", "Current number of replicas below Spec.MinReplicas"),
        ] {
            let said = look(current, desired, target, json!(last));
            assert!(said.last().is_some_and(|it| it.contains(expected)), "{said:?}");
        }
    }

    #[test]
    fn the_list_is_bounded_and_counts_what_happens_again() {
        let mut events = Events::default();
        let about = |name: &str| About { object: pod(name), uid: String::new() };
        let mut note = |name: &str, message: &str, now: &str| {
            events.note((about(name), EventKind::Warning, "BackOff", message.to_owned()), now);
        };
        note("again", "it ended", "t0");
        for number in 0..EVENTS_MAX - 2 {
            note("other", &number.to_string(), "t1");
        }
        note("again", "it ended", "t2");
        note("other", &"é".repeat(MESSAGE_LEN_MAX), "t3");
        note("other", "one more", "t4");
        let all = events.to_json();
        assert_eq!(all.len(), EVENTS_MAX);
        assert_eq!(all[0]["message"], "1", "the oldest went");
        let again = &all[EVENTS_MAX - 3];
        assert_eq!(
            [&again["count"], &again["firstTimestamp"], &again["lastTimestamp"]],
            [&json!(2), &json!("t0"), &json!("t2")]
        );
        let long = all[EVENTS_MAX - 2]["message"].as_str().expect("text");
        assert_eq!(long.len(), MESSAGE_LEN_MAX + 3);
    }
}
