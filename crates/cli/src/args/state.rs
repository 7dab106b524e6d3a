//! The argument that names a machine.

use std::path::PathBuf;

use clap::Args;

/// Which machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct StateArgs {
    /// The state directory of the mesh on this machine [env: AMBIT_STATE] [default: /run/ambit, or
    /// without root below $XDG_RUNTIME_DIR].
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}
