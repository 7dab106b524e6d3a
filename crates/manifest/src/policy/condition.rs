//! The expression that an AuthorizationPolicy has beside its rules, in an annotation.
//!
//! A policy whose annotation is misspelt must not hold without its condition: an ALLOW would let
//! everybody in.

use ambit_model::expression::Expression;
use ambit_model::http::condition::NAMES;
use ambit_words::annotations::CONDITION;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::finding::Issue;
use crate::spelling::distance;
use crate::{FieldPath, ObjectIssues};

/// What annotations of this product begin with. A policy has no other one than its condition.
const OWN: &str = "ambit.io/";
/// How many letters of the annotation's key may be wrong for it to be taken for a slip.
const SLIPS_MAX: usize = 3;

/// The condition of the policy with this metadata, if it has one.
pub(super) fn condition(metadata: &ObjectMeta) -> Result<Option<Expression>, Issue> {
    let Some(annotations) = &metadata.annotations else { return Ok(None) };
    let wrong = |key: &str, what: String, remedy: String| {
        let path = FieldPath::at("metadata").field("annotations").field(key);
        Issue { path, what, remedy }
    };
    let is_meant = |key: &str| key.starts_with(OWN) || distance(CONDITION, key) <= SLIPS_MAX;
    if let Some(key) = annotations.keys().find(|key| *key != CONDITION && is_meant(key)) {
        let what = "a policy has no such annotation, and must not hold without the condition that \
                    may be meant";
        return Err(wrong(key, what.to_owned(), format!("write {CONDITION}, or remove it")));
    }
    if let Some(name) = annotations.get(CONDITION).filter(|it| NAMES.contains(&it.trim())) {
        let what = format!("`{}` is a value, and neither true nor false", name.trim());
        return Err(wrong(CONDITION, what, "compare it with something".to_owned()));
    }
    let read = annotations.get(CONDITION).map(|source| Expression::condition(source, &NAMES));
    let remedy = "correct the expression, or remove it";
    read.transpose().map_err(|error| wrong(CONDITION, error.to_string(), remedy.to_owned()))
}

/// Reports one that cannot be used.
pub(crate) fn check(metadata: &ObjectMeta, issues: &mut ObjectIssues) {
    issues.errors.extend(condition(metadata).err());
}
