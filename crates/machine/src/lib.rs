//! The machine: nodes and pods as Linux namespaces, everything inside one process tree.
//!
//! `ambit lab-machine` is process 1 of its own PID namespace: when it ends, the kernel ends every
//! process, mount and network of the machine. The user's commands reach it through [`Client`], and
//! [`exec`] runs commands in pods. [`up`] and [`down`] work whatever has died before.
//!
//! This crate replaces Kubernetes on one machine: an object store, controllers of what makes pods,
//! a scheduler, a pod runner, service addresses and cluster DNS. The mesh itself (control plane,
//! agent, proxy) is the shipped binary: this crate starts its roles as separate processes and never
//! links them.
//!
//! | module | holds |
//! |---|---|
//! | `birth`, `init`, `server`, `roles`, `down` | the machine's life, and the mesh's processes |
//! | `client`, `exec`, `processes`, `record` | what the user's commands need |
//! | `publish` | ports of the host that lead to gateways and services |
//! | `egress` | the way out of a machine, where it is asked for |
//! | `kubernetes_api` | the Kubernetes API on a port of the host, for kubectl |
//! | [`layout`], [`ownership`] | the paths in the state directory, and who owns them |
//! | [`objects`], `registry`, `controller` | the API server's part, and the controllers |
//! | `node_labels` | labels of nodes that a command gives |
//! | `host_path` | directories of the host that pods may write |
//! | `events`, `rollout_progress` | what happened to pods, and what a rollout lacks |
//! | `pod_cpu` | what pods use of processors, for autoscalers |
//! | `pod_object` | a pod with what its node reports, as Kubernetes shows it |
//! | `node`, `pod`, `addresses` | what runs on a node, pods, and the networks of both |
//! | `cluster` | a machine that carries a workload of a Kubernetes cluster's mesh |
//! | `join`, `joining`, `link` | machines that join this one, or one that this machine joined |
//! | [`image`], `import`, `unknown_images` | what an image means, and the store of images |
//! | `judgement` | what a machine makes of manifests before it takes them |
//! | [`logs`] | reading and following logs that are rotated |

mod accepting;
mod addresses;
mod birth;
mod cgroups;
mod claims;
mod client;
mod cluster;
mod command;
mod config;
mod controller;
mod cron;
mod down;
mod egress;
mod events;
mod exec;
mod fabric;
mod host_path;
pub mod image;
mod import;
mod init;
mod join;
mod joining;
mod judgement;
mod kubernetes_api;
pub mod layout;
mod link;
pub mod logs;
mod node;
mod node_labels;
pub mod objects;
pub mod ownership;
mod pod;
mod pod_cpu;
mod pod_object;
mod processes;
mod publish;
mod readiness;
mod reaper;
mod record;
mod registry;
mod roles;
mod rollout_progress;
mod server;
mod state;
mod terminal;
mod unknown_images;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

pub use ambit_kubeapi::autoscaler_targets;

pub use addresses::{Dual, NodeNetwork, is_pod_address};
pub use birth::{Born, UpError, up, up_with};
pub use cgroups::{Cgroup, Cgroups};
pub use client::{Client, ClientError, MachineStatus, NodeInfo, PodInfo, RoleInfo, WaitError};
pub use cluster::{RenewError, renew};
pub use command::{Difference, Differences, Expected};
pub use config::{LinkConfig, LinkError, Progress, UpConfig};
pub use down::{DownError, DownReport, down, left};
pub use egress::{Egress, EgressError};
pub use exec::{ExecError, ExecRequest, ForwardRequest, Keys, exec, find_port, forward, pod_end};
pub use host_path::{HostPath, HostPathError};
pub use import::{
    FetchError, ImageArgumentError, ImageArguments, ImageSources, ImportError, Registries,
};
pub use join::{CarriedWorkload, ClusterToken, JoinToken, JoinTokenError, LinkInfo, Workload};
pub use judgement::judge;
pub use kubernetes_api::{
    ApiAddress, ApiAddressError, KubernetesApiError, bind_kubernetes_api, serve_kubernetes_api,
};
/// What comes over a link, for the fuzzer.
#[cfg(any(fuzzing, test))]
pub use link::fuzz as fuzz_link;
pub use node::services::{Endpoint, PortView, ServiceView};
pub use node_labels::{NodeLabels, NodeLabelsError};
pub use pod_object::complete_pod;
pub use processes::{ProcessInfo, processes};
pub use publish::{
    Destination, Opened, PublishError, Published, PublishedError, Transport, asked_by_service,
    bind, publish, publish_of_service,
};
pub use readiness::Check;
pub use record::{Liveness, Record, RecordError, liveness};
pub use registry::{ContainerStatus, Occurrences, Phase, PodStatus, WatchError};
pub use rollout_progress::RolloutProgress;
pub use unknown_images::unknown_images;

use layout::Layout;
use registry::{Mirror, Watch};

/// The name of a machine's node; nodes are counted from 1.
pub fn node_name(number: u8) -> String {
    NodeNetwork::new(number).name()
}

/// The Node object of a machine's node, as it will be before the machine is there.
pub fn node_object(number: u8, labels: &NodeLabels) -> serde_json::Value {
    objects::node_object(NodeNetwork::new(number), labels).1
}

/// The services of a machine, as its registry has them now.
pub async fn read_services(layout: &Layout) -> Result<Vec<ServiceView>, WatchError> {
    let mut mirror = Mirror::new(layout);
    let mut watch = Watch::new(&[layout.objects(), layout.pod_statuses()])?;
    // At first everything counts as changed.
    mirror.read(&watch.changes().await?);
    Ok(node::services::services(&mirror))
}

/// Runs the hidden subcommand `word`; `None` where it is none of this crate's.
///
/// It must be the first thing that `main` does: some of them enter namespaces, which a process with
/// threads cannot.
pub fn hidden_command(word: &OsStr, words: &[OsString]) -> Option<anyhow::Result<ExitCode>> {
    match word.to_str()? {
        "lab-machine" => Some(run(words)),
        egress::COMMAND => Some(egress::run(words)),
        "lab-node" => Some(node::run(words)),
        "lab-link" => Some(link::run(words)),
        "lab-pod-init" => Some(pod::run_init(words)),
        "lab-container" => Some(pod::run_container(words)),
        _ => None,
    }
}

/// Runs one of the machine's own hidden steps.
fn run(words: &[OsString]) -> anyhow::Result<ExitCode> {
    match words.first().and_then(|word| word.to_str()) {
        Some(birth::OUTER) => birth::run_outer(),
        Some(birth::INNER) => init::run(),
        _ => anyhow::bail!("this is the machine's own; use `ambit up`"),
    }
}
