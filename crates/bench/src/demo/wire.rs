//! Load between nodes, and what a listener on the wire sees of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ambit_load::Report;
use ambit_machine::is_pod_address;
use ambit_net::capture::Trace;
use ambit_words::ports;
use anyhow::{Context, Result};

use super::DemoConfig;
use super::report::{Mode, Wire};
use super::stage::Stage;

/// What the client sends with every request and a listener must not read.
const MARKER: &str = "marker-6b1f0c52d9";
/// The largest capture.
const CAPTURE_LIMIT_BYTES: u64 = 1 << 30;

/// Drives the three tiers and the application of two writes, and looks at the wire meanwhile.
pub(super) async fn measure(stage: &Stage, config: &DemoConfig, mode: &str) -> Result<Mode> {
    let file = stage.keep.join(format!("mesh-{mode}.pcap"));
    stage.client().start_capture(&file, CAPTURE_LIMIT_BYTES).await?;
    let header = format!("X-Ambit-Marker: {MARKER}");
    let (rate, seconds) = (config.rate.to_string(), format!("{}s", config.seconds));
    let words = [
        "load",
        "http://tier-1-app-a.ns-1:8080/",
        "--rate",
        &rate,
        "--duration",
        &seconds,
        "--warm-up",
        "1s",
        "--header",
        &header,
        "--keep-going",
        "--output",
        "json",
    ];
    let load = stage.in_pod("client/load", &words, "").await?;
    let load: Report = serde_json::from_value(load).context("read the load's result")?;
    let words = [
        "load",
        "http://details-two-writes.ns-1:9080/details/0",
        "--rate",
        "100",
        "--duration",
        "2s",
        // The first answers of a connection are acknowledged at once, which hides the second write.
        "--warm-up",
        "2s",
        "--keep-going",
        "--output",
        "json",
    ];
    let two_writes = stage.in_pod("client/load", &words, "").await?;
    let two_writes = serde_json::from_value(two_writes).context("read the load's result")?;
    let summary = stage.client().stop_capture().await?;
    let trace = Trace::read(&file).context("read the capture")?;
    let mut wire = seen(&trace);
    wire.file = file;
    wire.frames = summary.frames;
    wire.frames_missing = summary.dropped + summary.over_limit;
    wire.application_bytes = load.bytes_in;
    Ok(Mode { load, two_writes, wire })
}

/// What the trace shows of connections between pods.
fn seen(trace: &Trace) -> Wire {
    let mut by_port: BTreeMap<u16, u64> = BTreeMap::new();
    let pods = |ip: IpAddr| is_pod_address(ip);
    for stream in trace.streams() {
        if pods(stream.source.ip()) && pods(stream.destination.ip()) {
            *by_port.entry(stream.server_port).or_default() += stream.payload.len() as u64;
        }
    }
    let tls = trace.tls_summary(ports::HBONE);
    Wire {
        marker_seen: trace.count_marker(MARKER.as_bytes()),
        bytes_between_pods_by_port: by_port,
        tls_bytes: tls.tls_bytes,
        other_bytes_on_tls_port: tls.other_bytes,
        alpn: tls.alpn,
        ..Wire::default()
    }
}
