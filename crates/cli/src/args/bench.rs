//! The arguments of `ambit bench`.

use clap::Args;

use super::KubeArgs;

/// `ambit bench`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) bench: ambit_bench::BenchArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}
