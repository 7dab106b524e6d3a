//! Fortio's REST call.

use std::process::ExitCode;

use anyhow::Result;

use super::args::ServeArgs;

/// Serves until it is ended.
pub(super) async fn serve(args: ServeArgs) -> Result<ExitCode> {
    anyhow::bail!("not yet: {args:?}")
}
