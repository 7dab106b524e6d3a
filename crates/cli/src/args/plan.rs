//! The arguments of `ambit plan`.

use std::path::PathBuf;

use ambit_plan::{
    AmountError, Component, PODS_MAX, Price, RATE_MAX, Resources, parse_cpu, parse_memory,
};
use clap::{ArgGroup, Args};

use super::inputs::{self, INPUTS};
use super::kube::CLUSTER;
use super::{InputArgs, KubeArgs, Report};

/// Most namespaces that an application is repeated in.
const NAMESPACES_MAX: i64 = 5_000;
/// Most pods that somebody may want on one node.
const NODE_PODS_MAX: i64 = 1_000;

/// What the placed estimate knows of the Kubernetes scheduler.
pub(super) const MODELLED: &str = "\
The estimate `placed` puts each pod where the Kubernetes scheduler would put it, and adds a node if
no node has room.

It considers: requests and limits of all containers, the maximum number of pods, nodeName,
nodeSelector, required nodeAffinity, required and preferred pod affinity and anti-affinity by node
and by zone, DaemonSets (first), and the scores LeastAllocated and BalancedAllocation of CPU and
memory.

It ignores: topologySpreadConstraints (also the defaults of Kubernetes), taints, volumes, host
ports, images, priorities, preemption and preferred nodeAffinity.

With --kube it takes the pods that run in a cluster, without those of the mesh, and the node type
that most nodes have. --node-type, or --vcpu and --node-memory, choose another.";

/// Instead of every flag of a cluster.
const USAGE: &str = "ambit plan [OPTIONS] <PATH...|-f PATH|-k DIR|--pods N|--published|--kube>";

/// `ambit plan`.
#[derive(Debug, Args)]
#[command(group(inputs::of_no_cluster()), group(application()), override_usage = USAGE)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) inputs: InputArgs,
    /// Computes for this many equal pods, instead of manifests.
    #[arg(long, value_name = "N", requires = "cpu", requires = "memory",
        conflicts_with_all = ["manifests", "cluster"],
        value_parser = clap::value_parser!(u32).range(1..=PODS_MAX as i64))]
    pub(crate) pods: Option<u32>,
    /// CPU request of each of --pods.
    #[arg(long, value_parser = parse_cpu, requires = "pods", allow_hyphen_values = true)]
    pub(crate) cpu: Option<u64>,
    /// Memory request of each of --pods.
    #[arg(long, value_parser = parse_memory, requires = "pods", allow_hyphen_values = true)]
    pub(crate) memory: Option<u64>,
    /// Repeats the workloads of the namespace whose name ends in -1 in this many namespaces. With
    /// --pods, spreads the pods over this many.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=NAMESPACES_MAX))]
    pub(crate) namespaces: Option<u32>,
    /// Places pods on any node, even if their manifests name one.
    #[arg(long)]
    pub(crate) ignore_hostnames: bool,
    /// Computes the tables of Solo.io's "Doing more for less" (2024) from their own inputs, and
    /// says where they differ. With PATH, from these manifests.
    #[arg(long, conflicts_with_all = ["pods", "node", "mesh", "cluster"])]
    pub(crate) published: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) mesh: MeshArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
    /// Writes a chart of how full each node is.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) chart: Option<PathBuf>,
    /// How to show it.
    #[arg(short, long, value_enum, default_value_t = Report::Text)]
    pub(crate) output: Report,
}

/// What is planned for: one of these must be named.
fn application() -> ArgGroup {
    let group = ArgGroup::new("application").args(["pods", "published"]);
    group.args(INPUTS).args(CLUSTER).multiple(true).required(true)
}

/// Which nodes.
#[derive(Debug, Args)]
#[group(id = "node", multiple = true)]
pub(crate) struct NodeArgs {
    /// The node type; an unknown name lists the known ones [default: n2-standard-8].
    #[arg(long, value_name = "NAME", conflicts_with = "vcpu")]
    pub(crate) node_type: Option<String>,
    /// vCPU of a node, instead of --node-type.
    #[arg(long, value_parser = parse_cpu, requires = "node_memory", allow_hyphen_values = true)]
    pub(crate) vcpu: Option<u64>,
    /// Memory of a node, instead of --node-type.
    #[arg(long, value_parser = parse_memory, requires = "vcpu", allow_hyphen_values = true)]
    pub(crate) node_memory: Option<u64>,
    /// CPU of a node that pods may request.
    #[arg(long, value_parser = parse_cpu, allow_hyphen_values = true, value_name = "CPU")]
    pub(crate) allocatable_cpu: Option<u64>,
    /// Memory of a node that pods may request.
    #[arg(long, value_parser = parse_memory, allow_hyphen_values = true, value_name = "MEMORY")]
    pub(crate) allocatable_memory: Option<u64>,
    /// Maximum number of pods on a node [default: that of the type, mostly 110].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=NODE_PODS_MAX))]
    pub(crate) node_pods: Option<u32>,
    /// Price of a node per month.
    #[arg(long, value_parser = Price::parse, allow_hyphen_values = true)]
    pub(crate) price: Option<Price>,
    /// Price per month in addition to the nodes.
    #[arg(long, value_parser = Price::parse, allow_hyphen_values = true, value_name = "PRICE")]
    pub(crate) fixed_fee: Option<Price>,
    /// A label of all nodes; may be repeated.
    #[arg(long = "node-label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Number of zones that the nodes are spread over.
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) zones: u32,
}

/// What the mesh reserves.
#[derive(Debug, Args)]
#[group(id = "mesh", multiple = true)]
pub(crate) struct MeshArgs {
    /// Request of one instance of sidecar, ztunnel, cni, istiod or waypoint; may be repeated. 0/0
    /// leaves a component out [default: sidecar=250m/128Mi, ztunnel=200m/512Mi, cni=100m/100Mi,
    /// istiod=500m/2Gi, waypoint=100m/128Mi].
    #[arg(long = "reserve", value_name = "COMPONENT=CPU/MEMORY", value_parser = reservation)]
    pub(crate) reserve: Vec<(Component, Resources)>,
    /// Replicas of the control plane.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) istiod_replicas: u32,
    /// Replicas of the waypoint of each namespace with a Service.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) waypoint_replicas: u32,
    /// Reserves for ztunnel the CPU per request that a run of `ambit bench` measured, instead of a
    /// fixed CPU: the run's directory or run.json.
    #[arg(long, value_name = "RUN", requires = "rps")]
    pub(crate) measured: Option<PathBuf>,
    /// Requests per second of the whole mesh, each like one of the run's case.
    #[arg(long, value_name = "N", requires = "measured",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    pub(crate) rps: Option<u32>,
    /// The mode of the run whose proxies count.
    #[arg(long, value_name = "MODE", default_value = "ambient", requires = "measured")]
    pub(crate) measured_mode: String,
    /// The case of the run [default: its first with requests].
    #[arg(long, value_name = "CASE", requires = "measured")]
    pub(crate) measured_case: Option<String>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or("write it as KEY=VALUE, for example disk=ssd")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn reservation(text: &str) -> Result<(Component, Resources), String> {
    let form = "write it as COMPONENT=CPU/MEMORY, for example sidecar=100m/128Mi";
    let (name, amounts) = text.split_once('=').ok_or(form)?;
    let (cpu, memory) = amounts.split_once('/').ok_or(form)?;
    let component = Component::named(name).ok_or_else(|| {
        let known = Component::ALL.map(Component::name).join(", ");
        format!("the component `{name}` does not exist; use one of {known}")
    })?;
    let of = |amount: &str, error: AmountError| format!("`{amount}` {error}");
    let cpu = parse_cpu(cpu).map_err(|error| of(cpu, error))?;
    let memory = parse_memory(memory).map_err(|error| of(memory, error))?;
    Ok((component, Resources::new(cpu, memory)))
}
