//! What is measured: the rows of the comparison, and one measurement of one of them.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::host;
use super::mesh::Mesh;

/// How long a side is driven before it is measured, in seconds.
const WARM_UP_S: usize = 1;

/// Who carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// Nobody: pods outside the mesh.
    Nobody,
    /// Ambit's proxies.
    Ambit,
    /// ztunnel.
    Ztunnel,
}

impl Side {
    pub(super) const ALL: [Self; 3] = [Self::Nobody, Self::Ambit, Self::Ztunnel];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no mesh",
            Self::Ambit => "ambit",
            Self::Ztunnel => "ztunnel",
        }
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// Requests for 1 KiB. A rate of 0 is as fast as they go.
    Http { host: &'static str, rate: u32, connections: u32, close: bool },
    /// One stream to a sink.
    Stream,
}

/// One row of the comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) load: Load,
    pub(super) metrics: &'static [Metric],
    /// Ambit must not be worse in it; the others are shown for information.
    pub(super) is_judged: bool,
}

/// A number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    P50,
    P90,
    P99,
    Rate,
    GigabitsPerSecond,
    /// Of the proxies of both nodes.
    CpuPerRequest,
    /// Of the proxies of both nodes.
    CpuPerGigabyte,
}

impl Metric {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50 µs",
            Self::P90 => "p90 µs",
            Self::P99 => "p99 µs",
            Self::Rate => "requests/s",
            Self::GigabitsPerSecond => "Gbit/s",
            Self::CpuPerRequest => "proxy CPU µs/request",
            Self::CpuPerGigabyte => "proxy CPU s/GB",
        }
    }

    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Self::Rate | Self::GigabitsPerSecond)
    }
}

use Metric::{CpuPerGigabyte, CpuPerRequest, GigabitsPerSecond, P50, P90, P99, Rate};

pub(super) const ROWS: [Row; 5] = [
    Row {
        name: "1000 rps on 10 connections",
        load: Load::Http { host: "server", rate: 1000, connections: 10, close: false },
        metrics: &[P50, P90, P99, CpuPerRequest],
        is_judged: true,
    },
    Row {
        name: "saturation on 16 connections",
        load: Load::Http { host: "server", rate: 0, connections: 16, close: false },
        metrics: &[Rate, P50, CpuPerRequest],
        is_judged: true,
    },
    Row {
        name: "a connection per request, 4 clients",
        load: Load::Http { host: "server", rate: 0, connections: 4, close: true },
        metrics: &[Rate, P50, CpuPerRequest],
        is_judged: true,
    },
    Row {
        name: "one stream",
        load: Load::Stream,
        metrics: &[GigabitsPerSecond, CpuPerGigabyte],
        is_judged: true,
    },
    Row {
        name: "same node, 1000 rps on 10 connections",
        load: Load::Http { host: "neighbour", rate: 1000, connections: 10, close: false },
        metrics: &[P50, P99, CpuPerRequest],
        is_judged: false,
    },
];

impl Load {
    /// The load generator's words.
    pub(super) fn words(self, namespace: &str, seconds: usize) -> Vec<String> {
        let text = match self {
            Self::Http { host, rate, connections, close } => format!(
                "load http://{host}.{namespace}:8080/?size=1024 --rate {rate} --connections \
                 {connections} --duration {seconds}s{} --output json",
                if close { " --close" } else { "" }
            ),
            Self::Stream => format!(
                "load tcp://server.{namespace}:9000 --protocol tcp-stream --rate max \
                 --connections 1 --duration {seconds}s --output json"
            ),
        };
        text.split(' ').map(Into::into).collect()
    }
}

/// One side, driven once.
pub(super) struct Measurement {
    pub(super) repetition: usize,
    pub(super) row: &'static str,
    pub(super) side: Side,
    /// By metric, in the order of the row.
    pub(super) values: Vec<(Metric, f64)>,
    load: Value,
    proxy_cpu_s: BTreeMap<String, f64>,
    host: host::Meanwhile,
}

impl Measurement {
    /// Warms a side up and drives it.
    pub(super) fn take(
        repetition: usize,
        row: &Row,
        side: Side,
        mesh: &Mesh,
        seconds: usize,
    ) -> Result<Self> {
        let namespace = if side == Side::Nobody { "plain" } else { "bench" };
        let pod = format!("{namespace}/client");
        mesh.load(&pod, &row.load.words(namespace, WARM_UP_S))?;
        let proxies = mesh.proxies()?;
        let (host, before) = (host::Reading::now()?, proxies.read()?);
        let load = mesh.load(&pod, &row.load.words(namespace, seconds))?;
        let (after, host) = (proxies.read()?, host.until_now()?);
        if load["failed"].as_u64().is_some_and(|failed| failed > 0) {
            bail!("{}, {}: requests failed: {}", row.name, side.name(), load["errors"]);
        }
        let proxy_cpu_s = after.seconds_since(&before);
        let cpu_s: f64 = proxy_cpu_s.values().sum();
        let field = |name: &str| {
            load.pointer(name)
                .and_then(Value::as_f64)
                .with_context(|| format!("the load generator says no {name}"))
        };
        let value = |metric: Metric| match metric {
            P50 => field("/latency/p50_us"),
            P90 => field("/latency/p90_us"),
            P99 => field("/latency/p99_us"),
            Rate => field("/throughput"),
            GigabitsPerSecond => field("/gigabits_per_second_out"),
            CpuPerRequest => Ok(cpu_s * 1e6 / field("/requests")?),
            CpuPerGigabyte => Ok(cpu_s * 1e9 / field("/bytes_out")?),
        };
        let values = row.metrics.iter().map(|metric| Ok((*metric, value(*metric)?)));
        let values = values.collect::<Result<_>>()?;
        Ok(Self { repetition, row: row.name, side, values, load, proxy_cpu_s, host })
    }

    /// Everything about it, for the raw record.
    pub(super) fn json(&self) -> Value {
        json!({
            "repetition": self.repetition,
            "row": self.row,
            "side": self.side.name(),
            "load": self.load,
            "proxy_cpu_s": self.proxy_cpu_s,
            "host_busy": self.host.busy,
            "host_stolen": self.host.stolen,
            "host_load_average": self.host.load_average,
        })
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:<38} {:<8}", self.repetition, self.row, self.side.name())?;
        for (metric, value) in &self.values {
            write!(f, "  {} {value:.1}", metric.name())?;
        }
        Ok(())
    }
}
