//! CPU time of the proxies of a machine, all their processes and threads, in nanoseconds.
//!
//! Read from the host's `/proc`. A proxy is what was started as `... proxy ...` in the network of a
//! node: the supervisor and the worker of Ambit, or ztunnel.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The proxies of a machine.
#[derive(Clone, Debug)]
pub(super) struct Proxies {
    /// Host process numbers by node.
    pub(super) of_node: BTreeMap<String, Vec<u32>>,
}

/// What every thread of the proxies has used so far.
pub(super) struct Reading(BTreeMap<String, BTreeMap<String, u64>>);

impl Proxies {
    /// Finds the proxies in the networks of these nodes, which the kernel numbers.
    pub(super) fn find(networks: &BTreeMap<String, u64>) -> Result<Self> {
        let mut of_node: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let node = proxy_network(&entry.path())
                .and_then(|number| networks.iter().find(|(_, network)| **network == number));
            if let Some((node, _)) = node {
                of_node.entry(node.clone()).or_default().push(pid);
            }
        }
        if of_node.len() != networks.len() {
            bail!("found proxies on {:?} only", of_node.keys());
        }
        Ok(Self { of_node })
    }

    /// What they have used so far.
    pub(super) fn read(&self) -> Result<Reading> {
        let mut reading = BTreeMap::new();
        for (node, pids) in &self.of_node {
            let mut threads = BTreeMap::new();
            for pid in pids {
                read_threads(*pid, &mut threads)?;
            }
            reading.insert(node.clone(), threads);
        }
        Ok(Reading(reading))
    }
}

impl Reading {
    /// Seconds used by node since an earlier reading. A thread that ended meanwhile counts for
    /// nothing: both proxies end none that moves bytes.
    pub(super) fn seconds_since(&self, earlier: &Self) -> BTreeMap<String, f64> {
        let of_node = |(node, threads): (&String, &BTreeMap<String, u64>)| {
            let before = |thread| earlier.0.get(node)?.get(thread).copied();
            let used = threads.iter().map(|(thread, now)| now - before(thread).unwrap_or(0));
            (node.clone(), used.sum::<u64>() as f64 * 1e-9)
        };
        self.0.iter().map(of_node).collect()
    }
}

/// The number of a process's network, if it is a proxy.
fn proxy_network(process: &Path) -> Option<u64> {
    let command = fs::read(process.join("cmdline")).ok()?;
    if command.split(|byte| *byte == 0).nth(1) != Some(b"proxy") {
        return None;
    }
    let link = fs::read_link(process.join("ns/net")).ok()?;
    link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

fn read_threads(pid: u32, threads: &mut BTreeMap<String, u64>) -> Result<()> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.with_context(|| format!("proxy process {pid} has ended"))?.flatten() {
        let path = task.path().join("schedstat");
        // One that ended between the listing and the reading is no thread any more.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let on_cpu = text.split(' ').next().and_then(|field| field.parse().ok());
        let on_cpu = on_cpu.with_context(|| format!("{} is not as documented", path.display()))?;
        threads.insert(path.to_string_lossy().into_owned(), on_cpu);
    }
    Ok(())
}
