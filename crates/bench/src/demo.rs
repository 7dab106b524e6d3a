//! `ambit demo`: runs the example on two nodes, with the mesh off and on, and proves its claims.
//!
//! It uses only the user's commands, and does nothing that a user could not do by hand: every claim
//! it prints was measured in this run. It always takes its machine down, and it fails if any claim
//! does not hold.

mod certificates;
mod policies;
mod report;
mod stage;
mod wire;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub use report::DemoReport;
use stage::Stage;
pub(crate) use stage::move_directory;

/// The settings of the demonstration.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// The shipped binary.
    pub binary: PathBuf,
    /// Where captures and logs stay.
    pub keep: PathBuf,
    /// Seconds of load per mode.
    pub seconds: u32,
    /// Requests per second.
    pub rate: u32,
}

/// Runs the demonstration; `tell` gets its progress.
pub async fn run(config: &DemoConfig, tell: impl Fn(&str)) -> Result<DemoReport> {
    let start = Instant::now();
    tell("starting two nodes, an application of three tiers, and the mesh");
    let stage = Stage::set(config).await?;
    let outcome = tokio::select! {
        outcome = prove(&stage, config, &tell) => outcome,
        _ = tokio::signal::ctrl_c() => bail_out(),
    };
    tell("taking everything down");
    let struck = stage.strike().await;
    let mut report = outcome?;
    report.left_behind = struck.context("take the machine down")?;
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn bail_out() -> Result<DemoReport> {
    bail!("interrupted")
}

async fn prove(stage: &Stage, config: &DemoConfig, tell: &impl Fn(&str)) -> Result<DemoReport> {
    let mut report = DemoReport { keep: config.keep.clone(), ..DemoReport::default() };
    tell("the mesh is off: load, and a look at the wire");
    report.off = wire::measure(stage, config, "off").await?;
    tell("labelling the namespaces");
    let labelled = Instant::now();
    stage.label().await?;
    report.enrolled_ms = u64::try_from(labelled.elapsed().as_millis()).unwrap_or(u64::MAX);
    report.inventory = stage.inventory().await?;
    tell("the mesh is on: the same load, and a look at the wire");
    report.on = wire::measure(stage, config, "on").await?;
    tell("knocking with certificates that must be refused");
    report.certificates = certificates::knock(stage).await?;
    tell("policies: one allowed and one denied connection each");
    report.policies = policies::prove(stage).await?;
    report.flip = policies::flip(stage).await?;
    tell("STRICT: a client outside the mesh");
    report.strict = policies::strict(stage).await?;
    Ok(report)
}
