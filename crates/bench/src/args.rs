//! The flags of `ambit bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

/// The most repetitions of one run.
const MAX_REPETITIONS: u64 = 100;
/// A load is not shorter, nor longer.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3600);
/// The most namespaces of one machine.
const MAX_NAMESPACES: i64 = 200;

/// `ambit bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub(super) other: Option<Other>,
    #[command(flatten)]
    pub(super) run: Option<RunArgs>,
}

/// What `ambit bench` does besides a run.
#[derive(Debug, Subcommand)]
pub(super) enum Other {
    /// Compares two runs of the same experiment: what differs, and is it more than noise?
    Compare(CompareArgs),
    /// Writes the report, charts and tables of a run again.
    Report(ReportArgs),
}

/// `ambit bench compare`.
#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// A run: its directory or run.json.
    #[arg(value_name = "A")]
    pub(super) before: PathBuf,
    /// Another run.
    #[arg(value_name = "B")]
    pub(super) after: PathBuf,
}

/// `ambit bench report`.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// A run: its directory or run.json. The report is written beside it.
    #[arg(value_name = "RUN")]
    pub(super) run: PathBuf,
}

/// A run.
#[derive(Clone, Debug, Args)]
pub(super) struct RunArgs {
    /// The name of an experiment, or the path of your own manifests (with --url).
    #[arg(required = true, value_name = "EXPERIMENT|PATH")]
    pub(super) experiment: String,
    /// The modes, separated by commas [default: none, ambient, ambient+l4policy and every peer].
    #[arg(long, value_delimiter = ',', value_name = "MODE")]
    pub(super) modes: Vec<String>,
    /// The proxy of another mesh, as ztunnel=PATH, envoy=PATH or linkerd=PATH; may be repeated.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    pub(super) peers: Vec<String>,
    /// Number of measurements of each load in each mode. Fewer than 3 give no verdict, fewer than 6
    /// no reliable one.
    #[arg(long, default_value_t = 6,
        value_parser = clap::value_parser!(u64).range(1..=MAX_REPETITIONS))]
    pub(super) repetitions: u64,
    /// Time of each measurement.
    #[arg(short, long, default_value = "5s", value_parser = bounded)]
    pub(super) duration: Duration,
    /// Time of load before each measurement.
    #[arg(long, default_value = "1s", value_parser = ambit_load::duration)]
    pub(super) warm_up: Duration,
    /// Numbers of namespaces of `tiered`, separated by commas [default: 1,5].
    #[arg(long, value_delimiter = ',', value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=MAX_NAMESPACES))]
    pub(super) namespaces: Vec<u32>,
    /// Requests per second: of `tiered` in each namespace, or to --url [default: 50/s].
    #[arg(long, value_name = "RATE")]
    pub(super) rate: Option<String>,
    /// Connections: of `tiered` in each namespace, or to --url [default: 10].
    #[arg(short, long, value_name = "N")]
    pub(super) connections: Option<u32>,
    /// Runs only cases whose name contains this; may be repeated.
    #[arg(long = "only", value_name = "TEXT")]
    pub(super) only: Vec<String>,
    /// With your own manifests: the URL that gets the load, as a pod sees it.
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// With your own manifests: the pod that sends the load, as NAMESPACE/POD [default: a new one,
    /// in the first namespace of the manifests].
    #[arg(long, value_name = "NS/POD")]
    pub(super) from: Option<String>,
    /// The directory of the run [default: bench/runs/DATE-MACHINE/EXPERIMENT].
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
    /// Seed of the shuffled order [default: another one each time].
    #[arg(long)]
    pub(super) seed: Option<u64>,
}

/// A time that ends.
fn bounded(text: &str) -> Result<Duration, String> {
    let duration = ambit_load::duration(text).map_err(|error| error.to_string())?;
    if (SHORTEST..=LONGEST).contains(&duration) {
        return Ok(duration);
    }
    Err(format!("{text} is no time to measure for; write 100ms to {} s", LONGEST.as_secs()))
}
