//! How far the rollout of a Deployment, StatefulSet or DaemonSet is, by its own status.

use ambit_manifest::Kind;
use serde_json::Value;

/// What a rollout has, and wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutProgress {
    /// The pods that it wants.
    wanted: u64,
    /// How many of them are to be of the present template.
    to_update: u64,
    /// Pods of the present template.
    updated: u64,
    /// Pods of any template.
    all: u64,
    /// Pods that take traffic.
    ready: u64,
}

impl RolloutProgress {
    /// Kinds that roll out.
    pub const KINDS: [Kind; 3] = [Kind::Deployment, Kind::StatefulSet, Kind::DaemonSet];

    /// That of an object of one of these kinds.
    pub fn of(kind: Kind, value: &Value) -> Self {
        let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64);
        let status = |field: &str| number(&format!("/status/{field}")).unwrap_or(0);
        if kind == Kind::DaemonSet {
            let wanted = status("desiredNumberScheduled");
            return Self {
                wanted,
                to_update: if is_on_delete(value) { 0 } else { wanted },
                updated: status("updatedNumberScheduled"),
                all: status("currentNumberScheduled"),
                ready: status("numberReady"),
            };
        }
        let wanted = number("/spec/replicas").unwrap_or(1);
        let partition = number("/spec/updateStrategy/rollingUpdate/partition").unwrap_or(0);
        Self {
            wanted,
            to_update: if is_on_delete(value) { 0 } else { wanted.saturating_sub(partition) },
            updated: status("updatedReplicas"),
            all: status("replicas"),
            ready: status("readyReplicas"),
        }
    }

    /// What it still lacks, in words.
    pub fn missing(&self) -> Option<String> {
        let Self { wanted, to_update, updated, all, ready } = *self;
        if updated < to_update {
            return Some(format!("{updated} of {to_update} pods are of the present template"));
        }
        if all > wanted {
            return Some(format!("earlier pods are still there: {}", all - wanted));
        }
        (ready < wanted).then(|| format!("{ready} of {wanted} pods are ready"))
    }

    /// Whether nothing is missing but `nowhere` pods that no node takes.
    pub(crate) fn is_done_but(&self, nowhere: u64) -> bool {
        let Self { wanted, to_update, updated, all, ready } = *self;
        updated >= to_update && all == wanted && ready + nowhere >= wanted
    }
}

fn is_on_delete(value: &Value) -> bool {
    value.pointer("/spec/updateStrategy/type").is_some_and(|kind| kind == "OnDelete")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollout_says_what_is_missing() {
        let check = |updated: u64, all: u64, ready: u64, expected: Option<&str>| {
            let status =
                json!({"updatedReplicas": updated, "replicas": all, "readyReplicas": ready});
            let value = json!({"spec": {"replicas": 2}, "status": status});
            for kind in [Kind::Deployment, Kind::StatefulSet] {
                let missing = RolloutProgress::of(kind, &value).missing();
                assert_eq!(missing.as_deref(), expected);
            }
        };
        check(1, 2, 2, Some("1 of 2 pods are of the present template"));
        check(2, 3, 2, Some("earlier pods are still there: 1"));
        check(2, 2, 1, Some("1 of 2 pods are ready"));
        check(2, 2, 2, None);
    }

    #[test]
    fn what_is_not_to_change_is_not_missing() {
        let check = |kind, update: Value, status: Value, expected: Option<&str>| {
            let value =
                json!({"spec": {"replicas": 3, "updateStrategy": update}, "status": status});
            let progress = RolloutProgress::of(kind, &value);
            assert_eq!(progress.missing().as_deref(), expected);
            assert_eq!(progress.is_done_but(0), expected.is_none());
        };
        let old = json!({"updatedReplicas": 1, "replicas": 3, "readyReplicas": 3});
        let partition = json!({"rollingUpdate": {"partition": 2}});
        check(Kind::StatefulSet, partition, old.clone(), None);
        check(Kind::StatefulSet, json!({"type": "OnDelete"}), old.clone(), None);
        let why = Some("1 of 3 pods are of the present template");
        check(Kind::StatefulSet, json!({}), old, why);
        let nodes = json!({"desiredNumberScheduled": 2, "currentNumberScheduled": 2,
            "updatedNumberScheduled": 2, "numberReady": 1});
        check(Kind::DaemonSet, json!({}), nodes, Some("1 of 2 pods are ready"));
    }
}
