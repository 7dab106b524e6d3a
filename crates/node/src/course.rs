//! Whether the mesh stays on this node: the order that `ambit uninstall` writes on the agent's own
//! DaemonSet, the end of that DaemonSet, and the answer that the agent writes on its own pod.
//!
//! An order that cannot be read changes nothing, nor does a lost connection to the API server. This
//! module only reads orders and writes answers; the agent acts on pods.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ambit_apiserver::WATCH_TIMEOUT_SECONDS;
use ambit_words::annotations::DEPARTURE;
use ambit_words::departure::{GRACE_MAX, Order};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use crate::cluster::{DaemonSetName, RETRY_MAX, RETRY_MIN};
use crate::pod::PodName;
use crate::registry::kubernetes::Reconnect;

/// Longest time that an order may let plain connections in. Pods leave right after it, or not.
const OPEN_MAX: Duration = Duration::from_secs(600);

/// Whether the mesh stays on this node. An order is kept as it was written: two orders with the
/// same text are the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Course {
    /// It stays: pods are in it as their labels say.
    Stay,
    /// It will leave all nodes. Plain connections are accepted without a policy, so that pods that
    /// leave first still reach those that leave last. It ends at `until`, because the command that
    /// ordered it may have died.
    Open { order: Arc<str>, until: Instant },
    /// Pods leave; connections through the mesh go on until then. The agent stays and answers.
    Leave { order: Arc<str>, until: Instant },
    /// Pods leave, and the agent ends with the last of them. It does not wait
    /// until its reports are read.
    End { until: Instant },
}

impl Course {
    /// The course that an order sets.
    fn parse(text: &str, at: Timestamp, now: Instant) -> Option<Self> {
        let until = |moment: Timestamp, max: Duration| {
            let left = moment.as_millisecond().saturating_sub(at.as_millisecond());
            let left = Duration::from_millis(u64::try_from(left).unwrap_or_default());
            now + left.min(max)
        };
        let order = text.into();
        Some(match text.parse().ok()? {
            Order::Open(moment) => Self::Open { order, until: until(moment, OPEN_MAX) },
            Order::Leave(moment) => Self::Leave { order, until: until(moment, GRACE_MAX) },
        })
    }

    /// Whether pods must leave.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Self::Leave { .. } | Self::End { .. })
    }

    fn order(&self) -> Option<&str> {
        match self {
            Self::Open { order, .. } | Self::Leave { order, .. } => Some(order),
            Self::Stay | Self::End { .. } => None,
        }
    }
}

/// Takes note of what the DaemonSet's annotation says. What has begun to end ends.
pub(crate) fn take(text: Option<&str>, course: &watch::Sender<Course>) {
    course.send_if_modified(|course| {
        let same = course.order() == text;
        if same || matches!(course, Course::End { .. }) {
            return false;
        }
        let ordered = match text {
            None => Some(Course::Stay),
            Some(text) => Course::parse(text, Timestamp::now(), Instant::now()),
        };
        let Some(ordered) = ordered else {
            tracing::error!(
                order = text,
                "the annotation {DEPARTURE} of the agent's DaemonSet \
                says nothing that the agent knows; the mesh stays"
            );
            return false;
        };
        tracing::info!(order = text, "the order for the mesh on this node has changed");
        *course = ordered;
        true
    });
}

/// Records an event of the DaemonSet's watch: what it orders, and whether it is deleted, or is
/// being deleted. `is_listed`: the list under way has it.
fn hear(
    event: Event<PartialObjectMeta<DaemonSet>>,
    is_listed: &mut bool,
    course: &watch::Sender<Course>,
    deleted: &watch::Sender<bool>,
) {
    match event {
        Event::Apply(set) | Event::InitApply(set) => {
            *is_listed = true;
            deleted.send_replace(set.metadata.deletion_timestamp.is_some());
            take(set.annotations().get(DEPARTURE).map(String::as_str), course);
        }
        Event::Init => *is_listed = false,
        Event::InitDone if *is_listed => {}
        // It went while nobody watched.
        Event::InitDone | Event::Delete(_) => drop(deleted.send_replace(true)),
    }
}

/// Follows the DaemonSet; never comes back.
pub(crate) async fn follow(
    client: &Client,
    daemon_set: &DaemonSetName,
    node: &str,
    course: &watch::Sender<Course>,
    deleted: &watch::Sender<bool>,
) {
    let sets: Api<PartialObjectMeta<DaemonSet>> =
        Api::namespaced(client.clone(), &daemon_set.namespace);
    let only = watcher::Config::default()
        .timeout(WATCH_TIMEOUT_SECONDS)
        .fields(&format!("metadata.name={}", daemon_set.name));
    let mut events = watcher(sets, only).backoff(Reconnect::new(node)).boxed();
    let mut is_listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => hear(event, &mut is_listed, course, deleted),
            Err(error) => {
                tracing::debug!(%error, "the agent's DaemonSet cannot be watched; tried again");
            }
        }
    }
}

/// Writes on the agent's pod how far it is, whenever that changes; never comes back.
pub(crate) async fn answer(client: &Client, pod: &PodName, mut told: watch::Receiver<String>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let mut wait = RETRY_MIN;
    while told.wait_for(|told| !told.is_empty()).await.is_ok() {
        let text = told.borrow_and_update().clone();
        let patch = json!({"metadata": {"annotations": {DEPARTURE: text}}});
        let patch = Patch::Merge(&patch);
        match pods.patch_status(&pod.name, &PatchParams::default(), &patch).await {
            Ok(_) => {
                wait = RETRY_MIN;
                if told.changed().await.is_err() {
                    break;
                }
            }
            Err(error) => {
                tracing::warn!(%error, answer = text, "cannot be written on the agent's pod; \
                    tried again (the agent needs `patch` on pods/status)");
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(RETRY_MAX);
            }
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_taken_and_what_is_none_changes_nothing() {
        let (course, _watched) = watch::channel(Course::Stay);
        let minutes =
            |until: Instant| until.saturating_duration_since(Instant::now()).as_secs().div_ceil(60);
        let check = |text: Option<&str>, expected: &str| {
            take(text, &course);
            let found = match &*course.borrow() {
                Course::Stay => "stay".to_owned(),
                Course::Open { order, until } => format!("open {order} {}", minutes(*until)),
                Course::Leave { order, until } => format!("leave {order} {}", minutes(*until)),
                Course::End { .. } => "end".to_owned(),
            };
            assert_eq!(found, expected, "{text:?}");
        };
        check(None, "stay");
        for wrong in ["", "open/", "open/1", "leave/soon", "leave/", "go"] {
            check(Some(wrong), "stay");
        }
        check(Some("open/2000-01-01T00:00:00Z"), "open open/2000-01-01T00:00:00Z 0");
        // Nor does one keep pods open for longer than ten minutes.
        check(Some("open/2999-01-01T00:00:00Z"), "open open/2999-01-01T00:00:00Z 10");
        check(Some("leave/2000-01-01T00:00:00Z"), "leave leave/2000-01-01T00:00:00Z 0");
        // No order keeps a node waiting for longer than an hour.
        check(Some("leave/2999-01-01T00:00:00Z"), "leave leave/2999-01-01T00:00:00Z 60");
        check(None, "stay");
        course.send_replace(Course::End { until: Instant::now() });
        check(None, "end");
        check(Some("open/2999-01-01T00:00:00Z"), "end");
    }

    #[test]
    fn the_end_of_the_daemon_set_is_taken_note_of_and_its_return() {
        let set = |metadata| {
            serde_json::from_value::<PartialObjectMeta<DaemonSet>>(json!({"metadata": metadata}))
                .expect("metadata")
        };
        let there = || set(json!({"name": "a", "annotations": {DEPARTURE: "open/1"}}));
        let going = || set(json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        let check = |events: Vec<Event<PartialObjectMeta<DaemonSet>>>, expected: bool| {
            let (course, _watched) = watch::channel(Course::Stay);
            let (deleted, _watched) = watch::channel(false);
            let told = format!("{events:?}");
            let mut is_listed = false;
            for event in events {
                hear(event, &mut is_listed, &course, &deleted);
            }
            assert_eq!(*deleted.borrow(), expected, "{told}");
        };
        let listed = || vec![Event::Init, Event::InitApply(there()), Event::InitDone];
        let then = |event| [listed(), vec![event]].concat();
        check(Vec::new(), false);
        check(listed(), false);
        check(then(Event::Delete(there())), true);
        check(then(Event::Apply(going())), true);
        check(vec![Event::Init, Event::InitApply(going()), Event::InitDone], true);
        // The watch starts over: a list that breaks off says nothing, a whole one without it does.
        check(then(Event::Init), false);
        check([listed(), vec![Event::Init, Event::Init]].concat(), false);
        check([listed(), vec![Event::Init, Event::InitDone]].concat(), true);
        check([listed(), listed()].concat(), false);
        // Created again.
        check([then(Event::Delete(there())), vec![Event::Apply(there())]].concat(), false);
        check([then(Event::Delete(there())), listed()].concat(), false);
    }
}
