//! The configuration of a machine, and the progress of its start.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::egress::Egress;
use crate::host_path::HostPath;
use crate::image::ImageMap;
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
