//! Shell completions and manual pages, generated from the definitions of the commands.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;

use super::complete;
use crate::args::{Cli, CompletionsArgs, ManArgs};

/// Prints the completions of a shell.
pub(super) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ambit", &mut text);
    let text = String::from_utf8(text).context("completions are text")?;
    super::print(&complete::with_names(args.shell, &text))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a manual page for each command into a directory.
pub(super) fn man(args: &ManArgs) -> Result<ExitCode> {
    let place = || format!("write manual pages to {}", args.directory.display());
    std::fs::create_dir_all(&args.directory).with_context(place)?;
    clap_mangen::generate_to(Cli::command(), &args.directory).with_context(place)?;
    Ok(ExitCode::SUCCESS)
}
