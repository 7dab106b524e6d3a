//! How large a value is: what copies it asks first.

use serde_json::Value;

/// The size of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Scalars, lists and maps in it, itself included.
    pub(crate) nodes: usize,
    /// The length of the longest way into it; 1 for a scalar.
    pub(crate) depth: usize,
    /// Bytes of the texts and the names of fields in it.
    pub(crate) bytes: usize,
}

/// Measures a value.
pub(crate) fn measure(value: &Value) -> Measure {
    let children: Vec<Measure> = match value {
        Value::Array(items) => items.iter().map(measure).collect(),
        Value::Object(map) => map.values().map(measure).collect(),
        _ => Vec::new(),
    };
    let own = match value {
        Value::String(text) => text.len(),
        Value::Object(map) => map.keys().map(String::len).sum(),
        _ => 0,
    };
    Measure {
        bytes: own + children.iter().map(|it| it.bytes).sum::<usize>(),
        nodes: 1 + children.iter().map(|it| it.nodes).sum::<usize>(),
        depth: 1 + children.iter().map(|it| it.depth).max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_depth_and_bytes_are_counted() {
        let value = json!({"a": [1, "four"], "bc": {}});
        assert_eq!(measure(&value), Measure { nodes: 5, depth: 3, bytes: 7 });
    }
}
