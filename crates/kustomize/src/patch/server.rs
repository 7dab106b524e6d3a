//! Strategic merge as an API server does it, for the patches that kubectl and client-go send.
//!
//! It differs from kustomize's own merge: elements that the patch does not name stay before those
//! that they were before, `$setElementOrder` says where the others go, and all of Kubernetes'
//! directives are obeyed. Both know from `shapes` which lists are merged. Of several keys of a list
//! an API server merges by the first.

use std::collections::{HashMap, HashSet};

use ambit_words::patches::{DELETE_FROM_LIST, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER};
use serde_json::{Map, Value};

use super::shapes::{Field, Shape, field, shape_of};
use crate::error::Fault;
use crate::identity::Gvk;

/// Whether a kind has the lists that such a patch needs: kinds of extensions have not.
pub(crate) fn is_known(api_version: &str, kind: &str) -> bool {
    shape_of(api_version, kind).is_some()
}

/// Merges a patch into an object.
pub(crate) fn merge(object: Value, patch: Value) -> Result<Value, Fault> {
    let gvk = Gvk::of(&object);
    let shape = shape_of(&gvk.api_version(), &gvk.kind);
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(Fault::new("the patch is no map", "write the fields that change"));
    };
    merge_map(object, patch, shape).map(Value::Object)
}

type Fields = Map<String, Value>;

fn merge_map(mut map: Fields, mut patch: Fields, shape: Shape) -> Result<Fields, Fault> {
    match patch.remove(PATCH) {
        None => {}
        Some(Value::String(word)) if word == "replace" => return Ok(patch),
        Some(Value::String(word)) if word == "delete" => return Ok(Map::new()),
        Some(other) => return Err(unknown_directive(&other)),
    }
    retain_keys(&mut map, &mut patch)?;
    order_lists(&mut map, &mut patch, shape)?;
    for (name, value) in patch {
        if let Some(name) = name.strip_prefix(DELETE_FROM_LIST) {
            let gone = list(value, name)?;
            if let Some(Value::Array(all)) = map.get_mut(name) {
                let gone: HashSet<&Value> = gone.iter().collect();
                all.retain(|it| !gone.contains(it));
            }
            continue;
        }
        let about = field(shape, &name);
        let merged = match (map.get_mut(&name).map(Value::take), value) {
            (_, Value::Null) => None,
            (Some(Value::Object(old)), Value::Object(new)) => {
                Some(Value::Object(merge_map(old, new, about.shape)?))
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                Some(Value::Array(merge_list(old, new, about)?))
            }
            (_, new) => plain(new),
        };
        match merged {
            Some(merged) => drop(map.insert(name, merged)),
            None => drop(map.remove(&name)),
        }
    }
    Ok(map)
}

fn unknown_directive(value: &Value) -> Fault {
    Fault::new(format!("`{PATCH}: {value}` is unknown here"), "write replace or delete")
}

fn list(value: Value, name: &str) -> Result<Vec<Value>, Fault> {
    match value {
        Value::Array(list) => Ok(list),
        _ => Err(Fault::new(format!("the patch of `{name}` is no list"), "write a list")),
    }
}

/// Drops the fields that `$retainKeys` does not list.
fn retain_keys(map: &mut Fields, patch: &mut Fields) -> Result<(), Fault> {
    let Some(kept) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let kept = list(kept, RETAIN_KEYS)?;
    let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    let is_kept = |name: &str| kept.contains(name);
    let says = |(name, value): &(&String, &Value)| !value.is_null() && !name.starts_with('$');
    if let Some((name, _)) = patch.iter().filter(says).find(|(name, _)| !is_kept(name)) {
        let what = format!("`{RETAIN_KEYS}` does not list `{name}`, which the patch sets");
        return Err(Fault::new(what, "list it"));
    }
    map.retain(|name, _| is_kept(name));
    Ok(())
}

/// Merges the lists that the patch says the order of.
fn order_lists(map: &mut Fields, patch: &mut Fields, shape: Shape) -> Result<(), Fault> {
    let names = patch.keys().filter_map(|name| name.strip_prefix(SET_ELEMENT_ORDER));
    let names: Vec<String> = names.map(str::to_owned).collect();
    for name in names {
        let about = field(shape, &name);
        let order = patch.remove(&format!("{SET_ELEMENT_ORDER}{name}")).unwrap_or_default();
        let order = list(order, &name)?;
        if matches!(patch.get(&name), Some(Value::Null)) {
            continue;
        }
        let old = map.remove(&name).map(|it| list(it, &name)).transpose()?;
        let new = patch.remove(&name).map(|it| list(it, &name)).transpose()?;
        let before = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => new.into_iter().filter_map(plain).collect(),
            (Some(old), Some(new)) => merge_list(old, new, about)?,
        };
        map.insert(name, Value::Array(in_order(merged, &order, &before, key_of(about))));
    }
    Ok(())
}

/// The field that elements are merged by; none for scalars.
fn key_of(about: Field) -> Option<&'static str> {
    about.keys.and_then(|keys| keys.first().copied())
}

fn merge_list(old: Vec<Value>, new: Vec<Value>, about: Field) -> Result<Vec<Value>, Fault> {
    let (before, key) = (old.clone(), key_of(about));
    let (merged, order) = match (about.keys, key) {
        (None, _) => return Ok(new),
        (Some(_), None) => {
            let mut seen = HashSet::with_capacity(old.len() + new.len());
            let both = old.iter().chain(&new).filter(|it| seen.insert(*it));
            (both.cloned().collect(), new)
        }
        (Some(_), Some(key)) => match obey(old, new, key)? {
            Obeyed::Replaced(list) => return Ok(list),
            Obeyed::Merge(mut old, new) => {
                merge_elements(&mut old, &new, key, about.shape)?;
                (old, new)
            }
        },
    };
    Ok(in_order(merged, &order, &before, key))
}

/// What is left to do once the directives of a list's elements are obeyed.
enum Obeyed {
    /// Nothing: this is the list.
    Replaced(Vec<Value>),
    /// These elements are merged.
    Merge(Vec<Value>, Vec<Value>),
}

/// Obeys the elements that say what becomes of others.
fn obey(mut old: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<Obeyed, Fault> {
    let (mut new, mut is_replaced) = (Vec::new(), false);
    for element in patch {
        match element.get(PATCH) {
            None => new.push(element),
            Some(word) if word == "replace" => is_replaced = true,
            Some(word) if word == "delete" => {
                let gone = element.get(key).ok_or_else(|| keyless(key))?;
                old.retain(|it| it.get(key) != Some(gone));
            }
            Some(other) => return Err(unknown_directive(other)),
        }
    }
    Ok(if is_replaced { Obeyed::Replaced(new) } else { Obeyed::Merge(old, new) })
}

fn keyless(key: &str) -> Fault {
    Fault::new(format!("an element of the patch has no `{key}`"), "add it: elements are told by it")
}

fn merge_elements(
    old: &mut Vec<Value>,
    new: &[Value],
    key: &str,
    shape: Shape,
) -> Result<(), Fault> {
    let mut found: HashMap<Value, usize> = HashMap::with_capacity(old.len() + new.len());
    for (at, element) in old.iter().enumerate() {
        if let Some(identity) = element.get(key) {
            found.entry(identity.clone()).or_insert(at);
        }
    }
    for element in new {
        let wanted = element.get(key).ok_or_else(|| keyless(key))?;
        match found.get(wanted) {
            Some(at) => {
                let there = &mut old[*at];
                let (Value::Object(map), Value::Object(patch)) = (there.take(), element.clone())
                else {
                    return Err(keyless(key));
                };
                *there = Value::Object(merge_map(map, patch, shape)?);
            }
            None => {
                found.insert(wanted.clone(), old.len());
                old.extend(plain(element.clone()));
            }
        }
    }
    Ok(())
}

/// A value that is new: without directives, and without the nulls that mean "not there".
fn plain(value: Value) -> Option<Value> {
    Some(match value {
        Value::Object(mut map) => {
            if map.remove(PATCH).is_some_and(|word| word == "delete") {
                return None;
            }
            let is_said = |(name, value): &(String, Value)| {
                let directives = [RETAIN_KEYS, DELETE_FROM_LIST, SET_ELEMENT_ORDER];
                !value.is_null() && !directives.iter().any(|it| name.starts_with(it))
            };
            let fields = map.into_iter().filter(is_said);
            Value::Object(fields.filter_map(|(name, it)| Some((name, plain(it)?))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().filter_map(plain).collect()),
        scalar => scalar,
    })
}

/// What an element is told by: itself, or its key.
fn identity<'a>(element: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        None => Some(element),
        Some(key) => element.get(key),
    }
}

/// Where elements are in a list; of several that are told by the same the first.
fn places<'a>(list: &'a [Value], key: Option<&str>) -> HashMap<&'a Value, usize> {
    let mut places = HashMap::with_capacity(list.len());
    for (at, element) in list.iter().enumerate() {
        if let Some(identity) = identity(element, key) {
            places.entry(identity).or_insert(at);
        }
    }
    places
}

/// Puts what the patch names in its order, and what else is there in the order it had.
fn in_order(
    merged: Vec<Value>,
    order: &[Value],
    before: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let (order, before) = (places(order, key), places(before, key));
    let place = |places: &HashMap<&Value, usize>, element: &Value| {
        identity(element, key).and_then(|it| places.get(it).copied())
    };
    let (mut patched, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|it| place(&order, it).is_some());
    patched.sort_by_cached_key(|it| place(&order, it));
    others.sort_by_cached_key(|it| place(&before, it));
    let (mut others, mut all) = (others.into_iter().peekable(), Vec::new());
    for element in patched {
        let at = place(&before, &element);
        let is_before = |other: &Value| match (place(&before, other), at) {
            (Some(other), Some(at)) => other < at,
            _ => false,
        };
        while let Some(other) = others.next_if(is_before) {
            all.push(other);
        }
        all.push(element);
    }
    all.extend(others);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})
    }

    fn check(spec: Value, patch: Value, expected: Result<Value, &str>) {
        let merged = merge(pod(spec), json!({ "spec": patch }));
        let merged = merged.map(|it| it["spec"].clone()).map_err(|it| it.what);
        assert_eq!(merged, expected.map_err(str::to_owned));
    }

    #[test]
    fn elements_stay_where_they_are() {
        check(
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"containers": [{"name": "c", "image": null}, {"name": "a", "image": "2"}]}),
            Ok(json!({"containers": [{"name": "c"}, {"name": "a", "image": "2"}, {"name": "b"}]})),
        );
        check(
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"containers": [{"name": "b", "image": "2"}]}),
            Ok(json!({"containers": [
                {"name": "a", "image": "1"}, {"name": "b", "image": "2"},
            ]})),
        );
    }

    #[test]
    fn long_lists_take_little_time() {
        let began = std::time::Instant::now();
        let names: Vec<String> = (0..60_000).map(|it| format!("x{it}")).collect();
        let finalizers = |finalizers: &[String]| json!({ "finalizers": finalizers });
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": finalizers(&names)});
        let gone = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": names[1..]}});
        let merged = merge(object, gone).map_err(|it| it.what).expect("they go");
        assert_eq!(merged["metadata"], finalizers(&names[..1]));
        let fields: Fields = names.iter().map(|it| (it.clone(), json!(1))).collect();
        let mut patch = json!({ "$retainKeys": names });
        patch.as_object_mut().expect("a map").extend(fields);
        assert!(merge(pod(json!({})), json!({ "spec": patch })).is_ok());
        let named = |count: usize| -> Value {
            names[..count].iter().map(|it| json!({"name": it, "image": it})).collect()
        };
        let (live, patch) = (json!({"containers": named(50_000)}), named(60_000));
        let merged = merge(pod(live), json!({"spec": {"containers": patch.clone()}}));
        assert_eq!(merged.map_err(|it| it.what).expect("they fit")["spec"]["containers"], patch);
        let added = json!({"metadata": finalizers(&names)});
        let object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": finalizers(&names[..50_000])});
        let merged = merge(object, added).map_err(|it| it.what).expect("they are added");
        assert_eq!(merged["metadata"], finalizers(&names));
        // Compared each with each other, these would take minutes.
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[test]
    fn a_port_is_told_by_its_number_alone() {
        let ports = |ports: Value| json!({"containers": [{"name": "a", "ports": ports}]});
        check(
            ports(json!([{"containerPort": 80, "protocol": "TCP"}])),
            ports(json!([{"containerPort": 80, "name": "http"}, {"containerPort": 81}])),
            Ok(ports(json!([
                {"containerPort": 80, "protocol": "TCP", "name": "http"}, {"containerPort": 81},
            ]))),
        );
        check(
            ports(json!([{"containerPort": 80}])),
            ports(json!([{"name": "http"}])),
            Err("an element of the patch has no `containerPort`"),
        );
    }

    #[test]
    fn the_order_is_as_the_patch_says() {
        check(
            json!({"containers": [{"name": "a"}, {"name": "x"}, {"name": "b"}]}),
            json!({
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}, {"name": "c"}],
                "containers": [{"name": "c"}],
            }),
            Ok(json!({"containers": [
                {"name": "x"}, {"name": "b"}, {"name": "a"}, {"name": "c"},
            ]})),
        );
        check(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({
                "$setElementOrder/containers": [{"name": "b"}],
                "containers": [{"name": "a", "$patch": "delete"}],
            }),
            Ok(json!({"containers": [{"name": "b"}]})),
        );
    }

    #[test]
    fn directives_are_obeyed() {
        let volumes = json!({"volumes": [{"name": "a"}, {"name": "b", "emptyDir": {}}]});
        check(
            volumes.clone(),
            json!({"volumes": [{"name": "b", "$retainKeys": ["name", "secret"], "secret": {}}]}),
            Ok(json!({"volumes": [{"name": "a"}, {"name": "b", "secret": {}}]})),
        );
        check(
            volumes.clone(),
            json!({"volumes": [{"name": "b", "$retainKeys": ["name"], "secret": {}}]}),
            Err("`$retainKeys` does not list `secret`, which the patch sets"),
        );
        check(
            volumes.clone(),
            json!({"volumes": [{"$patch": "replace"}, {"name": "c"}]}),
            Ok(json!({"volumes": [{"name": "c"}]})),
        );
        check(volumes.clone(), json!({"volumes": null}), Ok(json!({})));
        check(volumes.clone(), json!({"$patch": "delete"}), Ok(json!({})));
        check(volumes, json!({"$patch": "merge"}), Err("`$patch: \"merge\"` is unknown here"));
        let metadata = |finalizers: Value| {
            let metadata = json!({ "finalizers": finalizers });
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        };
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
        assert_eq!(merge(metadata(json!(["a", "b"])), patch), Ok(metadata(json!(["b"]))));
        let patch = json!({"metadata": {"finalizers": ["c", "a"]}});
        let expected = metadata(json!(["c", "a", "b"]));
        assert_eq!(merge(metadata(json!(["a", "b"])), patch), Ok(expected));
    }

    #[test]
    fn other_values_are_replaced_and_new_ones_are_plain() {
        check(
            json!({"tolerations": [{"key": "a"}], "nodeName": "x"}),
            json!({"tolerations": [{"key": "b"}], "nodeName": null,
                "securityContext": {"runAsUser": 1, "fsGroup": null, "$patch": "replace"}}),
            Ok(json!({"tolerations": [{"key": "b"}], "securityContext": {"runAsUser": 1}})),
        );
        assert!(merge(json!([]), json!({})).is_err());
    }
}
