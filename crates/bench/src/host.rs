//! The host of a run: what it is, and what else it does during the run.

use std::fs;

use anyhow::{Context, Result};

use super::record::{Host, Meanwhile};

impl Host {
    /// Looks.
    pub(super) fn look() -> Result<Self> {
        let memory = field("/proc/meminfo", "MemTotal")?;
        let kib: u64 = memory.trim_end_matches(" kB").parse().context("MemTotal is a number")?;
        Ok(Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|_| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().context("count the processors")?.get(),
            memory_bytes: kib << 10,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            system: system().unwrap_or_else(|| "unknown".to_owned()),
        })
    }

    /// A short name for the machine, for the run's directory.
    pub(super) fn slug(&self) -> String {
        let words = self.cpu.to_lowercase();
        let words =
            words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        format!("{}x-{}", self.cpus, words.collect::<Vec<_>>().join("-"))
    }
}

/// The distribution, as os-release(5) names it.
fn system() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').to_owned())
}

fn field(path: &str, name: &str) -> Result<String> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find(|line| line.starts_with(name));
    let value =
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned());
    value.with_context(|| format!("{path} has no {name}"))
}

/// Bytes that new processes may still take.
pub(super) fn available_bytes() -> Result<u64> {
    let available = field("/proc/meminfo", "MemAvailable")?;
    let kib: u64 = available.trim_end_matches(" kB").parse().context("MemAvailable")?;
    Ok(kib << 10)
}

/// The size of the kernel's neighbour table, if the host reports it.
pub(super) fn neighbours_max() -> Option<usize> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/neigh/default/gc_thresh3").ok()?;
    text.trim().parse().ok()
}

/// The host's processor time so far, in clock ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    all: u64,
    idle: u64,
    stolen: u64,
    mhz: f64,
}

impl Reading {
    /// Now.
    pub(super) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("/proc/stat has a first line")?;
        let fields: Vec<u64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
        let at = |position: usize| fields.get(position).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal; guests are in user already.
        let (all, idle, stolen) = (fields.iter().take(8).sum(), at(3) + at(4), at(7));
        Ok(Self { all, idle, stolen, mhz: mean_mhz() })
    }

    /// What happened from then until now.
    pub(super) fn until_now(&self) -> Result<Meanwhile> {
        let now = Self::now()?;
        let all = now.all.saturating_sub(self.all).max(1) as f64;
        Ok(Meanwhile {
            busy: 1.0 - now.idle.saturating_sub(self.idle) as f64 / all,
            stolen: now.stolen.saturating_sub(self.stolen) as f64 / all,
            mhz_before: self.mhz,
            mhz_after: now.mhz,
            load_average: load_average()?,
        })
    }
}

/// Over the last minute.
pub(super) fn load_average() -> Result<f64> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().and_then(|field| field.parse().ok());
    load.context("/proc/loadavg begins with a number")
}

/// Mean of all processors; 0 if the host does not report it.
fn mean_mhz() -> f64 {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of_line = |line: &str| line.strip_prefix("cpu MHz")?.split(':').nth(1)?.trim().parse().ok();
    let all: Vec<f64> = text.lines().filter_map(of_line).collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_tells_what_it_is_and_does() {
        let host = Host::look().unwrap();
        assert!(host.cpus > 0 && host.memory_bytes > 1 << 20 && !host.kernel.is_empty());
        assert!(host.slug().starts_with(&format!("{}x-", host.cpus)));
        let meanwhile = Reading::now().unwrap().until_now().unwrap();
        assert!((0.0..=1.0).contains(&meanwhile.busy) && (0.0..=1.0).contains(&meanwhile.stolen));
        assert!(available_bytes().unwrap() > 0);
    }
}
