//! What a manifest makes of an object that is there, as `kubectl apply` does it.
//!
//! The object itself remembers the manifest that was applied last, in an annotation. It is
//! kubectl's, letter by letter, so that kubectl and `ambit apply` can take turns. It holds the
//! values of a Secret too, beside the Secret's own: whoever may read one may read the other.
//! Nothing here may log it, or put its text into an error.
//!
//! Of a manifest that is too long for an annotation the object remembers the names of the fields.
//! kubectl takes back by names alone, too, so that it can read that as well.

use ambit_kustomize::{PatchError, outline, three_way_merge};
use ambit_words::annotations::LAST_APPLIED;
use serde_json::{Map, Value, json};

use crate::apply::drop_own_metadata;

/// Most bytes of all annotations of an object, as Kubernetes counts them: keys and values.
const ANNOTATIONS_SIZE_MAX_BYTES: usize = 256 << 10;
/// Characters of a text that Go's JSON writes as escapes.
const ESCAPED: [(char, &str); 5] = [
    ('<', "\\u003c"),
    ('>', "\\u003e"),
    ('&', "\\u0026"),
    ('\u{2028}', "\\u2028"),
    ('\u{2029}', "\\u2029"),
];

/// An object as a manifest makes it.
#[derive(Debug, PartialEq)]
pub struct Merged {
    /// The object.
    pub object: Value,
    /// What it knew of the last manifest, and knows of this one.
    pub memory: Memory,
}

/// Whether an object remembers what was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// It does, as before; or it is new.
    Kept,
    /// It was there and did not: nothing of it was taken back.
    Begun,
}

/// Why a manifest cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// What the object says of the last manifest is no object.
    #[error(
        "the annotation {LAST_APPLIED} is no JSON object, so that it is not known which fields \
         are no longer wanted; remove it with `annotate` and a dash behind the key"
    )]
    Memory,
    /// There is no room for what must be remembered.
    #[error(
        "metadata.annotations: with the names of the fields that the manifest has, which apply \
         keeps in {LAST_APPLIED}, they are longer than {} KiB; shorten the annotations, or those \
         that others have set, or split the object",
        ANNOTATIONS_SIZE_MAX_BYTES >> 10
    )]
    TooLong,
    /// It does not fit what is there.
    #[error(transparent)]
    Patch(#[from] PatchError),
}

/// Makes of an object what a manifest wants of it.
///
/// # Errors
/// What the object says of the last manifest cannot be read, or this one does not fit it.
pub fn merge_manifest(live: Option<&Value>, mut manifest: Value) -> Result<Merged, MergeError> {
    remove_memory(&mut manifest);
    let applied = with_annotations(&manifest);
    let mut wanted = applied.clone();
    drop_own_metadata(&mut wanted);
    let Some(live) = live else {
        drop_own_metadata(&mut manifest);
        let object = remember(manifest, &applied, None)?;
        return Ok(Merged { object, memory: Memory::Kept });
    };
    let before = live.pointer("/metadata/annotations").and_then(|it| it.get(LAST_APPLIED));
    let before = before.and_then(Value::as_str).filter(|it| !it.is_empty());
    let last = before.map(last_manifest).transpose()?;
    let object = three_way_merge(last.as_ref(), &wanted, live.clone())?;
    let memory = if last.is_some() { Memory::Kept } else { Memory::Begun };
    Ok(Merged { object: remember(object, &applied, before)?, memory })
}

/// The last manifest, without what no manifest decides.
fn last_manifest(text: &str) -> Result<Value, MergeError> {
    let mut last: Value = serde_json::from_str(text).map_err(|_| MergeError::Memory)?;
    let fields = last.as_object_mut().ok_or(MergeError::Memory)?;
    fields.remove("status");
    if fields.get("kind").is_some_and(|kind| kind == "Secret") {
        // They are in `data` now; only their names count.
        if let Some(Value::Object(plain)) = fields.remove("stringData") {
            let data = fields.entry("data").or_insert(Value::Null);
            for key in plain.into_iter().map(|(key, _)| key) {
                if !data.is_object() {
                    *data = Value::Object(Map::new());
                }
                data[key] = Value::Null;
            }
        }
    }
    drop_own_metadata(&mut last);
    Ok(last)
}

/// Writes into an object which manifest was applied; what is written there that says the same stays
/// as it is.
fn remember(mut object: Value, applied: &Value, before: Option<&str>) -> Result<Value, MergeError> {
    remove_memory(&mut object);
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let others: usize = annotations.into_iter().flatten().map(size).sum();
    let has_room =
        |text: &str| others + LAST_APPLIED.len() + text.len() <= ANNOTATIONS_SIZE_MAX_BYTES;
    let mut text = memory_of(applied);
    if !has_room(&text) {
        text = memory_of(&outline(applied));
    }
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    if let Some(before) = before.filter(|it| has_room(it))
        && read(before) == read(&text)
    {
        text = before.to_owned();
    }
    if !has_room(&text) {
        return Err(MergeError::TooLong);
    }
    object["metadata"]["annotations"][LAST_APPLIED] = json!(text);
    Ok(object)
}

fn remove_memory(object: &mut Value) {
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    annotations.and_then(|it| it.remove(LAST_APPLIED));
}

/// The manifest with annotations in any case: one that names none does not take those of others
/// away.
fn with_annotations(manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    if manifest["metadata"]["annotations"].is_null() {
        manifest["metadata"]["annotations"] = Value::Object(Map::new());
    }
    manifest
}

/// The text of a manifest, as kubectl writes it: in Go's JSON, with the end of the line.
fn memory_of(manifest: &Value) -> String {
    let mut text = manifest.to_string();
    for (character, escape) in ESCAPED {
        // Outside of texts JSON has none of them.
        if text.contains(character) {
            text = text.replace(character, escape);
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(labels: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "app", "labels": labels},
            "spec": {"ports": [{"port": 80}]}})
    }

    fn merged(live: Option<&Value>, manifest: Value) -> Merged {
        merge_manifest(live, manifest).expect("it fits")
    }

    fn labels(object: &Value) -> &Value {
        &object["metadata"]["labels"]
    }

    #[test]
    fn the_text_is_that_of_kubectl() {
        let mut wanted = service(json!({"a": "<&>"}));
        wanted["metadata"]["annotations"] = json!({LAST_APPLIED: "the one of an export"});
        let made = merged(None, wanted);
        let expected = concat!(
            r#"{"apiVersion":"v1","kind":"Service","metadata":{"annotations":{},"#,
            r#""labels":{"a":"\u003c\u0026\u003e"},"name":"web","namespace":"app"},"#,
            r#""spec":{"ports":[{"port":80}]}}"#,
            "\n"
        );
        assert_eq!(made.object["metadata"]["annotations"], json!({LAST_APPLIED: expected}));
        assert_eq!(made.memory, Memory::Kept);
    }

    #[test]
    fn an_object_remembers_what_was_applied() {
        let mut live = merged(None, service(json!({"a": "1", "b": "1"}))).object;
        live["metadata"]["labels"]["others"] = json!("1");
        live["metadata"]["annotations"]["others"] = json!("1");
        live["status"] = json!({"x": 1});
        let again = merged(Some(&live), service(json!({"a": "1", "b": "1"})));
        assert_eq!(again.object, live, "nothing has changed");
        let after = merged(Some(&live), service(json!({"b": "2"})));
        assert_eq!(labels(&after.object), &json!({"b": "2", "others": "1"}));
        assert_eq!(after.object["metadata"]["annotations"]["others"], "1");
        assert_eq!(after.object["status"], live["status"]);
        assert_eq!(after.memory, Memory::Kept);
    }

    #[test]
    fn the_same_in_other_words_is_the_same() {
        let manifest = service(json!({"a": "1"}));
        let mut live = merged(None, manifest.clone()).object;
        let text = &mut live["metadata"]["annotations"][LAST_APPLIED];
        *text = json!(text.as_str().expect("a text").replace(':', " : "));
        assert_eq!(merged(Some(&live), manifest).object, live);
    }

    #[test]
    fn keys_of_a_secret_go_that_kubectl_has_applied_as_texts() {
        let secret = |field: &str, keys: &[&str]| {
            let values: Map<String, Value> =
                keys.iter().map(|it| ((*it).to_owned(), json!("eA=="))).collect();
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, field: values})
        };
        let mut live = secret("data", &["a", "b", "others"]);
        let last = secret("stringData", &["a", "b"]).to_string();
        live["metadata"]["annotations"] = json!({ LAST_APPLIED: last });
        let after = merged(Some(&live), secret("data", &["a"])).object;
        assert_eq!(after["data"], json!({"a": "eA==", "others": "eA=="}));
    }

    #[test]
    fn what_knows_of_no_manifest_keeps_its_fields() {
        let live = service(json!({"a": "1"}));
        let after = merged(Some(&live), service(json!({"b": "1"})));
        assert_eq!(labels(&after.object), &json!({"a": "1", "b": "1"}));
        assert_eq!(after.memory, Memory::Begun);
        let later = merged(Some(&after.object), service(json!({})));
        assert_eq!(labels(&later.object), &json!({"a": "1"}));
        assert_eq!(later.memory, Memory::Kept);
    }

    #[test]
    fn what_only_servers_write_is_not_taken_from_a_manifest() {
        let mut export = service(json!({}));
        export["metadata"]["managedFields"] = json!([{"manager": "x"}]);
        let mut live = merged(None, export).object;
        assert!(live["metadata"].get("managedFields").is_none());
        live["metadata"]["managedFields"] = json!([{"manager": "y"}]);
        let after = merged(Some(&live), service(json!({})));
        assert_eq!(after.object["metadata"]["managedFields"], live["metadata"]["managedFields"]);
    }

    fn config_map(data: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
    }

    fn long() -> String {
        "x".repeat(ANNOTATIONS_SIZE_MAX_BYTES)
    }

    #[test]
    fn of_a_manifest_that_is_too_long_the_names_are_remembered() {
        let mut live = merged(None, config_map(json!({"a": long(), "b": "1"}))).object;
        let kept: Value =
            serde_json::from_str(live["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap())
                .unwrap();
        assert_eq!(kept["data"], json!({"a": null, "b": null}));
        assert_eq!(kept["metadata"]["name"], "m");
        live["data"]["others"] = json!("1");
        live["metadata"]["ownerReferences"] = json!([{"uid": "u"}]);
        live["metadata"]["annotations"]["others"] = json!("1");
        let again = merged(Some(&live), config_map(json!({"a": long(), "b": "1"})));
        assert_eq!(again.object, live);
        let longer = merged(Some(&live), config_map(json!({"a": long() + "y"})));
        assert_eq!(longer.memory, Memory::Kept);
        let short = merged(Some(&longer.object), config_map(json!({"c": "1"})));
        let mut expected = merged(None, config_map(json!({"c": "1"}))).object;
        expected["data"]["others"] = json!("1");
        expected["metadata"]["ownerReferences"] = json!([{"uid": "u"}]);
        expected["metadata"]["annotations"]["others"] = json!("1");
        assert_eq!((short.object, short.memory), (expected, Memory::Kept));
    }

    #[test]
    fn an_object_without_room_for_the_names_is_refused() {
        let room = |manifest: &Value| {
            let names = memory_of(&outline(&with_annotations(manifest)));
            ANNOTATIONS_SIZE_MAX_BYTES - LAST_APPLIED.len() - names.len() - "others".len()
        };
        let manifest = config_map(json!({"a": long()}));
        let mut live = merged(None, manifest.clone()).object;
        live["metadata"]["annotations"]["others"] = json!("x".repeat(room(&manifest)));
        assert_eq!(merged(Some(&live), manifest.clone()).object, live);
        live["metadata"]["annotations"]["others"] = json!("x".repeat(room(&manifest) + 1));
        let error = merge_manifest(Some(&live), manifest).expect_err("no room");
        assert!(error.to_string().contains("longer than 256 KiB; shorten"), "{error}");
    }

    #[test]
    fn a_key_of_string_data_is_taken_back() {
        let secret = |fields: Value| {
            let mut secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {}});
            for (name, value) in fields.as_object().expect("fields") {
                secret[name] = value.clone();
            }
            secret
        };
        let check = |last: Value| {
            let mut live = secret(json!({"data": {"a": "YQ==", "b": "Yg==", "others": "Yw=="}}));
            live["metadata"]["annotations"] = json!({LAST_APPLIED: secret(last).to_string()});
            let after = merged(Some(&live), secret(json!({"data": {"a": "YQ=="}})));
            assert_eq!(after.object["data"], json!({"a": "YQ==", "others": "Yw=="}));
        };
        check(json!({"data": {"a": "YQ==", "b": "Yg=="}}));
        check(json!({"stringData": {"a": "a", "b": "b"}}));
        check(json!({"data": {"a": "YQ=="}, "stringData": {"b": "b"}}));
        check(json!({"data": null, "stringData": {"b": "b"}}));
    }

    #[test]
    fn what_is_null_is_removed() {
        let mut live = merged(None, service(json!({"a": "1"}))).object;
        live["metadata"]["labels"]["others"] = json!("1");
        let after = merged(Some(&live), service(json!({"a": "1", "others": null})));
        assert_eq!(labels(&after.object), &json!({"a": "1"}));
    }

    #[test]
    fn a_memory_that_is_none_is_an_error_without_its_text() {
        for text in ["{\"password\": ", "[]"] {
            let mut live = service(json!({}));
            live["metadata"]["annotations"] = json!({ LAST_APPLIED: text });
            let error = merge_manifest(Some(&live), service(json!({}))).expect_err(text);
            let message = error.to_string();
            assert!(message.contains("is no JSON object") && !message.contains("password"));
        }
    }
}
