//! Label selectors, by Kubernetes' rules.

use serde_json::Value;

use crate::json::{items, text};

/// Whether a label selector takes an object. An empty one takes all.
pub(super) fn takes(selector: &Value, object: &Value) -> bool {
    let label = |key: &str| object.pointer("/metadata/labels")?.get(key);
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = items(selector, "/matchExpressions");
    pairs.into_iter().all(|(key, value)| label(key) == Some(value))
        && expressions.all(|it| {
            let found = label(text(it, "/key"));
            let is_listed = || items(it, "/values").any(|value| Some(value) == found);
            match text(it, "/operator") {
                "In" => is_listed(),
                "NotIn" => !is_listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_take_what_kubernetes_says() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front"}}});
        let check = |selector: Value, expected: bool| {
            assert_eq!(takes(&selector, &object), expected, "{selector}");
        };
        let expression = |operator: &str, key: &str, values: Value| {
            let expression = json!({"key": key, "operator": operator, "values": values});
            json!({ "matchExpressions": [expression] })
        };
        check(json!({}), true);
        check(json!({"matchLabels": {"app": "web"}}), true);
        check(json!({"matchLabels": {"app": "db"}}), false);
        check(expression("In", "app", json!(["db", "web"])), true);
        check(expression("NotIn", "app", json!(["web"])), false);
        check(expression("NotIn", "other", json!(["web"])), true);
        check(expression("Exists", "tier", json!([])), true);
        check(expression("DoesNotExist", "tier", json!([])), false);
    }
}
