//! How registries of images are asked: TLS with the system's roots, and logins of `docker login`.
//! What the environment says of the daemons of this machine that have images, too.

use std::io;
use std::path::{Path, PathBuf};

use ambit_image::Daemons;
use ambit_image::registry::{Connect, Credentials, Endpoint};
use ambit_machine::{ImageSources, Registries};
use ambit_tls::web::{SYSTEM_ROOTS, WebConnector};
use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The directory of docker's configuration, if it is not in the user's home.
const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// The socket of Docker, as docker reads it.
const DOCKER_HOST: &str = "DOCKER_HOST";
/// The socket of containerd and a namespace there, as ctr and nerdctl read them.
const CONTAINERD: [&str; 2] = ["CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE"];

/// Connects to a registry.
pub(super) struct ToRegistry(WebConnector);

/// What a registry is asked over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connect for ToRegistry {
    type Stream = Box<dyn Stream>;

    async fn connect(&self, endpoint: &Endpoint) -> io::Result<Box<dyn Stream>> {
        let Endpoint { host, port, is_tls } = endpoint;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        if !is_tls {
            let peer = stream.peer_addr()?.ip();
            if !peer.is_loopback() {
                let text = format!("{host} is {peer}, and not this machine: it needs TLS");
                return Err(io::Error::other(text));
            }
            return Ok(Box::new(stream));
        }
        Ok(Box::new(self.0.connect(host, stream).await?))
    }
}

/// How this user asks registries for these images. Logins are read only if one of them is there.
pub(super) fn of_user(sources: &ImageSources) -> Result<Registries<ToRegistry>> {
    let system = SYSTEM_ROOTS.iter().map(Path::new).find_map(|path| std::fs::read(path).ok());
    let web = WebConnector::new(system.as_deref(), None).context("read the system's roots")?;
    let credentials = if sources.need_registries() { logins()? } else { Credentials::default() };
    Ok(Registries { connect: ToRegistry(web), credentials, daemons: daemons() })
}

fn daemons() -> Daemons {
    let variable = |name| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
    let [address, namespace] = CONTAINERD;
    Daemons {
        docker_host: variable(DOCKER_HOST),
        containerd_address: variable(address),
        containerd_namespace: variable(namespace),
    }
}

fn logins() -> Result<Credentials> {
    let directory = std::env::var_os(DOCKER_CONFIG).map(PathBuf::from);
    let directory = directory.or_else(|| Some(std::env::home_dir()?.join(".docker")));
    let Some(directory) = directory else { return Ok(Credentials::default()) };
    Credentials::read(&directory.join("config.json")).context("read the logins of registries")
}
