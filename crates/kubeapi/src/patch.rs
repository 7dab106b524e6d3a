//! Patches: how a body says what changes of an object.

use ambit_kustomize::{json_patch, strategic_merge, takes_strategic_merge};
use serde_json::{Map, Value};

use crate::status::Status;

/// The types of patches, as the header Content-Type names them.
pub(crate) const MERGE_TYPE: &str = "application/merge-patch+json";
pub(crate) const JSON_TYPE: &str = "application/json-patch+json";
pub(crate) const STRATEGIC_TYPE: &str = "application/strategic-merge-patch+json";
/// The type of what a client wants an object to be, with the fields that it has ever wanted.
pub(crate) const APPLY_TYPE: &str = "application/apply-patch+yaml";

/// How a patch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// The fields that change; lists are replaced (RFC 7386).
    Merge,
    /// Operations (RFC 6902).
    Json,
    /// The fields that change; elements of lists are merged as the kind says.
    Strategic,
    /// All that the client wants (server-side apply).
    Apply,
}

impl PatchKind {
    /// By the header Content-Type. `kind` is what is patched; `None` stands for a `Scale`.
    pub(crate) fn of(
        content_type: Option<&str>,
        kind: Option<(&str, &str)>,
    ) -> Result<Self, Status> {
        let name = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        let is_mergeable = kind.is_none_or(|(version, kind)| takes_strategic_merge(version, kind));
        match name {
            MERGE_TYPE => Ok(Self::Merge),
            JSON_TYPE => Ok(Self::Json),
            STRATEGIC_TYPE if is_mergeable => Ok(Self::Strategic),
            STRATEGIC_TYPE => Err(Status::unsupported_media_type(&format!(
                "this kind has no strategic merge patch, write {MERGE_TYPE}"
            ))),
            APPLY_TYPE if kind.is_some() => Ok(Self::Apply),
            other => Err(Status::unsupported_media_type(&format!(
                "{other:?} is no patch, write {MERGE_TYPE}, {JSON_TYPE} or {STRATEGIC_TYPE}"
            ))),
        }
    }
}

/// Applies a patch to an object.
pub(crate) fn apply(kind: PatchKind, object: Value, patch: Value) -> Result<Value, Status> {
    let wrong = |error: ambit_kustomize::PatchError| Status::bad_request(format!("patch: {error}"));
    match kind {
        PatchKind::Merge if !patch.is_object() => {
            Err(Status::bad_request("patch: it is no map; write the fields that change"))
        }
        PatchKind::Merge => Ok(merge(object, patch)),
        PatchKind::Json => json_patch(object, &patch).map_err(wrong),
        PatchKind::Strategic => strategic_merge(object, patch).map_err(wrong),
        PatchKind::Apply => Err(Status::internal("what is applied is no patch")),
    }
}

/// Merges as RFC 7386 says: null removes a field, and all but maps is replaced.
fn merge(object: Value, patch: Value) -> Value {
    let Value::Object(patch) = patch else { return patch };
    let mut merged = match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            merged.remove(&name);
            continue;
        }
        let old = merged.get_mut(&name).map(Value::take).unwrap_or_default();
        merged.insert(name, merge(old, value));
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_is_that_of_the_rfc() {
        let check = |object: Value, patch: Value, expected: Value| {
            assert_eq!(apply(PatchKind::Merge, object, patch), Ok(expected));
        };
        check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
        check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
        check(
            json!({"a": {"b": "c"}}),
            json!({"a": {"b": "d", "c": null}}),
            json!({"a": {"b": "d"}}),
        );
        check(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
        check(json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}}));
        let refused = apply(PatchKind::Merge, json!({}), json!([1])).expect_err("no map");
        assert_eq!(refused.code().as_u16(), 400);
    }

    #[test]
    fn a_patch_is_of_the_type_that_its_header_names() {
        let check = |content_type: &str, kind: &str, expected: Result<PatchKind, &str>| {
            let found = PatchKind::of(Some(content_type), Some(("apps/v1", kind)));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(status), Err(part)) => {
                    assert_eq!(status.code().as_u16(), 415);
                    assert!(status.to_json().to_string().contains(part), "{status:?}");
                }
                (found, _) => panic!("{content_type} {kind}: {found:?}"),
            }
        };
        check(MERGE_TYPE, "Deployment", Ok(PatchKind::Merge));
        check("application/json-patch+json; charset=utf-8", "Deployment", Ok(PatchKind::Json));
        check(STRATEGIC_TYPE, "Deployment", Ok(PatchKind::Strategic));
        check(STRATEGIC_TYPE, "Gizmo", Err(MERGE_TYPE));
        check(APPLY_TYPE, "Deployment", Ok(PatchKind::Apply));
        check("application/json", "Deployment", Err("is no patch"));
    }

    #[test]
    fn what_is_wrong_with_a_patch_is_said() {
        let patch = json!([{"op": "remove", "path": "/a"}]);
        let refused = apply(PatchKind::Json, json!({}), patch).expect_err("it has no /a");
        let message = refused.to_json()["message"].to_string();
        assert!(message.contains("operation 1: the resource has no /a"), "{message}");
    }
}
