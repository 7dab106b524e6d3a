//! The processes of a machine as the host sees them: PIDs for `ps`, `perf` and `kill`, memory and
//! CPU.
//!
//! Read from the host's `/proc`: a process inside cannot know its PID outside.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use super::client::PodInfo;
use super::record::Record;

/// Clock ticks per second in `/proc/PID/stat`, the same on every Linux.
pub(crate) const TICKS_PER_SECOND: u64 = 100;

/// A process of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// Its number on the host.
    pub host_pid: i32,
    /// Its number inside the machine.
    pub pid: i32,
    /// The number of its parent on the host.
    pub host_parent_pid: i32,
    /// `machine`, a program such as `proxy/node-1`, `worker/node-1`, or `pod NAMESPACE/NAME`.
    pub name: String,
    /// Its command line.
    pub command: String,
    /// Memory in use.
    pub resident_bytes: u64,
    /// CPU time used, user and system.
    pub cpu_ms: u64,
}

/// Every process of a machine. `pods` name those of pods.
pub fn processes(record: &Record, pods: &[PodInfo]) -> io::Result<Vec<ProcessInfo>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        // One that ended meanwhile is no longer a process.
        if let Some(process) = pid.and_then(read) {
            all.insert(process.host_pid, process);
        }
    }
    let inside: Vec<i32> = all
        .keys()
        .copied()
        .filter(|pid| ancestors(&all, *pid).any(|up| up == record.pid))
        .collect();
    let names: BTreeMap<i32, String> =
        inside.iter().map(|pid| (*pid, name(&all, *pid, record, pods))).collect();
    Ok(inside
        .into_iter()
        .filter_map(|pid| {
            let mut process = all.remove(&pid)?;
            process.name.clone_from(&names[&pid]);
            Some(process)
        })
        .collect())
}

/// A process and its parents, up to one that is not known.
fn ancestors(all: &BTreeMap<i32, ProcessInfo>, pid: i32) -> impl Iterator<Item = i32> {
    std::iter::successors(Some(pid), |pid| {
        all.get(pid).map(|process| process.host_parent_pid).filter(|parent| *parent != 0)
    })
}

fn name(all: &BTreeMap<i32, ProcessInfo>, pid: i32, record: &Record, pods: &[PodInfo]) -> String {
    for up in ancestors(all, pid) {
        let Some(process) = all.get(&up) else { continue };
        if let Some(pod) = pods.iter().find(|pod| pod.pid != 0 && pod.pid == process.pid) {
            return format!("pod {}/{}", pod.namespace, pod.name);
        }
        let mut words = process.command.split(' ').skip(1);
        let role = words.next().unwrap_or_default();
        let is_worker = role == "proxy" && process.command.contains(" --worker");
        let node = process.command.split(' ').skip_while(|word| *word != "--node-name").nth(1);
        match (role, node) {
            // By its own words: a worker outlives its supervisor.
            ("proxy", Some(node)) if is_worker => return format!("worker/{node}"),
            ("node" | "proxy" | "lab-node", Some(node)) => return format!("{role}/{node}"),
            // Another mesh's program shows in its environment; it is in its node's network.
            ("proxy", None) => {
                if let Some(node) = node_of(record, process.host_pid) {
                    return format!("proxy/{node}");
                }
            }
            ("control", _) => return role.to_owned(),
            _ if up == record.pid => return "machine".to_owned(),
            _ => {}
        }
    }
    "machine".to_owned()
}

/// The node in whose network a process is.
fn node_of(record: &Record, host_pid: i32) -> Option<&str> {
    let link = fs::read_link(format!("/proc/{host_pid}/ns/net")).ok()?;
    let number: u64 = link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()?;
    let mut networks = record.network_namespaces.iter();
    let (name, _) = networks.find(|(_, network)| **network == number)?;
    record.nodes.contains(name).then_some(name.as_str())
}

fn read(host_pid: i32) -> Option<ProcessInfo> {
    let status = fs::read_to_string(format!("/proc/{host_pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line[name.len()..].trim_start_matches(':').trim())
    };
    let number = |name: &str, position: usize| -> Option<i64> {
        field(name)?.split_whitespace().nth(position)?.parse().ok()
    };
    // The first number is the host's, the second that of the machine's PID namespace.
    let pid = number("NSpid", 1)?;
    let stat = fs::read_to_string(format!("/proc/{host_pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest)?;
    let ticks = |position: usize| -> Option<u64> {
        after_name.split_whitespace().nth(position)?.parse().ok()
    };
    let command = fs::read(format!("/proc/{host_pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    Some(ProcessInfo {
        host_pid,
        pid: i32::try_from(pid).ok()?,
        host_parent_pid: i32::try_from(number("PPid", 0)?).ok()?,
        name: String::new(),
        command: command.trim().to_owned(),
        resident_bytes: number("VmRSS", 0).and_then(|kib| u64::try_from(kib).ok()).unwrap_or(0)
            << 10,
        cpu_ms: (ticks(11)? + ticks(12)?) * 1000 / TICKS_PER_SECOND,
    })
}
