//! The command line: every command, every flag and its help.
//!
//! Parsing only; [`crate::commands`] has what a command does.

mod bench;
mod forward;
mod inputs;
mod inspect;
mod join;
mod judge;
mod kube;
mod objects;
mod plan;
mod probe;
mod state;
mod version;
mod waypoint;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ambit_machine::{ImageArgumentError, ImageArguments};
use ambit_manifest::Unenforced;
use ambit_words::departure::GRACE_MAX;
use ambit_words::durations::{DurationError, parse_duration, parse_duration_within};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use bench::BenchArgs;
pub(crate) use forward::{PortForwardArgs, Ports};
pub(crate) use inputs::{InputArgs, NamespaceArgs, input};
pub(crate) use inspect::{DescribeArgs, EventType, EventsArgs, TopArgs, TopKind, TopOrder};
pub(crate) use join::{JoinArgs, Joiner, TokenArgs, TokenCommand};
pub(crate) use judge::{AnalyzeArgs, DiffArgs};
pub(crate) use kube::KubeArgs;
pub(crate) use objects::{
    GetArgs, Kind, LabelArgs, Output, OutputArgs, RolloutArgs, RolloutCommand, ScaleArgs,
    ShownKind, Target, kind_of,
};
pub(crate) use plan::PlanArgs;
pub(crate) use probe::ProbeArgs;
pub(crate) use state::StateArgs;
pub(crate) use version::{VersionArgs, VersionOutput};
pub(crate) use waypoint::{WaypointArgs, WaypointCommand, WaypointShape, WaypointTarget};

/// Ambit, a service mesh without sidecars.
#[derive(Debug, Parser)]
#[command(name = "ambit", version = ambit_bench::VERSION, max_term_width = 100)]
pub(crate) struct Cli {
    /// The state directory of the mesh on this machine; may follow the command
    /// [env: AMBIT_STATE].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The command, with the state directory wherever it was written: after the command, before it,
    /// or in the environment. Refused if it was given and would be ignored.
    ///
    /// The environment's is not the parser's: it concerns only some commands, and an empty one
    /// counts as unset, as everywhere in a shell.
    pub(crate) fn into_command(
        self,
        environment: Option<OsString>,
    ) -> Result<Command, clap::Error> {
        let Self { state: before, mut command } = self;
        let environment = environment.filter(|state| !state.is_empty()).map(PathBuf::from);
        let is_cluster = command.kube().is_some_and(KubeArgs::is_meant);
        match command.state() {
            Some(StateArgs { state }) if is_cluster && (state.is_some() || before.is_some()) => {
                let reason = "--state names a machine and --kube, --context, --kubeconfig and \
                              --mesh-namespace a cluster; leave one of them out";
                return Err(Self::command().error(ErrorKind::ArgumentConflict, reason));
            }
            Some(StateArgs { state }) => *state = state.take().or(before).or(environment),
            None if before.is_some() => {
                let reason = "--state before the command names a running machine, which demo, \
                              check, uninstall, probe, completions, control, node, proxy and a \
                              waypoint itself do not use; leave it out, or write a role's own \
                              after the command";
                return Err(Self::command().error(ErrorKind::ArgumentConflict, reason));
            }
            None => {}
        }
        Ok(command)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts a mesh of two nodes, sends load, proves what the mesh does, and removes it.
    Demo(DemoArgs),
    /// Starts a mesh on this machine from Kubernetes manifests.
    Up(UpArgs),
    /// Makes this computer a node of the mesh on another, by a token that was made there.
    Join(JoinArgs),
    /// Makes tokens by which other computers join the mesh on this machine, or that of a Kubernetes
    /// cluster.
    Token(TokenArgs),
    /// Ends the mesh on this machine and removes it. Only the logs stay.
    Down(StateArgs),
    /// Checks whether a Kubernetes cluster can run Ambit, and whether Ambit works there. Exits with
    /// 1 if a finding is an error.
    Check(CheckArgs),
    /// Orders the certificates that Gateways on this machine ask for by ACME, and renews them: now,
    /// or with --watch from now on. Exits with 1 if one is missing. In a cluster control does this.
    Acme(AcmeArgs),
    /// Takes every pod of a Kubernetes cluster out of the mesh. It first names the policies that
    /// are then no longer enforced. `helm uninstall` runs this command.
    Uninstall(UninstallArgs),
    /// Prints the kubeconfig by which kubectl reaches a machine that was started with
    /// `ambit up --kubernetes-api`.
    Kubeconfig(KubeconfigArgs),
    /// Applies manifests to a running mesh: all or none.
    Apply(ApplyArgs),
    /// Shows what `ambit apply` would change on this machine.
    Diff(DiffArgs),
    /// Looks for what is wrong or has no effect: in manifests, beside the objects of a machine that
    /// runs; or, without any, in the running mesh. Exits with 1 if a finding is an error.
    Analyze(AnalyzeArgs),
    /// Deletes objects from a running mesh, those of manifests or by name: all or none.
    Delete(DeleteArgs),
    /// Lists pods, services, workloads, policies, gateways, routes, certificates, connections or
    /// nodes; of a machine also the objects of any kind.
    Get(GetArgs),
    /// Shows everything about objects on this machine, with what happened to them.
    Describe(DescribeArgs),
    /// Lists what happened to pods and to what makes them on this machine.
    Events(EventsArgs),
    /// Shows the processor time and the memory that pods or nodes of this machine use.
    Top(TopArgs),
    /// Sets or removes labels of an object on this machine.
    Label(LabelArgs),
    /// Sets or removes annotations of an object on this machine.
    Annotate(LabelArgs),
    /// Sets how many pods a Deployment or StatefulSet on this machine has.
    Scale(ScaleArgs),
    /// Restarts the pods of a Deployment, StatefulSet or DaemonSet on this machine, or waits until
    /// they are all there.
    Rollout(RolloutArgs),
    /// Shows the version of this program and of each part of the running mesh. Exits with 1 if a
    /// part does not say its own.
    Version(VersionArgs),
    /// Runs a command in a pod.
    Exec(ExecArgs),
    /// Leads ports of this computer to ports of a pod on this machine, until it is stopped.
    PortForward(PortForwardArgs),
    /// Prints the logs of a pod (NAMESPACE/POD), a proxy (proxy/NODE), a node agent (node/NODE) or
    /// control.
    Logs(LogsArgs),
    /// Shows whether every part of the mesh works.
    Status(StatusArgs),
    /// Explains whether a connection or a request is allowed, why, and how to change that.
    Why(WhyArgs),
    /// Prints the routes of a service in the order in which its waypoint asks them, or those of a
    /// gateway at the edge.
    Routes(RoutesArgs),
    /// Computes what each kind of mesh reserves, how many nodes it needs, and what they cost.
    #[command(after_help = plan::MODELLED)]
    Plan(Box<PlanArgs>),
    /// Sends load at a constant rate, or as fast as possible, and measures latency from the moment
    /// when each request was due.
    Load(Box<ambit_load::LoadArgs>),
    /// Runs a published experiment, or your own manifests, with and without meshes, and compares
    /// latency and CPU.
    #[command(after_help = ambit_bench::help())]
    Bench(Box<BenchArgs>),
    /// Asks a part of the mesh in this container or on this host whether it is ready. The kubelet's
    /// probes run this.
    Probe(ProbeArgs),
    /// Prints the completions for a shell. For bash: `source <(ambit completions bash)`, which also
    /// completes kinds, namespaces and names of the machine that runs.
    Completions(CompletionsArgs),
    /// Prints the kinds and names that the last of the words of a command line may become.
    #[command(hide = true)]
    CompleteNames(CompleteNamesArgs),
    /// Writes a manual page for each command.
    #[command(hide = true)]
    Man(ManArgs),
    /// Runs the control plane.
    Control(Box<ambit_control::Args>),
    /// Runs the node agent.
    Node(Box<ambit_node::Args>),
    /// Runs the node proxy.
    Proxy(Box<ambit_proxy::Args>),
    /// Makes, lists and deletes waypoints. Without a command it is the waypoint itself, in its pod.
    Waypoint(Box<WaypointArgs>),
}

impl Command {
    /// Which machine it concerns, if it concerns one that is there.
    fn state(&mut self) -> Option<&mut StateArgs> {
        match self {
            Self::Up(args) => Some(&mut args.state),
            Self::Join(args) => Some(&mut args.state),
            Self::Token(args) => Some(args.command.state()),
            Self::Acme(args) => Some(&mut args.state),
            Self::Down(args) => Some(args),
            Self::Kubeconfig(args) => Some(&mut args.state),
            Self::Apply(args) => Some(&mut args.manifests.state),
            Self::Diff(args) => Some(&mut args.state),
            Self::Analyze(args) => Some(&mut args.state),
            Self::Delete(args) => Some(&mut args.manifests.state),
            Self::Get(args) => Some(&mut args.state),
            Self::Describe(args) => Some(&mut args.state),
            Self::Events(args) => Some(&mut args.state),
            Self::Top(args) => Some(&mut args.state),
            Self::Label(args) | Self::Annotate(args) => Some(&mut args.state),
            Self::Scale(args) => Some(&mut args.state),
            Self::Rollout(args) => Some(args.command.state()),
            Self::Exec(args) => Some(&mut args.state),
            Self::PortForward(args) => Some(&mut args.state),
            Self::Logs(args) => Some(&mut args.state),
            Self::Status(args) => Some(&mut args.state),
            Self::Version(args) => Some(&mut args.state),
            Self::Why(args) => Some(&mut args.state),
            Self::Routes(args) => Some(&mut args.state),
            Self::Waypoint(args) => args.command.as_mut().map(WaypointCommand::state),
            Self::CompleteNames(args) => Some(&mut args.state),
            // These have machines of their own, or need none; a role has its own flags.
            Self::Demo(_) | Self::Plan(_) | Self::Load(_) | Self::Bench(_) => None,
            Self::Check(_) | Self::Uninstall(_) | Self::Probe(_) => None,
            Self::Completions(_) | Self::Man(_) => None,
            Self::Control(_) | Self::Node(_) | Self::Proxy(_) => None,
        }
    }

    /// Which cluster, if it may concern one.
    fn kube(&self) -> Option<&KubeArgs> {
        match self {
            Self::Apply(args) => Some(&args.manifests.kube),
            Self::Analyze(args) => Some(&args.kube),
            Self::Delete(args) => Some(&args.manifests.kube),
            Self::Get(args) => Some(&args.kube),
            Self::Exec(args) => Some(&args.kube),
            Self::PortForward(args) => Some(&args.kube),
            Self::Logs(args) => Some(&args.kube),
            Self::Status(args) => Some(&args.kube),
            Self::Token(args) => Some(args.command.kube()),
            Self::Version(args) => Some(&args.kube),
            Self::Why(args) => Some(&args.kube),
            Self::Routes(args) => Some(&args.kube),
            Self::Waypoint(args) => args.command.as_ref().map(WaypointCommand::kube),
            Self::Check(args) => Some(&args.kube),
            Self::Uninstall(args) => Some(&args.kube),
            Self::Plan(args) => Some(&args.kube),
            Self::Bench(args) => Some(&args.kube),
            _ => None,
        }
    }
}

/// `ambit demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Seconds of load per mode.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Requests per second.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,
    /// Directory for the packet captures and logs [default: a new one in the directory for
    /// temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value_t = Report::Text)]
    pub(crate) output: Report,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Report {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

/// `ambit up`.
#[derive(Debug, Args)]
#[command(group(inputs::needed()))]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) inputs: InputArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// How many nodes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=200))]
    pub(crate) nodes: u8,
    /// Labels of nodes, such as node-1:disk=ssd,tier=gold; of all of them without NODE; may be
    /// repeated. A Node manifest sets taints, too.
    #[arg(long = "node-labels", value_name = "[NODE:]KEY=VALUE,...")]
    pub(crate) node_labels: Vec<String>,
    /// Returns when everything is ready. Fails if something is not, and keeps the rest. Without
    /// it, the command stays until Ctrl-C. `ambit down` ends the mesh.
    #[arg(long)]
    pub(crate) detach: bool,
    /// A port of this computer that leads to a service, such as 8080=shop/web:80, or to a listener
    /// of a Gateway, such as 8443=ingress/443 or 0.0.0.0:8443=edge/ingress/443; may be repeated.
    /// 5353/udp=shop/dns:53 carries UDP. Without an IP address only this computer reaches it.
    /// Services of type NodePort and LoadBalancer have their ports without it.
    #[arg(long = "publish", value_name = "PORT=SERVICE:PORT")]
    pub(crate) publish: Vec<ambit_machine::Published>,
    /// Serves the Kubernetes API on a port of this computer's loopback, for kubectl.
    /// Without a port the kernel chooses one. See `ambit kubeconfig`.
    #[arg(
        long,
        value_name = "[IP:]PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0"
    )]
    pub(crate) kubernetes_api: Option<ambit_machine::ApiAddress>,
    /// Listens there for other computers that join: an address and a port of this computer.
    /// See `ambit token create`.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) join_address: Option<SocketAddr>,
    /// Starts only pods, services and DNS, without the mesh, to compare with.
    #[arg(long, conflicts_with_all = ["proxies", "control_flags", "proxy_flags", "node_flags"])]
    pub(crate) no_mesh: bool,
    #[command(flatten)]
    pub(crate) pods: PodArgs,
    /// A program that runs instead of a node's proxy, such as a real ztunnel, as NODE=PATH; may be
    /// repeated.
    #[arg(long = "proxy", value_name = "NODE=PATH")]
    pub(crate) proxies: Vec<String>,
    /// A flag for every `ambit control`, as --control-flag=--workload-cert-ttl=60s; may be
    /// repeated.
    #[arg(long = "control-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) control_flags: Vec<String>,
    /// A flag for every `ambit proxy`; may be repeated.
    #[arg(long = "proxy-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) proxy_flags: Vec<String>,
    /// A flag for every `ambit node`; may be repeated.
    #[arg(long = "node-flag", value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) node_flags: Vec<String>,
    #[command(flatten)]
    pub(crate) ignored: IgnoredArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// What of the manifests may be left out.
#[derive(Debug, Args)]
pub(crate) struct IgnoredArgs {
    /// Leaves out NetworkPolicy objects, which Ambit does not enforce.
    /// Without it they are errors, and nothing is applied.
    #[arg(long)]
    allow_ignored: bool,
}

impl IgnoredArgs {
    /// The same in the words of manifests.
    pub(crate) fn unenforced(&self) -> Unenforced {
        if self.allow_ignored { Unenforced::LeftOut } else { Unenforced::Refused }
    }
}

/// `ambit kubeconfig`.
#[derive(Debug, Args)]
pub(crate) struct KubeconfigArgs {
    /// Prints where it is instead: `export KUBECONFIG=$(ambit kubeconfig --path)`.
    #[arg(long)]
    pub(crate) path: bool,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit acme`.
#[derive(Debug, Args)]
pub(crate) struct AcmeArgs {
    /// Goes on until Ctrl-C and renews in time, as `ambit up` does while it stays.
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) images: ImageArgs,
    #[command(flatten)]
    pub(crate) manifests: ManifestArgs,
}

/// What pods of this computer may have of it.
#[derive(Debug, Args)]
pub(crate) struct PodArgs {
    #[command(flatten)]
    pub(crate) images: ImageArgs,
    /// A directory of this computer that pods may write, by volumes of type hostPath; may be
    /// repeated. Others they can only read. It is found once: what replaces it later is not meant.
    #[arg(long = "host-path", value_name = "DIR")]
    pub(crate) host_paths: Vec<PathBuf>,
    /// Lets pods connect by TCP to what this computer reaches, and look up names as it does. Off by
    /// default, but for the command of a WorkloadEntry; with networks, such as
    /// --egress=10.0.0.0/8,192.0.2.7/32, only to these. This computer's loopback and link-local
    /// addresses are never reached.
    #[arg(
        long,
        value_name = "CIDR,...",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ambit_machine::Egress::EVERYWHERE
    )]
    pub(crate) egress: Option<ambit_machine::Egress>,
    /// Lets containers use more processor time and memory than their limits allow.
    #[arg(long)]
    pub(crate) no_limits: bool,
}

/// What images mean on one machine.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// What an image of the manifests means; may be repeated. NAME=oci:PATH, =oci-archive:FILE or
    /// =docker-archive:FILE imports it, with :REF after the path if there are several images.
    /// NAME=registry:REFERENCE fetches it, with the logins of `docker login`;
    /// NAME=docker-daemon:REFERENCE and NAME=containerd:REFERENCE take it from the Docker or
    /// containerd on this computer.
    /// NAME=COMMAND runs a local command instead. It holds for later `ambit apply`, and also for
    /// pods that start again.
    #[arg(long = "image", value_name = "NAME=SOURCE")]
    images: Vec<String>,
}

impl ImageArgs {
    /// Whether none is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// The same, read.
    pub(crate) fn read(&self) -> Result<ImageArguments, ImageArgumentError> {
        ImageArguments::parse(self.images.iter().map(String::as_str))
    }
}

/// `ambit delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "Instead of manifests, objects may be named: `KIND/NAME ...` or `KIND NAME \
    ...`, as `ambit delete -n shop deployment/web service/web`."
)]
pub(crate) struct DeleteArgs {
    /// Passes over what is not there.
    #[arg(long)]
    pub(crate) ignore_not_found: bool,
    #[command(flatten)]
    pub(crate) manifests: ManifestArgs,
}

/// What `ambit apply` and `ambit delete` have in common.
#[derive(Debug, Args)]
#[command(group(inputs::needed()))]
pub(crate) struct ManifestArgs {
    #[command(flatten)]
    pub(crate) inputs: InputArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// Shows what would change, and changes nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Returns when the change is stored, before it is in force.
    #[arg(long)]
    pub(crate) no_wait: bool,
    #[command(flatten)]
    pub(crate) ignored: IgnoredArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// `ambit check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Checks whether the cluster can run Ambit, before you install it.
    #[arg(long)]
    pub(crate) pre: bool,
    /// Shows what uninstalling would change: which policies are no longer enforced, and what
    /// forbids it.
    #[arg(long, conflicts_with = "pre")]
    pub(crate) uninstall: bool,
    /// The format of the output.
    #[arg(short, long, value_enum, default_value_t = Report::Text)]
    pub(crate) output: Report,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// `ambit uninstall`.
#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    /// How long connections through the mesh may stay open. Then they are cut and counted (0s to
    /// 1h).
    #[arg(long, default_value = "200s", value_parser = grace, value_name = "DURATION")]
    pub(crate) grace: Duration,
    /// Continues even if policies refuse plain text, or nodes do not answer.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

fn grace(text: &str) -> Result<Duration, DurationError> {
    parse_duration_within(text, Duration::ZERO..=GRACE_MAX)
}

/// `ambit exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The pod, as NAMESPACE/POD, pod/POD, KIND/NAME of what makes it, as kubectl takes it, or POD
    /// with -n. The name of what makes pods, such as a Deployment, means its first pod.
    pub(crate) pod: String,
    /// The namespace of POD or KIND/NAME [default: default].
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// The container, if the pod has several.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Passes the standard input on. That is always so, except for what is typed at a terminal
    /// while the output goes elsewhere, such as to a pager.
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// With a terminal, which is always so when the command is typed at one; kubectl needs it.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// `ambit logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// NAMESPACE/POD, pod/POD, KIND/NAME of what makes it, proxy/NODE, node/NODE or control; with
    /// -n also POD.
    pub(crate) of: String,
    /// The namespace of POD or KIND/NAME [default: default].
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Begins with the last so many lines.
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<usize>,
    /// Only lines that were written in the last so long, such as 30s or 5m.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Begins each line with the time when it was written.
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// The container, if the pod has several.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Keeps printing new lines.
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// `ambit status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The format of the output.
    #[arg(short, long, value_enum, default_value_t = Report::Text)]
    pub(crate) output: Report,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// `ambit why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Who connects: NAMESPACE/POD, or NAMESPACE/WORKLOAD for a pod of a Deployment, StatefulSet or
    /// another owner of pods.
    pub(crate) source: String,
    /// To what: NAMESPACE/POD, NAMESPACE/WORKLOAD, NAMESPACE/SERVICE, a host name, or an address
    /// (IPv6 in brackets); with :PORT.
    #[arg(value_name = "DST[:PORT]")]
    pub(crate) destination: String,
    /// Asks about a request of this method, as the waypoint of the destination answers it.
    #[arg(long)]
    pub(crate) method: Option<String>,
    /// The request's path with its query [default: /].
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// The request's host [default: the name of the service].
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) host: Option<String>,
    /// A field of the request; may be given several times.
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// What a token of the client says, as JSON: `{"sub": "ann", "groups": ["admin"]}`. The answer
    /// is that for a token with a good signature.
    #[arg(long, value_name = "JSON")]
    pub(crate) claims: Option<String>,
    /// A file with a token of the client, or `-` for the standard input. It is verified with the
    /// keys that control has of its issuer.
    #[arg(long, value_name = "FILE", conflicts_with = "claims")]
    pub(crate) jwt: Option<PathBuf>,
    /// The name in the client's TLS handshake, for a port that carries TLS.
    #[arg(long, value_name = "HOST")]
    pub(crate) sni: Option<String>,
    /// Exit with status 3 unless the connection, or the request, is allowed; 1 is an error, as
    /// always.
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// The format of the output.
    #[arg(short, long, value_enum, default_value_t = Report::Text)]
    pub(crate) output: Report,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// `ambit routes`.
#[derive(Debug, Args)]
pub(crate) struct RoutesArgs {
    /// The service, NAMESPACE/NAME, or NAMESPACE/HOSTNAME of a ServiceEntry; or a Gateway.
    #[arg(value_name = "NAMESPACE/NAME")]
    pub(crate) service: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `complete-names`.
#[derive(Debug, Args)]
pub(crate) struct CompleteNamesArgs {
    /// The words behind the program's name, up to the one that is completed.
    #[arg(last = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory, which is made if it is not there.
    pub(crate) directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state directory that applies to these arguments, or the error for them.
    fn state(words: &[&str], environment: Option<&str>) -> Result<Option<PathBuf>, String> {
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let command = cli.into_command(environment.map(OsString::from));
        let mut command = command.map_err(|error| error.to_string())?;
        Ok(command.state().and_then(|args| args.state.clone()))
    }

    #[test]
    fn the_state_directory_may_stand_before_or_after_the_command_or_in_the_environment() {
        let check = |words: &[&str], environment: Option<&str>, expected: Option<&str>| {
            let said = state(words, environment);
            assert_eq!(said, Ok(expected.map(PathBuf::from)), "{words:?} {environment:?}");
        };
        check(&["ambit", "--state", "/a", "get", "pods"], Some("/c"), Some("/a"));
        check(&["ambit", "get", "pods", "--state", "/b"], Some("/c"), Some("/b"));
        check(&["ambit", "--state", "/a", "down", "--state", "/b"], None, Some("/b"));
        check(&["ambit", "--state", "/a", "exec", "a/b", "--", "true"], None, Some("/a"));
        check(&["ambit", "down"], Some("/c"), Some("/c"));
        check(&["ambit", "down"], Some(""), None);
        check(&["ambit", "down"], None, None);
        // A shell's setting concerns the commands that have a use for it.
        check(&["ambit", "demo"], Some("/c"), None);
        check(&["ambit", "control", "--registry", "files:/r"], Some("/c"), None);
    }

    #[test]
    fn every_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_plan_is_of_one_application() {
        let check = |words: &[&str], is_fine: bool| {
            let said = Cli::try_parse_from([&["ambit", "plan"], words].concat());
            let said = said.map_err(|error| error.to_string());
            assert_eq!(said.is_ok(), is_fine, "{words:?}: {said:?}");
        };
        let pods = ["--pods", "3", "--cpu", "1", "--memory", "1Gi"];
        check(&[], false);
        check(&["a.yaml", "-f", "-", "-k", "b"], true);
        check(&["-k", "b", "--published"], true);
        check(&["--published"], true);
        check(&["--kube"], true);
        check(&["--context", "a"], true);
        check(&pods, true);
        check(&[&pods[..], &["-k", "b"]].concat(), false);
        check(&[&pods[..], &["--kube"]].concat(), false);
        check(&["-k", "b", "--kube"], false);
        check(&["a.yaml", "--context", "a"], false);
    }

    #[test]
    fn a_machine_and_a_cluster_are_not_asked_at_once() {
        let check = |words: &[&str], is_fine: bool| {
            let said = state(&[&["ambit"], words].concat(), Some("/c"));
            assert_eq!(said.is_ok(), is_fine, "{words:?}: {said:?}");
        };
        check(&["get", "pods", "--kube"], true);
        check(&["status", "--context", "a"], true);
        check(&["check", "--pre"], true);
        check(&["bench", "path", "--kube", "--modes", "none"], true);
        check(&["bench", "compare", "a", "b"], true);
        check(&["bench", "compare", "a", "b", "--kube"], false);
        check(&["bench", "--kube", "compare", "a", "b"], false);
        check(&["bench", "--kube"], false);
        check(&["get", "pods", "--kube", "--state", "/a"], false);
        check(&["--state", "/a", "why", "a/b", "c/d", "--kubeconfig", "/f"], false);
        check(&["logs", "control", "--mesh-namespace", "m", "--state", "/a"], false);
        check(&["--state", "/a", "check"], false);
    }

    #[test]
    fn a_state_directory_that_would_be_ignored_is_refused() {
        let check = |command: &[&str]| {
            let said = state(&[&["ambit", "--state", "/a"], command].concat(), None);
            let said = said.expect_err("it would be ignored");
            assert!(said.contains("leave it out"), "{said}");
        };
        check(&["demo"]);
        check(&["control", "--registry", "files:/r", "--state", "/b"]);
        check(&["node", "--registry", "files:/r", "--node-name", "node-1"]);
        check(&["proxy", "--node-name", "node-1"]);
        assert!(state(&["ambit", "--state", "", "down"], None).is_err(), "a slip, not a wish");
    }
}
