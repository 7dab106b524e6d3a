//! A list of conditions as it should be: those of our types replaced, others left unchanged.

use ambit_manifest::policy::StatusCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Which object of a name it is, and which of its versions: who deletes one and makes it anew
/// begins at generation 1 again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Edition {
    uid: Option<String>,
    /// Its generation.
    pub(super) generation: i64,
}

impl Edition {
    /// That of the object with this metadata.
    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        Self { uid: metadata.uid.clone(), generation: metadata.generation.unwrap_or_default() }
    }
}

/// This moment, as conditions have it.
pub(super) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `before` with `wanted` in place of all conditions of the types `own`, unless it is so already.
/// The time of a condition whose status did not change stays.
pub(super) fn merged(
    before: &[Value],
    own: &[&str],
    wanted: &[StatusCondition],
    generation: i64,
    now: &str,
) -> Option<Vec<Value>> {
    let is_own = |it: &&Value| own.iter().any(|kind| it["type"] == **kind);
    let old: Vec<&Value> = before.iter().filter(is_own).collect();
    let condition = |condition: &StatusCondition| {
        let mut same = old.iter();
        let same = same.find(|it| it["type"] == condition.kind && it["status"] == condition.status);
        let since = same.map_or_else(|| json!(now), |it| it["lastTransitionTime"].clone());
        json!({
            "type": condition.kind,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": since,
            "observedGeneration": generation,
        })
    };
    let new: Vec<Value> = wanted.iter().map(condition).collect();
    if new.len() == old.len() && new.iter().all(|it| old.contains(&it)) {
        return None;
    }
    let others = before.iter().filter(|it| !is_own(it)).cloned();
    Some(others.chain(new).collect())
}

/// Those of `wanted` that are false, and were not said in these words before.
pub(super) fn newly_false<'a>(
    before: &[Value],
    wanted: &'a [StatusCondition],
) -> Vec<&'a StatusCondition> {
    let is_told = |wanted: &StatusCondition| {
        before.iter().any(|it| {
            it["type"] == wanted.kind
                && it["status"] == wanted.status
                && it["reason"] == wanted.reason
                && it["message"] == wanted.message
        })
    };
    wanted.iter().filter(|it| it.status == "False" && !is_told(it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &'static str, status: &'static str, message: &str) -> StatusCondition {
        StatusCondition { kind, status, reason: "Reason", message: message.to_owned() }
    }

    #[test]
    fn conditions_of_others_and_times_of_what_did_not_change_stay() {
        let other = json!({"type": "LoadBalancerReady", "status": "True"});
        let own = ["A", "B"];
        let both = [condition("A", "True", "a"), condition("B", "False", "b")];
        let first = merged(std::slice::from_ref(&other), &own, &both, 1, "t1").expect("new");
        assert_eq!((first.len(), &first[0]), (3, &other));
        assert_eq!(first[1]["lastTransitionTime"], "t1");
        assert_eq!(merged(&first, &own, &both, 1, "t2"), None, "nothing changed");
        let later = merged(&first, &own, &both, 2, "t2").expect("another generation");
        assert_eq!(
            (&later[1]["observedGeneration"], &later[1]["lastTransitionTime"]),
            (&json!(2), &json!("t1"))
        );
        let changed = [condition("A", "False", "a"), condition("B", "False", "c")];
        let second = merged(&first, &own, &changed, 1, "t3").expect("it changed");
        assert_eq!(second[1]["lastTransitionTime"], "t3");
        assert_eq!(second[2]["lastTransitionTime"], "t1", "only its words changed");
        let fewer = merged(&second, &own, &changed[..1], 1, "t4").expect("one is over");
        assert_eq!(fewer.len(), 2);
        assert_eq!(merged(&fewer, &own, &[], 1, "t5"), Some(vec![other.clone()]));
        assert_eq!(merged(&[other], &own, &[], 1, "t6"), None, "there was none");
    }

    #[test]
    fn what_became_false_is_told_once() {
        let wanted = [condition("A", "False", "a"), condition("B", "True", "b")];
        let kinds = |before: &[Value]| {
            newly_false(before, &wanted).iter().map(|it| it.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[]), ["A"]);
        let told = merged(&[], &["A", "B"], &wanted, 1, "t").expect("new");
        assert_eq!(kinds(&told), [""; 0]);
    }
}
