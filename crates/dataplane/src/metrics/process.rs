//! Figures of this process from the operating system and the runtimes, read at each scrape.
//!
//! A value that cannot be read is left out, as Prometheus' own clients do.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tokio::runtime::Handle;

use crate::descriptors::Descriptors;

/// Linux counts processor time in hundredths of a second towards user space (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;
/// The page size of every architecture that this is built for, as `statm` counts.
const PAGE_BYTES: u64 = 4096;

/// The process as a whole.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name in parentheses may hold anything; the fields after it are numbers.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
        let number = |index: usize| fields.get(index).and_then(|it| it.parse::<u64>().ok());
        // proc(5): utime and stime are fields 14 and 15, counted from the process number.
        if let (Some(user), Some(system)) = (number(12), number(13)) {
            let seconds = (user + system) as f64 / TICKS_PER_SECOND;
            let help = "Processor time used";
            let name = "process_cpu_seconds";
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, f64, f64>(&seconds, None)?;
        }
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident = statm.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok());
        let open = std::fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as u64);
        let gauges = [
            ("process_threads", "Threads", number(18)),
            ("process_resident_memory_bytes", "Memory", resident.map(|it| it * PAGE_BYTES)),
            ("process_open_fds", "Open descriptors", open),
            ("process_max_fds", "Limit of open descriptors", max_fds()),
            ("process_start_time_seconds", "When it started", started(number(20))),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value.and_then(|value| i64::try_from(value).ok()) else { continue };
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            metric.encode_gauge(&value)?;
        }
        Ok(())
    }
}

fn max_fds() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// The moment of start, from ticks since the machine's.
fn started(ticks_after_boot: Option<u64>) -> Option<u64> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
    let age = uptime - ticks_after_boot? as f64 / TICKS_PER_SECOND;
    Some((now - age) as u64)
}

/// The account of descriptors, once there is one.
#[derive(Debug, Default)]
pub(super) struct Account(OnceLock<Arc<Descriptors>>);

impl Account {
    /// Shows this one.
    pub(super) fn watch(&self, descriptors: Arc<Descriptors>) {
        // A worker has one account.
        let _second = self.0.set(descriptors);
    }
}

impl Collector for Account {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(descriptors) = self.0.get() else { return Ok(()) };
        let (used, total) = descriptors.used();
        let gauges = [
            ("ambit_descriptors_used", "Descriptors that connections have", used),
            ("ambit_descriptors_for_connections", "Descriptors that connections may have", total),
        ];
        for (name, help, value) in gauges {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            metric.encode_gauge(&value)?;
        }
        let help = "Connections and tunnels refused because a share of descriptors was used up";
        let (name, kind) = ("ambit_share_refusals", MetricType::Counter);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (direction, count) in descriptors.refused() {
            let labels = [("direction", direction)];
            let mut metric = family.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
        }
        Ok(())
    }
}

/// The runtimes of the threads.
#[derive(Debug, Default)]
pub(super) struct Runtimes(Mutex<Vec<(String, Handle)>>);

impl Runtimes {
    /// Shows one more.
    pub(super) fn watch(&self, thread: String, runtime: Handle) {
        self.0.lock().expect("no holder of this lock panics").push((thread, runtime));
    }
}

impl Collector for Runtimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let runtimes = self.0.lock().expect("no holder of this lock panics").clone();
        type Column = (&'static str, &'static str, fn(&Handle) -> usize);
        let columns: [Column; 2] = [
            ("tokio_num_alive_tasks", "Tasks of a thread", |it| it.metrics().num_alive_tasks()),
            ("tokio_global_queue_depth", "Tasks woken by other threads and not yet run", |it| {
                it.metrics().global_queue_depth()
            }),
        ];
        for (name, help, column) in columns {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (thread, runtime) in &runtimes {
                let value = i64::try_from(column(runtime)).unwrap_or(i64::MAX);
                let labels = [("thread", thread.as_str())];
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}
