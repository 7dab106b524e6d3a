//! The daemons of this machine that have images: where their sockets are, and what is wrong if
//! nobody answers there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const SCHEME: &str = "unix://";

/// What the user's environment says of the daemons; what it leaves out is as usual.
#[derive(Clone, Debug, Default)]
pub struct Daemons {
    /// `DOCKER_HOST`.
    pub docker_host: Option<String>,
    /// `CONTAINERD_ADDRESS`.
    pub containerd_address: Option<String>,
    /// `CONTAINERD_NAMESPACE`.
    pub containerd_namespace: Option<String>,
}

/// No connection to a daemon.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The environment names something else than a socket of this machine.
    #[error(
        "{variable} is {value:?}; an image comes only from a socket of this machine: unix:///PATH"
    )]
    Address {
        /// Which variable.
        variable: &'static str,
        /// What it says.
        value: String,
    },
    /// Nobody listens.
    #[error("no {daemon} listens at {tried}; start it, or set {variable}")]
    Missing {
        /// Who.
        daemon: &'static str,
        /// Where it was looked for.
        tried: String,
        /// The variable that names another place.
        variable: &'static str,
    },
    /// The socket is not for this user.
    #[error("this user may not use {path}; become root or a member of the socket's group")]
    Denied {
        /// Which one.
        path: PathBuf,
    },
    /// Something else.
    #[error("cannot connect to {path}")]
    Connect {
        /// To which socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// One kind of daemon.
pub(crate) struct Daemon {
    pub(crate) name: &'static str,
    /// Names its socket.
    pub(crate) variable: &'static str,
    /// Where it is otherwise; the first at which somebody listens is meant.
    pub(crate) usual: &'static [&'static str],
}

impl Daemon {
    /// Connects; the path of the socket too.
    pub(crate) async fn connect(
        &self,
        configured: Option<&str>,
    ) -> Result<(UnixStream, PathBuf), SocketError> {
        let paths = match configured.filter(|value| !value.is_empty()) {
            Some(value) => vec![self.socket(value)?],
            None => self.usual.iter().map(PathBuf::from).collect(),
        };
        for path in &paths {
            let connected = timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await;
            let error = match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => return Ok((stream, path.clone())),
                Err(error) => error,
            };
            match error.kind() {
                // A socket stays behind when its daemon dies.
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {}
                io::ErrorKind::PermissionDenied => {
                    return Err(SocketError::Denied { path: path.clone() });
                }
                _ => return Err(SocketError::Connect { path: path.clone(), source: error }),
            }
        }
        let tried: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let (daemon, variable) = (self.name, self.variable);
        Err(SocketError::Missing { daemon, tried: tried.join(" or "), variable })
    }

    fn socket(&self, value: &str) -> Result<PathBuf, SocketError> {
        let path = Path::new(value.strip_prefix(SCHEME).unwrap_or(value));
        if path.is_absolute() {
            return Ok(path.to_owned());
        }
        Err(SocketError::Address { variable: self.variable, value: value.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_of_this_machine() {
        let daemon = Daemon { name: "docker", variable: "DOCKER_HOST", usual: &[] };
        for (value, expected) in [
            ("unix:///run/a.sock", Some("/run/a.sock")),
            ("/run/a.sock", Some("/run/a.sock")),
            ("unix://a.sock", None),
            ("tcp://127.0.0.1:2375", None),
            ("ssh://host", None),
        ] {
            let socket = daemon.socket(value);
            assert_eq!(socket.as_deref().ok(), expected.map(Path::new), "{socket:?}");
        }
    }
}
