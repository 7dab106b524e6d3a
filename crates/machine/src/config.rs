//! The configuration of a machine, and the progress of its start.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use ambit_net::socket::{ListenOptions, tcp_listener, tcp_socket};
use ambit_words::ports;
use serde::{Deserialize, Serialize};

use crate::addresses::NodeNetwork;
use crate::cluster;
use crate::egress::Egress;
use crate::host_path::HostPath;
use crate::image::ImageMap;
use crate::join::{ClusterToken, JoinToken, Workload};
use crate::node_labels::NodeLabels;

/// The configuration of a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpConfig {
    /// The state directory; absolute.
    pub state: PathBuf,
    /// How many nodes.
    pub nodes: u8,
    /// The shipped binary.
    pub binary: PathBuf,
    /// Whether it carries the mesh; without, it has pods, services and DNS only, as a base line.
    pub mesh: bool,
    /// What images mean.
    pub images: ImageMap,
    /// Labels of nodes.
    #[serde(default)]
    pub node_labels: NodeLabels,
    /// Directories of the host that pods may write, by volumes of type hostPath.
    pub host_paths: Vec<HostPath>,
    /// Whether pods are of another user's choice: they run images of the store and parts of the
    /// shipped binary, and see nothing of the host's files but `host_paths`.
    #[serde(default)]
    pub confined: bool,
    /// Whether limits of containers hold.
    pub limits: bool,
    /// What of the outside pods may reach; nothing without.
    #[serde(default)]
    pub egress: Option<Egress>,
    /// Programs that run in place of `ambit proxy`, by node.
    pub proxies: BTreeMap<String, PathBuf>,
    /// Further arguments of every `ambit control`, `ambit node` and `ambit proxy`, by role.
    pub arguments: BTreeMap<String, Vec<String>>,
    /// Further environment of every role.
    pub environment: BTreeMap<String, String>,
    /// Whether other machines join it, or it joins another.
    #[serde(default)]
    pub link: LinkConfig,
}

/// How a machine is linked to others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub enum LinkConfig {
    /// Not at all.
    #[default]
    None,
    /// Others join it.
    Home {
        /// Where it listens for them.
        address: SocketAddr,
        /// The socket that listens.
        #[serde(skip)]
        socket: Option<Arc<OwnedFd>>,
    },
    /// It joins another, as one of its nodes.
    Joined {
        /// What the user brought from there.
        token: JoinToken,
        /// The socket that connects there.
        #[serde(skip)]
        socket: Option<Arc<OwnedFd>>,
    },
    /// It carries a workload of a cluster's mesh, and its control is there.
    Cluster {
        /// What the user brought from there.
        token: Box<ClusterToken>,
        /// What runs as the workload.
        command: Vec<String>,
        /// The socket that listens for other proxies.
        #[serde(skip)]
        socket: Option<Arc<OwnedFd>>,
    },
}

/// Why no machine can be linked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The host does not give the port.
    #[error("cannot listen at {address} for machines that join; choose another address or port")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The host does not give the port of HBONE.
    #[error(
        "cannot listen at {address} for the mesh; the WorkloadEntry's address must be one of this \
         computer, and its port be free"
    )]
    Hbone {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The host gives no socket.
    #[error("cannot open a socket to join {address}")]
    Socket {
        /// Where home is.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

impl LinkConfig {
    /// Listens for machines that join, where this process is.
    pub fn home(address: SocketAddr) -> Result<Self, LinkError> {
        let options = ListenOptions { v6only: true, ..ListenOptions::default() };
        let opened = tcp_listener(address, &options);
        let socket = opened.map_err(|source| LinkError::Listen { address, source })?;
        // The kernel may have chosen the port.
        let address =
            socket.local_addr().map_err(|source| LinkError::Listen { address, source })?;
        Ok(Self::Home { address, socket: Some(Arc::new(socket.into())) })
    }

    /// Opens the socket by which a machine joins, where this process is.
    pub fn joined(token: JoinToken) -> Result<Self, LinkError> {
        let address = token.address;
        let opened = tcp_socket(address);
        let socket = opened.map_err(|source| LinkError::Socket { address, source })?;
        Ok(Self::Joined { token, socket: Some(Arc::new(socket)) })
    }

    /// Listens for other proxies where a workload of a cluster is reached, where this process is.
    pub fn cluster(token: ClusterToken, command: Vec<String>) -> Result<Self, LinkError> {
        let address = SocketAddr::new(token.cluster.address, ports::HBONE);
        let options = ListenOptions { v6only: true, ..ListenOptions::default() };
        let opened = tcp_listener(address, &options);
        let socket = opened.map_err(|source| LinkError::Hbone { address, source })?;
        let token = Box::new(token);
        Ok(Self::Cluster { token, command, socket: Some(Arc::new(socket.into())) })
    }

    pub(crate) fn socket(&self) -> Option<&Arc<OwnedFd>> {
        match self {
            Self::None => None,
            Self::Home { socket, .. }
            | Self::Joined { socket, .. }
            | Self::Cluster { socket, .. } => socket.as_ref(),
        }
    }

    /// Puts the socket in that came by another way than the rest.
    pub(crate) fn with_socket(mut self, received: Option<OwnedFd>) -> Self {
        if let Self::Home { socket, .. }
        | Self::Joined { socket, .. }
        | Self::Cluster { socket, .. } = &mut self
        {
            *socket = received.map(Arc::new);
        }
        self
    }
}

impl UpConfig {
    /// The networks of the nodes that run here.
    pub(crate) fn networks(&self) -> Vec<NodeNetwork> {
        match &self.link {
            LinkConfig::Joined { token, .. } => vec![token.network()],
            LinkConfig::Cluster { .. } => vec![NodeNetwork::new(cluster::NODE)],
            LinkConfig::None | LinkConfig::Home { .. } => {
                (1..=self.nodes).map(NodeNetwork::new).collect()
            }
        }
    }

    /// Whether the machine is a node of another.
    pub(crate) fn is_joined(&self) -> bool {
        matches!(self.link, LinkConfig::Joined { .. })
    }

    /// The workload of a cluster that the machine carries.
    pub(crate) fn cluster(&self) -> Option<&Workload> {
        match &self.link {
            LinkConfig::Cluster { token, .. } => Some(&token.cluster),
            _ => None,
        }
    }

    /// Whether the control plane is here.
    pub(crate) fn has_control(&self) -> bool {
        self.mesh && !self.is_joined() && self.cluster().is_none()
    }
}

/// What is being waited for while a machine starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Progress {
    /// This is going on now.
    Waiting {
        /// For what, as in "waiting for ...".
        what: String,
    },
    /// This is done.
    Done {
        /// What.
        what: String,
    },
    /// The machine runs.
    Up,
    /// The machine could not be started.
    Failed {
        /// Why.
        error: String,
    },
}
