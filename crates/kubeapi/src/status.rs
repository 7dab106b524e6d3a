//! Refusals, as `Status` objects in Kubernetes' words.
//!
//! kubectl prints the message and its reason; client-go decides by the code and the reason whether
//! to ask again.

use http::StatusCode;
use serde_json::{Value, json};

use crate::resource::Resource;

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Value>,
}

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The field; empty for the whole object.
    pub field: String,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Cause {
    fn to_json(&self, reason: &str) -> Value {
        json!({"reason": reason, "message": self.message, "field": self.field})
    }
}

/// The answer to who has had an object deleted that is gone at once.
pub fn deleted(resource: &Resource, name: &str, uid: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": name, "group": resource.group(), "kind": resource.plural, "uid": uid,
        },
    })
}

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    /// Says which object it is about.
    fn of(mut self, resource: &Resource, name: &str) -> Self {
        self.details =
            Some(json!({"name": name, "group": resource.group(), "kind": resource.plural}));
        self
    }

    /// The client has not proved who it is.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// The client may not ask so.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// The server has no such path.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// There is no object of that name.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).of(resource, name)
    }

    /// The request is not of its form, or asks for what is not there.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// What is named cannot be done so.
    pub fn not_allowed(why: &str) -> Self {
        let message =
            format!("the server does not allow this method on the requested resource: {why}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// An object of that name is there.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).of(resource, name)
    }

    /// The object is not as the client believes.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let of = resource.qualified();
        let message = format!("Operation cannot be fulfilled on {of} {name:?}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).of(resource, name)
    }

    /// Others have fields that the client wants to be otherwise.
    pub(crate) fn apply_conflict(causes: &[Cause]) -> Self {
        let said = |Cause { field, message }: &Cause| format!("{message}: {field}");
        let said: Vec<String> = causes.iter().map(said).collect();
        let (count, plural) = (causes.len(), if causes.len() == 1 { "" } else { "s" });
        let message = format!("Apply failed with {count} conflict{plural}: {}", said.join("; "));
        let mut status = Self::new(StatusCode::CONFLICT, "Conflict", message);
        let reason = "FieldManagerConflict";
        let causes = causes.iter().map(|it| it.to_json(reason));
        status.details = Some(json!({"causes": causes.collect::<Vec<_>>()}));
        status
    }

    /// The object would not be valid.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        let said = |cause: &Cause| match cause.field.as_str() {
            "" => cause.message.clone(),
            field => format!("{field}: {}", cause.message),
        };
        let all: Vec<String> = causes.iter().map(said).collect();
        let group = Some(resource.group()).filter(|it| !it.is_empty());
        let kind = group.map_or(resource.kind.to_owned(), |it| format!("{}.{it}", resource.kind));
        let all = match all.as_slice() {
            [only] => only.clone(),
            _ => format!("[{}]", all.join(", ")),
        };
        let message = format!("{kind} {name:?} is invalid: {all}");
        let mut status = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        let causes = causes.iter().map(|it| it.to_json("FieldValueInvalid"));
        status.details = Some(json!({
            "name": name,
            "group": resource.group(),
            "kind": resource.kind,
            "causes": causes.collect::<Vec<_>>(),
        }));
        status
    }

    /// The body has a form that the server does not read.
    pub fn unsupported_media_type(what: &str) -> Self {
        let message = format!("the body of the request was in an unknown format: {what}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// The body is longer than the server reads.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("the body of the request is too long: at most {limit_bytes} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// There is nothing to attach to.
    pub(crate) fn attaches_nothing() -> Self {
        let message = "a container here has no standard input, and its output is its log: use \
                       `kubectl logs -f` to follow it, or `kubectl exec -it` for a shell";
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    /// A pod gets no containers later.
    pub(crate) fn adds_no_containers() -> Self {
        let message = "a pod here has the containers that it was made with, and takes no ephemeral \
                       ones: use `kubectl exec -it` for a shell";
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    /// Changes since that version are not known any more: list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// Nothing of what the client accepts can be written.
    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// More is asked for at once than the server carries.
    pub fn too_many(message: impl Into<String>) -> Self {
        let mut status = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        status.details = Some(json!({"retryAfterSeconds": 1}));
        status
    }

    /// A pod is not evicted: its budget would be broken, or might be.
    pub fn disruption(cause: &str) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut status = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        status.details =
            Some(json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]}));
        status
    }

    /// In how many seconds the client may ask again, if it is to do so by itself.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.details.as_ref()?.get("retryAfterSeconds")?.as_u64()
    }

    /// The server failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// Its HTTP code.
    pub fn code(&self) -> StatusCode {
        self.code
    }

    /// The object.
    pub fn to_json(&self) -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
            // Some clients read them without looking whether they are there.
            "details": self.details.clone().unwrap_or_else(|| json!({})),
        })
    }
}
