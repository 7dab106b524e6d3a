//! The arguments of `describe`, `events` and `top`, as kubectl's.

use clap::{Args, ValueEnum};

use super::{OutputArgs, StateArgs, Target};

/// `ambit describe`.
#[derive(Debug, Args)]
pub(crate) struct DescribeArgs {
    /// The objects, as KIND/NAME ... or KIND NAME ...; KIND alone means all of the namespace.
    #[arg(required = true, value_name = "KIND/NAME")]
    pub(crate) words: Vec<String>,
    /// The namespace of the objects.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Shows only this namespace.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Shows all namespaces, which is always so without -n; kubectl needs it.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Shows only what happened to this object, and for a Deployment to its pods.
    #[arg(long = "for", value_name = "KIND/NAME", value_parser = about)]
    pub(crate) about: Option<Target>,
    /// Shows only events of these types.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TYPE")]
    pub(crate) types: Vec<EventType>,
    /// Goes on until Ctrl-C, and prints what happens.
    #[arg(short, long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

fn about(word: &str) -> Result<Target, String> {
    let (target, _) = Target::read(&[word.to_owned()])?;
    Ok(target)
}

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventType {
    /// It is.
    #[value(alias = "Normal")]
    Normal,
    /// It is not.
    #[value(alias = "Warning")]
    Warning,
}

impl EventType {
    /// Kubernetes' word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// `ambit top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Of what.
    #[arg(value_enum)]
    pub(crate) of: TopKind,
    /// Shows only this one.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Shows only pods of this namespace.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Shows all namespaces, which is always so without -n; kubectl needs it.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Shows each container of the pods for itself.
    #[arg(long)]
    pub(crate) containers: bool,
    /// What comes first.
    #[arg(long, value_enum)]
    pub(crate) sort_by: Option<TopOrder>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// What uses memory and processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopKind {
    /// Each pod.
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// Each node, with the parts of the mesh there; and control.
    #[value(alias = "node", alias = "no")]
    Nodes,
}

/// The order of what uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopOrder {
    /// Most processor time first.
    Cpu,
    /// Most memory first.
    Memory,
}
