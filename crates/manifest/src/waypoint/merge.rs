//! Strategic merge patches, as `kubectl patch` and Istio apply them.
//!
//! A map is merged field by field, and `null` removes one. Some lists are merged by a key of their
//! members; all others are replaced. Directives (`$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList`) say otherwise; members stay in their order, whatever
//! `$setElementOrder` says. The keys are those of the kinds that a waypoint is
//! made of. Nothing here knows what a field means.

use ambit_words::patches::{DELETE_FROM_LIST, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER};
use serde_json::{Map, Value};

/// Lists that are merged, by the name of their field, and what tells their members apart: the first
/// of these that a member has.
const KEYS: [(&str, &[&str]); 14] = [
    ("containers", &["name"]),
    ("env", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("ownerReferences", &["uid"]),
    ("ports", &["containerPort", "port"]),
    ("resourceClaims", &["name"]),
    ("secrets", &["name"]),
    ("topologySpreadConstraints", &["topologyKey"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// Merges a patch; an error says where it makes no sense.
pub(super) fn merge(
    into: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), String> {
    map(into, patch, "")
}

fn map(into: &mut Map<String, Value>, patch: &Map<String, Value>, at: &str) -> Result<(), String> {
    match directive(patch, at)? {
        Directive::Merge => {}
        // What is in it is all there is.
        Directive::Replace | Directive::Delete => into.clear(),
    }
    if let Some(kept) = patch.get(RETAIN_KEYS) {
        let kept = kept.as_array().ok_or_else(|| format!("{at}{RETAIN_KEYS} is no list"))?;
        into.retain(|key, _| kept.iter().any(|it| it == key.as_str()));
    }
    for (key, value) in patch {
        let at = format!("{at}.{key}");
        if let Some(list) = key.strip_prefix(DELETE_FROM_LIST) {
            let doomed = value.as_array().ok_or_else(|| format!("{at} is no list"))?;
            if let Some(Value::Array(list)) = into.get_mut(list) {
                list.retain(|it| !doomed.contains(it));
            }
            continue;
        }
        if key == PATCH || key == RETAIN_KEYS || key.starts_with(SET_ELEMENT_ORDER) {
            continue;
        }
        if key.starts_with('$') {
            return Err(format!("{at} is no directive that is known"));
        }
        field(into, key, value, &at)?;
    }
    Ok(())
}

fn field(into: &mut Map<String, Value>, key: &str, value: &Value, at: &str) -> Result<(), String> {
    match value {
        Value::Null => drop(into.remove(key)),
        Value::Object(patch) => {
            if matches!(directive(patch, at)?, Directive::Delete) {
                into.remove(key);
                return Ok(());
            }
            let there = into.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !there.is_object() {
                *there = Value::Object(Map::new());
            }
            map(there.as_object_mut().expect("it was made one"), patch, at)?;
        }
        Value::Array(patch) => {
            let keys = KEYS.iter().find(|(name, _)| *name == key).map(|(_, keys)| *keys);
            let is_of_maps = patch.iter().all(Value::is_object);
            match (keys, into.get_mut(key)) {
                (Some(keys), Some(Value::Array(there))) if is_of_maps => {
                    list(there, patch, keys, at)?;
                }
                (Some(keys), _) if is_of_maps => {
                    let mut all = Vec::new();
                    list(&mut all, patch, keys, at)?;
                    into.insert(key.to_owned(), Value::Array(all));
                }
                _ => drop(into.insert(key.to_owned(), value.clone())),
            }
        }
        scalar => drop(into.insert(key.to_owned(), scalar.clone())),
    }
    Ok(())
}

fn list(into: &mut Vec<Value>, patch: &[Value], keys: &[&str], at: &str) -> Result<(), String> {
    let members = patch.iter().filter_map(Value::as_object).enumerate();
    let members: Vec<_> = members.map(|(index, it)| (format!("{at}[{index}]"), it)).collect();
    let replaces =
        |it: &Map<String, Value>| it.len() == 1 && it.get(PATCH) == Some(&"replace".into());
    if members.iter().any(|(_, it)| replaces(it)) {
        into.clear();
    }
    for (at, member) in members.into_iter().filter(|(_, it)| !replaces(it)) {
        let key = keys.iter().find(|key| member.contains_key(**key));
        let key = key.ok_or_else(|| format!("{at} has no {}", keys.join(" and no ")))?;
        let is_meant = |it: &Value| it.get(*key) == member.get(*key);
        if matches!(directive(member, &at)?, Directive::Delete) {
            into.retain(|it| !is_meant(it));
            continue;
        }
        let found = into.iter_mut().find(|it| is_meant(it)).and_then(Value::as_object_mut);
        match found {
            Some(there) => map(there, member, &at)?,
            None => {
                let mut new = Map::new();
                map(&mut new, member, &at)?;
                into.push(Value::Object(new));
            }
        }
    }
    Ok(())
}

enum Directive {
    Merge,
    Replace,
    Delete,
}

fn directive(patch: &Map<String, Value>, at: &str) -> Result<Directive, String> {
    match patch.get(PATCH).map(Value::as_str) {
        None | Some(Some("merge")) => Ok(Directive::Merge),
        Some(Some("replace")) => Ok(Directive::Replace),
        Some(Some("delete")) => Ok(Directive::Delete),
        Some(_) => Err(format!("{at}.{PATCH} is none of merge, replace and delete")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(before: &Value, patch: &Value, expected: &Value) {
        let mut after = before.as_object().expect("a map").clone();
        merge(&mut after, patch.as_object().expect("a map")).expect("it makes sense");
        assert_eq!(Value::Object(after), *expected, "{patch}");
    }

    #[test]
    fn maps_are_merged_and_null_removes() {
        let before = json!({"a": {"b": 1, "c": 2}, "d": [1, 2]});
        check(&before, &json!({"a": {"b": 3}}), &json!({"a": {"b": 3, "c": 2}, "d": [1, 2]}));
        check(&before, &json!({"a": {"b": null}}), &json!({"a": {"c": 2}, "d": [1, 2]}));
        check(&before, &json!({"a": null, "d": null}), &json!({}));
        check(&before, &json!({"a": null, "d": [3]}), &json!({"d": [3]}));
        check(&before, &json!({"a": 5, "d": {"e": 1}}), &json!({"a": 5, "d": {"e": 1}}));
        check(
            &before,
            &json!({"a": {"x": {"y": null, "z": 1}}, "d": null}),
            &json!({"a": {"b": 1, "c": 2, "x": {"z": 1}}}),
        );
    }

    #[test]
    fn members_of_lists_are_told_apart_by_their_key() {
        let before = json!({"containers": [{"name": "one", "image": "i",
            "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]}]});
        check(
            &before,
            &json!({"containers": [{"name": "one", "env": [{"name": "B", "value": "2"}]},
                {"name": "two", "image": "j"}]}),
            &json!({"containers": [{"name": "one", "image": "i",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"containerPort": 80}]}, {"name": "two", "image": "j"}]}),
        );
        check(
            &before,
            &json!({"containers": [{"name": "one", "$patch": "delete"}]}),
            &json!({"containers": []}),
        );
        check(
            &before,
            &json!({"containers": [{"$patch": "replace"}, {"name": "two"}]}),
            &json!({"containers": [{"name": "two"}]}),
        );
        let ports = json!({"ports": [{"port": 80, "name": "a"}]});
        check(
            &ports,
            &json!({"ports": [{"port": 80, "nodePort": 30000}, {"port": 81}]}),
            &json!({"ports": [{"port": 80, "name": "a", "nodePort": 30000}, {"port": 81}]}),
        );
    }

    #[test]
    fn directives_are_followed() {
        let before = json!({"a": {"b": 1, "c": 2}, "finalizers": ["x", "y"]});
        check(
            &before,
            &json!({"a": {"$patch": "replace", "d": 3},
                "$deleteFromPrimitiveList/finalizers": ["x"]}),
            &json!({"a": {"d": 3}, "finalizers": ["y"]}),
        );
        check(
            &before,
            &json!({"a": {"$patch": "delete"}, "$setElementOrder/finalizers": ["y", "x"]}),
            &json!({"finalizers": ["x", "y"]}),
        );
        check(
            &json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            &json!({"volumes": [{"name": "v", "$retainKeys": ["name", "configMap"],
                "configMap": {"name": "m"}}]}),
            &json!({"volumes": [{"name": "v", "configMap": {"name": "m"}}]}),
        );
    }

    #[test]
    fn what_makes_no_sense_names_its_place() {
        let check = |patch: Value, part: &str| {
            let mut into = Map::new();
            let error = merge(&mut into, patch.as_object().unwrap()).expect_err("no sense");
            assert!(error.contains(part), "{error}");
        };
        check(json!({"containers": [{"image": "i"}]}), ".containers[0] has no name");
        check(json!({"ports": [{"name": "p"}]}), ".ports[0] has no containerPort and no port");
        check(json!({"a": {"$patch": "remove"}}), ".a.$patch is none of");
        check(json!({"a": {"$other": 1}}), ".a.$other is no directive");
        check(json!({"a": {"$retainKeys": 1}}), "is no list");
    }
}
