//! `ambit kubeconfig`: how kubectl reaches a machine.

use std::fs;
use std::io::ErrorKind;
use std::process::ExitCode;

use ambit_machine::Record;
use ambit_machine::ownership::check_state_directory;
use anyhow::{Context, Result, bail};

use crate::args::KubeconfigArgs;

/// Prints the file that the machine has written, or where it is.
pub(super) fn kubeconfig(args: &KubeconfigArgs) -> Result<ExitCode> {
    let layout = super::layout(&args.state);
    check_state_directory(layout.root())?;
    Record::read(&layout)?;
    let path = layout.kubeconfig();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "the machine at {} does not serve the Kubernetes API; start it with \
             `ambit up --kubernetes-api`",
            layout.root().display()
        ),
        Err(error) => {
            return Err(error).with_context(|| format!("read {}", path.display()));
        }
    };
    super::print(&if args.path { format!("{}\n", path.display()) } else { text })?;
    Ok(ExitCode::SUCCESS)
}
