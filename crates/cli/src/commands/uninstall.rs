//! `ambit uninstall`: takes every pod of a cluster out of the mesh, so that the chart can go.

use std::process::ExitCode;

use ambit_cluster::{Cluster, Departure, Facts, Severity, Stage, findings};
use ambit_words::durations::write_duration;
use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::UninstallArgs;
use crate::progress;

/// Says what changes, refuses what somebody has forbidden, and takes the pods out.
pub(super) async fn uninstall(args: UninstallArgs) -> Result<ExitCode> {
    // Before anything is ordered that would have to be withdrawn.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::pin!(stop);
    let shown = progress::shown("looking at the cluster");
    let cluster = Cluster::connect(&args.kube.choice()).await?;
    let facts = tokio::select! {
        facts = Facts::gather(&cluster, Stage::Leaving) => facts?,
        () = &mut stop => bail!("stopped by a signal; nothing was changed"),
    };
    drop(shown);
    let found = findings(&facts);
    for finding in &found {
        super::print_text(&format!("{finding}\n"))?;
    }
    let errors = found.iter().filter(|it| it.severity == Severity::Error).count();
    if errors > 0 && !args.force {
        bail!("nothing was changed: {errors} findings forbid it; repair them, or use --force");
    }
    let departure = Departure { grace: args.grace, is_forced: args.force };
    let say = |words: &str| drop(super::print_text(&format!("{words}\n")));
    let cut = departure.run(&cluster, say, stop).await?;
    super::print_text(&match cut {
        0 => "every pod has left the mesh; no connection was cut\n".to_owned(),
        cut => format!(
            "every pod has left the mesh; {cut} ends of connections were open after {} and were \
             cut\n",
            write_duration(args.grace)
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}
