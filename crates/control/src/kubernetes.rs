//! The control plane's access to the Kubernetes API server.
//!
//! A limit on how long any single answer may take, and one way to tell an API server that is away
//! (go on with what is known, try again) from one that says no (tell the operator). Nothing here
//! knows what is asked.

pub(crate) mod acme;
mod bindings;
mod classes;
pub(crate) mod client_roots;
pub(crate) mod conditions;
pub(crate) mod election;
#[cfg(test)]
pub(crate) mod fake;
mod listener_sets;
mod merged;
mod parameters;
pub(crate) mod roots;
mod route_status;
pub(crate) mod waypoints;

use std::future::Future;

use ambit_apiserver::ANSWER_TIMEOUT;
use ambit_words::error_chain;
use kube::core::Status;

/// Under which name our changes are known to the API server.
pub(crate) const FIELD_MANAGER: &str = "ambit";

/// Why the API server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It cannot be reached, is overloaded, or did not answer in time.
    #[error("the API server is away: {0}")]
    Away(String),
    /// It says no.
    #[error("the API server refuses: {} ({})", .0.message, .0.code)]
    Refused(Box<Status>),
    /// It answers with something else than was asked for.
    #[error("the API server's answer cannot be read: {0}")]
    Unreadable(String),
}

impl ApiError {
    /// Whether the object is not there, or its kind is not.
    pub(crate) fn is_not_found(&self) -> bool {
        // For a group that it does not have at all, the API server gives no reason.
        matches!(self, Self::Refused(status) if status.code == 404)
    }

    /// Whether the namespace is being deleted, so that nothing can be made in it.
    pub(crate) fn is_ending_namespace(&self) -> bool {
        let Self::Refused(status) = self else { return false };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        status.is_forbidden() && causes.into_iter().any(|it| it.reason == "NamespaceTerminating")
    }

    /// Whether somebody else was faster.
    pub(crate) fn is_conflict(&self) -> bool {
        let lost = |status: &Status| status.is_conflict() || status.is_already_exists();
        matches!(self, Self::Refused(status) if lost(status))
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code >= 500 || status.code == 429 => {
                Self::Away(format!("{} ({})", status.message, status.code))
            }
            kube::Error::Api(status) => Self::Refused(status),
            // The other variants repeat their source, so only the source is told.
            kube::Error::Service(source) => Self::Away(error_chain(&*source)),
            kube::Error::HyperError(source) => Self::Away(error_chain(&source)),
            kube::Error::ReadEvents(source) => Self::Away(error_chain(&source)),
            kube::Error::SerdeError(source) => Self::Unreadable(source.to_string()),
            other => Self::Away(other.to_string()),
        }
    }
}

/// The answer to one request, if it comes within [`ANSWER_TIMEOUT`].
pub(crate) async fn answer<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
        Ok(answered) => Ok(answered?),
        Err(_) => Err(ApiError::Away(format!("no answer within {ANSWER_TIMEOUT:?}"))),
    }
}
