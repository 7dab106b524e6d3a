//! Reads fields of a stored object. It was admitted, so it has the shape of its kind.

use serde::de::DeserializeOwned;
use serde_json::Value;

const SHAPE: &str = "admitted objects have the shape of their kind";

/// The object as its kind's type.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).expect(SHAPE)
}

/// The text at a place of the object; empty where there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
