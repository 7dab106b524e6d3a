//! `ambit check`: can a cluster run Ambit, and is everything healthy there?

use std::fmt::Write;
use std::process::ExitCode;

use ambit_cluster::{Cluster, Facts, Finding, Severity, Stage, findings};
use ambit_wire::admin::ApiVersion;
use anyhow::Result;
use serde::Serialize;

use crate::args::{CheckArgs, Report};
use crate::progress;

/// What `ambit check -o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Checked<'a> {
    /// The version of this form.
    api_version: ApiVersion,
    /// The context of the kubeconfig.
    context: &'a str,
    /// What is found.
    findings: &'a [Finding],
}

/// Prints the findings; fails if any of them is an error.
pub(super) async fn check(args: CheckArgs) -> Result<ExitCode> {
    let shown = progress::shown("looking at the cluster");
    let cluster = Cluster::connect(&args.kube.choice()).await?;
    let stage = match (args.pre, args.uninstall) {
        (true, _) => Stage::Before,
        (false, true) => Stage::Leaving,
        (false, false) => Stage::Running,
    };
    let found = findings(&Facts::gather(&cluster, stage).await?);
    drop(shown);
    match args.output {
        Report::Json => super::print_json(&Checked {
            api_version: ApiVersion,
            context: cluster.context(),
            findings: &found,
        })?,
        Report::Text => super::print_text(&text(cluster.context(), &found))?,
    }
    let has_error = found.iter().any(|it| it.severity == Severity::Error);
    Ok(if has_error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text(context: &str, found: &[Finding]) -> String {
    let mut text: String = found.iter().map(|finding| format!("{finding}\n")).collect();
    let count = |severity| found.iter().filter(|it| it.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    // Writing to a String cannot fail.
    let _ = match (errors, warnings) {
        (0, 0) => writeln!(text, "{context}: all is well"),
        _ => writeln!(text, "{context}: {errors} errors, {warnings} warnings"),
    };
    text
}
