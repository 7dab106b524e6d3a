//! Conditions of a status, as the Gateway API writes them.

use serde_json::{Value, json};

/// One condition.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    /// Its type.
    pub(super) kind: &'static str,
    /// Whether it holds.
    pub(super) status: bool,
    /// Why.
    pub(super) reason: &'static str,
    /// The same for people.
    pub(super) message: String,
}

impl Condition {
    /// It is as its type says, which is its reason too.
    pub(super) fn holds(kind: &'static str) -> Self {
        Self { kind, status: true, reason: kind, message: String::new() }
    }

    /// It is not, for this reason.
    pub(super) fn fails(kind: &'static str, reason: &'static str, message: &str) -> Self {
        Self { kind, status: false, reason, message: message.to_owned() }
    }
}

/// How conditions are written down.
pub(super) struct Told<'a> {
    /// The generation that they are of.
    pub(super) generation: i64,
    /// When they are.
    pub(super) now: &'a str,
}

impl Told<'_> {
    /// Puts `own` in place of those of the same types; one that stays keeps its time.
    pub(super) fn conditions(
        &self,
        before: Vec<Value>,
        own: impl IntoIterator<Item = Condition>,
    ) -> Value {
        let mut all = before;
        for condition in own {
            let status = if condition.status { "True" } else { "False" };
            let at = all.iter().position(|it| it["type"] == condition.kind);
            let old = at.map(|at| &all[at]).filter(|it| it["status"] == status);
            let since = old.and_then(|old| old.get("lastTransitionTime")).cloned();
            let written = json!({
                "type": condition.kind,
                "status": status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": since.unwrap_or(json!(self.now)),
                "observedGeneration": self.generation,
            });
            match at {
                Some(at) => all[at] = written,
                None => all.push(written),
            }
        }
        Value::Array(all)
    }
}
