//! The host of a run: what it is, what is compared on it, and what else it does meanwhile.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What a run was made on and of.
pub(super) struct Host {
    pub(super) date: String,
    cpu: String,
    cpus: usize,
    memory_kib: String,
    kernel: String,
    ambit: String,
    ztunnel: String,
}

impl Host {
    /// Looks.
    pub(super) fn describe(ambit: &Path, ztunnel: &Path) -> Result<Self> {
        let cpus = std::thread::available_parallelism().context("count the CPUs")?.get();
        let commit =
            said(Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]))?;
        let size = fs::metadata(ambit)?.len();
        Ok(Self {
            date: said(Command::new("date").args(["-u", "+%Y-%m-%d"]))?,
            cpu: field("/proc/cpuinfo", "model name")?,
            cpus,
            memory_kib: field("/proc/meminfo", "MemTotal")?,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            ambit: format!("{commit}, {size} bytes"),
            ztunnel: said(Command::new(ztunnel).arg("version"))?,
        })
    }

    /// A short name for the machine, for the run's directory.
    pub(super) fn slug(&self) -> String {
        let words = self.cpu.to_lowercase();
        let words =
            words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        format!("{}x-{}", self.cpus, words.collect::<Vec<_>>().join("-"))
    }

    /// For the raw record.
    pub(super) fn json(&self) -> Value {
        json!({
            "date": self.date,
            "cpu": self.cpu,
            "cpus": self.cpus,
            "memory": self.memory_kib,
            "kernel": self.kernel,
            "ambit": self.ambit,
            "ztunnel": self.ztunnel,
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} x {}, {}, Linux {}", self.cpus, self.cpu, self.memory_kib, self.kernel)?;
        writeln!(f, "ambit   {}", self.ambit)?;
        write!(f, "ztunnel {}", self.ztunnel)
    }
}

/// A seed that differs from run to run; the run records it.
pub(super) fn seed() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    Ok(now.as_secs())
}

/// The host's CPU time so far, in clock ticks.
pub(super) struct Reading {
    all: u64,
    idle: u64,
    stolen: u64,
}

/// What the host did during a measurement, as shares of all its CPUs.
pub(super) struct Meanwhile {
    pub(super) busy: f64,
    pub(super) stolen: f64,
    pub(super) load_average: f64,
}

impl Reading {
    pub(super) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().context("/proc/stat has a first line")?;
        let fields: Vec<u64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
        let at = |position: usize| fields.get(position).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal; guests are in user already.
        Ok(Self { all: fields.iter().take(8).sum(), idle: at(3) + at(4), stolen: at(7) })
    }

    pub(super) fn until_now(&self) -> Result<Meanwhile> {
        let now = Self::now()?;
        let all = (now.all - self.all).max(1) as f64;
        let load = fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().and_then(|field| field.parse().ok());
        Ok(Meanwhile {
            busy: 1.0 - (now.idle - self.idle) as f64 / all,
            stolen: (now.stolen - self.stolen) as f64 / all,
            load_average: load.context("/proc/loadavg begins with a number")?,
        })
    }
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn field(path: &str, name: &str) -> Result<String> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find(|line| line.starts_with(name));
    let value =
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned());
    value.with_context(|| format!("{path} has no {name}"))
}
