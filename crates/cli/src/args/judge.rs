//! The arguments of `diff` and `analyze`, which change nothing.

use clap::Args;

use super::{
    IgnoredArgs, ImageArgs, InputArgs, KubeArgs, NamespaceArgs, Report, StateArgs, inputs,
};

/// `ambit diff`.
#[derive(Debug, Args)]
#[command(
    group(inputs::needed()),
    after_help = "Exits with 0 if nothing would change, 1 if something would, and more on an error."
)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    pub(crate) images: ImageArgs,
    #[command(flatten)]
    pub(crate) inputs: InputArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    #[command(flatten)]
    pub(crate) ignored: IgnoredArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// `ambit analyze`.
#[derive(Debug, Args)]
#[command(group(inputs::of_no_cluster()))]
pub(crate) struct AnalyzeArgs {
    #[command(flatten)]
    pub(crate) inputs: InputArgs,
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,
    /// The format of the output.
    #[arg(short, long, value_enum, default_value_t = Report::Text)]
    pub(crate) output: Report,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}
