//! The hash that becomes part of a generated name.
//!
//! It is over the JSON text that kustomize's Go program makes, so that text is made here the same:
//! keys in order, and `<`, `>`, `&` and two line separators escaped. The name in it is empty.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Letters of the hash.
const LENGTH: usize = 10;

/// The hash of a ConfigMap's or Secret's data.
pub(crate) fn digest(resource: &Value) -> String {
    let kind = resource.get("kind").and_then(Value::as_str).unwrap_or_default();
    let is_secret = kind == "Secret";
    let mut hashed = Map::new();
    hashed.insert("kind".to_owned(), json!(kind));
    hashed.insert("name".to_owned(), json!(""));
    let text = |field: &str| resource.get(field).cloned().unwrap_or_else(|| json!(""));
    hashed.insert("data".to_owned(), text("data"));
    let more = if is_secret { "stringData" } else { "binaryData" };
    if let Some(map) = resource.get(more).filter(|it| it.is_object()) {
        hashed.insert(more.to_owned(), map.clone());
    }
    if is_secret {
        hashed.insert("type".to_owned(), text("type"));
    }
    let text = as_go_writes(&Value::Object(hashed).to_string());
    let hash: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    hash.chars().take(LENGTH).map(without_bad_words).collect()
}

/// kustomize replaces vowels and digits that look like them, so that no word appears.
fn without_bad_words(letter: char) -> char {
    match letter {
        '0' => 'g',
        '1' => 'h',
        '3' => 'k',
        'a' => 'm',
        'e' => 't',
        other => other,
    }
}

/// Escapes what Go escapes and serde does not. In JSON these letters are in texts only.
fn as_go_writes(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes were made with kustomize.
    fn check(resource: Value, expected: &str) {
        assert_eq!(digest(&resource), expected, "{resource}");
    }

    #[test]
    fn the_hash_is_kustomizes() {
        check(json!({"kind": "ConfigMap", "data": {"k": "v"}}), "bdg947hgcc");
        check(json!({"kind": "ConfigMap"}), "6ct58987ht");
        check(
            json!({"kind": "ConfigMap", "data": {"k": "a<b>&c\n\u{2028}\"\\\t\u{1}é"}}),
            "k72bg46h7t",
        );
        check(json!({"kind": "Secret", "type": "Opaque", "data": {"k": "dg=="}}), "ftgtgc4t9f");
        check(json!({"kind": "Secret", "type": "Opaque", "data": {}}), "46f8b28mk5");
    }
}
