//! The expression that an AuthorizationPolicy has beside its rules, in an annotation.

use ambit_model::expression::{Expression, ExpressionError};
use ambit_model::http::condition::NAMES;
use ambit_words::annotations::CONDITION;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{FieldPath, ObjectIssues};

/// The condition of the policy with this metadata, if it has one.
pub(super) fn condition(metadata: &ObjectMeta) -> Option<Result<Expression, ExpressionError>> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(CONDITION).map(|source| Expression::condition(source, &NAMES))
}

/// Where it is written.
pub(super) fn field() -> FieldPath {
    FieldPath::at("metadata").field("annotations").field(CONDITION)
}

/// Reports one that cannot be used.
pub(crate) fn check(metadata: &ObjectMeta, issues: &mut ObjectIssues) {
    if let Some(Err(error)) = condition(metadata) {
        issues.error(&field(), error.to_string(), "correct the expression, or remove it");
    }
}
