//! Short functions that look up fields of objects.

use serde_json::Value;

/// The text at a pointer; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a pointer; 0 if there is none.
pub(crate) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// The items of the list at a pointer.
pub(crate) fn items<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// A label, whose name may hold slashes.
pub(crate) fn label<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.pointer("/metadata/labels")?.get(name)?.as_str()
}

/// An annotation, whose name may hold slashes.
pub(crate) fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(name)?.as_str()
}

/// The object's name.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// The object's namespace.
pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// The status of one of an object's conditions.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, "/status/conditions").find(|condition| condition["type"] == kind)
}

/// Whether the object's `Ready` condition is true.
pub(crate) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|condition| condition["status"] == "True")
}

/// The name of the owner of the given kind.
pub(crate) fn owner<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let mut owners = items(object, "/metadata/ownerReferences");
    owners.find(|owner| owner["kind"] == kind)?["name"].as_str()
}
