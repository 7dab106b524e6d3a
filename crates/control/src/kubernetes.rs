//! The control plane's access to the Kubernetes API server.
//!
//! One client for all parts, one limit on the time of a single answer, and one way to distinguish
//! an API server that is away (continue with what is known, retry) from one that refuses (report to
//! the operator). Nothing here knows the requests.

pub(crate) mod conditions;
pub(crate) mod election;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod roots;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::core::Status;

use crate::error_text::chain;

/// Longest wait for one answer; watches have their own limit.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence on a connection, watches included: they are renewed before.
const SILENCE_MAX: Duration = Duration::from_secs(150);
/// Under which name our changes are known to the API server.
pub(crate) const FIELD_MANAGER: &str = "ambit";

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file given with `--kubeconfig`.
    #[error("--kubeconfig {path}: {what}; check the path, its context and what it refers to")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Neither KUBECONFIG nor a pod's service account.
    #[error(
        "no API server is configured: {0}; run in a pod with a service account, set \
         KUBECONFIG, or give --kubeconfig FILE"
    )]
    Unknown(String),
    /// The configuration cannot be used.
    #[error("cannot connect to the API server: {0}; check certificates and credentials")]
    Unusable(String),
}

/// Why a request to the API server failed.
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
        matches!(self, Self::Refused(status) if status.is_not_found())
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
            // The other variants repeat their source, so only the source is reported.
            kube::Error::Service(source) => Self::Away(chain(&*source)),
            kube::Error::HyperError(source) => Self::Away(chain(&source)),
            kube::Error::ReadEvents(source) => Self::Away(chain(&source)),
            kube::Error::SerdeError(source) => Self::Unreadable(source.to_string()),
            other => Self::Away(other.to_string()),
        }
    }
}

/// A client by the file at `kubeconfig`; without one by KUBECONFIG, or as a pod of the cluster.
pub(crate) async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let failed = |error: kube::config::KubeconfigError| ConnectError::Kubeconfig {
                path: path.to_owned(),
                what: chain(&error),
            };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
        }
        None => Config::infer().await.map_err(|error| ConnectError::Unknown(error.to_string()))?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(SILENCE_MAX);
    config.reset_reader_on_write = true;
    Client::try_from(config).map_err(|error| ConnectError::Unusable(error.to_string()))
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
