//! The arguments of `version`.

use clap::{Args, ValueEnum};

use super::{KubeArgs, StateArgs};

/// `ambit version`.
#[derive(Debug, Args)]
#[command(after_help = "Parts of the same version are one line, with how many they are. Exits \
    with 1 if a part does not say its version.")]
pub(crate) struct VersionArgs {
    /// This program's version alone: nothing is asked.
    #[arg(long)]
    pub(crate) client: bool,
    /// The format of the output, for programs.
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<VersionOutput>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

/// How versions are written, if not as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VersionOutput {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}
