//! `ambit probe`: whether the part of the mesh in the same container is healthy.
//!
//! The kubelet starts it in the part's own container. It sends its request over loopback, which no
//! other pod reaches, so no pod can block the answer.

use std::process::ExitCode;
use std::time::Duration;

use ambit_net::local_http;
use anyhow::Result;
use http::StatusCode;

use crate::args::ProbeArgs;

/// Longest wait for the answer; shorter than the kubelet's own in the chart.
const PATIENCE: Duration = Duration::from_secs(4);

/// Sends the request, and prints the answer.
pub(super) async fn probe(args: &ProbeArgs) -> Result<ExitCode> {
    let (status, said) = local_http::get(args.address(), args.target(), PATIENCE).await?;
    super::print(&String::from_utf8_lossy(&said))?;
    Ok(if status == StatusCode::OK { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
