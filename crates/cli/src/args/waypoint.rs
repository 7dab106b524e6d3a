//! The arguments of `ambit waypoint`: those of istioctl's command of the same name.

use ambit_manifest::gateway::AMBIT_WAYPOINT;
use clap::{Args, Subcommand, ValueEnum};

use super::kube::KubeArgs;
use super::state::StateArgs;

/// `ambit waypoint`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct WaypointArgs {
    #[command(subcommand)]
    pub(crate) command: Option<WaypointCommand>,
    /// The waypoint itself, where there is no command.
    #[command(flatten)]
    pub(crate) role: Option<ambit_waypoint::Args>,
    /// What the waypoint itself reports, and its bounds.
    #[command(flatten)]
    pub(crate) further: ambit_waypoint::FurtherArgs,
}

/// What becomes of waypoints.
#[derive(Debug, Subcommand)]
pub(crate) enum WaypointCommand {
    /// Makes a waypoint in a namespace, or changes it.
    Apply(WaypointApplyArgs),
    /// Prints the Gateway that `apply` would apply.
    Generate(WaypointGenerateArgs),
    /// Lists waypoints.
    List(WaypointListArgs),
    /// Shows whether a waypoint runs, and why not.
    Status(WaypointStatusArgs),
    /// Deletes waypoints.
    Delete(WaypointDeleteArgs),
}

impl WaypointCommand {
    /// Which machine.
    pub(crate) fn state(&mut self) -> &mut StateArgs {
        match self {
            Self::Apply(args) => &mut args.target.state,
            Self::Generate(args) => &mut args.target.state,
            Self::List(args) => &mut args.target.state,
            Self::Status(args) => &mut args.target.state,
            Self::Delete(args) => &mut args.target.state,
        }
    }

    /// Which cluster.
    pub(crate) fn kube(&self) -> &KubeArgs {
        match self {
            Self::Apply(args) => &args.target.kube,
            Self::Generate(args) => &args.target.kube,
            Self::List(args) => &args.target.kube,
            Self::Status(args) => &args.target.kube,
            Self::Delete(args) => &args.target.kube,
        }
    }
}

/// Where.
#[derive(Debug, Args)]
pub(crate) struct WaypointTarget {
    /// The namespace [default: default].
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

impl WaypointTarget {
    /// The namespace that is meant.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

/// What a waypoint is like.
#[derive(Debug, Args)]
pub(crate) struct WaypointShape {
    /// Its name.
    #[arg(long, default_value = "waypoint")]
    pub(crate) name: String,
    /// Which traffic it is for [default: service].
    #[arg(long = "for", value_enum)]
    pub(crate) traffic: Option<WaypointTraffic>,
    /// The revision that it gets as its label istio.io/rev.
    #[arg(short, long)]
    pub(crate) revision: Option<String>,
    /// Its class, such as istio-waypoint.
    #[arg(long, default_value = AMBIT_WAYPOINT)]
    pub(crate) class: String,
}

/// Which traffic a waypoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaypointTraffic {
    /// What goes to services.
    Service,
    /// What goes to the addresses of pods.
    Workload,
    /// Both.
    All,
    /// Neither.
    None,
}

impl WaypointTraffic {
    /// The value of the label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Workload => "workload",
            Self::All => "all",
            Self::None => "none",
        }
    }
}

/// `ambit waypoint apply`.
#[derive(Debug, Args)]
pub(crate) struct WaypointApplyArgs {
    #[command(flatten)]
    pub(crate) shape: WaypointShape,
    /// Labels the namespace, so that its services use the waypoint.
    #[arg(long)]
    pub(crate) enroll_namespace: bool,
    /// Replaces the waypoint that the namespace names already.
    #[arg(long, requires = "enroll_namespace")]
    pub(crate) overwrite: bool,
    /// Returns when the waypoint runs; fails if it does not within 90 s.
    #[arg(short, long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) target: WaypointTarget,
}

/// `ambit waypoint generate`.
#[derive(Debug, Args)]
pub(crate) struct WaypointGenerateArgs {
    #[command(flatten)]
    pub(crate) shape: WaypointShape,
    #[command(flatten)]
    pub(crate) target: WaypointTarget,
}

/// `ambit waypoint list`.
#[derive(Debug, Args)]
pub(crate) struct WaypointListArgs {
    /// Those of all namespaces.
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) target: WaypointTarget,
}

/// `ambit waypoint status`.
#[derive(Debug, Args)]
pub(crate) struct WaypointStatusArgs {
    /// The waypoint; without it, all of the namespace.
    pub(crate) name: Option<String>,
    /// Waits up to 90 s until it runs.
    #[arg(short, long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) target: WaypointTarget,
}

/// `ambit waypoint delete`.
#[derive(Debug, Args)]
pub(crate) struct WaypointDeleteArgs {
    /// The waypoints.
    #[arg(required_unless_present = "all")]
    pub(crate) names: Vec<String>,
    /// All waypoints of the namespace.
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// Deletes them also if a namespace, service or pod still names them.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) target: WaypointTarget,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{Cli, Command, WaypointCommand};

    #[test]
    fn the_flags_are_istioctls() {
        let check = |words: &str, is_right: bool| {
            let words = ["ambit", "waypoint"].into_iter().chain(words.split_whitespace());
            let parsed = Cli::try_parse_from(words);
            assert_eq!(parsed.is_ok(), is_right, "{parsed:?}");
        };
        check("", false);
        let own = "--pod-name a --pod-namespace b --service-account c --instance-ip 10.0.0.1";
        check(&format!("{own} --gateway-name d"), true);
        check("apply", true);
        check("apply -n shop --name way --for all --revision r --wait --enroll-namespace", true);
        check("apply --overwrite", false);
        check("apply --enroll-namespace --overwrite --class istio-waypoint --kube", true);
        check("apply --for everything", false);
        check("generate --for none", true);
        check("list -A", true);
        check("status way --wait", true);
        check("delete", false);
        check("delete a b -n shop", true);
        check("delete --all", true);
        check("delete a --force", true);
        check("delete a --all", false);
        let cli = Cli::try_parse_from(["ambit", "waypoint", "generate"]).expect("right");
        let Command::Waypoint(args) = cli.command else { panic!("another command") };
        let Some(WaypointCommand::Generate(args)) = args.command else { panic!("another one") };
        assert_eq!((&*args.shape.name, &*args.shape.class), ("waypoint", "ambit-waypoint"));
        assert_eq!(args.target.namespace(), "default");
    }
}
