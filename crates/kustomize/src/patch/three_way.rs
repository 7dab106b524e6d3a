//! The patch that `kubectl apply` sends, made of three objects: the manifest that was applied last,
//! the one that is applied now, and what is there.
//!
//! What the new manifest names becomes as it says, and what only the last one names goes. A field
//! that neither names belongs to somebody else and stays. `server` merges the patch, as an API
//! server merges kubectl's; both know from `shapes` which lists are merged element by element. A
//! kind of an extension has no such list, so that its patch is what kubectl sends for it: a merge
//! patch.
//!
//! kubectl tells the elements of a list by one field even where two of them have the same there,
//! such as port 53 of TCP and of UDP, and mixes them up. Such a list is replaced as a whole here.

use std::collections::{HashMap, HashSet};

use ambit_words::patches::{DELETE_FROM_LIST, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER};
use serde_json::{Map, Value, json};

use super::shapes::{Field, Shape, field, shape_of};
use crate::identity::Gvk;

type Fields = Map<String, Value>;

/// The patch of a whole object.
pub(crate) fn patch(last: Option<&Value>, wanted: &Value, live: &Value) -> Value {
    let gvk = Gvk::of(live);
    let shape = shape_of(&gvk.api_version(), &gvk.kind);
    let (Value::Object(wanted), Value::Object(live)) = (wanted, live) else {
        return wanted.clone();
    };
    Value::Object(patch_map(last.and_then(Value::as_object), wanted, live, shape))
}

fn patch_map(last: Option<&Fields>, wanted: &Fields, live: &Fields, shape: Shape) -> Fields {
    let mut patch = Fields::new();
    for (name, value) in wanted {
        let last = last.and_then(|it| it.get(name));
        patch_field(&mut patch, name, (last, value, live.get(name)), field(shape, name));
    }
    let gone = last.into_iter().flat_map(Fields::keys);
    let gone = gone.filter(|name| !wanted.contains_key(*name) && live.contains_key(*name));
    patch.extend(gone.map(|name| (name.clone(), Value::Null)));
    patch
}

/// A field as it was applied last, as it is wanted, and as it is.
type Three<'a> = (Option<&'a Value>, &'a Value, Option<&'a Value>);

fn patch_field(patch: &mut Fields, name: &str, (last, wanted, live): Three<'_>, about: Field) {
    match (wanted, live) {
        (Value::Null, None) => {}
        (Value::Object(wanted), Some(Value::Object(live))) => {
            let last = last.and_then(Value::as_object);
            if let Some(changed) = patch_element(last, wanted, live, about) {
                patch.insert(name.to_owned(), Value::Object(changed));
            }
        }
        (Value::Array(wanted), Some(Value::Array(live))) if wanted != live => {
            let last = last.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            match about.keys {
                None => drop(patch.insert(name.to_owned(), json!(wanted))),
                Some([]) => patch_values(patch, name, last, wanted, live),
                Some([key, ..]) => patch_list(patch, name, (last, wanted, live), (key, about)),
            }
        }
        (wanted, live) if live == Some(wanted) => {}
        (wanted, _) => drop(patch.insert(name.to_owned(), wanted.clone())),
    }
}

/// The patch of a map, unless nothing of it changes.
fn patch_element(
    last: Option<&Fields>,
    wanted: &Fields,
    live: &Fields,
    about: Field,
) -> Option<Fields> {
    let mut changed = patch_map(last, wanted, live, about.shape);
    // Of a union others may have chosen another member: that one goes, too.
    let has_more =
        |(name, value): (&String, &Value)| !value.is_null() && !wanted.contains_key(name);
    if changed.is_empty() && !(about.is_union && live.iter().any(has_more)) {
        return None;
    }
    if about.is_union {
        let kept: Vec<&String> = wanted.keys().collect();
        changed.insert(RETAIN_KEYS.to_owned(), json!(kept));
    }
    Some(changed)
}

/// The patch of a list of scalars, which are told by themselves.
fn patch_values(patch: &mut Fields, name: &str, last: &[Value], wanted: &[Value], live: &[Value]) {
    let of = |list: &'_ [Value]| list.iter().cloned().collect::<HashSet<Value>>();
    let (is_wanted, is_there) = (of(wanted), of(live));
    let gone = last.iter().filter(|it| !is_wanted.contains(*it) && is_there.contains(*it));
    let gone: Vec<&Value> = gone.collect();
    let added: Vec<&Value> = wanted.iter().filter(|it| !is_there.contains(*it)).collect();
    if !gone.is_empty() {
        patch.insert(format!("{DELETE_FROM_LIST}{name}"), json!(gone));
    }
    if !added.is_empty() {
        patch.insert(name.to_owned(), json!(added));
        patch.insert(format!("{SET_ELEMENT_ORDER}{name}"), json!(wanted));
    }
}

/// The patch of a list of maps, which are told by one of their fields.
fn patch_list(
    patch: &mut Fields,
    name: &str,
    (last, wanted, live): (&[Value], &[Value], &[Value]),
    (key, about): (&'static str, Field),
) {
    let all = (by_key(last, key), by_key(wanted, key), by_key(live, key));
    let (Some(last_by), Some(wanted_by), Some(live_by)) = all else {
        let whole = wanted.iter().cloned().chain([json!({PATCH: "replace"})]);
        patch.insert(name.to_owned(), whole.collect());
        return;
    };
    let mut changes = Vec::new();
    for element in wanted {
        let (Some(identity), Value::Object(fields)) = (element.get(key), element) else { continue };
        let Some(there) = live_by.get(identity) else {
            changes.push(element.clone());
            continue;
        };
        let before = last_by.get(identity).copied();
        if let Some(mut changed) = patch_element(before, fields, there, about) {
            changed.insert(key.to_owned(), identity.clone());
            changes.push(Value::Object(changed));
        }
    }
    let gone = last.iter().filter_map(|it| it.get(key));
    let gone = gone.filter(|it| !wanted_by.contains_key(*it) && live_by.contains_key(*it));
    changes.extend(gone.map(|it| json!({key: it, PATCH: "delete"})));
    let named = |list: &[Value]| -> Vec<Value> {
        let named = list.iter().filter_map(|it| it.get(key));
        named.filter(|it| wanted_by.contains_key(*it)).map(|it| json!({ key: it })).collect()
    };
    let order = named(wanted);
    if !changes.is_empty() || order != named(live) {
        patch.insert(format!("{SET_ELEMENT_ORDER}{name}"), json!(order));
        patch.insert(name.to_owned(), json!(changes));
    }
}

/// A manifest without its values: as much of it as tells later which fields it has named. It keeps
/// what the elements of lists are told by.
pub(crate) fn outline(manifest: &Value) -> Value {
    let gvk = Gvk::of(manifest);
    let about = Field { shape: shape_of(&gvk.api_version(), &gvk.kind), ..Field::default() };
    let mut outline = outline_of(manifest, about);
    for name in ["apiVersion", "kind"] {
        if let Some(value) = manifest.get(name) {
            outline[name] = value.clone();
        }
    }
    for name in ["name", "namespace"] {
        if let Some(value) = manifest.get("metadata").and_then(|it| it.get(name)) {
            outline["metadata"][name] = value.clone();
        }
    }
    outline
}

fn outline_of(value: &Value, about: Field) -> Value {
    match (value, about.keys) {
        (Value::Object(fields), _) => {
            let outlined = |(name, value): (&String, &Value)| {
                (name.clone(), outline_of(value, field(about.shape, name)))
            };
            Value::Object(fields.iter().map(outlined).collect())
        }
        (Value::Array(list), Some([])) => json!(list),
        (Value::Array(list), Some([key, ..])) => {
            let about = Field { keys: None, ..about };
            let outlined = |element: &Value| {
                let mut outline = outline_of(element, about);
                if let Some(identity) = element.get(key) {
                    outline[*key] = identity.clone();
                }
                outline
            };
            list.iter().map(outlined).collect()
        }
        (Value::Array(_), None) => json!([]),
        _ => Value::Null,
    }
}

/// The elements of a list by their key; `None` if one has none, or two have the same.
fn by_key<'a>(list: &'a [Value], key: &str) -> Option<HashMap<&'a Value, &'a Fields>> {
    let mut found = HashMap::with_capacity(list.len());
    for element in list {
        let fields = element.as_object()?;
        if found.insert(fields.get(key)?, fields).is_some() {
            return None;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::super::three_way_merge;
    use super::*;

    /// The spec of a Deployment's pods: as it was applied, is applied, is, and becomes.
    fn check(last: Value, wanted: Value, live: Value, expected: Value) {
        let of = |spec: Value| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "spec": {"template": {"spec": spec}}})
        };
        let merged = three_way_merge(Some(&of(last)), &of(wanted), of(live)).expect("it fits");
        assert_eq!(merged["spec"]["template"]["spec"], expected);
    }

    #[test]
    fn what_is_named_no_more_goes_and_what_others_set_stays() {
        check(
            json!({"hostname": "a", "subdomain": "b", "priority": 1}),
            json!({"subdomain": "c"}),
            json!({"hostname": "a", "subdomain": "x", "restartPolicy": "Always"}),
            json!({"subdomain": "c", "restartPolicy": "Always"}),
        );
        check(
            json!({"nodeSelector": {"a": "1", "b": "1"}}),
            json!({"nodeSelector": {"b": "2"}}),
            json!({"nodeSelector": {"a": "1", "b": "1", "c": "1"}}),
            json!({"nodeSelector": {"b": "2", "c": "1"}}),
        );
        check(json!({"a": {"b": 1}}), json!({"a": {}}), json!({"a": {"b": 1}}), json!({"a": {}}));
        check(json!({"a": 1}), json!({"a": null}), json!({"a": 1, "b": 1}), json!({"b": 1}));
        check(json!({}), json!({"a": null, "b": {}}), json!({}), json!({"b": {}}));
    }

    #[test]
    fn elements_are_merged_by_their_names() {
        check(
            json!({"containers": [
                {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]},
                {"name": "gone"},
            ]}),
            json!({"containers": [{"name": "new"}, {"name": "a", "image": "2"}]}),
            json!({"containers": [
                {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"},
                    {"name": "OTHERS", "value": "1"}]},
                {"name": "gone"}, {"name": "injected"},
            ]}),
            json!({"containers": [
                {"name": "new"}, {"name": "a", "image": "2"}, {"name": "injected"},
            ]}),
        );
        let env = |list: Value| json!({"containers": [{"name": "a", "env": list}]});
        check(
            env(json!([{"name": "X", "value": "1"}])),
            env(json!([{"name": "Y", "value": "1"}])),
            env(json!([{"name": "X", "value": "1"}, {"name": "OTHERS", "value": "1"}])),
            env(json!([{"name": "Y", "value": "1"}, {"name": "OTHERS", "value": "1"}])),
        );
        check(
            env(json!([{"name": "X"}, {"name": "Y"}])),
            env(json!([{"name": "Y"}, {"name": "X"}])),
            env(json!([{"name": "X"}, {"name": "Y"}])),
            env(json!([{"name": "Y"}, {"name": "X"}])),
        );
    }

    #[test]
    fn a_list_that_kubernetes_replaces_is_replaced() {
        let tolerations = |keys: &[&str]| {
            let list: Vec<Value> = keys.iter().map(|key| json!({ "key": key })).collect();
            json!({ "tolerations": list })
        };
        let wanted = tolerations(&["a", "c"]);
        check(tolerations(&["a"]), wanted.clone(), tolerations(&["a", "b"]), wanted);
    }

    #[test]
    fn elements_that_share_a_key_are_not_mixed_up() {
        let ports = |list: Value| json!({"containers": [{"name": "a", "ports": list}]});
        let both = json!([{"containerPort": 53, "protocol": "TCP"},
            {"containerPort": 53, "protocol": "UDP"}]);
        let named = json!([{"containerPort": 53, "protocol": "TCP", "name": "t"},
            {"containerPort": 53, "protocol": "UDP", "name": "u"}]);
        check(ports(both.clone()), ports(named.clone()), ports(both), ports(named));
    }

    #[test]
    fn a_volume_has_one_source() {
        let volume = |source: Value| {
            let mut volume = source;
            volume["name"] = json!("v");
            json!({"volumes": [volume]})
        };
        let (memory, map) = (json!({"emptyDir": {}}), json!({"configMap": {"name": "m"}}));
        let (before, after) = (volume(memory), volume(map));
        check(json!({}), after.clone(), before.clone(), after.clone());
        check(before.clone(), after.clone(), before, after);
    }

    #[test]
    fn of_a_union_only_what_the_manifest_names_stays() {
        let volume = |more: Value| {
            let mut volume = more;
            volume["name"] = json!("v");
            json!({"volumes": [volume]})
        };
        let named = volume(json!({}));
        check(named.clone(), named.clone(), volume(json!({"secret": {}})), named);
        let with = |strategy: Value| {
            let spec = json!({ "strategy": strategy });
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec})
        };
        let wanted = with(json!({"type": "RollingUpdate"}));
        let live = with(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 5}}));
        let merged = three_way_merge(Some(&wanted), &wanted, live).expect("it fits");
        assert_eq!(merged, wanted);
        let live = with(json!({"type": "RollingUpdate", "rollingUpdate": null}));
        assert_eq!(patch(Some(&wanted), &wanted, &live), json!({}));
    }

    #[test]
    fn an_outline_takes_back_what_its_manifest_would() {
        let of = |containers: Value, more: Value| {
            let mut metadata = json!({"name": "web", "namespace": "app", "finalizers": ["a"]});
            metadata["labels"] = more;
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
                "spec": {"replicas": 2, "template": {"spec": {"containers": containers,
                    "tolerations": [{"key": "x"}]}}}})
        };
        let env = |names: &[&str]| -> Value {
            names.iter().map(|it| json!({"name": it, "value": "long"})).collect()
        };
        let main = |names: &[&str]| json!({"name": "main", "image": "i", "env": env(names)});
        let last = of(json!([main(&["A", "B"]), {"name": "gone"}]), json!({"a": "1", "b": "1"}));
        let expected = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "app", "finalizers": ["a"],
                "labels": {"a": null, "b": null}},
            "spec": {"replicas": null, "template": {"spec": {"containers": [
                {"name": "main", "image": null, "env": [
                    {"name": "A", "value": null}, {"name": "B", "value": null}]},
                {"name": "gone"}], "tolerations": []}}}});
        assert_eq!(outline(&last), expected);
        let wanted = of(json!([main(&["B"])]), json!({"b": "2"}));
        let live = of(
            json!([main(&["A", "B", "OTHERS"]), {"name": "gone"}, {"name": "others"}]),
            json!({"a": "1", "b": "1", "others": "1"}),
        );
        let by = |last: &Value| three_way_merge(Some(last), &wanted, live.clone());
        let whole = by(&last).expect("it fits");
        assert_eq!(by(&outline(&last)).expect("it fits"), whole);
        assert_eq!(whole["metadata"]["labels"], json!({"b": "2", "others": "1"}));
    }

    #[test]
    fn long_lists_are_merged() {
        let env = |value: &str| {
            let of = |it: usize| json!({"name": it.to_string(), "value": value});
            json!({"containers": [{"name": "a", "env": (0..3_000).map(of).collect::<Vec<_>>()}]})
        };
        check(env("1"), env("2"), env("1"), env("2"));
    }

    #[test]
    fn values_of_a_list_are_added_and_taken_back() {
        let with = |finalizers: &[&str]| {
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"finalizers": finalizers}})
        };
        let (last, wanted, live) = (with(&["a", "b"]), with(&["b", "c"]), with(&["a", "b", "x"]));
        let merged = three_way_merge(Some(&last), &wanted, live).expect("it fits");
        assert_eq!(merged["metadata"]["finalizers"], json!(["b", "c", "x"]));
    }

    #[test]
    fn a_kind_of_an_extension_has_no_lists_that_are_merged() {
        let with = |hosts: Value, more: Value| {
            json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
                "spec": {"http": hosts, "more": more}})
        };
        let (last, live) = (with(json!([]), json!("x")), with(json!([{"name": "b"}]), json!("y")));
        let mut wanted = with(json!([{"name": "a"}]), json!("x"));
        wanted["spec"].as_object_mut().map(|it| it.remove("more"));
        let merged = three_way_merge(Some(&last), &wanted, live).expect("it fits");
        assert_eq!(merged["spec"], json!({"http": [{"name": "a"}]}));
    }

    #[test]
    fn who_has_never_applied_takes_nothing_away() {
        let with = |labels: Value| {
            let metadata = json!({ "labels": labels });
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
        };
        let (wanted, live) = (with(json!({"a": "1"})), with(json!({"b": "1"})));
        let merged = three_way_merge(None, &wanted, live).expect("it fits");
        assert_eq!(merged["metadata"]["labels"], json!({"a": "1", "b": "1"}));
    }
}
