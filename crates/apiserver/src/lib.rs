//! The connection to a Kubernetes API server: how control and the node agent find it, and how long
//! it may be silent.
//!
//! The user's commands read their kubeconfig themselves, and take only the limits from here.
//! Nothing here knows what is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ambit_words::error_chain;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// Longest wait of a part of the mesh for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a user's command, whose network may be a slow one.
const COMMAND_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for one answer; watches have their own limit.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the server keeps one watch open before it is asked again.
pub const WATCH_TIMEOUT_SECONDS: u32 = 120;
/// Longest silence on a connection, watches included: one that died without a word is found out.
const SILENCE_MAX: Duration = Duration::from_secs(150);

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
        "no API server is configured: {0}; run in a pod with a service account, set KUBECONFIG, \
         or give --kubeconfig FILE"
    )]
    Unknown(String),
    /// The configuration cannot be used.
    #[error("cannot connect to the API server: {0}; check certificates and credentials")]
    Unusable(String),
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A part of the mesh. It follows watches, which are renewed before the connection is silent
    /// for too long.
    Part,
    /// A user's command. A log that it follows may be silent for hours.
    Command,
}

/// A client of a part of the mesh, by the file at `kubeconfig`; without one by KUBECONFIG, or as a
/// pod of the cluster.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => {
            let failed = |error: KubeconfigError| ConnectError::Kubeconfig {
                path: path.to_owned(),
                what: error_chain(&error),
            };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
        }
        None => Config::infer().await.map_err(|error| ConnectError::Unknown(error.to_string()))?,
    };
    client(config, Caller::Part).map_err(|error| ConnectError::Unusable(error.to_string()))
}

/// A client with our limits in place of those that `config` has.
pub fn client(config: Config, caller: Caller) -> Result<Client, kube::Error> {
    Client::try_from(limited(config, caller))
}

fn limited(mut config: Config, caller: Caller) -> Config {
    let (connect, silence) = match caller {
        Caller::Part => (CONNECT_TIMEOUT, Some(SILENCE_MAX)),
        Caller::Command => (COMMAND_CONNECT_TIMEOUT, None),
    };
    config.connect_timeout = Some(connect);
    config.read_timeout = silence;
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_notices_a_silent_server_and_a_command_may_follow_a_silent_log() {
        let check = |caller, connect: Duration, silence: Option<Duration>| {
            let config = Config::new("https://127.0.0.1:6443".parse().expect("an address"));
            let config = limited(config, caller);
            assert_eq!(config.connect_timeout, Some(connect), "{caller:?}");
            assert_eq!(config.read_timeout, silence, "{caller:?}");
        };
        check(Caller::Part, CONNECT_TIMEOUT, Some(SILENCE_MAX));
        check(Caller::Command, COMMAND_CONNECT_TIMEOUT, None);
        assert!(Duration::from_secs(WATCH_TIMEOUT_SECONDS.into()) < SILENCE_MAX);
    }
}
