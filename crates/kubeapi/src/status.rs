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

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
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
        let mut status = Self::new(StatusCode::NOT_FOUND, "NotFound", message);
        status.details =
            Some(json!({"name": name, "group": resource.group(), "kind": resource.plural}));
        status
    }

    /// The request is not of its form, or asks for what is not there.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// The server only reads.
    pub(crate) fn reads_only() -> Self {
        let message = "the server does not allow this method on the requested resource: it only \
                       reads; change objects with `ambit apply`, `label`, `annotate`, `scale`, \
                       `rollout restart` and `delete`";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// There is nothing to attach to.
    pub(crate) fn attaches_nothing() -> Self {
        let message = "a container here has no standard input, and its output is its log: use \
                       `kubectl logs -f` to follow it, or `kubectl exec -it` for a shell";
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
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}
