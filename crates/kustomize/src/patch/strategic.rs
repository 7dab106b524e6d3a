//! Strategic merge: a patch in the form of the object it changes.
//!
//! It follows kustomize to the letter, oddities included: what a patch adds to a list comes first,
//! elements that both sides have move to the patch's place, and `$patch: replace` on an element
//! that exists changes nothing. `$setElementOrder`, `$retainKeys` and `$deleteFromPrimitiveList`
//! are errors: kustomize does not obey them and leaves them in the object.

use serde_json::{Map, Value};

use super::shapes::{Field, Shape, field, shape_of};
use crate::error::Fault;
use crate::identity::{Gvk, scalar_text};
use crate::limits::MERGED_ELEMENTS_MAX;
use crate::yaml::plain_scalar;

/// The one field that keeps its null. kustomize keeps a null that is written out and drops a value
/// that is left empty; in JSON both are null. Generators write out this one, people none.
const KEPT_NULL: &str = "creationTimestamp";
/// Directives of Kubernetes that kustomize does not know.
const UNKNOWN: &[&str] = &["$setElementOrder", "$retainKeys", "$deleteFromPrimitiveList"];

/// Merges a patch into an object. `None` means that the patch deletes the object.
pub(crate) fn merge(object: Value, patch: Value) -> Result<Option<Value>, Fault> {
    let gvk = [&object, &patch].map(Gvk::of).into_iter().find(|it| !it.kind.is_empty());
    let shape = gvk.and_then(|gvk| shape_of(&gvk.api_version(), &gvk.kind));
    let merged = walk(Some(object), Some(patch), Field { shape, ..Field::default() })?;
    Ok(merged.value.filter(|it| !it.is_null()))
}

/// What became of two values.
struct Merged {
    value: Option<Value>,
    /// Whether the patch's value stands instead of the one that was there.
    is_replaced: bool,
}

impl Merged {
    fn kept(value: Option<Value>) -> Self {
        Self { value, is_replaced: false }
    }
}

/// What a map or list of a patch says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

fn walk(dest: Option<Value>, patch: Option<Value>, about: Field) -> Result<Merged, Fault> {
    let first = [&dest, &patch].into_iter().flatten().find(|it| !it.is_null());
    let is_list = matches!(first, Some(Value::Array(_)));
    let is_map = matches!(first, Some(Value::Object(_)) | None);
    let fits = |value: &Option<Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(_)) => is_list,
        Some(Value::Object(_)) => is_map,
        Some(_) => !is_list && !is_map,
    };
    if !fits(&dest) || !fits(&patch) {
        let what = "the patch has a value of another type than the resource";
        return Err(Fault::new(what, "correct the patch, or delete the field with null first"));
    }
    if is_map {
        return walk_map(dest, patch, about.shape);
    }
    match about.keys {
        Some(keys) if is_list => walk_list(dest, patch, keys, about.shape).map(Merged::kept),
        _ => Ok(Merged::kept(patch.or(dest))),
    }
}

fn walk_map(dest: Option<Value>, patch: Option<Value>, shape: Shape) -> Result<Merged, Fault> {
    let (dest, patch, is_replaced) = match (dest, patch) {
        (None | Some(Value::Null), Some(Value::Object(mut added))) => {
            if directive(&mut added)? == Directive::Delete {
                return Ok(Merged::kept(None));
            }
            // What is added is merged with itself: that obeys directives further down.
            (added.clone(), Some(added), false)
        }
        (dest @ Some(Value::Null), None) => return Ok(Merged::kept(dest)),
        (None | Some(Value::Null), _) => return Ok(Merged::kept(None)),
        (Some(_), Some(Value::Null)) => return Ok(Merged::kept(None)),
        (Some(Value::Object(dest)), None) => (dest, None, false),
        (Some(Value::Object(dest)), Some(Value::Object(mut patch))) => {
            match directive(&mut patch)? {
                Directive::Delete => return Ok(Merged::kept(None)),
                Directive::Replace => (patch.clone(), Some(patch), true),
                Directive::Merge => (dest, Some(patch), false),
            }
        }
        (dest, _) => return Ok(Merged::kept(dest)),
    };
    let value = merge_fields(dest, patch.unwrap_or_default(), shape)?;
    Ok(Merged { value: Some(Value::Object(value)), is_replaced })
}

fn merge_fields(
    mut dest: Map<String, Value>,
    mut patch: Map<String, Value>,
    shape: Shape,
) -> Result<Map<String, Value>, Fault> {
    let mut names: Vec<String> = dest.keys().chain(patch.keys()).cloned().collect();
    names.sort();
    names.dedup();
    for name in names {
        if let Some(directive) = UNKNOWN.iter().find(|it| name.starts_with(**it)) {
            let what = format!("kustomize does not obey `{directive}` and leaves it in the object");
            return Err(Fault::new(what, "remove it from the patch"));
        }
        let old = dest.remove(&name);
        let was = old.clone().filter(|it| !it.is_array() && !it.is_object());
        let is_patched = patch.contains_key(&name);
        let merged = walk(old, patch.remove(&name), field(shape, &name)).map_err(|fault| {
            Fault { what: format!("{name}: {}", fault.what.trim_start_matches(": ")), ..fault }
        })?;
        match merged.value {
            Some(Value::Null) if is_patched || name != KEPT_NULL => {}
            Some(value) => drop(dest.insert(name, in_style_of(value, was.as_ref()))),
            None => {}
        }
    }
    Ok(dest)
}

/// kustomize keeps the quotes of the text whose place a value takes: a quoted `"1"` that becomes
/// the number 2 is the text `"2"`.
fn in_style_of(value: Value, was: Option<&Value>) -> Value {
    let needed_quotes =
        was.and_then(Value::as_str).is_some_and(|text| !plain_scalar(text).is_string());
    match &value {
        Value::Bool(_) | Value::Number(_) if needed_quotes => Value::String(value.to_string()),
        _ => value,
    }
}

/// Takes the directive out of a map.
fn directive(patch: &mut Map<String, Value>) -> Result<Directive, Fault> {
    match patch.remove("$patch") {
        None => Ok(Directive::Merge),
        Some(value) => named(&value),
    }
}

fn named(value: &Value) -> Result<Directive, Fault> {
    match value.as_str() {
        Some("merge") => Ok(Directive::Merge),
        Some("replace") => Ok(Directive::Replace),
        Some("delete") => Ok(Directive::Delete),
        _ => {
            let what = format!("`$patch: {value}` is unknown");
            Err(Fault::new(what, "write merge, replace or delete"))
        }
    }
}

/// Takes the elements out of a list that consist of a directive alone.
fn list_directive(patch: &mut Vec<Value>) -> Result<Directive, Fault> {
    let of = |element: &Value| element.as_object().and_then(|it| it.get("$patch")).cloned();
    let Some(first) = patch.iter().find(|it| of(it).is_some()) else {
        return Ok(Directive::Merge);
    };
    if first.as_object().is_some_and(|it| it.len() > 1) {
        return Ok(Directive::Merge);
    }
    let value = of(first).unwrap_or_default();
    let directive = named(&value)?;
    patch.retain(|element| of(element).as_ref() != Some(&value));
    Ok(directive)
}

fn walk_list(
    dest: Option<Value>,
    patch: Option<Value>,
    keys: &[&str],
    shape: Shape,
) -> Result<Option<Value>, Fault> {
    let as_list = |value: Value| match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let (dest, patch) = match (dest, patch) {
        (None | Some(Value::Null), None | Some(Value::Null)) | (Some(_), Some(Value::Null)) => {
            return Ok(None);
        }
        (None | Some(Value::Null), Some(added)) => {
            let added = as_list(added);
            (added.clone(), added)
        }
        (Some(dest), None) => (as_list(dest), Vec::new()),
        (Some(dest), Some(patch)) => {
            let mut patch = as_list(patch);
            match list_directive(&mut patch)? {
                Directive::Delete => return Ok(None),
                Directive::Replace => (patch.clone(), patch),
                Directive::Merge => (as_list(dest), patch),
            }
        }
    };
    if dest.len() + patch.len() > 2 * MERGED_ELEMENTS_MAX {
        let what = format!("a list of more than {MERGED_ELEMENTS_MAX} elements");
        return Err(Fault::new(what, "shorten the list"));
    }
    if keys.is_empty() {
        return Ok(Some(Value::Array(merge_scalars(dest, patch))));
    }
    merge_elements(dest, patch, keys, shape).map(|list| Some(Value::Array(list)))
}

/// A list of scalars: the patch's first, and none twice.
fn merge_scalars(dest: Vec<Value>, patch: Vec<Value>) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for item in patch.into_iter().chain(dest) {
        if !merged.contains(&item) {
            merged.push(item);
        }
    }
    merged
}

/// The texts of an element's keys; an empty one for a key that it does not have.
fn key_texts(element: &Value, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| element.get(*key).and_then(scalar_text).unwrap_or_default()).collect()
}

fn merge_elements(
    mut dest: Vec<Value>,
    patch: Vec<Value>,
    keys: &[&str],
    shape: Shape,
) -> Result<Vec<Value>, Fault> {
    let mut wanted: Vec<Vec<String>> = Vec::new();
    for element in patch.iter().chain(&dest) {
        let texts = key_texts(element, keys);
        if !wanted.contains(&texts) {
            wanted.push(texts);
        }
    }
    if keys.len() > 1 {
        unify(&mut wanted);
    }
    let used: Vec<usize> = (0..keys.len())
        .filter(|index| wanted.iter().any(|texts| !texts[*index].is_empty()))
        .collect();
    let used = if used.is_empty() { (0..keys.len()).collect() } else { used };
    let used_keys: Vec<&str> = used.iter().map(|index| keys[*index]).collect();
    let mut merged: Vec<Value> = Vec::new();
    for texts in &wanted {
        let texts: Vec<&str> = used.iter().map(|index| texts[*index].as_str()).collect();
        let at = find(&dest, &used_keys, &texts);
        let added = find(&patch, &used_keys, &texts).map(|index| patch[index].clone());
        let old = at.map(|index| dest[index].clone());
        let about = Field { shape, ..Field::default() };
        let outcome = walk(old, added, about)?;
        let is_empty = |it: &Value| it.as_object().is_some_and(Map::is_empty);
        let Some(mut value) = outcome.value.filter(|it| !it.is_null() && !is_empty(it)) else {
            put(&mut dest, None, &used_keys, &texts);
            continue;
        };
        if let Value::Object(map) = &mut value {
            for (key, text) in used_keys.iter().zip(&texts).filter(|(_, text)| !text.is_empty()) {
                map.entry(*key).or_insert_with(|| plain_scalar(text));
            }
        }
        if let Some(index) = at.filter(|_| !outcome.is_replaced) {
            dest[index] = value.clone();
        }
        put(&mut merged, Some(value), &used_keys, &texts);
    }
    for element in dest {
        put_back(&mut merged, element, &used_keys);
    }
    Ok(merged)
}

/// Puts an element of the resource's own list into the merged one.
fn put_back(merged: &mut Vec<Value>, element: Value, keys: &[&str]) {
    let mut texts: Vec<String> = Vec::new();
    for key in keys {
        match element.get(*key) {
            Some(value) if !value.is_null() => texts.push(scalar_text(value).unwrap_or_default()),
            _ => merged.push(element.clone()),
        }
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    if keys.len() > 1 {
        put(merged, None, keys, &texts);
    }
    put(merged, Some(element), keys, &texts);
}

/// Fills in keys that one of two elements of the same other keys does not have.
fn unify(wanted: &mut [Vec<String>]) {
    for one in 0..wanted.len() {
        for other in 0..wanted.len() {
            if let Some(both) = unified(&wanted[one], &wanted[other]) {
                wanted[one].clone_from(&both);
                wanted[other] = both;
            }
        }
    }
}

fn unified(one: &[String], other: &[String]) -> Option<Vec<String>> {
    let mut has_common = false;
    let mut both = Vec::with_capacity(one.len());
    for (left, right) in one.iter().zip(other) {
        has_common |= left == right;
        if left != right && !left.is_empty() && !right.is_empty() {
            return None;
        }
        both.push(if left.is_empty() { right } else { left }.clone());
    }
    has_common.then_some(both)
}

/// The first element whose keys have these texts; a key without text does not count.
fn find(list: &[Value], keys: &[&str], texts: &[&str]) -> Option<usize> {
    let pairs: Vec<(&str, &str)> =
        keys.iter().copied().zip(texts.iter().copied()).filter(|(_, it)| !it.is_empty()).collect();
    let fits = |element: &Value| {
        let has = |(key, text): &(&str, &str)| {
            element.get(*key).and_then(scalar_text).is_some_and(|it| it == *text)
        };
        match pairs.as_slice() {
            [] => keys.iter().all(|key| element.get(*key).is_some_and(|it| !it.is_null())),
            pairs => pairs.iter().all(has),
        }
    };
    list.iter().position(|element| element.is_object() && fits(element))
}

/// Replaces the elements with these keys, adds one, or (without an element) removes them. Keys
/// without a text fit every element that has them; without any text the list is emptied.
fn put(list: &mut Vec<Value>, element: Option<Value>, keys: &[&str], texts: &[&str]) {
    let mut kept = Vec::with_capacity(list.len() + 1);
    let mut is_found = false;
    let finds_maps = texts.first().is_some_and(|it| !it.is_empty());
    for old in std::mem::take(list) {
        if old.is_null() || old.as_object().is_some_and(Map::is_empty) {
            continue;
        }
        if !old.is_object() {
            if finds_maps {
                kept.push(old);
            }
            continue;
        }
        let mut has_last = false;
        let fits = keys.iter().enumerate().all(|(index, key)| {
            if let Some(text) = texts.get(index) {
                let value = old.get(*key).filter(|it| !it.is_null());
                has_last = value.is_some_and(|it| {
                    text.is_empty() || scalar_text(it).is_some_and(|it| it == *text)
                });
            }
            has_last
        });
        if fits {
            is_found = true;
            kept.extend(element.clone());
        } else if !texts.is_empty() {
            kept.push(old);
        }
    }
    if !is_found {
        kept.extend(element);
    }
    *list = kept;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(object: Value, patch: Value, expected: Value) {
        let merged = merge(object, patch).expect("a patch that fits");
        assert_eq!(merged.unwrap_or_default(), expected);
    }

    fn pod(spec: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})
    }

    #[test]
    fn the_patchs_elements_come_first() {
        check(
            pod(json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]})),
            pod(json!({"containers": [{"name": "b", "image": "2"}, {"name": "c"}]})),
            pod(json!({"containers": [
                {"name": "b", "image": "2"}, {"name": "c"}, {"name": "a", "image": "1"},
            ]})),
        );
    }

    #[test]
    fn ports_are_merged_by_number_and_protocol() {
        let ports = |ports: Value| pod(json!({"containers": [{"name": "a", "ports": ports}]}));
        check(
            ports(json!([{"containerPort": 80}, {"containerPort": 81, "protocol": "UDP"}])),
            ports(json!([
                {"containerPort": 90}, {"containerPort": 81, "protocol": "UDP", "name": "u"},
            ])),
            ports(json!([
                {"containerPort": 90}, {"containerPort": 80},
                {"containerPort": 81, "protocol": "UDP", "name": "u"},
            ])),
        );
    }

    #[test]
    fn directives_are_obeyed() {
        let volumes = json!({"volumes": [{"name": "a"}, {"name": "b"}], "nodeName": "x"});
        check(
            pod(volumes.clone()),
            pod(json!({"volumes": [{"name": "a", "$patch": "delete"}], "nodeName": null})),
            pod(json!({"volumes": [{"name": "b"}]})),
        );
        check(
            pod(volumes.clone()),
            pod(json!({"volumes": [{"name": "c"}, {"$patch": "replace"}], "$patch": "merge"})),
            pod(json!({"volumes": [{"name": "c"}], "nodeName": "x"})),
        );
        check(
            pod(volumes.clone()),
            pod(json!({"$patch": "replace", "hostname": "y"})),
            pod(json!({"hostname": "y"})),
        );
        check(pod(volumes), json!({"kind": "Pod", "$patch": "delete"}), Value::Null);
    }

    #[test]
    fn other_lists_and_those_of_custom_resources_are_replaced() {
        check(
            pod(json!({"tolerations": [{"key": "a"}]})),
            pod(json!({"tolerations": [{"key": "b"}]})),
            pod(json!({"tolerations": [{"key": "b"}]})),
        );
        let custom =
            |list: Value| json!({"apiVersion": "example.org/v1", "kind": "Pod", "l": list});
        check(
            custom(json!([{"name": "a"}])),
            custom(json!([{"name": "b"}])),
            custom(json!([{"name": "b"}])),
        );
    }

    #[test]
    fn a_number_in_the_place_of_a_quoted_one_is_a_text() {
        check(json!({"a": "1", "b": "x"}), json!({"a": 2, "b": 2}), json!({"a": "2", "b": 2}));
    }

    #[test]
    fn directives_that_kustomize_ignores_are_errors() {
        let patch = pod(json!({"$setElementOrder/containers": []}));
        let fault = merge(pod(json!({})), patch).expect_err("it is unknown");
        assert!(fault.what.contains("does not obey `$setElementOrder`"), "{}", fault.what);
        let fault = merge(json!({"a": 1}), json!({"a": {}})).expect_err("another type");
        assert_eq!(fault.what, "a: the patch has a value of another type than the resource");
    }
}
