//! The address families of services.

use serde_json::Value;

/// Why a service cannot have the families that it asks for, and what to do instead.
type Refusal = (&'static str, &'static str);

/// The families that the `spec` of a service asks for. As in Kubernetes one that leaves the choice
/// gets IPv4 alone: most applications listen on one family only.
pub(super) fn of_service(spec: &Value, old: Option<&Value>) -> Result<Vec<&'static str>, Refusal> {
    let asked = spec.get("ipFamilies").and_then(Value::as_array);
    let asks = |family| asked.is_some_and(|list| list.iter().any(|one| one == family));
    let policy = spec.get("ipFamilyPolicy").and_then(Value::as_str);
    let is_dual = matches!(policy, Some("PreferDualStack" | "RequireDualStack"));
    Ok(match (asks("IPv4"), asks("IPv6")) {
        (true, true) if policy == Some("SingleStack") => {
            if old.and_then(|old| old.pointer("/spec/ipFamilies")) != spec.get("ipFamilies") {
                return Err((
                    "a service whose ipFamilyPolicy is SingleStack has one address family",
                    "write ipFamilyPolicy: PreferDualStack, or name one family",
                ));
            }
            // One that had both, and wants one, keeps the first.
            let is_first = asked.and_then(|list| list.first()).is_some_and(|it| it == "IPv6");
            vec![if is_first { "IPv6" } else { "IPv4" }]
        }
        (true, true) => vec!["IPv4", "IPv6"],
        _ if is_dual => vec!["IPv4", "IPv6"],
        (false, true) => vec!["IPv6"],
        _ => vec!["IPv4"],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_asks_for_two_has_two_or_is_told() {
        let check = |spec: Value, old: Option<Value>, expected: Option<&[&str]>| {
            let old = old.map(|families| json!({"spec": {"ipFamilies": families}}));
            let found = of_service(&spec, old.as_ref());
            assert_eq!(found.ok().as_deref(), expected, "{spec}");
        };
        let (both, turned) = (json!(["IPv4", "IPv6"]), json!(["IPv6", "IPv4"]));
        check(json!({}), None, Some(&["IPv4"]));
        check(json!({"ipFamilies": ["IPv6"]}), None, Some(&["IPv6"]));
        check(json!({"ipFamilies": both}), None, Some(&["IPv4", "IPv6"]));
        check(json!({"ipFamilyPolicy": "PreferDualStack"}), None, Some(&["IPv4", "IPv6"]));
        let single =
            |families: &Value| json!({"ipFamilies": families, "ipFamilyPolicy": "SingleStack"});
        check(single(&both), None, None);
        check(single(&both), Some(json!(["IPv4"])), None);
        check(single(&both), Some(turned.clone()), None);
        check(single(&both), Some(both.clone()), Some(&["IPv4"]));
        check(single(&turned), Some(turned.clone()), Some(&["IPv6"]));
    }
}
